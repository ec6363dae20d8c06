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
    ENTRY_BYTES = 64        # what it takes to hold a message, besides the message

cdef struct Share:
    Pool* pool              # NULL: it is in none
    size_t held
    uint32_t place          # among the members
    PyObject* owner         # borrowed

cdef struct Pool:
    size_t bytes            # what is held, each message once
    size_t max              # its bound
    size_t soft             # from here on whoever holds most makes room
    size_t floor            # a smaller message counts as much as this
    Share** members         # while `ordered` a heap of four children a node, the largest first
    uint32_t len, cap
    bint ordered
    bint orphan             # its owner is gone: the last member frees it

cdef Pool* pool_new(size_t most, size_t soft, size_t floor) noexcept
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


cdef inline size_t pool_counts(const Pool* pool, const Message* m) noexcept nogil:
    return m.size if m.size > pool.floor else pool.floor


cdef inline void share_hold(Share* share, Message* m) noexcept:
    """The member holds a message from now on, once more."""
    cdef size_t size = pool_counts(share.pool, m)
    share.pool.bytes += ENTRY_BYTES
    if m.kept == 0:
        share.pool.bytes += size
    m.kept += 1
    share_grow(share, size + ENTRY_BYTES)


cdef inline void share_let_go(Share* share, Message* m) noexcept:
    cdef size_t size = pool_counts(share.pool, m)
    share.pool.bytes -= ENTRY_BYTES
    m.kept -= 1
    if m.kept == 0:
        share.pool.bytes -= size
    share_shrink(share, size + ENTRY_BYTES)
