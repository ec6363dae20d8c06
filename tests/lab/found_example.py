"""An analysis with everything in it, in the shape of the papers; all numbers are invented."""

from __future__ import annotations

import math
from random import Random

import msgspec

from holdfast.lab.analysis.found import (
    Analysis,
    CpuRow,
    FailedTrial,
    Figure,
    FigureRow,
    Knee,
    RecoveryRow,
    Row,
    Series,
)
from holdfast.units import MS

CONFIGURATIONS = ("FRAME+", "FRAME", "FCFS", "FCFS-")
CATEGORIES = {
    "0": (50, 0), "1": (50, 3), "2": (100, 0), "3": (100, 3), "4": (100, -1), "5": (500, 0),
}  # fmt: skip
LOADS = (1525, 7525, 13525)
EXPERIMENT = {
    "name": "frame-table4",
    "title": "Success for loss tolerance under a crash",
    "paper": "FRAME, Table 4",
    "repetitions": 3,
    "seed": 7,
    "machine": {"cpu": "Example 3.0 GHz", "cores": 2, "memory": "8 GiB"},
    "commit": "0123abc",
    "command": "holdfast lab run frame-table4 --seed 7",
    "plan": {"warm_up": "35s", "measure": "60s"},
}


def figure(mean: float, ci: float = 0.0) -> Figure:
    return Figure(mean=mean, ci=ci, low=mean - ci, high=mean + ci)


def row(configuration: str, topics: int, category: str, loss: Figure, latency: Figure) -> Row:
    deadline_ms, loss_tolerance = CATEGORIES[category]
    lost = 0 if loss.mean == 100 else 1234
    return Row(
        labels={"configuration": configuration, "topics": str(topics)}, topics=topics, category=category,
        deadline_ns=deadline_ms * MS, loss_tolerance=loss_tolerance,
        loss_success=loss, latency_success=latency,
        latency_ns={"p50": 0.8 * MS, "p99": 3.2 * MS, "p99_9": 9 * MS, "max": 12.34 * MS}, messages=1_000_000,
        lost=lost, duplicates=3, longest_run=4 if lost else 0, repetitions=3,
    )  # fmt: skip


def success(configuration: str, topics: int) -> Figure:
    if configuration == "FCFS" and topics > 5000:
        return figure(0.0)
    if configuration == "FCFS-" and topics > 10000:
        return figure(78.4, 13.3)
    return figure(99.98, 0.012) if configuration == "FRAME" and topics > 10000 else figure(100.0)


def rows() -> list[Row]:
    return [
        row(each, topics, category, success(each, topics), success(each, topics))
        for topics in LOADS
        for each in CONFIGURATIONS
        for category in CATEGORIES
    ]


def backups() -> list[Row]:
    """No load that varies, but a setting that is a number."""
    return [
        msgspec.structs.replace(
            row("FRAME", 10, category, figure(100.0), figure(100.0)),
            labels={"backups": str(count)},
            latency_ns={"p50": (0.2 + 0.1 * count) * MS, "p99": 1.0 * MS, "p99_9": 2.0 * MS, "max": 3.0 * MS},
        )
        for count in range(4)
        for category in ("0", "1")
    ]


def cpu() -> list[CpuRow]:
    slope = {"FRAME+": 0.3, "FRAME": 0.4, "FCFS": 0.9, "FCFS-": 0.6}
    found = []
    for topics in LOADS:
        for each in CONFIGURATIONS:
            for role, share in (("primary", 1.0), ("backup", 0.4)):
                used = min(100.0, slope[each] * share * topics / 100)
                threads = {"delivery": figure(used * 0.7, 1.0), "proxy": figure(used * 0.3, 0.5)}
                labels = {"configuration": each, "topics": str(topics)}
                found.append(
                    CpuRow(
                        labels=labels, topics=topics, role=role, percent=figure(used, 2.0), threads=threads
                    )
                )
    return found


