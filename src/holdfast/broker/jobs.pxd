# A queue of messages by (major, minor): a heap of four children a node, in one array.
#
# Laws:
#   the first entry is the smallest; equal majors leave in the order of their minors
#   an entry owns one reference to its message

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from holdfast.broker.message cimport Message


cdef struct Job:
    uint64_t major
    uint64_t minor
    Message* message
    void* note      # what the queue's owner needs to know about this entry
    uint32_t tag


cdef struct JobQueue:
    Job* jobs
    size_t len
    size_t cap


cdef bint jobs_push(JobQueue* queue, Job job) noexcept nogil
cdef Job jobs_pop(JobQueue* queue) noexcept nogil
cdef void jobs_clear(JobQueue* queue) noexcept


cdef inline bint job_before(const Job* a, const Job* b) noexcept nogil:
    return a.major < b.major or (a.major == b.major and a.minor < b.minor)
