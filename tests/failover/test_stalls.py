"""Real brokers that are stopped for a while and go on: the short twin of `make stalls`."""

import random
import re
import signal
import time
from pathlib import Path

import pytest
from benchmarks.stalls import PATIENT, account, served, stall, stop_again

from holdfast.contract.file import load_contracts
from holdfast.lab.group import Settings, running_group
from holdfast.lab.steady import Seen

DERIVED = Settings(heartbeat="10ms", silence="")
STOPS = 5


@pytest.fixture
def contracts(tmp_path: Path) -> Path:
    """What bears a busy test machine, too: 387 ms of silence at most, 100 ms at first."""
    path = tmp_path / "patient.toml"
    path.write_text(PATIENT.replace('"100ms"', '"400ms"').replace('"150ms"', '"800ms"'))
    return path


@pytest.mark.parametrize("who", ["primary", "heir"])
def test_stops_that_contracts_bear_move_nobody(contracts: Path, who: str) -> None:
    """On a machine that is busy besides one of them may look longer than it is."""
    found = stall(contracts, "patient", who, STOPS, DERIVED)
    assert found.takeovers <= (1 if who == "primary" else 0)
    assert (found.late, found.lost) == (0, 0)
    assert found.messages > 2 * STOPS


def test_with_a_fixed_silence_each_of_them_does(contracts: Path) -> None:
    with running_group(2, contracts, Settings(heartbeat="10ms", silence="30ms")) as group:
        before = served(group)
        stop_again(group, "primary", STOPS, random.Random(1))
        assert served(group) - before >= STOPS - 2


def test_one_that_is_too_long_is_told_with_how_long_it_was(contracts: Path) -> None:
    with running_group(2, contracts, DERIVED) as group:
        note = group.await_protected()
        heir = group.members[note.places[1].name]
        group.signal(note.teller, signal.SIGSTOP)
        began = time.monotonic()
        group.await_state(lambda: bool(heir.said("serving")), "taking over")
        group.signal(note.teller, signal.SIGCONT)
        stopped_ms = (time.monotonic() - began) * 1000
        group.await_state(lambda: bool(heir.said("primary was alive")), "hearing of it")
        (line,) = heir.said("primary was alive")
        (stood_ms,) = re.findall(r"stood_still_ms=([\d.]+)", line)
        assert 50 < float(stood_ms) < stopped_ms + 200
        group.await_protected()


def test_what_is_late_and_lost_is_counted(contracts: Path) -> None:
    (contract,) = load_contracts(contracts).contracts
    made = {number: number * 1000 for number in range(4)}
    arrived = {0: contract.deadline_ns, 1: 1000 + contract.deadline_ns + 1, 3: 3001}
    found = account("primary", contract, 1, 0, [], Seen(made=made, arrived=arrived))
    assert (found.messages, found.late, found.lost, found.in_time) == (4, 1, 1, 0.5)
