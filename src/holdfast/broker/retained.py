"""The names of the topics that have a retained message, found by topic filter.

Laws:
- matching visits only names whose levels agree with the filter so far
- a walk can be interrupted between any two nodes, while names come and go: it finds every name that is there
  from its beginning to its end, none twice, and none that is gone when it comes by
"""

from __future__ import annotations

from collections.abc import Iterator

ANY, ONE = WILDCARDS = b"#", b"+"


class _Node:
    """One level. The children of a node are a chain too, which a walk follows from one to the next; a node
    that was removed has nothing below it, and still knows who came behind it."""

    __slots__ = ("before", "behind", "children", "first", "gone", "last", "name")

    def __init__(self) -> None:
        self.children: dict[bytes, _Node] | None = None
        self.name: bytes | None = None
        self.first: _Node | None = None
        self.last: _Node | None = None
        self.before: _Node | None = None
        self.behind: _Node | None = None
        self.gone = False

    def child(self, level: bytes) -> _Node:
        """The child of that level, made if there is none."""
        if self.children is None:
            self.children = {}
        child = self.children.get(level)
        if child is None:
            child = self.children[level] = _Node()
            child.before = self.last
            if self.last is None:
                self.first = child
            else:
                self.last.behind = child
            self.last = child
        return child

    def remove(self, level: bytes) -> None:
        assert self.children is not None
        child = self.children.pop(level)
        if child.before is None:
            self.first = child.behind
        else:
            child.before.behind = child.behind
        if child.behind is None:
            self.last = child.before
        else:
            child.behind.before = child.before
        child.before = None
        child.gone = True


class RetainedNames:
    def __init__(self) -> None:
        self._plain = _Node()
        self._special = _Node()  # names that begin with '$', which no wildcard at the first level reaches
        self.gone = 0  # names that were removed so far

    def _root(self, name: bytes) -> _Node:
        return self._special if name.startswith(b"$") else self._plain

    def all(self) -> list[bytes]:
        """Every name there is, also those of the broker's own topics."""
        special = [level + b"/#" for level in self._special.children or ()]
        return [name for filter in (ANY, *special) for name in self.matching(filter)]

    def add(self, name: bytes) -> None:
        node = self._root(name)
        for level in name.split(b"/"):
            node = node.child(level)
        node.name = name

    def discard(self, name: bytes) -> None:
        path = [self._root(name)]
        levels = name.split(b"/")
        for level in levels:
            child = (path[-1].children or {}).get(level)
            if child is None:
                return
            path.append(child)
        path[-1].name = None
        self.gone += 1
        for at in range(len(levels) - 1, -1, -1):
            if path[at + 1].children or path[at + 1].name is not None:
                return
            path[at].remove(levels[at])

    def surely_none(self, filter: bytes) -> bool:
        """Whether one look tells that no name matches."""
        children = self._root(filter).children
        first = filter.partition(b"/")[0]
        if first in WILDCARDS:
            return False
        if children is None or first not in children:
            return True
        wild = filter.find(ONE) >= 0 or filter.endswith(ANY)  # `in` would try a number first, and fail
        return not wild and not self._is_there(filter)

    def _is_there(self, name: bytes) -> bool:
        node: _Node | None = self._root(name)
        for level in name.split(b"/"):
            if node is None or node.children is None:
                return False
            node = node.children.get(level)
        return node is not None and node.name is not None

    def matching(self, filter: bytes) -> list[bytes]:
        """Every name that the filter matches."""
        return [name for name in self.walk(filter) if name is not None]

    def walk(self, filter: bytes) -> Walk:
        """The same node by node: a name that the filter matches, or None for a node that has none."""
        return Walk(self._root(filter), filter)


class Walk:
    """Through the names that a filter matches. It may rest anywhere. Then it holds a few nodes, and those
    that were removed behind one that was."""

    def __init__(self, root: _Node, filter: bytes) -> None:
        # Where to go on: a node, how many levels lead to it, and whether also those behind it.
        self._places: list[tuple[_Node, int, bool]] = [(root, 0, False)]
        self._names = _walk(self._places, filter.split(b"/"))

    def __iter__(self) -> Iterator[bytes | None]:
        return self._names

    def skip_gone(self) -> int:
        """Lets go of nodes that were removed; returns how many it looked at."""
        looked = 0
        places = self._places.copy()
        self._places.clear()
        for start, at, chain in places:
            node: _Node | None = start if chain or not start.gone else None
            passed: list[_Node] = []
            while node is not None and node.gone:
                passed.append(node)
                node = node.behind
            for each in passed:
                each.behind = node  # other walks that rest there need not look again
            looked += 1 + len(passed)
            if node is not None:
                self._places.append((node, at, chain))
        return looked


def _walk(places: list[tuple[_Node, int, bool]], levels: list[bytes]) -> Iterator[bytes | None]:
    """While it rests, the places are all that it holds."""
    node: _Node | None
    below: _Node | None
    level = -1
    while places:
        node, at, chain = places.pop()
        if at != level:
            level, wanted = at, levels[at] if at < len(levels) else None
            rest = wanted == ANY
            wild, named = rest or wanted == ONE, rest or wanted is None
        below = None
        if wild:
            below = node.first
        elif wanted is not None and node.children is not None:
            below = node.children.get(wanted)
        if chain and node.behind is not None:
            places.append((node.behind, at, True))
        if below is not None:
            places.append((below, at if rest else at + 1, wild))
        name = node.name if named else None
        node = below = None
        yield name
