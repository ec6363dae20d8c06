"""The names of the topics that have a retained message, found by topic filter.

Law: matching visits only names whose levels agree with the filter so far.
"""

from __future__ import annotations

from collections.abc import Iterator


class _Node:
    __slots__ = ("children", "name")

    def __init__(self) -> None:
        self.children: dict[bytes, _Node] = {}
        self.name: bytes | None = None


class RetainedNames:
    def __init__(self) -> None:
        self._root = _Node()
        self._names: dict[bytes, None] = {}

    def all(self) -> list[bytes]:
        """Every name there is, also those of the broker's own topics."""
        return list(self._names)

    def add(self, name: bytes) -> None:
        self._names[name] = None
        node = self._root
        for level in name.split(b"/"):
            node = node.children.setdefault(level, _Node())
        node.name = name

    def discard(self, name: bytes) -> None:
        self._names.pop(name, None)
        path = [self._root]
        levels = name.split(b"/")
        for level in levels:
            if level not in path[-1].children:
                return
            path.append(path[-1].children[level])
        path[-1].name = None
        for parent, level in zip(reversed(path[:-1]), reversed(levels), strict=True):
            if parent.children[level].children or parent.children[level].name is not None:
                return
            del parent.children[level]

    def matching(self, filter: bytes) -> Iterator[bytes]:
        """Every name that the filter matches. The names may change while this is read: take them first."""
        levels = filter.split(b"/")
        stack: list[tuple[_Node, int]] = [(self._root, 0)]
        while stack:
            node, at = stack.pop()
            if at == len(levels):
                if node.name is not None:
                    yield node.name
            elif levels[at] == b"#":
                if node.name is not None:
                    yield node.name
                stack.extend((child, at) for child in self._children(node))
            elif levels[at] == b"+":
                stack.extend((child, at + 1) for child in self._children(node))
            elif levels[at] in node.children:
                stack.append((node.children[levels[at]], at + 1))

    def _children(self, node: _Node) -> list[_Node]:
        """A wildcard at the first level does not reach names that begin with '$'."""
        if node is not self._root:
            return list(node.children.values())
        return [child for level, child in node.children.items() if not level.startswith(b"$")]
