"""Answers that a broker's HTTP port makes piece by piece. (Streams that come in pieces: tests/runtime/
test_websocket.py and test_layers.py, any cut of the stream.)"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.bench import Bench, book, contract
from tests.pieces.sizes import sizes_around

from holdfast.address import LOOPBACK
from holdfast.broker.histogram import Histogram
from holdfast.runtime.http import Answer, HttpPort
from holdfast.runtime.metrics import HISTOGRAMS_AT_ONCE, VALUES_AT_ONCE, render
from holdfast.runtime.priority import Priority
from holdfast.runtime.reporting import CONTRACTS_AT_ONCE, Reporter
from holdfast.status import CONTRACTS_MAX


def reporter_of(size: int) -> Reporter:
    contracts = [contract(f"c{number}", f"t{number}/+", "50ms", 0) for number in range(size)]
    server: Any = SimpleNamespace(slices=Histogram())
    return Reporter(Bench(book(*contracts)).broker, server, None, Priority("as usual", "not locked"))


@pytest.mark.parametrize("size", sizes_around(CONTRACTS_AT_ONCE))
def test_the_status_has_every_contract_once(size: int) -> None:
    pieces = list(reporter_of(size).status_json())
    found = [each["name"] for each in json.loads(b"".join(pieces))["contracts"]]
    assert found == [*(f"c{number}" for number in range(size)), "default"]


@pytest.mark.parametrize("size", [CONTRACTS_MAX - 1, CONTRACTS_MAX, CONTRACTS_MAX + 1])
def test_what_has_no_contract_is_reported_however_many_there_are(size: int) -> None:
    reporter = reporter_of(size)
    found = [each.name for each in reporter.contracts]
    assert len(found) == CONTRACTS_MAX
    assert found[-1] == "default"
    assert reporter.status().contracts_left_out == size + 1 - CONTRACTS_MAX


@pytest.mark.parametrize("size", sizes_around(HISTOGRAMS_AT_ONCE, VALUES_AT_ONCE))
def test_the_metrics_have_every_contract_once(size: int) -> None:
    text = b"".join(render(reporter_of(size))).decode()
    wanted = [*(f"c{number}" for number in range(size)), "default"]
    assert re.findall(r'^holdfast_published_total\{contract="(\w+)"\}', text, re.MULTILINE) == wanted
    assert re.findall(r'^holdfast_latency_seconds_count\{contract="(\w+)"\}', text, re.MULTILINE) == wanted


@given(
    lengths=st.lists(st.sampled_from([0, 1, 15, 16, 255, 256, 65_536, 300_000]), max_size=12),
    version=st.sampled_from([b"1.0", b"1.1"]),
)
@settings(max_examples=25, deadline=None)
def test_an_answer_in_any_pieces_arrives_whole(lengths: list[int], version: bytes) -> None:
    pieces = [bytes([number % 250]) * length for number, length in enumerate(lengths)]

    async def ask() -> bytes:
        loop = asyncio.get_running_loop()
        port = HttpPort(loop, {"/": lambda: Answer(HTTPStatus.OK, "text/plain", iter(pieces))})
        (address,) = await port.listen(LOOPBACK, 0)
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(b"GET / HTTP/%b\r\nHost: localhost\r\n\r\n" % version)
        found = await reader.read()
        writer.close()
        await port.close()
        return found

    head, _, body = asyncio.run(ask()).partition(b"\r\n\r\n")
    assert head.split(b" ")[1] == b"200"
    assert (b"".join(unchunked(body)) if version == b"1.1" else body) == b"".join(pieces)


def unchunked(body: bytes) -> Iterator[bytes]:
    while True:
        length, _, body = body.partition(b"\r\n")
        size = int(length, 16)
        yield body[:size]
        assert body[size : size + 2] == b"\r\n"
        body = body[size + 2 :]
        if not size:
            assert not body
            return