def series() -> list[Series]:
    random = Random(1)
    found = []
    for each in CONFIGURATIONS:
        for category, peak in (("0", 30.0), ("2", 45.0), ("5", 60.0)):
            high = peak * {"FRAME+": 1.2, "FRAME": 1.0, "FCFS": 200.0, "FCFS-": 12.0}[each]
            lost = list(range(21)) if each == "FCFS" else []
            calm = 1000.0 if each == "FCFS" else 0.9
            points = [(n, calm * (1 + 0.2 * random.random())) for n in range(-60, 0)]
            points += [(n, max(0.9, high * 0.6**n)) for n in range(60) if n not in lost]
            found.append(
                Series(
                    labels={"configuration": each, "topics": "7525"},
                    category=category,
                    trial=3,
                    points=points,
                    lost=lost,
                    deadline_ms=float(CATEGORIES[category][0]),
                    peak_ms=high,
                )
            )
    return found


def day() -> list[Series]:
    """One topic whose way to the subscriber takes longer by day, with a spike."""
    random = Random(2)
    points = [
        (n, 20.7 + 6 * math.sin(n / 600 * math.pi) ** 2 + random.random() + (9000 if n in (200, 201) else 0))
        for n in range(600)
    ]
    labels = {"configuration": "FRAME", "topics": "7525"}
    return [
        Series(
            labels=labels, category="5", trial=0, points=points, lost=[], deadline_ms=500.0, peak_ms=9020.0
        )
    ]


def recovery() -> list[RecoveryRow]:
    return [
        RecoveryRow(
            labels=each.labels,
            category=each.category,
            peak_ms=Figure(
                mean=each.peak_ms, ci=each.peak_ms / 5, low=each.peak_ms * 0.7, high=each.peak_ms * 1.3
            ),
            lost=len(each.lost),
            redispatched=None if "FRAME+" in each.labels.values() else figure(40.0, 3.0),
        )
        for each in series()
    ]


def knees() -> list[Knee]:
    held = {
        "FRAME+": (160_000, None),
        "FRAME": (135_250, 160_000),
        "FCFS": (40_000, 60_000),
        "FCFS-": (None, 13_525),
    }
    return [
        Knee(labels={"configuration": each}, topics=topics, broke_at=broke, why="category 2 met 97.2 %")
        for each, (topics, broke) in held.items()
    ]


def depths() -> list[FigureRow]:
    return [
        FigureRow(
            labels={"replication": way, "depth": str(depth)},
            name="suback_us",
            mean=figure(value, 9.0),
            p50=value - 5,
            p99=value + 80,
            max=value + 300,
            count=1000,
        )
        for depth in (1, 2, 3, 4)
        for way, value in (("parallel", 300.0 if depth > 1 else 150.0), ("serial", 150.0 * depth))
    ]


def gaps() -> list[FigureRow]:
    return [
        FigureRow(
            labels={"system": system},
            name="gap_ms",
            mean=figure(value, value / 10),
            p50=value * 0.9,
            p99=value * 1.5,
            max=value * 2,
            count=30,
        )
        for system, value in (("holdfast", 12.0), ("mosquitto", 2400.0), ("nats", 900.0))
    ] + [
        FigureRow(
            labels={"system": system}, name="lost_acknowledged", mean=figure(lost), p50=lost, p99=lost,
            max=lost, count=3,
        )
        for system, lost in (("holdfast", 0.0), ("mosquitto", 41.0))
    ]  # fmt: skip


def failed() -> list[FailedTrial]:
    labels = {"configuration": "FCFS", "topics": "13525"}
    return [FailedTrial(number=41, labels=labels, error="the primary did not start within 30 s")]


def full(**changes: object) -> Analysis:
    fields: dict[str, object] = {
        "experiment": EXPERIMENT, "rows": rows(), "cpu": cpu(), "series": series(), "figures": depths(),
        "recovery": recovery(), "knees": knees(), "failed": failed(), "trials": 36, "messages": 72_000_000,
        "check": [], "seconds": 41.5,
    }  # fmt: skip
    return Analysis(**{**fields, **changes})  # type: ignore[arg-type]
