"""Trials on a cluster come back whole."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import msgspec
import pytest

from holdfast.lab import cluster
from holdfast.lab.cluster import executor_cores, run_and_pack, run_on_cluster
from holdfast.lab.model import Trial
from holdfast.lab.store import Failure, TrialFolder
from lab.records import trial


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """Three trials on one executor: the second fails, the third records too much."""
    results = tmp_path_factory.mktemp("results")
    told: list[int] = []
    too_much = cluster.TRIAL_BYTES_MAX + 1

    def stub(trial: Trial, folder: Path) -> None:
        if trial.number == 2:
            raise ValueError("the broker did not start")
        (folder / "sent").mkdir()
        (folder / "sent" / "0.parquet").write_bytes(b"rows" * 5_000_000)
        (folder / "outcome.json").write_text(f"outcome of {trial.number}")
        if trial.number == 3:
            with (folder / "sparse").open("wb") as file:
                file.truncate(too_much)

    def done(trial: Trial) -> None:
        assert TrialFolder(results, trial.number).path.is_dir()
        told.append(trial.number)

    run_on_cluster([trial(number) for number in (1, 2, 3)], results, "local[1]", done=done, run=stub)
    return results, told


def failure(results: Path, number: int) -> Failure:
    folder = TrialFolder(results, number)
    assert not folder.complete
    return msgspec.json.decode((folder.path / "failed.json").read_bytes(), type=Failure)


def test_the_files_of_a_trial_come_back_whole(ran: tuple[Path, list[int]]) -> None:
    results, told = ran
    folder = TrialFolder(results, 1)
    assert (folder.path / "outcome.json").read_text() == "outcome of 1"
    assert (folder.path / "sent" / "0.parquet").read_bytes() == b"rows" * 5_000_000
    assert sorted(told) == [1, 2, 3]
    assert [path.name for path in results.iterdir()] == ["trials"]


def test_a_trial_that_fails_is_named_and_stops_no_other(ran: tuple[Path, list[int]]) -> None:
    found = failure(ran[0], 2)
    assert (found.number, found.error) == (2, "ValueError: the broker did not start")
    assert "stub" in found.trace


def test_a_trial_that_is_too_large_to_send_back_says_so(ran: tuple[Path, list[int]]) -> None:
    assert "more than the 1,073,741,824 that can be sent back" in failure(ran[0], 3).error


def test_nothing_of_a_trial_stays_on_its_machine(ran: tuple[Path, list[int]]) -> None:
    assert list(Path(tempfile.gettempdir()).glob("holdfast-on-cluster-*")) == []


@pytest.mark.parametrize(
    ("master", "cores"),
    [("local", 1), ("local[3]", 3), ("local[4,1]", 4), ("local-cluster[2,6,1024]", 6)],
)
def test_a_trial_takes_all_cores_of_its_executor(master: str, cores: int) -> None:
    assert executor_cores(master) == cores


def test_elsewhere_machines_are_taken_to_be_like_this_one() -> None:
    assert executor_cores("spark://there:7077") == executor_cores("local[*]") == os.cpu_count()


def test_a_machine_runs_one_trial_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "LOCK", tmp_path / "lock")
    monkeypatch.setattr(cluster, "LOCK_S_MAX", 0)
    encoded = msgspec.json.encode(trial(1))
    ran: list[int] = []

    def during(_: Trial, folder: Path) -> None:
        ran.append(1)
        (folder / "other.tar").write_bytes(b"".join(run_and_pack(encoded, lambda *_: ran.append(2))))

    packed = b"".join(run_and_pack(encoded, during))
    assert ran == [1]
    assert b"another trial has held this machine" in packed
    assert b"".join(run_and_pack(encoded, lambda *_: ran.append(3)))
    assert ran == [1, 3]
