"""The subscription tree, and shared subscriptions."""

from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from holdfast.broker.message cimport AS_PUBLISHED, NO_LOCAL, RECOVERED, RETAIN, SHARED, Message, Route
from holdfast.broker.room cimport Room
from holdfast.broker.session cimport Session
from holdfast.mqtt.topics cimport filter_matches

from holdfast.contract.requirement import NOTHING


def encode_identifier(uint32_t identifier) -> bytes:
    """A subscription identifier as the property that PUBLISH carries."""
    out = bytearray(b"\x0b")
    while identifier >= 128:
        out.append(identifier & 0x7F | 0x80)
        identifier >>= 7
    out.append(identifier)
    return bytes(out)


NODE_WEIGHT = NODE


cpdef int64_t weight_of(bytes filter, str group):
    """What a subscription takes, without the nodes of its levels, which others may share."""
    cdef int64_t weight = SUBSCRIPTION + CHARACTER * len(filter)
    return weight if group is None else weight + GROUP + CHARACTER * len(group)


cdef class OfGroup:
    pass


cdef class Subscription:
    def __init__(self, Session session not None, bytes filter not None, *, str group=None, uint8_t qos=0,
                 bint no_local=False, bint retain_as_published=False, uint8_t retain_handling=0,
                 uint32_t identifier=0, requirement=NOTHING, uint64_t since=0, uint64_t owed=0) -> None:
        self.session = session
        self.filter = filter
        self.group = group
        self.qos = qos
        self.flags = (NO_LOCAL if no_local else 0) | (AS_PUBLISHED if retain_as_published else 0)
        self.retain_handling = retain_handling
        self.identifier = identifier
        self.ids = encode_identifier(identifier) if identifier else None
        self.requirement = requirement
        self.deadline_ns = requirement.deadline_ns or 0
        self.loss = -1 if requirement.loss_tolerance is None else requirement.loss_tolerance
        self.since = since
        self.owed = owed
        if group is not None:
            self.note = OfGroup()
            self.note.filter, self.note.group, self.note.ids = filter, group, self.ids

    @property
    def group_since(self) -> int:
        """The first publication that it sees, or may be handed by a member that ends: whoever goes on must know."""
        return self.since if self.within is None else min(self.since, self.within.since)


cdef class Ended:
    def __init__(self, Subscription subscription not None, uint64_t since, uint64_t until,
                 uint64_t own_until) -> None:
        self.subscription = subscription
        self.since = since
        self.until = until
        self.own_until = own_until


cdef list still_due(list ended, bytes topic, dict live):
    """What ended subscriptions must still get of a topic, each publication once for each session.

    `ended` is in the order of `until`; `live` says from which publication on a session has the topic anyway."""
    cdef Ended each, piece, before
    cdef list pieces
    cdef dict found = {}
    cdef bytes filter
    for each in ended:
        filter = each.subscription.filter
        if not filter_matches(<const uint8_t*>(<char*>filter), len(filter),
                              <const uint8_t*>(<char*>topic), len(topic)):
            continue
        piece = Ended(each.subscription, each.since, each.until, each.own_until)
        piece.whole = each
        pieces = found.setdefault(each.subscription.session, [])
        while pieces and (<Ended>pieces[len(pieces) - 1]).since >= piece.since:
            pieces.pop()
        if pieces:
            before = pieces[len(pieces) - 1]
            before.until = min(before.until, piece.since - 1)
        pieces.append(piece)
    for session, pieces in found.items():
        if session in live:
            for piece in pieces:
                piece.until = min(piece.until, <uint64_t>live[session] - 1)
    return [piece for pieces in found.values() for piece in pieces if piece.since <= piece.until]


cdef bint offer_specially(Message* m, Route* route) noexcept:
    """To one member of a shared group, or to a session that has given up its subscription since."""
    cdef Subscription to
    cdef SharedGroup group
    cdef Ended ended
    cdef PyObject* note
    if route.flags & SHARED:
        group = <SharedGroup>route.session
        to = group.pick_again(m) if m.flags & RECOVERED else group.pick(m.minor)
        if to is None:
            return 0
        note = <PyObject*>to.note    # so that another member can have it if this one ends
    else:
        ended = <Ended>route.ids
        to = ended.subscription
        if not ended.since <= m.minor <= min(ended.until, ended.whole.until) or to.session.serial == m.origin and (
                m.minor > ended.own_until or to.flags & NO_LOCAL):
            return 0
        note = NULL if to.ids is None else <PyObject*>to.ids
    to.session.offer(m, min(m.qos, to.qos), RETAIN if m.flags & RETAIN and to.flags & AS_PUBLISHED else 0, note)
    return 1


