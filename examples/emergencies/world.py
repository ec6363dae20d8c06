"""A city that publishes: people who walk, emergencies that appear, machines that vibrate.

Laws:
- the same seed gives the same walks, emergencies and vibrations, whatever the clock says
- people walk by random waypoint: to a place drawn at random, at a speed drawn at random, then to the next
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from holdfast import Outgoing, connect

# A box of about 9 by 9 km.
SOUTH, NORTH, WEST, EAST = 50.80, 50.88, 4.29, 4.42
METRES_A_DEGREE = 111_195.0
DISTRICTS = ("harbour", "mill", "north_gate", "park", "old_town", "station", "docks", "hill", "south_gate")
KINDS = ("fire", "flood", "gas leak", "power cut", "road accident")
WALK_M_S = (0.8, 2.5)
RADIUS_M = (400, 2500)
LASTS_S = (60, 600)
VIBRATION_MM_S = 2.0
WORN_MACHINE_EVERY = 5
WORN_EVERY_S, WORN_FOR_S = 45, 8


def name_of(person: int) -> str:
    return f"p{person:03d}"


def district_of(lat: float, lon: float) -> str:
    row = min(2, int(3 * (NORTH - lat) / (NORTH - SOUTH)))
    column = min(2, int(3 * (lon - WEST) / (EAST - WEST)))
    return DISTRICTS[3 * row + column]


def place(chance: random.Random) -> tuple[float, float]:
    return chance.uniform(SOUTH, NORTH), chance.uniform(WEST, EAST)


@dataclass
class Person:
    name: str
    chance: random.Random
    at: tuple[float, float] = field(init=False)
    goal: tuple[float, float] = field(init=False)
    metres_a_second: float = field(init=False)

    def __post_init__(self) -> None:
        self.at = place(self.chance)
        self._next_goal()

    def _next_goal(self) -> None:
        self.goal = place(self.chance)
        self.metres_a_second = self.chance.uniform(*WALK_M_S)

    def walk(self, seconds: float) -> tuple[float, float]:
        (lat, lon), (to_lat, to_lon) = self.at, self.goal
        shrink = math.cos(math.radians(lat))
        far = math.hypot(to_lat - lat, (to_lon - lon) * shrink) * METRES_A_DEGREE
        step = self.metres_a_second * seconds
        if far <= step:
            self.at = self.goal
            self._next_goal()
        else:
            self.at = (lat + (to_lat - lat) * step / far, lon + (to_lon - lon) * step / far)
        return self.at


@dataclass
class World:
    """What is published in each second of the city, second by second."""

    people: int
    machines: int
    seed: int
    emergency_every_s: float
    position_every_s: int

    def seconds(self) -> Iterator[list[Outgoing]]:
        walkers = [
            Person(name_of(number), random.Random(f"{self.seed}/person/{number}"))
            for number in range(1, self.people + 1)
        ]
        chance = random.Random(f"{self.seed}/emergencies")
        shaking = random.Random(f"{self.seed}/machines")
        emergencies, second, due_s = 0, 0, 0.0
        while True:
            messages = [
                self._position(walker)
                for number, walker in enumerate(walkers)
                # Everybody tells at once where they are, then in turn.
                if second == 0 or (second + number) % self.position_every_s == 0
            ]
            messages += [self._vibration(machine, second, shaking) for machine in range(1, self.machines + 1)]
            while second > 0 and due_s <= second:
                emergencies += 1
                messages.append(self._emergency(f"e{emergencies}", chance))
                due_s += chance.expovariate(1 / self.emergency_every_s)
            yield messages
            second += 1

    def _position(self, walker: Person) -> Outgoing:
        lat, lon = walker.walk(self.position_every_s)
        seen = {"user": walker.name, "lat": round(lat, 6), "lon": round(lon, 6), "at": iso(time.time())}
        return Outgoing(f"people/{walker.name}/position", encode(seen), 1)

    def _emergency(self, name: str, chance: random.Random) -> Outgoing:
        lat, lon = place(chance)
        begins_s = time.time()
        seen = {
            "id": name,
            "kind": chance.choice(KINDS),
            "district": district_of(lat, lon),
            "severity": chance.randint(1, 5),
            "lat": round(lat, 6),
            "lon": round(lon, 6),
            "radius_m": chance.randint(*RADIUS_M),
            "begins": iso(begins_s),
            "ends": iso(begins_s + chance.randint(*LASTS_S)),
        }
        return Outgoing(f"city/{seen['district']}/emergencies", encode(seen), 1)

    def _vibration(self, machine: int, second: int, chance: random.Random) -> Outgoing:
        worn = machine % WORN_MACHINE_EVERY == 0 and second % WORN_EVERY_S >= WORN_EVERY_S - WORN_FOR_S
        mm_s = VIBRATION_MM_S * (6 if worn else 1) + chance.gauss(0, 0.1)
        name = f"m{machine:02d}"
        return Outgoing(f"plant/{name}/vibration", encode({"machine": name, "mm_s": round(mm_s, 3)}), 1)


def encode(seen: dict[str, object]) -> bytes:
    return json.dumps(seen, separators=(",", ":")).encode()


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


async def live(brokers: str, world: World, seconds: int | None) -> None:
    """Publishes the city at the pace of the clock, as long as asked or until it is ended."""
    loop = asyncio.get_running_loop()
    async with await connect(brokers, client_id="city", outage_s_max=3600, answer_s_max=3600) as client:
        next_s = loop.time()
        for number, messages in enumerate(world.seconds()):
            if number == seconds:
                return
            await client.publish_many(messages)
            next_s = max(next_s + 1, loop.time())
            await asyncio.sleep(next_s - loop.time())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--brokers", default="127.0.0.1:1883", help="addresses, with commas between")
    parser.add_argument("--people", type=int, default=400)
    parser.add_argument("--machines", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--emergency-every", type=float, default=4.0, metavar="SECONDS")
    parser.add_argument("--position-every", type=int, default=5, metavar="SECONDS")
    parser.add_argument("--seconds", type=int, help="how long; without it until it is ended")
    asked = parser.parse_args()
    world = World(asked.people, asked.machines, asked.seed, asked.emergency_every, asked.position_every)
    asyncio.run(live(asked.brokers, world, asked.seconds))


if __name__ == "__main__":
    main()
