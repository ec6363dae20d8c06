"""From rows to notifications: one payload for each subscription that an execution found something for.

Laws:
- a payload is {"channel", "execution", "at", "rows"}, rows as objects in the order of the query
- subscriptions rise, and each is there once
- a payload has at most PAYLOAD_BYTES_MAX bytes of rows: what does not fit is left out from the end, and
  "left_out" says how many rows that were
- all in columns: nothing is done in Python for a row, and only for a subscription that is cut
"""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.results import FOUND
from holdfast.units import S

# Well below what a broker takes in one packet by default.
PAYLOAD_BYTES_MAX = 4 * 2**20


def notifications(found: pa.Table, channel: str, execution: int, at_ns: int) -> pa.Table:
    """`found` has `subscription` and `row`, the row as JSON text; the result has the columns of FOUND."""
    if found.num_rows == 0:
        return FOUND.empty_table()
    order = pc.sort_indices(found.column("subscription"))
    runs = pc.run_end_encode(found.column("subscription").take(order).combine_chunks())
    rows = found.column("row").take(order).combine_chunks()
    begins = pa.concat_arrays([pa.array([0], pa.int32()), runs.run_ends])
    joined, closing = _joined(rows, begins)
    opening = _opening(channel, execution, at_ns)
    payload = pc.binary_join_element_wise(opening, joined, closing, "")
    return pa.table([runs.values, payload.cast(pa.binary())], schema=FOUND)


def _opening(channel: str, execution: int, at_ns: int) -> str:
    at = datetime.fromtimestamp(at_ns / S, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return f'{{"channel":{json.dumps(channel)},"execution":{execution},"at":"{at}","rows":['


def _joined(rows: pa.Array, begins: pa.Array) -> tuple[pa.Array, pa.Array | str]:
    """The rows of each subscription with commas between, and what closes each payload."""
    joined = pc.binary_join(pa.ListArray.from_arrays(begins, rows), ",")
    lengths = pc.binary_length(joined)
    if pc.max(lengths).as_py() <= PAYLOAD_BYTES_MAX:
        return joined, "]}"
    texts, closings = joined.to_pylist(), ["]}"] * len(joined)
    for number in pc.indices_nonzero(pc.greater(lengths, PAYLOAD_BYTES_MAX)).to_pylist():
        own = rows.slice(begins[number].as_py(), begins[number + 1].as_py() - begins[number].as_py())
        texts[number], left_out = _cut(own.to_pylist())
        closings[number] = f'],"left_out":{left_out}}}'
    return pa.array(texts, pa.string()), pa.array(closings, pa.string())


def _cut(rows: list[str]) -> tuple[str, int]:
    """As many rows from the first on as fit, and how many do not."""
    size = 0
    for number, row in enumerate(rows):
        size += len(row.encode()) + 1
        if size > PAYLOAD_BYTES_MAX + 1:
            return ",".join(rows[:number]), len(rows) - number
    return ",".join(rows), 0
