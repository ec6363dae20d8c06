# A pool of memory with one bound, and how much of it each of its members holds.
#
# Laws:
#   what members hold together is at least what the pool holds (several may hold the same message): so whoever
#   holds most holds at least an even share of it, and a member below an even share never pays for another
#   who holds most is found in a few steps however many members there are, and costs nothing while there is room:
#   the order is kept from the moment that somebody asks until the pool is half empty
#   a pool outlives its members and its owner, whichever goes last

from cpython.ref cimport PyObject
from libc.stdint cimport uint32_t

from holdfast.broker.message cimport Message

cdef enum:
    ENTRY_BYTES = 64        # what it takes to have a message wait, besides the message

cdef struct Share:
    Pool* pool              # NULL: it is in none
    size_t held             # what waits
    size_t flying           # what is on its way to a client
    uint32_t place          # among the members
    PyObject* owner         # borrowed

cdef struct Pool:
    size_t bytes            # what is held, each message once
    size_t max              # its bound
    size_t soft             # from here on whoever holds most makes room
    Share** members         # while `ordered` a heap of four children a node, the largest first
    uint32_t len, cap
    bint ordered
    bint orphan             # its owner is gone: the last member frees it

cdef Pool* pool_new(size_t most, size_t soft) noexcept
cdef void pool_abandon(Pool* pool) noexcept
cdef bint pool_join(Pool* pool, Share* share, object owner) noexcept
cdef void pool_leave(Share* share) noexcept
cdef Share* pool_heaviest(Pool* pool) noexcept
cdef void share_moved(Share* share, bint up) noexcept


cdef inline void share_grow(Share* share, size_t size) noexcept:
    share.held += size
    if share.pool.ordered:
        share_moved(share, 1)


cdef inline void share_shrink(Share* share, size_t size) noexcept:
    share.held -= size
    if share.pool.ordered:
        share_moved(share, 0)


cdef inline void share_set(Share* share, size_t held) noexcept:
    """The member holds so much now, which nobody else holds too."""
    cdef size_t before = share.held
    share.pool.bytes += held - before
    if held > before:
        share_grow(share, held - before)
    elif held < before:
        share_shrink(share, before - held)


cdef inline size_t share_total(const Share* share) noexcept nogil:
    return share.held + share.flying


cdef inline void share_hold(Share* share, Message* m) noexcept:
    """A message waits for the member from now on."""
    cdef size_t more = ENTRY_BYTES if m.kept else ENTRY_BYTES + m.size
    m.kept += 1
    share.pool.bytes += more
    share_grow(share, m.size + ENTRY_BYTES)


cdef inline void share_let_go(Share* share, Message* m) noexcept:
    m.kept -= 1
    share.pool.bytes -= ENTRY_BYTES if m.kept else ENTRY_BYTES + m.size
    share_shrink(share, m.size + ENTRY_BYTES)


cdef inline void share_fly(Share* share, Message* m) noexcept:
    """A message is on its way to the member's client, and kept until that has acknowledged it."""
    if m.kept == 0:
        share.pool.bytes += m.size
    m.kept += 1
    share.flying += m.size
    if share.pool.ordered:
        share_moved(share, 1)


cdef inline void share_land(Share* share, Message* m) noexcept:
    m.kept -= 1
    if m.kept == 0:
        share.pool.bytes -= m.size
    share.flying -= m.size
    if share.pool.ordered:
        share_moved(share, 0)
