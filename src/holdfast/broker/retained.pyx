"""The names of the topics that have a retained message, found by topic filter.

Laws:
- matching visits only names whose levels agree with the filter so far
- a walk can be interrupted between any two nodes, while names come and go: it finds every name that is there
  from its beginning to its end, none twice, and none that is gone when it comes by
- a node below the roots has a name or at least two children, so there are fewer than two for each name, however
  many levels it has: levels at which nothing branches are one node's. What a name takes is no more than
  `broker/retained_messages.pxd` counts for it, about
"""

import sys

cimport cython
from libc.string cimport memchr, memcmp

ANY, ONE = WILDCARDS = b"#", b"+"
SPARSE_BYTES = 1000  # of a table of children for each child: then it is made anew, as small as it can be

cdef enum:
    NEVER = 0x7FFFFFFF


@cython.trashcan(True)  # those that were removed one after the other hold each other, and a walk the first of them
cdef class Node:
    """One level, and those behind it at which nothing branches. The children of a node are a chain too, which a
    walk follows from one to the next. A node that was removed has nothing below it, and still knows who came
    behind it; one whose only child took its place still leads to that child."""

    cdef dict children
    cdef bytes name
    cdef bytes rest         # its further levels, None if there are none
    cdef Node first, last   # of its children
    cdef Node before, behind
    cdef int depth          # levels that lead to it, its first one included
    cdef int plain          # the same, but -1 if it has further levels
    cdef bint gone          # it was removed
    cdef bint replaced      # by its only child: it may still lead to who is gone

    def __cinit__(self, int depth, bytes rest=None) -> None:
        self.depth = depth
        self.set_rest(rest)

    cdef void set_rest(self, bytes rest) noexcept:
        self.rest = rest
        self.plain = self.depth if rest is None else -1

    cdef Node child(self, bytes level):
        return None if self.children is None else self.children.get(level)

    cdef append(self, bytes level, Node child):
        if self.children is None:
            self.children = {}
        self.children[level] = child
        child.before = self.last
        if self.last is None:
            self.first = child
        else:
            self.last.behind = child
        self.last = child

    cdef remove(self, bytes level):
        cdef Node child = self.children.pop(level)
        self.tie(child.before, child.behind)
        child.before = None
        child.gone = 1
        if not self.children:
            self.children = None
        elif sys.getsizeof(self.children) > SPARSE_BYTES * len(self.children):
            self.children = dict(self.children)

    cdef void tie(self, Node before, Node behind) noexcept:
        if before is None:
            self.first = behind
        else:
            before.behind = behind
        if behind is None:
            self.last = before
        else:
            behind.before = before

    cdef split(self, int same):
        """It keeps so many of its further levels; the rest is its only child's, with all that was below."""
        cdef list levels = self.rest.split(b"/")
        cdef Node lower = Node(self.depth + same + 1, joined(levels, same + 1, len(levels)))
        lower.children, lower.first, lower.last, lower.name = self.children, self.first, self.last, self.name
        self.children, self.first, self.last, self.name = None, None, None, None
        self.set_rest(joined(levels, 0, same))
        self.append(levels[same], lower)

    cdef lift(self, bytes level):
        """The only child of a child takes the place of that child. A walk that is at the former comes to its only
        child all the same, and one that is at the child sees by its depth that it was lifted."""
        cdef Node former = self.children[level]
        cdef Node child = former.first
        (below,) = former.children
        child.depth = former.depth
        child.set_rest(b"/".join([each for each in (former.rest, below, child.rest) if each is not None]))
        self.children[level] = child
        self.tie(former.before, child)
        self.tie(child, former.behind)
        former.before = None
        former.replaced = 1


cdef bytes joined(list levels, Py_ssize_t start, Py_ssize_t end):
    return b"/".join(levels[start:end]) if start < end else None


class RetainedNames:
    def __init__(self) -> None:
        self._plain = Node(0)
        self._special = Node(0)  # names that begin with '$', which no wildcard at the first level reaches
        self.gone = 0  # names that were removed so far

    def _root(self, name: bytes) -> Node:
        return self._special if name.startswith(b"$") else self._plain

    def all(self) -> list[bytes]:
        """Every name there is, also those of the broker's own topics."""
        special = [level + b"/#" for level in (<Node>self._special).children or ()]
        return [name for filter in (ANY, *special) for name in self.matching(filter)]

    def add(self, name: bytes) -> None:
        cdef list levels = name.split(b"/")
        cdef Py_ssize_t at = 0, same
        cdef Node node = self._root(name)
        cdef Node child
        while at < len(levels):
            level = levels[at]
            child = node.child(level)
            at += 1
            if child is None:
                child = Node(at, joined(levels, at, len(levels)))
                node.append(level, child)
                at = len(levels)
            elif child.rest is not None:
                own = child.rest.split(b"/")
                same = alike(own, levels, at)
                if same < len(own):
                    child.split(same)
                at += same
            node = child
        node.name = name

    def discard(self, name: bytes) -> None:
        cdef list path = path_of(self._root(name), name)
        cdef Node parent, node
        if not path:
            return
        parent, level = path.pop()
        node = parent.children[level]
        if node.name is None:
            return
        node.name = None
        self.gone += 1
        if node.children is None:
            parent.remove(level)
            if not path or parent.name is not None:
                return
            node = parent
            parent, level = path.pop()
        if node.first is node.last:
            parent.lift(level)

    def surely_none(self, filter: bytes) -> bool:
        """Whether one look tells that no name matches."""
        cdef Node root = self._root(filter)
        first = filter.partition(b"/")[0]
        if first in WILDCARDS:
            return False
        if root.child(first) is None:
            return True
        wild = filter.find(ONE) >= 0 or filter.endswith(ANY)  # `in` would try a number first, and fail
        return not wild and not self._is_there(filter)

    def _is_there(self, name: bytes) -> bool:
        cdef list path = path_of(self._root(name), name)
        cdef Node parent
        if not path:
            return False
        parent, level = path.pop()
        return (<Node>parent.children[level]).name is not None

    def _count(self) -> int:
        """How many nodes there are, the roots apart."""
        return below_of(self._plain) + below_of(self._special)

    def matching(self, filter: bytes) -> list[bytes]:
        """Every name that the filter matches."""
        return [name for name in self.walk(filter) if name is not None]

    def walk(self, filter: bytes) -> Walk:
        """The same node by node: a name that the filter matches, or None for a node that has none, and for each
        further level that agrees."""
        return Walk(self._root(filter), filter)


