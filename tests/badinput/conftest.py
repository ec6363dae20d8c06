"""The marker `slow`, and a siege that ends with the proof that nothing broke and nothing leaked."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from badinput.siege import Siege
from support.brokers import BrokerProcess

_numbers = itertools.count(1)

Besiege = Callable[..., Siege]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes long at full size; runs only when asked for with -m slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without -m, slow tests stay out: each has a twin of smaller scale that always runs."""
    if config.option.markexpr:
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if item not in slow]


@pytest.fixture
def siege(broker: BrokerProcess) -> Iterator[Siege]:
    """Attackers and a canary on the broker that all tests share."""
    with Siege(broker, f"siege{next(_numbers)}") as siege:
        yield siege


@pytest.fixture
def besiege(start_broker: Callable[..., BrokerProcess], tmp_path: Path) -> Iterator[Besiege]:
    """The same against a broker of its own, with limits given in the words of each broker."""
    with ExitStack() as stack:

        def start(*limits: str, mosquitto_conf: str = "") -> Siege:
            contracts = tmp_path / "limits.toml"
            contracts.write_text("\n".join(["[limits]", *limits, ""]))
            process = start_broker("--contracts", str(contracts), mosquitto_conf=mosquitto_conf)
            return stack.enter_context(Siege(process, "siege"))

        yield start
