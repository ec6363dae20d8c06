"""Topic names and topic filters (section 4.7 of both specifications, 4.8.2 of 5.0 for `$share`).

Laws:
- a wildcard stands for whole levels: `+` for exactly one; `#`, always last, for the rest, even none ("a/#" matches "a")
- a wildcard in the first level never stands for a level that begins with `$`
- matching and overlap never read outside what they are given, whatever it holds; they mean something only for valid
  names and for valid filters without their `$share/group/`
"""

from libc.stdint cimport uint8_t
from libc.string cimport memchr, memcmp

from holdfast.mqtt.wire cimport utf8_valid

from holdfast.errors import PeerError
from holdfast.mqtt.reasons import Reason

cdef enum:
    SLASH = 0x2F
    PLUS = 0x2B
    HASH = 0x23
    DOLLAR = 0x24
    TEXT_BYTES_MAX = 65535
    SHARE_BYTES = 7

cdef const char* SHARE = b"$share/"
cdef object NAME_INVALID = Reason.TOPIC_NAME_INVALID
cdef object FILTER_INVALID = Reason.TOPIC_FILTER_INVALID


cdef const char* topic_problem(const uint8_t* at, size_t size) noexcept nogil:
    if size == 0:
        return b"a topic name has at least one character"
    if memchr(at, PLUS, size) != NULL or memchr(at, HASH, size) != NULL:
        return b"a topic name has no wildcard"
    return NULL


cdef const char* _plain_problem(const uint8_t* at, size_t size) noexcept nogil:
    cdef size_t i
    if size == 0:
        return b"a topic filter has at least one character"
    for i in range(size):
        if at[i] != PLUS and at[i] != HASH:
            continue
        if i > 0 and at[i - 1] != SLASH:
            return b"a wildcard takes a whole level of a topic filter"
        if at[i] == HASH and i + 1 != size:
            return b"# is the last character of a topic filter"
        if i + 1 < size and at[i + 1] != SLASH:
            return b"a wildcard takes a whole level of a topic filter"
    return NULL


cdef bint is_shared(const uint8_t* at, size_t size) noexcept nogil:
    return size >= SHARE_BYTES and memcmp(at, SHARE, SHARE_BYTES) == 0


cdef const char* _shared_problem(const uint8_t* at, size_t size) noexcept nogil:
    """`at` is past the `$share/`."""
    cdef size_t group = 0
    while group < size and at[group] != SLASH:
        if at[group] == PLUS or at[group] == HASH:
            return b"the group of a shared subscription has no wildcard"
        group += 1
    if group == 0:
        return b"a shared subscription names its group: $share/group/filter"
    if group + 1 >= size:
        return b"a shared subscription has a filter: $share/group/filter"
    return _plain_problem(at + group + 1, size - group - 1)


cdef const char* filter_problem(const uint8_t* at, size_t size) noexcept nogil:
    if is_shared(at, size):
        return _shared_problem(at + SHARE_BYTES, size - SHARE_BYTES)
    return _plain_problem(at, size)


cdef bint filter_matches(const uint8_t* f, size_t fn, const uint8_t* t, size_t tn) noexcept nogil:
    cdef size_t i = 0
    cdef size_t j = 0
    if fn > 0 and tn > 0 and t[0] == DOLLAR and (f[0] == PLUS or f[0] == HASH):
        return 0
    while True:
        if i < fn and f[i] == HASH:
            return 1
        if i < fn and f[i] == PLUS:
            i += 1
            while j < tn and t[j] != SLASH:
                j += 1
        else:
            while i < fn and f[i] != SLASH:
                if j >= tn or t[j] != f[i]:
                    return 0
                i += 1
                j += 1
        if i == fn:
            return j == tn
        if f[i] != SLASH:
            return 0
        if j == tn:
            return i + 2 == fn and f[i + 1] == HASH
        if t[j] != SLASH:
            return 0
        i += 1
        j += 1


cdef inline size_t _level_end(const uint8_t* at, size_t size, size_t start) noexcept nogil:
    while start < size and at[start] != SLASH:
        start += 1
    return start


cdef inline bint _is(const uint8_t* at, size_t start, size_t end, uint8_t wildcard) noexcept nogil:
    return end - start == 1 and at[start] == wildcard


