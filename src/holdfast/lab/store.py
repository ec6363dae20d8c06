"""Where an experiment leaves what it found: the columns of its records, and the files of a trial.

results/NAME/
    experiment.json         the experiment, its trials, the machine, the commit, the seed
    trials/0001/trial.json  the trial
                topics.parquet    TOPICS, one row for each topic
                sent/*.parquet    SENT, one row for each message published, a file for each process
                received/*.parquet  RECEIVED, one row for each arrival
                unacknowledged/*.parquet  UNACKNOWLEDGED, what an ordinary publisher got no PUBACK for
                failed.json       Failure, of a trial that failed
                outcome.json      Outcome; written last, so a trial that has one is complete

Times are CLOCK_REALTIME nanoseconds: all processes of a trial are on one machine.
"""

from __future__ import annotations

import traceback
from pathlib import Path

import msgspec

from holdfast.errors import HoldfastError
from holdfast.lab.model import Trial

# Column -> Arrow type. A loss tolerance of -1 is unlimited, a period of 0 is none.
TOPICS = {
    "topic": "int32", "name": "string", "category": "string", "period_ns": "int64", "deadline_ns": "int64",
    "loss_tolerance": "int32", "retention": "int32",
}  # fmt: skip
SENT = {"topic": "int32", "sequence": "int64", "created_ns": "int64"}
UNACKNOWLEDGED = {"topic": "int32", "sequence": "int64"}
RECEIVED = {
    "topic": "int32", "sequence": "int64", "created_ns": "int64", "arrived_ns": "int64", "duplicate": "bool",
}  # fmt: skip


class CpuSample(msgspec.Struct, frozen=True, kw_only=True):
    """What one process used while measuring, in seconds of CPU, by thread name where it has several."""

    role: str
    process: str
    seconds: dict[str, float]
    wall_s: float


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a trial says besides its records. Messages created within [begin_ns, end_ns) count.

    `redispatched` is how many messages the new primary dispatched again; `unsent` how many a publisher never
    wrote.
    """

    begin_ns: int
    end_ns: int
    fault_ns: int | None = None
    redispatched: int | None = None
    unsent: int = 0
    cpu: list[CpuSample] = []
    figures: dict[str, list[float]] = {}
    """Anything else that the scenario measured, by name: SUBACK times, gaps."""
    notes: list[str] = []


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """failed.json of a trial: the error in a line, and where it came from."""

    number: int
    labels: dict[str, str]
    error: str
    trace: str

    @classmethod
    def of(cls, trial: Trial, error: Exception) -> Failure:
        said = str(error) if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
        trace = "".join(traceback.format_exception(error))
        return cls(number=trial.number, labels=trial.labels, error=said, trace=trace)


class TrialFolder:
    """One trial's files."""

    def __init__(self, results: Path, number: int) -> None:
        self.path = results / "trials" / f"{number:04}"

    @property
    def complete(self) -> bool:
        return (self.path / "outcome.json").exists()

    def outcome(self) -> Outcome:
        return msgspec.json.decode((self.path / "outcome.json").read_bytes(), type=Outcome)
