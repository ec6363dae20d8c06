"""A configuration is valid, or one error lists everything that is wrong with it."""

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config import (
    FILE_BYTES_MAX,
    PARTS,
    PARTS_OF_MEMORY,
    Checked,
    Limits,
    Relations,
    known,
    load,
    loads,
    named,
)
from holdfast.errors import ConfigError, Problem
from holdfast.readers import text, whole

# Every field of [limits]: a value that does, and one that does not.
FIELDS = {
    "connections_max": ("5", "0"),
    "packet_bytes_max": ("1024", "268_435_461"),
    "connect_bytes_max": ("1024", "15"),
    "control_bytes_max": ("1024", "15"),
    "packet_filters_max": ("8", "0"),
    "user_properties_max": ("8", "0"),
    "match_steps_per_session_max": ("8", "0"),
    "match_steps_max": ("20_000", "0"),
    "connect_timeout": ('"1s"', '"0s"'),
    "packet_timeout": ('"1min"', "30"),
    "memory_bytes_max": ("20_000_000", "0"),
    "connecting_bytes_max": ("20_000_000", "0"),
    "pending_bytes_max": ("20_000_000", "true"),
    "output_bytes_max": ("70_000_000", "1.0"),
    "receive_max": ("65535", "65536"),
    "topic_alias_max": ("0", "-1"),
    "sessions_bytes_max": ("1", "0"),
    "sessions_max": ("200_001", '"many"'),
    "session_expiry_max": ('"never"', '"always"'),
    "keep_alive_max_s": ("60", "65536"),
    "subscriptions_per_session_max": ("1", "0.5"),
    "subscriptions_max": ("20000", "{}"),
    "topic_levels_max": ("8", "true"),
    "topic_bytes_max": ("4096", "65_536"),
    "client_id_bytes_max": ("23", "22"),
    "topics_max": ("10", "inf"),
    "topics_bytes_max": ("1", "0"),
    "retained_messages_max": ("10", "[10]"),
    "retained_bytes_max": ("20_000_000", "{}"),
    "queue_messages_max": ("10", "2024-01-01"),
    "queue_bytes_max": ("20_000_000", "nan"),
    "buffer_messages_max": ("20_000", "0x0"),
    "buffer_bytes_max": ("20_000_000", '""'),
    "copies_per_topic_max": ("10", "0"),
    "backup_bytes_max": ("20_000_000", "1.5"),
    "state_log_max": ("5", "-5"),
    "state_log_bytes_max": ("1", "0"),
    "slow_max": ('"0ms"', '"-1ms"'),
    "marks_lag": ('"0ms"', '"-1ms"'),
    "journal_wait_max": ('"1ms"', '"0ms"'),
    "slice_jobs_max": ("1", "99999999999999999999"),
}


def paths(error: pytest.ExceptionInfo[ConfigError]) -> list[str]:
    return [problem.path for problem in error.value.problems]


def test_every_limit_is_tested() -> None:
    assert {field.encode_name for field in msgspec.structs.fields(Limits)} == FIELDS.keys()


@pytest.mark.parametrize("key", FIELDS)
def test_each_limit_can_be_set(key: str) -> None:
    assert loads(f"{key} = {FIELDS[key][0]}", Limits) != loads("", Limits) or key == "session_expiry_max"


@pytest.mark.parametrize("key", FIELDS)
def test_each_limit_refuses_what_does_not_fit(key: str) -> None:
    with pytest.raises(ConfigError) as error:
        loads(f"{key} = {FIELDS[key][1]}", Limits)
    (problem,) = error.value.problems
    assert problem.path == key
    assert problem.message.startswith("found ")
    assert "expected a" in problem.message
    assert f"for example {key} = " in problem.message


def test_all_problems_are_reported_at_once() -> None:
    document = "\n".join(f"{key} = {wrong}" for key, (_, wrong) in FIELDS.items())
    with pytest.raises(ConfigError) as error:
        loads(document, Limits)
    assert sorted(paths(error)) == sorted(FIELDS)


