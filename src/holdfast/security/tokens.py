"""Logins by JSON web tokens (JWT): whose a token is, until when, and what it allows.

Laws:
- a token is good if one of the keys of the file signed it, by one of the algorithms of the file, and it is
  for this audience, of this issuer if there is one, valid by now and not expired; all else is no login
- a token without an end, without a user or without an audience is none; `none` is no algorithm
- a key of one kind is never taken for one of another: signatures by secrets and by key pairs are not mixed
- a token's rights are one more rule, for its own session alone; what cannot be read of them refuses the token
- whose a token says it is before it is checked is worth as much as a user name in CONNECT: attempts are
  counted by it, and nobody is let in by it
"""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec

from holdfast.broker.rules import Grant
from holdfast.config import Checked, Relations, convert, named
from holdfast.errors import ConfigError, Problem
from holdfast.files import open_file
from holdfast.readers import duration, text, whole
from holdfast.security.rules import PATTERN, problems_of_patterns
from holdfast.security.users import problem_of_name
from holdfast.units import S

TOKEN_BYTES_MAX = 8192
TOKEN = re.compile(rb"[\w-]+\.[\w-]+\.[\w-]+")
KEYS_MAX = 16
KEY_BYTES_MAX = 65_536
SECRET_BYTES_MIN = 32  # of a secret that signs
LEFT_NS_MAX = 100 * 365 * 86_400 * S
BY_SECRET = ("HS256", "HS384", "HS512")

Algorithm = Literal[
    "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"
]


class Jwt(Checked, frozen=True, kw_only=True):
    """The table `[jwt]` of a security file."""

    algorithms: tuple[Algorithm, ...]
    keys: tuple[Annotated[str, text(1000, "issuer.pem")], ...]
    audience: Annotated[str, text(1000, "plant")]
    issuer: str = ""
    leeway_ns: Annotated[int, duration(0, "5s")] = named("leeway", 0)
    rights: Annotated[str, text(100, "holdfast")] = "holdfast"  # the claim with the rights

    @property
    def by_secret(self) -> bool:
        return any(each in BY_SECRET for each in self.algorithms)

    def relations(self) -> Relations:
        yield self._algorithm_problems()
        yield self._key_problems()

    def _algorithm_problems(self) -> Iterator[Problem]:
        if not self.algorithms:
            yield Problem("algorithms", 'names none; for example algorithms = ["ES256"]')
        elif len({each in BY_SECRET for each in self.algorithms}) > 1:
            yield Problem(
                "algorithms", "has both HS…, by a secret, and others, by key pairs; choose one kind"
            )

    def _key_problems(self) -> Iterator[Problem]:
        if not 1 <= len(self.keys) <= KEYS_MAX:
            yield Problem(
                "keys", f'found {len(self.keys)}; 1 to {KEYS_MAX}, for example keys = ["issuer.pem"]'
            )


class TokenRights(Checked, frozen=True, kw_only=True):
    """What a token says in the claim of its rights."""

    publish: tuple[Annotated[str, PATTERN], ...] = ()
    subscribe: tuple[Annotated[str, PATTERN], ...] = ()
    deny_publish: tuple[Annotated[str, PATTERN], ...] = ()
    deny_subscribe: tuple[Annotated[str, PATTERN], ...] = ()
    qos_max: Annotated[int, whole(0, 2, 1)] = 2
    retain: bool = True

    def relations(self) -> Relations:
        return problems_of_patterns(self)

    def grant(self) -> Grant:
        return Grant(**msgspec.structs.asdict(self))


class Token(msgspec.Struct, frozen=True):
    """A good one: whose it is, when it ends, which key signed it, and what it allows besides the rules."""

    user: str
    left_ns: int  # until it ends, from when it was read, with the leeway
    key: str
    grant: Grant | None = None


class BadToken(Exception):
    """Of what kind its fault is; nothing of the token itself."""


def looks_like_token(password: bytes) -> bool:
    return TOKEN.fullmatch(password) is not None


class Claimed(msgspec.Struct):
    """The part of a token that says whose it is."""

    sub: str = ""


def claimed_user(token: bytes) -> str:
    """Whose that says it is, before anything of it is checked; empty if that can be no user."""
    payload = token.split(b".")[1]
    try:
        user = _claimed.decode(base64.urlsafe_b64decode(payload + b"=" * (-len(payload) % 4))).sub
    except (ValueError, RecursionError):  # also what is no base64, and what is no JSON
        return ""
    return "" if problem_of_name(user) else user


