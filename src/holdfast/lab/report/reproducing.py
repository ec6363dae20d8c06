"""Puts what was measured into docs/reproducing.md, between its marks; the rest of it is written by hand.

`python -m holdfast.lab.report.reproducing [PAGE]` writes; with `--check` it only says whether it would.

A mark is `<!-- measured: NAME PART … -->`: those parts of the report in results/NAME/results.json beside the
page. Without such a file the published numbers stand there alone, and what to run.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from holdfast.lab.analysis.found import Analysis
from holdfast.lab.report.markdown import part_lines, plain_text
from holdfast.lab.report.page import RESULTS, TEXT
from holdfast.lab.report.parts import check_text, facts, part
from holdfast.lab.report.results import from_json

PAGE = Path("docs/reproducing.md")
MARKED = re.compile(r"(<!-- measured: (\S+)((?: \S+)*) -->\n).*?(<!-- /measured -->)", re.DOTALL)
# Of the facts of a report, those that a reader of the comparison needs; the rest is in the report.
FACTS = ("machine", "commit", "seed", "repetitions", "warm-up", "measured", "trials")


def filled(page: str, results: Path) -> str:
    """The page with what stands in the folder of results."""

    def measured(match: re.Match[str]) -> str:
        lines = _lines(match[2], match[3].split(), results)
        return match[1] + "\n".join(lines).strip() + "\n" + match[4]

    return MARKED.sub(measured, page)


def _lines(name: str, wanted: list[str], results: Path) -> list[str]:
    path = results / name / RESULTS
    if path.exists():
        analysis = from_json(path.read_bytes())
        lines = [*_about(analysis, name), ""]
    else:
        analysis = Analysis(experiment={"name": name}, rows=[])
        lines = [f"Not measured yet: `holdfast lab run {name}`.", ""]
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


def main(arguments: list[str]) -> int:
    paths = [each for each in arguments if each != "--check"]
    page = Path(paths[0]) if paths else PAGE
    before = page.read_text(encoding="utf-8")
    after = filled(before, page.parent / "results")
    if "--check" not in arguments:
        page.write_text(after, encoding="utf-8")
    elif before != after:
        print(f"{page} differs from its results: run python -m holdfast.lab.report.reproducing {page}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