def test_an_example_in_a_message_would_do() -> None:
    for key, (_, wrong) in FIELDS.items():
        with pytest.raises(ConfigError) as error:
            loads(f"{key} = {wrong}", Limits)
        _, _, example = error.value.problems[0].message.partition("for example ")
        loads(example, Limits)


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError) as error:
        loads("conections_max = 5\nzzz = 1\n'a b' = 2", Limits)
    first, second, third = error.value.problems
    assert "did you mean connections_max?" in str(first)
    assert "known here: connections_max, " in str(second)
    assert third.path == '"a b"'


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ("queue_bytes_max = 1000", "packet_bytes_max"),
        ("retained_bytes_max = 1000", "packet_bytes_max"),
        ("buffer_bytes_max = 1000", "queue_bytes_max"),
        ("pending_bytes_max = 1000", "packet_bytes_max"),
        ("output_bytes_max = 1000", "output_bytes_max"),
        ("backup_bytes_max = 1000", "packet_bytes_max"),
        ("memory_bytes_max = 100_000_000\nbuffer_bytes_max = 90_000_000", "memory_bytes_max"),
        ("buffer_messages_max = 1000", "queue_messages_max"),
        ("sessions_max = 1000", "connections_max"),
    ],
)
def test_limits_that_contradict_each_other(document: str, path: str) -> None:
    with pytest.raises(ConfigError) as error:
        loads(document, Limits)
    assert path in paths(error)


@given(memory=st.integers(PARTS * 16, 2**45))
def test_the_parts_follow_from_the_memory_of_all(memory: int) -> None:
    limits = Limits(memory_bytes_max=memory)
    parts = [getattr(limits, name) for name in PARTS_OF_MEMORY]
    assert memory - len(parts) < sum(parts) <= memory == limits.memory_bytes_max
    assert limits.packet_bytes_max <= min(limits.queue_bytes_max, 16_777_216)
    assert limits == msgspec.structs.replace(limits)


def test_the_memory_of_all_follows_from_parts_that_are_given() -> None:
    usual = Limits()
    assert usual.memory_bytes_max == PARTS * 16 * 2**20
    larger = Limits(buffer_bytes_max=2**32)
    assert larger.memory_bytes_max == usual.memory_bytes_max + 2**32 - usual.buffer_bytes_max
    assert larger.retained_bytes_max == usual.retained_bytes_max
    assert Limits(buffer_bytes_max=2**25).memory_bytes_max == usual.memory_bytes_max


def test_a_part_of_nothing_is_refused_in_code_too() -> None:
    with pytest.raises(ConfigError) as error:
        Limits(memory_bytes_max=0, retained_bytes_max=0)
    assert {"memory_bytes_max", "retained_bytes_max"} <= set(paths(error))


def test_limits_made_in_code_are_checked_too() -> None:
    with pytest.raises(ConfigError) as error:
        Limits(connections_max=0, slow_max_ns=-1)
    assert paths(error) == ["connections_max", "slow_max"]


def test_a_syntax_error_has_its_line() -> None:
    with pytest.raises(ConfigError) as error:
        loads("topics_max = 1\ntopics_max = = 2", Limits, source="x.toml")
    assert "x.toml: line 2, column " in str(error.value)


@pytest.mark.parametrize("document", ["a = " + "[" * 100_000, "a = " + "1" * 100_000, "a.b = 1\na = 2"])
def test_hostile_documents_are_refused_as_problems(document: str) -> None:
    with pytest.raises(ConfigError):
        loads(document, Limits)


@given(st.text())
def test_any_text_is_read_or_refused(document: str) -> None:
    with suppress(ConfigError):
        loads(document, Limits)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b"# fine\n# caf\xe9\n")
    huge = tmp_path / "huge.toml"
    huge.write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    for path, why in (
        (tmp_path / "missing.toml", "no such file"),
        (tmp_path, "cannot be read"),
        (latin, "line 2 is not UTF-8"),
        (huge, "larger than 16777216 bytes"),
        (Path("nul\0"), "cannot be read"),
    ):
        with pytest.raises(ConfigError, match=why):
            load(path, Limits)


def test_a_fifo_is_no_file_and_nobody_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ConfigError, match="it is a FIFO; expected a file"):
        load(tmp_path / "fifo", Limits)


def test_what_a_shell_hands_over_is_read_though_it_comes_later() -> None:
    reading, writing = os.pipe()

    def write() -> None:
        with os.fdopen(writing, "wb") as file:
            file.write(b'connect_timeout = "2s"\n')

    timer = threading.Timer(0.05, write)
    timer.start()
    try:
        assert load(f"/dev/fd/{reading}", Limits) == Limits(connect_timeout_ns=2_000_000_000)
    finally:
        timer.join()
        os.close(reading)


def test_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "limits.toml"
    file.write_text('connect_timeout = "2s"\n')
    assert load(file, Limits) == Limits(connect_timeout_ns=2_000_000_000)


class Part(Checked, frozen=True, kw_only=True):
    loss_tolerance: Annotated[int, whole(0, 9, 1)]
    name: Annotated[str, text(9, "a")]
    loss_run: Annotated[int, whole(0, 9, 1)] = 0
    unarbitrated: Literal["wait", "go-on"] = "wait"
    mode: Literal["fast", "slow"] | None = None

    def relations(self) -> Iterator[Problem]:
        if self.loss_run > self.loss_tolerance:
            yield Problem("loss_run", "more than loss_tolerance")


