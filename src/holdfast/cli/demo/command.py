"""`holdfast demo`: a broker, a plant and a subscriber, and a live table of every contract.

- The broker, the plant and the subscriber are processes of their own; this one only draws.
- They end with this process, however it ends, and this process ends when one of them does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.broker import parse_addresses
from holdfast.errors import ConfigError

PLANT_CONTRACTS = Path(__file__).with_name("plant.toml")


def demo(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where the broker listens. Port 0 picks a free one.")
    ] = "127.0.0.1:0",
    contracts: Annotated[
        Path,
        typer.Option(
            metavar="FILE", show_default=False, help="Contracts to show; without it those of a small plant."
        ),
    ] = PLANT_CONTRACTS,
    seconds: Annotated[
        float | None, typer.Option(min=0.1, help="End by itself after this time; without it at Ctrl-C.")
    ] = None,
) -> None:
    """See contracts being kept: a broker, a small plant of publishers, a subscriber, and a live table.

    \b
    holdfast demo
    holdfast demo --contracts examples/frame.toml --listen 127.0.0.1:1883

    With --seconds exits with 1 if a contract was broken.
    """
    from holdfast.cli.demo.stage import Stage
    from holdfast.contract.file import load_contracts

    _, problems = parse_addresses([listen])
    if problems:
        raise ConfigError("holdfast demo", problems)
    book = load_contracts(contracts)
    kept = Stage(book, contracts, listen).run(seconds)
    if seconds is not None and not kept:
        raise typer.Exit(1)
