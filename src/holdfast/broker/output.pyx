"""What waits to be written, and the bound that all of it has together; compiled."""

from libc.stdint cimport uint32_t

from holdfast.broker.shares cimport Share, pool_abandon, pool_heaviest, pool_join, pool_leave, pool_new, share_set
from holdfast.mqtt.wire cimport out_free, out_reserve


cdef class Outputs:
    def __cinit__(self) -> None:
        self.choked = []
        self.pool = pool_new(0, 0)
        if self.pool == NULL:
            raise MemoryError

    def __dealloc__(self) -> None:
        pool_abandon(self.pool)

    @property
    def bytes_waiting(self) -> int:
        return self.pool.bytes

    def bound(self, size_t bytes_max) -> None:
        self.pool.max = self.pool.soft = bytes_max

    cdef void make_room(self, Output output):
        """More waits than may, and this one is about to get something."""
        cdef Share* heaviest
        cdef Output heavy
        while self.pool.bytes > self.pool.max:
            heaviest = pool_heaviest(self.pool)
            if heaviest.held == self.pool.bytes:
                return
            heavy = <Output>heaviest.owner if heaviest.held > output.share_of_output.held else output
            if not heavy.choked:
                heavy.choked = True
                self.choked.append(heavy)
            if heavy is output:
                return      # it is written to now
            heavy.cut_off()


cdef class Output:
    def __cinit__(self) -> None:
        self.packet_max = 0xFFFFFFFF

    def __dealloc__(self) -> None:
        self.empty()
        pool_leave(&self.share_of_output)

    cdef bint join_outputs(self, Outputs outputs) except 0:
        self.outputs = outputs
        if not pool_join(outputs.pool, &self.share_of_output, self):
            raise MemoryError
        return 1

    cdef bint grow(self, size_t size) noexcept:
        if not out_reserve(&self.out, size):
            return 0
        if self.share_of_output.pool != NULL:
            share_set(&self.share_of_output, self.out.cap)
            if self.outputs.pool.bytes > self.outputs.pool.max:
                self.outputs.make_room(self)
        return 1

    cdef void empty(self) noexcept:
        """Nothing waits any more."""
        out_free(&self.out)
        if self.share_of_output.held:
            share_set(&self.share_of_output, 0)

    def cut_off(self) -> None:
        """What waits is never written, nor is anything behind it."""
        self.packet_max = 0
        self.empty()
