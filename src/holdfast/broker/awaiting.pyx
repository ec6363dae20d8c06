"""A ring of what waits until somebody else has a message."""

from cpython.ref cimport Py_XDECREF, Py_XINCREF, PyObject
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc

from holdfast.broker.message cimport Message, message_drop, message_hold


cdef bint await_number(Awaiting* awaiting, uint64_t number, Message* m, object who, uint32_t index,
                       uint64_t turn) noexcept:
    """Adds an item; 0 when memory is gone."""
    cdef Awaited* grown
    cdef Awaited* item
    cdef uint32_t cap
    cdef uint64_t i
    if awaiting.tail - awaiting.head == awaiting.cap:
        cap = awaiting.cap * 2 if awaiting.cap else 64
        grown = <Awaited*>malloc(cap * sizeof(Awaited))
        if grown == NULL:
            return 0
        i = awaiting.head
        while i != awaiting.tail:
            grown[i & (cap - 1)] = awaiting.items[i & (awaiting.cap - 1)]
            i += 1
        free(awaiting.items)
        awaiting.items = grown
        awaiting.cap = cap
    item = &awaiting.items[awaiting.tail & (awaiting.cap - 1)]
    awaiting.tail += 1
    item.number = number
    item.message = m
    item.index = index
    item.turn = turn
    item.who = NULL if who is None else <PyObject*>who
    if m != NULL:
        message_hold(m)
    Py_XINCREF(item.who)
    return 1


cdef void awaited_forget(Awaiting* awaiting) noexcept:
    """Everything is going: nobody is told any more."""
    cdef Awaited* item
    while awaiting.head != awaiting.tail:
        item = awaited_first(awaiting)
        awaiting.head += 1
        if item.message != NULL:
            message_drop(item.message)
        Py_XDECREF(item.who)
    free(awaiting.items)
    awaiting.items = NULL
    awaiting.cap = 0
