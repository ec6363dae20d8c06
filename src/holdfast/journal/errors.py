"""What a journal cannot do, and why.

Unavailable
├── Corrupt        a file of the journal is damaged where it was once safe; names the file and the offset
└── NotAccepted    an append was turned down and changed nothing; `reason` says which bound or state it was
"""

from __future__ import annotations

from enum import Enum

from holdfast.errors import Unavailable


class Corrupt(Unavailable):
    """Damage that a crash cannot explain. Nothing was changed on disk."""

    def __init__(self, file: str, offset: int, text: str) -> None:
        self.file = file
        self.offset = offset
        self.text = text
        super().__init__(
            f"{file} is damaged at byte {offset}: {text}. A crash does not explain this. "
            "Restore the file from a copy, or move the whole directory away to start with an empty journal."
        )


class Refusal(Enum):
    TOO_LONG = "too long"
    BEHIND = "behind"
    FULL = "full"
    FAILED = "failed"
    CLOSED = "closed"


class NotAccepted(Unavailable):
    """The journal took nothing of what was offered; what it had accepted before is kept."""

    def __init__(self, reason: Refusal, text: str) -> None:
        self.reason = reason
        super().__init__(text)
