# The journey of a message through one broker: accepted, given a deadline, queued, dispatched.
#
# Laws:
#   deadline: a job's deadline is creation + D - the way to the subscriber, the strictest subscriber's D
#   order: within a topic messages are dispatched as they arrived, whatever their stamps say, and a stamp never
#   makes a message later than having none
#   safety: a QoS 1 or 2 publisher hears of its message only when it is safe (see link.pxd)
#   a message is sent on once, however often its publisher sends it: its stamp tells
#   a subscription sees every message that is read after it was made, and none of those before the last slice

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from holdfast.broker.link cimport Link
from holdfast.broker.message cimport Message, Topic
from holdfast.broker.retained_messages cimport RetainedMessages
from holdfast.broker.shares cimport Pool
from holdfast.broker.subscriptions cimport Subscription, SubscriptionTree
from holdfast.broker.topics cimport Ahead


cpdef enum:
    REPEATED_MAX = 1024     # of one connection, that came again and is not safe yet: then it is not read


cdef struct Draft:
    # What a PUBLISH says, still in the reader's buffer.
    const uint8_t* props
    const uint8_t* payload
    uint32_t props_size
    uint32_t payload_size
    uint32_t expiry_at      # where in the properties the expiry value stands; 0: none
    uint32_t expiry_s
    int64_t created_ns      # the publisher's stamp, wall clock; 0: none
    uint64_t sequence
    uint64_t publisher      # 0: no stamp
    uint16_t packet_id
    uint8_t qos
    bint retain
    uint64_t account        # who pays if it is retained and has no source


@cython.final
cdef class Core(RetainedMessages):
    cdef readonly SubscriptionTree tree
    cdef readonly dict known_again      # link -> acknowledgements of what came again, in order: topic, index
    cdef public list heard              # words of clients that serve channels, for plain Python
    cdef public list slowed             # connections that were too fast, for plain Python to let go on later
    cdef readonly uint64_t number       # publications accepted so far
    cdef readonly uint64_t number_sliced    # how many those were when a slice was last dispatched
    cdef public object terms_for        # topic name -> Terms
    cdef public int64_t to_backup_ns, failover_ns   # the way to the backup, and x
    cdef public bint selective          # Proposition 1 holds: copy only what needs it
    cdef public uint64_t duplicates
    cdef uint32_t era                   # grows when another broker may have served: see missing()
    cdef readonly uint32_t receive_max, alias_max
    cdef readonly uint32_t packet_bytes_max, connect_bytes_max, control_bytes_max, pairs_max
    cdef readonly uint32_t levels_max, topic_bytes_max, backlog_max, jobs_ahead_max
    cdef int64_t owed_bytes_max, messages_bytes_max     # of what one publisher has no answer to; of all messages
    cdef Pool* connecting               # of unfinished packets of connections whose clients were not let in yet
    cdef Pool* pending                  # of those of all others
    cdef public uint64_t packets_received, bytes_received, messages_received
    cdef Ahead ahead
    cdef bint full
    cdef uint8_t* _scratch
    cdef size_t _scratch_size
    cdef public object control          # connections whose next packet plain Python handles
    cdef public object aside            # those that were put aside: SUBSCRIBE, UNSUBSCRIBE, or beyond their share
    cdef public object ask              # handles a SUBSCRIBE or UNSUBSCRIBE of a connection where it is read
    cdef public object refused          # tells of a message that was refused
    cdef public int64_t work_left       # units that may be spent on what is read before the next turn
    cdef public int64_t share_max       # of these by one connection at a time
    cdef int64_t looked                 # units that this slice spent on looking up routes
    cdef public object unanswered       # what took effect so, and awaits its SUBACK or UNSUBACK
    cdef public list ended              # Ended: subscriptions that are gone, while older messages wait

    cdef bint sated(self) noexcept
    cdef bint overfull(self) noexcept
    cdef bint crowded(self) noexcept
    cdef uint8_t* scratch(self, size_t size) except NULL
    cdef Topic* topic_at(self, const uint8_t* text, uint32_t size) noexcept
    cdef bint refresh(self, Topic* topic) noexcept
    cdef void _refresh(self, Topic* topic) except *
    cdef uint8_t accept(self, Topic* topic, Draft* draft, Link source, uint64_t origin, int64_t ack) noexcept
    cdef bint put_to_use(self, Topic* topic, Link source, bint whether) noexcept
    cdef void missing(self, Topic* topic, uint64_t sequence) noexcept
    cdef void dispatch(self, Message* m) noexcept
    cdef void repeated(self, Topic* topic, Link source, int64_t ack)
    cdef void offered(self, Message* m) noexcept
    cdef void _look_again(self, Topic* topic) noexcept
    cdef bint dispatch_again(self, Message* m) noexcept
    cdef void _add_route(self, Topic* topic, Subscription subscription, dict seen) except *
