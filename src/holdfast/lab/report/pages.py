"""The pages of a folder of documentation that show the results of experiments.

`python -m holdfast.lab.report.pages [DOCS]` writes them; with `--check` it only says which it would change.

Laws:
- every number comes from a results/NAME/results.json; README.md and the figures beside it follow from it
- in reproducing.md a mark `<!-- measured: NAME PART … -->` shows those parts of the report NAME
- without results the published numbers stand there alone, and what to run
"""

from __future__ import annotations

import sys
from pathlib import Path

from holdfast.lab.analysis.found import Analysis
from holdfast.lab.report.document import Plot
from holdfast.lab.report.markdown import part_lines, plain_text, write_markdown
from holdfast.lab.report.marks import filled, settle
from holdfast.lab.report.page import RESULTS, TEXT, show_report
from holdfast.lab.report.parts import check_text, facts, part, parts
from holdfast.lab.report.results import from_json

DOCS = Path("docs")
COMPARISON = "reproducing.md"
# Of the facts of a report, those that a reader of the comparison needs; the rest is in the report.
FACTS = ("machine", "commit", "seed", "repetitions", "warm-up", "measured", "trials")


def analyses(results: Path) -> dict[str, Analysis]:
    """What was found, by the names of the experiments."""
    return {path.parent.name: from_json(path.read_bytes()) for path in sorted(results.glob(f"*/{RESULTS}"))}


def compared(page: str, found: dict[str, Analysis]) -> str:
    """The page that compares, with what was found."""
    return filled(page, lambda words: _lines(words[0], words[1:], found.get(words[0])))


def _lines(name: str, wanted: list[str], analysis: Analysis | None) -> list[str]:
    if analysis is None:
        analysis = Analysis(experiment={"name": name}, rows=[])
        lines = [f"Not measured yet: `holdfast lab run {name}`.", ""]
    else:
        lines = [*_about(analysis, name), ""]
    for each in wanted:
        lines += part_lines(part(analysis, each), f"results/{name}/")
    return lines


def _about(analysis: Analysis, name: str) -> list[str]:
    said = "; ".join(f"{key} {plain_text(value)}" for key, value in facts(analysis) if key in FACTS)
    return [
        f"Measured: {said}. [The whole report](results/{name}/{TEXT}).",
        "",
        plain_text(check_text(analysis)),
    ]


def figures_of(analysis: Analysis) -> set[str]:
    """The files of the figures that its report shows."""
    return {f"{item.name}.svg" for each in parts(analysis) for item in each.items if isinstance(item, Plot)}


def main(arguments: list[str]) -> int:
    places = [each for each in arguments if each != "--check"]
    docs = Path(places[0]) if places else DOCS
    check = "--check" in arguments
    results, page = docs / "results", docs / COMPARISON
    found = analyses(results)
    if not check:
        for name, analysis in found.items():
            show_report(analysis, results / name)
    texts = {results / name / TEXT: write_markdown(analysis) for name, analysis in found.items()}
    texts[page] = compared(page.read_text(), found)
    return settle(texts, check, f"python -m holdfast.lab.report.pages {docs}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