_claimed = msgspec.json.Decoder(Claimed)


class Tokens:
    """What a `[jwt]` table and the keys that it names are good for."""

    def __init__(self, config: Jwt, keys: dict[str, bytes]) -> None:
        self.config = config
        self.keys = keys  # by fingerprint

    @property
    def signers(self) -> tuple[Jwt, frozenset[str]]:
        """What makes a token good."""
        return self.config, frozenset(self.keys)

    def read(self, token: bytes) -> Token:
        """Whose it is, or BadToken; takes some tenths of a millisecond."""
        if len(token) > TOKEN_BYTES_MAX:
            raise BadToken("too long")
        try:
            return self._read(token)
        except BadToken:
            raise
        except Exception as error:  # a library may stumble over what an issuer writes
            raise BadToken(_fault_of(error)) from None

    def _read(self, token: bytes) -> Token:
        fingerprint, claims = self._decode(token)
        user = claims["sub"]
        if not isinstance(user, str) or problem_of_name(user):
            raise BadToken("the name in sub cannot be a user's")
        left_ns = int((float(claims["exp"]) - time.time()) * S) + self.config.leeway_ns
        rights = self.config.rights
        grant = _grant(claims[rights]) if rights in claims else None
        return Token(user, max(0, min(left_ns, LEFT_NS_MAX)), fingerprint, grant)

    def _decode(self, token: bytes) -> tuple[str, dict[str, Any]]:
        import jwt

        config = self.config
        for fingerprint, key in self.keys.items():
            try:
                claims = jwt.decode(
                    token,
                    key,
                    algorithms=list(config.algorithms),
                    audience=config.audience,
                    issuer=config.issuer or None,
                    leeway=config.leeway_ns / S,
                    options={"require": ["exp", "sub", "aud"]},
                )
            except (jwt.InvalidSignatureError, jwt.InvalidKeyError):
                continue  # another key may have signed it
            return fingerprint, claims
        raise BadToken("none of the keys signed it")


def _grant(claim: object) -> Grant:
    try:
        rights: TokenRights = convert(claim, TokenRights, "token")
    except ConfigError as error:
        keys = ", ".join(problem.path for problem in error.problems if problem.path)
        raise BadToken(f"its rights cannot be read{keys and ': '}{keys}") from None
    return rights.grant()


FAULTS = {
    "ExpiredSignatureError": "it has expired",
    "ImmatureSignatureError": "it is not valid yet",
    "InvalidAudienceError": "it is for another audience",
    "InvalidIssuerError": "it is of another issuer",
    "InvalidAlgorithmError": "it is signed by an algorithm that the file does not name",
    "DecodeError": "it cannot be read",
}


def _fault_of(error: Exception) -> str:
    """In words; of the token itself only which claim is missing."""
    kind = type(error).__name__
    if kind == "MissingRequiredClaimError":
        return f"it has no claim {getattr(error, 'claim', '')!r}"
    return FAULTS.get(kind, kind)


def load_tokens(config: Jwt) -> Tokens:
    """With the keys of the files; or a ConfigError, which says nothing of a key."""
    try:
        import jwt
    except ImportError:
        problem = Problem("jwt", 'needs the packages of the extra "jwt": pip install "holdfast[jwt]"')
        raise ConfigError("jwt", [problem]) from None
    problems, keys = [], {}
    for path in config.keys:
        with open_file(path) as file:
            key = file.read(KEY_BYTES_MAX).strip()
        why = ""
        if config.by_secret and len(key) < SECRET_BYTES_MIN:
            why = f"has {len(key)} bytes; a secret that signs has {SECRET_BYTES_MIN} at least"
        for name in config.algorithms if not why else ():
            try:
                jwt.get_algorithm_by_name(name).prepare_key(key)
            except Exception:  # whatever a library makes of a file that is no key
                why = f"is no key for {name}; a public key in PEM is expected, or a secret for HS…"
                break
        if why:
            problems.append(Problem("jwt.keys", f"{path} {why}"))
        keys[hashlib.sha256(key).hexdigest()] = key
    if problems:
        raise ConfigError("jwt", problems)
    return Tokens(config, keys)
