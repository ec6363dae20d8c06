"""What brokers of a group say to each other, apart from the frames of every message (broker/copies.pxd).

Law: bytes that are none of these are the other side's fault, and it is told so in words.
"""

from __future__ import annotations

import hashlib
from typing import TypeAlias, cast

import msgspec

from holdfast.contract.model import ContractBook
from holdfast.mqtt.codec import PACKET_BYTES_MAX
from holdfast.replication.increments import Increment
from holdfast.replication.roles import Role

PROTOCOL = 6
FIELD_BYTES_MAX = 65_535  # of a name or text of MQTT
# A word ends at WORD_BYTES (transfers.py), or with one increment more. The largest has what a packet brought
# (a will, a retained message) and two names that came in others, or three names: a user, a client identifier
# and a filter. A text of 256 bytes takes a byte more here than in MQTT, the fields of a struct some hundred.
# The limits of a broker do not count: they may have been higher when it took a packet.
FRAME_BYTES_MAX = PACKET_BYTES_MAX + PACKET_BYTES_MAX // 256 + 3 * FIELD_BYTES_MAX + 131_072


class Worth(msgspec.Struct, frozen=True, order=True, array_like=True):
    """What a member has, the weightiest first: of two the greater one serves. `entitled` is the last view
    that it served, or was an heir in. `custody`: as first heir it has the messages of that view's primary
    (2), or a journal brought them back to who was either (1); a later heir has none of them."""

    epoch: int = 0
    entitled: int = 0
    custody: int = 0
    number: int = 0


class Hello(msgspec.Struct, tag="hello", frozen=True):
    """The first word of both sides."""

    protocol: int
    group: str
    contracts: str
    name: str
    role: Role
    view: int
    worth: Worth


class Challenge(msgspec.Struct, tag="challenge", frozen=True):
    """Before Hello, in a group with a secret: prove that you know it, with this nonce. See handshake.py."""

    nonce: bytes


class Proof(msgspec.Struct, tag="proof", frozen=True):
    """I know the secret."""

    proof: bytes


class Refusal(msgspec.Struct, tag="refusal", frozen=True):
    """Why the speaker will not talk to the other side."""

    why: str


class Beat(msgspec.Struct, tag="beat", frozen=True):
    """I am alive, this is what I am; `echo_ns` is the other's last `sent_ns`, heard `held_ns` ago."""

    role: Role
    view: int
    worth: Worth
    published: int
    sent_ns: int
    echo_ns: int
    held_ns: int
    coming: int = 0  # the view that a primary opens once its heirs know this number
    asks: bool = False  # answer at once: I stood still, and do not know whether I still serve
    silence_ns: int = 0  # a primary says after how long it may be taken for gone
    stalls: int = 0  # how often the speaker stood still lately
    stalled_ns: int = 0  # the longest of these
    stood_ns: int = 0  # the last of these
    gap_ns: int = 0  # the longest that the speaker heard nothing of a member that lives, lately
    woke_ns: int = 0  # how long ago that was over


class ViewIs(msgspec.Struct, tag="view", frozen=True):
    """The primary says who serves and who takes over; each who takes over repeats it."""

    number: int
    primary: str
    heirs: tuple[str, ...]


class Ask(msgspec.Struct, tag="ask", frozen=True):
    """I follow you: bring me up to date from there on."""

    epoch: int
    number: int
    life: int = 0


class State(msgspec.Struct, tag="state", frozen=True):
    """Increments, the first of which has that number."""

    epoch: int
    first: int
    increments: list[Increment]


class Snapshot(msgspec.Struct, tag="snapshot", frozen=True):
    """A part of everything. `first` clears what was; with `last` the state is that of (epoch, life,
    number)."""

    increments: list[Increment]
    first: bool = False
    last: bool = False
    epoch: int = 0
    number: int = 0
    life: int = 0


class Healing(msgspec.Struct, tag="healing", frozen=True):
    """Increments that a replica lacks: with them it has the state (epoch, life, number); with `last` it has
    all."""

    epoch: int
    number: int
    increments: list[Increment]
    last: bool = False
    life: int = 0


class Has(msgspec.Struct, tag="has", frozen=True):
    """I have the state up to that number."""

    number: int


class Drop(msgspec.Struct, tag="drop", frozen=True):
    """You are no longer an heir; join again."""

    why: str


class Bye(msgspec.Struct, tag="bye", frozen=True):
    """I end on purpose: take over."""


class Right(msgspec.Struct, tag="right", frozen=True):
    """Passwords that were found to be right, as keyed hashes. See sharing.py."""

    tags: list[bytes]


Word: TypeAlias = (
    Challenge
    | Proof
    | Hello
    | Refusal
    | Beat
    | ViewIs
    | Ask
    | State
    | Snapshot
    | Healing
    | Has
    | Drop
    | Bye
    | Right
)


# Words whose increments are encoded already: only to be sent.


def raw_state(epoch: int, first: int, part: list[msgspec.Raw]) -> State:
    return State(epoch, first, cast("list[Increment]", part))


def raw_snapshot(part: list[msgspec.Raw], *, last: bool, epoch: int, number: int, life: int) -> Snapshot:
    return Snapshot(cast("list[Increment]", part), last=last, epoch=epoch, number=number, life=life)


def raw_healing(epoch: int, number: int, part: list[msgspec.Raw], *, last: bool, life: int) -> Healing:
    return Healing(epoch, number, cast("list[Increment]", part), last, life)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Word)


def encode_word(word: Word) -> bytes:
    return _encoder.encode(word)


def decode_word(body: bytes) -> Word | None:
    """None: it is no word of this protocol."""
    try:
        return _decoder.decode(body)  # type: ignore[no-any-return]
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None


def digest_of(book: ContractBook) -> str:
    """Two brokers protect each other only under the same contracts: the same digest."""
    return hashlib.sha256(msgspec.json.encode(book, order="sorted")).hexdigest()[:32]
