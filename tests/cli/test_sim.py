"""`holdfast sim`: options first, then a verdict; sweeps; wrong options."""

from __future__ import annotations

import subprocess
import sys

import pytest


def holdfast(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast.cli.main", "sim", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_a_seed_prints_its_options_first_and_a_verdict_last() -> None:
    done = holdfast("--seed", "7")
    lines = done.stdout.splitlines()
    assert lines[0] == "seed 7"
    assert any(line.startswith("fault: ") for line in lines)
    assert lines[-1] == "every law held"
    assert done.returncode == 0


def test_a_seed_replays_the_same() -> None:
    assert holdfast("--seed", "11").stdout == holdfast("--seed", "11").stdout


def test_a_sweep_says_how_many_and_how_fast() -> None:
    done = holdfast("--seeds", "1..4")
    assert done.stdout.startswith("4 seeds, ")
    assert done.stdout.splitlines()[-1] == "every law held"
    assert done.returncode == 0


def test_a_mutant_is_found_and_its_story_told() -> None:
    done = holdfast("--seeds", "1..12", "--mutant", "client-gives-twice")
    assert done.returncode == 1
    last = done.stdout.splitlines()[-1]
    assert "bad seeds: " in last
    seed = last.partition("bad seeds: ")[2].split(" ")[0]
    told = holdfast("--seed", seed, "--mutant", "client-gives-twice", "--explain")
    assert told.returncode == 1
    assert "BROKEN Once" in told.stdout
    story = told.stdout.partition("the story of ")[2]
    assert " created it" in story
    assert story.count("the user of subscriber-") >= 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give one of --seed N, --seeds A..B and --fresh COUNT"),
        (("--seed", "1", "--seeds", "1..2"), "give one of --seed N, --seeds A..B and --fresh COUNT"),
        (("--seeds", "5..1"), '"5..1" is not a range; for example 1..1000'),
        (("--seeds", "many"), '"many" is not a range'),
        (("--seed", "1", "--mutant", "nobody"), "there is no nobody; there are client-gives-twice"),
    ],
)
def test_wrong_options_are_told(arguments: tuple[str, ...], words: str) -> None:
    done = holdfast(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
