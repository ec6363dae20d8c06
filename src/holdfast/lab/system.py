"""What a trial asks of the brokers that it measures, whoever made them."""

from __future__ import annotations

from typing import Protocol


class System(Protocol):
    """Roles are `primary` and `backup`, as they were when it was last ready, or a fault was asked for.

    Whatever it started is gone after `close`, whatever happened before. Times are CLOCK_REALTIME.
    """

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where clients reach it, all of them for each client."""
        ...

    def start(self) -> None: ...

    def await_ready(self) -> None:
        """Returns when clients are served, and protected if they are to be."""
        ...

    def pids(self) -> dict[str, int]:
        """The processes that run, by role; a second backup is `backup 2`."""
        ...

    def kill(self, role: str) -> int:
        """SIGKILL; returns when."""
        ...

    def start_again(self, role: str) -> None:
        """After it was killed; returns when it listens."""
        ...

    def stop(self, role: str) -> int:
        """SIGSTOP; returns when."""
        ...

    def go_on(self, role: str) -> None: ...

    def cut(self) -> int:
        """Nothing passes between the brokers; returns from when on."""
        ...

    def heal(self) -> None: ...

    def takeover(self) -> dict[str, int]:
        """What the broker that took over dispatched `again`, and the `copies` that it had got; empty if
        nobody took over, or it does not say."""
        ...

    def takeovers(self) -> int:
        """How often another broker took over, with or without a fault, as far as it says."""
        ...

    def last_words(self) -> str: ...

    def close(self) -> None: ...
