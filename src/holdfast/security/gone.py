"""Users that were in the password file and are no more: whoever gets such a name next gets nothing of theirs.

Laws:
- a session that was there when its user left the file ends before anybody goes on with it
- a standby remembers which those are, and ends them when it serves
- a broker alone that starts, and whose file alone says who there is, ends sessions of who is not in it. A
  member does not: another's file may be ahead of its own
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

from holdfast.broker.clients import Clients
from holdfast.broker.session import Session


class Gone:
    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._left: dict[str, dict[str, int]] = {}  # by user: its sessions, by key, and which they were

    @property
    def keys(self) -> list[str]:
        """Of sessions that are to end."""
        return [key for sessions in self._left.values() for key in sessions]

    def left(self, users: Iterable[str]) -> None:
        """They are not in the file any more. Who is here by other means than a password stays."""
        gone = set(users)
        self._left = {user: left for user, left in self._left.items() if any(map(self._found, left.items()))}
        if gone:
            self._note(lambda user: user in gone)

    def began_with(self, users: Container[str]) -> None:
        """Only they have names."""
        self._note(lambda user: user != "" and user not in users)

    def _note(self, is_gone: Callable[[str], bool]) -> None:
        for key, session in self._clients.sessions.items():
            if session.link is None and is_gone(session.state.user):
                self._left.setdefault(session.state.user, {})[key] = session.serial

    def _found(self, noted: tuple[str, int]) -> Session | None:
        """The session of that key, if it is the one that was there then, and nobody's now."""
        key, serial = noted
        session = self._clients.sessions.get(key)
        is_it = session is not None and session.serial == serial and session.link is None
        return session if is_it else None

    def is_over(self, session: Session) -> bool:
        noted = self._left.get(session.state.user)
        return noted is not None and self._found((session.key, noted.get(session.key, 0))) is session

    def end_of(self, user: str, now_ns: int) -> None:
        """Somebody has that name again."""
        for noted in self._left.pop(user, {}).items():
            session = self._found(noted)
            if session is not None:
                self._clients.end(session, now_ns)
