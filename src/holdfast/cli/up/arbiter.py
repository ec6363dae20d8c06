"""A ZooKeeper of the example's own: no broker opens a view without its word, as on two machines.

Law: it serves before the brokers start, and ends after them.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
from contextlib import AsyncExitStack
from pathlib import Path

from holdfast.address import LOOPBACK, Address
from holdfast.cli.up.child import start_command
from holdfast.errors import Unavailable
from holdfast.runtime.ports import free_ports

# Debian's package names all it needs in the manifest of this file.
JAR = Path("/usr/share/java/zookeeper.jar")
MAIN = "org.apache.zookeeper.server.ZooKeeperServerMain"
JVM = ("-Xmx64m", "-XX:-UsePerfData", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
# What it knows goes with the example: it need not reach the disk.
OPTIONS = ("-Dzookeeper.admin.enableServer=false", "-Dzookeeper.forceSync=no")
START_S_MAX = 20.0
ASK_S_MAX = 1.0
POLL_S = 0.05


def command(port: int, data: Path) -> list[str]:
    return ["java", *JVM, *OPTIONS, "-cp", str(JAR), MAIN, str(port), str(data)]


def serves(port: int) -> bool:
    """It accepts connections before it serves them; the answer to this word tells."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=ASK_S_MAX) as connection:
            connection.sendall(b"srvr")
            return b"Mode:" in connection.makefile("rb").read()
    except OSError:
        return False


async def start_arbiter(stack: AsyncExitStack, folder: Path) -> Address:
    """Returns when it serves; where it cannot, Unavailable says what would help."""
    if shutil.which("java") is None or not JAR.exists():
        raise Unavailable(
            "--zookeeper needs Java and ZooKeeper. On Debian: apt-get install zookeeper. "
            "Without it the brokers decide by themselves."
        )
    (port,) = free_ports(1)
    child = await start_command(stack, "ZooKeeper", command(port, folder / "zookeeper"), tells=False)
    try:
        async with asyncio.timeout(START_S_MAX):
            while not await asyncio.to_thread(serves, port):
                if not child.running:
                    raise child.failure()
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise Unavailable(
            f"ZooKeeper did not serve within {START_S_MAX:g} s; is this machine very busy?"
        ) from None
    return Address(LOOPBACK, port)
