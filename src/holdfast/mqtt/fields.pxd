# The fields that packets and properties are made of. See fields.pyx for the laws.

from libc.stdint cimport uint8_t, uint32_t

from holdfast.mqtt.wire cimport Out


cdef struct Reader:
    const uint8_t* at
    const uint8_t* end
    uint32_t pairs_max  # user properties that one section may have


cdef int take_u8(Reader* reader, str what) except -1
cdef int take_u16(Reader* reader, str what) except -1
cdef long take_u32(Reader* reader, str what) except -1
cdef long take_varint(Reader* reader, str what) except -1
cdef str take_string(Reader* reader, str what)
cdef bytes take_binary(Reader* reader, str what)
cdef str take_topic(Reader* reader, str what, object reason)
cdef str take_filter(Reader* reader)
cdef int skip_filter(Reader* reader) except -1
cdef int take_packet_id(Reader* reader) except -1
cdef int take_reason(Reader* reader, int packet_type) except -1
cdef int expect_end(Reader* reader, str what) except -1

cdef uint8_t* room(Out* out, size_t size) except NULL
cdef long number(object value, long low, long high, str what) except? -1
cdef int put_u8(Out* out, long value) except -1
cdef int put_u16(Out* out, long value) except -1
cdef int put_u32(Out* out, long value) except -1
cdef int put_varint(Out* out, long value) except -1
cdef int put_string(Out* out, object value, str what) except -1
cdef int put_binary(Out* out, object value, str what) except -1
cdef int put_raw(Out* out, object value, str what) except -1
cdef int put_topic(Out* out, object value, str what) except -1
cdef int put_filter(Out* out, object value) except -1
cdef int put_packet_id(Out* out, object packet) except -1
cdef int reason_of(object value, int packet_type) except -1
