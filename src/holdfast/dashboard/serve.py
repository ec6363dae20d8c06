"""One process that asks brokers and pipeline, and serves the page about them to any number of browsers.

`python -m holdfast.dashboard.serve SPEC` is how the example runs it; `holdfast dashboard` calls `run`. It
says where the page is on stdout, once it can be opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Iterator

import msgspec
import uvicorn
from fastapi import FastAPI
from nicegui import ui

from holdfast.address import Address
from holdfast.client.tls import ClientTls
from holdfast.dashboard import pages
from holdfast.dashboard.city import City
from holdfast.dashboard.example import Example
from holdfast.dashboard.guard import Guard
from holdfast.dashboard.live import Live
from holdfast.dashboard.spec import Spec
from holdfast.errors import HoldfastError, Unavailable

COMMAND = "holdfast dashboard"


def listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, reuse_port=False)
    except OSError as error:
        why, where = os.strerror(error.errno or 0), Address(host, port)
        raise Unavailable(f"cannot listen on {where}: {why}. Choose another with --listen.") from error


def address(listening: socket.socket, spec: Spec) -> str:
    host, port = listening.getsockname()[:2]
    return f"{'https' if spec.certificate else 'http'}://{Address(host, port)}"


class _Server(uvicorn.Server):
    """Signals are ours: a dashboard that is told to end has ended well."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def stop(self) -> None:
        self.should_exit = True


async def serve(spec: Spec) -> None:
    """Until a signal, or the end of whoever started the example."""
    listening = listener(*spec.listen)
    ground = spec.example.ground if spec.example is not None else None
    city = City(ground) if ground is not None else None
    trusted = None
    if spec.authority:
        trusted = ClientTls(authority=spec.authority).context(COMMAND, ("--ca", "", ""))
    live = Live(spec.brokers, spec.pipeline, city, spec.token, trusted)
    example = Example(spec.example, live) if spec.example is not None else None
    pages.define(live, example)
    server = _Server(
        uvicorn.Config(
            _application(spec),
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=1,
            ssl_certfile=spec.certificate or None,
            ssl_keyfile=spec.key or None,
        )
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, server.stop)
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve([listening]))
        others = [group.create_task(live.run())]
        if example is not None:
            others.append(group.create_task(_until_end(example, server)))
            if city is not None and ground is not None:
                others.append(group.create_task(example.follow(city, ground)))
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        print(f"dashboard at {address(listening, spec)}", flush=True)
        await serving
        for task in others:
            task.cancel()


async def _until_end(example: Example, server: _Server) -> None:
    await example.listen()
    server.stop()


def _application(spec: Spec) -> Guard:
    application = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    # Nothing here uses bindings or utility classes: without them neither server nor browser works for them.
    ui.run_with(
        application,
        title=pages.TITLE,
        favicon=pages.FAVICON,
        dark=None,
        tailwind=False,
        binding_refresh_interval=None,
        show_welcome_message=False,
    )
    return Guard(application, frozenset(spec.names))


def run(spec: Spec) -> None:
    asyncio.run(serve(spec))


def main() -> None:
    failure = ""
    try:
        run(msgspec.json.decode(sys.argv[1], type=Spec))
    except* HoldfastError as errors:
        failure = str(errors.exceptions[0])
    if failure:
        sys.exit(failure)


if __name__ == "__main__":
    main()