cdef inline bint _ends_in_rest(const uint8_t* at, size_t size, size_t slash) noexcept nogil:
    """Whether `at` goes on with "/#" only; after an empty first level ("/#") the topic would be empty, so no topic."""
    return slash > 0 and slash + 2 == size and at[slash + 1] == HASH


cdef bint filters_overlap(const uint8_t* a, size_t an, const uint8_t* b, size_t bn) noexcept nogil:
    cdef size_t i = 0
    cdef size_t j = 0
    cdef size_t i_end, j_end
    cdef bint a_wild, b_wild
    while True:
        i_end = _level_end(a, an, i)
        j_end = _level_end(b, bn, j)
        a_wild = _is(a, i, i_end, PLUS) or _is(a, i, i_end, HASH)
        b_wild = _is(b, j, j_end, PLUS) or _is(b, j, j_end, HASH)
        if i == 0 and a_wild and not b_wild and bn > 0 and b[0] == DOLLAR:
            return 0
        if i == 0 and b_wild and not a_wild and an > 0 and a[0] == DOLLAR:
            return 0
        if _is(a, i, i_end, HASH) or _is(b, j, j_end, HASH):
            return 1
        if not a_wild and not b_wild:
            if i_end - i != j_end - j or memcmp(a + i, b + j, i_end - i) != 0:
                return 0
        if i_end == an and j_end == bn:
            return 1
        if i_end == an:
            return _ends_in_rest(b, bn, j_end)
        if j_end == bn:
            return _ends_in_rest(a, an, i_end)
        i = i_end + 1
        j = j_end + 1


cdef bytes _utf8(text, reason, str what):
    """`text` as the bytes of an MQTT UTF-8 string, or a PeerError with `reason`."""
    cdef bytes data
    if isinstance(text, str):
        try:
            data = (<str>text).encode()
        except UnicodeEncodeError:
            raise PeerError(reason, f"{what} {text!r} has a lone surrogate; expected valid text") from None
    else:
        data = bytes(text)
    if len(data) > TEXT_BYTES_MAX:
        raise PeerError(reason, f"{what} has {len(data)} bytes; expected at most {TEXT_BYTES_MAX}")
    if not utf8_valid(<const uint8_t*>(<char*>data), len(data)):
        raise PeerError(reason, f"{what} {text!r} is not UTF-8 without NUL")
    return data


def validate_topic(name: str | bytes) -> None:
    """Raises PeerError (0x90) unless `name` may be published to."""
    cdef bytes data = _utf8(name, NAME_INVALID, "topic name")
    cdef const char* problem = topic_problem(<const uint8_t*>(<char*>data), len(data))
    if problem != NULL:
        raise PeerError(NAME_INVALID, f"topic name {name!r}: {problem.decode()}")


def validate_filter(filter: str | bytes) -> None:
    """Raises PeerError (0x8F) unless `filter` may be subscribed to; a `$share/group/` in front is part of it."""
    cdef bytes data = _utf8(filter, FILTER_INVALID, "topic filter")
    cdef const char* problem = filter_problem(<const uint8_t*>(<char*>data), len(data))
    if problem != NULL:
        raise PeerError(FILTER_INVALID, f"topic filter {filter!r}: {problem.decode()}")


def split_shared(filter):
    """The group of a shared subscription (None for any other) and the filter without it; validates both."""
    validate_filter(filter)
    share, slash = ("$share/", "/") if isinstance(filter, str) else (b"$share/", b"/")
    if not filter.startswith(share):
        return None, filter
    group, _, rest = filter[SHARE_BYTES:].partition(slash)
    return group, rest


def levels(name: str | bytes) -> int:
    """How many levels a name or filter has: one more than its slashes."""
    return name.count("/" if isinstance(name, str) else b"/") + 1


def matches(bytes filter not None, bytes topic not None) -> bool:
    """Whether a message to `topic` goes to a subscription to `filter` (without its `$share/group/`)."""
    return filter_matches(
        <const uint8_t*>(<char*>filter), len(filter), <const uint8_t*>(<char*>topic), len(topic)
    )


def overlap(bytes filter_a not None, bytes filter_b not None) -> bool:
    """Whether some topic could match both."""
    return filters_overlap(
        <const uint8_t*>(<char*>filter_a), len(filter_a), <const uint8_t*>(<char*>filter_b), len(filter_b)
    )
