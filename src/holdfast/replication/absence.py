"""The primary is not heard any more: whether it is gone, and whose turn it is then.

Laws:
- a primary is gone when it was silent, or its connection ended and it cannot be dialed
- a later heir leaves those before it twice `silence` each: they lived when the primary last told of its heirs
- while one of them is content with the primary, that is not gone: it is only we who do not hear it
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.replication.peer import Peer
from holdfast.replication.roles import Happening, Role

if TYPE_CHECKING:
    from holdfast.replication.member import Member


class Absence:
    def __init__(self, member: Member) -> None:
        self.member = member
        self.last_sign_ns: int | None = None  # of the primary that was followed last
        self.silent = False  # it was taken for gone for want of a sign
        self._since_ns: int | None = None

    def begin(self, primary: Peer, now_ns: int) -> None:
        self.member.peers.sought = ""  # whoever was sought before: this one is what matters now
        self.last_sign_ns, self.silent = primary.heard_ns, primary.state.mute
        self.member.history.lost_primary(primary.state)
        self._since_ns = now_ns
        primary.buffer = None

    def end(self) -> None:
        self._since_ns = None

    def look(self, now_ns: int) -> None:
        """Decides, when it is time."""
        since_ns = self._since_ns
        if since_ns is None or now_ns < since_ns + self._patience_ns():
            return
        if self.member.peers.sought and now_ns < since_ns + self.member.silence.ns:
            return
        self._since_ns = None
        links = (self.member.peers.link_to(heir) for heir in self._heirs_before())
        served = any(link is not None and link.state.role is Role.BACKUP for link in links)
        self.member.happen(Happening.DROPPED if served else Happening.PRIMARY_GONE, now_ns)

    @property
    def next_ns(self) -> int | None:
        if self._since_ns is None:
            return None
        dialed_ns = self.member.silence.ns if self.member.peers.sought else 0
        return self._since_ns + max(self._patience_ns(), dialed_ns)

    def _patience_ns(self) -> int:
        """How long to leave it to the heirs that come before us."""
        return len(self._heirs_before()) * 2 * self.member.silence.ns

    def _heirs_before(self) -> tuple[str, ...]:
        heirs = self.member.view.heirs
        return heirs[: heirs.index(self.member.name)] if self.member.name in heirs else heirs
