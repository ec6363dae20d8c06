"""How files that somebody named are opened.

Law: opening never waits for anybody.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_file(path: str | Path) -> BinaryIO:
    """Opens a file to be read. A FIFO is none: nobody knows when somebody will write into it. What a shell
    hands over as /dev/fd/N has no name of its own, and is read."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if stat.S_ISFIFO(mode) and os.path.exists(os.path.realpath(path)):
            raise OSError(errno.EINVAL, "it is a FIFO; expected a file", str(path))
        os.set_blocking(descriptor, True)
        return os.fdopen(descriptor, "rb")
    except OSError:
        os.close(descriptor)
        raise
