"""Which channel subscriptions exist, as the brokers tell on `$channel/$subscriptions`.

Laws:
- once a whole list has come, the subscriptions are always those of some moment at the broker: a list that is
  on its way changes nothing until it is complete
- a message that does not follow the one before is noticed, once in an epoch, and not believed
- a message that comes again changes nothing
"""

from __future__ import annotations

from holdfast.mqtt.channels import Told, parse_told, split_key

WANTED_MAX = 100_000


class Subscribers:
    """`told` takes the payloads of the messages; where it says False, publishing the catalog asks anew."""

    def __init__(self) -> None:
        self.ready = False
        self._known: dict[str, dict[str, None]] = {}
        self._coming: dict[str, dict[str, None]] | None = None
        self._versions: dict[str, int] = {}
        self._epoch: str | None = None
        self._doubted: str | None = None  # the epoch in which something was missed last
        self._number = 0
        self._wanted: dict[str, tuple[str, str, int]] = {}

    def version(self, channel: str) -> int:
        """Changes whenever the subscriptions of the channel do."""
        return self._versions.get(channel, 0)

    def of(self, channel: str) -> list[str]:
        """The distinct subscriptions, as in the topic: the levels behind `$channel/NAME/`."""
        return list(self._known.get(channel, ()))

    @property
    def channels(self) -> list[str]:
        """Every channel that somebody subscribes to."""
        return list(self._known)

    def take_wanted(self) -> list[tuple[str, str, str, int]]:
        """Requests for last results that have come: (token, channel, subscription, how many)."""
        wanted, self._wanted = self._wanted, {}
        return [(token, *each) for token, each in wanted.items()]

    def told(self, payload: bytes) -> bool:
        """Takes a message; False: one is missing before it, and the whole list should be asked for."""
        try:
            told = parse_told(payload)
        except ValueError:
            return self._missed("")
        if told.epoch == self._epoch:
            if told.number <= self._number:
                return True
            if told.number > self._number + 1:
                return self._missed(told.epoch)
        elif not told.begins:
            return self._missed(told.epoch)
        else:
            self._epoch, self._coming = told.epoch, {}
        self._number = told.number
        self._apply(told)
        return True

    def _missed(self, epoch: str) -> bool:
        """Says whether that was noticed before."""
        before, self._doubted = self._doubted == epoch, epoch
        return before

    def _apply(self, told: Told) -> None:
        into = self._known if self._coming is None else self._coming
        changed: set[str] = set()
        for key in told.added:
            channel, subscription = split_key(key)
            known = into.setdefault(channel, {})
            if subscription not in known:
                known[subscription] = None
                changed.add(channel)
        for key in told.removed:
            channel, subscription = split_key(key)
            if subscription in into.get(channel, ()):
                del into[channel][subscription]
                changed.add(channel)
                if not into[channel]:
                    del into[channel]
        if self._coming is None:
            self._count(changed)
        elif told.complete:
            before, self._known, self._coming = self._known, self._coming, None
            self.ready = True
            both = before.keys() | self._known.keys()
            self._count({each for each in both if before.get(each) != self._known.get(each)})
        for token, key, last in told.wanted:
            if len(self._wanted) < WANTED_MAX:
                self._wanted[token] = (*split_key(key), last)

    def _count(self, changed: set[str]) -> None:
        for channel in changed:
            self._versions[channel] = self._versions.get(channel, 0) + 1
