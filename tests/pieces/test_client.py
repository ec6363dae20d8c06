"""What a client publishes in parts. (Bytes that come in pieces: tests/endpoint/test_protocol.py.)"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.pieces.sizes import sizes_around

from holdfast.client.client import BATCH_MAX, Client
from holdfast.endpoint import Outgoing


class Parts(Client):
    """Without a broker: the number in a payload is its answer."""

    def __init__(self) -> None:
        self.parts: list[list[Outgoing]] = []

    async def _publish(self, batch: list[Outgoing], stamp: bool) -> Any:
        self.parts.append(batch)
        return list(batch)

    async def _answer(self, batch: list[Outgoing], ticket: Any) -> list[int]:
        assert batch == ticket
        return [int(message.payload) for message in batch]


@pytest.mark.parametrize("size", sizes_around(BATCH_MAX))
@pytest.mark.parametrize("listed", [True, False])
def test_every_message_is_published_once_and_has_its_own_answer(size: int, listed: bool) -> None:
    client = Parts()
    messages = [Outgoing("t", b"%d" % number, 1, False, None) for number in range(size)]
    answers = asyncio.run(client.publish_many(messages if listed else iter(messages)))
    assert answers == list(range(size))
    assert [message for part in client.parts for message in part] == messages
    assert all(len(part) <= BATCH_MAX for part in client.parts)
