"""Which contract a topic is under, as the numbers that the compiled path schedules by.

Laws:
- a topic is under the first contract of the file with a filter that matches it, else under the default
- terms outlive a reload of the file: a contract that did not change keeps its counters
"""

from __future__ import annotations

from holdfast.broker.terms import Terms
from holdfast.contract.model import Contract, ContractBook
from holdfast.mqtt.topics import matches, overlap

SYSTEM_TOPICS = b"$SYS/"


class ContractIndex:
    """The contracts of one file, by topic."""

    def __init__(self, book: ContractBook, before: ContractIndex | None = None) -> None:
        self.book = book
        self.book_shape: tuple[object, object] = shape(book)
        known = (
            {terms.contract: terms for terms in before.all}
            if before and before.book_shape == self.book_shape
            else {}
        )

        def terms_of(contract: Contract) -> Terms:
            return known.get(contract) or Terms(contract, book.deployment, book.capacity)

        self.default = terms_of(book.default)
        self.contracts = [terms_of(contract) for contract in book.contracts]
        self._exact: dict[bytes, tuple[int, Terms]] = {}
        self._wild: dict[bytes, list[tuple[int, bytes, Terms]]] = {}
        for order, terms in enumerate(self.contracts):
            for text in terms.contract.topics:
                self._enter(order, text.encode(), terms)

    @property
    def all(self) -> list[Terms]:
        return [*self.contracts, self.default]

    def _enter(self, order: int, filter: bytes, terms: Terms) -> None:
        if b"+" not in filter and b"#" not in filter:
            self._exact.setdefault(filter, (order, terms))
            return
        first = filter.split(b"/", 1)[0]
        self._wild.setdefault(b"" if first in (b"+", b"#") else first, []).append((order, filter, terms))

    def terms_for(self, topic: bytes) -> Terms:
        if topic.startswith(SYSTEM_TOPICS):
            return self.default
        first = topic.split(b"/", 1)[0]
        best = self._exact.get(topic)
        for root in {first, b""}:
            for order, filter, terms in self._wild.get(root, ()):
                if best is not None and order >= best[0]:
                    break
                if matches(filter, topic):
                    best = (order, terms)
                    break
        return best[1] if best is not None else self.default

    def touched_by(self, filter: bytes) -> list[Contract]:
        """The contracts of which a subscription with this filter may receive topics."""
        touched = [
            terms.contract
            for terms in self.contracts
            if any(overlap(text.encode(), filter) for text in terms.contract.topics)
        ]
        return touched or [self.default.contract]


def shape(book: ContractBook) -> tuple[object, object]:
    """What every contract's terms depend on besides the contract itself."""
    return book.deployment, book.capacity
