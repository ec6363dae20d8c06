"""Statuses as brokers and pipelines tell them, and a real HTTP port that tells them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from msgspec.structs import replace

from holdfast.status import (
    BOUNDS_NS,
    BrokerStatus,
    ChannelStatus,
    ContractStatus,
    Failover,
    Histogram,
    LinkStatus,
    PipelineStatus,
    Promise,
    Queues,
    Reckoning,
    RoleChange,
    Status,
    Traffic,
    Usage,
    encode_status,
)
from holdfast.units import MS, US, S

NOW_NS = 1_800_000_000 * S
START_NS = NOW_NS - 100 * S


def histogram(**counted: int) -> Histogram:
    """`histogram(ms3=10)`: ten times about 3 ms."""
    counts = [0] * (len(BOUNDS_NS) + 1)
    for name, count in counted.items():
        unit = {"ms": MS, "us": US}[name[:2]]
        ns = int(name[2:]) * unit
        counts[sum(bound < ns for bound in BOUNDS_NS)] += count
    return Histogram(counts=counts, sum_ns=0)


def contract(name: str = "emergency", **changes: Any) -> ContractStatus:
    promise = Promise(
        deadline_ns=50 * MS,
        loss_tolerance=0,
        retention=2,
        period_ns=50 * MS,
        destination="edge",
        to_subscriber_ns=1 * MS,
    )
    fields: dict[str, Any] = {
        "topics": [f"plant/{name}/+"],
        "promise": promise,
        "published": 100,
        "delivered": 100,
        "latency": histogram(ms1=100),
    }
    return ContractStatus(name=name, **{**fields, **changes})


def broker(name: str = "a", role: str = "primary", **changes: Any) -> BrokerStatus:
    other = "b" if name == "a" else "a"
    fields: dict[str, Any] = {
        "group": "plant",
        "pid": 4711 if name == "a" else 4712,
        "started_at_ns": START_NS,
        "at_ns": NOW_NS,
        "uptime_ns": 100 * S,
        "view": 2,
        "primary": "a",
        "heirs": [other] if role == "primary" else [],
        "ready": True,
        "ready_why": "it serves",
        "policy": "edf",
        "connections": 8,
        "sessions": 8,
        "subscriptions": 6,
        "topics": 85,
        "links": [LinkStatus(member=other, address="127.0.0.1:1", health="up", way_ns=120 * US, behind=0)],
        "contracts": [contract()] if role in ("primary", "alone") else [],
    }
    return BrokerStatus(
        version="0.1.0",
        name=name,
        role=role,
        reckoning=Reckoning(
            failover_ns=50 * MS,
            failover_last_ns=None,
            failover_max_ns=None,
            publisher_to_broker_ns=0,
            broker_to_backup_ns=50 * US,
            broker_to_backup_measured_ns=None,
        ),
        traffic=Traffic(
            messages_received=0, messages_sent=0, messages_dropped=0, messages_refused=0, duplicates=0,
            bytes_received=0, bytes_sent=0,
        ),
        queues=Queues(
            jobs=0, jobs_max=1, control=0, messages=0, messages_bytes=0, copies=0, discards=0, retained=0
        ),
        usage=Usage(cpu_ns=1 * S, memory_bytes=40 * 2**20, files_max=1024),
        slices=histogram(us20=1),
        **{**fields, **changes},
    )  # fmt: skip


def pipeline(**changes: Any) -> PipelineStatus:
    fields: dict[str, Any] = {
        "state": "running",
        "ready": True,
        "ready_why": "it runs",
        "channels": [
            ChannelStatus(
                name="emergencies_near_me", period_ns=10 * S, subscribers=3, executions=4,
                last_run_at_ns=NOW_NS - 3 * S, last_run_ns=800 * MS, results=2,
            )
        ],
    }  # fmt: skip
    return PipelineStatus(
        version="0.1.0",
        pid=4713,
        started_at_ns=START_NS,
        at_ns=NOW_NS,
        brokers="127.0.0.1:1883",
        brokers_connected=True,
        sessions=1,
        records=1234,
        ingestion_failures=0,
        ingestion_last_ns=MS,
        notifications=7,
        notifications_refused=0,
        **{**fields, **changes},
    )


def took_over(name: str = "b", view: int = 3, at_ns: int = NOW_NS) -> Failover:
    return Failover(
        at_ns=at_ns, view=view, primary="a", x_ns=12 * MS, why="the link to it closed", again=0, copies=0
    )


def changed_role(was: str, role: str, at_ns: int) -> RoleChange:
    return RoleChange(at_ns=at_ns, was=was, role=role, view=3, why="")


class Port:
    """Answers GET /status with `status`, as of now, until the block ends; None answers 503."""

    def __init__(self, status: Status | None) -> None:
        self.status = status
        told = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                found = told.status
                body = encode_status(found) if found is not None else b"not now"
                self.send_response(200 if found is not None else 503)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@contextmanager
def port(status: Status | None) -> Iterator[Port]:
    told = Port(status)
    thread = threading.Thread(target=told.server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield told
    finally:
        told.server.shutdown()
        told.server.server_close()
        thread.join()


__all__ = [
    "NOW_NS",
    "broker",
    "changed_role",
    "contract",
    "histogram",
    "pipeline",
    "port",
    "replace",
    "took_over",
]
