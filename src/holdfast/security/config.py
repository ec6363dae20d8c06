"""The file behind `--security`: who may connect where, how brokers know each other, and what bounds a user.

Laws:
- what this file does not allow is not allowed; without a file, clients on loopback need no name, and nobody
  else gets in
- a `Security` that was loaded is usable: every file it names was there and could be read, and what must be
  secret could not be read by everybody
- paths are relative to the file; inside they are absolute
- no error says anything of what a secret file holds
"""

from __future__ import annotations

import ipaddress
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from holdfast.address import Address, parse_address
from holdfast.config import Checked, Relations, examine, known, named, told
from holdfast.errors import ConfigError, Problem
from holdfast.files import open_file
from holdfast.readers import duration, text, whole
from holdfast.security.tokens import Jwt
from holdfast.units import S

PATH = text(1000, "file")
RATE = whole(1, 10**12, 1000, optional=True)
COUNT = whole(1, 10**9, 10, optional=True)
BYTES = whole(1, 10**12, 1_000_000, optional=True)
SECRET_BYTES_MIN, SECRET_BYTES_MAX = 16, 4096
SECRETS_MAX = 4  # of members, while one takes the place of another
READABLE_BY_EVERYBODY = 0o007

Anonymous = Literal["never", "loopback", "anywhere"]


class Tls(Checked, frozen=True, kw_only=True):
    """What this broker shows, and whose certificates it believes."""

    certificate: Annotated[str, text(1000, "server.pem")]
    key: Annotated[str, text(1000, "server.key")]
    authority: str = ""  # who signs the certificates of clients and of other members
    revoked: str = ""  # which of those are worth nothing any more
    clients: Literal["no", "ask", "require"] = "no"

    def relations(self) -> Relations:
        yield self._list_problems()
        yield self._client_problems()

    def _list_problems(self) -> Iterator[Problem]:
        if self.revoked and not self.authority:
            yield Problem("revoked", 'is a list of an authority; name it, for example authority = "ca.pem"')

    def _client_problems(self) -> Iterator[Problem]:
        if self.clients != "no" and not self.authority:
            yield Problem(
                "authority",
                f'missing; clients = "{self.clients}" needs to know who signs their certificates, '
                'for example authority = "ca.pem"',
            )


class Peers(Checked, frozen=True, kw_only=True):
    """How the members of a group know each other; both may be asked for."""

    tls: bool = False
    secret: str = ""
    unprotected: bool = False  # neither, though the link is not on loopback

    def relations(self) -> Iterator[Problem]:
        if self.unprotected and self.protected:
            yield Problem(
                "unprotected", "members cannot be unprotected and have a secret or TLS; leave it out"
            )

    @property
    def protected(self) -> bool:
        return self.tls or bool(self.secret)


class Rates(Checked, frozen=True, kw_only=True):
    """Who sends faster is read more slowly; nothing it sent is lost. None: as fast as the broker can."""

    messages_per_s_max: Annotated[int | None, RATE] = None
    bytes_per_s_max: Annotated[int | None, RATE] = None


class Quotas(Checked, frozen=True, kw_only=True):
    """What one user, or one address, may have at this broker. None: what the broker's own limits say."""

    connections_max: Annotated[int | None, COUNT] = None
    connects_per_min_max: Annotated[int | None, whole(1, 10**6, 60, optional=True)] = None
    sessions_max: Annotated[int | None, COUNT] = None
    subscriptions_max: Annotated[int | None, COUNT] = None
    retained_max: Annotated[int | None, COUNT] = None
    retained_bytes_max: Annotated[int | None, BYTES] = None
    queued_bytes_max: Annotated[int | None, BYTES] = None


class UserLimits(Quotas, frozen=True, kw_only=True):
    """What all the connections of one user may do together."""

    about = "for users"

    messages_per_s_max: Annotated[int | None, RATE] = None
    bytes_per_s_max: Annotated[int | None, RATE] = None


class AddressLimits(Quotas, frozen=True, kw_only=True):
    """The same for all that come from one address, whoever they are; `strangers` are not let in yet."""

    strangers_max: Annotated[int | None, COUNT] = None


class BanLimits(Checked, frozen=True, kw_only=True):
    """How often, within a time, a client may leave or a login may fail; and for how long it is kept out."""

    flaps_max: Annotated[int | None, COUNT] = None
    guesses_max: Annotated[int | None, COUNT] = None
    within_ns: Annotated[int, duration(1, "1min")] = named("within", 60 * S)
    lasts_ns: Annotated[int, duration(1, "10min")] = named("lasts", 600 * S)

    def relations(self) -> Iterator[Problem]:
        if self.flaps_max is None and self.guesses_max is None:
            yield Problem(
                "", "bans nobody; expected flaps_max, for example 30, or guesses_max, for example 20"
            )


