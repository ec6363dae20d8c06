"""A journal in memory, and brokers that keep it: what was synced outlives a crash, the rest does not."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tests.broker.bench import WALL_NS, Bench

from holdfast.contract.model import ContractBook
from holdfast.replication.keeping import Keeping, keep_alone


class Notebook:
    """Records in the order in which they were written; those up to `durable` survive."""

    def __init__(self) -> None:
        self.records: list[tuple[int, int, bytes]] = []
        self.durable = 0
        self.pruned = 0
        self.full = False
        self.behind = False

    def read(self, start: int | None, kinds: Collection[int] | None) -> Iterator[tuple[int, int, bytes]]:
        for number, kind, body in list(self.records):
            if number > self.durable or number < (start or 0) or number < self.pruned:
                continue
            if kinds is None or kind in kinds:
                yield number, kind, body

    def write(self, keeping: Keeping, room: bool = True) -> None:
        for entry in keeping.take(room):
            if self.full:
                keeping.refused("no space left")
                return
            number = self.records[-1][0] + 1 if self.records else 1
            self.records.append((number, int(entry.kind), entry.body))
            keeping.accepted(entry, number)

    def sync(self, keeping: Keeping) -> None:
        if self.records and self.durable < self.records[-1][0]:
            self.durable = self.records[-1][0]
            keeping.durable(self.durable)
        if keeping.prune_before is not None:
            self.pruned, keeping.prune_before = keeping.prune_before, None

    def crash(self) -> None:
        """What was not synced is gone."""
        self.records = [record for record in self.records if record[0] <= self.durable]


class KeptBench(Bench):
    """A broker alone that keeps a notebook; every turn is written, and synced when `syncs`."""

    def __init__(
        self, notebook: Notebook, contracts: ContractBook | None = None, growth: int = 2**20
    ) -> None:
        self.notebook = notebook
        self.keeping: Keeping | None = None
        self.syncs = True
        super().__init__(contracts)
        self.broker.core.board.now_ns, self.broker.core.board.wall_ns = self.now_ns, WALL_NS + self.now_ns
        self.keeping = keep_alone(self.broker, notebook.read, "here", self.now_ns, growth)
        self.run()

    def turn(self) -> bool:
        more = super().turn()
        if self.keeping is None:
            return more
        self.notebook.write(self.keeping)
        if self.syncs:
            self.notebook.sync(self.keeping)
        core = self.broker.core
        return more or self.keeping.waiting or core.board.waiting or bool(core.control)