class Parts(Checked, frozen=True, kw_only=True):
    parts: tuple[Part, ...] = named("part", ())

    def relations(self) -> Iterator[Problem]:
        if len({part.name for part in self.parts}) < len(self.parts):
            yield Problem("part", "a name is there twice")


def said_of(document: str) -> dict[str, str]:
    with pytest.raises(ConfigError) as error:
        loads(document, Parts)
    first = reversed(error.value.problems)
    return {problem.path: problem.message.partition(" (in ")[0] for problem in first}


@pytest.mark.parametrize(
    ("found", "meant"),
    [
        ("loss_t", "loss_tolerance"),
        ("loss-tolerance", "loss_tolerance"),
        ("LossTolerance", "loss_tolerance"),
        ("los_tolerance", "loss_tolerance"),
        ("loss", "loss_tolerance or loss_run"),
        ("unarb", "unarbitrated"),
        ("nam", "name"),
    ],
)
def test_a_beginning_or_a_misspelling_is_answered_with_what_is_known(found: str, meant: str) -> None:
    said = said_of(f'[[part]]\nloss_tolerance = 1\nname = "a"\n{found} = 1')
    assert said[f"part[0].{found}"] == f"unknown name; did you mean {meant}?"


@pytest.mark.parametrize("found", ["lo", "zzz", "x" * 5000, "loss_tolerance_of_all_the_topics_in_the_plant"])
def test_what_is_near_nothing_is_answered_with_all_that_is_known(found: str) -> None:
    said = said_of(f'[[part]]\nloss_tolerance = 1\nname = "a"\n{found} = 1')
    assert "unknown name; known here: loss_tolerance, name, loss_run, unarbitrated, mode" in said.values()


def test_a_misspelt_name_hides_no_other_problem() -> None:
    """Its value is read for what was meant: that is not missing, and what depends on it is judged too."""
    part = '[[part]]\nloss_tolerence = 1\nname = "a"\nloss_run = 2\n'
    assert said_of(part + part) == {
        "part": "a name is there twice",
        "part[0].loss_tolerence": "unknown name; did you mean loss_tolerance?",
        "part[0].loss_run": "more than loss_tolerance",
        "part[1].loss_tolerence": "unknown name; did you mean loss_tolerance?",
        "part[1].loss_run": "more than loss_tolerance",
    }
    twice = '[[part]]\nloss_tolerence = 1\nname = "a"\n'
    assert said_of(twice + twice)["part"] == "a name is there twice"
    with pytest.raises(ConfigError) as error:
        loads('[[part]]\nloss_tolerence = 10\nname = "a"', Parts)
    assert [problem.path for problem in error.value.problems] == ["part[0].loss_tolerence"] * 2
    assert "found 10; expected a whole number" in error.value.problems[1].message
    both = said_of('[[part]]\nloss_tolerance = 10\nloss_tolerence = 1\nname = "a"')
    assert both["part[0].loss_tolerance"].startswith("found 10; expected a whole number")


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ('unarbitrated = "goon"', '"go-on"'),
        ('unarbitrated = "Wait"', '"wait"'),
        ('unarbitrated = "go_on"', '"go-on"'),
        ('mode = "fst"', '"fast"'),
        ('unarbitrated = "never"', ""),
        ("unarbitrated = 1", ""),
        ("mode = []", ""),
    ],
)
def test_a_value_that_is_one_of_a_few_is_answered_with_the_nearest_and_all(line: str, meant: str) -> None:
    key = line.split(" ")[0]
    message = said_of(f'[[part]]\nloss_tolerance = 1\nname = "a"\n{line}')[f"part[0].{key}"]
    assert (f"did you mean {meant}?" in message) == bool(meant)
    both = '"wait" or "go-on"' if key == "unarbitrated" else '"fast" or "slow"'
    assert f"expected {both}, for example {key} = " in message


def test_a_value_that_is_one_of_a_few_is_checked_in_code_too() -> None:
    with pytest.raises(ConfigError):
        Part(loss_tolerance=1, name="a", unarbitrated="goon")  # type: ignore[arg-type]
    assert Part(loss_tolerance=1, name="a", mode="slow").mode == "slow"


# -- what is wrong hides nothing that does not depend on it --------------------------------------------------


class Inner(Checked, frozen=True, kw_only=True):
    about = "for those within"

    low: Annotated[int, whole(0, 9, 1)]
    high: Annotated[int, whole(0, 9, 1)] = 9
    shown: bool = False
    inner_only: str = ""


