"""`holdfast up --table`: runs by itself, on a terminal with keys, and leaves nothing behind however it ends.

Whether a deadline is met depends on how busy the machine is, so what is tested is that the exit code and the
sentence at the end are those of the table, and that nothing is lost.
"""

import asyncio
import fcntl
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
import tomllib
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from io import StringIO
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from holdfast.broker.contracts import ContractIndex
from holdfast.cli.up import arbiter
from holdfast.cli.up.arbiter import serves
from holdfast.cli.up.command import PLANT_CONTRACTS
from holdfast.cli.up.pair import BrokerSeen, Standing, group_text, places_for
from holdfast.cli.up.plant import TOPICS_PER_CONTRACT_MAX, streams_of
from holdfast.cli.up.story import Moves, Story, failover_words, over_words, view_words
from holdfast.cli.up.table import conclusion, holds, pair_lines, screen, seen_words
from holdfast.cli.up.watch import Judge, Row, Snapshot
from holdfast.client import Message
from holdfast.contract.file import load_contracts
from holdfast.contract.verdict import Verdict
from holdfast.errors import Unavailable
from holdfast.mqtt.conventions import Place, Stamp, ViewNote
from holdfast.mqtt.packets import Properties
from holdfast.replication.group import load_group
from support.brokers import wait_until

FRAME = Path(__file__).parents[2] / "examples" / "frame.toml"
UP = [sys.executable, "-m", "holdfast.cli.main", "up"]
TABLE = [*UP, "--table"]
WAIT_S = 60.0
LAST_CHARS = 4000
MS = 1_000_000
NAMES = ["emergency", "protection", "metering", "monitoring", "ambient", "logging"]


def run_up(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TABLE, *arguments], capture_output=True, text=True, timeout=WAIT_S, check=False)


# -- the whole -----------------------------------------------------------------------------------------------


def rows_of(lines: list[str]) -> dict[str, list[str]]:
    return {words[0]: words for line in lines if (words := line.split()) and words[0] in NAMES}


def check_outcome(done: subprocess.CompletedProcess[str]) -> dict[str, list[str]]:
    """The table has every contract, nothing of L = 0 is lost, and the exit code is that of the table."""
    lines = done.stdout.splitlines()
    rows = rows_of(lines)
    assert list(rows) == NAMES, done.stdout + done.stderr
    for name, words in rows.items():
        assert int(words[2]) > 0, f"{name} got no messages"
        if words[9] == "0":
            assert words[8] == "0", f"{name} lost messages:\n{done.stdout}"
    broken = [name for name, words in rows.items() if words[-2] == "✗"]
    assert done.returncode == (1 if broken else 0), done.stdout
    assert ("all contracts kept" in lines[-1]) == (not broken)
    assert done.stderr == ""
    return rows


def test_it_ends_by_itself_with_a_table_and_its_verdict() -> None:
    done = run_up("--seconds", "3")
    address = r"mqtt://127\.0\.0\.1:\d+"
    assert re.match(rf"brokers +{address} and {address} \(\d+\.\d s\)\nplant +6 contracts", done.stdout)
    for name, words in check_outcome(done).items():
        assert words[8] == "0", f"{name} lost messages"
    assert "No failover yet." in done.stdout
    assert "Lost: 0. Seen twice: 0. Repeats dropped: 0." in done.stdout


def test_a_primary_that_is_killed_costs_no_contract() -> None:
    done = run_up("--seconds", "4", "--kill-after", "1500ms")
    check_outcome(done)
    killed = re.search(r"1\.5 s: killed broker (\w), the primary, pid \d+ \(SIGKILL\)", done.stdout)
    assert killed is not None, done.stdout
    views = [int(number) for number in re.findall(r"s: View (\d+)", done.stdout)]
    assert views == sorted(set(views))
    other = "b" if killed[1] == "a" else "a"
    after = done.stdout[killed.end() :]
    assert re.search(rf"s: View \d+: {other} serves, nobody protects it", after), done.stdout
    assert re.search(r"Failover \d: subscriber \d+\.\d ms, all publishers \d+\.\d ms after the kill", after)
    assert re.search(rf"broker {killed[1]} +down +mqtt://\S+$", after, re.MULTILINE)
    assert re.search(rf"broker {other} +primary +mqtt://\S+ +pid \d+$", after, re.MULTILINE)
    assert "Seen twice: 0." in after