cdef class SharedGroup:
    def __init__(self, str name not None) -> None:
        self.name = name
        self.members = []
        self._places = {}
        self.since = <uint64_t>-1

    cdef bint join(self, Subscription subscription):
        """In place of its earlier subscription, if it has one; whether it is new."""
        at = self._places.get(subscription.session)
        subscription.within = self
        subscription.session.in_group = True
        self.since = min(self.since, subscription.since)
        if at is not None:
            subscription.raised = (<Subscription>self.members[at]).raised
            self.members[at] = subscription
            return 0
        self._places[subscription.session] = len(self.members)
        self.members.append(subscription)
        return 1

    cdef Subscription leave(self, Session session):
        """The last member takes its place; its subscription, if it was one."""
        cdef Subscription last, left
        at = self._places.pop(session, None)
        if at is None:
            return None
        left = self.members[at]
        last = self.members.pop()
        if last is not left:
            self.members[at] = last
            self._places[last.session] = at
        return left

    cdef bint has_others(self, Session session):
        return len(self.members) > (1 if session in self._places else 0)

    cdef Subscription pick(self, uint64_t number):
        """The member whose turn it is, of those that see this publication: one that can take a message now, else
        one that is connected, else any."""
        cdef Subscription member, connected = None, away = None
        cdef size_t i, n = len(self.members)
        self.looked = n
        for i in range(n):
            member = self.members[(self.turn + i) % n]
            if member.since > number:
                continue
            if member.session.link is None:
                if away is None and not member.session.over:
                    away = member
                continue
            if member.session.link.writable and member.session.queued == 0:
                self.turn = (self.turn + i + 1) % n
                self.looked = i + 1
                return member
            if connected is None:
                connected = member
        self.turn = (self.turn + 1) % n
        return connected if connected is not None else away

    cdef Subscription pick_again(self, Message* m):
        """The same for a message that another broker dispatched; None when a member has it on behalf of the group.
        Who may have it for another reason does not count, and is not picked."""
        cdef Subscription member, found
        for member in self.members:
            if member.session.has(m) and not self.reached_otherwise(m, member.session):
                return None
        found = self.pick(m.minor)
        if found is None and self.since <= m.minor:
            found = self.pick(<uint64_t>-1)     # who was there when it came has left it to the others
        if found is not None and found.session.has(m):
            for member in self.members:
                if self.since <= m.minor and not member.session.has(m):
                    return member
        return found

    cdef bint reached_otherwise(self, Message* m, Session session):
        cdef Subscription member
        cdef uint32_t i
        for i in range(m.topic.routes_len):
            if not m.topic.routes[i].flags & SHARED:
                if <Session>m.topic.routes[i].session is session:
                    return 1
            elif <SharedGroup>m.topic.routes[i].session is not self:
                for member in (<SharedGroup>m.topic.routes[i].session).members:
                    if member.session is session:
                        return 1
        return 0


cdef enum:
    NARROW = 16     # children that are looked at each time
    WIDE = 4096     # children that are looked at in one go; beyond that `most` stays as it is


cdef class Node:
    def __cinit__(self) -> None:
        self.steps = 1

    cdef void sum_up(self) noexcept:
        cdef size_t groups = (len(self.shared_here) if self.shared_here else 0) + (
            len(self.shared_below) if self.shared_below else 0)
        self.steps = 1 + groups + self.most + (0 if self.any_level is None else self.any_level.steps)

    cdef void child_lowered(self, uint32_t before):
        """A child that had so many steps has fewer, or is gone. Among many it is not looked each time whether
        that was the most costly: `most` may be too high for a while, never too low."""
        cdef Node child
        if before < self.most and self.lowered == 0:
            return
        self.lowered += 1
        if self.children and len(self.children) > NARROW and (
                len(self.children) > WIDE or self.lowered * 2 < len(self.children)):
            return
        self.lowered = 0
        self.most = 0
        if self.children:
            for child in self.children.values():
                self.most = max(self.most, child.steps)

    cdef bint is_idle(self):
        return not (self.children or self.any_level is not None or self.here or self.below
                    or self.shared_here or self.shared_below)


