"""The flow of ordinary QoS 1 clients through a crash, and the account of what they lost."""

import asyncio
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.config import loads
from holdfast.errors import ConfigError
from holdfast.lab.account import account
from holdfast.lab.load.jobs import Subscribed, SubscribeJob
from holdfast.lab.load.ordinary import BODY
from holdfast.lab.load.peering import OrdinarySubscribing
from holdfast.lab.model import Plan, Trial
from holdfast.lab.run import run_trial
from holdfast.lab.store import RECEIVED, SENT, UNACKNOWLEDGED, Outcome
from holdfast.units import MS, S

PLAN = """
warm_up = "300ms"
measure = "1500ms"

[deployment]
failover = "500ms"
publisher_to_broker = "0ms"
broker_to_backup = "0.05ms"
broker_to_subscriber = {{ edge = "1ms" }}

[brokers]
system = "{system}"
count = {count}
heartbeat = "20ms"
silence = "300ms"

[load]
client = "{client}"
publish_qos = {qos}
subscribe_qos = {qos}

[fault]
kind = "kill"
at = "500ms"
{more}

[[category]]
name = "2"
topics = ["plant/cat2/+"]
period = "50ms"
deadline = "700ms"
loss_tolerance = 0
retention = 12
destination = "edge"
count = 20
per_proxy = 10
"""


def plan(system: str, count: int, *, client: str = "ordinary", qos: int = 1, more: str = "") -> Plan:
    return loads(PLAN.format(system=system, count=count, client=client, qos=qos, more=more), Plan)


def outcome_of(plan: Plan, folder: Path) -> Outcome:
    run_trial(Trial(experiment="peers", number=1, labels={}, repetition=1, seed=1, plan=plan), folder)
    return msgspec.json.decode((folder / "outcome.json").read_bytes(), type=Outcome)


@pytest.mark.parametrize(
    ("system", "count", "more"),
    [("mosquitto", 2, ""), ("nats", 1, 'for = "200ms"'), ("holdfast", 2, "")],
    ids=["mosquitto", "nats", "holdfast"],
)
def test_ordinary_clients_outlive_a_crash_and_everything_is_accounted_for(
    system: str, count: int, more: str, tmp_path: Path
) -> None:
    outcome = outcome_of(plan(system, count, more=more), tmp_path)
    figures = outcome.figures
    assert figures["sent"][0] > figures["counted"][0] > 400
    assert figures["lost_unacknowledged"] == [0.0]
    if system != "mosquitto":  # the other of a bridged pair knows nobody's subscriptions
        assert figures["lost_acknowledged"] == [0.0]
    assert len(figures["gap_ms"]) == 20
    assert min(figures["gap_ms"]) >= 49
    assert len(outcome.figures["redirect_ms"]) == 3
    assert {each.role for each in outcome.cpu} >= {"primary", "publishers", "subscribers"}


def test_nats_wants_ordinary_clients_and_those_want_qos_1() -> None:
    with pytest.raises(ConfigError, match=r"MQTT 3\.1\.1"):
        plan("nats", 1, client="holdfast")
    with pytest.raises(ConfigError, match="QoS 1"):
        plan("mosquitto", 2, qos=0)


def write(folder: Path, name: str, columns: dict[str, str], rows: list[tuple[int, ...]]) -> None:
    (folder / name).mkdir()
    schema = pa.schema([(each, pa.type_for_alias(kind)) for each, kind in columns.items()])
    content = {each: [row[place] for row in rows] for place, each in enumerate(columns)}
    pq.write_table(pa.table(content, schema=schema), folder / name / "0.parquet")


def test_a_message_that_comes_again_is_written_down_as_a_duplicate(tmp_path: Path) -> None:
    async def work() -> Subscribed:
        worker = OrdinarySubscribing(SubscribeJob("s", str(tmp_path), (), 1, ordinary=True))
        take = worker.taker()
        for topic, sequence in ((1, 1), (2, 1), (1, 2), (1, 1)):
            take(BODY.pack(topic, sequence, 7) + b"rest", 9)
        found = await worker.drain(0.0, 1.0)
        await worker.write()
        return found

    assert asyncio.run(work()).duplicates == 1
    table = pq.read_table(tmp_path / "s.parquet").to_pydict()
    assert table == {
        "topic": [1, 2, 1, 1],
        "sequence": [1, 1, 2, 1],
        "created_ns": [7] * 4,
        "arrived_ns": [9] * 4,
        "duplicate": [False, False, False, True],
    }


def test_the_account(tmp_path: Path) -> None:
    """Two topics, a message every 100 ms; the fault is at 350 ms."""
    write(
        tmp_path,
        "sent",
        SENT,
        [(topic, number, number * 100 * MS) for topic in (0, 1) for number in range(10)],
    )
    came = [(0, number, False) for number in (0, 1, 2, 3, 6, 7, 8, 9)] + [(1, 0, False), (1, 1, False)]
    came += [(0, 3, True), (1, 5, True)]  # the second is too late for its order: it was never given out
    write(
        tmp_path,
        "received",
        RECEIVED,
        [(topic, number, number * 100 * MS, number * 100 * MS + MS, again) for topic, number, again in came],
    )
    write(tmp_path, "unacknowledged", UNACKNOWLEDGED, [(0, 4), (0, 9)])
    assert account(tmp_path, 100 * MS, S, 350 * MS) == {
        "counted": [18.0],
        "lost_acknowledged": [9.0],
        "lost_unacknowledged": [1.0],
        "duplicate_arrivals": [2.0],
        "gap_ms": [300.0, 899.0],
    }
    assert "gap_ms" not in account(tmp_path, 0, S, None)
