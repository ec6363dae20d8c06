"""Options that several commands about a pipeline have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from holdfast.client.tls import ClientTls

Brokers = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT,...", help="The members of a group, or one broker of any make."),
]


def brokers_tls(
    tls: bool, authority: Path | None, certificate: Path | None, key: Path | None
) -> ClientTls | None:
    """Of the options of that name in mqtt_options; None: as the file says."""
    from holdfast.client.tls import ClientTls

    if not (tls or authority or certificate or key):
        return None
    return ClientTls(authority=str(authority or ""), certificate=str(certificate or ""), key=str(key or ""))


Data = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where everything is kept; otherwise as the file says.")
]
