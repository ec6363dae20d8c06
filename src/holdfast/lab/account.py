"""What a QoS 1 client lost in a crash: an account of every message that a trial recorded.

Laws:
- a message counts if it was made while measuring; it is lost if it was never given out, however late
- an arrival that its client took for a duplicate, or as too late for its order, was not given out
- one that no publisher says it got no PUBACK for counts as acknowledged
- the gap of a topic is the longest time between two arrivals, or until the end of measuring, that was not
  over when the fault happened
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.lab.store import RECEIVED, SENT, UNACKNOWLEDGED
from holdfast.units import MS

SEQUENCE_BITS = 32
Column = npt.NDArray[np.int64]


def account(folder: Path, begin_ns: int, end_ns: int, fault_ns: int | None) -> dict[str, list[float]]:
    """The figures of a trial whose records are in `folder`."""
    sent, received = _read(folder / "sent", SENT), _read(folder / "received", RECEIVED)
    counted = _keys(sent)[(sent["created_ns"] >= begin_ns) & (sent["created_ns"] < end_ns)]
    again = received["duplicate"] != 0
    given = {name: column[~again] for name, column in received.items()}
    lost = np.setdiff1d(counted, _keys(given))
    unacknowledged = _keys(_read(folder / "unacknowledged", UNACKNOWLEDGED))
    figures = {
        "counted": [float(len(counted))],
        "lost_acknowledged": [float(len(np.setdiff1d(lost, unacknowledged)))],
        "lost_unacknowledged": [float(len(np.intersect1d(lost, unacknowledged)))],
        "duplicate_arrivals": [float(np.count_nonzero(again))],
    }
    if fault_ns is not None:
        topics = np.unique(sent["topic"])
        figures["gap_ms"] = [gap / MS for gap in _gaps(topics, given, end_ns, fault_ns)]
    return figures


def _read(folder: Path, columns: dict[str, str]) -> dict[str, Column]:
    """All files of a folder; nothing if it is not there."""
    tables = [pq.read_table(path, columns=list(columns)) for path in sorted(folder.glob("*.parquet"))]
    if not tables:
        return {name: np.empty(0, np.int64) for name in columns}
    whole = pa.concat_tables(tables)
    return {name: whole[name].to_numpy().astype(np.int64) for name in columns}


def _keys(columns: dict[str, Column]) -> Column:
    """A number for each message."""
    return columns["topic"] << SEQUENCE_BITS | columns["sequence"]


def _gaps(topics: Column, given: dict[str, Column], end_ns: int, fault_ns: int) -> list[float]:
    """Of each topic, shortest first."""
    order = np.lexsort((given["arrived_ns"], given["topic"]))
    numbers, arrived = given["topic"][order], given["arrived_ns"][order]
    gaps = []
    for topic in topics:
        first, last = np.searchsorted(numbers, [topic, topic + 1])
        times = arrived[first:last]
        since = times[: np.searchsorted(times, fault_ns)]
        # From the last arrival before the fault on, to whatever came later, and to the end.
        later = times[max(0, len(since) - 1) :]
        ends = np.append(later[later <= end_ns], end_ns)
        gaps.append(float(np.diff(ends).max()) if len(ends) > 1 else float(end_ns - fault_ns))
    return sorted(gaps)
