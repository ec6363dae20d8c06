"""`holdfast broker`: one broker process, from its options to its exit code.

SIGTERM and SIGINT drain and exit 0; SIGHUP reads the contract file and the security file again, and a broken
file changes nothing. One that comes while the broker starts is acted on when it has started.
"""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import resource
import secrets
import signal
import sys
import time
from pathlib import Path

import msgspec
import uvloop

from holdfast.broker.broker import Broker
from holdfast.contract.model import ContractBook
from holdfast.contract.plan import load_admitted
from holdfast.errors import ConfigError, HoldfastError
from holdfast.replication.group import load_group, unproven
from holdfast.replication.handshake import Secret
from holdfast.replication.member import Member
from holdfast.runtime.guard import Guard, check_open, check_peers, listeners_for
from holdfast.runtime.keeping import keep
from holdfast.runtime.listeners import client_listening, scheme_of
from holdfast.runtime.log import log_event, set_form, write_rest
from holdfast.runtime.membership import Membership
from holdfast.runtime.notify import notify
from holdfast.runtime.options import BrokerOptions
from holdfast.runtime.priority import Priority, lift_threads, take_priority
from holdfast.runtime.reporting import Reporter
from holdfast.runtime.server import Server
from holdfast.runtime.signals import hold_signals, let_signals_in
from holdfast.runtime.tls import Certificates, load_certificates
from holdfast.runtime.watching import open_http
from holdfast.security.config import Listener
from holdfast.security.files import Loaded, load_all

UNPROTECTED = (
    "members have neither a secret nor TLS: whoever reaches a peer address can pose as one and read all that "
    "clients left; write [peers] with a secret in a file for --security"
)


def serve(options: BrokerOptions) -> None:
    hold_signals()
    set_form(options.log)
    contracts = None if options.contracts is None else Path(options.contracts)
    book = load_admitted(contracts) if contracts else ContractBook()
    loaded = load_all(options.security)
    listeners = listeners_for(loaded.known.security, options.listen)
    check_open(loaded.known.security, listeners, options.security)
    certificates = load_certificates(loaded.known.security, str(options.security))
    raise_file_limit(book.limits.connections_max)
    priority = take_priority(realtime=options.realtime)
    # What lives now lives to the end: the collector need not look at it again.
    gc.collect()
    gc.freeze()
    uvloop.run(_serve(options, contracts, book, loaded, listeners, certificates, priority))


async def _serve(
    options: BrokerOptions,
    contracts: Path | None,
    book: ContractBook,
    loaded: Loaded,
    listeners: list[Listener],
    certificates: Certificates | None,
    priority: Priority,
) -> None:
    loop = asyncio.get_running_loop()
    host = make_broker(options, book, loaded)
    broker = host.broker if isinstance(host, Member) else host
    broker.core.board.counting = options.counting
    server = Server(host, loop)
    guard = None
    if options.security is not None:
        guard = Guard(host, server, loaded, options.security, certificates)
    keeper = None if options.data is None else keep(host, options.data, book.limits, server)
    lift_threads()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, reload, host, contracts, guard)
    let_signals_in()
    between = certificates if loaded.known.security.peers.tls else None
    membership = Membership(host, server, host.group, between) if isinstance(host, Member) else None
    http = None
    try:
        if options.http is not None:
            reporter = Reporter(host, server, keeper, priority)
            http = await open_http(options.http, reporter, options.http_token, certificates)
        for listener in listeners:
            listening = client_listening(listener, certificates, host.open, book.limits.connect_timeout_ns)
            for address in await server.listen(listener.place.host, listener.place.port, listening):
                print(f"listening on {scheme_of(listener)}://{address}", flush=True)
        if membership is not None:
            await membership.start()
            if not loaded.known.security.peers.protected:
                log_event("peers not protected", {"member": options.member, "why": UNPROTECTED})
            tell_unproven(host, book)
        log_event("priority", {"processor": priority.processor, "memory": priority.memory})
        notify("READY=1")
        await stop.wait()
        notify("STOPPING=1")
        log_event("draining", {"connections": len(broker.connections)})
        await server.close()
    finally:
        if http is not None:
            await http.close()
        if membership is not None:
            await membership.close()
        if keeper is not None:
            keeper.close()
        write_rest()
        hold_signals()  # from here on nothing is left that one could change


def make_broker(options: BrokerOptions, book: ContractBook, loaded: Loaded) -> Broker | Member:
    seed, now_ns = secrets.randbits(64), time.monotonic_ns()
    if options.group is None or options.member is None:
        return Broker(book, policy=options.policy, seed=seed, now_ns=now_ns, event=log_event)
    group = load_group(options.group, options.member)
    check_peers(loaded.known.security, group, options.security)
    return Member(
        book,
        group,
        options.member,
        policy=options.policy,
        seed=seed,
        now_ns=now_ns,
        event=log_event,
        switches=options.switches,
        secret=Secret(loaded.secrets, group.name, secrets.token_bytes) if loaded.secrets else None,
    )


def reload(broker: Broker | Member, contracts: Path | None, guard: Guard | None) -> None:
    """Reads the files again; whatever is wrong with one is said, and what it said before holds on."""
    if contracts is None and guard is None:
        log_event("not reloaded", {"why": "the broker was started without --contracts and --security"})
    if contracts is not None:
        reload_contracts(broker, contracts)
    if guard is not None:
        guard.reload()


def reload_contracts(broker: Broker | Member, contracts: Path) -> None:
    try:
        book = load_admitted(contracts)
    except ConfigError as error:
        log_event("not reloaded", {"why": str(error)})
        return
    broker.reload(book)
    log_event("reloaded", {"file": str(contracts), "contracts": len(book.contracts)})
    tell_unproven(broker, book)


def tell_unproven(host: Broker | Member, book: ContractBook) -> None:
    found = unproven(host.group, book) if isinstance(host, Member) else None
    if found is not None:
        contracts = ", ".join(found.contracts) or "none"
        log_event("failover not proven", {"contracts": contracts, "why": f"silence: {found.why}"})


def raise_file_limit(connections: int) -> None:
    """Each connection is a file descriptor: ask for as many as the system gives. The kernel makes its table
    of them larger now: later, with threads, who opens one too many stands still for some 10 ms meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + 100
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with open(os.devnull, "rb") as any_file:
        os.close(fcntl.fcntl(any_file.fileno(), fcntl.F_DUPFD_CLOEXEC, min(soft, wanted) - 1))


if __name__ == "__main__":
    try:
        serve(msgspec.json.decode(sys.argv[1], type=BrokerOptions))
    except ConfigError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except HoldfastError as error:
        print(f"holdfast: {error}", file=sys.stderr)
        sys.exit(1)
