"""The page of events lists every event that the code tells, and no other."""

import ast
import asyncio
import io
import json
import re
import time
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from holdfast.runtime import log

ROOT = Path(__file__).parents[2]
TELLERS = ("event", "_event", "tell", "_tell", "log_event", "_failed")
PACKAGES = ("broker", "replication", "runtime", "security", "pipeline")


def told() -> set[str]:
    found = set()
    for package in PACKAGES:
        for path in (ROOT / "src" / "holdfast" / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.Call) or not node.args:
                    continue
                name = (
                    node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                )
                first = node.args[0]
                two = len(node.args) == 2
                if (
                    name in TELLERS
                    and two
                    and isinstance(first, ast.Constant)
                    and isinstance(first.value, str)
                ):
                    found.add(first.value)
    return found


def listed(heading: str = "") -> set[str]:
    """The events in the tables under the headings that end so."""
    sections = (ROOT / "docs" / "logs.md").read_text().split("\n## ")[1:]
    rows = [
        row
        for section in sections
        if section.partition("\n")[0].endswith(heading)
        for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    ]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_every_event_is_listed_and_told() -> None:
    assert told() == listed()


def test_the_states_of_the_page_are_those_of_the_log() -> None:
    assert listed(": states") == log.STATES


def written(*events: tuple[str, dict[str, object]]) -> list[str]:
    lines = io.StringIO()
    with redirect_stderr(lines):
        for event, details in events:
            log.log_event(event, details)
    return [line.split(" ", 1)[1] for line in lines.getvalue().splitlines()]


def test_the_last_line_about_a_state_is_the_present_state() -> None:
    """Nothing is left out, however fast a group changes: the last word is what it is now."""
    lost: tuple[str, dict[str, object]] = ("unprotected", {"view": 7})
    back: tuple[str, dict[str, object]] = ("protected", {"view": 8, "heirs": "b"})
    more: tuple[str, dict[str, object]] = ("protected", {"view": 12, "heirs": "b, c"})
    lines = written(lost, back, lost, back, more)
    assert [line.split()[0] for line in lines] == [
        *("event=unprotected", "event=protected", "event=unprotected", "event=protected", "event=protected")
    ]
    assert "b, c" in lines[-1]


def test_a_state_that_flaps_floods_nothing_and_its_last_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand changes in a moment: a few lines at once, and a second later what it is now."""
    monkeypatch.setattr(log, "REPEAT_S", 0.05)
    monkeypatch.setattr(log, "_burst", (0.0, 0))
    lines = io.StringIO()

    async def flap() -> None:
        for number in range(500):
            log.log_event("unprotected", {"view": number})
            log.log_event("protected", {"view": number, "heirs": "b"})
        assert len(lines.getvalue().splitlines()) <= log.STATE_LINES_MAX
        deadline = time.monotonic() + 5
        while "view=499" not in lines.getvalue() and time.monotonic() < deadline:
            await asyncio.sleep(0.01)

    with redirect_stderr(lines):
        asyncio.run(flap())
    found = lines.getvalue().splitlines()
    assert len(found) <= log.STATE_LINES_MAX + 2
    assert "event=unprotected view=499" in found[-2]
    assert "event=protected view=499" in found[-1]


def test_what_was_held_back_comes_before_what_happened_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last line is the present state, though a burst ends and the next change comes at once."""
    monkeypatch.setattr(log, "_burst", (0.0, 0))
    lines = io.StringIO()

    async def change() -> None:
        for number in range(log.STATE_LINES_MAX + 1):
            log.log_event("role", {"view": number})
        monkeypatch.setattr(log, "_burst", (0.0, 0))  # a second is over, and no timer rang yet
        log.log_event("role", {"view": "last"})
        log.write_rest()

    with redirect_stderr(lines):
        asyncio.run(change())
    views = [line.rpartition("view=")[2] for line in lines.getvalue().splitlines()]
    assert views == [*map(str, range(log.STATE_LINES_MAX + 1)), "last"]


def test_a_state_that_did_not_change_is_told_once() -> None:
    same: tuple[str, dict[str, object]] = ("not arbitrated", {"view": 4, "why": "no answer"})
    assert len(written(*[same] * 100)) == 1


def test_what_clients_do_between_two_states_changes_nothing() -> None:
    client: tuple[str, dict[str, object]] = ("refused", {"reason": "0x96"})
    lost: tuple[str, dict[str, object]] = ("journal failed", {"why": "full"})
    back: tuple[str, dict[str, object]] = ("journal recovered", {"undone": 0})
    lines = written(lost, *[client] * 50, back, *[client] * 50, lost)
    assert [line.split('"')[1] for line in lines if "journal" in line] == [
        *("journal failed", "journal recovered", "journal failed")
    ]
    assert sum("refused" in line for line in lines) <= 1


def test_both_forms_say_the_same() -> None:
    fields: dict[str, object] = {"event": "refused", "why": 'he said "no"', "count": 3}
    text, document = log.line_of("text", 0.25, fields), json.loads(log.line_of("json", 0.25, fields))
    assert text == '1970-01-01T00:00:00.250Z event=refused why="he said \\"no\\"" count=3'
    assert document == {"time": "1970-01-01T00:00:00.250Z", **fields}


