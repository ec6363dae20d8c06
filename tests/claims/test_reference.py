"""docs/reference.md: the group file, and the user properties by which any client may ask for more."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from conformance.peer import Peer
from conformance.wire import P, Packet
from support.brokers import HOLDFAST, START_S_MAX, BrokerProcess, free_port, wait_until

from .conftest import StartPlant
from .plant import (
    FOREVER,
    Listener,
    Plant,
    leave_session,
    numbers,
    publish_all,
    reads,
    run_holdfast,
)
from .sentences import ROOT, functions_of

ROWS = [
    line
    for line in (ROOT / "docs" / "reference.md").read_text().splitlines()
    if line.startswith("| ") and "---" not in line and not line.endswith("| test |")
]


def user(name: str, value: str) -> tuple[P, tuple[str, str]]:
    return P.USER, (name, value)


def view_in(packet: Packet) -> str:
    (found,) = [value for name, value in packet.all(P.USER) if name == "hf-view"]  # type: ignore[misc]
    return str(found)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[2:40])
def test_every_line_names_a_test_that_exists(row: str) -> None:
    """reference.md: "Every line names the test that judges it." """
    found = re.search(r"`(tests/[\w/]+\.py)::(test_\w+)` \|$", row)
    assert found is not None, "the line names no test"
    assert found[2] in functions_of(ROOT / found[1])


def test_a_group_file_with_mistakes_is_refused(tmp_path: Path) -> None:
    """reference.md: "`holdfast broker --group FILE --member NAME --check-config` says everything that is
    wrong with it."
    """
    path = tmp_path / "group.toml"
    path.write_text(
        'name = "plant"\nheartbeat = "20ms"\nsilence = "30ms"\nunarbitrated = "maybe"\ndepth = 9\n'
        '[[member]]\nname = "a"\nmqtt = "127.0.0.1:1"\npeer = "nowhere"\n'
    )
    done = run_holdfast("broker", "--group", str(path), "--member", "a", "--check-config")
    assert done.returncode == 2
    for words in ("depth", "peer", "heartbeat", "unarbitrated", "2 to 4 members"):
        assert words in done.stderr
    done = run_holdfast("broker", "--group", str(path), "--member", "c", "--check-config")
    assert "member: none is named 'c'; there are a" in done.stderr
    assert "depth" in done.stderr
    alone = path.read_text()
    path.write_text(alone + '[[member]]\nname = "a"\n')
    done = run_holdfast("broker", "--group", str(path), "--member", "a", "--check-config")
    assert "name = 'a' stands at two members" in done.stderr
    assert "depth" in done.stderr
    path.write_text(alone)
    path.write_text(path.read_text().replace("maybe", "goon").replace("silence", "silense"))
    done = run_holdfast("broker", "--group", str(path), "--member", "a", "--check-config")
    for words in ('did you mean "go-on"?', "did you mean silence?", "heartbeat", "2 to 4 members"):
        assert words in done.stderr


def test_the_depth_of_the_group_holds_where_a_client_asks_for_none(start: StartPlant) -> None:
    """reference.md: "how many members must know a subscription before SUBACK where its client asks for no
    depth; no more than there are"

    While the backup stands still SUBACK waits for it, until it is taken for gone; with `hf-depth` 1 it does
    not.
    """
    plant = start(more='heartbeat = "20ms"\nsilence = "1.5s"\njoin_wait = "500ms"\ndepth_wait = "20s"\n')
    primary = plant.primary()
    with plant.client(primary) as client, plant.client(primary) as shallow:
        client.connect("usual", **FOREVER)
        shallow.connect("shallow", **FOREVER)
        plant.stop(plant.other(primary))
        began = time.monotonic()
        assert shallow.subscribe(("free/1", 1), props=[user("hf-depth", "1")]).reasons == [1]
        assert time.monotonic() - began < 0.8
        assert client.subscribe(("free/1", 1)).reasons == [1]
        assert time.monotonic() - began > 1.2


def test_a_depth_that_takes_too_long_is_refused(start: StartPlant) -> None:
    """reference.md: "how long the SUBACK of a client that asked for a depth waits for a member that is there
    and slow; then it is refused with 0x97"
    """
    more = 'heartbeat = "20ms"\nsilence = "5s"\njoin_wait = "500ms"\ndepth_wait = "300ms"\n'
    plant = start(more=more)
    primary = plant.primary()
    with plant.client(primary) as client:
        client.connect("deep", **FOREVER)
        plant.stop(plant.other(primary))
        began = time.monotonic()
        refused = client.subscribe(("free/1", 1), props=[user("hf-depth", "2")])
        assert refused.reasons == [0x97]
        assert 0.25 < time.monotonic() - began < 2.0
        assert "300ms" in str(refused.prop(P.REASON_STRING))


def test_what_a_subscriber_may_require(pair: Plant) -> None:
    """reference.md: "messages must come within that, for example `20ms`; refused if that cannot be kept,
    with what could be"
    reference.md: "how many messages in a row may be lost: a number, or `unlimited`; never weaker than the
    contract"
    reference.md: "On SUBSCRIBE, what cannot be read as such is refused with 0x83 and words"
    """
    with pair.client() as client:
        client.connect("asks")
        assert client.subscribe(("strict/1", 1), props=[user("hf-deadline", "60ms")]).reasons == [1]
        refused = client.subscribe(("strict/2", 1), props=[user("hf-deadline", "0.1ms")])
        assert refused.reasons == [0x83]
        assert "at least 1ms would do" in str(refused.prop(P.REASON_STRING))
        assert client.subscribe(("strict/3", 1), props=[user("hf-loss", "unlimited")]).reasons == [1]
        assert client.subscribe(("strict/4", 1), props=[user("hf-loss", "0")]).reasons == [1]
        for name, value in (("hf-deadline", "soon"), ("hf-loss", "-1"), ("hf-depth", "9")):
            refused = client.subscribe(("strict/5", 1), props=[user(name, value)])
            assert refused.reasons == [0x83]
            assert refused.prop(P.REASON_STRING)


def test_a_client_that_understands_groups_is_told_of_views(pair: Plant) -> None:
    """reference.md: "CONNACK, SUBACK, UNSUBACK and DISCONNECT then have `hf-view` too,
    `number/teller/name=host:port,…`: the primary first, then its heirs; each new view comes as a message on
    `$SYS/broker/view`"
    """
    primary = pair.primary()
    backup = pair.other(primary)
    places = ",".join(f"{name}={pair.address(name)}" for name in (primary, backup))
    with pair.client(primary) as client:
        connack = client.connect("knows", props=[user("hf-view", "0")])
        number, _, rest = view_in(connack).partition("/")
        assert rest == f"{primary}/{places}"
        assert view_in(client.subscribe("free/1")) == f"{number}/{rest}"
        pair.kill(backup)
        told = client.receive()
        assert told.topic == "$SYS/broker/view"
        assert told.payload.decode().endswith(f"/{primary}/{primary}={pair.address(primary)}")
    with pair.client(primary) as plain:
        assert plain.connect("plain").all(P.USER) == []


def test_the_stamp_is_what_every_client_reads(pair: Plant) -> None:
    """reference.md: "`created_ns/sequence/publisher`: when a message was made, which of its topic, by whom.
    A number that is not above the last one of the topic's last publisher is acknowledged and dropped. What
    is no stamp is passed on as it is"
    """
    port = pair.ports[pair.primary()]
    with Listener(port, "subscriber", "free/#") as listener, Peer(port) as publisher:
        publisher.connect("publisher")
        for payload, value in ((b"1", "5/7/p.1"), (b"2", "6/7/p.1"), (b"3", "no stamp"), (b"4", "8/8/p.1")):
            assert publish_all(publisher, "free/1", [payload], props=[user("hf", value)]) == [payload]
        listener.await_all([b"1", b"3", b"4"])
        listener.settle()
        assert listener.came == [b"1", b"3", b"4"]
        stamps = [dict(each.all(P.USER))["hf"] for each in listener.messages]  # type: ignore[arg-type]
        assert stamps == ["5/7/p.1", "no stamp", "8/8/p.1"]


def test_the_lag_of_marks_is_measured(pair: Plant) -> None:
    """reference.md: "how old the marks were that went to the heir last, and at most: what a crash may
    repeat at QoS 1"

    Within the figure that is promised for it by default, with a session away.
    """
    port = pair.ports[pair.primary()]
    leave_session(port, "away", "free/#")
    with Listener(port, "had", "free/#") as had, Peer(port) as publisher:
        publisher.connect("publisher")
        had.await_all(publish_all(publisher, "free/1", numbers(0, 2000)))
    topic = "$SYS/broker/group/marks/lag max us"
    wait_until(lambda: reads(port, topic) != "-", "a lag", START_S_MAX)
    assert int(reads(port, topic)) < 100_000


@pytest.mark.parametrize(("silence", "said"), [("49.999999ms", False), ("50ms", True), ("500ms", True)])
def test_a_silence_that_is_not_below_the_failover_is_said(tmp_path: Path, silence: str, said: bool) -> None:
    """reference.md: "A group where it is not less runs all the same, and when a primary falls silent more may
    be lost than contracts allow: `--check-config`, `holdfast doctor` and the log (`failover not proven`) say
    so, and which contracts count on it"
    """
    group, contracts = tmp_path / "group.toml", tmp_path / "contracts.toml"
    member = '[[member]]\nname = "{}"\nmqtt = "127.0.0.1:{}"\npeer = "127.0.0.1:{}"\n'
    ports = [free_port() for _ in range(4)]
    members = member.format("a", *ports[:2]) + member.format("b", *ports[2:])
    group.write_text(f'name = "plant"\nsilence = "{silence}"\njoin_wait = "10ms"\n{members}')
    contract = '[[contract]]\nname = "{0}"\ntopics = ["{0}"]\ndeadline = "1s"\nperiod = "1s"\n'
    contract += "loss_tolerance = {1}\n"
    contracts.write_text(contract.format("strict", 1) + contract.format("loose", '"unlimited"'))
    files = ("--group", str(group), "--contracts", str(contracts))
    checked = run_holdfast("broker", *files, "--member", "a", "--check-config")
    assert checked.returncode == 0
    line = f"{group}: silence: {silence} is not less than failover = 50ms of the contracts"
    assert (line in checked.stdout) == said
    assert ("contracts: strict\n" in checked.stdout) == said
    assert checked.stdout.endswith("the configuration is in order\n")
    findings = json.loads(run_holdfast("doctor", *files, "--json").stdout)["findings"]
    assert [each["contracts"] for each in findings if each["check"] == "failover"] == [["strict"]] * said
    with BrokerProcess(*files, "--member", "a", "--log-format", "json", kind=HOLDFAST) as broker:
        assert broker.terminate() == 0
        log = [json.loads(line) for line in broker.stderr.splitlines()]
    told = [each["contracts"] for each in log if each["event"] == "failover not proven"]
    assert told == ["strict"] * said
