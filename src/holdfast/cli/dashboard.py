"""`holdfast dashboard`: one live page about brokers and a pipeline that run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.broker import parse_addresses
from holdfast.config import read
from holdfast.errors import ConfigError, Problem

COMMAND = "holdfast dashboard"
EXAMPLE = "http://127.0.0.1:9883"


def dashboard(
    brokers: Annotated[
        list[str],
        typer.Argument(
            metavar="URL...", help="The HTTP port of each broker, as its --http says.", show_default=False
        ),
    ],
    pipeline: Annotated[
        str | None, typer.Option(metavar="URL", help="The HTTP port of the pipeline, as its --metrics says.")
    ] = None,
    token: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What their HTTP ports want to hear, as their --http-token says."),
    ] = None,
    authority: Annotated[
        Path | None,
        typer.Option("--ca", metavar="FILE", help="Who signs the certificates of those that are https://."),
    ] = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where the page is; port 0 picks a free one.")
    ] = "127.0.0.1:8080",
    certificate: Annotated[
        Path | None,
        typer.Option("--cert", metavar="FILE", help="Show the page in TLS, by this certificate …"),
    ] = None,
    key: Annotated[Path | None, typer.Option("--key", metavar="FILE", help="… and its key.")] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST", help="A host name by which browsers call the page; can be repeated."),
    ] = None,
) -> None:
    """Show brokers, contracts, failovers and channels on a live page.

    \b
    holdfast dashboard http://10.0.0.1:9883 http://10.0.0.2:9883
    holdfast dashboard http://10.0.0.1:9883 --pipeline http://10.0.0.3:9464
    holdfast dashboard http://10.0.0.1:9883 --listen 0.0.0.0:8080 --name ops.example

    It only reads: nothing on the page changes anything. Whoever reaches the
    port sees the page, so keep it on a network of your own. Browsers call
    it by an address, localhost or a --name; other names are refused.

    Exits with 0 after a signal, 1 if it cannot run here, 2 if the input is wrong.
    """
    from holdfast.dashboard.spec import Spec, need

    at, problems = parse_addresses([listen])
    problems = [Problem("--listen", each.message) for each in problems]
    wanted = [(f"URL[{place}]", url) for place, url in enumerate(brokers)]
    wanted += [("--pipeline", pipeline)] if pipeline is not None else []
    problems += [Problem(where, _url_problem(url)) for where, url in wanted if _url_problem(url)]
    if problems:
        raise ConfigError(COMMAND, problems)
    need()
    from holdfast.dashboard.serve import run
    from holdfast.runtime.tls import own_context

    own_context(certificate, key, COMMAND, ("--cert", "--key"))  # said before anything listens
    shown, its_key = (str(each or "") for each in (certificate, key))
    names = tuple(each.lower() for each in name or ())
    said = read(token).strip() if token is not None else ""
    urls = list(dict.fromkeys(brokers))
    run(Spec(at[0], urls, pipeline, names, said, str(authority or ""), shown, its_key))


def _url_problem(url: str) -> str:
    from urllib.parse import urlsplit

    try:
        found = urlsplit(url)
        fine = found.scheme in ("http", "https") and bool(found.hostname) and found.port != 0
    except ValueError:
        fine = False
    return "" if fine else f"found {url!r}; expected the address of an HTTP port, for example {EXAMPLE}"
