"""A configuration is valid, or one error lists everything that is wrong with it."""

import os
import threading
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config import FILE_BYTES_MAX, Limits, load, loads
from holdfast.errors import ConfigError

# Every field of [limits]: a value that does, and one that does not.
FIELDS = {
    "connections_max": ("5", "0"),
    "packet_bytes_max": ("1024", "268_435_461"),
    "connect_timeout": ('"1s"', '"0s"'),
    "packet_timeout": ('"1min"', "30"),
    "receive_max": ("65535", "65536"),
    "topic_alias_max": ("0", "-1"),
    "sessions_max": ("200_001", '"many"'),
    "session_expiry_max": ('"never"', '"always"'),
    "keep_alive_max_s": ("60", "65536"),
    "subscriptions_per_session_max": ("1", "0.5"),
    "subscriptions_max": ("20000", "{}"),
    "topic_levels_max": ("8", "true"),
    "topics_max": ("10", "inf"),
    "retained_messages_max": ("10", "[10]"),
    "retained_bytes_max": ("20_000_000", "{}"),
    "queue_messages_max": ("10", "2024-01-01"),
    "queue_bytes_max": ("20_000_000", "nan"),
    "buffer_messages_max": ("20_000", "0x0"),
    "buffer_bytes_max": ("20_000_000", '""'),
    "copies_per_topic_max": ("10", "0"),
    "backup_bytes_max": ("20_000_000", "1.5"),
    "state_log_max": ("5", "-5"),
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
        ("buffer_messages_max = 1000", "queue_messages_max"),
        ("sessions_max = 1000", "connections_max"),
    ],
)
def test_limits_that_contradict_each_other(document: str, path: str) -> None:
    with pytest.raises(ConfigError) as error:
        loads(document, Limits)
    assert path in paths(error)


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
