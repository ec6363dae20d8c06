"""The `holdfast` command: parse, validate, call one function.

- Each command is a module beside this one, and imports what is heavy only when it runs.
- Exit codes: 0 done, 1 the answer is no or something is not there, 2 the input is wrong.
"""

from __future__ import annotations

import sys

import typer

from holdfast.cli.broker import broker
from holdfast.cli.channel import channel
from holdfast.cli.dataset import dataset
from holdfast.cli.demo.command import demo
from holdfast.cli.lab import lab
from holdfast.cli.pipeline import pipeline
from holdfast.cli.plan import plan
from holdfast.cli.pub import pub
from holdfast.cli.record import record
from holdfast.cli.sim import sim
from holdfast.cli.sub import sub
from holdfast.errors import ConfigError, HoldfastError

app = typer.Typer(
    name="holdfast",
    help="An MQTT 5 broker that proves, schedules and keeps a contract for every topic.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _commands() -> None:
    """Keeps `holdfast plan` a command of its own even while it is the only one."""


# Every command: one line here, one module in this package.
app.command()(plan)
app.command()(broker)
app.command()(pub)
app.command()(sub)
app.command()(record)
app.command()(pipeline)
app.command()(demo)
app.command()(sim)
app.add_typer(lab, name="lab")
app.add_typer(dataset, name="dataset")
app.add_typer(channel, name="channel")


def main() -> None:
    """The console entry point; errors that Holdfast raises on purpose become a message and an exit code."""
    try:
        app()
    except ConfigError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except HoldfastError as error:
        print(f"holdfast: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
