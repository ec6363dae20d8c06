"""The `holdfast` command: parse, validate, call one function.

- Each command is a module beside this one, and imports what is heavy only when it runs.
- Exit codes: 0 done, 1 the answer is no or something is not there, 2 the input is wrong.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from holdfast.cli.broker import broker
from holdfast.cli.channel import channel
from holdfast.cli.dashboard import dashboard
from holdfast.cli.dataset import dataset
from holdfast.cli.doctor import doctor
from holdfast.cli.lab import lab
from holdfast.cli.pipeline import pipeline
from holdfast.cli.plan import plan
from holdfast.cli.pub import pub
from holdfast.cli.record import record
from holdfast.cli.sim import sim
from holdfast.cli.status import status
from holdfast.cli.sub import sub
from holdfast.cli.up.command import up
from holdfast.cli.user import user
from holdfast.errors import ConfigError, HoldfastError

app = typer.Typer(
    name="holdfast",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def show_version(asked: bool) -> None:
    if asked:
        from holdfast.broker.system_topics import VERSION

        print(VERSION)
        raise typer.Exit


@app.callback(epilog="holdfast COMMAND --help has examples and exit codes.")
def _commands(
    version: Annotated[
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="Say which it is, and stop."),
    ] = False,
) -> None:
    """An MQTT 5 broker that proves, schedules and keeps a contract for every topic.

    Start with holdfast up. A broker of your own: holdfast plan, holdfast
    broker, holdfast status. Is the machine fit for it: holdfast doctor.

    Exit codes: 0 done, 1 the answer is no or something is not there, 2 the
    input is wrong. Completion for your shell: holdfast --install-completion.
    """


# Every command: one line here, one module in this package.
app.command()(plan)
app.command()(broker)
app.command()(pub)
app.command()(sub)
app.command()(record)
app.command()(pipeline)
app.command()(status)
app.command()(doctor)
app.command()(up)
app.command()(dashboard)
app.command()(sim)
app.add_typer(lab, name="lab")
app.add_typer(dataset, name="dataset")
app.add_typer(channel, name="channel")
app.add_typer(user, name="user")


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
