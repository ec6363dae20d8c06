"""What is collected is what came, column by column; nothing is acknowledged before it is released."""

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from endpoint.bench import A, Bench, view
from holdfast.endpoint import Order
from holdfast.mqtt.codec import encode
from holdfast.mqtt.conventions import format_stamp
from holdfast.mqtt.packets import Properties, Puback, Publish
from holdfast.pipeline.feed.collector import Collector, take_marks
from holdfast.pipeline.feed.columns import marks_batch, record_batch

STAMPS = st.none() | st.tuples(st.integers(0, 2**60), st.integers(1, 30), st.sampled_from(["p.1", "q.ü"]))
MESSAGES = st.lists(
    st.tuples(
        st.sampled_from(["a", "a/b", "ünï"]),
        st.binary(max_size=40),
        st.integers(0, 1),
        st.booleans(),
        st.booleans(),
        STAMPS,
    ),
    max_size=30,
)


def opened(collector: Collector, order: Order | None = None) -> Bench:
    bench = Bench(A)
    bench.admit(A, view(1, "a", "a"))
    bench.endpoint.pour(collector, order)
    return bench


@settings(deadline=None)
@given(MESSAGES, st.integers(0, 30))
def test_columns_are_those_of_a_list_and_acknowledgements_wait_for_their_release(
    messages: list[tuple[str, bytes, int, bool, bool, tuple[int, int, str] | None]], first_group: int
) -> None:
    told: list[None] = []
    collector = Collector(lambda: told.append(None), 10_000, 20_000)
    bench = opened(collector)
    expected, newest, asked = [], {}, []
    for number, (topic, payload, qos, retain, typed, stamp) in enumerate(messages, start=1):
        properties = Properties(
            user=[] if stamp is None else [format_stamp(*stamp)], content_type="text" if typed else None
        )
        bench.say(
            A, Publish(topic, payload, qos, retain, packet_id=number if qos else 0, properties=properties)
        )
        created_ns, sequence, publisher = stamp or (None, None, None)
        if sequence is None or sequence > newest.get((topic, publisher), 0):
            expected.append((topic, payload, publisher, sequence, created_ns))
        newest[topic, publisher] = max(newest.get((topic, publisher), 0), sequence or 0)
        asked.append(Puback(number) if qos else None)
    endpoint = bench.endpoint
    assert endpoint.poured == len(messages)
    assert bool(told) == bool(messages)
    batch = record_batch(collector.take())
    columns = ("topic", "payload", "publisher", "sequence", "created_ns")
    assert [tuple(row[name] for name in columns) for row in batch.to_pylist()] == expected
    batch.validate(full=True)
    assert collector.duplicates == len(messages) - len(expected)
    assert bench.sent(A) == []
    for count in (min(first_group, len(messages)), len(messages)):
        endpoint.release(count)
        wanted = [each for each in asked[:count] if each is not None]
        asked[:count] = [None] * count
        written = b"".join(data for _, data in endpoint.take_output())
        assert written == b"".join(encode(each, 5) for each in wanted)
    marks = {
        (row["topic"], row["publisher"]): row["sequence"]
        for row in marks_batch(take_marks(endpoint._inbox.order)).to_pylist()
    }
    assert marks == {key: value for key, value in newest.items() if key[1] is not None}


def test_what_is_known_from_before_is_a_duplicate() -> None:
    order = Order(10)
    order.seen("p.1", "a", 7)
    collector = Collector(lambda: None, 100, 1000)
    bench = opened(collector, order)
    for sequence in (6, 7, 8, 12):
        stamp = Properties(user=[format_stamp(5, sequence, "p.1")])
        bench.say(A, Publish("a", b"%d" % sequence, properties=stamp))
    batch = record_batch(collector.take())
    assert batch.column("payload").to_pylist() == [b"8", b"12"]
    assert (collector.duplicates, collector.missing) == (2, 3)
    assert (collector.missing_topic, collector.missing_publisher) == ("a", "p.1")


def test_nothing_more_is_read_while_it_is_full_and_all_of_it_afterwards() -> None:
    collector = Collector(lambda: None, 500, 1000)
    bench = opened(collector)
    data = b"".join(encode(Publish("a", b"%03d" % number + bytes(200)), 5) for number in range(20))
    bench.endpoint.received(A, data, 1, 1)
    taken: list[pa.RecordBatch] = []
    rounds = 0
    while bench.endpoint.full:
        assert collector.bytes < 1000 + 300
        taken.append(record_batch(collector.take()))
        bench.endpoint.release(0)
        rounds += 1
    taken.append(record_batch(collector.take()))
    assert rounds >= 4
    found = [payload[:3] for batch in taken for payload in batch.column("payload").to_pylist()]
    assert found == [b"%03d" % number for number in range(20)]