def test_what_only_the_subscriber_noticed_before_a_kill_is_no_failover() -> None:
    story = Story()
    story.subscriber(Moves(count=1, at_ns=5, took_ns=0))
    story.caused("the kill", 10)
    story.subscriber(Moves(count=2, at_ns=12, took_ns=1))
    story.publishers(Moves(count=1, at_ns=13, took_ns=1))
    (failover,) = story.failovers
    assert (failover.since, failover.subscriber_ns, failover.publishers_ns) == ("the kill", 2, 3)


def test_with_zookeeper_a_failover_has_its_word_and_nothing_is_left() -> None:
    done = run_up("--zookeeper", "--seconds", "4", "--kill-after", "1500ms")
    check_outcome(done)
    found = re.match(r"arbiter +ZooKeeper at 127\.0\.0\.1:(\d+) \(\d+\.\d s\)\nbrokers ", done.stdout)
    assert found is not None, done.stdout
    assert re.search(r"Failover \d: subscriber \d+\.\d ms, all publishers \d+\.\d ms", done.stdout)
    assert not serves(int(found[1]))


def test_without_zookeeper_that_is_said_with_what_would_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start() -> None:
        async with AsyncExitStack() as stack:
            await arbiter.start_arbiter(stack, tmp_path)

    monkeypatch.setattr(arbiter, "JAR", tmp_path / "missing")
    with pytest.raises(Unavailable, match="apt-get install zookeeper"):
        asyncio.run(start())


