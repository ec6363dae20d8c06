# The backup buffer: copies of messages that the primary may not have dispatched.
#
# Laws:
#   copies stay until a primary begins to send its own, whoever is followed meanwhile
#   a copy is here from its COPY to its DISCARD, or until newer ones of its topic push it out of the ring
#   a number is here once, however often it is sent
#   a durable copy is confirmed when the journal has it, while there is a journal that takes anything; so is each
#   step of a QoS 2 exchange that the journal knows
#   at recovery only what was not discarded is dispatched, each to the subscribers that are not marked on it; a QoS 2
#   delivery that was under way goes on under its identifier. The marks stay with the message, for the next backup

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from holdfast.broker.core cimport Core
from holdfast.broker.message cimport Message
from holdfast.broker.session cimport Session


cdef class BackupBuffer:
    cdef Core core
    cdef Message** slots        # by number, open addressing; owned
    cdef size_t mask
    cdef readonly size_t count
    cdef uint32_t per_topic_max
    cdef size_t messages_max, bytes_max
    cdef readonly dict flights  # session serial -> {packet identifier: [number, taken]}
    cdef readonly dict received # session serial -> QoS 2 identifiers between PUBLISH and PUBREL
    cdef readonly dict kept     # session serial -> those of them that the journal knows
    cdef dict contents          # session serial -> identifier -> a hash of what the journal recalled under it
    cdef readonly dict given    # session serial -> from and up to which QoS 2 identifier deliveries may be under way
    cdef bint recalled          # all this comes from the journal: it may know less than there was
    cdef dict ways              # during recovery: topic -> how it goes to sessions with deliveries under way
    cdef bint asked             # somebody waits to hear that it is here
    cdef readonly uint64_t frames           # COPY and MARK frames taken from this primary
    cdef readonly uint64_t number_max       # the highest publication number seen
    cdef readonly uint64_t taken, discarded, superseded
    cdef readonly dict retained             # topic of which only a copy said what is retained -> the number of that
    cdef readonly dict unjournaled          # turn of the journal that is not safe yet -> the first frame that waits
    cdef public object cleared              # called when what was here counts no more; None: nobody cares
    cdef uint64_t confirmed                 # frames that the primary was told of
    cdef public bint fed                    # the primary that is followed sends its copies here
    cdef public bint custody                # what the first heir of a primary must have is here

    cdef bint copy(self, const uint8_t* at, uint32_t size)
    cdef void journal(self, Message* m)
    cdef void await_journal(self)
    cdef void exchange(self, uint64_t serial, uint16_t packet_id, bint open)
    cdef void go_on(self, Session session)
    cdef tuple way(self, Session session, Message* m)
    cdef uint64_t safe(self)
    cdef bint mark(self, const uint8_t* at, uint32_t size)
    cdef void had_together(self, uint64_t key, uint64_t bits, const uint8_t* numbers, uint32_t count)
    cdef void had(self, uint64_t number, uint64_t key, uint64_t bits)
    cdef void log_had(self, Message* m, uint64_t key, uint64_t bits)
    cdef void discard(self, uint64_t number)
    cdef Message* find(self, uint64_t number) noexcept
    cdef bint enter(self, Message* m) noexcept
    cdef void remove(self, Message* m) noexcept
    cdef bint grow(self) noexcept
    cdef void shorten(self, Message* m) noexcept
    cdef void let_go(self) noexcept
