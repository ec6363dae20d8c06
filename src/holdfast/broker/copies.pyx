"""Frames of every message between brokers, written straight into the link."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from holdfast.broker.link cimport Link
from holdfast.broker.message cimport HELD, OWED, RETAIN, Chunk, Had, Message, had_chunks, message_topic
from holdfast.mqtt.wire cimport out_reserve, varint_size, write_u16, write_u32


cdef uint8_t* begin_frame(Link link, uint8_t kind, uint32_t size) noexcept:
    """Room for the body of a frame, its head written; NULL when memory is gone."""
    cdef uint8_t* at
    if not out_reserve(&link.out, FRAME_HEAD + size):
        return NULL
    at = link.out.data + link.out.len
    link.out.len += FRAME_HEAD + size
    write_u32(at, 1 + size)
    at[4] = kind
    link.mark()
    return at + FRAME_HEAD


cdef bint put_copy(Link link, Message* m, int64_t wall_of_now_ns, bint fresh) noexcept:
    """`wall_of_now_ns` is how far the wall clock is ahead of the broker's own. With a `fresh` QoS 2 message its
    publisher's exchange begins; of others the publisher may have its identifier back."""
    cdef uint32_t body = 2 + m.topic_size + varint_size(m.props_size) + m.props_size + m.payload_size
    cdef uint8_t* at = begin_frame(link, COPY, COPY_HEAD + body)
    if at == NULL:
        return 0
    write_u64(at, m.minor)
    write_u64(at + 8, <uint64_t>m.created_ns)
    write_u64(at + 16, m.origin)
    write_u64(at + 24, <uint64_t>(m.expires_ns + wall_of_now_ns) if m.expires_ns else 0)
    write_u32(at + 32, m.expiry_at)
    write_u32(at + 36, m.topic_size)
    write_u16(at + 40, m.packet_id if fresh else 0)
    at[42] = m.qos
    at[43] = (m.flags & RETAIN) | (ASKS_CONFIRM if m.flags & (OWED | HELD) else 0)
    if m.flags & RETAIN and m.payload_size and m.topic.retained == NULL:
        at[43] |= BYGONE
    memcpy(at + COPY_HEAD, message_topic(m), body)
    return 1


cdef bint put_mark(Link link, uint8_t mark, uint64_t serial, uint16_t packet_id, uint64_t number) noexcept:
    cdef uint8_t* at = begin_frame(link, MARK, MARK_SIZE)
    if at == NULL:
        return 0
    at[0] = mark
    write_u64(at + 1, serial)
    write_u16(at + 9, packet_id)
    write_u64(at + 11, number)
    return 1


cdef bint put_discards(Link link, const uint64_t* numbers, uint32_t count) noexcept:
    cdef uint8_t* at
    cdef uint32_t i, some
    while count:
        some = min(count, <uint32_t>DISCARDS_MAX)
        at = begin_frame(link, DISCARD, 8 * some)
        if at == NULL:
            return 0
        for i in range(some):
            write_u64(at + 8 * i, numbers[i])
        numbers += some
        count -= some
    return 1


cdef uint32_t put_had(Link link, Had* had, const uint64_t* numbers, uint32_t count, bint again) noexcept:
    """What is to be told of who is done with messages, which is the same of all of them; with `again` also what was
    told already. Returns how many frames that took."""
    cdef Chunk* chunk
    cdef uint64_t bits
    cdef uint32_t i, j, frames = 0
    cdef uint8_t* at
    for i in range(had.len if count else 0):
        chunk = &had_chunks(had)[i]
        bits = chunk.bits if again else chunk.bits & ~chunk.told
        if bits == 0:
            continue
        at = begin_frame(link, MARK, HAD_HEAD + 8 * count)
        if at == NULL:
            break
        at[0] = HAD
        write_u64(at + 1, chunk.key)
        write_u64(at + 9, bits)
        for j in range(count):
            write_u64(at + HAD_HEAD + 8 * j, numbers[j])
        frames += 1
    return frames


cdef bint put_number(Link link, uint8_t kind, uint64_t number) noexcept:
    cdef uint8_t* at = begin_frame(link, kind, 8)
    if at == NULL:
        return 0
    write_u64(at, number)
    return 1
