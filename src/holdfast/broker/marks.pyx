"""Marks that are still to be told of: notes of them, and the lists of messages that have them."""

from libc.stdint cimport int64_t, uint64_t

from holdfast.broker.message cimport (
    DISPATCHED, Had, Message, had_chunks, had_unlink, marked_in_passing, message_drop, message_mark, message_mark_first,
)


cdef void marks_begin(Marks* marks) noexcept:
    marks.fresh.prev = marks.fresh.next = &marks.fresh
    marks.aged.prev = marks.aged.next = &marks.aged


cdef void marks_end(Marks* marks) noexcept:
    """Nobody is told any more."""
    while marks.notes_len:
        marks.notes_len -= 1
        message_drop(marks.notes[marks.notes_len].message)
    while marks.fresh.next != &marks.fresh:
        had_unlink(marks.fresh.next)
    while marks.aged.next != &marks.aged:
        had_unlink(marks.aged.next)


cdef void mark_noted(Marks* marks) noexcept:
    """Messages that are not dispatched yet get the marks that were noted of them."""
    cdef Note note
    while marks.notes_len:  # whoever goes with a message may leave a note too
        marks.notes_len -= 1
        note = marks.notes[marks.notes_len]
        if not note.message.flags & DISPATCHED and not marked_in_passing(
                note.message, note.serial >> 6, <uint64_t>1 << (note.serial & 63)):
            mark_at_once(marks, note.message, note.serial, marks.noted_ns)
        message_drop(note.message)


cdef void mark_at_once(Marks* marks, Message* m, uint64_t serial, int64_t now_ns) noexcept:
    """Marks a session on a message, which is to be told of from then on."""
    cdef uint64_t bit = <uint64_t>1 << (serial & 63)
    cdef Had* had
    if m.had == NULL:
        if message_mark_first(m, serial >> 6, bit) == NULL:
            return
    elif not message_mark(m, serial >> 6, bit, 0) or m.had.next != NULL:
        return
    if marks.fresh.next == &marks.fresh:
        marks.fresh_ns = now_ns
        if not marks_wait(marks):
            marks.due_ns = now_ns + marks.wait_ns
    had = m.had
    had.owners.message = m
    had.prev = marks.fresh.prev
    had.next = &marks.fresh
    marks.fresh.prev.next = had
    marks.fresh.prev = had
    had.last = had_chunks(had)


cdef bint marks_age(Marks* marks) noexcept:
    """All that was aged is told: what is fresh is told next time. Says whether there is any."""
    if marks.fresh.next == &marks.fresh:
        return 0
    marks.aged = marks.fresh
    marks.aged.next.prev = &marks.aged
    marks.aged.prev.next = &marks.aged
    marks.aged_ns = marks.fresh_ns
    marks.fresh.prev = marks.fresh.next = &marks.fresh
    return 1
