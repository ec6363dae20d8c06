"""The user properties by which Holdfast's clients and brokers understand each other; any MQTT 5 client can.

Laws:
- `hf` on PUBLISH is the creation stamp `created_ns/sequence/publisher`: wall clock in decimal nanoseconds, a
  number that rises by one within a topic of a publisher, and who that publisher is, without '/'
- a publisher that starts anew is another publisher: its numbers start again
- a publisher whose name begins with '~' leaves gaps: its numbers rise, so that repetitions are known, but a
  missing number is no loss. No client's own name begins so
- `hf-deadline` and `hf-loss` on SUBSCRIBE are what the subscriber requires; `hf-depth` is how many members of
  the group, the primary among them, must know the subscription before SUBACK
- `hf-view` on CONNECT says that the client understands groups, and the newest view it knows; brokers answer
  with the view on CONNACK, SUBACK, UNSUBACK and DISCONNECT, and publish it on `$SYS/broker/view` to it,
  without a subscription, whenever it changes. On DISCONNECT from a client it is why it leaves
- `hf-warm` on CONNECT asks a standby to keep the connection until it is needed
- `hf-serves: channels` on CONNECT says that the client serves channels: it alone publishes under `$channel/`.
  It publishes what it offers to `$channel/$catalog`, and hears of subscriptions on `$channel/$subscriptions`
- `hf-last` on SUBSCRIBE to a channel asks for so many of its last results; who serves it publishes them to
  `$channel/$last/TOKEN`, and the broker hands them to that subscription alone, as retained messages
- what is not a stamp is no stamp: parsing never fails
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

STAMP_PROPERTY = "hf"
DEADLINE_PROPERTY = "hf-deadline"
LOSS_PROPERTY = "hf-loss"
LOSS_UNLIMITED = "unlimited"
DEPTH_PROPERTY = "hf-depth"
VIEW_PROPERTY = "hf-view"
WARM_PROPERTY = "hf-warm"
SERVES_PROPERTY = "hf-serves"
SERVES_CHANNELS = "channels"
LAST_PROPERTY = "hf-last"
LAST_MAX = 1000

VIEW_TOPIC = "$SYS/broker/view"
CHANNEL_TOPICS = "$channel/"
CATALOG_TOPIC = "$channel/$catalog"
SUBSCRIPTIONS_TOPIC = "$channel/$subscriptions"
LAST_TOPICS = "$channel/$last/"
RESERVED_TOPICS = ("$SYS", "$share", "$channel")  # clients publish nothing that begins so

GAPS_MARK = "~"

STAMP_CHARS_MAX = 300
STAMP_NUMBER_MAX = 2**63 - 1
VIEW_CHARS_MAX = 4000


class Stamp(Struct, frozen=True):
    """When a message was made, which of its topic it is, and by whom."""

    created_ns: int
    sequence: int
    publisher: str


def format_stamp(created_ns: int, sequence: int, publisher: str) -> tuple[str, str]:
    """The user property that carries the stamp; the publisher comes from `publisher_name`."""
    return (STAMP_PROPERTY, f"{created_ns}/{sequence}/{publisher}")


def publisher_name(client_id: str, incarnation: str) -> str:
    """The publisher of a stamp: the client identifier as far as it fits, and which start of it this is."""
    name = client_id.replace("/", "_")[:64]
    return f"{'_' + name[1:] if leaves_gaps(name) else name}.{incarnation}"


def leaves_gaps(publisher: str) -> bool:
    """Whether a missing number of this publisher is no loss."""
    return publisher.startswith(GAPS_MARK)


def find_stamp(user_properties: Iterable[tuple[str, str]]) -> Stamp | None:
    """The first creation stamp among the user properties of a message."""
    for name, value in user_properties:
        if name == STAMP_PROPERTY:
            return parse_stamp(value)
    return None


def parse_stamp(value: str) -> Stamp | None:
    if len(value) > STAMP_CHARS_MAX:
        return None
    created, _, rest = value.partition("/")
    sequence, slash, publisher = rest.partition("/")
    if not (slash and _is_number(created) and _is_number(sequence)) or "/" in publisher:
        return None
    return Stamp(int(created), int(sequence), publisher)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= STAMP_NUMBER_MAX


class Place(Struct, frozen=True):
    """Where a member of a group takes MQTT clients."""

    name: str
    host: str
    port: int

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


class ViewNote(Struct, frozen=True):
    """A view as clients are told: its number, who says so, and who serves: the primary, then its heirs."""

    number: int
    teller: str
    places: tuple[Place, ...]

    @property
    def from_primary(self) -> bool:
        return bool(self.places) and self.places[0].name == self.teller


def format_view(note: ViewNote) -> str:
    """`number/teller/name=host:port,name=host:port`; names have no '/', ',' or '='."""
    places = ",".join(f"{place.name}={place.address}" for place in note.places)
    return f"{note.number}/{note.teller}/{places}"


def parse_view(text: str) -> ViewNote | None:
    if len(text) > VIEW_CHARS_MAX:
        return None
    number, _, rest = text.partition("/")
    teller, slash, listed = rest.partition("/")
    if not slash or not _is_number(number):
        return None
    places = [_parse_place(each) for each in listed.split(",")] if listed else []
    known = tuple(place for place in places if place is not None)
    return ViewNote(int(number), teller, known) if len(known) == len(places) else None


def _parse_place(text: str) -> Place | None:
    name, equals, address = text.partition("=")
    host, colon, port = address.rpartition(":")
    if not (name and equals and host and colon and _is_number(port)) or int(port) > 65_535:
        return None
    return Place(name, host, int(port))


def find_view(user_properties: Iterable[tuple[str, str]]) -> ViewNote | None:
    """The view that a broker tells among the user properties of an answer."""
    for name, value in user_properties:
        if name == VIEW_PROPERTY:
            return parse_view(value)
    return None
