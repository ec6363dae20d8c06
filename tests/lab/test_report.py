"""A report shows everything that was found, beside what the papers print, and hides nothing."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from tests.lab import found_example as example

from holdfast.errors import ConfigError
from holdfast.lab.analysis.found import Analysis, Figure
from holdfast.lab.report import pages, published
from holdfast.lab.report.compare import ours
from holdfast.lab.report.markdown import write_markdown
from holdfast.lab.report.page import show_report, write_report
from holdfast.lab.report.parts import part
from holdfast.lab.report.published import Ours
from holdfast.lab.report.results import as_json, from_json, worst_series
from holdfast.lab.report.style import compact, looks
from holdfast.lab.report.text import percent, printed, short, success, title_of, with_interval

ROOT = Path(__file__).parents[2]
EXPERIMENTS = ROOT / "experiments"


def tree(page: Path) -> ElementTree.Element:
    """The page as XML: it has no document type of its own, and no entities but those of XML."""
    return ElementTree.fromstring(page.read_text().removeprefix("<!DOCTYPE html>"))


def words(element: ElementTree.Element) -> str:
    return "".join(element.itertext())


def table_after(page: ElementTree.Element, section: str) -> list[list[str]]:
    found = page.find(f".//section[@id='{section}']")
    assert found is not None
    return [[words(cell) for cell in row] for row in found.iter("tr")]


@pytest.fixture(scope="module")
def full_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(example.full(), tmp_path_factory.mktemp("full"))


# -- the page ------------------------------------------------------------------------------------------------


def test_the_page_is_well_formed_and_has_no_name_twice(full_page: Path) -> None:
    names = Counter(element.get("id") for element in tree(full_page).iter() if element.get("id"))
    assert [name for name, count in names.items() if count > 1] == []


def test_references_within_the_page_lead_somewhere(full_page: Path) -> None:
    text = full_page.read_text()
    names = set(re.findall(r'\bid="([^"]+)"', text))
    asked = set(re.findall(r'href="#([^"]+)"', text)) | set(re.findall(r"url\(#([^)]+)\)", text))
    assert asked
    assert asked <= names


def test_the_page_loads_nothing_from_elsewhere(full_page: Path) -> None:
    text = full_page.read_text()
    assert "://" not in text
    assert not re.search(r"<(script|link|img|iframe|object)\b", text)
    assert "@import" not in text


def test_every_row_is_in_the_table_of_its_workload(full_page: Path) -> None:
    lines = table_after(tree(full_page), "loss")
    at = {line[0]: index for index, line in enumerate(lines) if line[0].startswith("Workload")}
    configurations = [words for words in lines[0] if words in example.CONFIGURATIONS]
    for row in example.rows():
        begin = at[f"Workload: {row.topics:,} topics"]
        line = next(each for each in lines[begin + 1 :] if each[2] == row.category)
        column = 3 + 2 * configurations.index(row.labels["configuration"])
        assert line[column] == success(row.loss_success)
        assert line[0] == str(row.deadline_ns // 1_000_000)


def test_published_numbers_stand_beside_ours(full_page: Path) -> None:
    lines = table_after(tree(full_page), "loss")
    assert lines[1] == ["ours", "published"] * 4
    begin = next(index for index, line in enumerate(lines) if line[0] == "Workload: 13,525 topics")
    assert lines[begin + 1][5:7] == ["99.98 ± 0.012", "80.0 ± 30.1"]
    assert lines[begin + 3][9:11] == ["78.4 ± 13.3", "78.4 ± 13.3"]


def test_what_was_not_measured_is_a_dash_beside_the_published_number(full_page: Path) -> None:
    lines = table_after(tree(full_page), "loss")
    begin = next(index for index, line in enumerate(lines) if line[0] == "Workload: 10,525 topics")
    assert lines[begin + 1][3:] == ["–", "100.0", "–", "100.0", "–", "0.0", "–", "100.0"]


def test_the_top_says_what_was_run_and_how_to_run_it_again(full_page: Path) -> None:
    header = tree(full_page).find(".//header")
    assert header is not None
    text = words(header)
    for said in ("frame-table4", "FRAME, Table 4", "Example 3.0 GHz", "2 cores", "0123abc", "35 s", "60 s"):
        assert said in text
    assert "holdfast lab run frame-table4 --seed 7" in text
    assert "are equal" in text


def test_a_failed_trial_is_told_of_first(full_page: Path) -> None:
    page = tree(full_page)
    assert "1 of 36 trials failed" in words(page.find(".//header") or page)
    first = page.find(".//section")
    assert first is not None
    assert first.get("id") == "failed"
    assert "the primary did not start within 30 s" in words(first)


def test_a_difference_from_the_streaming_verdict_is_stated(tmp_path: Path) -> None:
    page = write_report(example.full(check=["topic 7: run 3 against 4"], cpu=[], series=[]), tmp_path)
    header = words(tree(page).find(".//header") or tree(page))
    assert "differ in 1 places" in header
    assert "topic 7: run 3 against 4" in header
    assert "are equal" not in header


def test_combinations_that_were_not_run_are_told_with_the_reason(tmp_path: Path) -> None:
    dropped = [{"labels": {"depth": "4"}, "why": "asks for 4 members; brokers.count = 2"}]
    analysis = Analysis(experiment={**example.EXPERIMENT, "dropped": dropped}, rows=[])
    assert "asks for 4 members" in write_report(analysis, tmp_path).read_text()


def test_an_empty_analysis_still_gives_a_page_that_says_so(tmp_path: Path) -> None:
    page = write_report(Analysis(experiment={}, rows=[]), tmp_path)
    assert "There is nothing to show" in words(tree(page))
    assert "No messages were analysed" in words(tree(page))


def test_an_experiment_all_of_whose_trials_failed_gives_a_page(tmp_path: Path) -> None:
    analysis = Analysis(experiment={"name": "own"}, rows=[], failed=example.failed(), trials=1)
    page = tree(write_report(analysis, tmp_path))
    assert "1 of 1 trials failed" in words(page)
    assert "did not start" in words(page)


def test_labels_are_text_and_nothing_else(tmp_path: Path) -> None:
    evil = '<script>alert("$x$ & \\frac")</script>|*_`'
    rows = [msgspec.structs.replace(row, labels={"configuration": evil}) for row in example.rows()[:6]]
    cpu = [msgspec.structs.replace(row, labels={"configuration": evil}) for row in example.cpu()[:2]]
    failed = [msgspec.structs.replace(example.failed()[0], error=evil)]
    analysis = Analysis(experiment={"name": evil, "title": evil}, rows=rows, cpu=cpu, failed=failed)
    page = write_report(analysis, tmp_path)
    assert "<script" not in page.read_text()
    assert tree(page).findtext(".//h1") == evil
    assert evil in words(tree(page).find(".//section[@id='loss']") or tree(page))
    assert "<script" not in (tmp_path / "README.md").read_text()


def test_an_experiment_names_its_parts(tmp_path: Path) -> None:
    analysis = example.full(
        experiment={**example.EXPERIMENT, "name": "own", "report": ["lost", "knee"]}, rows=[]
    )
    sections = tree(write_report(analysis, tmp_path)).findall(".//section")
    assert [each.get("id") for each in sections] == ["failed", "lost", "knee"]


def test_a_part_that_was_asked_for_and_has_no_data_says_so(tmp_path: Path) -> None:
    analysis = Analysis(experiment={"name": "own", "report": ["knee"]}, rows=[])
    assert "There is no data for this part." in write_report(analysis, tmp_path).read_text()


def test_a_part_that_does_not_exist_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no part 'lossy'; there are knee"):
        write_report(Analysis(experiment={"name": "own", "report": ["lossy"]}, rows=[]), tmp_path)


def test_every_figure_is_in_the_page_and_beside_it(full_page: Path) -> None:
    drawn = {path.stem for path in full_page.parent.glob("*.svg")}
    assert drawn == {"cpu", "series", "recovery", "knee", "success", "figure-suback_us"}
    assert len(list(tree(full_page).iter("svg"))) == len(drawn)


def test_the_same_analysis_gives_the_same_bytes(tmp_path: Path) -> None:
    first, again = (write_report(example.full(cpu=[], series=[]), tmp_path / each) for each in ("1", "2"))
    for path in sorted(first.parent.iterdir()):
        assert path.read_bytes() == (again.parent / path.name).read_bytes(), path.name


@pytest.mark.parametrize(
    "analysis",
    [
        example.full(experiment={"name": "policies", "report": ["misses"]}),
        example.full(experiment={"name": "day", "report": ["series"]}, series=example.day()),
        example.full(experiment={"name": "peers", "report": ["peers", "figures"]}, figures=example.gaps()),
        example.full(experiment={"name": "backups", "report": ["latency"]}, rows=example.backups()),
    ],
    ids=lambda analysis: analysis.experiment["name"],
)
def test_every_kind_of_figure_can_be_drawn(analysis: Analysis, tmp_path: Path) -> None:
    assert list(tree(write_report(analysis, tmp_path)).iter("svg"))


def test_what_a_crash_cost_each_system_is_one_line() -> None:
    lines = part(example.full(figures=example.gaps()), "peers").items[0].blocks[0].rows
    assert [cell.text for cell in lines[1]] == ["mosquitto", "–", "41", "–", "–", "2,400 ± 240", "4,800"]
    assert part(example.full(figures=example.depths()), "peers").items == []


def test_a_configuration_has_the_same_colour_in_every_report() -> None:
    alone, together = looks(["FCFS-"]), looks(["other", "FRAME", "FCFS-", "NATS R1", "NATS R3"])
    assert alone["FCFS-"] == together["FCFS-"]
    assert len({each["color"] for each in together.values()}) == 5
    assert len({each["marker"] for each in together.values()}) == 5


# -- JSON ----------------------------------------------------------------------------------------------------


def test_json_has_the_agreed_shape() -> None:
    found = as_json(example.full())
    assert found["experiment"] == "frame-table4"
    assert (found["commit"], found["seed"], found["machine"]["cores"]) == ("0123abc", 7, 2)
    first = found["rows"][-6]
    assert (first["topics"], first["configuration"], first["category"]) == (13525, "FCFS-", "0")
    assert (first["loss_success"], first["latency_success"]) == (78.4, 78.4)
    assert first["ci"] == {"loss_success": 13.3, "latency_success": 13.3}
    assert set(first["cpu"]) == {"primary", "backup"}
    assert first["labels"] == {"configuration": "FCFS-", "topics": "13525"}
    assert found["knees"][1]["topics"] == 135_250
    assert len(found["recovery"]) == 12


def test_json_on_disk_gives_the_analysis_back(full_page: Path) -> None:
    document = (full_page.parent / "results.json").read_bytes()
    assert from_json(document) == example.full()
    assert len(document.splitlines()) == 1


def test_json_on_disk_gives_the_same_report(full_page: Path, tmp_path: Path) -> None:
    show_report(from_json((full_page.parent / "results.json").read_bytes()), tmp_path)
    for path in sorted(tmp_path.iterdir()):
        assert path.read_bytes() == (full_page.parent / path.name).read_bytes(), path.name
    assert full_page.name in {path.name for path in tmp_path.iterdir()}


def test_of_several_repetitions_json_has_the_points_of_the_one_that_is_drawn() -> None:
    higher = [msgspec.structs.replace(each, trial=99, peak_ms=each.peak_ms + 1) for each in example.series()]
    analysis = example.full(series=[*example.series(), *higher])
    kept = from_json(json.dumps(as_json(analysis))).series
    assert [each for each in kept if each.points] == higher
    assert [each.peak_ms for each in kept] == [each.peak_ms for each in analysis.series]
    assert worst_series(kept) == worst_series(analysis.series)


def test_an_interval_that_is_not_known_survives_json() -> None:
    once = Figure(mean=80.0, ci=math.nan, low=80.0, high=80.0)
    analysis = example.full(rows=[example.row("FRAME", 1525, "0", once, once)])
    document = json.dumps(as_json(analysis), allow_nan=False)
    assert msgspec.json.decode(document)["rows"][0]["ci"]["loss_success"] is None
    assert math.isnan(from_json(document).rows[0].loss_success.ci)


# -- numbers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mean", "shown"),
    [
        (100.0, "100.0"), (0.0, "0.0"), (99.97, "99.97"), (99.999, "99.999"), (99.99999999, "> 99.999999"),
        (0.004, "0.004"), (73.24, "73.2"), (99.94, "99.9"),
    ],
)  # fmt: skip
def test_a_success_is_never_rounded_up_to_whole_nor_down_to_none(mean: float, shown: str) -> None:
    assert percent(mean) == shown


def test_intervals_of_zero_and_unknown_ones_are_not_written() -> None:
    assert with_interval(80.0, 30.1) == "80.0 ± 30.1"
    assert with_interval(100.0, 0.0) == "100.0"
    assert with_interval(80.0, math.nan) == "80.0"
    assert with_interval(99.9, 0.0123) == "99.9 ± 0.012"


def test_numbers_are_short_and_titles_have_units() -> None:
    assert [short(each) for each in (1234.5, 12.34, 0.0012345, 5.0)] == ["1,234", "12.3", "0.00123", "5"]
    assert title_of("subscribe_ms") == "subscribe (ms)"
    assert title_of("late_ns_max") == "late max (ns)"
    assert title_of("duplicates") == "duplicates"


# -- the papers ----------------------------------------------------------------------------------------------


def test_every_published_file_can_be_read_and_says_where_it_stands() -> None:
    assert len(published.names()) == 8
    for name in published.names():
        paper = published.published(name)
        assert paper is not None
        assert paper.blocks or paper.stated
        for block in paper.blocks:
            assert all(len(row.values) == len(paper.configurations) for row in block.rows)
            assert len(block.rows) == 6


def test_published_numbers_are_printed_with_the_papers_digits() -> None:
    assert printed(0.072, 0.1) == "0.072 ± 0.1"
    assert printed(0.00026, 0.0006) == "0.00026 ± 0.0006"
    assert printed(99.4, 0.36) == "99.4 ± 0.36"
    assert printed(100.0, 0.0) == "100.0"


def test_a_minus_sign_names_the_same_configuration_as_a_hyphen() -> None:
    paper = published.published("frame-table4")
    assert paper is not None
    assert paper.value(13525, 100_000_000, 0, "FCFS−") == (78.4, 13.3)
    assert paper.value(13525, 100_000_000, 0, "FRAME") == (73.2, 30.7)
    assert paper.value(13525, 100_000_000, 1, "FRAME") is None
    assert paper.value(2000, 100_000_000, 0, "FRAME") is None


def test_our_number_is_found_for_what_a_paper_states() -> None:
    def number(**want: object) -> str | None:
        return ours(example.full(), msgspec.convert(want, Ours))

    peak = {"from": "series", "value": "peak_ms", "category": "2", "unit": "ms"}
    assert number(**peak, at=["FRAME"]) == "45 ms"
    assert number(**{**peak, "unit": ""}, at=["FCFS-"], against=["FRAME"]) == "12"
    assert number(**{"from": "series", "value": "lost", "category": "0", "at": ["FCFS"]}) == "21"
    assert number(**{"from": "recovery", "value": "lost", "at": ["FCFS"]}) == "63"
    assert number(**{"from": "recovery", "value": "redispatched", "at": ["FRAME+"]}) is None
    saving = {"from": "cpu", "value": "percent", "role": "primary", "topics": 7525, "by": "saving"}
    assert number(**saving, unit="%", at=["FRAME"], against=["FCFS"]) == "55.6 %"
    assert number(**{"from": "knee", "value": "topics", "at": ["FRAME"]}) == "135,250"
    assert number(**{"from": "figure", "value": "max", "at": ["parallel", "4"], "unit": "ms"}) == "0.6 ms"
    assert number(**{"from": "row", "value": "latency_ns.max", "scale": 1e-6, "unit": "ms"}) == "12.3 ms"


def test_every_way_to_our_number_leads_to_one() -> None:
    """A selector with a typing error would be a dash for ever; the example has all that they ask for."""
    for name in ("frame-knee", "frame-recovery"):
        paper = published.published(name)
        assert paper is not None
        wanted = {each.what: each.ours for each in paper.stated if each.ours}
        missing = [what for what, each in wanted.items() if ours(example.full(), each) is None]
        assert [what for what in missing if "FCFS- kept" not in what] == []


@pytest.mark.skipif(not EXPERIMENTS.is_dir(), reason="the experiments are not in this tree")
@pytest.mark.parametrize("name", published.names())
def test_what_our_numbers_are_looked_up_by_is_in_the_experiment(name: str) -> None:
    """A label that the experiment does not have would be a dash for ever."""
    paper = published.published(name)
    assert paper is not None
    known = labels_of(tomllib.loads((EXPERIMENTS / f"{name}.toml").read_text()))
    asked = {
        label for each in paper.stated if each.ours for label in [*each.ours.at, *(each.ours.against or [])]
    }
    assert asked | set(paper.configurations) <= known


def labels_of(experiment: dict[str, Any]) -> set[str]:
    """Of everything that varies."""
    found: set[str] = set()
    for vary in experiment["vary"]:
        found |= {choice["label"] for choice in vary.get("choice", [])}
        found |= {str(each) for each in vary.get("labels") or vary.get("values", [])}
        if "range" in vary and "labels" not in vary:
            steps = vary["range"]
            found |= {str(each) for each in range(steps["from"], steps["to"] + 1, steps.get("step", 1))}
    return found


# -- Markdown and the page that compares ---------------------------------------------------------------------


def test_markdown_has_the_tables_of_the_page() -> None:
    text = write_markdown(example.full(), "results/frame-table4/")
    ours_and_theirs = "100.0 | 100.0 | 99.98 ± 0.012 | 80.0 ± 30.1 | 0.0 | 0.0 | 78.4 ± 13.3 | 100.0"
    assert f"| 50 | 0 | 0 | {ours_and_theirs} |" in text
    assert "](results/frame-table4/cpu.svg)" in text
    assert "the primary did not start within 30 s" in text
    widths = {line.count(" | ") for line in text.splitlines() if line.startswith("| **Workload: 13,525")}
    assert 10 in widths


def test_the_comparison_is_filled_from_results_and_only_between_its_marks() -> None:
    page = "By hand.\n<!-- measured: frame-table4 loss -->\nold\n<!-- /measured -->\nWhy: by hand.\n"
    before = pages.compared(page, {})
    assert "Not measured yet: `holdfast lab run frame-table4`" in before
    assert "| 50 | 0 | – | – | 100.0 | – | 80.0 ± 30.1 | – | 0.0 | – | 100.0 |" in before
    found = {"frame-table4": example.full()}
    after = pages.compared(before, found)
    assert "99.98 ± 0.012 | 80.0 ± 30.1" in after
    assert "commit 0123abc" in after
    assert "Not measured" not in after
    assert after.startswith("By hand.\n")
    assert after.endswith("<!-- /measured -->\nWhy: by hand.\n")
    assert pages.compared(after, found) == after


def test_docs_do_not_drift_from_results(capsys: pytest.CaptureFixture[str]) -> None:
    assert pages.main(["--check", str(ROOT / "docs")]) == 0, capsys.readouterr().err


def test_docs_have_the_figures_that_their_reports_show_and_no_others() -> None:
    results = ROOT / "docs" / "results"
    for name, analysis in pages.analyses(results).items():
        assert {path.name for path in (results / name).glob("*.svg")} == pages.figures_of(analysis), name


def test_a_page_that_differs_is_told_then_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_report(example.full(series=[], cpu=[], figures=[]), tmp_path / "results" / "frame-table4")
    report = tmp_path / "results" / "frame-table4" / "README.md"
    report.write_text("by hand")
    page = tmp_path / "reproducing.md"
    page.write_text("<!-- measured: frame-table4 loss -->\n<!-- /measured -->\n")
    assert pages.main(["--check", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert f"{page} differs" in said
    assert f"{report} differs" in said
    assert pages.main([str(tmp_path)]) == 0
    assert pages.main(["--check", str(tmp_path)]) == 0


def test_a_drawing_loses_digits_and_no_text() -> None:
    drawing = (
        '<svg>\n <style>*{a: b}</style>\n <g style="fill: red">\n'
        '  <path d="M 1.234567 2 \nL 3.5 -4.987654 \n" style="fill: red"/>\n'
        '  <text style="fill: blue" x="0.5">1.234567 "2.345678"</text>\n </g>\n</svg>\n'
    )
    assert compact(drawing) == (
        "<svg>\n<style>*{a: b}\n.s0{fill: red}\n.s1{fill: blue}\n</style>\n"
        '<g class="s0">\n<path d="M 1.23 2 L 3.5 -4.99 " class="s0"/>\n'
        '<text class="s1" x="0.5">1.234567 "2.345678"</text>\n</g>\n</svg>\n'
    )
