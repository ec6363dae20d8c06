"""How the simulator makes the two parts that it tests: a member of a group and an endpoint."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING
from zlib import crc32

from holdfast.endpoint.config import EndpointConfig
from holdfast.endpoint.endpoint import Endpoint
from holdfast.replication.group import GroupConfig, MemberConfig
from holdfast.replication.handshake import Secret
from holdfast.replication.member import Member
from holdfast.sim.network import Address
from holdfast.sim.options import MQTT_PORT, PEER_PORT
from holdfast.units import MS

if TYPE_CHECKING:
    from holdfast.sim.brokers import MemberProcess
    from holdfast.sim.options import Options


def make_member(options: Options, process: MemberProcess) -> Member:
    """A member that knows nothing yet."""
    members = tuple(
        MemberConfig(name=name, mqtt=f"{name}:{MQTT_PORT}", peer=f"{name}:{PEER_PORT}")
        for name in process.peers
    )
    group = GroupConfig(
        name="sim",
        members=members,
        heartbeat_ns=options.heartbeat_ns,
        silence_ns=None if options.derived else options.silence_ns,
        join_wait_ns=options.join_wait_ns,
        zookeeper="arbiter:2181" if options.answer_ns_max else "",
    )
    return Member(
        process.book,
        group,
        process.name,
        policy=options.policy,
        seed=crc32(f"{options.seed} {process.name} {process.life}".encode()),
        now_ns=process.world.now_ns,
        event=process.heard,
        secret=make_secret(options, process) if options.secret else None,
    )


def make_secret(options: Options, process: MemberProcess) -> Secret:
    """What the members share, and nonces that repeat with the seed."""
    rng = Random(f"{options.seed} {process.name} {process.life}")
    return Secret((b"what the members share",), "sim", rng.randbytes)


def make_endpoint(name: str, addresses: list[Address], rng: Random, now_ns: int) -> Endpoint:
    config = EndpointConfig(
        addresses=tuple(addresses),
        client_id=name,
        keep_alive_s=1,
        backoff_ns_min=5 * MS,
        backoff_ns_max=200 * MS,
    )
    return Endpoint(config, token=f"{rng.randrange(1 << 32):08x}", rng=rng, now_ns=now_ns)
