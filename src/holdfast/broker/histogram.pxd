# How often something took how long: counts in fixed buckets, each a factor of about 1.5 wide.
#
# Laws:
#   counts[i] is how often it took at most status.BOUNDS_NS[i] and more than the bound before; the last count is
#   of what was longer than all of them
#   what is negative (clocks that disagree) counts as no time at all
#   adding costs a table look-up and a comparison or two, and never fails

from libc.stdint cimport int64_t, uint64_t

cdef enum:
    BUCKETS = 38


cdef struct Buckets:
    uint64_t counts[BUCKETS]
    uint64_t sum_ns


cdef void add_to(Buckets* buckets, int64_t ns) noexcept nogil
cdef list counts_of(Buckets* buckets)


cdef class Histogram:
    cdef Buckets buckets
