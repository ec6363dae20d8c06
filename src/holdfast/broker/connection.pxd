# The packets of one connection, handled. The laws are in intake.pxd.

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t

from holdfast.broker.core cimport Draft
from holdfast.broker.intake cimport Intake
from holdfast.broker.message cimport Topic


@cython.final
cdef class Connection(Intake):
    cdef bint _ask(self) except -1
    cdef bint _other(self, int kind, uint8_t first, const uint8_t* body, uint32_t size) except -1
    cdef bint _refresh(self, Topic* topic) except -1
    cdef Topic* _new_topic(self, const uint8_t* text, uint32_t size) except? NULL
    cdef bint _permitted(self, Topic* topic, Draft* draft) except -1
    cdef uint8_t _forbidden(self, Topic* topic, Draft* draft) noexcept
    cdef bint _refuse(self, uint8_t why, const uint8_t* name, uint32_t size, int64_t ack) except -1
    cdef bint _publish(self, uint8_t first, const uint8_t* body, uint32_t size) except -1
    cdef bint _properties(self, const uint8_t* at, const uint8_t* end, Draft* draft, uint16_t* alias) except -1
    cdef Topic* _topic(self, const uint8_t* text, uint32_t size) except? NULL
    cdef Topic* _aliased(self, const uint8_t* text, uint32_t size, uint16_t alias) except? NULL
    cdef bint _acknowledgement(self, uint8_t first, const uint8_t* body, uint32_t size) except -1
    cdef void _released(self, uint16_t packet_id)
    cdef bint _is_durable(self, Topic* topic) noexcept
    cdef bint _is_new(self, Topic* topic, Draft* draft)
    cdef void _answer(self, uint8_t first_byte, uint16_t packet_id, uint8_t reason) noexcept
    cdef bint _may_publish(self, Topic* topic) noexcept
    cdef bint _hear(self, Topic* topic, Draft* draft) noexcept
    cdef bint _too_deep(self, const uint8_t* text, uint32_t size) noexcept
