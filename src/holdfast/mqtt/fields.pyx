"""The fields that packets and properties are made of (section 1.5 of both specifications).

Laws:
- a take_ never looks past `end`, never allocates more than what is really there, and raises only PeerError;
  `what` names the field in the text
- a put_ takes a value that a caller made and raises only ValueError or TypeError for one that the wire cannot hold
- take and put refuse the same values
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memchr, memcpy

from holdfast.mqtt.topics cimport filter_problem, topic_problem
from holdfast.mqtt.wire cimport (
    VARINT_MAX,
    VARINT_SHORT,
    Out,
    out_reserve,
    read_u16,
    read_u32,
    read_varint,
    utf8_valid,
    write_u16,
    write_u32,
    write_varint,
)

from holdfast.errors import PeerError
from holdfast.mqtt.reasons import ALLOWED, Reason

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL
    long PyLong_AsLongAndOverflow(object value, int* overflow) except? -1

cdef enum:
    U16_MAX = 65535

cdef object MALFORMED = Reason.MALFORMED_PACKET
cdef object PROTOCOL = Reason.PROTOCOL_ERROR
cdef object FILTER_INVALID = Reason.TOPIC_FILTER_INVALID

cdef uint32_t[256] REASON_PACKETS  # by reason, a bit per packet type that may carry it


cdef int _load_reasons() except -1:
    for packet_type, reasons in ALLOWED.items():
        for reason in reasons:
            REASON_PACKETS[<int>reason] |= <uint32_t>1 << <int>packet_type
    return 0


_load_reasons()


cdef int _short(Reader* reader, size_t size, str what) except -1:
    raise PeerError(MALFORMED, f"{what} is cut short: expected {size} bytes, {reader.end - reader.at} are left")


cdef inline int _need(Reader* reader, size_t size, str what) except -1:
    if <size_t>(reader.end - reader.at) < size:
        _short(reader, size, what)
    return 0


cdef int take_u8(Reader* reader, str what) except -1:
    _need(reader, 1, what)
    cdef int value = reader.at[0]
    reader.at += 1
    return value


cdef int take_u16(Reader* reader, str what) except -1:
    _need(reader, 2, what)
    cdef int value = read_u16(reader.at)
    reader.at += 2
    return value


cdef long take_u32(Reader* reader, str what) except -1:
    _need(reader, 4, what)
    cdef long value = read_u32(reader.at)
    reader.at += 4
    return value


cdef long take_varint(Reader* reader, str what) except -1:
    cdef int size = 0
    cdef long value = read_varint(reader.at, reader.end, &size)
    if value < 0:
        if value == VARINT_SHORT:
            raise PeerError(MALFORMED, f"{what} is cut short: expected a variable byte integer")
        raise PeerError(MALFORMED, f"{what} is longer than the 4 bytes of a variable byte integer")
    if size > 1 and reader.at[size - 1] == 0:
        raise PeerError(MALFORMED, f"{what} takes {size} bytes for {value}; expected as few as hold it")
    reader.at += size
    return value


cdef inline size_t _take_prefix(Reader* reader, str what) except? 0:
    cdef size_t size = take_u16(reader, what)
    _need(reader, size, what)
    return size


cdef str take_string(Reader* reader, str what):
    cdef size_t size = _take_prefix(reader, what)
    if not utf8_valid(reader.at, size):
        raise PeerError(MALFORMED, f"{what} is not UTF-8 without NUL")
    cdef str text = PyUnicode_DecodeUTF8(<char*>reader.at, size, NULL)
    reader.at += size
    return text


cdef bytes take_binary(Reader* reader, str what):
    cdef size_t size = _take_prefix(reader, what)
    cdef bytes data = PyBytes_FromStringAndSize(<char*>reader.at, size)
    reader.at += size
    return data


cdef str take_topic(Reader* reader, str what, object reason):
    """A topic name; one that is text but not a name is refused with `reason`."""
    cdef const uint8_t* start = reader.at
    cdef str text = take_string(reader, what)
    cdef const char* problem = topic_problem(start + 2, reader.at - start - 2)
    if problem != NULL:
        raise PeerError(reason, f"{what} {text[:64]!r}: {problem.decode()}")
    return text


cdef int skip_filter(Reader* reader) except -1:
    """Checks a filter as take_filter does, and makes nothing of it."""
    cdef size_t size = _take_prefix(reader, "topic filter")
    cdef const uint8_t* start = reader.at
    if not utf8_valid(start, size):
        raise PeerError(MALFORMED, "topic filter is not UTF-8 without NUL")
    cdef const char* problem = filter_problem(start, size)
    if problem != NULL:
        text = PyUnicode_DecodeUTF8(<char*>start, size, NULL)
        raise PeerError(FILTER_INVALID, f"topic filter {text[:64]!r}: {problem.decode()}")
    reader.at += size
    return 0


cdef str take_filter(Reader* reader):
    cdef const uint8_t* start = reader.at + 2
    skip_filter(reader)
    return PyUnicode_DecodeUTF8(<char*>start, reader.at - start, NULL)


cdef int take_packet_id(Reader* reader) except -1:
    cdef int packet_id = take_u16(reader, "packet id")
    if packet_id == 0:
        raise PeerError(PROTOCOL, "packet id is 0; expected 1 to 65535")
    return packet_id


cdef int take_reason(Reader* reader, int packet_type) except -1:
    cdef int reason = take_u8(reader, "reason code")
    if not REASON_PACKETS[reason] >> packet_type & 1:
        raise PeerError(PROTOCOL, f"0x{reason:02X} is not a reason code of packet type {packet_type}")
    return reason


cdef int expect_end(Reader* reader, str what) except -1:
    if reader.at != reader.end:
        raise PeerError(MALFORMED, f"{what} has {reader.end - reader.at} bytes after its end; expected none")
    return 0


cdef uint8_t* room(Out* out, size_t size) except NULL:
    """Where the next `size` bytes go. The caller fills them all."""
    if not out_reserve(out, size):
        raise MemoryError()
    out.len += size
    return out.data + out.len - size


cdef long number(object value, long low, long high, str what) except? -1:
    cdef int overflow = 0
    cdef long result = PyLong_AsLongAndOverflow(value, &overflow)
    if overflow or result < low or result > high:
        raise ValueError(f"{what} is {value}; expected {low} to {high}")
    return result


cdef int put_u8(Out* out, long value) except -1:
    room(out, 1)[0] = <uint8_t>value
    return 0


cdef int put_u16(Out* out, long value) except -1:
    write_u16(room(out, 2), <unsigned short>value)
    return 0


cdef int put_u32(Out* out, long value) except -1:
    write_u32(room(out, 4), <unsigned int>value)
    return 0


cdef int put_varint(Out* out, long value) except -1:
    """`value` is between 0 and VARINT_MAX."""
    if not out_reserve(out, 4):
        raise MemoryError()
    out.len += write_varint(out.data + out.len, <unsigned int>value)
    return 0


cdef int _put_sized(Out* out, const char* data, Py_ssize_t size, str what) except -1:
    if size > U16_MAX:
        raise ValueError(f"{what} has {size} bytes; expected at most {U16_MAX}")
    cdef uint8_t* at = room(out, size + 2)
    write_u16(at, <unsigned short>size)
    memcpy(at + 2, data, size)
    return 0


cdef inline const char* _text(object value, str what, Py_ssize_t* size) except NULL:
    if not isinstance(value, str):
        raise TypeError(f"{what} is {type(value).__name__}; expected str")
    try:
        return PyUnicode_AsUTF8AndSize(value, size)
    except UnicodeEncodeError:
        raise ValueError(f"{what} has a lone surrogate; expected text that UTF-8 can hold") from None


cdef int put_string(Out* out, object value, str what) except -1:
    cdef Py_ssize_t size = 0
    cdef const char* text = _text(value, what, &size)
    if memchr(text, 0, size) != NULL:
        raise ValueError(f"{what} has a NUL character; MQTT text has none")
    return _put_sized(out, text, size, what)


cdef int put_binary(Out* out, object value, str what) except -1:
    cdef Py_buffer view
    PyObject_GetBuffer(value, &view, PyBUF_SIMPLE)
    try:
        return _put_sized(out, <const char*>view.buf, view.len, what)
    finally:
        PyBuffer_Release(&view)


cdef int put_raw(Out* out, object value, str what) except -1:
    """All of `value`, without its length in front."""
    cdef Py_buffer view
    PyObject_GetBuffer(value, &view, PyBUF_SIMPLE)
    try:
        if view.len > VARINT_MAX:
            raise ValueError(f"{what} has {view.len} bytes; expected at most {VARINT_MAX}")
        memcpy(room(out, view.len), view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
    return 0


cdef int put_topic(Out* out, object value, str what) except -1:
    cdef size_t start = out.len
    put_string(out, value, what)
    cdef const char* problem = topic_problem(out.data + start + 2, out.len - start - 2)
    if problem != NULL:
        raise ValueError(f"{what} {value!r}: {problem.decode()}")
    return 0


cdef int put_filter(Out* out, object value) except -1:
    cdef size_t start = out.len
    put_string(out, value, "topic filter")
    cdef const char* problem = filter_problem(out.data + start + 2, out.len - start - 2)
    if problem != NULL:
        raise ValueError(f"topic filter {value!r}: {problem.decode()}")
    return 0


cdef int put_packet_id(Out* out, object packet) except -1:
    return put_u16(out, number(packet.packet_id, 1, U16_MAX, "packet id"))


cdef int reason_of(object value, int packet_type) except -1:
    cdef long reason = number(value, 0, 255, "reason")
    if not REASON_PACKETS[reason] >> packet_type & 1:
        raise ValueError(f"0x{reason:02X} is not a reason code of packet type {packet_type}")
    return <int>reason
