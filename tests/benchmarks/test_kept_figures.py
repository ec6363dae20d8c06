"""What a benchmark measured is kept once, and docs/measured.md is made of it."""

from pathlib import Path

import pytest
from benchmarks.brokers import KINDS
from benchmarks.kept import FILE, Kept, figures, load, replaced, save, worth_keeping
from benchmarks.report import NOT_MEASURED, Machine, Outcome, Verdict

from benchmarks import page
from holdfast.lab.report.marks import words_of

MACHINE = Machine("Example", 2, "6.18", "3.11", "2026-11-19", 0.5, {"holdfast": "0.1.0", "nats": "2.9.10"})
SPEED = Verdict("speed", "at most 1", "0.5", True)


def entry(of: str, measured: str, command: str = "make bench", date: str = "2026-11-18") -> Kept:
    return Kept(of, f"{of} of it", "at most 1", measured, None, command, date, "Example, 2 cores")


def test_a_figure_says_how_when_and_where_it_was_measured() -> None:
    (found,) = figures("qos0", [SPEED], "python -m benchmarks qos0", MACHINE)
    assert (found.what, found.must, found.measured, found.reached) == ("speed", "at most 1", "0.5", True)
    assert (found.of, found.command, found.date) == ("qos0", "python -m benchmarks qos0", "2026-11-19")
    assert found.machine == (
        "Example, 2 cores, Linux 6.18, Python 3.11; holdfast 0.1.0, nats 2.9.10; load 0.5 at the start"
    )


def test_a_benchmark_replaces_its_own_figures_where_they_stand() -> None:
    before = [entry("a", "1"), entry("b", "2"), entry("b", "3"), entry("c", "4")]
    new = [entry("b", "5")]
    assert replaced(before, "b", new) == [before[0], *new, before[3]]
    assert replaced(before, "new", new) == [*before, *new]


@pytest.mark.parametrize(
    ("outcome", "kept"),
    [
        (Outcome([], [SPEED]), True),
        (Outcome([], [SPEED], failed=True), False),
        (Outcome([], [SPEED, Verdict("size", "at most 1", NOT_MEASURED, None)]), False),
        (Outcome([], []), False),
    ],
    ids=["whole", "failed", "a contestant is missing", "no figure"],
)
def test_what_was_not_measured_whole_replaces_nothing(outcome: Outcome, kept: bool) -> None:
    assert worth_keeping(outcome) == kept


def test_the_file_has_one_figure_a_line_and_gives_it_back(tmp_path: Path) -> None:
    kept = [entry("a", "1.2× (1.0–1.3)"), entry("b", "2")]
    save(kept, tmp_path / "measured.json")
    assert load(tmp_path / "measured.json") == kept
    assert len((tmp_path / "measured.json").read_text().splitlines()) == 2 + len(kept)


def test_the_file_in_the_repository_is_as_a_benchmark_writes_it(tmp_path: Path) -> None:
    save(load(), tmp_path / "measured.json")
    assert (tmp_path / "measured.json").read_bytes() == FILE.read_bytes()


def test_the_page_shows_the_figures_of_its_marks_and_nothing_else_changes() -> None:
    text = "By hand.\n<!-- measured: b a -->\nold\n<!-- /measured -->\nBy hand, too.\n"
    kept = [entry("a", "1"), entry("b", "2", "by hand", "2026-11-17"), entry("c", "3")]
    assert page.made(text, kept) == (
        "By hand.\n<!-- measured: b a -->\n"
        "| what | must reach | measured | reached | how |\n| --- | --- | --- | --- | --- |\n"
        "| b of it | at most 1 | 2 | – | by hand |\n| a of it | at most 1 | 1 | – | `make bench` |\n\n"
        "- Measured 2026-11-17, Example, 2 cores: by hand.\n"
        "- Measured 2026-11-18, Example, 2 cores: `make bench`.\n"
        "<!-- /measured -->\nBy hand, too.\n"
    )


def test_a_mark_without_a_figure_is_told() -> None:
    with pytest.raises(SystemExit, match="gone"):
        page.made("<!-- measured: gone -->\n<!-- /measured -->\n", [entry("a", "1")])


def test_the_page_in_docs_is_what_the_command_makes() -> None:
    assert page.main(["--check"]) == 0, "run make pages"


def test_the_page_in_docs_shows_every_figure_once() -> None:
    shown = [name for words in words_of(page.PAGE.read_text()) for name in words]
    assert sorted(shown) == sorted({each.of for each in load()})


def test_the_page_says_how_every_contestant_is_set() -> None:
    text = page.PAGE.read_text()
    for name, kind in KINDS.items():
        assert f"- {name}: {kind.settings}\n" in text