cdef class SubscriptionTree:
    def __init__(self) -> None:
        self.root = Node()
        self.room = Room()

    @property
    def weight(self) -> int:
        """Bytes, of all subscriptions and the nodes below the root."""
        return self.room.filters

    def __len__(self) -> int:
        return self.count

    def add(self, Subscription subscription not None) -> bool:
        """Enters a subscription in place of the client's earlier one with this filter; says whether it is new."""
        cdef Node node = self.root
        cdef list levels = subscription.filter.split(b"/")
        cdef list path = [node]
        cdef bint below = levels[len(levels) - 1] == b"#"
        cdef bytes level
        cdef dict place
        cdef bint fresh
        subscription.raised = 0
        if below:
            levels.pop()
        for level in levels:
            if level == b"+":
                if node.any_level is None:
                    node.any_level = Node()
                    self.room.filters += NODE
                node = node.any_level
            else:
                if node.children is None:
                    node.children = {}
                if level not in node.children:
                    node.children[level] = Node()
                    self.room.filters += NODE
                node = node.children[level]
            path.append(node)
        if subscription.group is None:
            if below:
                if node.below is None:
                    node.below = {}
                place = node.below
            else:
                if node.here is None:
                    node.here = {}
                place = node.here
            before = place.get(subscription.session)
            fresh = before is None
            if not fresh:
                subscription.raised = (<Subscription>before).raised
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
            group = place.get(subscription.group)
            if group is None:
                group = place[subscription.group] = SharedGroup(subscription.group)
            fresh = (<SharedGroup>group).join(subscription)
        self.grown = self._raise(path, levels)
        subscription.raised += self.grown
        subscription.session.steps += self.grown
        if fresh:
            self.count += 1
            self._weigh(subscription.session, subscription.filter, subscription.group, len(levels) + below, 1)
        return fresh

    cdef SharedGroup group_at(self, bytes filter, str group):
        """The shared group of that name on that filter; None: it has no member."""
        cdef list levels = filter.split(b"/")
        cdef bint below = levels[len(levels) - 1] == b"#"
        cdef Node node = self.root
        if below:
            levels.pop()
        for level in levels:
            node = node.any_level if level == b"+" else (node.children or {}).get(level)
            if node is None:
                return None
        return ((node.shared_below if below else node.shared_here) or {}).get(group)

    cdef uint32_t _raise(self, list path, list levels):
        """The last of these nodes may be new, or have a group more: those above it know. Returns by how much the
        root grew."""
        cdef Node node = path[len(path) - 1], child
        cdef uint32_t before = node.steps
        cdef Py_ssize_t i
        node.sum_up()
        for i in range(len(path) - 2, -1, -1):
            node, child = path[i], path[i + 1]
            before = node.steps
            if levels[i] != b"+":
                node.most = max(node.most, child.steps)
            node.sum_up()
            if node.steps == before:
                return 0
        return self.root.steps - before

    cdef void _weigh(self, Session session, bytes filter, str group, Py_ssize_t levels, int sign) noexcept:
        cdef int64_t weight = sign * weight_of(filter, group)
        self.room.filters += weight
        weight += sign * NODE * levels
        session.weight += weight
        if session.payer is not None:
            session.payer.weight += weight

    @property
    def steps(self) -> int:
        """No topic meets more nodes and shared groups than that."""
        return self.root.steps

    def remove(self, Session session not None, bytes filter not None, str group=None) -> bool:
        """Takes a subscription out; says whether there was one."""
        cdef list levels = filter.split(b"/")
        cdef bint below = levels[len(levels) - 1] == b"#"
        cdef list path = [self.root]
        cdef Node node = self.root
        cdef dict place
        cdef Subscription gone
        if below:
            levels.pop()
        for level in levels:
            node = node.any_level if level == b"+" else (node.children or {}).get(level)
            if node is None:
                return False
            path.append(node)
        if group is None:
            place = node.below if below else node.here
            gone = (place or {}).pop(session, None)
        else:
            gone = self._leave(node.shared_below if below else node.shared_here, group, session)
        if gone is None:
            return False
        self.count -= 1
        self._weigh(session, filter, group, len(levels) + below, -1)
        self.grown = 0
        session.steps -= gone.raised
        self._prune(path, levels)
        return True

    cdef Subscription _leave(self, dict groups, str name, Session session):
        cdef Subscription left = None
        cdef SharedGroup group = (groups or {}).get(name)
        if group is not None:
            left = group.leave(session)
            if not group.members:
                del groups[name]
        return left

    cdef void _prune(self, list path, list levels) except *:
        """Removes nodes that nobody needs any more; those above them know."""
        cdef Node node = path[len(path) - 1], parent
        cdef uint32_t before, lowered_from = node.steps
        cdef Py_ssize_t i
        node.sum_up()
        for i in range(len(levels) - 1, -1, -1):
            node = path[i + 1]
            parent = path[i]
            before = parent.steps
            if node.is_idle():
                self.room.filters -= NODE
                if levels[i] == b"+":
                    parent.any_level = None
                else:
                    del parent.children[levels[i]]
            elif node.steps == lowered_from:
                return
            if levels[i] != b"+":
                parent.child_lowered(lowered_from)
            parent.sum_up()
            lowered_from = before

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
        self.visited += 1
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
