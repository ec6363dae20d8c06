# Who wants which topics: a tree of topic levels.
#
# Laws:
#   matching visits only nodes whose levels agree with the topic: unrelated subscriptions cost nothing
#   a client stands at one node at most once; a node that nobody needs is removed
#   a node knows how many steps a topic can take from there on, or more: 1, its shared groups, and what it can take
#   below the most costly of its levels, and below '+'. So no topic takes more than the root says, whatever it is
#   to join and to leave a group costs the same, however many are in it; who is picked is found by looking at as
#   many members as `looked` says
#   what a subscription made the longest way longer is its session's share as long as it stands, whoever else has the
#   same filter
#   the tree weighs what its nodes and subscriptions do. Who subscribes pays for every level of its filters, shared
#   or not, so its own weight changes only when it does something

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from holdfast.broker.message cimport Message, Route
from holdfast.broker.room cimport Room
from holdfast.broker.session cimport Session


cdef enum:      # bytes, as measured with many of each
    SUBSCRIPTION = 300
    NODE = 400      # a level of a filter that no other filter has at that place
    GROUP = 600     # of shared subscriptions, if it has no other member
    CHARACTER = 8   # twice encoded, in text that is not ASCII


cpdef int64_t weight_of(bytes filter, str group)


cdef class OfGroup:
    # What a message for a member of a shared group is noted with. It knows no session: notes are held where the
    # collector of garbage does not look.
    cdef bytes filter
    cdef str group
    cdef bytes ids


cdef class Subscription:
    cdef readonly Session session
    cdef readonly bytes filter
    cdef readonly str group             # of a shared subscription, else None
    cdef readonly uint8_t qos
    cdef readonly uint8_t flags         # RouteFlag
    cdef readonly uint8_t retain_handling
    cdef readonly uint32_t identifier
    cdef readonly bytes ids             # the identifier as a property, or None
    cdef readonly object requirement    # what this subscriber asks for
    cdef int64_t deadline_ns            # of that; 0: none
    cdef int64_t loss                   # and -1: as many as the contract lets
    cdef public uint64_t since          # the first publication that it sees
    cdef SharedGroup within             # of a shared subscription that was entered
    cdef OfGroup note                   # of a shared subscription
    cdef uint32_t raised                # by how many steps it made the longest way through the tree longer
    cdef public uint64_t owed           # up to which publication its client may still lack retained messages; 0: none


cdef class Ended:
    # A subscription that its client gave up: it still sees what was published from `since` until `until`.
    cdef readonly Subscription subscription
    cdef readonly uint64_t since
    cdef public uint64_t until
    cdef readonly uint64_t own_until    # and of what its client published itself until here
    cdef Ended whole            # of which this is what one topic still needs: it may be closed later


cdef list still_due(list ended, bytes topic, dict live)
cdef bint offer_specially(Message* m, Route* route) noexcept


cdef class SharedGroup:
    cdef readonly str name
    cdef readonly list members
    cdef dict _places           # session -> where it stands among the members
    cdef uint64_t since         # the first publication that any member has seen, also those that left
    cdef size_t turn
    cdef size_t looked          # at so many members, to find the last that was picked
    cdef bint join(self, Subscription subscription)
    cdef Subscription leave(self, Session session)
    cdef bint has_others(self, Session session)
    cdef Subscription pick(self, uint64_t number)
    cdef Subscription pick_again(self, Message* m)
    cdef bint reached_otherwise(self, Message* m, Session session)


cdef class Node:
    cdef dict children
    cdef Node any_level
    cdef dict here, below                  # session -> Subscription; `below` is for a filter ending in '#'
    cdef dict shared_here, shared_below    # group -> SharedGroup
    cdef uint32_t steps     # nodes and shared groups that a topic can meet from here on, these included
    cdef uint32_t most      # steps of the most costly of the children, or more
    cdef uint32_t lowered   # children that became less costly since `most` may be too high
    cdef bint is_idle(self)
    cdef void sum_up(self) noexcept
    cdef void child_lowered(self, uint32_t before)


cdef class SubscriptionTree:
    cdef Node root
    cdef readonly size_t count
    cdef readonly Room room             # in which all subscriptions and the nodes below the root have their weight
    cdef readonly uint32_t grown        # by how many steps the last subscription made the longest way longer
    cdef readonly uint64_t visited      # nodes, by all matching so far
    cdef void _weigh(self, Session session, bytes filter, str group, Py_ssize_t levels, int sign) noexcept
    cdef list match(self, bytes topic)
    cdef SharedGroup group_at(self, bytes filter, str group)
    cdef Subscription _leave(self, dict groups, str name, Session session)
    cdef uint32_t _raise(self, list path, list levels)
    cdef void _prune(self, list path, list levels) except *
    cdef void _walk(self, Node node, list levels, Py_ssize_t at, list found) except *
