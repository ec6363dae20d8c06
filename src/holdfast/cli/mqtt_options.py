"""What `holdfast pub` and `holdfast sub` have in common: options as mosquitto_pub's, and how a run ends.

- `-h` is the host, as in mosquitto's clients; help is `--help`.
- Ctrl-C and SIGTERM end the work where it stands, so that its summary is still said.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.errors import ConfigError, PeerError, Problem
from holdfast.units import format_duration, parse_duration

if TYPE_CHECKING:
    from ssl import SSLContext

    from holdfast.client import Client
    from holdfast.contract.model import Contract

OUTAGE_S_MAX = 30.0
VERSION_NAMES = ("5", "50", "mqttv5", "mqttv50")

Host = Annotated[
    str,
    typer.Option(
        *("-h", "--host"),
        metavar="HOST",
        help="The broker's host; of a group host:port,host:port.",
    ),
]
Port = Annotated[
    int | None,
    typer.Option(
        *("-p", "--port"),
        metavar="PORT",
        min=1,
        max=65535,
        help="The broker's port; else 1883, with TLS 8883.",
    ),
]
Qos = Annotated[int, typer.Option("-q", "--qos", metavar="QOS", min=0, max=2, help="0, 1 or 2.")]
ClientId = Annotated[
    str,
    typer.Option("-i", "--id", metavar="ID", help="Client identifier; one is drawn if none is given."),
]
Username = Annotated[str | None, typer.Option("-u", "--username", metavar="NAME", help="The user.")]
Password = Annotated[
    str | None,
    typer.Option(
        *("-P", "--pw", "--password"),
        metavar="SECRET",
        help="As mosquitto's clients have it; others on this machine may see it for a moment.",
    ),
]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A file with the password in its first line. Without it and -P it is asked for, on a terminal.",
    ),
]
KeepAlive = Annotated[
    int,
    typer.Option(
        "-k",
        "--keepalive",
        metavar="SECONDS",
        min=0,
        max=65535,
        help="Seconds between signs of life; 0 is none.",
    ),
]
Version = Annotated[
    str, typer.Option("-V", "--protocol-version", help="Only 5 is spoken here; the broker also takes 3.1.1.")
]
Tls = Annotated[
    bool,
    typer.Option(
        "--tls",
        help="Speak TLS; a host that begins with mqtts:// and --ca say so too. "
        "The certificate must be for the host that is given.",
    ),
]
Authority = Annotated[
    Path | None,
    typer.Option(
        *("--ca", "--cafile"),
        metavar="FILE",
        help="Who signs the broker's certificate; else who the system trusts.",
    ),
]
Certificate = Annotated[
    Path | None,
    typer.Option("--cert", metavar="FILE", help="A certificate of our own, for a broker that asks."),
]
Key = Annotated[
    Path | None, typer.Option("--key", metavar="FILE", help="Its key, if that is in another file.")
]
ContractFile = Annotated[
    Path | None,
    typer.Option("--contracts", metavar="FILE", help="Show the contract of each topic, from this file."),
]


def check_version(command: str, version: str) -> None:
    if version.lower() not in VERSION_NAMES:
        raise ConfigError(
            command,
            [
                Problem(
                    "--protocol-version",
                    f"found {version!r}; {command} speaks MQTT 5 only. "
                    "For 3.1.1 use mosquitto_pub and mosquitto_sub: the broker takes both",
                )
            ],
        )


def duration_option(command: str, option: str, text: str | None) -> int | None:
    """Nanoseconds of an option like 20ms."""
    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ConfigError(
            command, [Problem(option, f"found {text!r}: {error}; for example 20ms or 1.5s")]
        ) from error


def check_names(command: str, option: str, names: list[str], validate: Callable[[str], None]) -> None:
    """Every topic name or filter that the specification does not allow, before anything is sent."""
    problems = []
    for name in names:
        try:
            validate(name)
        except PeerError as error:
            problems.append(Problem(option, error.text))
    if problems:
        raise ConfigError(command, problems)


def tls_context(
    host: str, tls: bool, authority: Path | None, certificate: Path | None, key: Path | None
) -> SSLContext | None:
    """Of the options; None when nothing asks for TLS."""
    from holdfast.client.tls import SECURE, ClientTls

    if not (tls or authority or certificate or key or host.strip().startswith(SECURE)):
        return None
    names = ("--ca", "--cert", "--key")
    files = ClientTls(authority=str(authority or ""), certificate=str(certificate or ""), key=str(key or ""))
    return files.context("holdfast", names)


def broker_addresses(host: str, port: int | None = None) -> list[tuple[str, int]]:
    """Of `host`, `host:port`, `[v6]:port` or a plain v6 address, several with commas between.

    Without `port`, hosts that say none have the usual one: 8883 after mqtts://."""
    from holdfast.endpoint.words import PORT_DEFAULT, PORT_TLS_DEFAULT, parse_address

    rest = host.strip().removeprefix("mqtts://")
    port = port or (PORT_DEFAULT if rest == host.strip() else PORT_TLS_DEFAULT)
    found = []
    for each in (text.strip() for text in rest.removeprefix("mqtt://").split(",")):
        has_port = each.count(":") == 1 or "]:" in each
        try:
            found.append(parse_address(each if has_port else f"[{each.strip('[]')}]:{port}"))
        except ValueError as error:
            raise ConfigError("holdfast", [Problem("--host", str(error))]) from error
    return found


