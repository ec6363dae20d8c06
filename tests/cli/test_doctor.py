"""`holdfast doctor`: what a machine does to which contract."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from broker.bench import book, contract
from holdfast.cli.main import app
from holdfast.contract.model import ContractBook
from holdfast.replication.group import GroupConfig, MemberConfig
from holdfast.runtime.diagnosis import Finding, diagnose
from holdfast.runtime.machine import Machine, Reached, Spread, examine, meminfo
from holdfast.units import MS, US

WELL = Machine(
    clock_synchronised=True,
    clock_error_ns=100 * US,
    cores=4,
    governor="performance",
    memory_bytes=8 << 30,
    memory_free_bytes=4 << 30,
    swap_used_bytes=0,
    files_soft=1024,
    files_hard=1_000_000,
    processor="niceness -10, slices of 0.1ms",
    kernel={
        "net.core.somaxconn": "4096",
        "net.ipv4.tcp_max_syn_backlog": "4096",
        "net.ipv4.tcp_slow_start_after_idle": "0",
        "vm.swappiness": "1",
    },
    java="17.0.1",
    zookeeper=[],
    loopback=Spread(20 * US, 50 * US, 100),
    sync=Spread(MS, 2 * MS, 10),
    sync_where="/tmp",
    timer=Spread(50 * US, 100 * US, 100),
)
BOOK = book(contract("urgent", "u/+", "11ms", 0), contract("calm", "c/+", "500ms", 0, durable="true"))
PAIR = GroupConfig(
    name="g",
    members=(
        MemberConfig(name="a", mqtt="h:1", peer="h:2"),
        MemberConfig(name="b", mqtt="h:3", peer="h:4"),
    ),
    zookeeper="h:5",
)


def found(
    machine: Machine, contracts: ContractBook = BOOK, group: GroupConfig | None = None
) -> dict[str, Finding]:
    return {each.check: each for each in diagnose(machine, contracts, group) if each.state != "ok"}


def test_a_machine_that_is_fit_is_said_to_be() -> None:
    assert found(WELL, group=PAIR) == {}


@pytest.mark.parametrize(
    ("worse", "check", "state", "contracts"),
    [
        ({"clock_synchronised": False}, "clock", "warning", ["urgent", "calm", "default"]),
        ({"clock_error_ns": MS}, "clock", "warning", ["urgent"]),
        ({"timer": Spread(MS, 2 * MS, 9)}, "timers", "warning", ["urgent"]),
        ({"timer": Spread(MS, 12 * MS, 9)}, "timers", "broken", ["urgent"]),
        ({"loopback": Spread(MS, 3 * MS, 9)}, "loopback", "warning", ["urgent"]),
        ({"sync": Spread(MS, 600 * MS, 9)}, "fsync", "warning", ["calm"]),
        ({"cores": 1}, "cores", "warning", ["urgent", "calm", "default"]),
        ({"files_hard": 1024}, "nofile", "warning", []),
        ({"memory_free_bytes": 1 << 20}, "memory", "warning", []),
        ({"swap_used_bytes": 1 << 20}, "swap", "warning", ["urgent"]),
        ({"governor": "powersave"}, "cpu governor", "warning", []),
        ({"java": None}, "java", "warning", []),
        ({"java": "1.8.0_392"}, "java", "warning", []),
        ({"kernel": {"vm.swappiness": "60"}}, "vm.swappiness", "warning", []),
        ({"zookeeper": [Reached("h:5", None, "refused")]}, "zookeeper", "broken", []),
    ],
)
def test_what_is_worse_is_found(
    worse: dict[str, object], check: str, state: str, contracts: list[str]
) -> None:
    (finding,) = found(replace(WELL, **worse)).values()
    assert (finding.check, finding.state, finding.contracts) == (check, state, contracts)


def test_a_group_is_told_of_timers_that_look_like_silence() -> None:
    assert "silence" in found(replace(WELL, timer=Spread(MS, 15 * MS, 9)), group=PAIR)


def test_this_machine_can_be_examined(tmp_path: Path) -> None:
    machine = examine(tmp_path, "127.0.0.1:1, nonsense")
    assert machine.cores >= 1
    assert machine.loopback is not None
    assert machine.timer is not None
    assert machine.sync is not None
    assert [each.way_ns for each in machine.zookeeper] == [None, None]
    assert list(tmp_path.iterdir()) == []


def test_what_meminfo_says() -> None:
    assert meminfo("MemTotal:  12 kB\nHugePages_Total: 0\nSwapFree: 3 kB\n") == {
        "MemTotal": 12288,
        "SwapFree": 3072,
    }


def test_the_command_says_it_in_json_and_names_the_contracts(tmp_path: Path) -> None:
    file = tmp_path / "contracts.toml"
    file.write_text(
        '[deployment]\nfailover = "50ms"\npublisher_to_broker = "0ms"\nbroker_to_backup = "0ms"\n'
        'broker_to_subscriber = { edge = "0ms" }\n[[contract]]\nname = "impossible"\ntopics = ["i/+"]\n'
        'period = "1s"\ndeadline = "0.001ms"\nloss_tolerance = 3\n'
    )
    done = CliRunner().invoke(app, ["doctor", "--json", "--contracts", str(file), "--data", str(tmp_path)])
    assert done.exit_code == 1
    timers = next(each for each in json.loads(done.stdout)["findings"] if each["check"] == "timers")
    assert (timers["state"], timers["contracts"]) == ("broken", ["impossible"])
