# The retained messages of a broker: one for each topic, and who pays for how many.
#
# Laws:
#   together they never take more than their bound, their topics and names included, and there are never more than
#   retained_messages_max: a small one counts as an even part of the bound. What the broker says of itself ($SYS) is
#   not counted, and what another broker or a journal brought is not refused: it was granted there
#   nothing that is retained goes for another's sake: who has retained as much as is still free is refused more,
#   so one client takes half of the room at most, and whoever comes next finds some
#   a retained message that is no larger than the one before is never refused, whoever pays for its topic
#   who pays is a client identifier; what another broker or a journal brought is nobody's
#   a quota of its user or address may forbid it besides: nothing is paid for what is refused by either

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from holdfast.broker.link cimport Link
from holdfast.broker.message cimport Ledger, Message, Topic
from holdfast.broker.protection cimport Protection
from holdfast.broker.topics cimport TopicTable

cdef enum:
    NAME = 300      # bytes that a name takes in RetainedNames besides its text, kept twice; as measured with many


cdef uint64_t TOLD      # in place of who pays: another broker or a journal brought it


cdef class RetainedMessages(Protection):
    cdef readonly TopicTable topics
    cdef Ledger* ledger
    cdef public object retained_names   # where names of topics with a retained message are kept
    cdef public object retained_quota   # (name, publisher's session, bytes) -> whether it may be; None: any may
    cdef public dict retained_log       # names whose retained message changed; None: nobody wants to know
    cdef readonly size_t retained_count, retained_bytes
    cdef readonly size_t retained_taken # of the bound; each counts as much as `counted` says
    cdef size_t retained_max, retained_floor
    cdef dict retained_accounts         # who pays -> how much
    cdef public uint64_t messages_refused   # of clients, wills too: not taken, or not retained

    cdef size_t counted(self, Topic* topic, Message* m) noexcept
    cdef uint8_t retain(self, Topic* topic, Message* m, uint64_t account) noexcept
    cdef bint room_to_retain(self, Topic* topic, Message* m, uint64_t account)
    cdef bint within_quota(self, Topic* topic, Message* m) noexcept
    cdef void pay_retained(self, Topic* topic, Message* m, uint64_t account)
    cdef bint tell_repeated(self, Link source, bytes name, uint32_t ack)
    cdef void _charge(self, uint64_t account, int64_t size)
    cdef void _name_retained(self, Topic* topic, bint present) noexcept
