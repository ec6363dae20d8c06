"""The subscription tree, and shared subscriptions."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from holdfast.broker.message cimport AS_PUBLISHED, NO_LOCAL
from holdfast.broker.session cimport Session


def encode_identifier(uint32_t identifier) -> bytes:
    """A subscription identifier as the property that PUBLISH carries."""
    out = bytearray(b"\x0b")
    while identifier >= 128:
        out.append(identifier & 0x7F | 0x80)
        identifier >>= 7
    out.append(identifier)
    return bytes(out)


cdef class Subscription:
    def __init__(self, Session session not None, bytes filter not None, *, str group=None, uint8_t qos=0,
                 bint no_local=False, bint retain_as_published=False, uint8_t retain_handling=0,
                 uint32_t identifier=0, int64_t deadline_ns=0, int64_t loss=-1, uint64_t since=0) -> None:
        self.session = session
        self.filter = filter
        self.group = group
        self.qos = qos
        self.flags = (NO_LOCAL if no_local else 0) | (AS_PUBLISHED if retain_as_published else 0)
        self.retain_handling = retain_handling
        self.identifier = identifier
        self.ids = encode_identifier(identifier) if identifier else None
        self.deadline_ns = deadline_ns
        self.loss = loss
        self.since = since


cdef class SharedGroup:
    def __init__(self, str name not None) -> None:
        self.name = name
        self.members = []

    cdef Subscription pick(self):
        """The member whose turn it is: one that can take a message now, else one that is connected, else any."""
        cdef Subscription member, connected = None
        cdef size_t i, n = len(self.members)
        for i in range(n):
            member = self.members[(self.turn + i) % n]
            if member.session.link is None:
                continue
            if member.session.link.writable and member.session.queued == 0:
                self.turn = (self.turn + i + 1) % n
                return member
            if connected is None:
                connected = member
        member = connected if connected is not None else self.members[self.turn % n]
        self.turn = (self.turn + 1) % n
        return member


cdef class Node:
    cdef bint is_idle(self):
        return not (self.children or self.any_level is not None or self.here or self.below
                    or self.shared_here or self.shared_below)


cdef class SubscriptionTree:
    def __init__(self) -> None:
        self.root = Node()

    def __len__(self) -> int:
        return self.count

    def add(self, Subscription subscription not None) -> bool:
        """Enters a subscription in place of the client's earlier one with this filter; says whether it is new."""
        cdef Node node = self.root
        cdef list levels = subscription.filter.split(b"/")
        cdef bint below = levels[len(levels) - 1] == b"#"
        cdef bytes level
        cdef dict place
        cdef bint fresh
        if below:
            levels.pop()
        for level in levels:
            if level == b"+":
                if node.any_level is None:
                    node.any_level = Node()
                node = node.any_level
            else:
                if node.children is None:
                    node.children = {}
                if level not in node.children:
                    node.children[level] = Node()
                node = node.children[level]
        if subscription.group is None:
            if below:
                if node.below is None:
                    node.below = {}
                place = node.below
            else:
                if node.here is None:
                    node.here = {}
                place = node.here
            fresh = subscription.session not in place
            place[subscription.session] = subscription
        else:
            if below:
                if node.shared_below is None:
                    node.shared_below = {}
                place = node.shared_below
            else:
                if node.shared_here is None:
                    node.shared_here = {}
                place = node.shared_here
            fresh = self._join(place, subscription)
        self.count += fresh
        return fresh

    def _join(self, dict groups, Subscription subscription) -> bool:
        group = groups.get(subscription.group)
        if group is None:
            group = groups[subscription.group] = SharedGroup(subscription.group)
        for i, member in enumerate(group.members):
            if member.session is subscription.session:
                group.members[i] = subscription
                return False
        group.members.append(subscription)
        return True

    def remove(self, Session session not None, bytes filter not None, str group=None) -> bool:
        """Takes a subscription out; says whether there was one."""
        cdef list levels = filter.split(b"/")
        cdef bint below = levels[len(levels) - 1] == b"#"
        cdef list path = [self.root]
        cdef Node node = self.root
        if below:
            levels.pop()
        for level in levels:
            node = node.any_level if level == b"+" else (node.children or {}).get(level)
            if node is None:
                return False
            path.append(node)
        if group is None:
            place = node.below if below else node.here
            if not place or session not in place:
                return False
            del place[session]
        elif not self._leave(node.shared_below if below else node.shared_here, group, session):
            return False
        self.count -= 1
        self._prune(path, levels)
        return True

    def _leave(self, dict groups, str name, Session session) -> bool:
        group = (groups or {}).get(name)
        if group is None:
            return False
        for i, member in enumerate(group.members):
            if member.session is session:
                del group.members[i]
                if not group.members:
                    del groups[name]
                return True
        return False

    def _prune(self, list path, list levels) -> None:
        cdef Node node, parent
        cdef Py_ssize_t i
        for i in range(len(levels) - 1, -1, -1):
            node = path[i + 1]
            parent = path[i]
            if not node.is_idle():
                return
            if levels[i] == b"+":
                parent.any_level = None
            else:
                del parent.children[levels[i]]

    cdef list match(self, bytes topic):
        """Every Subscription and SharedGroup that this topic reaches."""
        cdef list levels = topic.split(b"/")
        cdef list found = []
        cdef bytes first
        if topic.startswith(b"$"):
            # Wildcards at the first level do not reach topics that begin with '$'.
            first = levels[0]
            if self.root.children is not None and first in self.root.children:
                self._walk(self.root.children[first], levels, 1, found)
        else:
            self._walk(self.root, levels, 0, found)
        return found

    cdef void _walk(self, Node node, list levels, Py_ssize_t at, list found) except *:
        cdef Node child
        if node.below:
            found.extend(node.below.values())
        if node.shared_below:
            found.extend(node.shared_below.values())
        if at == len(levels):
            if node.here:
                found.extend(node.here.values())
            if node.shared_here:
                found.extend(node.shared_here.values())
            return
        if node.children is not None:
            child = node.children.get(levels[at])
            if child is not None:
                self._walk(child, levels, at + 1, found)
        if node.any_level is not None:
            self._walk(node.any_level, levels, at + 1, found)

    def matching(self, bytes topic not None) -> list[Subscription | SharedGroup]:
        return self.match(topic)
