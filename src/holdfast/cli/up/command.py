"""`holdfast up`: a pair of brokers, a plant, a city with a pipeline, and a page that shows it all.

- Brokers, plant, subscriber, city, pipeline and page are processes of their own; this one only starts them.
- They end with this process, however it ends. It outlives its brokers, and ends when plant or subscriber do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.broker import parse_addresses
from holdfast.errors import ConfigError, Problem

COMMAND = "holdfast up"
PLANT_CONTRACTS = Path(__file__).with_name("plant.toml")
EXAMPLE = Path("examples", "emergencies")
SOURCE_TREE = Path(__file__).parents[4]


def up(
    page: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where the page is; without it 127.0.0.1:8080, or a free port if that is taken.",
        ),
    ] = None,
    table: Annotated[
        bool, typer.Option("--table", help="Show a live table in this terminal instead of a page.")
    ] = False,
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
            help="Run the city and the pipeline of this folder; without it examples/emergencies, and with "
            "--table none.",
        ),
    ] = None,
    no_pipeline: Annotated[
        bool, typer.Option("--no-pipeline", help="Leave out Spark: the city lives, and nobody is told.")
    ] = False,
    zookeeper: Annotated[
        bool,
        typer.Option("--zookeeper", help="Start a ZooKeeper too, and let it decide which broker serves."),
    ] = False,
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
    """See contracts being kept while a broker is killed: a pair, a small plant, a city, a live page.

    \b
    holdfast up
    holdfast up --page 0.0.0.0:8080 --no-pipeline
    holdfast up --table --contracts examples/frame.toml --listen 127.0.0.1:1883
    holdfast up --table --seconds 6 --kill-after 2s --restart-after 4s

    Keys: k kills the primary (SIGKILL), r starts it again, s pauses it and
    lets it go on, q ends. The page has buttons for k and r. What is written
    goes into a temporary folder that goes with it. Both brokers are on one
    machine, where no link between them is cut, so no arbiter is needed; with
    --zookeeper there is one, as there should be on two machines.

    Exits with 0; with --seconds with 1 if a contract was broken; with 1 if it cannot run here.
    """
    from holdfast.cli.mqtt_options import duration_option
    from holdfast.cli.up.stage import Script, Stage, Wish
    from holdfast.contract.file import load_contracts

    addresses, problems = parse_addresses(listen or [])
    if len(addresses) > 2:
        problems.append(Problem("--listen", f"found {len(addresses)} addresses; a pair has two"))
    at, wrong = parse_addresses([page] if page is not None else [])
    problems += [Problem("--page", each.message) for each in wrong]
    if problems:
        raise ConfigError(COMMAND, problems)
    script = Script(
        seconds,
        duration_option(COMMAND, "--kill-after", kill_after),
        duration_option(COMMAND, "--restart-after", restart_after),
    )
    if beside is None and not table:
        beside = example()
    wish = Wish(contracts, addresses, at[0] if at else None, beside, not no_pipeline, table, zookeeper)
    kept = Stage(load_contracts(contracts), wish).run(script)
    if seconds is not None and not kept:
        raise typer.Exit(1)


def example() -> Path | None:
    """The folder of the example, here or beside the sources; none if Holdfast was installed without it."""
    return next((path for path in (EXAMPLE, SOURCE_TREE / EXAMPLE) if path.is_dir()), None)
