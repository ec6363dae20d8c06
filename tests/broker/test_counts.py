"""What a broker counts of each contract: deadlines, latencies, losses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.bench import MS, WALL_NS, Bench, Client, book, contract
from holdfast.broker.histogram import Histogram
from holdfast.broker.terms import Terms
from holdfast.config import Limits
from holdfast.mqtt.packets import Disconnect, Properties
from holdfast.status import BOUNDS_NS

PUBLISHER = "p.1"
IN_TIME_NS = 49 * MS  # of 50 ms one is for the way to the subscriber
KEPT = {"clean_start": False, "properties": Properties(session_expiry=3600)}


def plant(loss: int | str = 1, limits: Limits | None = None) -> Bench:
    return Bench(book(contract("watched", "plant/+", "50ms", loss), limits=limits))


def terms_of(bench: Bench) -> Terms:
    (watched,) = bench.broker.contracts.contracts
    return watched


def stamped(client: Client, topic: str, number: int, age_ns: int = 0, publisher: str = PUBLISHER) -> None:
    created_ns = WALL_NS + client.bench.now_ns - age_ns
    properties = Properties(user=[("hf", f"{created_ns}/{number}/{publisher}")])
    client.publish(topic, properties=properties)
    client.bench.run()


def bucket_of(ns: int) -> int:
    return sum(bound < ns for bound in BOUNDS_NS)


@given(st.lists(st.integers(-(2**62), 2**62)))
def test_a_duration_is_counted_in_the_first_bucket_that_holds_it(durations_ns: list[int]) -> None:
    histogram = Histogram()
    expected = [0] * (len(BOUNDS_NS) + 1)
    for ns in [*durations_ns, *BOUNDS_NS, *(bound + 1 for bound in BOUNDS_NS)]:
        histogram.add(ns)
        expected[bucket_of(max(1, ns))] += 1
    assert histogram.counts == expected


def test_latency_is_from_the_stamp_to_the_sending() -> None:
    bench = plant()
    bench.client("s").subscribe("plant/#")
    publisher = bench.client("p")
    stamped(publisher, "plant/a", 1, age_ns=4 * MS)
    stamped(publisher, "plant/a", 2, age_ns=80 * MS)
    counts = terms_of(bench).latency_counts
    assert [index for index, count in enumerate(counts) if count] == [bucket_of(4 * MS), bucket_of(80 * MS)]
    assert terms_of(bench).latency_sum_ns == 84 * MS
    assert (terms_of(bench).delivered, terms_of(bench).late) == (2, 1)
    assert terms_of(bench).late_ns == WALL_NS + bench.now_ns


def test_a_retained_message_for_a_new_subscriber_is_not_late() -> None:
    bench = plant()
    bench.client("p").publish("plant/a", b"old", retain=True)
    bench.pass_time(10_000 * MS)
    bench.client("s").subscribe("plant/#")
    assert (terms_of(bench).delivered, terms_of(bench).late) == (1, 0)
    assert sum(terms_of(bench).latency_counts) == 0


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize(("away_ns", "counted"), [(IN_TIME_NS, (0, 0, 1)), (IN_TIME_NS + 1, (0, 1, 0))])
def test_what_waited_for_a_client_that_was_away_is_not_late(
    qos: int, away_ns: int, counted: tuple[int, int, int]
) -> None:
    bench = plant()
    subscriber = bench.client("s", **KEPT)
    subscriber.subscribe("plant/#", qos=qos)
    subscriber.say(Disconnect())
    bench.client("p").publish("plant/a", qos=qos)
    bench.pass_time(away_ns)
    bench.client("s", **KEPT)
    terms = terms_of(bench)
    assert (terms.late, terms.while_away, sum(terms.latency_counts)) == counted
    assert (terms.delivered, terms.late_ns) == (1, 0)


def test_what_a_client_left_waiting_when_it_went_is_not_late() -> None:
    bench = plant()
    options = {"clean_start": False, "properties": Properties(session_expiry=3600, receive_max=2)}
    bench.client("s", **options).subscribe("plant/#", qos=1)
    publisher = bench.client("p")
    for _ in range(5):
        publisher.publish("plant/a", qos=1)
        bench.run()
    (subscriber,) = (each for each in bench.clients.values() if each.connection.session.client_id == "s")
    assert len(subscriber.messages()) == 2
    subscriber.say(Disconnect())
    bench.pass_time(1000 * MS)
    bench.client("s", **KEPT)
    assert (terms_of(bench).delivered, terms_of(bench).late, terms_of(bench).while_away) == (5, 0, 3)


def test_what_comes_when_its_client_is_back_may_be_late() -> None:
    bench = plant()
    bench.client("s", **KEPT).subscribe("plant/#", qos=1)
    (subscriber,) = bench.clients.values()
    subscriber.say(Disconnect())
    bench.pass_time(1000 * MS)
    again = bench.client("s", **KEPT)
    again.stop_reading()
    bench.client("p").publish("plant/a", qos=1)
    bench.pass_time(IN_TIME_NS + 1)
    again.read_again()
    assert (terms_of(bench).delivered, terms_of(bench).late, terms_of(bench).while_away) == (1, 1, 0)


def test_missing_numbers_are_losses_in_a_row() -> None:
    bench = plant(loss=2)
    publisher = bench.client("p")
    for number in (1, 2, 5, 6, 10):
        stamped(publisher, "plant/a", number)
    terms = terms_of(bench)
    assert (terms.lost, terms.loss_run, terms.loss_run_max) == (5, 3, 3)
    assert terms.lost_ns == terms.broken_ns == WALL_NS + bench.now_ns


def test_a_run_within_the_tolerance_breaks_nothing() -> None:
    bench = plant(loss=2)
    publisher = bench.client("p")
    stamped(publisher, "plant/a", 1)
    stamped(publisher, "plant/a", 4)
    assert (terms_of(bench).lost, terms_of(bench).broken_ns) == (2, 0)


def test_what_is_no_loss() -> None:
    """Another publisher, one that leaves gaps, what comes again, a jump that nobody can mean, no stamp."""
    bench = plant(loss=0)
    publisher = bench.client("p")
    for number, who in (
        (5, PUBLISHER),
        (9, "p.2"),
        (11, "~gaps"),
        (20, "~gaps"),
        (3, "~gaps"),
        (1, "q"),
        (2**40, "q"),
    ):
        stamped(publisher, "plant/a", number, publisher=who)
    publisher.publish("plant/a")
    bench.run()
    assert (terms_of(bench).lost, terms_of(bench).loss_run_max) == (0, 0)


def test_what_another_broker_may_have_served_is_no_loss() -> None:
    bench = plant(loss=0)
    publisher = bench.client("p")
    stamped(publisher, "plant/a", 1)
    bench.broker.core.number_from(1)
    stamped(publisher, "plant/a", 7)
    assert terms_of(bench).lost == 0
    stamped(publisher, "plant/a", 9)
    assert terms_of(bench).lost == 1


def test_what_a_slow_subscriber_loses_in_a_row_is_told() -> None:
    bench = plant(loss=3, limits=Limits(queue_messages_max=4))
    slow = bench.client("s")
    slow.subscribe("plant/#")
    slow.stop_reading()
    publisher = bench.client("p")
    for _ in range(6):
        publisher.publish("plant/a", b"x")
        bench.run()
    assert (terms_of(bench).dropped, terms_of(bench).loss_run_max, terms_of(bench).lost) == (2, 2, 0)


def test_a_broker_can_be_told_not_to_count() -> None:
    bench = plant()
    bench.broker.core.board.counting = False
    bench.client("s").subscribe("plant/#")
    publisher = bench.client("p")
    stamped(publisher, "plant/a", 1)
    stamped(publisher, "plant/a", 5)
    assert (terms_of(bench).delivered, terms_of(bench).lost, sum(terms_of(bench).latency_counts)) == (2, 0, 0)
