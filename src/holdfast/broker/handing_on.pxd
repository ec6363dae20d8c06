# What waits for a member of a shared group whose session ends goes to another member.
#
# Laws:
#   an entry of a session's queue or flights whose note is an OfGroup came through that shared group; any other note is
#   the bytes of subscription identifiers, or NULL
#   a member that ends hands on what its client was not sent, and of QoS 1 what its client has not acknowledged. A QoS 2
#   message that was sent goes to nobody else
#   the other member holds the message before this one lets go of it: in between it is not done, so neither backup nor
#   journal forgets it
#   nobody has to make room for what is handed on: if no member has room, it is dropped and counted

from cpython.bytes cimport PyBytes_CheckExact
from cpython.ref cimport PyObject
from libc.stdint cimport uint32_t, uint64_t

from holdfast.broker.message cimport Message
from holdfast.broker.session cimport Flight, Session


cdef enum:
    HANDED = 12     # messages that are let go of in the time in which one is handed on
    LOOKED = 4      # members that are looked at in the time in which one is let go of


cdef inline bint is_for_group(PyObject* note) noexcept:
    return note != NULL and not PyBytes_CheckExact(<object>note)

cdef PyObject* ids_of(PyObject* note) noexcept
cdef uint64_t part_with(Session session, Message* m, PyObject* note) noexcept
cdef uint64_t part_with_flight(Session session, Flight* flight) noexcept
cdef bint hand_on(Session session, Message* m, PyObject* note) noexcept
