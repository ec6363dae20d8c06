"""The job queue, and a Python face of it for tests."""

from libc.stdint cimport uint64_t
from libc.stdlib cimport free, realloc

from holdfast.broker.message cimport message_drop


cdef bint jobs_push(JobQueue* queue, Job job) noexcept nogil:
    """Puts the job in its place; 0 when memory is gone (then nothing changed)."""
    cdef size_t cap, at, parent
    cdef Job* grown
    if queue.len == queue.cap:
        cap = queue.cap * 2 if queue.cap else 16
        grown = <Job*>realloc(queue.jobs, cap * sizeof(Job))
        if grown == NULL:
            return 0
        queue.jobs = grown
        queue.cap = cap
    at = queue.len
    queue.len += 1
    while at > 0:
        parent = (at - 1) >> 2
        if not job_before(&job, &queue.jobs[parent]):
            break
        queue.jobs[at] = queue.jobs[parent]
        at = parent
    queue.jobs[at] = job
    return 1


cdef Job jobs_pop(JobQueue* queue) noexcept nogil:
    """Takes the first job. The queue must not be empty; the reference goes to the caller.

    The smallest child moves up all the way, and the last job into the place that is left: it came from the
    bottom, so it seldom rises from there."""
    cdef Job* jobs = queue.jobs
    cdef Job first = jobs[0]
    cdef Job* child
    cdef Job* best
    cdef size_t at = 0, below = 1, parent
    cdef size_t len = queue.len - 1
    queue.len = len
    while below + 4 <= len:
        child = &jobs[below]
        best = child
        if job_before(child + 1, best):
            best = child + 1
        if job_before(child + 2, best):
            best = child + 2
        if job_before(child + 3, best):
            best = child + 3
        jobs[at] = best[0]
        at = best - jobs
        below = (at << 2) + 1
    if below < len:     # fewer than four, at the end
        best = &jobs[below]
        for parent in range(below + 1, len):
            if job_before(&jobs[parent], best):
                best = &jobs[parent]
        jobs[at] = best[0]
        at = best - jobs
    while at > 0:
        parent = (at - 1) >> 2
        if not job_before(&jobs[len], &jobs[parent]):
            break
        jobs[at] = jobs[parent]
        at = parent
    jobs[at] = jobs[len]
    return first


cdef void jobs_clear(JobQueue* queue) noexcept:
    cdef size_t i
    for i in range(queue.len):
        if queue.jobs[i].message != NULL:
            message_drop(queue.jobs[i].message)
    free(queue.jobs)
    queue.jobs = NULL
    queue.len = 0
    queue.cap = 0


cdef class KeyQueue:
    """The same queue with keys alone, so that its order can be tested from Python."""

    cdef JobQueue queue

    def __dealloc__(self) -> None:
        jobs_clear(&self.queue)

    def __len__(self) -> int:
        return self.queue.len

    def push(self, uint64_t major, uint64_t minor) -> None:
        cdef Job job
        job.major = major
        job.minor = minor
        job.message = NULL
        job.note = NULL
        job.tag = 0
        if not jobs_push(&self.queue, job):
            raise MemoryError

    def pop(self) -> tuple[int, int]:
        if self.queue.len == 0:
            raise IndexError("the queue is empty")
        cdef Job job = jobs_pop(&self.queue)
        return job.major, job.minor