class Listener(Rates, frozen=True, kw_only=True):
    """One address; its limits are for all its connections together.

    Without an address it says what holds for the addresses of `--listen` and of the group file. `origins` are
    the sites whose pages may connect by WebSocket, besides those from the same host; "*" is any.
    """

    address: str = ""
    protocol: Literal["mqtt", "websocket"] = "mqtt"
    tls: bool = False
    origins: tuple[str, ...] = ()
    connections_max: Annotated[int | None, whole(1, 10**9, 1000, optional=True)] = None
    packet_bytes_max: Annotated[int | None, whole(16, 268_435_460, 65_536, optional=True)] = None

    def relations(self) -> Relations:
        yield self._address_problems()
        yield self._origin_problems()

    def _address_problems(self) -> Iterator[Problem]:
        if self.address and self._place() is None:
            yield Problem("address", f"found {self.address!r}; expected HOST:PORT, for example 0.0.0.0:8883")

    def _origin_problems(self) -> Iterator[Problem]:
        if self.origins and self.protocol != "websocket":
            yield Problem("origins", 'only pages have an origin, and they need protocol = "websocket"')

    def _place(self) -> Address | None:
        """Without a host, as in ":1883", it is every address of the machine."""
        return parse_address(self.address, every=True)

    @property
    def place(self) -> Address:
        place = self._place()
        assert place is not None
        return place

    def at(self, host: str, port: int) -> Listener:
        """The same at an address from elsewhere."""
        return msgspec.structs.replace(self, address=str(Address(host, port)))


class Security(Checked, frozen=True, kw_only=True):
    """The whole file; load_security looks at the files that it names."""

    anonymous: Anonymous = "loopback"
    users: str = ""
    rules: str = ""
    hook: str = ""
    jwt: Jwt | None = None
    audit: bool = True  # a line for each login and each change of rights; refusals always have one
    tls: Tls | None = None
    peers: Peers = Peers()
    listeners: tuple[Listener, ...] = named("listener", ())
    limits: UserLimits = UserLimits()
    address_limits: AddressLimits = AddressLimits()
    bans: BanLimits | None = None

    def relations(self) -> Relations:
        yield self._listener_tls_problems()
        yield self._peer_problems()
        yield self._anonymous_problems()
        yield self._way_in_problems()
        yield self._address_problems()

    def _listener_tls_problems(self) -> Iterator[Problem]:
        if self.tls is None:
            for index, tls in known(self.listeners, "tls"):
                if tls:
                    yield Problem(f"listener[{index}].tls", f"needs {TLS_EXAMPLE}")

    def _peer_problems(self) -> Iterator[Problem]:
        if self.peers.tls and (self.tls is None or not self.tls.authority):
            yield Problem("peers.tls", f'needs {TLS_EXAMPLE} and authority = "ca.pem"')

    def _anonymous_problems(self) -> Iterator[Problem]:
        if self.anonymous == "never" and not self.names_users:
            yield Problem(
                "anonymous",
                '"never", and nothing says who else may connect: nobody could; add users = "users"',
            )

    def _way_in_problems(self) -> Iterator[Problem]:
        otherwise = self.anonymous != "never" or self.users or self.hook or self.jwt
        if self.names_users and not otherwise and not any(tls for _, tls in known(self.listeners, "tls")):
            yield Problem(
                "listener",
                "certificates are the only way in, and no listener has TLS: nobody could connect; "
                "expected [[listener]] with tls = true",
            )

    def _address_problems(self) -> Iterator[Problem]:
        addresses = [address for _, address in known(self.listeners, "address")]
        for address in sorted({each for each in addresses if addresses.count(each) > 1}):
            yield Problem("listener", f"{address!r} stands at two listeners; each has its own address")

    @property
    def names_users(self) -> bool:
        """Whether there is a way to know who a client is."""
        return bool(
            self.users or self.hook or self.jwt or (self.tls is not None and self.tls.clients != "no")
        )

    @property
    def names_users_by_file_only(self) -> bool:
        """Whether nobody has a name who is not in the password file."""
        others = self.hook or self.jwt or (self.tls is not None and self.tls.clients != "no")
        return bool(self.users) and not others

    def listener_at(self, host: str, port: int) -> Listener:
        """What holds for an address of `--listen` or of the group file."""
        usual = Listener()
        for listener in self.listeners:
            if not listener.address:
                usual = listener
            elif (listener.place.host, listener.place.port) == (host, port):
                return listener
        return usual.at(host, port)


TLS_EXAMPLE = '[tls] with certificate = "server.pem" and key = "server.key"'