PASSWORD_OPTIONS = ("-P", "--pw", "--password")


def find_password(username: str | None, password: str | None, file: Path | None) -> bytes | None:
    """From the file, or from a terminal; one on the command line is taken off it first."""
    from holdfast.client.login import read_password

    if password is not None and file is not None:
        raise ConfigError("holdfast", [Problem("--password-file", "give it or -P, not both")])
    if password is not None:
        hide_password(password)
        return password.encode()
    if file is not None:
        return read_password(str(file))
    if username is None or not sys.stdin.isatty():
        return None
    import getpass

    return getpass.getpass(f"Password of {username}: ").encode() or None


def hide_password(password: str) -> None:
    """Starts this command again with the password in a pipe instead of its arguments, which all may read."""
    arguments = without_password(sys.orig_argv, password)
    if arguments is None:
        return
    read_end, write_end = os.pipe()
    os.write(write_end, password.encode() + b"\n")
    os.close(write_end)
    os.set_inheritable(read_end, True)
    os.execv(sys.executable, [*arguments, "--password-file", f"/dev/fd/{read_end}"])


def without_password(arguments: list[str], password: str) -> list[str] | None:
    """The command line without its password; None when it does not stand there in a known way."""
    kept: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if argument in PASSWORD_OPTIONS:
            next(rest, None)
        elif argument != f"-P{password}" and not (equals and name in PASSWORD_OPTIONS and value == password):
            kept.append(argument)
    return kept if len(kept) < len(arguments) and password not in kept else None


async def connect_with(
    host: str,
    port: int | None,
    client_id: str,
    username: str | None,
    password: bytes | None,
    keep_alive_s: int,
    tls: SSLContext | None,
) -> Client:
    """Of a group, the client outlives a broker; one broker alone is all there is."""
    from holdfast.client import connect
    from holdfast.endpoint.words import PORT_TLS_DEFAULT

    port = port or (None if tls is None else PORT_TLS_DEFAULT)
    addresses = broker_addresses(host, port)
    return await connect(
        *addresses,
        outage_s_max=OUTAGE_S_MAX if len(addresses) > 1 else 0.0,
        client_id=client_id,
        username=username,
        password=password,
        keep_alive_s=keep_alive_s,
        tls=tls,
    )


def run_until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Runs `work` to its end, or until Ctrl-C or SIGTERM cancels it."""

    async def main() -> None:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
        try:
            await task
        except asyncio.CancelledError:
            if not task.cancelled():
                raise

    asyncio.run(main())


def contract_finder(file: Path | None) -> Callable[[str], Contract] | None:
    """Which contract of the file a topic is under."""
    if file is None:
        return None
    from holdfast.broker.contracts import ContractIndex
    from holdfast.contract.file import load_contracts

    index = ContractIndex(load_contracts(file))
    return lambda topic: index.terms_for(topic.encode()).contract


def promise(contract: Contract) -> str:
    """A contract in a few words."""
    loss = contract.loss_tolerance
    losses = (
        "any number lost" if loss is None else "none lost" if loss == 0 else f"up to {loss} lost in a row"
    )
    period = "" if contract.period_ns is None else f", every {format_duration(contract.period_ns)}"
    return f"contract {contract.name!r}: within {format_duration(contract.deadline_ns)}, {losses}{period}"
