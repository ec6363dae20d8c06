"""One broker, pure: connections feed it bytes, `turn` moves everything on, links say what to write.

    connection.received(...)  packets come in; PUBLISH becomes a job, SUBSCRIBE takes effect, both at once
    broker.turn(now)          dispatches a slice of jobs by deadline, then control packets, then timers
    board.take_ready()        the links that have something to write, to close or to pause

Laws:
- what was read first takes effect first, whoever sent it: a subscription gets every message that is read
  behind its SUBSCRIBE and before its UNSUBSCRIBE
- publishing goes before all other control: a slice of jobs is dispatched before any CONNECT is looked at
- a turn is bounded, and what is read before it: jobs and timers each have a most, and all else costs units of
  work, of which there are so many (work.py). What is more goes on in the next turns
- a fault of one client ends that client's connection, and nothing else
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Mapping

from holdfast.broker.access import Access
from holdfast.broker.channels import Channels
from holdfast.broker.clients import KEEP_ALIVE_GRACE, Clients
from holdfast.broker.connection import Connection
from holdfast.broker.contracts import ContractIndex
from holdfast.broker.core import Core
from holdfast.broker.goodbyes import Goodbyes
from holdfast.broker.holdings import Holdings
from holdfast.broker.identifiers import forget
from holdfast.broker.link import Inbox
from holdfast.broker.recorder import Recorder
from holdfast.broker.retained import RetainedNames
from holdfast.broker.session import Session
from holdfast.broker.subscribing import Subscribing
from holdfast.broker.subscriptions import Subscription
from holdfast.broker.system_topics import SystemTopics
from holdfast.broker.terms import POLICIES
from holdfast.broker.timers import Timers
from holdfast.broker.watchlist import Watchlist
from holdfast.broker.work import (
    ASIDE_PER_TURN,
    BYTES,
    CONNECT,
    CONTROL_PER_TURN,
    DOUBTS_PER_TURN,
    ENDED_PER_TURN,
    INTERRUPTED_PER_TURN,
    PACKET,
    READ_AT_ONCE,
    READ_PER_TURN,
    REPLAYED_PER_TURN,
    Pieces,
    Works,
)
from holdfast.contract.model import ContractBook
from holdfast.errors import PeerError
from holdfast.mqtt.codec import decode, encode
from holdfast.mqtt.conventions import VIEW_PROPERTY, VIEW_TOPIC, ViewNote, format_view
from holdfast.mqtt.packets import Auth, Connect, Disconnect, Publish
from holdfast.mqtt.reasons import Reason
from holdfast.units import S

WATCHED_PER_TURN = 128
TOPICS_IDLE_NS = 30 * S
TOPICS_SWEEP_NS = S // 2
TOPICS_SWEPT_AT_ONCE = 4096
REFUSED_IN_WORDS_MAX = 64
SAID_CHARS_MAX = 200  # of a topic in a line of the log
SENT_AWAY = (Reason.USE_ANOTHER_SERVER, Reason.SERVER_MOVED)
CONNECT_PACKET = 1
SUBSCRIBE_PACKET = 8
TOO_MUCH_UNREAD = "of what waits for all clients most is this one's, which does not read it"
TOO_SLOW = "the client takes messages too slowly for their contracts"
TOO_LONG_AWAY = "the client was away, and more came for it than its contracts and its queue allow"
TOO_MUCH_OF_ALL = (
    "of what all sessions may hold together this one held most, and its contracts let nothing go"
)
MQTT_NAME = b"\x00\x04MQTT"
MQISDP_NAME = b"\x00\x06MQIsdp"

Event = Callable[[str, dict[str, object]], None]


def ignore(event: str, details: dict[str, object]) -> None:
    """The event sink of a broker that nobody listens to."""


class Broker:
    def __init__(
        self, book: ContractBook, *, policy: str = "edf", seed: int, now_ns: int, event: Event = ignore
    ) -> None:
        self.limits = book.limits
        self.contracts = ContractIndex(book)
        self.core = Core(policy=POLICIES[policy], seed=seed, limits=book.limits)
        self.core.board.now_ns = now_ns
        self.core.terms_for = self.contracts.terms_for
        self.retained_names = RetainedNames()
        self.core.retained_names = self.retained_names
        self.core.ask = self.ask
        self.core.refused = self.refuse_message
        self.core.work_left = READ_PER_TURN
        self.core.share_max = READ_AT_ONCE
        self.works = Works(self._stopped_by)
        self.policy = policy
        self.name = f"{seed & 0xFFFFFF:06x}"
        self.event = event
        # What a group puts in: who is let in, who left and why, what is to be remembered, which view this is.
        self.door: Callable[[Connection, Connect, int], bool] | None = None
        self.farewell: Callable[[Connection, Disconnect], None] | None = None
        self.recorder = Recorder()
        self.demanded: Callable[[Subscription], None] = lambda subscription: None  # asks more than contracts
        self.view: ViewNote | None = None
        self.referral: str | None = None  # where the clients of a broker that ends should go
        self.access = Access()
        self.holdings = Holdings(self.limits, self.core.board.room)
        self.connections: dict[Connection, None] = {}  # a set in the order of opening: runs repeat exactly
        self.connections_made = 0
        self.refusals: Counter[int] = Counter()
        self.timers = Timers()
        self.watched_connections: Watchlist[Connection] = Watchlist()
        self.watched_sessions: Watchlist[Session] = Watchlist()
        self.clients = Clients(self)
        self.goodbyes = Goodbyes(self)
        self.subscribing = Subscribing(self)
        self.channels = Channels(self)
        self.system_topics = SystemTopics(self, now_ns)
        self.draining = False
        self._held_before = False
        self.timers.at(now_ns + TOPICS_SWEEP_NS, self._forget_idle_topics)

    # Connections

    def open(self, inbox: Inbox | None, now_ns: int) -> Connection | None:
        """A socket was accepted; None when the broker takes no more.

        A few more than the limit are taken, so that they can be told: see Clients."""
        if self.draining or len(self.connections) >= self.limits.connections_max + REFUSED_IN_WORDS_MAX:
            self.count_refusal(Reason.QUOTA_EXCEEDED, "connections_max is reached")
            return None
        connection = Connection(self.core, inbox, now_ns)
        self.connections[connection] = None
        self.connections_made += 1
        self.access.opened(connection)
        self.watched_connections.watch(connection, now_ns + self.limits.connect_timeout_ns)
        return connection

    def lost(self, connection: Connection, now_ns: int) -> None:
        """The socket is gone without a word."""
        if connection not in self.connections:
            return
        if connection.session is not None:
            self.clients.close(connection, now_ns)
        else:
            self.goodbyes.heed(connection)
            self.forget(connection)

    def forget(self, connection: Connection) -> None:
        """The connection is over on our side; its link still writes what is ready, and closes."""
        self.connections.pop(connection, None)
        self.watched_connections.forget(connection)
        connection.closed()
        self.access.left(connection)

    def found_out(self, connection: Connection, packet: Connect, user: str | PeerError, now_ns: int) -> None:
        """It took a while to know who a client is, or that it is not let in: its CONNECT is answered."""
        if connection.closing:
            return
        try:
            if isinstance(user, PeerError):
                self.clients.refuse(connection, packet.version, user, packet)
            else:
                connection.user = user
                self.clients.identified(connection, packet, now_ns)
        except Exception as error:
            self.mistaken(connection, error, now_ns)
        if not connection.closing:
            connection.resume()

    # Groups

    def view_for(self, connection: Connection) -> list[tuple[str, str]]:
        """The user property that tells a client which view this is, if it wants to know."""
        if self.view is None or connection.state is None or not connection.state.knows_groups:
            return []
        return [(VIEW_PROPERTY, format_view(self.view))]

    def elsewhere(self, reason: int) -> str | None:
        """Where a client that is sent away should go."""
        if self.referral is not None and reason in SENT_AWAY:
            return self.referral
        if reason not in SENT_AWAY or self.view is None or not self.view.places or self.view.from_primary:
            return None
        return self.view.places[0].address

    def announce(self, view: ViewNote) -> None:
        """The view changed: whoever wants to know is told."""
        self.view = view
        packet = encode(Publish(topic=VIEW_TOPIC, payload=format_view(view).encode()), 5)
        for connection in self.connections:
            if connection.state is not None and connection.state.knows_groups:
                connection.send(packet)

    # Work

    def turn(self, now_ns: int, wall_ns: int) -> bool:
        """Does a bounded piece of everything that waits; says whether more waits."""
        core = self.core
        core.board.begin_turn(now_ns, wall_ns, DOUBTS_PER_TURN)
        self.works.ended_left = ENDED_PER_TURN
        if self.works.interrupted:
            self.works.turn(INTERRUPTED_PER_TURN, now_ns)
        restless = core.restless
        if restless:
            if core.aside:
                self._hear_aside(now_ns)
            if core.unanswered:
                self.subscribing.answer(now_ns)
            if core.ended:
                self.subscribing.close_ended()
        core.work_left = READ_PER_TURN
        core.deliver(self.limits.slice_jobs_max)
        if self.clients.given:
            self.clients.tell_given(now_ns)
        if restless:
            if core.ended:
                self.subscribing.forget_ended()
            if core.control:
                self.hear(now_ns)
        self._look_around(now_ns)
        replays, channels = self.subscribing.replays, self.channels
        more = bool(replays.order) and replays.turn(REPLAYED_PER_TURN)
        if channels.listeners or channels.wants or core.heard:
            more |= channels.turn(now_ns)
        if core.restless:
            self._settle(now_ns)
        return more or core.work_waiting or bool(self.clients.given or self.works.interrupted)

    def _settle(self, now_ns: int) -> None:
        """What came of a turn, for whoever is to be told, held back or cut off."""
        core = self.core
        if core.known_again:
            core.acknowledge_repeated()
        if core.board.held:
            self._release_held(now_ns)
        if core.strained:
            self._relieve(now_ns)
            self._cut_off(now_ns)
        if core.slowed:
            self._slow_down()

    def deliver(self, now_ns: int, wall_ns: int) -> bool:
        """Messages alone: a slice of those that wait; says whether more do. None before a SUBACK that is due:
        that is for the next turn."""
        core = self.core
        if core.unanswered:
            return True
        core.board.now_ns = now_ns
        core.board.wall_ns = wall_ns
        if core.ended:
            self.subscribing.close_ended()
        return core.deliver(self.limits.slice_jobs_max) > 0

    def ask(self, connection: Connection) -> None:
        """As much of a SUBSCRIBE or UNSUBSCRIBE as its connection's share allows, where it is read."""
        core = self.core
        units, left = core.share_max - connection.spent, core.work_left
        if left < units:
            units = left
        try:
            spent = self.works.begin(self._filters(connection), units, connection)
        except Exception as error:
            self._stopped_by(connection, error, core.board.now_ns)
            return
        connection.spent += spent
        core.work_left -= spent

    def _hear_aside(self, now_ns: int) -> None:
        """Some of those that had to wait: beyond their share, or behind something else."""
        core = self.core
        core.work_left = ASIDE_PER_TURN
        while core.aside and core.work_left > 0:
            connection = core.aside.popleft()
            if connection.control is None:
                connection.rested()
            elif not connection.closing:
                connection.spent = 0
                self.ask(connection)

    def hear(self, now_ns: int) -> None:
        """Some of what clients ask that is neither a message nor about filters."""
        control, units = self.core.control, CONTROL_PER_TURN
        while control and units > 0:
            connection = control.popleft()
            units -= self._cost(connection)
            self._control(connection, now_ns)

    def _cost(self, connection: Connection) -> int:
        control = connection.control
        if control is None:
            return PACKET
        known = connection.session is not None
        return (PACKET if known else CONNECT) + len(control[1]) // BYTES

    def publish(self, packet: Publish, whose: Session | None = None) -> int:
        """Publishes for the broker itself, or the will of a session. Returns why it is refused, or 0."""
        props = bytes(properties_of(packet))
        expiry = packet.properties.message_expiry
        return self.core.publish(
            packet.topic.encode(),
            packet.payload,
            qos=packet.qos,
            retain=packet.retain,
            props=props,
            expiry_at=0 if expiry is None else 1,
            expiry_s=expiry or 0,
            origin=0 if whose is None else whose.serial,
            account=0 if whose is None else whose.account,
        )

    def journal_fails(self) -> None:
        """It takes nothing: who waits for it is refused, and may send a QoS 2 message again as a new one."""
        for serial, packet_id in self.core.journal_fails():
            session = self.clients.by_serial.get(serial)
            if session is not None:
                forget(session, packet_id)

    def reload(self, book: ContractBook) -> None:
        """New contracts: every topic looks up its own again; limits of running parts stay as they are."""
        self.contracts = ContractIndex(book, self.contracts)
        self.core.terms_for = self.contracts.terms_for
        self.core.topics.forget_everything()

    def drain(self, now_ns: int) -> None:
        """Dispatches what waits, then says goodbye to every client that has not said it first."""
        self.draining = True
        for connection in [each for each in self.connections if each.goodbye() is not None]:
            self.lost(connection, now_ns)
        while self.core.jobs_waiting:
            self.core.deliver(self.limits.slice_jobs_max)
        self.clients.tell_given(now_ns)
        for connection in list(self.connections):
            if connection.session is not None:
                moved = self.referral is not None
                reason = Reason.SERVER_MOVED if moved else Reason.SERVER_SHUTTING_DOWN
                self.clients.hand_on(connection, now_ns, reason, "the broker is shutting down")
            else:
                self.forget(connection)

    # Control packets

    def _control(self, connection: Connection, now_ns: int) -> None:
        if connection.closing:
            return
        try:
            if connection.fault is not None:
                error = PeerError(*connection.fault)
                if connection.control is not None and connection.session is None:
                    answer_connect(self.clients, connection, connection.control[1], error)
                raise error
            control = connection.control
            assert control is not None
            answered = self._handle(connection, control[0], control[1], now_ns)
        except Exception as error:
            self._stopped_by(connection, error, now_ns)
            return
        if answered and not connection.closing:
            connection.resume()

    def _filters(self, connection: Connection) -> Pieces:
        """SUBSCRIBE and UNSUBSCRIBE."""
        if connection.fault is not None:
            raise PeerError(*connection.fault)
        control = connection.control
        assert control is not None
        first_byte, body = control
        subscribes = first_byte >> 4 == SUBSCRIBE_PACKET
        handle = self.subscribing.subscribe if subscribes else self.subscribing.unsubscribe
        return handle(connection, first_byte, body)

    def _handle(self, connection: Connection, first_byte: int, body: bytes, now_ns: int) -> bool:
        """Says whether the packet is dealt with; if not, somebody else resumes the connection."""
        if connection.session is None and connection.warm is None:
            packet = decode_connect(self.clients, connection, first_byte, body)
            return self.clients.connect(connection, packet, now_ns)
        if first_byte >> 4 == CONNECT_PACKET:
            raise PeerError(Reason.PROTOCOL_ERROR, "a connection has one CONNECT")
        asked = decode(first_byte, body, connection.version, self.limits.user_properties_max)
        if isinstance(asked, Disconnect) and connection.session is None:
            self.lost(connection, now_ns)
        elif isinstance(asked, Disconnect):
            self.clients.disconnect(connection, asked, now_ns)
        elif isinstance(asked, Auth):
            raise PeerError(Reason.PROTOCOL_ERROR, "no authentication method was agreed at CONNECT")
        else:
            raise PeerError(Reason.PROTOCOL_ERROR, f"a client does not send {type(asked).__name__.upper()}")
        return True

    def fail(self, connection: Connection, error: PeerError, now_ns: int) -> None:
        """The peer broke a rule: tell it, close, and let its will go out."""
        if connection.closing:
            return
        self.count_refusal(error.reason, error.text, self.access.known_of(connection, None))
        if connection.session is None:
            self.forget(connection)
        else:
            self.clients.close(connection, now_ns, error.reason, error.text)

    def _stopped_by(self, connection: Connection, error: Exception, now_ns: int) -> None:
        """Work for a connection that cannot go on."""
        if isinstance(error, PeerError):
            self.fail(connection, error, now_ns)
        else:
            self.mistaken(connection, error, now_ns)

    def mistaken(self, connection: Connection, error: Exception, now_ns: int) -> None:
        """A mistake of ours must not cost more than the one connection it happened on."""
        where = "".join(traceback.format_tb(error.__traceback__))
        self.event("mistake", {"what": repr(error), "where": where})
        self.fail(connection, PeerError(Reason.UNSPECIFIED_ERROR, "the broker made a mistake"), now_ns)

    def count_refusal(self, reason: int, text: str, whose: Mapping[str, object] | None = None) -> None:
        """`whose` says who was refused, as far as that is known."""
        self.refusals[reason] += 1
        self.event("refused", {"reason": f"0x{reason:02X}", "why": text, **(whose or {})})

    def refuse_message(self, connection: Connection, reason: int, text: str, topic: bytes) -> None:
        """A PUBLISH was not taken, or only not retained."""
        whose = {**self.access.known_of(connection, None), "topic": topic.decode()[:SAID_CHARS_MAX]}
        self.count_refusal(reason, text, whose)

    # Time

    @property
    def next_ns(self) -> int | None:
        """When the next turn is due though nothing comes in."""
        times = (
            self.timers.next_ns,
            self.watched_connections.next_ns,
            self.watched_sessions.next_ns,
            self.core.later_ns,
            self.core.board.discards_ns,
            self.channels.due_ns,
        )
        return min([time for time in times if time is not None], default=None)

    def _look_around(self, now_ns: int) -> None:
        if self.timers.soonest_ns <= now_ns:
            self.timers.run(now_ns)
        if self.watched_connections.soonest_ns <= now_ns:
            for connection in self.watched_connections.due(now_ns, WATCHED_PER_TURN):
                self.watch(connection, now_ns)
        if self.watched_sessions.soonest_ns <= now_ns:
            for session in self.watched_sessions.due(now_ns, WATCHED_PER_TURN):
                self.clients.look_at(session, now_ns)

    def watch(self, connection: Connection, now_ns: int) -> None:
        """Ends a connection whose client is silent for too long, or never finishes a packet."""
        if connection.session is None and connection.warm is None:
            self.count_refusal(Reason.KEEP_ALIVE_TIMEOUT, "no CONNECT in time")
            self.forget(connection)
            return
        held = connection.slowed_ns or connection.tired or connection.holds or connection.sated_at
        if held or connection.control is not None:
            # It waits for us: what it sent meanwhile is not looked at.
            self.watched_connections.watch(connection, max(connection.slowed_ns, now_ns + S))
            return
        packet_timeout_ns = self.limits.packet_timeout_ns
        due_ns = (connection.unfinished_ns or now_ns) + packet_timeout_ns
        if due_ns <= now_ns:
            self.fail(
                connection,
                PeerError(Reason.KEEP_ALIVE_TIMEOUT, "a packet was begun and not finished"),
                now_ns,
            )
            return
        if connection.state.keep_alive_ns:
            numerator, denominator = KEEP_ALIVE_GRACE
            silent_ns = connection.heard_ns + connection.state.keep_alive_ns * numerator // denominator
            if silent_ns <= now_ns:
                self.fail(
                    connection,
                    PeerError(Reason.KEEP_ALIVE_TIMEOUT, "no packet within the keep alive"),
                    now_ns,
                )
                return
            due_ns = min(due_ns, silent_ns)
        self.watched_connections.watch(connection, due_ns)

    def _forget_idle_topics(self, now_ns: int) -> None:
        self.core.topics.forget_idle(now_ns - TOPICS_IDLE_NS, TOPICS_SWEPT_AT_ONCE)
        self.timers.at(now_ns + TOPICS_SWEEP_NS, self._forget_idle_topics)

    # Publishers that are faster than they may be

    def _slow_down(self) -> None:
        slowed, self.core.slowed = self.core.slowed, []
        for connection in slowed:
            self.timers.at(connection.slowed_ns, self._go_on, connection)

    def _go_on(self, connection: Connection, now_ns: int) -> None:
        if not connection.closing:
            connection.go_on()

    # Subscribers that cannot keep up

    def _release_held(self, now_ns: int) -> None:
        """A subscriber may hold its publishers back for a while, not for good."""
        soon_ns = self.limits.slow_max_ns
        self.core.board.held = [
            session
            for session in self.core.board.held
            if now_ns - session.held_since_ns < soon_ns or session.reconsider(now_ns)
        ]
        if self.core.board.held and not self._held_before:
            self._held_before = True
            self.timers.at(now_ns + soon_ns, self._look_again)

    def _look_again(self, now_ns: int) -> None:
        """Only wakes the broker, so that a turn comes."""
        self._held_before = False

    def _relieve(self, now_ns: int) -> None:
        """A session's bounds are reached and its contracts allow no more losses: it ends, loudly."""
        sessions, self.core.board.overloaded = self.core.board.overloaded, []
        for session, queued, shared in sessions:
            if session.state.ended:
                continue
            late = TOO_LONG_AWAY if session.link is None else TOO_SLOW
            text = TOO_MUCH_OF_ALL if shared else late
            self.event("overloaded", {"client": session.client_id, "queued": queued, "why": text})
            self.clients.end_now(session, now_ns, Reason.QUOTA_EXCEEDED, text)

    def _cut_off(self, now_ns: int) -> None:
        """Too much waits to be written to clients: those for whom most waits are not written to any more."""
        outputs = self.core.board.outputs
        choked, outputs.choked = outputs.choked, []
        for connection in choked:
            assert isinstance(connection, Connection)
            connection.cut_off()
            self.fail(connection, PeerError(Reason.QUOTA_EXCEEDED, TOO_MUCH_UNREAD), now_ns)