def test_a_line_is_one_line_and_has_an_end() -> None:
    fields: dict[str, object] = {"event": "refused", "why": "a\nb" + "x" * 10_000}
    for form in log.FORMS:
        line = log.line_of(form, 0.0, fields)
        assert "\n" not in line
        assert len(line) < log.FIELD_CHARS_MAX + 200


def test_repetitions_are_counted_not_written() -> None:
    assert len(written(*[("tested", {"reason": "0x81"})] * 100, ("tested", {"reason": "0x82"}))) == 2


TOO_SLOW: dict[str, object] = {"queued": 7, "why": "it is too slow"}


def told_of_ended(clients: list[str], monkeypatch: pytest.MonkeyPatch, wait: bool = True) -> list[str]:
    """The lines about sessions that ended in one second."""
    monkeypatch.setattr(log, "REPEAT_S", 0.05 if wait else 60.0)
    log._last.clear()
    lines = io.StringIO()

    async def end() -> None:
        for client in clients:
            log.log_event("overloaded", {"client": client, **TOO_SLOW})
        deadline = time.monotonic() + 5
        while (
            wait and len(clients) > 1 and "clients=" not in lines.getvalue() and time.monotonic() < deadline
        ):
            await asyncio.sleep(0.01)

    with redirect_stderr(lines):
        asyncio.run(end())
        log.write_rest()
    return [line.split(" ", 1)[1] for line in lines.getvalue().splitlines()]


def test_every_session_that_ended_in_the_same_second_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = told_of_ended(["a", "b", "c d", "e"], monkeypatch)
    assert first == 'event=overloaded client=a queued=7 why="it is too slow"'
    assert second == 'event=overloaded clients="b, \\"c d\\", e" why="it is too slow"'
    assert len(told_of_ended(["a"], monkeypatch)) == 1


def test_who_ended_just_before_the_process_did_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "clients=b " in told_of_ended(["a", "b"], monkeypatch, wait=False)[1]


@pytest.mark.parametrize("size", [1, 8, 60, log.NAME_CHARS_MAX, 65_535])
def test_names_of_ended_sessions_fit_and_the_rest_is_counted(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = min(size, log.NAME_CHARS_MAX) + len(", ")
    fit = log.FIELD_CHARS_MAX // each
    for many in (fit, fit + 1, 3000):
        line = told_of_ended(["x" * size] * (1 + many), monkeypatch)[1]
        named = line.count("x" * min(size, log.NAME_CHARS_MAX))
        assert named == min(fit, many)
        assert ("more_like_it" in line) == (many > fit)
        assert many == fit or line.endswith(f"more_like_it={many - fit}")
        assert "…" not in line


def test_ended_sessions_fill_no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for the first, and one for all others of that second, however they call themselves."""
    assert len(told_of_ended([f"c{number}" for number in range(5000)], monkeypatch)) == 2


def told_of(
    events: list[tuple[str, dict[str, object]]], lines_min: int, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """The lines about events of one second, when that is over."""
    monkeypatch.setattr(log, "REPEAT_S", 0.05)
    log._last.clear()
    lines = io.StringIO()

    async def tell() -> None:
        for event, details in events:
            log.log_event(event, details)
        deadline = time.monotonic() + 5
        while len(lines.getvalue().splitlines()) < lines_min and time.monotonic() < deadline:
            await asyncio.sleep(0.01)

    with redirect_stderr(lines):
        asyncio.run(tell())
    log.write_rest()
    return [line.split(" ", 1)[1] for line in lines.getvalue().splitlines()]


def login(client: str, address: str = "192.0.2.1") -> tuple[str, dict[str, object]]:
    return "login", {"user": "alice", "client": client, "address": address, "by": "password"}


def test_every_client_that_logged_in_in_the_same_second_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    came = [login("a"), login("b"), login("c", "192.0.2.2"), login("d")]
    assert told_of(came, 2, monkeypatch) == [
        "event=login user=alice client=a address=192.0.2.1 by=password",
        'event=login clients="b, c, d" user=alice address="192.0.2.1, 192.0.2.2" by=password',
    ]
    assert told_of([login("a"), login("b")], 2, monkeypatch)[1] == (
        "event=login clients=b user=alice address=192.0.2.1 by=password"
    )
    many = told_of([login(f"{number:08}", f"a{number}") for number in range(5001)], 2, monkeypatch)
    assert len(many) == 2
    assert many[1].endswith("more_like_it=4800")
    assert len(many[1]) < 3 * log.FIELD_CHARS_MAX


@pytest.mark.parametrize("many", [1, 2, 3, 100])
def test_what_was_left_out_is_told_when_its_second_is_over(
    many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though nothing of that kind follows: the last in full, and how many more."""
    events: list[tuple[str, dict[str, object]]] = [
        ("refused", {"reason": "0x87", "client": f"c{number}"}) for number in range(many)
    ]
    lines = told_of(events, min(many, 2), monkeypatch)
    assert lines[0] == "event=refused reason=0x87 client=c0"
    more = f" more_like_it={many - 2}" if many > 2 else ""
    assert lines[1:] == ([f"event=refused reason=0x87 client=c{many - 1}{more}"] if many > 1 else [])


def test_a_line_about_the_last_that_was_left_out_has_its_time() -> None:
    left_out = log.LeftOut(0.0)
    before_s = time.time()
    left_out.add({"reason": "0x87"}, ())
    assert before_s <= left_out.at_s <= time.time()
