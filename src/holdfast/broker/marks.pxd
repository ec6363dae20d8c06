# Marks that backup and journal are still to be told of: who is done with a message while others are not.
#
# Laws:
#   most messages are soon done with by all: a first mark is only noted, and becomes one on the message if that is not
#   dispatched by the next turn of marks, or when there is no room for more notes
#   a note holds its message, for half the lag at most and no more than NOTES_MAX of them
#   a turn of marks comes within half the lag of the first note or mark that waits; what is fresh then is told in
#   the turn after, so nothing waits for longer than the lag

from libc.stdint cimport int64_t, uint32_t, uint64_t

from holdfast.broker.message cimport DISPATCHED, Had, Message, message_hold

cdef enum:
    NOTES_MAX = 512


cdef struct Note:
    Message* message    # held
    uint64_t serial     # of the session that is done with it


cdef struct Marks:
    Had fresh, aged             # rings of what is to be told: since the last turn of marks, and before it
    int64_t fresh_ns, aged_ns   # when their oldest came
    int64_t noted_ns            # likewise of the notes
    int64_t due_ns              # when the next turn of marks is due, if there are any
    int64_t wait_ns             # between two turns: half of how far marks may lag
    uint32_t notes_len
    Note notes[NOTES_MAX]


cdef void marks_begin(Marks* marks) noexcept
cdef void marks_end(Marks* marks) noexcept
cdef void mark_noted(Marks* marks) noexcept
cdef void mark_at_once(Marks* marks, Message* m, uint64_t serial, int64_t now_ns) noexcept
cdef bint marks_age(Marks* marks) noexcept


cdef inline bint any_listed(Marks* marks) noexcept nogil:
    return marks.fresh.next != &marks.fresh or marks.aged.next != &marks.aged


cdef inline bint marks_wait(Marks* marks) noexcept nogil:
    return marks.notes_len > 0 or any_listed(marks)


cdef inline void mark_soon(Marks* marks, Message* m, uint64_t serial, int64_t now_ns) noexcept:
    """A session is done with a message."""
    cdef Note* note
    if m.flags & DISPATCHED:
        return
    if m.had != NULL:
        mark_at_once(marks, m, serial, now_ns)
        return
    if marks.notes_len == NOTES_MAX:
        mark_noted(marks)
    if marks.notes_len == 0:
        marks.noted_ns = now_ns
        if not any_listed(marks):
            marks.due_ns = now_ns + marks.wait_ns
    note = &marks.notes[marks.notes_len]
    marks.notes_len += 1
    message_hold(m)
    note.message = m
    note.serial = serial
