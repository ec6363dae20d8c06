"""What is kept in the repository is small: sources, data, and pages that a command makes of data."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE_BYTES_MAX = 256 * 1024
# Of an experiment or a benchmark its data, a figure of it once, and the page that `make pages` writes.
RESULTS = {".json", ".svg", ".md"}


@pytest.fixture(scope="module")
def tracked() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    return [path for name in listed.decode().split("\0") if name and (path := ROOT / name).exists()]


def test_no_tracked_file_is_large(tracked: list[Path]) -> None:
    large = {str(path.relative_to(ROOT)): path.stat().st_size for path in tracked}
    assert {name: size for name, size in large.items() if size > FILE_BYTES_MAX} == {}


def test_results_are_data_one_figure_each_and_a_page(tracked: list[Path]) -> None:
    results = [path for path in tracked if path.is_relative_to(ROOT / "docs" / "results")]
    assert results
    assert {path.suffix for path in results} == RESULTS
    assert {path.name for path in results if path.suffix == ".md"} == {"README.md"}
