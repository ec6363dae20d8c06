# The job queue of a broker, and how its messages are protected by a backup and a journal.
#
# Laws:
#   coordination (FRAME, table 3): a copy is not sent once its message is dispatched; the copy of a dispatched
#   message is discarded; both only while the board is `coordinated`
#   a copy waits for the dispatch a moment, never past its deadline: most dispatches make it superfluous
#   a message goes to one backup at most once
#   a will that may not be lost goes to the backup before it is dispatched
#   a QoS 2 message is dispatched when the backup has it, not before, and sent to a subscriber of QoS 2 when the
#   backup knows under which identifier, so that a crash never doubles it
#   what waits for a backup that is gone waits for the next one, or, when there is none, no longer;
#   what waits for a journal that takes nothing is refused
#   what is said of a QoS 2 exchange that the journal knows is said when it knows the next step: a publisher is given
#   its identifier back, and a subscriber told to let go of its own, only then
#   while acknowledgements are withheld, a publisher hears only of what every subscriber has
#   marks lag, by `marks_lag` at most while the turns come in time; whatever is copied carries those that there are

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t

from holdfast.broker.awaiting cimport Awaited, Awaiting
from holdfast.broker.jobs cimport JobQueue
from holdfast.broker.link cimport Board, Link
from holdfast.broker.message cimport Message
from holdfast.broker.session cimport Session
from holdfast.broker.terms cimport PolicyKind


cdef enum JobKind:
    REPLICATE = 0   # goes before a dispatch with the same key
    DISPATCH = 1


cdef enum:
    OPEN = 0x10000      # with the identifier of a QoS 2 exchange that is not over


cdef enum:  # how long a copy waits for the dispatch that makes it superfluous
    BRIEFLY = 0     # its publisher waits for an answer
    LONG = 1        # nobody waits
    WAITS = 2


cdef class Protection:
    cdef readonly Board board
    cdef JobQueue jobs
    cdef JobQueue later     # messages that go to the backup unless every subscriber has them by then
    cdef Awaiting patient[WAITS]    # by time: messages that wait for their subscribers before they are copied
    cdef Awaiting sent      # by frames to the backup
    cdef Awaiting written   # by turns that the journal has
    cdef PolicyKind policy
    cdef public list durable_log        # for the journal, in their order: messages, and serial and packet identifier of
                                        # QoS 2 exchanges with publishers, OPEN or over; None: there is none
    cdef public bint journal_refuses    # it takes nothing now: durable messages that await an answer get a refusal
    cdef public bint copy_first         # no dispatch before its copy was sent
    cdef public int64_t patience_ns     # how long a copy waits BRIEFLY; LONG is LONGER times that
    cdef readonly size_t backup_bytes_max   # what may wait on the way to the backup
    cdef public bint backup_lags            # it does not take its copies
    cdef public bint backup_gone            # it is lost, and whether another takes its place is not known yet
    cdef bint handing                       # a new backup gets what waits, however much that is
    cdef readonly bint withheld             # another broker may serve: what the backup has is not safe for that
    cdef uint64_t confirmed                 # frames that the backup confirmed meanwhile
    cdef public uint64_t copies, copies_aborted

    cdef bint plan(self, Message* m, JobKind kind, uint64_t major) noexcept
    cdef bint protect(self, Message* m, int64_t travelled_ns, bint owed, bint will) noexcept
    cdef bint can_wait(self, Message* m, int64_t due_ns, bint owed) noexcept
    cdef void replicate(self, Message* m) noexcept
    cdef bint copy(self, Message* m) noexcept
    cdef void let_dispatch(self, Message* m) noexcept
    cdef void abort(self, Message* m) noexcept
    cdef void copy_again(self) noexcept
    cdef bint copy_messages(self, Session session, size_t room) noexcept
    cdef void tell_exchanges(self, Session session)
    cdef void copy_later(self, Message* m) noexcept
    cdef void copy_when_due(self) noexcept
    cdef void mark_sent(self, Message* m) noexcept
    cdef void tell_marks(self, bint all) noexcept
    cdef uint32_t tell_run(self, uint32_t most) noexcept
    cdef void forget_dispatched(self, Awaiting* patient) noexcept
    cdef void release_from(self, Awaited* awaited, uint16_t flag) noexcept
    cdef void release_up_to(self, Awaiting* awaiting, uint64_t number, uint16_t flag) noexcept
    cdef void taken(self, Session session, uint16_t packet_id) noexcept
    cdef void tell_when_kept(self, object who, uint32_t index, uint64_t turn) noexcept
    cdef void released(self, Link link, Session session, uint16_t packet_id, uint32_t index)
    cdef void over(self, Session session, uint16_t packet_id)
    cdef void refuse(self, Message* m, list free_again)
    cdef void keep(self, Message* m)
