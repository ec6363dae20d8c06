"""Pools of memory that clients share, and a Python face of them for tests."""

from cpython.ref cimport PyObject
from libc.stdint cimport uint32_t
from libc.stdlib cimport calloc, free, realloc


cdef Pool* pool_new(size_t most, size_t soft) noexcept:
    """An empty pool, or NULL when memory is gone."""
    cdef Pool* pool = <Pool*>calloc(1, sizeof(Pool))
    if pool != NULL:
        pool.max = most
        pool.soft = soft
    return pool


cdef void pool_abandon(Pool* pool) noexcept:
    """Its owner is going."""
    if pool == NULL:
        return
    pool.orphan = True
    if pool.len == 0:
        free(pool.members)
        free(pool)


cdef bint pool_join(Pool* pool, Share* share, object owner) noexcept:
    """A new member that holds nothing yet; 0 when memory is gone."""
    cdef Share** grown
    cdef uint32_t cap
    if pool.len == pool.cap:
        cap = pool.cap * 2 if pool.cap else 16
        grown = <Share**>realloc(pool.members, cap * sizeof(Share*))
        if grown == NULL:
            return 0
        pool.members = grown
        pool.cap = cap
    share.pool = pool
    share.held = share.flying = 0
    share.owner = <PyObject*>owner
    share.place = pool.len
    pool.members[pool.len] = share
    pool.len += 1
    return 1


cdef void pool_leave(Share* share) noexcept:
    """A member goes. What it held, it has let go of."""
    cdef Pool* pool = share.pool
    cdef Share* last
    if pool == NULL:
        return
    share.pool = NULL
    pool.len -= 1
    last = pool.members[pool.len]
    if last != share:
        pool.members[share.place] = last
        last.place = share.place
        if pool.ordered:
            sink(pool, last)
            rise(pool, last)
    if pool.orphan and pool.len == 0:
        free(pool.members)
        free(pool)


cdef inline void put(Pool* pool, uint32_t at, Share* share) noexcept:
    pool.members[at] = share
    share.place = at


cdef void rise(Pool* pool, Share* share) noexcept:
    cdef uint32_t at = share.place, parent
    while at > 0:
        parent = (at - 1) >> 2
        if share_total(pool.members[parent]) >= share_total(share):
            break
        put(pool, at, pool.members[parent])
        at = parent
    put(pool, at, share)


cdef void sink(Pool* pool, Share* share) noexcept:
    cdef uint32_t at = share.place, child, best, stop
    while True:
        child = (at << 2) + 1
        if child >= pool.len:
            break
        stop = min(child + 4, pool.len)
        best = child
        for child in range(child + 1, stop):
            if share_total(pool.members[child]) > share_total(pool.members[best]):
                best = child
        if share_total(pool.members[best]) <= share_total(share):
            break
        put(pool, at, pool.members[best])
        at = best
    put(pool, at, share)


cdef void share_moved(Share* share, bint up) noexcept:
    """It holds more now, or less, and the members are in order but for that."""
    cdef Pool* pool = share.pool
    if up:
        rise(pool, share)
    elif pool.bytes < pool.soft // 2:
        pool.ordered = False
    else:
        sink(pool, share)


cdef Share* pool_heaviest(Pool* pool) noexcept:
    """Who holds most; NULL when nobody holds anything."""
    cdef uint32_t at
    if pool.len == 0:
        return NULL
    if not pool.ordered:
        pool.ordered = True
        at = (pool.len + 2) >> 2
        while at > 0:
            at -= 1
            sink(pool, pool.members[at])
    return pool.members[0] if share_total(pool.members[0]) else NULL


cdef class ShareBook:
    """A pool of plain numbers, so that the order can be tested from Python."""

    cdef Pool* pool
    cdef dict members

    def __cinit__(self, size_t most, size_t soft) -> None:
        self.pool = pool_new(most, soft)
        self.members = {}

    def __dealloc__(self) -> None:
        pool_abandon(self.pool)

    def change(self, name, Py_ssize_t size) -> None:
        """That member holds so much more, or less; a new one joins."""
        cdef ShareEntry entry = self.members.get(name)
        if entry is None:
            entry = self.members[name] = ShareEntry()
            entry.name = name
            pool_join(self.pool, &entry.share, entry)
        self.pool.bytes += size
        if size >= 0:
            share_grow(&entry.share, size)
        else:
            share_shrink(&entry.share, -size)

    def leave(self, name) -> None:
        cdef ShareEntry entry = self.members.pop(name)
        self.pool.bytes -= entry.share.held
        pool_leave(&entry.share)

    def heaviest(self):
        cdef Share* share = pool_heaviest(self.pool)
        return None if share == NULL else (<ShareEntry>share.owner).name

    @property
    def ordered(self) -> bool:
        return self.pool.ordered


cdef class ShareEntry:
    cdef Share share
    cdef object name

    def __dealloc__(self) -> None:
        pool_leave(&self.share)
