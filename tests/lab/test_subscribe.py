"""The scenarios of FTRTES, as small as they can be: subscriptions, pushes and failovers."""

from pathlib import Path

import msgspec
import pytest

from holdfast.config import loads
from holdfast.errors import ConfigError
from holdfast.lab.model import Plan, Trial
from holdfast.lab.run import run_trial
from holdfast.lab.steady import Seen, judge
from holdfast.lab.store import Outcome
from holdfast.units import MS

PLAN = """
scenario = "{scenario}"
warm_up = "200ms"
measure = "{measure}"

[deployment]
failover = "500ms"
publisher_to_broker = "0ms"
broker_to_backup = "0.05ms"
broker_to_subscriber = {{ edge = "1ms" }}

[brokers]
count = {count}
heartbeat = "20ms"
silence = "300ms"
{way}

[load]
subscribers = {clients}
{depth}

[fault]
kind = "{fault}"
at = "50ms"

[[category]]
name = "pushed"
topics = ["plant/pushed/+"]
period = "100ms"
deadline = "100ms"
loss_tolerance = 0
retention = 6
destination = "edge"
count = 1
"""
TRAFFIC = """
[[category]]
name = "traffic"
topics = ["plant/traffic/+"]
period = "50ms"
deadline = "100ms"
loss_tolerance = "unlimited"
destination = "edge"
count = 50
"""


def run(
    folder: Path,
    scenario: str,
    *,
    count: int,
    measure: str = "600ms",
    clients: int = 1,
    depth: str = "",
    fault: str = "none",
    traffic: bool = False,
    way: str = "",
) -> Outcome:
    text = PLAN.format(
        scenario=scenario,
        measure=measure,
        count=count,
        clients=clients,
        depth=depth,
        fault=fault,
        way=way,
    )
    plan = loads(text + (TRAFFIC if traffic else ""), Plan)
    run_trial(Trial(experiment="ftrtes", number=1, labels={}, repetition=1, seed=1, plan=plan), folder)
    return msgspec.json.decode((folder / "outcome.json").read_bytes(), type=Outcome)


@pytest.mark.parametrize(
    ("count", "clients", "depth", "traffic"),
    [(1, 1, "", False), (2, 5, "depth = 2", True)],
    ids=["alone", "pair, many, with traffic"],
)
def test_subscriptions_connections_and_pushes_are_timed(
    count: int, clients: int, depth: str, traffic: bool, tmp_path: Path
) -> None:
    found = run(tmp_path, "subscribe", count=count, clients=clients, depth=depth, traffic=traffic)
    assert set(found.figures) == {"subscribe_ms", "connect_subscribe_ms", "push_ms"}
    for name, values in found.figures.items():
        assert len(values) >= 5, name
        assert all(0 < value < 5000 for value in values), name
    assert found.end_ns - found.begin_ns >= 600 * MS


def test_a_depth_of_two_waits_for_the_way_to_the_other_broker_and_back(tmp_path: Path) -> None:
    found = run(tmp_path, "subscribe", count=2, depth="depth = 2", way='way = "10ms"')
    assert min(found.figures["subscribe_ms"]) >= 19
    assert min(found.figures["push_ms"]) < 10


def test_a_depth_that_nobody_can_meet_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a subscriber waits for 3 members, the group has 2"):
        run(tmp_path, "subscribe", count=2, depth="depth = 3")
    assert not (tmp_path / "outcome.json").exists()


def test_crashes_are_repeated_and_nothing_is_lost(tmp_path: Path) -> None:
    found = run(tmp_path, "failover", count=2, measure="2s", fault="kill")
    crashes = len(found.figures["lost"])
    assert crashes >= 1
    assert found.figures["lost"] == [0.0] * crashes
    for name in ("first_latency_ms", "worst_latency_ms", "moved_ms"):
        assert len(found.figures[name]) == crashes
        assert all(0 < value < 5000 for value in found.figures[name]), name


def test_a_failover_is_judged_by_the_messages_around_it() -> None:
    """Every 100 ms one, 1 ms on its way; at the fault (250 ms) 2 is 70 ms late, 3 is 40 ms late, 4 lost."""
    made = {number: number * 100 * MS for number in range(20)}
    late_ms = {2: 70, 3: 40}
    arrived = {number: at_ns + (1 + late_ms.get(number, 0)) * MS for number, at_ns in made.items()}
    del arrived[4]
    seen = Seen(made, arrived, [255 * MS], [100 * MS, 260 * MS])
    found = judge(seen, 250 * MS, 100 * MS)
    assert found.first_latency_ms == 41
    assert found.worst_latency_ms == 71
    assert found.excess_ms == 60
    assert found.moved_ms == 10
    assert found.lost == 1
