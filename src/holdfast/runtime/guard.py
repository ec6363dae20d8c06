"""Security around a running broker: the gate at its door, and the files behind it read again on SIGHUP.

Laws:
- a listener that anybody could reach is opened only if somebody is known there, or the file says that nobody
  needs to be
- files that are broken change nothing: what held before holds on
- what only a restart changes is named when the files are read again
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator
from itertools import islice

from holdfast.address import Address
from holdfast.broker.broker import Broker
from holdfast.errors import ConfigError, Problem
from holdfast.replication.group import GroupConfig
from holdfast.replication.member import Member
from holdfast.replication.roles import Role
from holdfast.replication.sharing import Sharing
from holdfast.runtime.log import log_event
from holdfast.runtime.places import address_of
from holdfast.runtime.server import Server
from holdfast.runtime.tls import Certificates, Contexts
from holdfast.security.audit import CHANGES_TOLD_MAX, EVERYBODY, changes
from holdfast.security.checking import Checking
from holdfast.security.config import Listener, Security, on_loopback
from holdfast.security.files import Loaded, load_all
from holdfast.security.gate import Gate, Known
from holdfast.security.verified import Verified, key_from

NO_FILE = "a file and give it with --security"


class Guard:
    """Of a broker with a security file; one without listens on loopback only, and lets everybody in there."""

    def __init__(
        self,
        host: Broker | Member,
        server: Server,
        loaded: Loaded,
        path: str,
        certificates: Certificates | None = None,
    ) -> None:
        self.path = path
        self._certificates = certificates
        self._server = server
        self._began_with = loaded.known.security
        self._member = host if isinstance(host, Member) else None
        self._reloads = 0  # that were asked for and are not over
        self._reloading: asyncio.Task[None] | None = None
        verified = Verified(secrets.token_bytes(32))
        if loaded.secrets:
            verified.use(tuple(map(key_from, loaded.secrets)))
        if isinstance(host, Member) and loaded.secrets:
            host.sharing = Sharing(verified.everything, verified.learn)
            verified.tell = host.share
        self._checking = Checking(server.loop, event=log_event, step=server.step)
        self._gate = Gate(
            host.broker if isinstance(host, Member) else host,
            loaded.known,
            verified=verified,
            serving=lambda: not isinstance(host, Member) or host.role is Role.PRIMARY,
            check=self._checking.take,
            address_of=address_of,
        )
        self._checking.gate = self._gate
        self._checking.hook = loaded.hook

    def reload(self) -> None:
        """Reads everything again, in a thread: many users take longer than a message may wait."""
        self._reloads += 1
        if self._reloads == 1:
            self._reloading = self._server.loop.create_task(self._reload())

    async def _reload(self) -> None:
        while self._reloads:
            asked = self._reloads
            try:
                self._hold(*await self._server.loop.run_in_executor(None, self._load))
            except ConfigError as error:
                log_event("not reloaded", {"file": self.path, "why": str(error)})
            self._reloads -= asked

    def _load(self) -> tuple[Loaded, Contexts | None]:
        loaded = load_all(self.path)
        if self._certificates is None:
            return loaded, None
        if loaded.known.security.tls is None:
            raise ConfigError(self.path, [Problem("tls", "missing; there are listeners that need it")])
        return loaded, self._certificates.read(loaded.known.security.tls)

    def _hold(self, loaded: Loaded, contexts: Contexts | None) -> None:
        """From now on."""
        if self._certificates is not None and contexts is not None:
            self._certificates.use(contexts)
        self._checking.hook = loaded.hook
        self._use_secrets(loaded.secrets)
        if loaded.known.security.audit:
            self._tell_changes(loaded.known)
        ended = self._gate.reload(loaded.known, time.monotonic_ns())
        self._server.step()
        said: dict[str, object] = {"file": self.path, "users": len(loaded.known.users)}
        said["connections_ended"] = ended
        left = "; ".join(left_for_restart(self._began_with, loaded.known.security))
        log_event("reloaded", {**said, "left_for_restart": left} if left else said)

    def _use_secrets(self, secrets: tuple[bytes, ...]) -> None:
        """For greetings from now on. Whether there is a secret at all is decided at the start."""
        secret = None if self._member is None else self._member.peers.secret
        if secret is not None and secrets:
            secret.use(secrets)
            self._gate.verified.use(tuple(map(key_from, secrets)))

    def _tell_changes(self, known: Known) -> None:
        told = changes(self._gate.known, known)
        for change in islice(told, CHANGES_TOLD_MAX):
            log_event("rights changed", {"user": change.user, "what": change.what})
        rest = sum(1 for _ in told)
        if rest:
            log_event("rights changed", {"user": EVERYBODY, "what": f"{rest} changes more"})


def left_for_restart(began_with: Security, now: Security) -> Iterator[str]:
    """What the file says otherwise than it did when the broker started, and what only a restart changes."""
    before = {listener.address: listener for listener in began_with.listeners}
    after = {listener.address: listener for listener in now.listeners}
    for address in sorted(before.keys() | after.keys()):
        name = f"[[listener]] {address or 'without an address'}"
        if address not in before or address not in after:
            yield f"{name} was {'added' if address in after else 'removed'}"
            continue
        for key in ("protocol", "tls", "origins"):
            if getattr(before[address], key) != getattr(after[address], key):
                yield f"{name} has another {key}"
    if began_with.tls is None and now.tls is not None:
        yield "[tls] was added"
    if began_with.peers.tls != now.peers.tls:
        yield "[peers] has another tls"
    if bool(began_with.peers.secret) != bool(now.peers.secret):
        yield f"[peers] secret was {'added' if now.peers.secret else 'removed'}"


def listeners_for(security: Security, listen: list[Address]) -> list[Listener]:
    """Every address to listen on: those of the command line or the group, and those of the file."""
    wanted = [security.listener_at(host, port) for host, port in listen]
    own = [listener for listener in security.listeners if listener.address and listener not in wanted]
    return [*wanted, *own]


def check_open(security: Security, listeners: list[Listener], path: str | None) -> None:
    """Nobody listens to strangers without having been told to."""
    if security.names_users or security.anonymous == "anywhere":
        return
    problems = [
        Problem(
            listener.address,
            "anybody who reaches this address could use the broker. "
            f'If that is meant, write anonymous = "anywhere" in {path or NO_FILE}; '
            'else name users there, with users = "users" (see holdfast user add), or listen on 127.0.0.1',
        )
        for listener in listeners
        if not on_loopback(listener.place.host)
    ]
    if problems:
        raise ConfigError("holdfast broker", problems)


def check_peers(security: Security, group: GroupConfig, path: str | None) -> None:
    """Members that are not all on this machine know each other by something."""
    if security.peers.protected or security.peers.unprotected:
        return
    outside = [member for member in group.members if not on_loopback(member.peer_address.host)]
    if outside:
        file = path or NO_FILE
        raise ConfigError(
            "holdfast broker",
            [
                Problem(
                    f"group {group.name!r}, member {member.name!r}",
                    f"anybody who reaches {member.peer} could pose as a member and read everything. "
                    f'Write [peers] with secret = "peer.secret" or tls = true in {file}; '
                    "if the network between them is their own, write unprotected = true there",
                )
                for member in outside
            ],
        )
