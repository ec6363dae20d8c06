# Why a PUBLISH is refused: what its publisher, the log and the counters are told.
#
# Laws:
#   a message that is refused is counted and told of once, whoever found the reason
#   words are short, and the same for all: nothing that a client wrote is in them

from libc.stdint cimport uint8_t, uint16_t

cdef enum:
    NOT_GIVEN = 1       # no rule gives the topic
    NOT_WITH_QOS
    NOT_RETAINED
    BROKERS_OWN
    TAKEN_AWAY          # a rule denies the topic
    FORBIDDEN_LAST = 5  # these are NOT_AUTHORIZED, those below QUOTA_EXCEEDED
    NO_JOURNAL = 6
    NO_MEMORY
    NO_TOPIC
    NO_ROOM
    NO_QUOTA
    NO_IDENTIFIER
    STILL_TAKEN = 0x80  # with one of these: the message goes on, and is only not retained
    ACK_BYTES_MAX = 128


cdef inline uint8_t reason_of(uint8_t why) noexcept nogil:
    return 0x87 if why & ~STILL_TAKEN <= FORBIDDEN_LAST else 0x97


cdef str text_of(uint8_t why)
cdef size_t write_ack(uint8_t* packet, uint8_t first_byte, uint16_t packet_id, uint8_t reason, uint8_t why) noexcept
