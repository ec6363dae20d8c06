"""The message buffer: messages as C structs, counted in a ledger."""

from cpython.ref cimport PyObject, Py_XDECREF
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport malloc, free
from libc.string cimport memcpy, memmove, memset

from holdfast.mqtt.wire cimport varint_size, write_u16, write_varint


cdef inline void* take_block(Ledger* ledger, size_t size) noexcept:
    cdef size_t cells = (size + CELL - 1) // CELL
    cdef Kept* block
    if cells > CELLS:
        return malloc(size)
    block = ledger.kept[cells - 1]
    if block == NULL:
        return malloc(cells * CELL)
    ledger.kept[cells - 1] = block.next
    ledger.kept_len[cells - 1] -= 1
    return block


cdef inline void give_block(Ledger* ledger, void* block, size_t size) noexcept:
    cdef size_t cells = (size + CELL - 1) // CELL
    if cells > CELLS or ledger.kept_len[cells - 1] >= KEPT_MAX:
        free(block)
        return
    (<Kept*>block).next = ledger.kept[cells - 1]
    ledger.kept[cells - 1] = <Kept*>block
    ledger.kept_len[cells - 1] += 1


cdef void ledger_free(Ledger* ledger) noexcept:
    cdef int i
    cdef Kept* block
    for i in range(CELLS):
        while ledger.kept[i] != NULL:
            block = ledger.kept[i]
            ledger.kept[i] = block.next
            free(block)
    free(ledger)


cdef Message* message_new(Ledger* ledger, const uint8_t* topic, uint32_t topic_size,
                          const uint8_t* props, uint32_t props_size,
                          const uint8_t* payload, uint32_t payload_size) noexcept:
    """A message with one reference, or NULL when memory is gone. The lengths fit MQTT's limits."""
    cdef int props_head = varint_size(props_size)
    cdef uint32_t body = 2 + topic_size + props_head + props_size + payload_size
    cdef uint32_t size = sizeof(Message) + HEADER_ROOM + body
    cdef Message* m = <Message*>take_block(ledger, size)
    cdef uint8_t* at
    if m == NULL:
        return NULL
    memset(m, 0, sizeof(Message))
    m.refs = 1
    m.size = size
    m.ledger = ledger
    m.topic_size = topic_size
    m.props_size = props_size
    m.payload_size = payload_size
    ledger.messages += 1
    ledger.bytes += size
    at = message_wire(m)
    m.header = HEADER_ROOM - 1 - varint_size(body)
    at[m.header] = 0x30
    write_varint(at + m.header + 1, body)
    at += HEADER_ROOM
    write_u16(at, topic_size)
    memcpy(at + 2, topic, topic_size)
    at += 2 + topic_size
    at += write_varint(at, props_size)
    if props_size:
        memcpy(at, props, props_size)
    memcpy(at + props_size, payload, payload_size)
    return m


cdef void topic_clear_routes(Topic* topic) noexcept:
    cdef uint32_t i
    for i in range(topic.routes_len):
        Py_XDECREF(topic.routes[i].ids)
    if topic.routes != &topic.nearest:
        free(topic.routes)
    topic.routes = &topic.nearest
    topic.routes_len = 0


cdef void topic_free(Topic* topic) noexcept:
    if topic.tenant != NULL:
        topic_give_back(topic)
    topic_clear_routes(topic)
    Py_XDECREF(topic.terms)
    free(topic)


cdef void message_free(Message* m) noexcept:
    cdef Ledger* ledger = m.ledger
    if m.had != NULL:
        message_forget_had(m)
    ledger.messages -= 1
    ledger.bytes -= m.size
    if m.topic != NULL:
        if m.flags & OWED:
            m.topic.unsafe -= 1
        topic_unpin(m.topic)
    Py_XDECREF(m.source)
    give_block(ledger, m, m.size)
    if ledger.orphan and ledger.messages == 0:
        ledger_free(ledger)


# Who is done with a message

cdef Had* message_mark_first(Message* m, uint64_t key, uint64_t bits) noexcept:
    """Nobody was known to be done with it. NULL when memory is gone."""
    cdef Had* had = <Had*>take_block(m.ledger, sizeof(Had))
    if had != NULL:
        had.next = NULL
        had.owners.refs = 1
        had.len = had.cap = 1
        had.last = NULL
        had.chunks.one.key = key
        had.chunks.one.bits = bits
        had.chunks.one.told = 0
        m.had = had
        m.ledger.bytes += sizeof(Had)
    return had


