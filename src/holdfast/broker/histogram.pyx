"""Histograms of durations that are cheap enough to have for every message."""

from libc.stdint cimport int64_t, uint64_t

from holdfast.status import BOUNDS_NS

cdef extern from *:
    int __builtin_clzll(unsigned long long) noexcept nogil

assert len(BOUNDS_NS) == BUCKETS - 1, "the last bucket is for what is beyond the bounds"

cdef int64_t BOUND_NS[BUCKETS]
cdef int FIRST[65]  # by the number of bits of a duration: the first bucket that it can be in

for _index in range(BUCKETS - 1):
    BOUND_NS[_index] = BOUNDS_NS[_index]
BOUND_NS[BUCKETS - 1] = 0x7FFFFFFFFFFFFFFF
for _index in range(65):
    FIRST[_index] = sum(1 for bound_ns in BOUNDS_NS if bound_ns < (1 << _index) // 2)


cdef void add_to(Buckets* buckets, int64_t ns) noexcept nogil:
    cdef int at
    if ns < 1:
        ns = 1
    at = FIRST[64 - __builtin_clzll(<uint64_t>ns)]
    while ns > BOUND_NS[at]:
        at += 1
    buckets.counts[at] += 1
    buckets.sum_ns += <uint64_t>ns


cdef list counts_of(Buckets* buckets):
    cdef int i
    return [buckets.counts[i] for i in range(BUCKETS)]


cdef class Histogram:
    def add(self, int64_t ns) -> None:
        add_to(&self.buckets, ns)

    @property
    def counts(self) -> list[int]:
        return counts_of(&self.buckets)

    @property
    def sum_ns(self) -> int:
        return self.buckets.sum_ns
