"""What a running pair measures, and `holdfast plan --against` it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.brokers import BrokerProcess
from support.groups import GroupProcesses

CONTRACTS = """
[deployment]
failover = "50ms"
publisher_to_broker = "0ms"
broker_to_backup = "0.5ms"
broker_to_subscriber = { edge = "1ms" }
[[contract]]
name = "close"
topics = ["close/+"]
period = "53ms"
deadline = "40ms"
loss_tolerance = 0
retention = 1
[[contract]]
name = "loose"
topics = ["loose/+"]
period = "1s"
deadline = "50ms"
loss_tolerance = 9
retention = 1
"""


def plan(contracts: Path, port: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast.cli.main", "plan", str(contracts)]
    return subprocess.run(
        [*command, "--against", f"127.0.0.1:{port}"], capture_output=True, text=True, timeout=60, check=False
    )


def test_plan_warns_of_a_way_and_a_failover_that_are_longer_than_the_file_says(tmp_path: Path) -> None:
    contracts = tmp_path / "contracts.toml"
    contracts.write_text(CONTRACTS)
    with GroupProcesses(tmp_path, contracts, keep=False, relayed=True) as group:
        group.await_protected()
        assert plan(contracts, group.ports[group.primary()]).returncode == 0
        for relay in group.relays.values():
            relay.delay(5)
        primary = group.primary()
        group.await_event(primary, 'event="way to backup"')
        told = plan(contracts, group.ports[primary])
        assert "deployment.broker_to_backup is 0.5ms" in told.stderr
        assert "no longer admitted: close" in told.stderr
        assert told.returncode == 1
        group.cut()
        group.kill(primary)
        (other,) = group.processes
        group.await_event(other, "event=serving")
        told = plan(contracts, group.ports[other])
        assert "deployment.failover is 50ms" in told.stderr
        assert told.returncode == 1


def test_a_broker_without_a_group_has_measured_nothing(tmp_path: Path, broker: BrokerProcess) -> None:
    contracts = tmp_path / "contracts.toml"
    contracts.write_text(CONTRACTS)
    told = plan(contracts, broker.port)
    assert told.returncode == 1
    assert "says nothing of a group" in told.stderr
