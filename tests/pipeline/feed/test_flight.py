"""A feed that is served gives what its files give, and says the same when it cannot."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.address import Address
from holdfast.cli.record import open_door
from holdfast.errors import ConfigError, Unavailable
from holdfast.journal import Corrupt
from holdfast.pipeline.feed.errors import Beyond, Gone
from holdfast.pipeline.feed.flight import serve_feeds
from holdfast.pipeline.feed.journal import FeedReader, FeedWriter
from holdfast.pipeline.feed.place import FeedDoor, Readable, Served, open_feed
from holdfast.pipeline.layout import Layout
from pipeline.feed.batches import batch, numbers_of
from support.certificates import Authority

HERE = FeedDoor(Address("127.0.0.1", 0))
TOKEN = "correct-horse-battery"


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[FeedWriter]:
    writer = FeedWriter.open(tmp_path / "feeds" / "x", bytes_max=2**20)
    for _ in range(30):
        writer.append(batch(range(writer.end, writer.end + 100), payload_bytes=200))
        writer.commit()
    yield writer
    writer.close()


@pytest.fixture
def served(tmp_path: Path, writer: FeedWriter) -> Iterator[Readable]:
    with serve_feeds(HERE, Layout(tmp_path), ["x"]) as address:
        yield open_feed(address, "x")


def test_a_served_feed_is_the_feed(tmp_path: Path, writer: FeedWriter, served: Readable) -> None:
    files = FeedReader(writer.directory)
    assert (served.first, served.head) == (files.first, files.head) == (0, 3000)
    assert served.cut(5, 2999, 250) == files.cut(5, 2999, 250)
    assert pa.Table.from_batches(served.read(5, 2999)) == pa.Table.from_batches(files.read(5, 2999))
    assert numbers_of(list(served.read(7, 8))) == [7]
    assert list(served.read(7, 7)) == []
    served.commit("other-host", 2000)
    assert writer.consumers.marks() == {"other-host": 2000}
    writer.append(batch(range(3000, 3001)))
    assert served.head == 3000
    writer.commit()
    assert numbers_of(list(served.read(2999, served.head))) == [2999, 3000]


def test_errors_are_the_same_at_the_other_end(writer: FeedWriter, served: Readable) -> None:
    with pytest.raises(Beyond) as beyond:
        list(served.read(0, 5000))
    assert (beyond.value.end, beyond.value.head) == (5000, 3000)
    with pytest.raises(Beyond):
        served.commit("other-host", 5000)
    with pytest.raises(Unavailable, match="expected letters"):
        served.commit("../up", 5)
    served.commit("other-host", 3000)
    assert writer.prune(0, time.time_ns() + 10**12) > 0
    with pytest.raises(Gone) as gone:
        served.cut(0, 3000, 100)
    assert gone.value.first == served.first > 0
    path = max((writer.directory / "journal").glob("*.journal"))
    data = bytearray(path.read_bytes())
    data[data.index(b"." * 190)] ^= 1
    path.write_bytes(data)
    with pytest.raises(Corrupt) as corrupt:
        list(served.read(served.first, 3000))
    assert corrupt.value.file == str(path)
    assert "Restore the file" in str(corrupt.value)


def test_what_cannot_be_served_is_said(tmp_path: Path, served: Readable) -> None:
    address = served.location  # type: ignore[attr-defined]
    with pytest.raises(Unavailable, match="no feed 'y' is recorded here; there are: x"):
        _ = open_feed(address, "y").head
    with pytest.raises(Unavailable, match="start: found -1"):
        list(served.read(-1, 5))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(Unavailable, match="is the port taken"),
            serve_feeds(FeedDoor(Address("127.0.0.1", port)), Layout(tmp_path), ["x"]),
        ):
            pass
    with pytest.raises(Unavailable, match="feed x at"):
        _ = open_feed(f"grpc://127.0.0.1:{port}", "x").head


def test_with_a_token_nobody_reads_or_changes_a_feed_without_it(tmp_path: Path, writer: FeedWriter) -> None:
    token, other = tmp_path / "token", tmp_path / "other"
    token.write_text(TOKEN + "\n")
    other.write_text(TOKEN[:-1])
    with serve_feeds(FeedDoor(HERE.address, TOKEN.encode()), Layout(tmp_path), ["x"]) as address:
        for said in ("", str(other)):
            stranger = open_feed(Served(address, said), "x")
            with pytest.raises(Unavailable, match="who says the token"):
                _ = stranger.head
            with pytest.raises(Unavailable, match="who says the token"):
                list(stranger.read(0, 5))
            with pytest.raises(Unavailable, match="who says the token"):
                stranger.commit("stranger", 3000)
        assert writer.consumers.marks() == {}
        friend = open_feed(Served(address, str(token)), "x")
        assert numbers_of(list(friend.read(7, 9))) == [7, 8]
        with pytest.raises(Unavailable, match="no-such-file cannot be read"):
            open_feed(Served(address, "no-such-file"), "x")


def test_in_tls_a_feed_is_read_by_who_knows_the_authority_alone(tmp_path: Path, writer: FeedWriter) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "another-ca")
    issued = authority.issue("recorder")
    door = FeedDoor(HERE.address, None, (issued.certificate.read_bytes(), issued.key.read_bytes()))
    with serve_feeds(door, Layout(tmp_path), ["x"]) as address:
        assert address.startswith("grpc+tls://127.0.0.1:")
        assert open_feed(Served(address, authority=str(authority.certificate)), "x").head == 3000
        for served in (
            Served(address, authority=str(stranger.certificate)),
            Served(address.replace("grpc+tls", "grpc")),
        ):
            with pytest.raises(Unavailable, match="feed x at"):
                _ = open_feed(served, "x").head


def test_what_a_recorder_cannot_serve_by_is_said(tmp_path: Path) -> None:
    token, key = tmp_path / "token", tmp_path / "key"
    token.write_text(TOKEN)
    key.write_text("")
    for file in (token, key):
        file.chmod(0o644)
    for flight, given, words in (
        ("here", (None, None, None), "expected HOST:PORT"),
        ("0.0.0.0:0", (None, None, None), "say who may ask with --flight-token FILE"),
        ("127.0.0.1:0", (token, None, None), "open to everybody"),
        ("127.0.0.1:0", (None, token, None), "a certificate and its key go together"),
        ("127.0.0.1:0", (None, tmp_path / "none", key), "none cannot be read"),
        ("127.0.0.1:0", (None, token, key), "open to everybody"),
    ):
        with pytest.raises(ConfigError, match=words):
            open_door(flight, *given)
    token.chmod(0o600)
    assert open_door("0.0.0.0:0", token, None, None) == FeedDoor(Address("0.0.0.0", 0), TOKEN.encode())