def load_security(path: str | Path) -> Security:
    """The file at `path`, or a ConfigError with everything that is wrong with it and the files it names."""
    security, problems = examine_security(path)
    if problems:
        raise ConfigError(str(path), problems)
    return security


def examine_security(path: str | Path) -> tuple[Security, list[Problem]]:
    """What the file says as far as it can be used, and all that is wrong with it and the files it names.

    Paths are absolute if nothing is wrong; `beside` makes them so.
    """
    security, problems = examine(path, Security)
    base = Path(path).absolute().parent
    if not problems:
        security = _resolved(security, base)
    problems += told(_file_problems(security, base))
    return security, problems


def beside(base: Path, name: str) -> str:
    return str(base / name) if name else ""


def _resolved(security: Security, base: Path) -> Security:
    def at(name: str) -> str:
        return beside(base, name)

    replace, tls = msgspec.structs.replace, security.tls
    if tls is not None:
        names = ("certificate", "key", "authority", "revoked")
        tls = replace(tls, **{name: at(getattr(tls, name)) for name in names})
    jwt = security.jwt
    if jwt is not None:
        jwt = replace(jwt, keys=tuple(at(key) for key in jwt.keys))
    peers = replace(security.peers, secret=at(security.peers.secret))
    users, rules = at(security.users), at(security.rules)
    return replace(security, users=users, rules=rules, tls=tls, peers=peers, jwt=jwt)


def _file_problems(security: Security, base: Path) -> Relations:
    yield _file_problem("rules", lambda: security.rules, base)
    yield _file_problem("users", lambda: security.users, base, secret=True)
    for name in ("certificate", "key", "authority", "revoked"):
        yield _file_problem(
            f"tls.{name}",
            lambda name=name: getattr(security.tls, name) if security.tls is not None else "",  # type: ignore[misc]
            base,
            secret=name == "key",
        )
    yield _key_problems(security, base)
    yield _file_problem("peers.secret", lambda: security.peers.secret, base, secret=True)
    yield _secret_problems(security, base)


def _file_problem(
    key: str, named_file: Callable[[], str], base: Path, secret: bool = False
) -> Iterator[Problem]:
    path = beside(base, named_file())
    if path:
        yield from unreadable(key, path) or (exposed(key, path) if secret else ())


def _key_problems(security: Security, base: Path) -> Relations:
    jwt = security.jwt
    if jwt is not None:
        for key in jwt.keys:
            yield unreadable("jwt.keys", beside(base, key)) or _exposed_key(jwt, beside(base, key))


def _exposed_key(jwt: Jwt, path: str) -> Iterator[Problem]:
    if jwt.by_secret:
        yield from exposed("jwt.keys", path)


def unreadable(key: str, path: str) -> list[Problem]:
    """Why a file cannot be used, if it cannot."""
    try:
        with open_file(path) as file:
            file.read(1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        return [Problem(key, f"{path} cannot be read: {why}")]
    return []


def exposed(key: str, path: str) -> list[Problem]:
    """A secret that everybody on the machine can read or replace is none."""
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & READABLE_BY_EVERYBODY:
        return [Problem(key, f"{path} is open to everybody (mode {mode:04o}); run chmod 600 {path}")]
    return []


def _secret_problems(security: Security, base: Path) -> Iterator[Problem]:
    path = beside(base, security.peers.secret)
    try:
        if path:
            read_secrets(path)
    except OSError:
        return  # said already
    except ValueError as error:
        yield Problem("peers.secret", f"{path} {error}")


def read_secret(path: str) -> bytes:
    """One secret: the file without white space around it."""
    with open_file(path) as file:
        return _strong(file.read(SECRET_BYTES_MAX + 1).strip(), "")


def read_secrets(path: str) -> tuple[bytes, ...]:
    """What members share, each line a secret of its own: by the first they prove who they are."""
    with open_file(path) as file:
        lines = file.read(SECRETS_MAX * (SECRET_BYTES_MAX + 2) + 1).strip().split(b"\n")
    if len(lines) == 1:
        return (_strong(lines[0], ""),)
    if len(lines) > SECRETS_MAX:
        raise ValueError(f"has {len(lines)} lines; each is a secret, and there are up to {SECRETS_MAX}")
    return tuple(_strong(line.strip(), f"line {number} ") for number, line in enumerate(lines, 1))


def _strong(secret: bytes, where: str) -> bytes:
    if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        raise ValueError(
            f"{where}has {len(secret)} bytes; a secret has {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX}: "
            f"write one with openssl rand -hex 32"
        )
    return secret


def on_loopback(host: str) -> bool:
    """Whether only this machine reaches a listener on that host; a name counts as what it is called."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
