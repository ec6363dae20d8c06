"""What a person is told of a group, without a browser: what is red and why, failovers, empty states."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from dashboard.told import NOW_NS, broker, changed_role, contract, histogram, pipeline, took_over
from holdfast.dashboard.board import PATIENCE_NS, ROWS_MAX, Board
from holdfast.dashboard.picture import ContractRow, Mood, Picture
from holdfast.status import BrokerStatus, ChannelStatus, PipelineStatus, Status
from holdfast.units import MS, S

A, B, P = "http://a", "http://b", "http://p"
LATER_NS = NOW_NS + PATIENCE_NS


def board(*heard: tuple[str, Status | str], now_ns: int = NOW_NS) -> Board:
    """A board that has heard, or failed to hear, these in one look."""
    made = Board([A, B], P, NOW_NS)
    look(made, *heard, now_ns=now_ns)
    return made


def look(made: Board, *heard: tuple[str, Status | str], now_ns: int = NOW_NS) -> None:
    for url, status in heard:
        if isinstance(status, str):
            made.failed(url, status, now_ns)
        else:
            made.heard(url, at(status, now_ns), now_ns)
    made.close()


def at(status: Status, now_ns: int) -> Status:
    return replace(status, at_ns=now_ns)


PAIR: Sequence[tuple[str, Status | str]] = ((A, broker("a")), (B, broker("b", "backup")))


def only_row(picture: Picture) -> ContractRow:
    (row,) = picture.contracts
    return row


def test_a_pair_that_keeps_its_contracts_is_good_in_words() -> None:
    picture = board(*PAIR, (P, pipeline())).picture(NOW_NS)
    assert (picture.headline.mood, picture.headline.words) == (Mood.GOOD, "The contract is kept")
    assert picture.headline.details == ()
    assert [(card.name, card.role, card.mood) for card in picture.brokers] == [
        ("a", "primary", Mood.GOOD),
        ("b", "backup", Mood.GOOD),
    ]
    assert picture.brokers[0].links[0].words.replace("\N{NARROW NO-BREAK SPACE}", " ") == (
        "link to b is up, 0.12 ms one way, in step"
    )
    row = only_row(picture)
    assert (row.mood, row.verdict, row.why) == (Mood.GOOD, "kept", "")
    assert tuple(part.replace("\N{NARROW NO-BREAK SPACE}", " ") for part in row.promise) == (
        "≤ 50 ms, none lost",
        "every 50 ms, keeps 2",
    )
    assert row.limit_ns == 49 * MS
    assert row.loss_run == "0 of 0"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"late": 3, "late_last_at_ns": NOW_NS - 2 * S},
            "3 of 100 came later than 50ms, the last 2s ago",
        ),
        (
            {"loss_run_max": 2, "broken_last_at_ns": NOW_NS - 5 * S},
            "2 in a row were lost, 0 are tolerated, the last 5s ago",
        ),
    ],
)
def test_a_broken_contract_is_red_for_a_minute_and_says_why(changes: dict[str, int], why: str) -> None:
    told = broker("a", contracts=[contract(**changes), contract("fine")])
    made = board((A, told), PAIR[1])
    picture = made.picture(NOW_NS)
    assert picture.headline.mood is Mood.BAD
    assert picture.headline.words == "Broken: emergency"
    assert picture.headline.details == (f"Contract emergency: {why}.",)
    assert [(row.verdict, row.why) for row in picture.contracts] == [("broken", why), ("kept", "")]
    later = made.picture(NOW_NS + 61 * S)
    assert later.contracts[0].mood is Mood.WARN
    assert later.contracts[0].verdict == "kept again"
    assert later.headline.words == "All 2 contracts are kept"


def test_latencies_are_of_what_came_since_the_look_before() -> None:
    made = board(*PAIR)
    assert only_row(made.picture(NOW_NS)).latencies_ns[-1] is None, "what was before is no news"
    more = contract(published=150, latency=histogram(ms1=100, ms20=50))
    look(made, (A, broker("a", contracts=[more])), PAIR[1])
    row = only_row(made.picture(NOW_NS))
    assert row.latencies_ns[-1] is not None
    assert 15 * MS < row.latencies_ns[-1] <= 20 * MS
    assert row.rate == "10"
    look(made, (A, broker("a", contracts=[more])), PAIR[1])
    assert only_row(made.picture(NOW_NS)).latencies_ns[-1] is None


def test_a_broker_that_takes_over_is_added_to_what_the_dead_one_did() -> None:
    made = board(*PAIR)
    after = broker(
        "b",
        view=3,
        contracts=[contract(published=20, delivered=20, latency=histogram(ms2=20))],
        failovers=[took_over(at_ns=NOW_NS + 1 * S)],
        changes=[changed_role("backup", "primary", NOW_NS + 1 * S)],
        heirs=[],
    )
    look(made, (A, "nobody listens at http://a"), (B, after), now_ns=NOW_NS + 2 * S)
    picture = made.picture(NOW_NS + 2 * S)
    assert picture.headline.mood is Mood.WARN
    assert picture.headline.words == "The contract is kept"
    assert "Broker b: no other member protects what this one serves." in picture.headline.details
    assert "does not answer since" in picture.brokers[0].why
    assert picture.brokers[0].role == "unreachable"
    totals = dict(only_row(picture).totals)
    assert totals["published"] == "120"
    (line,) = picture.timeline.lines
    assert line.words == "view 3: b took over from a; the link to it closed"
    assert line.took.split() == ["12.0", "ms"] or "12.0" in line.took
    a, b = picture.timeline.lanes
    assert [span.role for span in a.spans] == ["primary", "unreachable"]
    assert [span.role for span in b.spans] == ["backup", "primary"]
    assert b.spans[-1].from_s == 1.0, "its own account of the time counts"
    # It comes back as another process, which counts from nothing.
    again = broker("a", "backup", started_at_ns=NOW_NS + 3 * S, view=3)
    look(made, (A, again), (B, replace(after, heirs=["a"])), now_ns=NOW_NS + 4 * S)
    picture = made.picture(NOW_NS + 4 * S)
    assert picture.headline.mood is Mood.GOOD
    assert dict(only_row(picture).totals)["published"] == "120"


def test_nobody_serving_and_nobody_answering_are_said() -> None:
    made = board(
        (A, broker("a", "joining", ready=False, ready_why="it looks for a primary")), (B, "no answer")
    )
    picture = made.picture(LATER_NS)
    assert picture.headline.words == "Nobody serves at the moment"
    assert "Broker a: it looks for a primary." in picture.headline.details
    nobody = board((A, "no answer within 0.8 s"), (B, "nobody listens at http://b"), (P, "no answer"))
    early = nobody.picture(NOW_NS)
    assert (early.headline.mood, early.headline.words) == (
        Mood.UNKNOWN,
        "Waiting for the first answer of 2 brokers",
    )
    late = nobody.picture(LATER_NS)
    assert (late.headline.mood, late.headline.words) == (Mood.BAD, "No broker answers")
    assert late.headline.details == (
        "Broker a: no answer within 0.8 s.",
        "Broker b: nobody listens at http://b.",
    )
    assert late.contracts_words == "No broker has told its contracts yet."
    assert late.pipeline is not None
    assert late.pipeline.words == "The pipeline does not answer: no answer"


def test_after_a_crash_of_all_what_was_known_stays_and_is_called_unknown() -> None:
    made = board(*PAIR)
    look(made, (A, "nobody listens"), (B, "nobody listens"))
    row = only_row(made.picture(NOW_NS))
    assert (row.mood, row.verdict, row.why) == (Mood.UNKNOWN, "not known", "nobody serves")


def test_no_contracts_is_said_with_what_would_give_some() -> None:
    picture = board((A, broker("a", contracts=[contract("default", published=0)])), PAIR[1]).picture(NOW_NS)
    assert picture.contracts == ()
    assert "--contracts FILE" in picture.contracts_words
    assert picture.headline.words == "Brokers are up; there are no contracts"
    used = board((A, broker("a", contracts=[contract("default", published=1)])), PAIR[1]).picture(NOW_NS)
    assert [row.name for row in used.contracts] == ["default"]


def test_a_contract_without_messages_waits() -> None:
    quiet = contract(published=0, delivered=0, latency=histogram())
    row = only_row(board((A, broker("a", contracts=[quiet])), PAIR[1]).picture(NOW_NS))
    assert (row.mood, row.verdict, row.latency) == (Mood.UNKNOWN, "waiting", "–")


def test_many_contracts_are_bounded_and_the_broken_come_first() -> None:
    many = [contract(f"c{number}") for number in range(ROWS_MAX + 7)]
    many[-1] = contract("last", late=1, late_last_at_ns=NOW_NS)
    picture = board((A, broker("a", contracts=many)), PAIR[1]).picture(NOW_NS)
    assert len(picture.contracts) == ROWS_MAX
    assert picture.contracts[0].name == "last"
    assert picture.contracts_left_out == 7


CHANNEL = pipeline().channels[0]


@pytest.mark.parametrize(
    ("status", "mood", "words"),
    [
        (pipeline(), Mood.GOOD, "Running"),
        (
            pipeline(state="starting", ready=False),
            Mood.UNKNOWN,
            "The pipeline starts; Spark takes some seconds",
        ),
        (
            pipeline(state="broken", ready=False, ready_why="Spark is gone"),
            Mood.WARN,
            "Spark is gone",
        ),
    ],
)
def test_a_pipeline_is_said(status: PipelineStatus, mood: Mood, words: str) -> None:
    seen = board(*PAIR, (P, status)).picture(NOW_NS).pipeline
    assert seen is not None
    assert (seen.mood, seen.words) == (mood, words)


@pytest.mark.parametrize(
    ("channel", "mood", "verdict", "why"),
    [
        (CHANNEL, Mood.GOOD, "on time", ""),
        (replace(CHANNEL, results_waiting=2), Mood.WARN, "behind", "2 executions not delivered yet"),
        (
            replace(CHANNEL, last_error="no such column", last_error_at_ns=NOW_NS),
            Mood.BAD,
            "failing",
            "no such column",
        ),
        (
            replace(CHANNEL, last_run_at_ns=None, subscribers=0),
            Mood.UNKNOWN,
            "waiting",
            "nobody has subscribed",
        ),
    ],
)
def test_a_channel_is_said(channel: ChannelStatus, mood: Mood, verdict: str, why: str) -> None:
    picture = board(*PAIR, (P, pipeline(channels=[channel]))).picture(NOW_NS)
    assert picture.pipeline is not None
    (row,) = picture.pipeline.channels
    assert (row.mood, row.verdict, row.why) == (mood, verdict, why)
    assert (picture.headline.mood is Mood.WARN) == (mood is Mood.BAD)


def test_before_the_pipeline_answers_the_example_says_what_it_does() -> None:
    made = board(*PAIR, (P, "nobody listens"))
    made.pipeline_note = "Spark needs Java"
    seen = made.picture(LATER_NS).pipeline
    assert seen is not None
    assert seen.words == "Spark needs Java"


def test_what_a_board_keeps_is_bounded() -> None:
    made = board(*PAIR)
    for number in range(200):
        told: BrokerStatus = broker(
            "a",
            started_at_ns=NOW_NS + number,
            view=number,
            failovers=[took_over("a", number, NOW_NS + number)],
        )
        look(made, (A, told), PAIR[1])
        look(made, (A, "gone"), PAIR[1])
    picture = made.picture(NOW_NS)
    assert len(picture.timeline.lines) <= 32
    assert len(made._past) <= 32


def waits(status: BrokerStatus, ms: int = 87) -> BrokerStatus:
    return replace(status, reckoning=replace(status.reckoning, silence_ns=ms * MS))


def sentence(picture: Picture) -> str:
    (said,) = picture.headline.details
    return said.replace("\N{NARROW NO-BREAK SPACE}", " ")


@pytest.mark.parametrize(
    ("stalled_ms", "cost"),
    [(48, "every contract bears that"), (50, "that is longer than emergency can wait")],
)
def test_a_machine_that_stands_still_is_told_in_one_sentence(stalled_ms: int, cost: str) -> None:
    a = replace(waits(broker("a")), stalls=3, stalls_total=9, stalls_longest_ns=stalled_ms * MS)
    assert sentence(board((A, a), PAIR[1]).picture(NOW_NS)) == (
        f"The machine stopped broker a 3 times within ten minutes, for {stalled_ms}.0 ms at most; "
        f"nobody took over, since 87.0 ms of silence are waited for; {cost}."
    )


def test_and_so_is_who_took_over_from_it() -> None:
    how = replace(took_over("b"), primary="a", stood_still_ns=70 * MS, x_ns=41 * MS)
    a = replace(broker("a", "backup"), stalls=1, stalls_longest_ns=70 * MS)
    b = replace(waits(broker("b", "primary"), 39), failovers=[how])
    assert sentence(board((A, a), (B, b)).picture(NOW_NS)) == (
        "The machine stopped broker a once within ten minutes, for 70.0 ms at most; "
        "b took over 1 time, within 41.0 ms; that is longer than emergency can wait."
    )


def test_a_takeover_from_a_dead_primary_is_no_standstill() -> None:
    b = replace(broker("b", "primary"), failovers=[took_over("b")])
    assert board((A, broker("a", "backup")), (B, b)).picture(NOW_NS).headline.details == ()
