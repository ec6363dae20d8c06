"""What everybody in one run shares."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.sim.ledger import Ledger
from holdfast.sim.network import Network
from holdfast.sim.options import Options
from holdfast.sim.world import World


class Setting(NamedTuple):
    """`stop_ns` is when faults and publishing end."""

    options: Options
    world: World
    network: Network
    ledger: Ledger
    stop_ns: int
