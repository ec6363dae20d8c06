"""`holdfast demo`: a pair of brokers, a plant and a subscriber, and a live table of every contract.

- The brokers, the plant and the subscriber are processes of their own; this one only draws and takes keys.
- They end with this process, however it ends. It outlives its brokers, and ends when plant or subscriber do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.broker import parse_addresses
from holdfast.errors import ConfigError, Problem

COMMAND = "holdfast demo"
PLANT_CONTRACTS = Path(__file__).with_name("plant.toml")


def demo(
    listen: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where a broker listens; give it twice for both. Port 0, or none given, picks a free one.",
        ),
    ] = None,
    contracts: Annotated[
        Path,
        typer.Option(
            metavar="FILE", show_default=False, help="Contracts to show; without it those of a small plant."
        ),
    ] = PLANT_CONTRACTS,
    beside: Annotated[
        Path | None,
        typer.Option(
            "--with",
            metavar="FOLDER",
            help="Run the pipeline of this folder too, and show what its channels tell.",
        ),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=0.1, help="End by itself after this time; without it at q or Ctrl-C.")
    ] = None,
    kill_after: Annotated[
        str | None, typer.Option(metavar="TIME", help="Kill the primary after this time, as key k does.")
    ] = None,
    restart_after: Annotated[
        str | None, typer.Option(metavar="TIME", help="Start it again after this time, as key r does.")
    ] = None,
) -> None:
    """See contracts being kept while a broker is killed: a pair of brokers, a small plant, a live table.

    \b
    holdfast demo
    holdfast demo --with examples/emergencies
    holdfast demo --contracts examples/frame.toml --listen 127.0.0.1:1883
    holdfast demo --seconds 6 --kill-after 2s --restart-after 4s

    Keys: k kills the primary (SIGKILL), r starts it again, s pauses it and
    lets it go on, q ends.

    Exits with 0; with --seconds with 1 if a contract was broken.
    """
    from holdfast.cli.demo.stage import Script, Stage
    from holdfast.cli.mqtt_options import duration_option
    from holdfast.contract.file import load_contracts

    addresses, problems = parse_addresses(listen or [])
    if len(addresses) > 2:
        problems.append(Problem("--listen", f"found {len(addresses)} addresses; a pair has two"))
    if problems:
        raise ConfigError(COMMAND, problems)
    script = Script(
        seconds,
        duration_option(COMMAND, "--kill-after", kill_after),
        duration_option(COMMAND, "--restart-after", restart_after),
    )
    kept = Stage(load_contracts(contracts), contracts, addresses, beside).run(script)
    if seconds is not None and not kept:
        raise typer.Exit(1)