class Walk:
    """Through the names that a filter matches. It may rest anywhere. Then it holds a few nodes, and those that
    were removed behind one that was."""

    def __init__(self, Node root, filter: bytes) -> None:
        # Where to go on: a node, how many levels led to it, and whether also those behind it.
        self._places = [(root, 0, False)]
        self._names = steps(self._places, filter.split(b"/"))

    def __iter__(self) -> Iterator[bytes | None]:
        return self._names

    def skip_gone(self) -> int:
        """Lets go of nodes that were removed; returns how many it looked at."""
        cdef Node start, node
        cdef int at, looked = 0
        cdef bint chain
        places = self._places.copy()
        self._places.clear()
        for start, at, chain in places:
            node = start if not start.gone else first_there(start, at, &looked) if chain else None
            looked += 1
            if node is not None:
                self._places.append((node, at, chain))
            while node is not None and node.replaced:
                node.behind = first_there(node.behind, node.depth, &looked)
                node = node.first
                if node is not None:
                    first_there(node, node.depth, &looked)
                looked += 1
        return looked


cdef Node first_there(Node start, int depth, int* looked):
    """From a node on, along its chain. All that were passed lead there at once from now on."""
    cdef Node node = start, passed
    while node is not None and node.gone:
        # Who was lifted was the last there: what is behind it is elsewhere.
        node = node.behind if node.depth == depth else None
        looked[0] += 1
    while start is not node and start.depth == depth:
        passed = start
        start = passed.behind
        passed.behind = node
        if start is None:
            break
    return node


def steps(list places, list levels) -> Iterator[bytes | None]:
    """While it rests, the places are all that it holds."""
    cdef int count = len(levels)
    cdef int any_at = count - 1 if levels[count - 1] == ANY else NEVER
    cdef Node node, below
    cdef int at, end, agree
    cdef bint chain, wild
    cdef bytes wanted, found
    while places:
        node, at, chain = places.pop()
        below = found = None
        agree = 0
        if node.plain == at:
            end = at
        elif node.depth == at >= any_at:
            end = at if node.first is None else max(at, node.first.depth - 1)
        else:
            # Of a lifted node all levels are compared: those that led to it agree again.
            end = compare(node, levels, any_at, &agree)
        # Who was lifted since its place was noted was the last there: what is behind it is elsewhere.
        if chain and node.depth == at and node.behind is not None:
            places.append((node.behind, at, True))
        if end >= 0:
            wanted = ANY if end >= any_at else <bytes>levels[end] if end < count else None
            wild = wanted is not None and (wanted == ONE or end >= any_at)
            if wild:
                below = node.first
            elif wanted is not None:
                below = node.child(wanted)
            if wanted is None or end >= any_at:
                found = node.name
            if below is not None:
                places.append((below, end + 1, wild))
        node = below = None
        yield found
        while agree > 0:
            agree -= 1
            yield None


cdef int compare(Node node, list levels, int any_at, int* agree) except -2:
    """How many levels a node ends if all its further ones agree, or -1; and how many agree with the filter."""
    cdef const char* text
    cdef const char* end
    cdef const char* slash
    cdef bytes wanted
    cdef int at = node.depth
    if node.rest is None:
        return at
    text = node.rest
    end = text + len(node.rest)
    while at < any_at:
        if at >= len(levels):
            return -1
        wanted = levels[at]
        slash = <const char*>memchr(text, 0x2F, end - text)
        if slash == NULL:
            slash = end
        if wanted != ONE and (slash - text != len(wanted) or memcmp(text, <const char*>wanted, slash - text)):
            return -1
        at += 1
        agree[0] += 1
        if slash == end:
            return at
        text = slash + 1
    return at + node.rest.count(b"/", text - <const char*>node.rest) + 1


cdef list path_of(Node node, bytes name):
    """The way to the node where exactly these levels end: from which node, by which level. Empty: none."""
    cdef list levels = name.split(b"/")
    cdef list path = []
    cdef Py_ssize_t at = 0, end
    cdef Node child
    while at < len(levels):
        child = node.child(levels[at])
        if child is None:
            return []
        path.append((node, levels[at]))
        at += 1
        if child.rest is not None:
            end = at + child.rest.count(b"/") + 1
            if end > len(levels) or child.rest != joined(levels, at, end):
                return []
            at = end
        node = child
    return path


cdef Py_ssize_t alike(list own, list levels, Py_ssize_t at):
    """How many of a node's further levels a name has from there on."""
    cdef Py_ssize_t same = 0
    while same < len(own) and at + same < len(levels) and own[same] == levels[at + same]:
        same += 1
    return same


cdef Py_ssize_t below_of(Node node):
    cdef Py_ssize_t count = 0
    for child in (node.children or {}).values():
        count += 1 + below_of(child)
    return count
