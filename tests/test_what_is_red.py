"""What /status says survives JSON, and what is red is decided in one place."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.status import (
    BOUNDS_NS,
    RECENT_NS,
    BrokerStatus,
    ChannelStatus,
    ContractStatus,
    Histogram,
    LinkStatus,
    PipelineStatus,
    Promise,
    Queues,
    Reckoning,
    Traffic,
    Usage,
    about_ns,
    decode_status,
    encode_status,
    quantile_ns,
    troubles,
)
from holdfast.units import MS, S

NOW_NS = 1_700_000_000 * S
EMPTY = Histogram(counts=[0] * (len(BOUNDS_NS) + 1))


def contract(**more: object) -> ContractStatus:
    promise = Promise(
        deadline_ns=50 * MS,
        loss_tolerance=2,
        retention=1,
        period_ns=None,
        destination="edge",
        to_subscriber_ns=MS,
    )
    return ContractStatus(name="emergency", topics=["plant/+"], promise=promise, latency=EMPTY, **more)  # type: ignore[arg-type]


def broker(**more: object) -> BrokerStatus:
    fields: dict[str, object] = {
        "version": "0",
        "name": "a",
        "pid": 1,
        "started_at_ns": NOW_NS - S,
        "at_ns": NOW_NS,
        "uptime_ns": S,
        "role": "primary",
        "heirs": ["b"],
        "ready": True,
        "ready_why": "it serves",
        "policy": "edf",
        "connections": 0,
        "sessions": 0,
        "subscriptions": 0,
        "topics": 0,
        "reckoning": Reckoning(
            failover_ns=50 * MS,
            failover_last_ns=None,
            failover_max_ns=None,
            publisher_to_broker_ns=0,
            broker_to_backup_ns=0,
            broker_to_backup_measured_ns=None,
        ),
        "traffic": Traffic(**dict.fromkeys(Traffic.__struct_fields__, 0)),
        "queues": Queues(**dict.fromkeys(Queues.__struct_fields__, 0)),
        "usage": Usage(**{**dict.fromkeys(Usage.__struct_fields__, 0), "processor": "", "locked": ""}),
        "slices": EMPTY,
    }
    return BrokerStatus(**{**fields, **more})  # type: ignore[arg-type]


def pipeline(**more: object) -> PipelineStatus:
    numbers = [name for name, kind in PipelineStatus.__annotations__.items() if kind == "int"]
    fields: dict[str, object] = {
        **dict.fromkeys(numbers, 0),
        "version": "0",
        "at_ns": NOW_NS,
        "state": "running",
        "ready": True,
        "ready_why": "it runs",
        "brokers": "127.0.0.1:1883",
        "brokers_connected": True,
    }
    return PipelineStatus(**{**fields, **more})  # type: ignore[arg-type]


def red(status: BrokerStatus | PipelineStatus) -> list[str]:
    return [each.about for each in troubles(status) if each.severity == "broken"]


@pytest.mark.parametrize(
    "status", [broker(contracts=[contract(late=3)]), pipeline()], ids=["broker", "pipeline"]
)
def test_json_brings_back_what_it_was_made_of(status: BrokerStatus | PipelineStatus) -> None:
    assert decode_status(encode_status(status)) == status


def test_a_field_of_a_newer_version_is_passed_over() -> None:
    document = {**msgspec.to_builtins(broker()), "tomorrow": 1}
    assert decode_status(msgspec.json.encode(document)) == broker()


def test_what_is_well_has_no_troubles() -> None:
    well = broker(contracts=[contract(published=5, delivered=5)], links=[])
    assert troubles(well) == []
    assert troubles(pipeline()) == []


def test_a_late_message_is_red_for_a_minute() -> None:
    late = {"late": 1, "delivered": 9}
    assert red(broker(contracts=[contract(**late, late_last_at_ns=NOW_NS - RECENT_NS)])) == ["emergency"]
    old = broker(contracts=[contract(**late, late_last_at_ns=NOW_NS - RECENT_NS - 1)])
    assert red(old) == []
    assert [each.words for each in troubles(old)] == ["1 of 9 came later than 50ms, the last 1min ago"]


def test_losses_are_red_beyond_the_tolerance_only() -> None:
    assert troubles(broker(contracts=[contract(lost=2, loss_run_max=2, lost_last_at_ns=NOW_NS)])) == []
    broken = contract(lost=3, loss_run_max=3, lost_last_at_ns=NOW_NS, broken_last_at_ns=NOW_NS)
    assert [each.words for each in troubles(broker(contracts=[broken]))] == [
        "3 in a row were lost, 2 are tolerated, just now"
    ]


def test_a_broker_that_does_not_serve_is_red_and_one_without_protection_warns() -> None:
    assert red(broker(ready=False, ready_why="it looks for a primary")) == [""]
    alone = troubles(broker(heirs=[], links=[LinkStatus(member="b", address="h:1", health="down")]))
    assert [each.severity for each in alone] == ["warning", "warning"]


def test_a_channel_is_red_while_its_last_execution_failed() -> None:
    def channel(error_at_ns: int) -> ChannelStatus:
        return ChannelStatus(
            name="near",
            period_ns=S,
            subscribers=1,
            last_run_at_ns=10,
            last_error="no",
            last_error_at_ns=error_at_ns,
        )

    assert red(pipeline(channels=[channel(11)])) == ["near"]
    assert red(pipeline(channels=[channel(9)])) == []


@given(st.lists(st.integers(1, 10 * S), min_size=1, max_size=200), st.floats(0.01, 1))
def test_a_quantile_is_in_the_bucket_of_the_value_it_stands_for(values_ns: list[int], share: float) -> None:
    counts = [0] * (len(BOUNDS_NS) + 1)
    for value_ns in values_ns:
        counts[sum(bound < value_ns for bound in BOUNDS_NS)] += 1
    found_ns = quantile_ns(Histogram(counts=counts), share)
    at_rank_ns = sorted(values_ns)[max(1, -(-round(share * len(values_ns) * 10**9) // 10**9)) - 1]
    index = sum(bound < at_rank_ns for bound in BOUNDS_NS)
    assert found_ns is not None
    assert (BOUNDS_NS[index - 1] if index else 0) <= found_ns <= BOUNDS_NS[index]


def test_nothing_has_no_quantile() -> None:
    assert quantile_ns(EMPTY, 0.5) is None


@pytest.mark.parametrize(
    ("ns", "words"), [(0, "0ns"), (1_234_567, "1.23ms"), (90 * S, "1.5min"), (7200 * S, "2h")]
)
def test_durations_for_people_have_few_digits(ns: int, words: str) -> None:
    assert about_ns(ns) == words
