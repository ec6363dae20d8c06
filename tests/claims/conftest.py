"""Groups of real brokers for the claims, each test with its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.disks import small_disk
from support.zookeeper import ZooKeeperProcess

from .plant import Plant

StartPlant = Callable[..., Plant]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartPlant]:
    """Starts a group and waits until it is protected."""
    with ExitStack() as stack:

        def begin(*, protected: bool = True, **options: object) -> Plant:
            plant = stack.enter_context(Plant(tmp_path, **options))  # type: ignore[arg-type]
            if protected:
                plant.await_protected()
            return plant

        yield begin


@pytest.fixture
def pair(start: StartPlant) -> Plant:
    return start()


@pytest.fixture
def zookeeper() -> Iterator[ZooKeeperProcess]:
    with ZooKeeperProcess() as process:
        yield process


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A disk that is soon full."""
    with small_disk(tmp_path, 4096) as mounted:
        yield mounted
