"""`holdfast pipeline`: run a pipeline on Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.broker import parse_addresses
from holdfast.cli.log_option import LogFormat
from holdfast.cli.mqtt_options import Authority, Certificate, Key, Tls
from holdfast.cli.pipeline_options import Brokers, Data, brokers_tls
from holdfast.errors import ConfigError

COMMAND = "holdfast pipeline"
SERVING = "session started"  # the event at which it does what it is for


def pipeline(
    file: Annotated[Path, typer.Argument(metavar="PIPELINE.toml", help="Feeds, datasets and channels.")],
    brokers: Brokers = None,
    tls: Tls = False,
    authority: Authority = None,
    certificate: Certificate = None,
    key: Key = None,
    data: Data = None,
    master: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Another Spark than the file says, as spark://host:7077."),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Answer /metrics (Prometheus), /health/live, /health/ready and /status (JSON) there.",
        ),
    ] = None,
    metrics_token: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What a request must say: Authorization: Bearer and the content of this file. "
            "Needed for --metrics beyond loopback.",
        ),
    ] = None,
    metrics_certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Answer there in TLS, with this certificate …")
    ] = None,
    metrics_key: Annotated[Path | None, typer.Option(metavar="FILE", help="… and its key.")] = None,
    log_format: LogFormat = "text",
    check: Annotated[
        bool, typer.Option("--check", help="Say everything that is wrong with it, and stop.")
    ] = False,
) -> None:
    """Run a pipeline: feeds become datasets, and channels are executed and delivered.

    \b
    holdfast pipeline city.toml --check
    holdfast pipeline city.toml --metrics 127.0.0.1:9464

    The feeds are recorded by holdfast record. It may be killed at any instant and started again.
    SIGTERM and Ctrl-C end it. SIGHUP, or a change of the file, changes the channels under way.

    Exits with 0 after a signal, 1 if it cannot run here, 2 if the input is wrong.
    """
    import asyncio
    import logging

    from holdfast.pipeline.declared import Instead, load_pipeline
    from holdfast.pipeline.process import Process
    from holdfast.pipeline.work import SparkWork
    from holdfast.pipeline.work import check as check_all
    from holdfast.runtime.log import log_event, set_form
    from holdfast.runtime.tls import own_context
    from holdfast.runtime.watching import HttpDoor, read_token

    set_form(log_format)
    instead = Instead(
        brokers=brokers, tls=brokers_tls(tls, authority, certificate, key), data=data, master=master
    )

    def tell(event: str, details: dict[str, object]) -> None:
        log_event(event, details)
        if event == SERVING:
            typer.echo("serving")

    def say(words: str) -> None:
        typer.echo(words, err=True)

    addresses, problems = parse_addresses([metrics] if metrics is not None else [], "--metrics")
    if problems:
        raise ConfigError(COMMAND, problems)
    door = None
    if addresses:
        path = None if metrics_token is None else str(metrics_token)
        token = read_token(path, addresses[0].host, COMMAND, "--metrics")
        names = ("--metrics-certificate", "--metrics-key")
        door = HttpDoor(addresses[0], token, own_context(metrics_certificate, metrics_key, COMMAND, names))
    if check:
        check_all(file, load_pipeline(file, instead), say)
        typer.echo("the pipeline is in order")
        return
    # What goes wrong in Spark is told in our words; its own log is in its folder.
    logging.disable(logging.CRITICAL)
    process = Process(
        file,
        lambda declared, results, subscribers, tallies: SparkWork(
            file, declared, results, subscribers, tallies, say
        ),
        instead=instead,
        metrics=door,
        tell=tell,
    )
    asyncio.run(process.run())