def test_it_shows_the_contracts_of_any_file() -> None:
    done = run_up("--seconds", "0.5", "--contracts", str(FRAME))
    assert done.returncode in (0, 1)
    assert "plant/cat0" not in done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines() if re.match(r" *[0-5] ", line)] == list(
        "012345"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--kill-after", "2"], "--kill-after: found '2': the unit is missing"),
        (["--restart-after", "soon"], "--restart-after: found 'soon': not a number followed by a unit"),
        (["--listen", "x"], "--listen[0]: found 'x'; expected HOST:PORT"),
        (["--listen", "h:1", "--listen", "h:2", "--listen", "h:3"], "found 3 addresses; a pair has two"),
    ],
)
def test_an_option_that_makes_no_sense_is_one_sentence(arguments: list[str], words: str) -> None:
    done = run_up(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


class Terminal:
    """The example in a terminal of its own. `text` is what is seen, `raw` with its colours."""

    def __init__(self, columns: int) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.process = subprocess.Popen(
            TABLE,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm"},
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        self.text = ""
        self.raw = ""

    def read_until(self, pattern: str) -> str:
        """What was seen since the last time, up to the pattern."""
        deadline_s = time.monotonic() + WAIT_S
        while not (found := re.search(pattern, self.text)):
            ready, _, _ = select.select([self.master], [], [], max(0.0, deadline_s - time.monotonic()))
            assert ready, f"{pattern} was not seen within {WAIT_S} s in:\n{self.text[-LAST_CHARS:]}"
            try:
                data = os.read(self.master, 65_536).decode(errors="replace")
            except OSError:  # it ended, and its terminal with it
                raise AssertionError(f"{pattern} was not seen in:\n{self.text[-LAST_CHARS:]}") from None
            self.raw += data
            self.text += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", data)
        seen, self.text = self.text[: found.end()], self.text[found.end() :]
        return seen

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)


@contextmanager
def terminal(columns: int = 80) -> Iterator[Terminal]:
    shown = Terminal(columns)
    try:
        yield shown
    finally:
        if shown.process.poll() is None:
            shown.process.kill()
        shown.process.wait(WAIT_S)
        os.close(shown.master)


def test_a_terminal_shows_it_live_until_ctrl_c_and_nothing_is_left() -> None:
    with terminal() as shown:
        seen = shown.read_until(r"emergency +10 +[1-9]\d* (.|\n)*q ends it all")
        assert "mosquitto_sub -h 127.0.0.1 -p " in seen
        unfolded = re.sub(r"\s+", "", seen)
        assert re.search(r"sub-h127\.0\.0\.1:\d+,127\.0\.0\.1:\d+-tplant/emergency/", unfolded)
        children = psutil.Process(shown.process.pid).children(recursive=True)
        assert len([child for child in children if "python" in child.name()]) == 5, "and who sweeps"
        shown.type(b"\x03")
        seen = shown.read_until(r"all contracts kept|broken")
        assert shown.process.wait(WAIT_S) == 0
        assert "Traceback" not in seen
        assert not any(child.is_running() for child in children)


REFRESHES = 12
PROTECTED = r"View \d+: \w serves, \w protects it(.|\n)*q ends it all"
MOVED = r"Failover \d: subscriber \d+\.\d ms, all publishers \d+\.\d ms after the"


def others(text: str, word: str) -> tuple[str, str]:
    """The broker of which the text says the word, and the other."""
    found = re.search(rf"{word} broker (\w)", text)
    assert found is not None, text
    return found[1], "b" if found[1] == "a" else "a"


def test_keys_kill_the_primary_and_start_it_again_while_contracts_stay_green() -> None:
    with terminal() as shown:
        before = termios.tcgetattr(shown.master)
        shown.read_until(PROTECTED)
        assert termios.tcgetattr(shown.master) != before
        shown.type(b"k")
        killed, other = others(shown.read_until(r"Killed broker \w, the primary"), "Killed")
        lines = [f"broker {killed} +down", f"broker {other} +primary"]
        shown.read_until("(.|\n)*".join([*sorted(lines), rf"View \d+: {other} serves, nobody protects it"]))
        shown.read_until(f"{MOVED} kill")
        shown.type(b"k")
        shown.read_until(f"Not now: broker {killed} is down; r starts it again")
        shown.type(b"r")
        lines = [f"broker {killed} +backup", f"broker {other} +primary"]
        shown.read_until("(.|\n)*".join([*sorted(lines), rf"View \d+: {other} serves, {killed} protects it"]))
        shown.raw = shown.text = ""
        shown.read_until(r"Each contract(.|\n)*q ends it all")
        # Green is colour 2. A busy machine may be late, but nothing that must not be lost is.
        for name in ("emergency", "metering", "logging"):
            assert re.search(rf"{name}[^\n]*\x1b\[32m✓ kept|{name}[^\n]*✗ late", shown.raw), shown.raw
        shown.type(b"q")
        shown.read_until(r"all contracts kept: \d+ messages in \d+\.\d s, \d failover|later than")
        assert shown.process.wait(WAIT_S) == 0
        assert termios.tcgetattr(shown.master) == before


def test_a_primary_that_is_paused_is_replaced_and_comes_back_as_backup() -> None:
    with terminal() as shown:
        shown.read_until(PROTECTED)
        shown.type(b"s")
        paused, other = others(shown.read_until(r"Paused broker \w, the primary"), "Paused")
        shown.read_until(rf"broker {paused} +paused(.|\n)*View \d+: {other} serves, nobody protects it")
        shown.read_until(f"{MOVED} pause")
        shown.type(b"s")
        shown.read_until(rf"broker {paused} +backup(.|\n)*View \d+: {other} serves, {paused} protects it")
        shown.type(b"q")
        shown.read_until(r"all contracts kept: .*, \d failover|later than")
        assert shown.process.wait(WAIT_S) == 0


def test_without_any_broker_it_goes_on_says_so_and_ends_when_told() -> None:
    with terminal() as shown:
        shown.read_until(PROTECTED)
        shown.read_until(
            r"emergency +[1-9]\d* +[1-9]\d*"
        )  # messages flow: those that come no more are missed
        children = psutil.Process(shown.process.pid).children(recursive=True)
        for broker in children:
            if "holdfast.runtime.serve" in broker.cmdline():
                broker.kill()
        shown.read_until(r"broker a +down(.|\n)*broker b +down(.|\n)*Nobody serves at the moment")
        shown.type(b"k")
        shown.read_until("Not now: both brokers are down; r starts them again")
        for _ in range(REFRESHES):  # until more was published than publishers keep
            shown.read_until("q ends it all")
        shown.type(b"q")
        shown.read_until("broken")
        assert shown.process.wait(WAIT_S) == 0
        assert not any(child.is_running() for child in children)


def test_a_killed_example_takes_its_processes_along() -> None:
    with terminal() as shown:
        shown.read_until("q ends it all")
        children = psutil.Process(shown.process.pid).children(recursive=True)
        shown.process.send_signal(signal.SIGKILL)
        _, alive = psutil.wait_procs(children, timeout=WAIT_S)
        assert alive == []


def test_a_broker_that_anybody_kills_is_shown_down() -> None:
    with terminal() as shown:
        found = re.search(r"broker (\w) +primary +mqtt://\S+ +pid (\d+)", shown.read_until(PROTECTED))
        assert found is not None
        os.kill(int(found[2]), signal.SIGKILL)
        shown.read_until(
            rf"broker {found[1]} +down(.|\n)*View \d+: (.|\n)*Failover \d: .* noticed, and went on"
        )


def test_a_plant_that_dies_is_said() -> None:
    with terminal() as shown:
        shown.read_until("q ends it all")
        children = psutil.Process(shown.process.pid).children(recursive=True)
        next(child for child in children if "holdfast.cli.up.plant" in child.cmdline()).kill()
        shown.read_until("holdfast: the plant was killed by signal 9")
        assert shown.process.wait(WAIT_S) == 1
        assert not any(child.is_running() for child in children)


def test_a_broker_that_cannot_start_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_up("--listen", f"127.0.0.1:{port}")
    assert done.returncode == 1
    assert done.stderr == (
        f"holdfast: the broker a ended with status 1: cannot listen on 127.0.0.1:{port}: "
        "Address already in use. Choose another with --listen.\n"
    )


def test_a_terminal_that_goes_away_ends_it() -> None:
    with terminal() as shown:
        shown.read_until("q ends it all")
        children = psutil.Process(shown.process.pid).children(recursive=True)
        shown.process.send_signal(signal.SIGHUP)
        wait_until(lambda: not any(child.is_running() for child in children), "the end of all", WAIT_S)


# -- its parts -----------------------------------------------------------------------------------------------


def test_the_plant_promises_what_the_published_categories_promise() -> None:
    """Same terms, other names, fewer topics."""

    def terms(path: Path) -> list[dict[str, object]]:
        contracts = tomllib.loads(path.read_text())["contract"]
        return [
            {key: value for key, value in contract.items() if key not in ("name", "topics", "count")}
            for contract in contracts
        ]

    assert terms(PLANT_CONTRACTS) == terms(FRAME)


def test_streams_are_bounded_and_belong_to_their_contract() -> None:
    book = load_contracts(FRAME)
    index = ContractIndex(book)
    for stream, contract in zip(streams_of(book.contracts), book.contracts, strict=True):
        assert len(stream.topics) == min(contract.count, TOPICS_PER_CONTRACT_MAX)
        assert {index.terms_for(topic.encode()).contract.name for topic in stream.topics} == {contract.name}


def arrival(topic: str, sequence: int, latency_ms: int) -> Message:
    stamp = Stamp(0, sequence, "plant.1")
    return Message(topic, b"", 0, False, False, Properties(), latency_ms * MS, stamp)


def judged(*messages: Message, published: dict[str, int]) -> Snapshot:
    book = load_contracts(PLANT_CONTRACTS)
    judge = Judge(book.contracts, ContractIndex(book))
    for message in messages:
        judge.arrived(message)
    judge.published(published)
    return judge.snapshot(final=True)


def test_a_loss_at_the_end_and_a_topic_that_never_came_are_noticed() -> None:
    messages = [arrival("plant/emergency/1", 1, 1), arrival("plant/protection/1", 1, 1)]
    lost = judged(
        *messages,
        published={
            "plant.1/plant/emergency/1": 2,
            "plant.1/plant/protection/1": 4,
            "plant.1/plant/metering/1": 1,
        },
    )
    assert {row.name for row in lost.rows if not row.report.kept} == {"emergency", "metering"}
    assert not holds(lost)
    words = conclusion(lost, 1.0, "busy")
    assert "contract emergency broken: 1 lost in a row on plant/emergency/1, 0 may be" in words
    assert "busy" not in words


def test_late_is_broken_and_says_how_busy_the_machine_is() -> None:
    late = judged(arrival("plant/emergency/1", 1, 51), published={"plant.1/plant/emergency/1": 1})
    assert conclusion(late, 1.0, "busy") == (
        "contract emergency broken: 1 of 1 later than 50 ms, the latest 51.00 ms\nbusy"
    )


def test_nothing_at_all_is_not_kept() -> None:
    nothing = judged(published={})
    assert not holds(nothing)
    assert conclusion(nothing, 1.0, "") == "no message arrived"


def test_both_brokers_have_places_of_their_own_in_one_group_file(tmp_path: Path) -> None:
    places = places_for([("0.0.0.0", 0)])
    file = tmp_path / "group.toml"
    file.write_text(group_text(places))
    group = load_group(file, "b")
    assert [member.name for member in group.members] == ["a", "b"]
    assert places[0].listen[0] == "0.0.0.0"
    assert group.members[0].mqtt == f"127.0.0.1:{places[0].listen[1]}"
    ports = {port for place in places for _, port in (place.mqtt, place.peer)}
    assert len(ports) == 4


def test_a_failover_is_timed_from_its_cause_if_that_is_known() -> None:
    story = Story()
    story.caused("the kill", 100 * MS)
    story.subscriber(Moves(1, 103 * MS, 1 * MS))
    assert failover_words(story) == "Failover 1: subscriber 3.0 ms after the kill."
    assert story.over == 0
    story.publishers(Moves(1, 104 * MS, 2 * MS))
    story.publishers(Moves(1, 104 * MS, 2 * MS))
    assert failover_words(story) == "Failover 1: subscriber 3.0 ms, all publishers 4.0 ms after the kill."
    assert story.over == 1
    story.publishers(Moves(2, 900 * MS, 7 * MS))
    story.subscriber(Moves(2, 901 * MS, 8 * MS))
    words = "subscriber and publishers noticed, and went on within 8.0 ms."
    assert failover_words(story) == f"Failover 2: {words}"


def test_failovers_that_pass_too_quickly_for_some_leave_no_gap_in_the_numbers() -> None:
    story = Story()
    for count in (1, 2, 3):
        story.subscriber(Moves(count, count * MS, 0))
    story.publishers(Moves(3, 3 * MS, 0))
    assert over_words(story) == "Failover 1: subscriber and publishers noticed, and went on at once."
    story.subscriber(Moves(4, 4 * MS, 0))
    assert over_words(story).startswith("Failover 1: ")
    assert failover_words(story) == "Failover 2: subscriber noticed, and went on at once."
    story.publishers(Moves(4, 4 * MS, 0))
    assert over_words(story).startswith("Failover 2: ")


def test_a_view_is_said_with_who_serves_and_who_protects() -> None:
    a, b = (Place(name, "127.0.0.1", 1) for name in "ab")
    assert view_words(None) == "No view yet: nobody serves."
    assert view_words(ViewNote(4, "a", (a,))) == "View 4: a serves, nobody protects it."
    assert view_words(ViewNote(8, "a", (a, b))) == "View 8: a serves, b protects it."


@pytest.mark.parametrize("columns", [80, 120])
def test_the_widest_screen_fits(columns: int) -> None:
    """Long latencies, many messages, both kinds of breach, late failovers: no line is folded or cut."""
    verdict = Verdict(deadline_ns=500 * MS, loss_tolerance=3)
    for sequence in (1, 99):
        verdict.arrived("plant.1/plant/monitoring/1", sequence, 0, 98_765 * MS)
    row = Row("monitoring", 20, 12_345_678, verdict.report())
    waiting = Row("logging", 0, 0, Verdict(deadline_ns=MS, loss_tolerance=None).report())
    snapshot = Snapshot(0, [row, waiting], False, None, Moves(), 123_456)
    story = Story()
    story.subscriber(Moves(1, 0, 98_765 * MS))
    story.publishers(Moves(1, 0, 98_765 * MS))
    brokers = [BrokerSeen("a", "192.168.100.100:65535", 4_194_304, Standing.PRIMARY)]
    out = StringIO()
    below = pair_lines(brokers, snapshot, story)
    Console(file=out, width=columns).print(screen(snapshot, [12345.0, 0.0], columns, below))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= columns
    assert len(lines) == 3 + 4 + 1 + len(below)
    assert "…" not in "".join(lines[-len(below) :])
    assert "✗ lost+late" in next(line for line in lines if line.startswith(("monitoring", " monitoring")))
    assert "… waiting" in next(line for line in lines if line.startswith(("logging", " logging")))


def test_what_may_be_lost_is_said_to_be_allowed_on_the_page_too() -> None:
    messages = [arrival("plant/ambient/1", sequence, 1) for sequence in (1, 3)]
    some = judged(*messages, published={"plant.1/plant/ambient/1": 3})
    assert "2 messages, 1 lost (as contracts allow); every contract kept." in seen_words(some)
