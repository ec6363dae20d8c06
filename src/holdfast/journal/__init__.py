"""An append-only numbered log on disk: group commit, replay, pruning by whole segments."""

from holdfast.journal.committer import Committer
from holdfast.journal.errors import Corrupt, NotAccepted, Refusal
from holdfast.journal.format import Record
from holdfast.journal.journal import Batch, Bounds, Journal, State
from holdfast.journal.opening import Cut

__all__ = [
    "Batch",
    "Bounds",
    "Committer",
    "Corrupt",
    "Cut",
    "Journal",
    "NotAccepted",
    "Record",
    "Refusal",
    "State",
]
