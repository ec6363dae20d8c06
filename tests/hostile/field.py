"""Where attacks happen: a broker that is attacked, alone or as the primary of a pair, and one that is not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum
from pathlib import Path
from urllib.request import urlopen

from msgspec import Struct

from holdfast.security.users import change_users, hash_password
from hostile.others import USERS
from hostile.wires import LOOPBACK, PASSWORD
from security.secured import Secured, listener, tls_table
from support.brokers import BrokerProcess
from support.certificates import Authority
from support.groups import GroupProcesses

CONTRACTS = """
[deployment]
failover = "50ms"
publisher_to_broker = "0ms"
broker_to_backup = "0.05ms"
broker_to_subscriber = { edge = "1ms" }
[[contract]]
name = "good"
topics = ["good/+"]
period = "20ms"
deadline = "50ms"
loss_tolerance = 0
retention = 3
[[contract]]
name = "kept"
topics = ["kept/+"]
period = "100ms"
deadline = "100ms"
loss_tolerance = 0
retention = 2
"""
# A rule for each of them; mallory may use what is under h/, and nothing else.
RULES = """
[groups]
others = [OTHERS]
[[rule]]
users = ["good"]
publish = ["good/+", "kept/+"]
subscribe = ["good/+", "kept/+"]
[[rule]]
groups = ["others"]
publish = ["others/%u"]
subscribe = ["others/%u"]
[[rule]]
users = ["mallory"]
publish = ["h/#"]
subscribe = ["h/#"]
"""
SECURITY = 'anonymous = "never"\nusers = "users"\nrules = "rules.toml"\n'
LIMITS = "[[listener]]\npacket_bytes_max = 65536\n"  # for the address of --listen
HTTP = re.compile(rf"listening on http://{re.escape(LOOPBACK)}:(\d+)")


class Where(Enum):
    """What is attacked."""

    OPEN = "a broker that lets everybody in"
    GUARDED = "a broker with users, rules, TLS and WebSocket"
    PAIR = "the primary of a pair"


class Place(Struct, frozen=True):
    """The ports of what is attacked; `mqtt` begins with the one that serves."""

    mqtt: list[int]
    http: list[int]
    pid: int
    ws: int = 0
    mqtts: int = 0
    peers: list[int] = []
    pids: list[int] = []

    def status(self, index: int = 0) -> dict[str, object]:
        with urlopen(f"http://{LOOPBACK}:{self.http[index]}/status", timeout=10) as answer:
            found: dict[str, object] = json.load(answer)
            return found

    def failovers(self) -> int:
        """Of all members together."""
        return sum(int(str(self.status(index)["failovers_total"])) for index in range(len(self.http)))


def write_files(directory: Path) -> None:
    (directory / "contracts.toml").write_text(CONTRACTS)
    everybody = [f"u{number}" for number in range(USERS)]
    stored = hash_password(PASSWORD)
    with change_users(directory / "users") as users:
        users.update(dict.fromkeys(("good", "mallory", *everybody), stored))
    others = ", ".join(f'"{name}"' for name in everybody)
    (directory / "rules.toml").write_text(RULES.replace("OTHERS", others))


@contextmanager
def standing(where: Where, directory: Path, silence: str = "") -> Iterator[Place]:
    """What is to be attacked, for the length of the block."""
    contracts = ("--contracts", str(directory / "contracts.toml"), "--http", f"{LOOPBACK}:0")
    with ExitStack() as stack:
        if where is Where.OPEN:
            yield _place(stack.enter_context(BrokerProcess(*contracts, kind="holdfast")))
        elif where is Where.GUARDED:
            broker = Authority(directory).issue("broker")
            security = SECURITY + tls_table(broker) + listener(tls=True) + listener(tls=False, websocket=True)
            secured = Secured(directory, security + LIMITS, *contracts)
            yield _place(stack.enter_context(secured), secured.ports)
        else:
            yield _pair(stack, directory, silence)


def _place(broker: BrokerProcess, ports: dict[str, int] | None = None) -> Place:
    found = HTTP.search(broker.stdout)
    assert found, broker.stdout
    ports = ports or {}
    return Place(
        mqtt=[broker.port],
        http=[int(found[1])],
        pid=broker.pid,
        ws=ports.get("ws", 0),
        mqtts=ports.get("mqtts", 0),
        pids=[broker.pid],
    )


def _pair(stack: ExitStack, directory: Path, silence: str) -> Place:
    group = GroupProcesses(
        directory,
        directory / "contracts.toml",
        keep=False,
        http=True,
        **({"more": silence} if silence else {}),
    )
    stack.enter_context(group)
    group.await_protected()
    first = group.primary()
    names = sorted(group.names, key=lambda name: name != first)
    return Place(
        mqtt=[group.ports[name] for name in names],
        http=[group.http[name] for name in names],
        pid=group.processes[first].pid,
        peers=[group.listen_peer[name] for name in names],
        pids=[group.processes[name].pid for name in names],
    )