def decode_connect(clients: Clients, connection: Connection, first_byte: int, body: bytes) -> Connect:
    """CONNECT, or the answer that its sender can read."""
    try:
        packet = decode(
            first_byte, body, 5, clients.broker.limits.user_properties_max
        )  # CONNECT tells its version itself
    except PeerError as error:
        answer_connect(clients, connection, body, error)
        raise
    assert isinstance(packet, Connect)
    return packet


def answer_connect(clients: Clients, connection: Connection, body: bytes, error: PeerError) -> None:
    """Refuses what should have been a CONNECT in words, if it says in which version."""
    if body.startswith(MQTT_NAME) and body[len(MQTT_NAME) :] >= b"\x05":
        clients.refuse(connection, 5, error)
    elif body.startswith((MQTT_NAME, MQISDP_NAME)) and error.reason == Reason.UNSUPPORTED_PROTOCOL_VERSION:
        clients.refuse(connection, 4, error)


def properties_of(packet: Publish) -> bytes:
    """The properties as PUBLISH carries them, without their length, the expiry first."""
    expiry = packet.properties.message_expiry
    head = b"" if expiry is None else b"\x02" + expiry.to_bytes(4, "big")
    packet.properties.message_expiry = None
    encoded = encode(Publish(topic="t", payload=b"", properties=packet.properties), 5)
    packet.properties.message_expiry = expiry
    at = 1
    while encoded[at] & 0x80:
        at += 1
    at += 1 + 3  # the remaining length's last byte; the topic's length and "t"
    while encoded[at] & 0x80:
        at += 1
    return head + encoded[at + 1 :]
