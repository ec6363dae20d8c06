"""Options that several commands about a pipeline have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Brokers = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT,...", help="The members of a group, or one broker of any make."),
]
Data = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where everything is kept; otherwise as the file says.")
]
