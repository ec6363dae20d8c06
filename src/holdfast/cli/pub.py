"""`holdfast pub`: publish messages, stamped with their creation so that subscribers see latency and loss."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.figures import short_duration
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
    promise,
    run_until_stopped,
    tls_context,
)
from holdfast.errors import ConfigError, Problem

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.contract.verdict import Latencies

COMMAND = "holdfast pub"
STDIN = 0
READ_BYTES = 65_536
LINE_BYTES_MAX = 16_777_216


Topic = Annotated[str, typer.Option("-t", "--topic", metavar="TOPIC", help="The topic to publish to.")]
Text = Annotated[str | None, typer.Option("-m", "--message", metavar="TEXT", help="The message.")]
File = Annotated[
    Path | None,
    typer.Option(
        *("-f", "--file"),
        metavar="FILE",
        exists=True,
        dir_okay=False,
        allow_dash=True,
        help="A file as one message; - is stdin.",
    ),
]
Lines = Annotated[bool, typer.Option("-l", "--lines", help="Each line of stdin is a message.")]
Null = Annotated[bool, typer.Option("-n", "--null", help="An empty message.")]
Retain = Annotated[bool, typer.Option("-r", "--retain", help="The broker keeps it for later.")]
Repeat = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="How many times; with --every alone: until Ctrl-C.")
]
Every = Annotated[
    str | None, typer.Option(metavar="DURATION", help="Time between messages, for example 50ms.")
]
WithStamp = Annotated[
    bool, typer.Option("--stamp/--no-stamp", help="Send creation time and sequence number along.")
]


def pub(
    topic: Topic,
    message: Text = None,
    file: File = None,
    lines: Lines = False,
    null: Null = False,
    host: Host = "127.0.0.1",
    port: Port = None,
    qos: Qos = 0,
    retain: Retain = False,
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
    repeat: Repeat = None,
    every: Every = None,
    stamp: WithStamp = True,
    contracts: ContractFile = None,
) -> None:
    """Publish to a topic.

    \b
    holdfast pub -t plant/cat0/1 -m 21.5
    holdfast pub -t plant/cat0/1 -m 21.5 -q 1 --every 50ms --contracts examples/frame.toml
    tail -f log | holdfast pub -t plant/log -l
    holdfast pub -t plant/setpoint -f setpoint.json -r

    Exits with 1 if the broker is not there or refuses, with 2 if the input is wrong.
    """
    from holdfast.contract.file import load_contracts
    from holdfast.mqtt.topics import validate_topic

    secret = find_password(username, password, password_file)
    check_version(COMMAND, version)
    check_names(COMMAND, "--topic", [topic], validate_topic)
    payload = read_payload(message, file, lines, null)
    if lines and repeat is not None:
        raise ConfigError(
            COMMAND, [Problem("--repeat", "each line of stdin is published once; leave it out")]
        )
    every_ns = duration_option(COMMAND, "--every", every)
    context = tls_context(host, tls, authority, certificate, key)
    publishing = Publishing(topic, qos=qos, retain=retain, stamp=stamp)
    if find := contract_finder(contracts):
        typer.echo(f"{topic} is under {promise(find(topic))}", err=True)
    times = repeat if repeat is not None else 1 if every_ns is None else None

    async def work() -> None:
        async with await connect_with(
            host, port, client_id, username, secret, keep_alive_s, context
        ) as client:
            if contracts is not None:
                client.declare(*load_contracts(contracts).contracts)
            if payload is None:
                await publishing.publish_lines(client, every_ns)
            else:
                await publishing.publish_periodically(client, payload, times, every_ns)

    try:
        run_until_stopped(work())
    finally:
        if payload is None or times != 1:
            typer.echo(publishing.summary(), err=True)


def read_payload(message: str | None, file: Path | None, lines: bool, null: bool) -> bytes | None:
    """The message, from the one place that was given; None for lines of stdin."""
    given = [name for name, there in _sources(message, file, lines, null) if there]
    if len(given) != 1:
        found = f"found {' and '.join(given)}" if given else "found none"
        raise ConfigError(
            COMMAND, [Problem("message", f"{found}; expected one of --message, --file, --lines or --null")]
        )
    if message is not None:
        return message.encode(errors="surrogateescape")
    if file is not None:
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    return b"" if null else None


def _sources(message: str | None, file: Path | None, lines: bool, null: bool) -> list[tuple[str, bool]]:
    return [
        ("--message", message is not None),
        ("--file", file is not None),
        ("--lines", lines),
        ("--null", null),
    ]


class Publishing:
    """One run of publishing to one topic, and what became of it."""

    def __init__(self, topic: str, *, qos: int, retain: bool, stamp: bool) -> None:
        from holdfast.contract.verdict import Latencies

        self.topic = topic
        self.qos = qos
        self.retain = retain
        self.stamp = stamp
        self.sent = 0
        self.unheard = 0
        self.answers: Latencies = Latencies()

    async def publish_periodically(
        self, client: Client, payload: bytes, times: int | None, every_ns: int | None
    ) -> None:
        pace = Pace(every_ns)
        while times is None or self.sent < times:
            await self._publish(client, [payload])
            if times is None or self.sent < times:
                await pace.next()

    async def publish_lines(self, client: Client, every_ns: int | None) -> None:
        pace = Pace(every_ns)
        async for batch in stdin_lines():
            if every_ns is None:
                await self._publish(client, batch)
                continue
            for line in batch:
                await self._publish(client, [line])
                await pace.next()

    async def _publish(self, client: Client, payloads: list[bytes]) -> None:
        from holdfast.client import Outgoing
        from holdfast.mqtt.reasons import Reason

        loop = asyncio.get_running_loop()
        started_s = loop.time()
        reasons = await client.publish_many(
            [Outgoing(self.topic, payload, self.qos, self.retain) for payload in payloads], stamp=self.stamp
        )
        self.sent += len(payloads)
        self.unheard += reasons.count(Reason.NO_MATCHING_SUBSCRIBERS)
        if self.qos:
            self.answers.add(int((loop.time() - started_s) * 1e9))

    def summary(self) -> str:
        plural = "message" if self.sent == 1 else "messages"
        text = f"published {self.sent} {plural} to {self.topic}"
        if self.answers.count:
            p50, p99 = (short_duration(self.answers.percentile(percent)) for percent in (50, 99))
            text += f"; answered in p50 {p50}, p99 {p99}, max {short_duration(self.answers.max_ns)}"
        if self.unheard:
            text += f"; {self.unheard} had no subscriber"
        return text


class Pace:
    """Ticks that do not drift: a late one does not move the next."""

    def __init__(self, every_ns: int | None) -> None:
        self._every_s = (every_ns or 0) / 1e9
        self._next_s = asyncio.get_running_loop().time()

    async def next(self) -> None:
        self._next_s += self._every_s
        await asyncio.sleep(max(0.0, self._next_s - asyncio.get_running_loop().time()))


async def stdin_lines() -> AsyncIterator[list[bytes]]:
    """The lines of stdin as they come, without their ends, those that come together in one list."""
    rest = b""
    async for chunk in stdin_chunks():
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            raise ConfigError(COMMAND, [Problem("stdin", f"a line is longer than {LINE_BYTES_MAX} bytes")])
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest]


async def stdin_chunks() -> AsyncIterator[bytes]:
    """What stdin has, waiting for a pipe or terminal without a thread that Ctrl-C could not end."""
    watchable = True
    while True:
        if watchable:
            watchable = await stdin_readable()
        chunk = os.read(STDIN, READ_BYTES)
        if not chunk:
            return
        yield chunk


async def stdin_readable() -> bool:
    """Waits until stdin has something; False for a regular file, which always has and cannot be watched."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    try:
        loop.add_reader(STDIN, readable.set)
    except PermissionError:
        return False
    try:
        await readable.wait()
    finally:
        loop.remove_reader(STDIN)
    return True
