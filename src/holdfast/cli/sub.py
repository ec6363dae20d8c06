"""`holdfast sub`: print messages as they arrive; at the end, latency and loss of every topic."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.mqtt_options import (
    Authority,
    Certificate,
    ClientId,
    ContractFile,
    Host,
    KeepAlive,
    Key,
    Password,
    PasswordFile,
    Port,
    Qos,
    Tls,
    Username,
    Version,
    check_names,
    check_version,
    connect_with,
    contract_finder,
    duration_option,
    find_password,
    run_until_stopped,
    tls_context,
)
from holdfast.errors import ConfigError, Problem, Unavailable
from holdfast.mqtt.conventions import LOSS_UNLIMITED

if TYPE_CHECKING:
    from rich.console import Console, Group

    from holdfast.cli.tally import Tally
    from holdfast.client import Client, Message

COMMAND = "holdfast sub"
REFRESH_S = 0.25
PIPE_COLUMNS = 160
# Of the live table, all that is not a topic.
TABLE_LINES = 4


Topics = Annotated[
    list[str], typer.Option("-t", "--topic", metavar="FILTER", help="A topic filter; several may be given.")
]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Print the topic before the message.")]
Count = Annotated[
    int | None, typer.Option("-C", "--count", metavar="N", min=1, help="End after so many messages.")
]
Timeout = Annotated[
    float | None, typer.Option("-W", "--timeout", metavar="SECONDS", min=0.0, help="End after this time.")
]
Deadline = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="Require every message within this time, for example 20ms."),
]
Loss = Annotated[
    str | None,
    typer.Option(metavar="NUMBER", help='Require no more losses in a row than this, or "unlimited".'),
]
AsJson = Annotated[bool, typer.Option("--json", help="Each message, and each line at the end, as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Only the table; on a terminal it is live.")]


def sub(
    topics: Topics,
    verbose: Verbose = False,
    host: Host = "127.0.0.1",
    port: Port = None,
    qos: Qos = 0,
    count: Count = None,
    timeout_s: Timeout = None,
    deadline: Deadline = None,
    loss: Loss = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    client_id: ClientId = "",
    username: Username = None,
    password: Password = None,
    password_file: PasswordFile = None,
    keep_alive_s: KeepAlive = 60,
    tls: Tls = False,
    authority: Authority = None,
    certificate: Certificate = None,
    key: Key = None,
    version: Version = "5",
    contracts: ContractFile = None,
) -> None:
    """Subscribe and print messages; at the end a line for each topic: latency, late, lost.

    \b
    holdfast sub -t 'plant/#' -v
    holdfast sub -t 'plant/cat0/+' --quiet --contracts examples/frame.toml
    holdfast sub -t 'plant/cat0/+' --deadline 20ms --loss 0 -C 1000
    holdfast sub -t 'plant/#' --json -W 10 > messages.jsonl

    Messages go to stdout and the table to stderr; with --quiet or --json everything goes to stdout.
    Latency and loss need publishers that stamp, as holdfast pub does.

    Exits with 1 if the broker is not there or refuses, or if --timeout comes before --count messages;
    with 2 if the input is wrong.
    """
    from holdfast.cli.tally import Tally
    from holdfast.mqtt.topics import validate_filter

    secret = find_password(username, password, password_file)
    check_version(COMMAND, version)
    check_names(COMMAND, "--topic", topics, validate_filter)
    deadline_ns = duration_option(COMMAND, "--deadline", deadline)
    tolerance = loss_option(loss)
    tally = Tally(deadline_ns, tolerance, contract_finder(contracts))
    context = tls_context(host, tls, authority, certificate, key)
    output = Output(tally, verbose=verbose, as_json=as_json, quiet=quiet)

    async def work() -> None:
        async with await connect_with(
            host, port, client_id, username, secret, keep_alive_s, context
        ) as client:
            await client.subscribe(*topics, qos=qos, deadline_ns=deadline_ns, loss_tolerance=loss)
            try:
                async with asyncio.timeout(timeout_s):
                    await output.show(client, count)
            except TimeoutError:
                if count is not None:
                    raise Unavailable(
                        f"{tally.messages} of {count} messages came within {timeout_s:g} s"
                    ) from None

    try:
        run_until_stopped(work())
    except BrokenPipeError:
        # Whoever read our messages has enough of them.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        output.finish()


def loss_option(text: str | None) -> int | None:
    if text is None or text == LOSS_UNLIMITED:
        return None
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(
            COMMAND, [Problem("--loss", f'found {text!r}; expected a whole number, or "{LOSS_UNLIMITED}"')]
        )
    return int(text)


class Output:
    """Where messages and the table go."""

    def __init__(self, tally: Tally, *, verbose: bool, as_json: bool, quiet: bool) -> None:
        self._tally = tally
        self._verbose = verbose
        self._as_json = as_json
        self._quiet = quiet
        self._out = sys.stdout.buffer

    async def show(self, client: Client, count: int | None) -> None:
        """Prints and counts messages until `count` have come or the connection ends."""
        if self._quiet and not self._as_json and sys.stdout.isatty():
            await self._show_live(client, count)
            return
        async for message in client:
            self._tally.add(message)
            if not self._quiet:
                self._out.write(self._line(message))
                if not client.waiting:
                    self._out.flush()
            if self._tally.messages == count:
                break

    async def _show_live(self, client: Client, count: int | None) -> None:
        from rich.live import Live

        console = self._console()
        with Live(console=console, auto_refresh=False, transient=True) as live:

            async def refresh() -> None:
                while True:
                    live.update(live_table(self._tally, console), refresh=True)
                    await asyncio.sleep(REFRESH_S)

            refresher = asyncio.ensure_future(refresh())
            try:
                async for message in client:
                    self._tally.add(message)
                    if self._tally.messages == count:
                        break
            finally:
                refresher.cancel()

    def finish(self) -> None:
        """The table, or its lines as JSON; nothing if there is nothing to say."""
        from holdfast.cli.tally import tally_document, tally_table

        if not self._tally.messages:
            return
        if self._as_json:
            for topic in self._tally.topics:
                self._out.write(_json_line(tally_document(topic)))
            self._out.flush()
            return
        self._out.flush()
        console = self._console()
        console.print(tally_table(self._tally.topics, console.width))

    def _console(self) -> Console:
        from rich.console import Console

        console = Console(stderr=not self._quiet)
        return console if console.is_terminal else Console(stderr=not self._quiet, width=PIPE_COLUMNS)

    def _line(self, message: Message) -> bytes:
        if self._as_json:
            return _json_line(message_document(message))
        if self._verbose:
            return b"%s %s\n" % (message.topic.encode(), message.payload)
        return message.payload + b"\n"


def live_table(tally: Tally, console: Console) -> Group:
    """As many topics as the terminal shows: drawing more would only delay the messages."""
    from rich.console import Group
    from rich.text import Text

    from holdfast.cli.tally import tally_table

    topics = tally.topics
    shown = topics[: max(1, console.height - TABLE_LINES)]
    more = [Text(f"… and {len(topics) - len(shown)} more topics")] if len(shown) < len(topics) else []
    return Group(tally_table(shown, console.width), *more)


def message_document(message: Message) -> dict[str, Any]:
    """One message as plain data; a payload that is not text is in base64."""
    document: dict[str, Any] = {"topic": message.topic}
    try:
        document["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        document["payload_base64"] = base64.b64encode(message.payload).decode()
    document |= {"qos": message.qos, "retain": message.retain}
    if message.stamp is not None:
        document |= {
            "created_ns": message.stamp.created_ns,
            "sequence": message.stamp.sequence,
            "publisher": message.stamp.publisher,
            "latency_ms": (message.latency_ns or 0) / 1e6,
        }
    return document


def _json_line(document: dict[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode() + b"\n"
