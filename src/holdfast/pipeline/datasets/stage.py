"""Files that are under way: whose they are, and what becomes of those that nobody will name.

Laws:
- a file belongs to a work, which its name says; a file of no work that goes on, which the manifest does not
  name, is deleted. What has no such name is somebody else's, and stays
- what is deleted depends on no clock
"""

from __future__ import annotations

import errno
import itertools
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.errors import Unavailable
from holdfast.pipeline.datasets.manifest import Manifest
from holdfast.pipeline.layout import Layout

NAME = re.compile(r"[0-9a-f]{8}-\d+-[0-9a-f]+\.parquet")  # run, work, and what a file adds itself


class Stage:
    def __init__(self, layout: Layout, manifest: Manifest) -> None:
        self._folder = layout.data / "datasets"
        self._manifest = manifest
        self._run = secrets.token_hex(4)
        self._numbers = itertools.count(1)
        self._going: set[str] = set()

    @contextmanager
    def work(self) -> Iterator[str]:
        """Gives how the names of the files of a work begin."""
        prefix = f"{self._run}-{next(self._numbers)}"
        self._going.add(prefix)
        try:
            yield prefix
        except BaseException:
            for path in self._folder.glob(f"*/{prefix}-*"):
                path.unlink(missing_ok=True)
            raise
        finally:
            self._going.discard(prefix)

    def sweep(self) -> int:
        """Deletes what crashes have left; gives how many files that were."""
        swept = 0
        for folder in self._folder.glob("*/"):
            # In this order: a work that ends meanwhile has its files named before it stops going on.
            found = [path for path in folder.glob("*.parquet") if NAME.fullmatch(path.name)]
            going = set(self._going)
            named = self._manifest.named(folder.name)
            for path in found:
                if path.name not in named and path.name.rpartition("-")[0] not in going:
                    path.unlink(missing_ok=True)
                    swept += 1
        return swept


@contextmanager
def disk_in_words(layout: Layout) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        text = f"{disk_failure(layout, error)}. It is tried again, and nothing is lost."
        raise Unavailable(text) from error


def disk_failure(layout: Layout, error: OSError) -> str:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return f"{layout.data} cannot be used: {'the disk is full' if full else error}"
