"""Fixtures for suites that talk to a broker process, and how properties are tested."""

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from hypothesis import HealthCheck, settings

from support.brokers import BrokerProcess, StartBroker, running

STDERR_CHARS_MAX = 4000

# What properties test is what happens, not how fast: a busy machine must not turn one red.
settings.register_profile("any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any speed")

# Sessions of Spark live for seconds here: a JVM that prepares for days takes twice the processor.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")


@pytest.fixture(scope="session")
def broker() -> Iterator[BrokerProcess]:
    """The broker that tests share; each keeps to topics and client identifiers of its own."""
    with BrokerProcess() as process:
        yield process


@pytest.fixture
def start_broker() -> Iterator[StartBroker]:
    """Start private brokers with options of their own; all of them end with the test."""
    with ExitStack() as stack:

        def start(*holdfast_args: str, mosquitto_conf: str = "", kind: str | None = None) -> BrokerProcess:
            return stack.enter_context(
                BrokerProcess(*holdfast_args, mosquitto_conf=mosquitto_conf, kind=kind)
            )

        yield start


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is dearest comes first: of several processes none then waits for another at the end."""
    items.sort(key=lambda item: (item.path.name != "test_example.py", "pipeline" not in item.path.parts))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[None]:  # the wrapper protocol of pluggy: yields once, returns the report
    report = yield
    if report.failed:
        for process in running:
            report.sections.append((f"stderr of {process.kind}", process.stderr[-STDERR_CHARS_MAX:]))
    return report
