"""Every input that a fuzz target once failed on, run through the same target.

A finding is a file fuzz/findings/TARGET-what-went-wrong; the README.md beside it tells what each was.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz import broker, codec, publish

FINDINGS = Path(__file__).parents[2] / "fuzz" / "findings"
RUN = {"codec": codec.run, "publish": publish.run, "broker": broker.run}


@pytest.mark.parametrize("path", sorted(FINDINGS.glob("*-*")), ids=lambda path: path.name)
def test_what_was_found_stays_fixed(path: Path) -> None:
    RUN[path.name.split("-", 1)[0]](path.read_bytes())


def test_every_finding_is_explained() -> None:
    told = (FINDINGS / "README.md").read_text()
    for path in FINDINGS.glob("*-*"):
        assert f"`{path.name}`" in told, f"{path.name} is not in fuzz/findings/README.md"