cdef inline uint32_t place_of(Had* had, uint64_t key) noexcept nogil:
    """Where the chunk of that key is, or would be."""
    cdef Chunk* chunks = had_chunks(had)
    cdef uint32_t low = 0, high = had.len, middle
    while low < high:
        middle = (low + high) // 2
        if chunks[middle].key < key:
            low = middle + 1
        else:
            high = middle
    return low


cdef bint grow_chunks(Had* had, Ledger* ledger, uint32_t cap) noexcept:
    cdef Chunk* grown = <Chunk*>malloc(cap * sizeof(Chunk))
    if grown == NULL:
        return 0
    memcpy(grown, had_chunks(had), had.len * sizeof(Chunk))
    if had.cap > 1:
        free(had.chunks.many)
        ledger.bytes -= had.cap * sizeof(Chunk)
    ledger.bytes += cap * sizeof(Chunk)
    had.chunks.many = grown
    had.cap = cap
    return 1


cdef bint own_had(Message* m) noexcept:
    """Something changes that others may share: from now on the message has its own. 0 when memory is gone."""
    cdef Had* shared = m.had
    if shared.next != NULL or shared.owners.refs == 1:
        return 1
    if message_mark_first(m, 0, 0) == NULL:
        return 0
    if shared.len > 1 and not grow_chunks(m.had, m.ledger, shared.len):
        had_free(m.had, m.ledger)
        m.had = shared
        return 0
    memcpy(had_chunks(m.had), had_chunks(shared), shared.len * sizeof(Chunk))
    m.had.len = shared.len
    shared.owners.refs -= 1
    return 1


cdef bint message_mark(Message* m, uint64_t key, uint64_t bits, bint told) noexcept:
    """Sessions are done with it; says whether any of them is news that is to be told."""
    cdef Had* had
    cdef Chunk* chunk
    cdef uint32_t at
    if m.had == NULL:
        if message_mark_first(m, key, 0) == NULL:
            return 0
    elif not own_had(m):
        return 0
    had = m.had
    at = place_of(had, key)
    if at == had.len or had_chunks(had)[at].key != key:
        if had.len == had.cap and not grow_chunks(had, m.ledger, 4 if had.cap == 1 else 2 * had.cap):
            return 0
        chunk = &had_chunks(had)[at]
        if at < had.len:
            memmove(chunk + 1, chunk, (had.len - at) * sizeof(Chunk))
        chunk.key = key
        chunk.bits = 0
        chunk.told = 0
        had.len += 1
    chunk = &had_chunks(had)[at]
    chunk.bits |= bits
    if had.last != NULL:
        had.last = chunk
    if told:
        chunk.told |= bits
    return (chunk.bits & ~chunk.told) != 0


cdef void message_share_had(Message* m, Had* had) noexcept:
    """The same is known of it as of another, and all of it was told."""
    if m.had == had:
        return
    had.owners.refs += 1
    if m.had != NULL:
        message_forget_had(m)
    m.had = had


cdef void message_forget_had(Message* m) noexcept:
    """All are done with it, or it is going."""
    cdef Had* had = m.had
    m.had = NULL
    if had.next != NULL:
        had.prev.next = had.next
        had.next.prev = had.prev
    elif had.owners.refs > 1:
        had.owners.refs -= 1
        return
    had_free(had, m.ledger)


cdef void had_free(Had* had, Ledger* ledger) noexcept:
    if had.cap > 1:
        free(had.chunks.many)
        ledger.bytes -= had.cap * sizeof(Chunk)
    ledger.bytes -= sizeof(Had)
    give_block(ledger, had, sizeof(Had))


cdef bint had_by(Had* had, uint64_t serial) noexcept nogil:
    cdef uint32_t at = place_of(had, serial >> 6)
    cdef Chunk* chunk = &had_chunks(had)[at]
    return at < had.len and chunk.key == serial >> 6 and (chunk.bits >> (serial & 63)) & 1


cdef uint8_t* message_props(Message* m) noexcept nogil:
    return message_rest(m) + varint_size(m.props_size)


cdef uint8_t* message_payload(Message* m) noexcept nogil:
    return message_props(m) + m.props_size
