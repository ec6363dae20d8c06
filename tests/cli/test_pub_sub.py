"""`holdfast pub` and `holdfast sub` as people use them, with mosquitto's clients on the other side.

A subscriber is known to be subscribed when it prints the retained message that waits for it.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.cli.main import main
from support.brokers import BrokerProcess, StartBroker, free_port

FRAME = Path(__file__).parents[2] / "examples" / "frame.toml"
HOLDFAST = [sys.executable, "-m", "holdfast.cli.main"]
WAIT_S = 30.0
READY = "ready"


def holdfast(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HOLDFAST, *arguments], input=stdin, capture_output=True, text=True, timeout=WAIT_S, check=False
    )


def run_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str]:
    """In this process, for what ends before it reads or prints messages."""
    monkeypatch.setattr(sys, "argv", ["holdfast", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0), capsys.readouterr().err


@contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


@contextmanager
def subscribed(broker: BrokerProcess, root: str, *command: str) -> Iterator[subprocess.Popen[str]]:
    """Runs a subscriber of `root/#`, which gets READY as its first message."""
    ready = holdfast("pub", "-p", str(broker.port), "-t", f"{root}/0", "-m", READY, "-r", "-q", "1")
    assert ready.returncode == 0, ready.stderr
    with running(*command, "-p", str(broker.port), "-t", f"{root}/#") as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert READY in line, process.stderr and process.stderr.read()
        yield process


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, err
    return out, err


@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_mosquitto_sub_gets_what_holdfast_pub_sends(broker: BrokerProcess, qos: str) -> None:
    root = f"ps/to-mosquitto/{qos}"
    with subscribed(
        broker, root, "mosquitto_sub", "-V", "5", "-q", "2", "-C", "4", "-F", "%t %q %P %p"
    ) as sub:
        done = holdfast(
            "pub", "-p", str(broker.port), "-t", f"{root}/a", "-m", "21.5", "-q", qos, "--repeat", "3"
        )
        assert done.returncode == 0, done.stderr
        assert "published 3 messages" in done.stderr
        out, _ = finish(sub)
    for number, line in enumerate(out.splitlines(), start=1):
        topic, got_qos, property, payload = line.split()
        assert (topic, got_qos, payload) == (f"{root}/a", qos, "21.5")
        assert property.startswith("hf:")
        assert property.split("/")[1] == str(number)


def test_mosquitto_sub_of_3_1_1_gets_it_too(broker: BrokerProcess) -> None:
    with subscribed(broker, "ps/v311", "mosquitto_sub", "-V", "311", "-C", "2") as sub:
        assert holdfast("pub", "-p", str(broker.port), "-t", "ps/v311/a", "-m", "old").returncode == 0
        assert finish(sub)[0] == "old\n"


@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_holdfast_sub_prints_what_mosquitto_pub_sends(broker: BrokerProcess, qos: str) -> None:
    root = f"ps/from-mosquitto/{qos}"
    with subscribed(broker, root, *HOLDFAST, "sub", "-v", "-C", "2", "-q", qos) as sub:
        subprocess.run(
            ["mosquitto_pub", "-p", str(broker.port), "-t", f"{root}/b", "-m", "hello", "-q", qos], check=True
        )
        out, err = finish(sub)
    assert out == f"{root}/b hello\n"
    row = next(line for line in err.splitlines() if f"{root}/b" in line)
    assert row.split()[1:] == ["1", "–", "–", "–", "–", "–", "–"], "nothing is known without a stamp"


def test_lines_of_stdin_are_messages_and_the_table_follows(broker: BrokerProcess) -> None:
    with subscribed(broker, "ps/lines", *HOLDFAST, "sub", "-C", "6", "--deadline", "20s") as sub:
        done = holdfast(
            "pub",
            "-p",
            str(broker.port),
            "-t",
            "ps/lines/a",
            "-l",
            "-q",
            "1",
            stdin="one\ntwo\r\n\nfour\nfive",
        )
        assert done.returncode == 0, done.stderr
        out, err = finish(sub)
    assert out.split("\n") == ["one", "two", "", "four", "five", ""]
    row = next(line for line in err.splitlines() if "ps/lines/a" in line).split()
    assert row[1] == "5"
    assert row[5:] == ["0", ">", "20s", "0", "0", "≤", "∞"]


def test_json_lines_carry_latency_sequence_and_a_summary(broker: BrokerProcess, tmp_path: Path) -> None:
    data = tmp_path / "payload"
    data.write_bytes(b"\xff\x00")
    with subscribed(broker, "ps/json", *HOLDFAST, "sub", "--json", "-C", "3") as sub:
        for source in (["-f", str(data)], ["-n", "--no-stamp"]):
            assert holdfast("pub", "-p", str(broker.port), "-t", "ps/json/a", *source).returncode == 0
        out, err = finish(sub)
    assert err == ""
    binary, empty, *summaries = [json.loads(line) for line in out.splitlines()]
    assert (binary["payload_base64"], binary["sequence"]) == ("/wA=", 1)
    assert binary["latency_ms"] >= 0
    assert empty == {"topic": "ps/json/a", "payload": "", "qos": 0, "retain": False}
    assert [(each["summary"], each["messages"]) for each in summaries] == [("ps/json/0", 1), ("ps/json/a", 2)]
    assert (summaries[1]["lost"], summaries[1]["late"]) == (0, None)


def test_ctrl_c_ends_both_with_their_summaries(broker: BrokerProcess) -> None:
    with subscribed(broker, "ps/stop", *HOLDFAST, "sub", "-v") as sub:
        periodic = ["-t", "ps/stop/a", "-m", "x", "-q", "1", "--every", "10ms"]
        with running(*HOLDFAST, "pub", "-p", str(broker.port), *periodic) as pub:
            assert sub.stdout is not None
            for _ in range(5):
                assert sub.stdout.readline() == "ps/stop/a x\n"
            pub.send_signal(signal.SIGINT)
            _, pub_err = finish(pub)
        sub.send_signal(signal.SIGINT)
        _, err = finish(sub)
    assert "answered in p50" in pub_err
    assert "Traceback" not in pub_err + err
    assert "ps/stop/a" in err


def test_a_loss_is_seen_from_the_stamps(broker: BrokerProcess) -> None:
    with subscribed(broker, "ps/loss", *HOLDFAST, "sub", "--loss", "2", "-C", "4", "--json") as sub:
        for sequence in (1, 2, 6):
            stamp = ["-D", "publish", "user-property", "hf", f"1/{sequence}/plc"]
            subprocess.run(
                ["mosquitto_pub", "-V", "5", "-p", str(broker.port), "-t", "ps/loss/a", "-m", "x", *stamp],
                check=True,
            )
        out, _ = finish(sub)
    summary = json.loads(out.splitlines()[-1])
    assert (summary["lost"], summary["lost_in_a_row"], summary["loss_tolerance"]) == (3, 3, 2)


def test_the_contract_is_shown_and_requirements_are_answered(start_broker: StartBroker) -> None:
    broker = start_broker("--contracts", str(FRAME), kind="holdfast")
    with subscribed(
        broker, "plant/cat0", *HOLDFAST, "sub", "-C", "4", "--contracts", str(FRAME), "--deadline", "20ms"
    ) as sub:
        done = holdfast(
            *("pub", "-p", str(broker.port), "-t", "plant/cat0/7", "-m", "x", "--repeat", "3"),
            *("--every", "1ms", "--contracts", str(FRAME)),
        )
        assert done.stderr.splitlines()[0] == (
            "plant/cat0/7 is under contract '0': within 50ms, none lost, every 50ms"
        )
        _, err = finish(sub)
    row = next(line for line in err.splitlines() if "plant/cat0/7" in line).split()
    assert row[1:3] == ["0", "3"]
    assert row[-7:] == [row[-7], ">", "20ms", "0", "0", "≤", "0"]

    refused = holdfast("sub", "-p", str(broker.port), "-t", "plant/cat0/+", "--deadline", "0.1ms", "-C", "1")
    assert refused.returncode == 1
    assert refused.stderr.startswith("holdfast: the broker refused to subscribe to plant/cat0/+: ")
    assert "a deadline of at least 1ms would do" in refused.stderr


def test_fewer_messages_than_asked_for_in_time_is_no(broker: BrokerProcess) -> None:
    late = holdfast("sub", "-p", str(broker.port), "-t", "ps/none", "-C", "1", "-W", "0.1")
    assert (late.returncode, late.stdout) == (1, "")
    assert late.stderr == "holdfast: 0 of 1 messages came within 0.1 s\n"
    assert holdfast("sub", "-p", str(broker.port), "-t", "ps/none", "-W", "0.1").returncode == 0


def test_a_reader_that_has_enough_is_no_error(broker: BrokerProcess) -> None:
    with subscribed(broker, "ps/pipe", *HOLDFAST, "sub") as sub:
        assert sub.stdout is not None
        sub.stdout.close()
        periodic = ["-t", "ps/pipe/a", "-m", "x", "--every", "10ms"]
        with running(*HOLDFAST, "pub", "-p", str(broker.port), *periodic):
            assert sub.wait(WAIT_S) == 0
        assert sub.stderr is not None
        assert "Traceback" not in sub.stderr.read()
        sub.stderr.close()


@pytest.mark.parametrize("command", [["pub", "-t", "a", "-m", "x"], ["sub", "-t", "a"]])
def test_no_broker_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    port = free_port()
    code, err = run_here(monkeypatch, capsys, *command, "-h", "127.0.0.1", "-p", str(port))
    assert code == 1
    assert err == (
        f"holdfast: cannot reach a broker at 127.0.0.1:{port}: Connection refused. "
        "Start one with `holdfast broker`, or say where it is.\n"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pub", "-t", "a/+", "-m", "x"], "wildcard"),
        (["pub", "-t", "a"], "found none; expected one of"),
        (["pub", "-t", "a", "-m", "x", "-n"], "found --message and --null"),
        (["pub", "-t", "a", "-l", "--repeat", "3"], "--repeat"),
        (["pub", "-t", "a", "-m", "x", "--every", "5"], 'write "5ms" or "5s"'),
        (["pub", "-t", "a", "-m", "x", "-V", "311"], "MQTT 5 only"),
        (["pub", "-t", "a", "-m", "x", "-q", "3"], "--qos"),
        (["pub", "-t", "a", "-f", "/no/such/file"], "does not exist"),
        (["sub", "-t", "a/#/b"], "a/#/b"),
        (["sub", "-t", "a", "--deadline", "soon"], "--deadline"),
        (["sub", "-t", "a", "--loss", "-1"], "--loss"),
        (["sub", "-t", "a", "--contracts", "/no/such/file"], "/no/such/file"),
        (["sub"], "--topic"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_input_is_said_before_anything_is_sent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    code, err = run_here(monkeypatch, capsys, *arguments)
    assert code == 2
    assert words in err
