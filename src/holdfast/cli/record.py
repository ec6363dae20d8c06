"""`holdfast record`: keep the messages of some topics, so that they can be read again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.address import parse_address
from holdfast.cli.log_option import LogFormat
from holdfast.cli.mqtt_options import Authority, Certificate, Key, Tls
from holdfast.cli.pipeline_options import Brokers, Data, brokers_tls
from holdfast.errors import ConfigError, Problem

if TYPE_CHECKING:
    from holdfast.pipeline.feed.place import FeedDoor

COMMAND = "holdfast record"


def record(
    pipeline: Annotated[
        Path | None, typer.Argument(metavar="[PIPELINE.toml]", help="Records every feed of a pipeline file.")
    ] = None,
    feed: Annotated[str | None, typer.Option(metavar="NAME", help="Without a file: one feed.")] = None,
    topics: Annotated[
        list[str] | None,
        typer.Option("-t", "--topic", metavar="FILTER", help="What goes there; several may be given."),
    ] = None,
    brokers: Brokers = None,
    tls: Tls = False,
    authority: Authority = None,
    certificate: Certificate = None,
    key: Key = None,
    data: Data = None,
    flight: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve the feeds with Arrow Flight, to readers that do not see the files. "
            "Port 0 picks a free one.",
        ),
    ] = None,
    flight_token: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="What a reader must say of itself. Needed for --flight beyond loopback."
        ),
    ] = None,
    flight_certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Serve the feeds in TLS, with this certificate …")
    ] = None,
    flight_key: Annotated[Path | None, typer.Option(metavar="FILE", help="… and its key.")] = None,
    log_format: LogFormat = "text",
) -> None:
    """Record messages into journals, each stamped message once, whatever crashes.

    \b
    holdfast record pipeline.toml
    holdfast record --feed positions -t 'city/+/position' --brokers 127.0.0.1:1883 --data data

    A message is acknowledged when it is on disk. While the disk is full, or consumers are so far
    behind that a feed has its bytes_max, nothing more is taken and the brokers keep what they can:
    see queue_messages_max there. SIGTERM and Ctrl-C finish what was taken.

    Exits with 0 after a signal, 1 if a feed cannot be recorded, 2 if the input is wrong.
    """
    from holdfast.pipeline.declared import Feed, Instead, Pipeline, load_pipeline

    instead = Instead(brokers=brokers, tls=brokers_tls(tls, authority, certificate, key), data=data)
    if (pipeline is None) == (feed is None):
        raise ConfigError(COMMAND, [Problem("", "expected a pipeline file, or --feed NAME and --topic")])
    if pipeline is not None:
        if topics:
            raise ConfigError(COMMAND, [Problem("--topic", "the topics of a pipeline are in its file")])
        declared = load_pipeline(pipeline, instead)
    else:
        declared = instead.applied(Pipeline(feeds=(Feed(name=feed or "", topics=tuple(topics or ())),)))
    if not declared.feeds:
        raise ConfigError(str(pipeline), [Problem("feed", "found none; expected one or more [[feed]]")])

    door = None if flight is None else open_door(flight, flight_token, flight_certificate, flight_key)
    from holdfast.pipeline.feed.recorder import record as run
    from holdfast.runtime.log import set_form

    set_form(log_format)
    run(declared, door)


def open_door(flight: str, token: Path | None, certificate: Path | None, key: Path | None) -> FeedDoor:
    """What --flight and the options beside it stand for."""
    from holdfast.pipeline.feed.place import FeedDoor
    from holdfast.runtime.tls import own_context
    from holdfast.runtime.watching import read_token

    address = parse_address(flight)
    if address is None:
        expected = "expected HOST:PORT, for example 127.0.0.1:8815"
        raise ConfigError(COMMAND, [Problem("--flight", f"found {flight!r}; {expected}")])
    said = read_token(None if token is None else str(token), address.host, COMMAND, "--flight")
    own_context(certificate, key, COMMAND, ("--flight-certificate", "--flight-key"))  # whether it is one
    if certificate is None or key is None:
        return FeedDoor(address, said)
    return FeedDoor(address, said, (certificate.read_bytes(), key.read_bytes()))
