# Topic names and filters at the level of bytes. See topics.pyx for the laws.

from libc.stdint cimport uint8_t

# What is wrong with a name or a filter, in words, or NULL. Neither looks at whether it is UTF-8.
cdef const char* topic_problem(const uint8_t* at, size_t size) noexcept nogil
cdef const char* filter_problem(const uint8_t* at, size_t size) noexcept nogil

cdef bint is_shared(const uint8_t* at, size_t size) noexcept nogil
cdef bint filter_matches(const uint8_t* f, size_t fn, const uint8_t* t, size_t tn) noexcept nogil
cdef bint filters_overlap(const uint8_t* a, size_t an, const uint8_t* b, size_t bn) noexcept nogil
