"""Bytes to packets and back, for MQTT 3.1 (version 3), 3.1.1 (4) and 5.

Laws:
- any bytes either are exactly one packet of the specification or raise PeerError with the reason the peer is told
- what encode gives, decode accepts and gives back; what decode would refuse, encode refuses with ValueError
- SUBSCRIBE and UNSUBSCRIBE can be read in pieces: begin_filters checks the whole packet before anything is made of it

Which direction a packet travels is for its user to check: a server gets no CONNACK, a client sends no
subscription_ids in PUBLISH.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t

from holdfast.mqtt.decoder cimport take_filters, take_head, take_packet
from holdfast.mqtt.encoder cimport put_packet
from holdfast.mqtt.fields cimport Reader, room
from holdfast.mqtt.wire cimport VARINT_MAX, VARINT_SHORT, Out, out_free, read_varint, varint_size, write_varint

from holdfast.errors import PeerError
from holdfast.mqtt.reasons import Reason

cdef object MALFORMED = Reason.MALFORMED_PACKET

cdef enum:
    HEADER_BYTES_MAX = 5
    ANY_NUMBER = 0x7FFFFFFF

PACKET_BYTES_MAX = VARINT_MAX + HEADER_BYTES_MAX


def split(buffer, Py_ssize_t start=0, Py_ssize_t packet_bytes_max=VARINT_MAX + HEADER_BYTES_MAX):
    """Where the packet at `start` lies: its first byte, and where its body starts and ends; None while some is missing.

    A packet that announces more than `packet_bytes_max` bytes, its header included, is refused at once.
    """
    cdef Py_buffer view
    cdef const uint8_t* at
    cdef int size = 0
    cdef long length
    if start < 0:
        raise ValueError(f"start is {start}; expected a position in the buffer")
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if view.len - start < 2:
            return None
        at = <const uint8_t*>view.buf + start
        length = read_varint(at + 1, <const uint8_t*>view.buf + view.len, &size)
        if length == VARINT_SHORT:
            return None
        if length < 0:
            raise PeerError(MALFORMED, "remaining length is longer than 4 bytes")
        if size > 1 and at[size] == 0:
            raise PeerError(MALFORMED, f"remaining length {length} takes {size} bytes; expected as few as hold it")
        if 1 + size + length > packet_bytes_max:
            raise PeerError(
                Reason.PACKET_TOO_LARGE, f"packet has {1 + size + length} bytes; expected at most {packet_bytes_max}"
            )
        if view.len - start - 1 - size < length:
            return None
        return at[0], start + 1 + size, start + 1 + size + length
    finally:
        PyBuffer_Release(&view)


def decode(int first_byte, body, int version, int user_properties_max=ANY_NUMBER):
    """The packet whose header begins with `first_byte`. A CONNECT says its version itself."""
    if not 0 <= first_byte <= 255:
        raise ValueError(f"first_byte is {first_byte}; expected 0 to 255")
    _check_version(version)
    cdef Py_buffer view
    cdef Reader reader
    PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
    try:
        reader.at = <const uint8_t*>view.buf
        reader.end = reader.at + view.len
        reader.pairs_max = user_properties_max
        return take_packet(first_byte >> 4, first_byte & 15, &reader, version)
    finally:
        PyBuffer_Release(&view)


def begin_filters(int first_byte, bytes body not None, int version, int filters_max, int user_properties_max):
    """The packet identifier and the properties of a SUBSCRIBE or UNSUBSCRIBE, and where its first filter stands.

    All of the packet is checked: `next_filters` then finds nothing wrong with it."""
    _check_version(version)
    cdef const uint8_t* start = <const uint8_t*>(<char*>body)
    cdef Reader reader = Reader(start, start + len(body), user_properties_max)
    packet_id, properties = take_head(first_byte >> 4, first_byte & 15, &reader, version)
    cdef Py_ssize_t at = reader.at - start
    take_filters(first_byte >> 4, &reader, version, filters_max, None)
    return packet_id, properties, at


def next_filters(int first_byte, bytes body not None, int version, Py_ssize_t at, int most):
    """Up to so many of the filters from `at` on, as decode gives them, and where the next one stands."""
    if not 0 <= at <= len(body) or most < 1:
        raise ValueError(f"at is {at} and most is {most}; expected a position in the body, and at least 1")
    cdef const uint8_t* start = <const uint8_t*>(<char*>body)
    cdef Reader reader = Reader(start + at, start + len(body), 0)
    cdef list filters = []
    take_filters(first_byte >> 4, &reader, version, most, filters)
    return filters, reader.at - start


def encode(packet, int version):
    """`packet` as all its bytes, header included. A Connect says its version itself."""
    _check_version(version)
    cdef Out out = Out(NULL, 0, 0)
    cdef int first_byte
    try:
        room(&out, HEADER_BYTES_MAX)
        first_byte = put_packet(&out, packet, version)
        return _with_header(&out, first_byte)
    finally:
        out_free(&out)


cdef bytes _with_header(Out* out, int first_byte):
    """Writes the header right before the body, into the room that was left for it."""
    cdef size_t size = out.len - HEADER_BYTES_MAX
    if size > VARINT_MAX:
        raise ValueError(f"packet has {size} bytes after its header; expected at most {VARINT_MAX}")
    cdef size_t start = HEADER_BYTES_MAX - 1 - varint_size(<uint32_t>size)
    out.data[start] = <uint8_t>first_byte
    write_varint(out.data + start + 1, <uint32_t>size)
    return PyBytes_FromStringAndSize(<char*>out.data + start, out.len - start)


cdef inline int _check_version(int version) except -1:
    if not 3 <= version <= 5:
        raise ValueError(f"version is {version}; expected 3, 4 or 5")
    return 0
