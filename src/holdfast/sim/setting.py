"""What everybody in one run shares."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.sim.arbiter import Arbiter
from holdfast.sim.ledger import Ledger
from holdfast.sim.meter import Meter
from holdfast.sim.network import Network
from holdfast.sim.options import Options
from holdfast.sim.world import World


class Setting(NamedTuple):
    """`begin_ns` is when somebody must serve, `stop_ns` when faults and publishing end."""

    options: Options
    world: World
    network: Network
    ledger: Ledger
    begin_ns: int
    stop_ns: int
    arbiter: Arbiter | None
    meter: Meter | None
