"""What was freed and lies in the heap goes back to the system, where the C library knows how."""

from __future__ import annotations

import ctypes

FIELDS = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = [(name, ctypes.c_size_t) for name in FIELDS]


MMAP_THRESHOLD = -3  # of mallopt
LARGE_BYTES = 32_768

_libc = ctypes.CDLL(None)
_mallopt = getattr(_libc, "mallopt", None)
_mallinfo = getattr(_libc, "mallinfo2", None)
_trim = getattr(_libc, "malloc_trim", None)
if _mallinfo is not None:
    _mallinfo.restype = _Mallinfo


def keep_large_blocks_apart() -> None:
    """Blocks of that size go back to the system when they are freed, also in a broker that is never idle:
    small ones that live longer lie elsewhere."""
    if _mallopt is not None:
        _mallopt(MMAP_THRESHOLD, LARGE_BYTES)


def free_bytes() -> int:
    """What lies free in the heap; 0 where that is not known."""
    return 0 if _mallinfo is None else int(_mallinfo().fordblks)


def give_back() -> None:
    """Takes as long as it takes to look at the heap: only when nobody waits."""
    if _trim is not None:
        _trim(0)
