"""Every command explains itself: what for, examples, exit codes; and the shell can complete it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from rich.text import Text

from holdfast.cli.main import app


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if hasattr(command, "commands"):
        for name, each in command.commands.items():
            yield from commands(each, (*path, name))
    else:
        yield path, command


ALL = list(commands(typer.main.get_command(app)))


@pytest.mark.parametrize(("path", "command"), ALL, ids=[" ".join(path) for path, _ in ALL])
def test_help_has_a_purpose_an_example_and_exit_codes(path: tuple[str, ...], command: Any) -> None:
    text = command.help or ""
    assert text.splitlines()[0].rstrip().endswith((".", ":")) or len(text.splitlines()) > 1
    assert f"holdfast {' '.join(path)}" in text, "an example of how to call it"
    assert "Exits with" in text, "what its exit code says"
    for parameter in command.params:
        assert getattr(parameter, "help", None), f"what {parameter.name} is"


@pytest.mark.parametrize(("path", "command"), ALL, ids=[" ".join(path) for path, _ in ALL])
def test_nothing_of_a_help_is_taken_for_a_style(path: tuple[str, ...], command: Any) -> None:
    texts = [command.help or "", *(getattr(each, "help", None) or "" for each in command.params)]
    for text in texts:
        said = text.replace("\b", "").rstrip()  # which keeps lines as they are
        assert Text.from_markup(said).plain == said


def completed(shell: str, words: str) -> str:
    """What the shell would offer behind these words."""
    variables = {
        "_HOLDFAST_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
        "_TYPER_COMPLETE_ARGS": words,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    return subprocess.run(
        [os.path.join(os.path.dirname(sys.executable), "holdfast")],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    ).stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands_and_options(shell: str) -> None:
    assert "broker" in completed(shell, "holdfast br")
    assert "--contracts" in completed(shell, "holdfast doctor --con")
