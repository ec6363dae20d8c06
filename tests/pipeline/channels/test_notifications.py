"""From rows to payloads: grouped, sorted, in order, and never larger than a broker takes."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.pipeline.channels import notifications as module
from holdfast.pipeline.channels.notifications import notifications
from holdfast.pipeline.results import FOUND

AT_NS = 1_767_225_600_250_000_000


def table(rows: list[tuple[str, str]], pieces: int = 1) -> pa.Table:
    schema = pa.schema([("subscription", pa.string()), ("row", pa.string())])
    step = max(1, len(rows) // pieces)
    batches = [
        pa.record_batch(
            [pa.array(column) for column in zip(*rows[at : at + step], strict=True)], schema=schema
        )
        for at in range(0, len(rows), step)
    ]
    return pa.Table.from_batches(batches, schema)


@given(
    st.lists(st.tuples(st.text(max_size=5), st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)))
)
def test_each_subscription_has_its_rows_in_order(rows: list[tuple[str, dict[str, int]]]) -> None:
    found = table([(name, json.dumps(row)) for name, row in rows], pieces=3)
    made = notifications(found, "near", 7, AT_NS)
    assert made.schema == FOUND
    names, payloads = (column.to_pylist() for column in made.columns)
    assert [name.encode() for name in names] == sorted({name.encode() for name, _ in rows})
    for name, payload in zip(names, payloads, strict=True):
        assert json.loads(payload) == {
            "channel": "near",
            "execution": 7,
            "at": "2026-01-01T00:00:00.250Z",
            "rows": [row for other, row in rows if other == name],
        }


def test_what_a_broker_would_not_take_is_cut_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAYLOAD_BYTES_MAX", 20)
    rows = [("many", f'{{"n":{number}}}') for number in range(10)] + [("few", '{"n":1}')]
    payloads = [json.loads(each) for each in notifications(table(rows), "c", 1, AT_NS)["payload"].to_pylist()]
    few, many = payloads
    assert "left_out" not in few
    assert (many["rows"], many["left_out"]) == ([{"n": 0}, {"n": 1}], 8)
