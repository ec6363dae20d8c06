"""Bytes of connections that wait for the rest of their packets, compiled."""

from libc.stdint cimport uint8_t
from libc.string cimport memcpy

from holdfast.broker.shares cimport Pool, pool_heaviest, pool_join, pool_leave, share_set
from holdfast.mqtt.wire cimport out_free, out_reserve

cdef int QUOTA_EXCEEDED = 0x97
TOO_MANY = "too many unfinished packets wait in the broker, and this client's take most; send it again later"


cdef class UnfinishedWire(Wire):
    def __dealloc__(self) -> None:
        self.forget_pending()
        pool_leave(&self.share)

    cdef bint join(self, Pool* pool) except 0:
        """It shares with the members of that pool from now on."""
        cdef size_t held = self.share.held
        if self.share.pool != NULL:
            self.share.pool.bytes -= held
            pool_leave(&self.share)
        if not pool_join(pool, &self.share, self):
            raise MemoryError
        share_set(&self.share, held)
        return 1

    cdef bint keep(self, const uint8_t* data, size_t size):
        """Puts bytes aside until they can be handled; 0 when there is no room for them."""
        if not out_reserve(&self.pending, size):
            self._wrong(QUOTA_EXCEEDED, TOO_MANY)
            return 0
        if size:
            memcpy(self.pending.data + self.pending.len, data, size)
        self.pending.len += size
        self.count_pending()
        return self.share.pool.bytes <= self.share.pool.max or self.fits()

    cdef bint fits(self):
        """Makes room: whoever keeps most is sent away, unless no other keeps any. Returns 0 when it was this one."""
        cdef Pool* pool = self.share.pool
        cdef UnfinishedWire heaviest
        cdef bint stays = True
        while stays and pool.bytes > pool.max and pool_heaviest(pool).held < pool.bytes:
            heaviest = <UnfinishedWire>pool_heaviest(pool).owner
            if heaviest.share.held == self.share.held:
                heaviest = self     # who was first stays
            heaviest._wrong(QUOTA_EXCEEDED, TOO_MANY)
            heaviest.forget_pending()
            stays = heaviest is not self
        return stays

    cdef void forget_pending(self) noexcept:
        out_free(&self.pending)
        self.count_pending()

    cdef void count_pending(self) noexcept:
        if self.pending.len != self.share.held and self.share.pool != NULL:
            share_set(&self.share, self.pending.len)

    cdef void _wrong(self, int reason, str text):
        """Nothing more is read, and the peer is told so."""
        raise NotImplementedError
