"""The page on verification names laws that the simulator judges, and tests and benchmarks that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "verification.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.partition("## Promises")[2].partition("\n## ")[0].splitlines()
    if line.startswith("| ") and "---" not in line
][1:]


def laws() -> set[str]:
    """Functions of the checkers that a verdict is made of, as the page writes them."""
    found: set[str] = set()
    for path in (ROOT / "src" / "holdfast" / "sim").glob("*.py"):
        found |= set(
            re.findall(r"^def (\w+)\(evidence: Evidence\) -> Iterator", path.read_text(), re.MULTILINE)
        )
        found |= set(re.findall(r"^def (\w+)\(.*\) -> Iterator\[Violation\]", path.read_text(), re.MULTILINE))
    return {name.replace("_", " ") for name in found if not name.startswith("_")}


def test_every_promise_names_a_check() -> None:
    assert len(ROWS) > 15
    for promise, law, others in ROWS:
        assert law != "no law" or others, promise


def test_every_law_on_the_page_is_judged() -> None:
    named = {name for _, law, _ in ROWS for name in re.findall(r"\*([\w ]+)\*", law)}
    assert named <= laws(), named - laws()


def test_every_folder_and_benchmark_exists() -> None:
    for name in re.findall(r"`((?:tests|src|benchmarks|experiments|fuzz)[\w./]*)`", PAGE):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"benchmark `([\w-]+)`", PAGE):
        assert list((ROOT / "benchmarks").rglob(f"{name}.py")), name
    for name in re.findall(r"experiment `([\w-]+)`", PAGE):
        assert list((ROOT / "experiments").rglob(f"{name}.*")), name