class Outer(Checked, frozen=True, kw_only=True):
    first: Annotated[int, whole(0, 9, 1)] = 1
    second: Annotated[int, whole(0, 9, 1)] = 2
    third: Annotated[int, whole(0, 9, 1)] = 3
    inner: Inner | None = None
    others: tuple[Inner, ...] = named("other", ())

    @property
    def beyond(self) -> bool:
        return self.third > 3

    def relations(self) -> Relations:
        yield self._order_problems()
        yield self._third_problems()
        if self.others:
            yield self._others_problems()

    def _order_problems(self) -> Iterator[Problem]:
        if self.first > self.second:
            yield Problem("first", "more than second")

    def _third_problems(self) -> Iterator[Problem]:
        if self.beyond:
            yield Problem("third", "more than 3")

    def _others_problems(self) -> Iterator[Problem]:
        lows = [low for _, low in known(self.others, "low")]
        if len(set(lows)) < len(lows):
            yield Problem("other", "a low is there twice")


def outer_paths(document: str) -> list[str]:
    with pytest.raises(ConfigError) as error:
        loads(document, Outer)
    return [problem.path for problem in error.value.problems]


@pytest.mark.parametrize(
    ("document", "wrong"),
    [
        ("first = 10\nsecond = 0\nthird = 4", ["first", "third"]),
        ("first = 3\nsecond = []\nthird = 4", ["second", "third"]),
        ("first = 3\nthird = 10", ["third", "first"]),
        ("first = 3\nthird = 4", ["first", "third"]),
        ("first = 3\n[inner]", ["inner.low", "first"]),
        ("first = 3\ninner = 1", ["inner", "first"]),
        ("third = 4\nother = 1", ["other", "third"]),
        ("[[other]]\nlow = 1\nhigh = 10\n[[other]]\nlow = 1", ["other[0].high", "other"]),
        ("[[other]]\nlow = 10\n[[other]]\nlow = 10", ["other[0].low", "other[1].low"]),
        ("other = [1, { low = 2 }, { low = 2 }]", ["other[0]", "other"]),
    ],
)
def test_a_bad_value_hides_only_the_relations_that_read_it(document: str, wrong: list[str]) -> None:
    assert outer_paths(document) == wrong


def test_a_bad_value_in_code_hides_only_the_relations_that_read_it() -> None:
    with pytest.raises(ConfigError) as error:
        Outer(first=10, second=0, third=4)
    assert paths(error) == ["first", "third"]


@pytest.mark.parametrize(
    ("document", "wrong"),
    [
        (
            "packet_bytes_max = 0\nconnections_max = 2\nsessions_max = 1",
            ["packet_bytes_max", "connections_max"],
        ),
        (
            "memory_bytes_max = 0\nqueue_bytes_max = 2\nbuffer_bytes_max = 1",
            ["memory_bytes_max", "queue_bytes_max"],
        ),
        ("buffer_bytes_max = 0\nretained_bytes_max = 1", ["buffer_bytes_max", "packet_bytes_max"]),
        ("memory_bytes_max = 0\nretained_bytes_max = 1", ["memory_bytes_max"]),
    ],
)
def test_a_bad_limit_is_not_taken_for_one_that_follows(document: str, wrong: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        loads(document, Limits)
    assert paths(error) == wrong


def test_a_table_under_a_misspelt_name_is_one_problem_that_says_what_it_needs() -> None:
    with pytest.raises(ConfigError) as error:
        loads("[innr]\nhigh = 10", Outer)
    assert str(error.value.problems[0]) == ("innr: unknown name; did you mean inner? [inner] needs low too")
    assert paths(error) == ["innr", "innr.high"]
    assert outer_paths("[innr]\nlow = 1") == ["innr"]
    assert outer_paths("[innr]\nlwo = 1") == ["innr", "innr.lwo"]


def test_a_name_of_another_table_is_said_to_be_there() -> None:
    with pytest.raises(ConfigError) as error:
        loads("inner_only = 'x'\n[inner]\nlow = 1\nthird = 1", Outer)
    there = "in [inner], for those within and in [[other]], for those within"
    assert [str(each) for each in error.value.problems] == [
        f"inner_only: unknown name here; it is known {there}",
        "inner.third: unknown name here; it is known at the top of the file",
    ]


@pytest.mark.parametrize(
    ("line", "would_do"),
    [
        ('shown = "yes"', "expected true or false, for example shown = true"),
        ("inner_only = 3", 'expected text, for example inner_only = "text"'),
    ],
)
def test_plain_values_have_an_example_too(line: str, would_do: str) -> None:
    with pytest.raises(ConfigError) as error:
        loads(f"[inner]\nlow = 1\n{line}", Outer)
    assert error.value.problems[0].message.endswith(would_do)
    loads(f"[inner]\nlow = 1\n{would_do.partition('for example ')[2]}", Outer)
