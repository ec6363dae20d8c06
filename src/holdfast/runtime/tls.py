"""TLS of a broker: its certificates, read again without a restart, and whom it believes.

Laws:
- a certificate that cannot be used changes nothing: what was read before stays
- a connection keeps the certificate with which it began; a new one gets the newest
- members of a group show certificates to each other, always, and each bears the name of its member: a
  client's certificate of the same authority opens no member's door
- a certificate that is on the list of the revoked is none, and without a list of the authority that is in
  force nobody is believed
- TLS 1.2 at least, never renegotiated; a client that comes back within hours goes on where it ended
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from holdfast.broker.link import Inbox
from holdfast.errors import ConfigError, Problem
from holdfast.runtime.layers import Layers
from holdfast.security.config import Security, Tls, exposed, unreadable
from holdfast.security.revoked import why_useless

READ_BYTES = 32_768
VERIFY = {"no": ssl.CERT_NONE, "ask": ssl.CERT_OPTIONAL, "require": ssl.CERT_REQUIRED}


class Contexts(Struct, frozen=True):
    """What files of certificates are good for; members have no part in it without an authority."""

    files: Tls
    clients: ssl.SSLContext
    members: ssl.SSLContext | None
    dialing: ssl.SSLContext | None


class Certificates:
    """What the `[tls]` table of a security file stands for, as it was when last read."""

    def __init__(self, tls: Tls, source: str) -> None:
        self._source = source
        self._now = self.read(tls)
        # Of the HTTP port, which keeps its context: a new certificate is put into it.
        self.for_watching = server_context(tls, source, ssl.CERT_NONE)

    def read(self, tls: Tls) -> Contexts:
        """The files as they are now, for `use`; or ConfigError."""
        return Contexts(
            tls,
            server_context(tls, self._source, VERIFY[tls.clients]),
            server_context(tls, self._source, ssl.CERT_REQUIRED) if tls.authority else None,
            dialing_context(tls, self._source) if tls.authority else None,
        )

    def use(self, contexts: Contexts) -> None:
        """For connections that begin from now on."""
        self._now = contexts
        _load_own(self.for_watching, contexts.files, self._source)

    @property
    def for_clients(self) -> ssl.SSLContext:
        return self._now.clients

    @property
    def for_members(self) -> ssl.SSLContext:
        assert self._now.members is not None, "a security file with peers.tls has an authority"
        return self._now.members

    @property
    def for_dialing(self) -> ssl.SSLContext:
        assert self._now.dialing is not None, "a security file with peers.tls has an authority"
        return self._now.dialing


def load_certificates(security: Security, source: str) -> Certificates | None:
    """Those of a security file, if it has any."""
    return None if security.tls is None else Certificates(security.tls, source)


def server_context(tls: Tls, source: str, verify: ssl.VerifyMode) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    restrict(context)
    context.num_tickets = 1
    context.verify_mode = verify
    _load_own(context, tls, source)
    if tls.authority:
        _load_authority(context, tls, source)
    return context


def own_context(
    certificate: Path | None, key: Path | None, source: str, names: tuple[str, str]
) -> ssl.SSLContext | None:
    """For a port that shows a certificate and asks for none; `names` are the options that say which."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise ConfigError(source, [Problem(names[1], f"a certificate and its key go together: {names[0]}")])
    problems = unreadable(names[0], str(certificate)) + unreadable(names[1], str(key))
    problems = problems or exposed(names[1], str(key))
    if problems:
        raise ConfigError(source, problems)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    restrict(context)
    load_chain(context, str(certificate), str(key), source, names)
    return context


def dialing_context(tls: Tls, source: str) -> ssl.SSLContext:
    """For the link to another member: which member it is, its certificate says, wherever it is."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    restrict(context)
    context.check_hostname = False
    _load_own(context, tls, source)
    _load_authority(context, tls, source)
    return context


def restrict(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION


def _load_own(context: ssl.SSLContext, tls: Tls, source: str) -> None:
    load_chain(context, tls.certificate, tls.key, source, ("tls.certificate", "tls.key"))


def load_chain(
    context: ssl.SSLContext, certificate: str, key: str | None, source: str, names: tuple[str, str]
) -> None:
    """`names` are what the certificate and the key are called where they were given."""

    def refuse(name: str, why: str) -> ConfigError:
        return ConfigError(source, [Problem(name, why)])

    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except OSError as error:
        words = error.reason if isinstance(error, ssl.SSLError) else error.strerror
        if isinstance(error, ssl.SSLError) and "MISMATCH" in (error.reason or ""):
            raise refuse(names[1], f"{key} is not the key of {certificate}") from None
        raise refuse(
            names[0], f"{certificate} and {key or 'the same file'} are no certificate with its key: {words}"
        ) from None
    except ValueError as error:
        raise refuse(names[1], f"{key}: {error}") from None


def _no_password() -> str:
    raise ValueError(
        "the key is encrypted, and nobody is there to be asked: openssl pkey takes the password off"
    )


def _load_authority(context: ssl.SSLContext, tls: Tls, source: str) -> None:
    load_authority(context, tls.authority, source, "tls.authority")
    if not tls.revoked:
        return
    with suppress(OSError):  # whatever else is in the file
        context.load_verify_locations(tls.revoked)
    if not context.cert_store_stats()["crl"]:
        problem = f"{tls.revoked} holds no list of revoked certificates in PEM: openssl ca -gencrl makes one"
        raise ConfigError(source, [Problem("tls.revoked", problem)])
    authorities = context.get_ca_certs(binary_form=True)
    useless = why_useless(Path(tls.revoked).read_bytes(), authorities, datetime.now(UTC))
    if useless:
        problem = f"{tls.revoked} {useless}: nobody would be believed"
        raise ConfigError(source, [Problem("tls.revoked", problem)])
    context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF


def load_authority(context: ssl.SSLContext, authority: str, source: str, name: str) -> None:
    try:
        context.load_verify_locations(authority)
    except OSError as error:
        words = (
            error.strerror if not isinstance(error, ssl.SSLError) else error.reason or "no certificate in it"
        )
        raise ConfigError(source, [Problem(name, f"{authority} holds no certificate: {words}")]) from None


async def greet(loop: asyncio.AbstractEventLoop, sock: socket.socket, layers: Layers) -> bytes:
    """Carries the greetings of a connection that we opened; returns what was already said behind them."""
    inbox = Inbox(READ_BYTES)  # of its own: others are read while this one waits
    said = layers.received(b"", inbox)
    while True:
        await loop.sock_sendall(sock, layers.take_output())
        if layers.fault is not None:
            raise ConnectionError(layers.fault)
        if layers.open:
            return said
        data = await loop.sock_recv(sock, READ_BYTES)
        if not data:
            raise ConnectionError("the peer hung up before TLS was agreed on")
        said += layers.received(data, inbox)
