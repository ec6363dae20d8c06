# How messages travel from a primary to its backup: the frames of every message, and their order.
#
# Laws:
#   a frame is the length of what follows (four bytes), its kind, its body; numbers are big-endian
#   COPY and MARK are counted on both sides: CONFIRM says how many of them the backup has, in order; it is sent
#   when one of them asks for it, because somebody waits
#   the HAD of a message follow its COPY; a backup that does not know them repeats more after a crash, and loses nothing
#   a DISCARD never leaves before the sockets of the subscribers have taken the message

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from holdfast.broker.link cimport Link
from holdfast.broker.message cimport Had, Message


cdef enum FrameKind:
    CONTROL = 1     # for plain Python
    COPY = 2
    DISCARD = 3
    CONFIRM = 4
    MARK = 5
    RESET = 6       # copies begin anew: those that are there are of no use any more


cdef enum MarkKind:
    RELEASED = 1    # the publisher will not send that QoS 2 message again
    FLIGHT = 2      # a QoS 2 message is on its way to a subscriber under that identifier
    TAKEN = 3       # the subscriber is done with it; its identifier is not free yet
    LANDED = 4      # the identifier is free
    RECEIVED = 5    # the publisher may send that QoS 2 message again
    ANNOUNCED = 7       # identifiers of QoS 2 deliveries, from the number on up to that one, may be given from now on
    HAD = 6         # sessions are done with messages while others are not: serial >> 6, and a bit for each of those 64


cdef enum:
    FRAME_HEAD = 5
    COPY_HEAD = 44          # of a COPY, before the message as MQTT 5 sends it
    MARK_SIZE = 19
    HAD_HEAD = 17           # of a HAD, before the numbers of those messages
    ASKS_CONFIRM = 0x80     # in the flags of a COPY
    BYGONE = 0x40           # the same: it was retained once, and nothing of its topic is any more
    DISCARDS_MAX = 4096     # numbers in one frame


cdef inline void write_u64(uint8_t* at, uint64_t value) noexcept nogil:
    cdef int i
    for i in range(8):
        at[i] = (value >> (56 - 8 * i)) & 0xFF


cdef inline uint64_t read_u64(const uint8_t* at) noexcept nogil:
    cdef uint64_t value = 0
    cdef int i
    for i in range(8):
        value = (value << 8) | at[i]
    return value


cdef uint8_t* begin_frame(Link link, uint8_t kind, uint32_t size) noexcept
cdef bint put_copy(Link link, Message* m, int64_t wall_of_now_ns, bint fresh) noexcept
cdef bint put_mark(Link link, uint8_t mark, uint64_t serial, uint16_t packet_id, uint64_t number) noexcept
cdef bint put_discards(Link link, const uint64_t* numbers, uint32_t count) noexcept
cdef uint32_t put_had(Link link, Had* had, const uint64_t* numbers, uint32_t count, bint again) noexcept
cdef bint put_number(Link link, uint8_t kind, uint64_t number) noexcept
