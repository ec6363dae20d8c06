"""The page of events lists every event that the code tells, and no other."""

import ast
import io
import json
import re
from contextlib import redirect_stderr
from pathlib import Path

from holdfast.runtime import log

ROOT = Path(__file__).parents[2]
TELLERS = ("event", "_event", "tell", "_tell", "log_event", "_failed")
PACKAGES = ("broker", "replication", "runtime", "pipeline")


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


def listed() -> set[str]:
    rows = re.findall(r"^\| (`.*?) \|", (ROOT / "docs" / "logs.md").read_text(), re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_every_event_is_listed_and_told() -> None:
    assert told() == listed()


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
    written = io.StringIO()
    with redirect_stderr(written):
        for _ in range(100):
            log.log_event("tested", {"reason": "0x81"})
        log.log_event("tested", {"reason": "0x82"})
    assert len(written.getvalue().splitlines()) == 2
