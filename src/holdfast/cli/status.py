"""`holdfast status`: what brokers and pipelines say of themselves, on one screen.

Exit code 0 if all is well, 1 if something is red, 2 if one does not answer or the input is wrong.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from holdfast.cli.mqtt_options import Authority, tls_context
from holdfast.errors import ConfigError, Problem, Unavailable

if TYPE_CHECKING:
    from ssl import SSLContext

    from rich.console import Console
    from rich.table import Table

    from holdfast.status import BrokerStatus, ContractStatus, Memory, PipelineStatus, Status

COMMAND = "holdfast status"
HTTP_PORT = 9464
ANSWER_S = 5.0
ANSWER_BYTES_MAX = 64 * 2**20
URLS_MAX = 32
PIPE_COLUMNS = 160
RED, WARNS, WELL = "✗", "!", "✓"
UNREACHABLE = 2


class Found(NamedTuple):
    """What came of asking one."""

    url: str
    status: Status | None
    why: str = ""


def status(
    urls: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[URL]...", help=f"Where they answer HTTP; http://127.0.0.1:{HTTP_PORT} if none."
        ),
    ] = None,
    group: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Ask every member of this group, at its host and --port."),
    ] = None,
    port: Annotated[int, typer.Option(help="The HTTP port of the members of --group.")] = HTTP_PORT,
    token: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The token of their --http-token, in a file.")
    ] = None,
    authority: Authority = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a screen.")] = False,
) -> None:
    """Show how brokers and pipelines are: one screen, and an exit code for scripts.

    \b
    holdfast status
    holdfast status http://10.0.0.1:9464 http://10.0.0.2:9464
    holdfast status --group group.toml --json

    They answer where holdfast broker --http and holdfast pipeline --metrics say. A contract is
    red (✗) if within the last minute a message of it was late, or more were lost in a row than it
    tolerates; with ! it was so before.

    Exits with 0 if all is well, 1 if something is red, 2 if one does not answer.
    """
    from holdfast.status import troubles

    said = None if token is None else read_token(token)
    tls = tls_context("", False, authority, None, None)
    found = [ask(url, said, tls) for url in addresses(urls or [], group, port)]
    if as_json:
        print(json.dumps([as_document(each) for each in found], indent=2, ensure_ascii=False))
    else:
        screen(found)
    if any(each.status is None for each in found):
        raise typer.Exit(UNREACHABLE)
    if any(
        trouble.severity == "broken" for each in found if each.status for trouble in troubles(each.status)
    ):
        raise typer.Exit(1)


def addresses(urls: list[str], group: Path | None, port: int) -> list[str]:
    """Whom to ask, each once."""
    from urllib.parse import urlsplit

    from holdfast.config import load
    from holdfast.replication.group import GroupConfig

    if group is not None:
        members = load(group, GroupConfig).members
        urls = [*urls, *(f"http://{member.place.host}:{port}" for member in members)]
    problems = []
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            problems.append(Problem("URL", f"found {url!r}; expected http://HOST:PORT"))
    if len(urls) > URLS_MAX:
        problems.append(Problem("URL", f"found {len(urls)}; at most {URLS_MAX} are asked at once"))
    if problems:
        raise ConfigError(COMMAND, problems)
    return list(dict.fromkeys(urls)) or [f"http://127.0.0.1:{HTTP_PORT}"]


def read_token(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Unavailable(f"cannot read the token in {path}: {error}") from error


def ask(url: str, token: str | None, tls: SSLContext | None = None) -> Found:
    """One status; whatever is in the way becomes words."""
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    from holdfast.status import decode_status

    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        request = Request(url.rstrip("/") + "/status", headers=headers)
        with urlopen(request, timeout=ANSWER_S, context=tls) as answer:
            document = answer.read(ANSWER_BYTES_MAX)
        return Found(url, decode_status(document))
    except HTTPError as error:
        needs = ": give the file of its token with --token" if error.code == 401 else ""
        return Found(url, None, f"answered {error.code}{needs}")
    except URLError as error:
        return Found(url, None, f"{error.reason}")
    except (OSError, ValueError) as error:
        return Found(url, None, f"no status came: {error}")


def as_document(found: Found) -> dict[str, object]:
    import msgspec

    from holdfast.status import troubles

    if found.status is None:
        return {"url": found.url, "unreachable": found.why}
    listed = [msgspec.to_builtins(each) for each in troubles(found.status)]
    return {"url": found.url, "troubles": listed, "status": msgspec.to_builtins(found.status)}


# -- the screen ----------------------------------------------------------------------------------------------


def screen(found: list[Found]) -> None:
    from rich.console import Console

    from holdfast.status import BrokerStatus

    console = Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_COLUMNS)
    brokers = [each.status for each in found if isinstance(each.status, BrokerStatus)]
    if brokers:
        console.print(broker_table(brokers))
        console.print(contract_table(brokers))
    for each in found:
        if each.status is not None and not isinstance(each.status, BrokerStatus):
            print_pipeline(console, each.url, each.status)
    print_troubles(console, found)


def table(*columns: str, numbers: tuple[str, ...] = ()) -> Table:
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column in numbers else "left", no_wrap=column != "links")
    return made


def broker_table(brokers: list[BrokerStatus]) -> Table:
    from rich.markup import escape

    from holdfast.status import about_ns

    columns = (
        "",
        "broker",
        "role",
        "view",
        "up",
        "clients",
        "jobs",
        "cpu",
        "memory",
        "kept",
        "silence",
        "x measured",
        "links",
    )
    made = table(*columns, numbers=columns[3:-1])
    for each in brokers:
        x_ns, silence_ns = each.reckoning.failover_max_ns, each.reckoning.silence_ns
        links = [f"{link.member} {link.health}{lag(link.way_ns)}" for link in each.links]
        made.add_row(
            WELL if each.ready else RED,
            escape(each.name),
            each.role,
            str(each.view or "-"),
            about_ns(each.uptime_ns),
            str(each.connections),
            str(each.queues.jobs),
            f"{100 * each.usage.cpu_ns / max(1, each.uptime_ns):.0f} %",
            f"{each.usage.memory_bytes / 2**20:.0f} MiB",
            kept(each.memory),
            "-" if silence_ns is None else about_ns(silence_ns),
            "-" if x_ns is None else about_ns(x_ns),
            escape(", ".join(links) or "-"),
        )
    return made


def kept(memory: Memory) -> str:
    """What clients make a broker keep, of what they may; and the part that is nearly full, if one is."""
    parts = [part for part in memory.parts if part.name != "state log"]  # full is as it should be
    fullest = max(parts, key=lambda part: part.bytes / part.bytes_max, default=None)
    near = fullest is not None and fullest.bytes * 4 > fullest.bytes_max * 3
    words = f" ({fullest.name} {100 * fullest.bytes // fullest.bytes_max} %)" if fullest and near else ""
    return f"{memory.bytes / 2**20:.0f} of {memory.bytes_max / 2**20:.0f} MiB{words}"


def lag(way_ns: int | None) -> str:
    from holdfast.status import about_ns

    return "" if way_ns is None else f" ({about_ns(way_ns)})"


def contract_table(brokers: list[BrokerStatus]) -> Table:
    """A row for each contract; a member that serves nothing now has no rows unless it did something."""
    from rich.markup import escape

    promised, counted = ("deadline", "p99", "late", "published", "delivered"), ("L", "lost", "in a row")
    numbers = (*promised, *counted, "copied", "aborted", "pruned")
    made = table("", "contract", "broker", *numbers, numbers=numbers)
    for broker in brokers:
        for each in broker.contracts:
            if broker.role in ("alone", "primary") or each.published or each.delivered:
                made.add_row(mark(each, broker.at_ns), escape(each.name), escape(broker.name), *figures(each))
    return made


def mark(contract: ContractStatus, at_ns: int) -> str:
    from holdfast.status import contract_troubles

    severities = {each.severity for each in contract_troubles(contract, at_ns)}
    return RED if "broken" in severities else WARNS if severities else WELL


def figures(contract: ContractStatus) -> list[str]:
    from holdfast.status import about_ns, quantile_ns
    from holdfast.units import format_duration

    slow_ns = quantile_ns(contract.latency, 0.99)
    tolerance = contract.promise.loss_tolerance
    counts = (contract.late, contract.published, contract.delivered)
    copies = (contract.lost, contract.loss_run_max, contract.replicated, contract.aborted, contract.pruned)
    return [
        format_duration(contract.promise.deadline_ns),
        "-" if slow_ns is None else about_ns(slow_ns),
        *map(str, counts),
        "any" if tolerance is None else str(tolerance),
        *map(str, copies),
    ]


def print_pipeline(console: Console, url: str, status: PipelineStatus) -> None:
    from rich.markup import escape

    from holdfast.status import about_ns, troubles

    red = {each.about for each in troubles(status) if each.severity == "broken"}
    rows = ", ".join(f"{each.name} {'-' if each.rows is None else each.rows}" for each in status.datasets)
    console.print(
        f"{RED if '' in red else WELL} pipeline at {escape(url)}: {status.state}, {status.records} records, "
        f"{status.notifications} notifications; rows of datasets: {escape(rows or 'none')}"
    )
    columns = ("", "channel", "period", "last run", "took", "found", "subscribers", "failures")
    made = table(*columns, numbers=columns[2:])
    for each in status.channels:
        ago_ns = None if each.last_run_at_ns is None else max(0, status.at_ns - each.last_run_at_ns)
        made.add_row(
            RED if each.name in red else WELL,
            escape(each.name),
            about_ns(each.period_ns),
            "never" if ago_ns is None else f"{about_ns(ago_ns)} ago",
            "-" if each.last_run_ns is None else about_ns(each.last_run_ns),
            str(each.results),
            str(each.subscribers),
            str(each.failures),
        )
    console.print(made)


def print_troubles(console: Console, found: list[Found]) -> None:
    """What to look at, in words; or that there is nothing."""
    from rich.markup import escape

    from holdfast.status import BrokerStatus, troubles

    lines = [f"{RED} {each.url}: {each.why}" for each in found if each.status is None]
    for each in found:
        if each.status is None:
            continue
        who = each.status.name if isinstance(each.status, BrokerStatus) else "the pipeline"
        for trouble in troubles(each.status):
            about = f", {trouble.about}" if trouble.about else ""
            lines.append(f"{RED if trouble.severity == 'broken' else WARNS} {who}{about}: {trouble.words}")
    console.print(
        "\n".join(escape(line) for line in lines) if lines else f"{WELL} all is well", soft_wrap=True
    )
