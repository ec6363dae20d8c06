"""How the log of a long-running command looks."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import typer

LogFormat: TypeAlias = Annotated[
    Literal["text", "json"], typer.Option(help="Lines on standard error: key=value, or JSON.")
]
