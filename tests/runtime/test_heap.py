"""Memory that was freed goes back to the system when a broker is idle, once in a while."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from holdfast.broker.broker import Broker
from holdfast.contract.model import ContractBook
from holdfast.runtime import heap, server
from holdfast.runtime.server import FREE_BYTES_MAX, Server

MIB = 2**20


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_what_was_freed_below_what_is_used_goes_back() -> None:
    """Of blocks that lie in the heap in every process: a server that ran here keeps larger ones apart."""
    blocks = [bytes(heap.LARGE_BYTES // 2) for _ in range(7500)]
    pins = blocks[::50]
    before = resident()
    blocks.clear()
    assert heap.free_bytes() > 80 * MIB
    heap.give_back()
    assert before - resident() > 80 * MIB
    assert len(pins) == 150


@pytest.mark.parametrize("free", [FREE_BYTES_MAX - 1, FREE_BYTES_MAX, FREE_BYTES_MAX + 1])
def test_an_idle_broker_gives_back_what_is_much_and_no_more_often_than_it_may(
    free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []
    clock = [1000.0]
    monkeypatch.setattr(server, "free_bytes", lambda: free)
    monkeypatch.setattr(server, "give_back", lambda: given.append(clock[0]))

    async def idle() -> None:
        loop = asyncio.get_running_loop()
        broker = Broker(ContractBook(), seed=1, now_ns=0)
        made = Server(broker, loop)
        monkeypatch.setattr(loop, "time", lambda: clock[0], raising=False)
        for _ in range(40):
            made._worked = len(given) == 2
            made._tidier.cancel()
            made._tidy_when_idle()
            clock[0] += server.IDLE_S
        made._tidier.cancel()
        await made.close()

    asyncio.run(idle())
    if free <= FREE_BYTES_MAX:
        assert not given
    else:
        assert len(given) == 2
        assert given[1] - given[0] >= server.GIVEN_BACK_EVERY_S


def test_large_blocks_go_back_to_the_system_though_small_ones_lie_between_them() -> None:
    """In a process of its own: what is set holds for all of it."""
    code = """
import ctypes, os
from holdfast.runtime.heap import LARGE_BYTES, keep_large_blocks_apart
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
if APART:
    keep_large_blocks_apart()
before, large = resident(), []
for _ in range(2000):
    block = libc.malloc(LARGE_BYTES)
    ctypes.memset(block, 1, LARGE_BYTES)
    large.append(block)
    libc.malloc(64)
for block in large:
    libc.free(block)
print(resident() - before)
"""
    left = [
        int(subprocess.check_output([sys.executable, "-c", code.replace("APART", apart)]))
        for apart in ("True", "False")
    ]
    assert left[0] < 8 * 2**20 < left[1], "what is not kept apart stays"
