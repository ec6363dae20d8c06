"""The list of protections that `make mutants` takes out is of this code, and whole."""

import re

import pytest

from security.mutants import ROOT, Mutant, mutants

PROTECTION = re.compile(r"\| `(tests/\S+::\S+)` \|")


def test_every_protection_that_is_told_of_is_taken_out_once() -> None:
    told = set(PROTECTION.findall((ROOT / "docs" / "security.md").read_text()))
    assert told
    assert told == {mutant.test for mutant in mutants()}


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.test.partition("::")[2])
def test_what_is_taken_out_is_there(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text().count(mutant.was) == 1
    assert mutant.was != mutant.becomes
