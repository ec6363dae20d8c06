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


_libc = ctypes.CDLL(None)
_mallinfo = getattr(_libc, "mallinfo2", None)
_trim = getattr(_libc, "malloc_trim", None)
if _mallinfo is not None:
    _mallinfo.restype = _Mallinfo


def free_bytes() -> int:
    """What lies free in the heap; 0 where that is not known."""
    return 0 if _mallinfo is None else int(_mallinfo().fordblks)


def give_back() -> None:
    """Takes as long as it takes to look at the heap: only when nobody waits."""
    if _trim is not None:
        _trim(0)
