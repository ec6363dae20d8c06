"""Executions on real datasets: what they cover, what fails and whom that concerns, what changes under way."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import ConfigError
from holdfast.pipeline.channels import frames
from holdfast.pipeline.channels.execution import Failed
from holdfast.pipeline.channels.service import Channels
from holdfast.pipeline.declared import parse_pipeline
from holdfast.units import S
from pipeline.channels.stage import Stage, spark

DATASETS = """
[[feed]]
name = "incidents"
topics = ["incidents/#"]

[[dataset]]
name = "emergencies"
feed = "incidents"
schema = { id = "string", kind = "string", severity = "int" }

[[dataset]]
name = "advice"
feed = "incidents"
schema = { kind = "string", text = "string" }
"""
KINDS = """
[[channel]]
name = "kinds"
parameters = { kind = "string" }
new = ["emergencies"]
query = '''
SELECT s.subscription, e.id FROM subscriptions s JOIN new_emergencies e USING (kind) ORDER BY e.id DESC
'''
"""
ADVISED = """
[[channel]]
name = "advised"
parameters = { kind = "string", least = "bigint" }
new = ["emergencies"]
query = '''
SELECT s.subscription, e.id, a.text
FROM subscriptions s JOIN new_emergencies e ON e.kind = s.kind AND e.severity >= s.least
LEFT JOIN advice a ON a.kind = e.kind
'''
"""
ZERO = """
[[channel]]
name = "zero"
period = "10s"
new = ["emergencies"]
query = "SELECT s.subscription, 1 / e.severity AS part FROM subscriptions s CROSS JOIN new_emergencies e"
"""
FOREVER = """
[[channel]]
name = "forever"
time_limit = "1s"
query = '''
SELECT s.subscription, sum(a.id * b.id % 7) AS n
FROM subscriptions s, range(30000) a, range(30000000) b GROUP BY 1
'''
"""
WHOLE = """
[[channel]]
name = "whole"
query = "SELECT s.subscription, count(e.id) AS n FROM subscriptions s CROSS JOIN emergencies e GROUP BY 1"
"""


def emergency(number: int, kind: str = "fire", severity: int | None = 1) -> dict[str, object]:
    return {"id": f"e{number}", "kind": kind, "severity": severity}


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path, DATASETS + KINDS + ADVISED + ZERO + FOREVER + WHOLE)
    made.channels.check()
    for name, subscriptions in {
        "kinds": ["fire", "flood"],
        "advised": ["fire/2", "it%27s%20%22odd%22%0A/0", "unfit"],
        "zero": [""],
        "forever": [""],
        "whole": [""],
    }.items():
        made.told.tell(name, subscriptions)
    yield made
    made.close()


def jobs() -> int:
    """How many jobs Spark has run until now."""
    context = spark().sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    return int(context.statusStore().jobsList(None).size())


def test_executions_cover_each_new_row_once(stage: Stage) -> None:
    assert stage.execute("kinds") == {}
    stage.add({"emergencies": [emergency(1), emergency(2), emergency(3, "flood"), emergency(4, "storm")]})
    assert stage.execute("kinds") == {"fire": [{"id": "e2"}, {"id": "e1"}], "flood": [{"id": "e3"}]}
    mark = stage.results.mark("kinds")
    assert stage.execute("kinds") == {}
    assert stage.results.mark("kinds") == mark, "nothing was new, and nothing was committed"
    stage.add({"emergencies": [emergency(5)]})
    stage.add({"advice": [{"kind": "fire", "text": "run"}]})
    stage.add({"emergencies": [emergency(6)]})
    assert stage.execute("kinds") == {"fire": [{"id": "e6"}, {"id": "e5"}]}
    assert stage.results.mark("kinds") == (mark[0] + 1, stage.manifest.version)
    last = stage.results.executions("kinds", 1)[0]
    assert (last.after, last.upto, last.rows) == (mark[1], mark[1] + 3, 2)


def test_large_new_rows_are_read_by_spark_and_are_the_same(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.add({"emergencies": [emergency(1), emergency(2)]})
    stage.add({"emergencies": [emergency(3, "flood")]})
    monkeypatch.setattr(frames, "LOCAL_ROWS_MAX", 2)
    assert stage.execute("kinds") == {"fire": [{"id": "e2"}, {"id": "e1"}], "flood": [{"id": "e3"}]}


@pytest.mark.parametrize("local_rows_max", [frames.LOCAL_ROWS_MAX, 0])
def test_compaction_makes_nothing_new_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, local_rows_max: int
) -> None:
    monkeypatch.setattr(frames, "LOCAL_ROWS_MAX", local_rows_max)
    stage.add({"emergencies": [emergency(1)]})
    assert stage.execute("kinds") == {"fire": [{"id": "e1"}]}
    stage.add({"emergencies": [emergency(2)]})
    stage.compact("emergencies")
    assert stage.execute("kinds") == {"fire": [{"id": "e2"}]}
    stage.compact("emergencies")
    assert stage.execute("kinds") == {}


def test_typed_parameters_other_datasets_and_nulls_join(stage: Stage) -> None:
    odd = 'it\'s "odd"\n'
    stage.add(
        {
            "emergencies": [
                emergency(1),
                emergency(2, severity=2),
                emergency(3, odd, 0),
                emergency(4, severity=None),
            ]
        }
    )
    stage.add({"advice": [{"kind": odd, "text": "wait"}]})
    assert stage.execute("advised") == {
        "fire/2": [{"id": "e2", "text": None}],
        "it%27s%20%22odd%22%0A/0": [{"id": "e3", "text": "wait"}],
    }
    assert stage.channels.tally("advised").unfit == 1


def test_without_new_inputs_whole_datasets_count_every_time(stage: Stage) -> None:
    assert stage.execute("whole") == {}
    stage.add({"emergencies": [emergency(1), emergency(2)]})
    assert stage.execute("whole") == stage.execute("whole") == {"": [{"n": 2}]}


def test_with_nobody_subscribed_no_job_runs_and_old_rows_are_over(stage: Stage) -> None:
    stage.told.tell("kinds", [])
    stage.add({"emergencies": [emergency(1)]})
    before = jobs()
    assert stage.execute("kinds") == {}
    assert jobs() == before
    stage.told.tell("kinds", ["fire"])
    stage.add({"emergencies": [emergency(2)]})
    assert stage.execute("kinds") == {"fire": [{"id": "e2"}]}


def test_the_jobs_of_an_execution_do_not_grow_with_subscriptions(stage: Stage) -> None:
    counts = []
    for size in (1, 3000):
        stage.told.tell("advised", ["fire/1", *(f"k{number}/1" for number in range(size))])
        stage.add({"emergencies": [emergency(1)]})
        stage.execute("advised")  # Makes segments.
        stage.add({"emergencies": [emergency(2)]})
        before = jobs()
        assert stage.execute("advised") == {"fire/1": [{"id": "e2", "text": None}]}
        counts.append(jobs() - before)
    assert counts[0] <= 3, "one job, and what it broadcasts"
    assert counts[1] <= counts[0]


def test_a_query_that_fails_keeps_its_mark_and_disturbs_nobody(stage: Stage) -> None:
    mark = stage.results.mark("zero")
    stage.add({"emergencies": [emergency(1, severity=0)]})
    with pytest.raises(Failed, match="Division by zero"):
        stage.execute("zero")
    assert stage.execute("kinds") == {"fire": [{"id": "e1"}]}
    assert stage.results.mark("zero") == mark
    failure = stage.results.failure("zero")
    assert failure is not None
    assert (failure.in_a_row, "Division by zero" in failure.reason) == (1, True)
    assert stage.channels.tally("zero").failures == 1


def test_a_query_that_never_ends_is_stopped_while_others_run(stage: Stage) -> None:
    stage.add({"emergencies": [emergency(1)]})
    caught: list[BaseException] = []

    def run() -> None:
        try:
            stage.channels.execute("forever", time.time_ns())
        except Failed as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert stage.execute("kinds") == {"fire": [{"id": "e1"}]}
    thread.join(60)
    assert not thread.is_alive()
    assert "took longer than its time_limit of 1s" in str(caught[0])
    deadline = time.monotonic() + 60
    while stage.channels._cancelled and time.monotonic() < deadline:
        assert stage.channels.stuck is None
        time.sleep(0.05)
    assert not stage.channels._cancelled, "Spark still works for it"
    stage.told.tell("forever", [])
    assert stage.execute("forever") == {}


def test_two_executions_at_once_share_no_names(stage: Stage) -> None:
    stage.add({"emergencies": [emergency(number, severity=5) for number in range(20)]})
    found: dict[str, object] = {}
    threads = [
        threading.Thread(target=lambda name=name: found.update({name: stage.execute(name)}))  # type: ignore[misc]
        for name in ("kinds", "advised", "whole", "zero")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    ids = {f"e{number}" for number in range(20)}
    assert {row["id"] for row in found["kinds"]["fire"]} == ids  # type: ignore[index]
    assert {row["id"] for row in found["advised"]["fire/2"]} == ids  # type: ignore[index]
    assert found["whole"] == {"": [{"n": 20}]}
    assert found["zero"] == {"": [{"part": 0.2}] * 20}


def test_a_restart_goes_on_behind_the_mark(stage: Stage) -> None:
    stage.add({"emergencies": [emergency(1)]})
    assert stage.execute("kinds") == {"fire": [{"id": "e1"}]}
    stage.add({"emergencies": [emergency(2)]})
    stage.channels.close()
    stage.channels = Channels(
        spark(), stage.declared, stage.datasets, stage.results, stage.told, stage.source
    )
    stage.channels.check()
    assert stage.execute("kinds") == {"fire": [{"id": "e2"}]}


def test_channels_come_change_and_go_under_way(stage: Stage) -> None:
    stage.add({"emergencies": [emergency(1)]})
    other = KINDS.replace("e.id FROM", "e.id, e.severity FROM") + KINDS.replace('"kinds"', '"late"')
    bad = KINDS.replace("e.id FROM", "e.idd FROM")
    with pytest.raises(ConfigError, match=r"e\.idd"):
        stage.channels.change(parse_pipeline(DATASETS + bad))
    stage.channels.change(parse_pipeline(DATASETS + other))
    stage.told.tell("late", ["fire"])
    assert stage.execute("kinds") == {"fire": [{"id": "e1", "severity": 1}]}
    assert stage.execute("late") == {}, "it begins with what comes from now on"
    stage.add({"emergencies": [emergency(2)]})
    assert stage.execute("late") == {"fire": [{"id": "e2"}]}
    assert stage.channels.execute("whole", time.time_ns()) is None, "dropped"


def test_due_channels_are_handed_out_once_and_again_when_over(stage: Stage) -> None:
    now_ns = time.time_ns() + 10 * S
    names, _ = stage.channels.due(now_ns)
    assert set(names) == {"kinds", "advised", "zero", "forever", "whole"}
    assert stage.channels.due(now_ns)[0] == []
    stage.channels.execute("kinds", now_ns)
    _, next_ns = stage.channels.due(now_ns)
    assert now_ns < next_ns <= now_ns + 10 * S
    assert stage.channels.due(next_ns)[0] == ["kinds"]
