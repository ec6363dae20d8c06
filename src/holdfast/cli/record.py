"""`holdfast record`: keep the messages of some topics, so that they can be read again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.log_option import LogFormat
from holdfast.cli.mqtt_options import Authority, Certificate, Key, Tls
from holdfast.cli.pipeline_options import Brokers, Data, brokers_tls
from holdfast.errors import ConfigError, Problem

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
            help="Serve the feeds with Arrow Flight, to readers that do not see the files. To anyone who "
            "reaches that address. Port 0 picks a free one.",
        ),
    ] = None,
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

    from holdfast.pipeline.feed.recorder import record as run
    from holdfast.runtime.log import set_form

    set_form(log_format)
    run(declared, flight)
