"""`holdfast broker`: run one broker."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from holdfast.address import Address, parse_address
from holdfast.cli.log_option import LogFormat
from holdfast.errors import ConfigError, ConfigErrors, Problem
from holdfast.readers import did_you_mean
from holdfast.runtime.options import BrokerOptions

T = TypeVar("T")

USUAL = "127.0.0.1:1883"
POLICY_NAMES = ["edf", "fcfs", "fixed-priority", "least-laxity", "maximum-urgency"]


def broker(
    listen: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT", help="Where to listen; may be given several times. Port 0 picks a free one."
        ),
    ] = None,
    contracts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Contracts and limits, in TOML.")
    ] = None,
    group: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The group this broker is a member of, in TOML.")
    ] = None,
    member: Annotated[str | None, typer.Option(metavar="NAME", help="Which member of the group.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Where sessions and durable messages are kept, for this broker alone."
        ),
    ] = None,
    security: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Who may connect, where and how, in TOML; see docs/security.md."),
    ] = None,
    policy: Annotated[str, typer.Option(help="Order of dispatch: " + ", ".join(POLICY_NAMES) + ".")] = "edf",
    http: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Answer /metrics (Prometheus), /health/live, /health/ready and /status (JSON) there.",
        ),
    ] = None,
    http_token: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What a request must say: Authorization: Bearer and the content of this file. "
            "Needed for --http beyond loopback.",
        ),
    ] = None,
    realtime: Annotated[
        bool, typer.Option("--realtime", help="Ask for a real-time class, not only to go before other work.")
    ] = False,
    log_format: LogFormat = "text",
    check_config: Annotated[
        bool,
        typer.Option(
            "--check-config", help="Say everything that is wrong with the options and files, and stop."
        ),
    ] = False,
) -> None:
    """Run one broker.

    \b
    holdfast broker
    holdfast broker --contracts plant.toml --http 127.0.0.1:9464
    holdfast broker --group group.toml --member a --contracts plant.toml --data /var/lib/holdfast

    It prints a line for each address it listens on. SIGTERM delivers what
    waits and exits 0; SIGHUP reads the contracts and the security file
    again. One that comes early waits until the broker has started. A contract
    that cannot be kept is refused at the start: see holdfast plan. What
    happens is told on standard error, a line for each event that matters.

    Exits with 0 after a signal, 1 if it cannot run here, 2 if the input is wrong.
    """
    faults = Faults()
    usual = faults.found_by(lambda: usual_address(group, member)) or USUAL
    own = None
    if security is not None and group is None:
        own = faults.found_by(lambda: security_listeners(security))
    addresses, problems = parse_addresses(listen or ([] if own else [usual]))
    if policy not in POLICY_NAMES:
        known = f"expected one of {', '.join(POLICY_NAMES)}"
        problems.append(Problem("--policy", f"found {policy!r}; {did_you_mean(policy, POLICY_NAMES, known)}"))
    watched, wrong = parse_addresses([http] if http is not None else [], "--http")
    faults.add(problems + wrong)
    options = BrokerOptions(
        listen=addresses,
        contracts=None if contracts is None else str(contracts),
        policy=policy,
        group=None if group is None else str(group),
        member=member,
        data=None if data is None else str(data),
        security=None if security is None else str(security),
        http=watched[0] if watched else None,
        http_token=None if http_token is None else str(http_token),
        log=log_format,
        realtime=realtime,
    )
    for judge in (check_contracts, check_security, check_data, check_token):
        faults.found_by(lambda judge=judge: judge(options))  # type: ignore[misc]
    faults.tell()
    if check_config:
        for line in warnings(options):
            typer.echo(line)
        typer.echo("the configuration is in order")
        return
    become_broker(options)


class Faults:
    """Everything that is wrong with the options and files together; what two look at is told once."""

    def __init__(self) -> None:
        self._found: dict[str, list[Problem]] = {}  # by where they are

    def add(self, problems: Iterable[Problem], source: str = "holdfast broker") -> None:
        found = self._found.setdefault(source, [])
        found += [problem for problem in problems if problem not in found]

    def found_by(self, judge: Callable[[], T]) -> T | None:
        """What it says; None: it found faults."""
        try:
            return judge()
        except ConfigError as error:
            self.add(error.problems, error.source)
            return None

    def tell(self) -> None:
        errors = [ConfigError(source, problems) for source, problems in self._found.items() if problems]
        if errors:
            raise ConfigErrors(errors)


def security_listeners(security: Path) -> list[str]:
    """The addresses that the security file says itself: with one, none is usual."""
    from holdfast.security.config import load_security

    return [listener.address for listener in load_security(security).listeners if listener.address]


def usual_address(group: Path | None, member: str | None) -> str:
    """Where to listen when nothing is said: where the group file says, if there is one."""
    from holdfast.replication.group import load_group

    if group is None and member is None:
        return USUAL
    if group is None or member is None:
        problem = Problem("--group, --member", "a member of a group needs both")
        raise ConfigError("holdfast broker", [problem])
    return load_group(group, member).member(member).mqtt


def become_broker(options: BrokerOptions) -> None:
    """This process goes on as the broker, without the memory that only the command line needed."""
    import sys

    import msgspec

    arguments = msgspec.json.encode(options).decode()
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "holdfast.runtime.serve", arguments])


def parse_addresses(listen: list[str], option: str = "--listen") -> tuple[list[Address], list[Problem]]:
    addresses: list[Address] = []
    problems: list[Problem] = []
    for index, text in enumerate(listen):
        address = parse_address(text, every=True)
        if address is None:
            expected = "expected HOST:PORT, for example 127.0.0.1:1883"
            problems.append(Problem(f"{option}[{index}]", f"found {text!r}; {expected}"))
        else:
            addresses.append(address)
    return addresses, problems


def check_contracts(options: BrokerOptions) -> None:
    from holdfast.contract.plan import load_admitted

    if options.contracts is not None:
        load_admitted(Path(options.contracts))


def warnings(options: BrokerOptions) -> Iterator[str]:
    """What is in order and may yet not be meant."""
    from holdfast.contract.file import load_contracts
    from holdfast.contract.model import ContractBook
    from holdfast.replication.group import load_group, unproven

    if options.group is not None and options.member is not None:
        book = ContractBook() if options.contracts is None else load_contracts(options.contracts)
        found = unproven(load_group(options.group, options.member), book)
        if found is not None:
            yield f"{options.group}: silence: {found.why}; contracts: {', '.join(found.contracts) or 'none'}"


def check_data(options: BrokerOptions) -> None:
    """Whether there is a place for a journal; nothing is made, and one that is open is no fault."""
    if options.data is None:
        return
    path = Path(options.data).absolute()
    there = path if path.exists() else path.parent
    why = ""
    if not there.exists():
        why = f"there is no directory {there}"
    elif not there.is_dir():
        why = f"{there} is not a directory"
    elif not os.access(there, os.R_OK | os.W_OK | os.X_OK):
        why = f"{there} cannot be written"
    if why:
        raise ConfigError("holdfast broker", [Problem("--data", f"{options.data} cannot be used: {why}")])


def check_token(options: BrokerOptions) -> None:
    from holdfast.runtime.watching import read_token

    if options.http_token is not None and Path(options.http_token).is_fifo():
        return  # it can be read once, by the broker
    if options.http_token is not None or options.http is not None:
        host = "127.0.0.1" if options.http is None else options.http.host
        read_token(options.http_token, host, "holdfast broker", "--http")


def check_security(options: BrokerOptions) -> None:
    from holdfast.replication.group import load_group
    from holdfast.runtime.guard import check_open, check_peers, listeners_for
    from holdfast.runtime.tls import load_certificates
    from holdfast.security.files import load_all

    security = load_all(options.security).known.security
    load_certificates(security, str(options.security))
    check_open(security, listeners_for(security, options.listen), options.security)
    if options.group is not None and options.member is not None:
        check_peers(security, load_group(options.group, options.member), options.security)
