"""Every error Holdfast raises on purpose, and whose fault it is.

HoldfastError
├── ConfigError    the operator's: a file or an option is wrong; lists every problem with the path to it
├── PeerError      the peer's: what came over a connection breaks the protocol or a limit;
│                  carries the MQTT reason code that the peer is told
├── Refused        ours, as the broker sees it: it said no to what we asked; carries its MQTT reason code
└── Unavailable    nobody's: something outside (a port, a peer, a tool) is not there; says what would do
    ├── journal.Corrupt      a journal file is damaged where it was safe; names the file and the offset
    ├── journal.NotAccepted  the journal took nothing: it is full, behind, failed or closed
    ├── results.Damaged      what a channel found cannot be read any more; names the file
    └── datasets.ManifestDamaged  which files datasets have is not known any more; says what to restore
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class HoldfastError(Exception):
    """The root: catch it to catch everything that Holdfast raises on purpose."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong in a configuration: where, and what would do instead."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ConfigError(HoldfastError):
    """A configuration that cannot be used. `problems` holds all that is wrong, not only the first."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = tuple(problems)
        super().__init__("\n".join(f"{source}: {problem}" for problem in self.problems))


class ConfigErrors(ConfigError):
    """Those of several files and options, one after the other."""

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        super().__init__(errors[0].source, [problem for error in errors for problem in error.problems])
        self.args = ("\n".join(map(str, errors)),)


class PeerError(HoldfastError):
    """What a peer sent cannot be accepted; `reason` is the MQTT reason code that says so on the wire."""

    def __init__(self, reason: int, text: str) -> None:
        self.reason = reason
        self.text = text
        super().__init__(f"0x{reason:02X} {text}")


class Refused(HoldfastError):
    """The broker said no; `reason` is the MQTT reason code that it gave, the text says to what and why."""

    def __init__(self, reason: int, text: str) -> None:
        self.reason = reason
        super().__init__(text)


class Unavailable(HoldfastError):
    """Something outside Holdfast is not there: a port that is taken, a peer that does not answer."""
