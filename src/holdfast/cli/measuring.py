"""Reads what a running group measured of itself."""

from __future__ import annotations

import asyncio
import os
from ssl import SSLContext

from holdfast.contract.measured import FIGURES, IN_FORCE, Measured, parse_figures
from holdfast.errors import Unavailable

PREFIX = "$SYS/broker/"
ANSWER_S_MAX = 5.0


def read_measured(address: str, tls: SSLContext | None) -> Measured:
    """From the group at that address, or at one of several with commas between."""
    return asyncio.run(_read(address, tls))


async def _read(address: str, tls: SSLContext | None) -> Measured:
    from holdfast.cli.mqtt_options import broker_addresses
    from holdfast.client import connect

    figures: dict[str, str] = {}
    client = await connect(
        *broker_addresses(address), client_id=f"hf-plan-{os.getpid()}", outage_s_max=0.0, tls=tls
    )
    async with client:
        await client.subscribe(f"{PREFIX}group/#")
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                async for message in client:
                    figures[message.topic.removeprefix(PREFIX)] = message.payload.decode(errors="replace")
                    if figures.keys() >= {*FIGURES.values(), *IN_FORCE.values()}:
                        break
        except TimeoutError:
            raise Unavailable(
                f"the broker at {address} says nothing of a group within {ANSWER_S_MAX:g} s: "
                "is it a member of one? Figures are measured between members"
            ) from None
    return parse_figures(figures)
