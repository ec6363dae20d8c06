# What a contract means to the running broker: the numbers a message is scheduled by, and what happened to them.

from libc.stdint cimport int64_t, uint64_t

from holdfast.broker.histogram cimport Buckets

cdef enum PolicyKind:
    EDF
    FCFS
    FIXED_PRIORITY
    LEAST_LAXITY
    MAXIMUM_URGENCY


cdef uint64_t UNPROMISED    # in the key of what has no contract


cdef class Terms:
    cdef readonly object contract
    cdef readonly str name
    cdef readonly bint promised             # by a contract
    cdef readonly int64_t period_ns         # T; 0: none
    cdef readonly int64_t deadline_ns       # D, end to end
    cdef readonly int64_t to_broker_ns      # the way from the publisher, where no stamp tells
    cdef readonly int64_t to_subscriber_ns  # the way to the subscriber, a lower bound
    cdef readonly int64_t loss_tolerance    # -1: unlimited
    cdef readonly int64_t retention         # N, what the publisher keeps
    cdef readonly bint durable              # its messages are journaled
    cdef readonly uint64_t priority         # smaller goes first
    cdef readonly int64_t job_ns            # what one dispatch costs, for the laxity policies
    cdef public uint64_t published, delivered, late, while_away, dropped, expired, copied, copied_late, aborted, pruned
    cdef public uint64_t lost, loss_run, loss_run_max   # missing numbers; how many in a row the last time, and at most
    cdef public int64_t late_ns, lost_ns, broken_ns     # wall clock of the last late one, of the last loss, and of
                                                        # the last run beyond the tolerance; 0: never
    cdef Buckets latency                    # from creation to sending

    cdef void lose(self, uint64_t run, uint64_t more, int64_t wall_ns) noexcept


cdef uint64_t schedule_key(PolicyKind policy, Terms terms, int64_t deadline_ns, uint64_t number,
                           uint64_t routes) noexcept
