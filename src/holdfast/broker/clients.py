"""Clients come, go, take over and expire: CONNECT, DISCONNECT, sessions and wills.

Laws:
- a client identifier of a user has at most one connection; a newcomer takes over, and the one before is told
  (0x8E)
- a session lives while connected and for its expiry interval after; then nothing of it is left
- a will is published exactly once, at its delay or at the session's end, whichever is first, unless the
  client left with DISCONNECT 0x00 or came back in time; not at all if its user may not publish it then
- whoever may go on with a session hears that its will was published behind the message itself, so that a
  crash between the two costs no will
- a session is its user's: under the same client identifier others have sessions of their own
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from holdfast.broker.connection import Connection
from holdfast.broker.refusals import refusal_of
from holdfast.broker.rules import PUBLISHING_ALL, Grant, Who, allows, why_not_published
from holdfast.broker.session import Session
from holdfast.errors import PeerError
from holdfast.mqtt.codec import encode
from holdfast.mqtt.conventions import RESERVED_TOPICS, SERVES_CHANNELS, SERVES_PROPERTY, VIEW_PROPERTY
from holdfast.mqtt.packets import Connack, Connect, Disconnect, Properties, Publish, Will
from holdfast.mqtt.reasons import Reason, connect_return
from holdfast.units import S

if TYPE_CHECKING:
    from holdfast.broker.broker import Broker

NEVER_S = 0xFFFFFFFF
WINDOW_DEFAULT = 65_535
KEEP_ALIVE_GRACE = 3, 2  # MQTT gives one and a half times the keep alive
REASON_CHARS_MAX = 1000  # of a reason string: what it quotes from the peer may be as long as a packet
QUOTED_CHARS_MAX = 100
NO_ROOM = "sessions, their wills and subscriptions have no room for more of this client's"
ASSIGNED = "hf-"  # how client identifiers begin that a broker gave
GIVEN_NS = 1 * S  # so long it may stay untold that a will was published, while messages wait
CLIENT_ID_BYTES_ANSWERED_MAX = 60_000  # a longer client identifier gets no response information of its own


class ConnectionState(Struct):
    """What plain Python keeps of an accepted connection."""

    keep_alive_ns: int
    session_expiry_s: int
    problem_info: bool
    will: Will | None
    knows_groups: bool = False  # is told of views
    serves: bool = False  # serves channels


class SessionState(Struct):
    """What plain Python keeps of a session between connections."""

    expires_ns: int | None = None  # set while disconnected
    will: Will | None = None  # to be published at will_ns
    will_ns: int = 0
    ended: bool = False
    expiry_s: int = 0  # how long it lasts without a connection
    last_will: Will | None = None  # what is published should the connection be lost
    user: str = ""  # whose it is
    grant: Grant | None = None  # what its last login gave to it alone
    accounts: tuple[Any, ...] = ()  # whose quotas it counts against: holdfast.security has them


def key_of(user: str, client_id: str) -> str:
    """The name of a session. No client identifier has a NUL, so no two users have the same name for one."""
    return f"{user}\0{client_id}" if user else client_id


def who_of(session: Session) -> Who:
    return Who(session.state.user, session.client_id, session.state.grant)


class Clients:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.sessions: dict[str, Session] = {}  # by `key_of`
        self.by_serial: dict[int, Session] = {}
        self.given: list[Session] = []  # their wills were published, and nobody was told yet
        self._given_ns = 0  # since when, the first of them
        self._serial = 0
        self._short = broker.limits.client_id_bytes_max // 4  # so many characters are never too many bytes

    # CONNECT

    def connect(self, connection: Connection, packet: Connect, now_ns: int) -> bool:
        """Says whether it is dealt with; if not, it is still being found out who the client is."""
        if packet.version == 5 and packet.properties.max_packet_size is not None:
            connection.packet_max = packet.properties.max_packet_size
        try:
            if packet.will is not None or len(packet.client_id) > self._short:
                self._check_lengths(packet)
            known = self.broker.access.identify(connection, packet, now_ns)
        except PeerError as error:
            self.refuse(connection, packet.version, error, packet)
            return True
        if known:
            self.identified(connection, packet, now_ns)
        return known

    def identified(self, connection: Connection, packet: Connect, now_ns: int) -> None:
        """It is known who the client is."""
        try:
            if self.broker.door is not None and self.broker.door(connection, packet, now_ns):
                return
            client_id, assigned = self._identify(packet)
            who = self.broker.access.who(connection, client_id)
            self.check(connection, packet, who, assigned=assigned)
        except PeerError as error:
            self.refuse(connection, packet.version, error, packet)
            return
        state = self.connection_state(packet)
        session, present = self._session_for(connection, who, packet, now_ns)
        self.began(session, connection)
        connection.state = state
        connection.bind(session, packet.version)
        session.state.expiry_s = state.session_expiry_s
        if state.will is not session.state.last_will:
            self.broker.holdings.keep_will(session, state.will)
        self.broker.recorder.session(session)
        if packet.version == 5:
            connection.allow_aliases(packet.properties.topic_alias_max or 0)
        if not self._welcome(connection, packet, present, client_id if assigned else None):
            self.close(connection, now_ns, Reason.PACKET_TOO_LARGE, "CONNACK is larger than the client takes")
            return
        window = packet.properties.receive_max if packet.version == 5 else None
        self._attach(session, connection, window)
        self.broker.channels.attached(connection, session)
        self.broker.watch(connection, now_ns)
        self.broker.watched_sessions.forget(session)

    def _check_lengths(self, packet: Connect) -> None:
        """What nobody needs so long, from whomever."""
        limits = self.broker.limits
        if len(packet.client_id.encode()) > limits.client_id_bytes_max:
            raise PeerError(
                Reason.CLIENT_ID_NOT_VALID,
                f"a client identifier has up to {limits.client_id_bytes_max} bytes",
            )
        if packet.will is not None and len(packet.will.topic.encode()) > limits.topic_bytes_max:
            raise PeerError(
                Reason.TOPIC_NAME_INVALID, f"a topic name has up to {limits.topic_bytes_max} bytes"
            )

    def _identify(self, packet: Connect) -> tuple[str, bool]:
        if packet.client_id:
            return packet.client_id, False
        if packet.version < 5 and not packet.clean_start:
            raise PeerError(Reason.CLIENT_ID_NOT_VALID, "an empty client identifier needs a clean session")
        if packet.version == 3:
            raise PeerError(Reason.CLIENT_ID_NOT_VALID, "MQTT 3.1 needs a client identifier")
        self._serial += 1
        return f"{ASSIGNED}{self.broker.name}-{self._serial}", True

    def check(self, connection: Connection, packet: Connect, who: Who, *, assigned: bool = False) -> None:
        if packet.properties.auth_method is not None:
            raise PeerError(
                Reason.BAD_AUTHENTICATION_METHOD,
                f"authentication method {packet.properties.auth_method!r} is not offered here; use none",
            )
        if packet.will is not None and packet.will.topic.startswith(RESERVED_TOPICS):
            raise PeerError(
                Reason.NOT_AUTHORIZED, f"the will's topic {packet.will.topic!r} is the broker's own"
            )
        access = self.broker.access
        if access.ruled and not assigned:
            self._check_identifier(who)
        limits = self.broker.limits
        if packet.will is not None and packet.will.topic.count("/") >= limits.topic_levels_max:
            raise PeerError(
                Reason.TOPIC_NAME_INVALID, f"a topic name has up to {limits.topic_levels_max} levels"
            )
        self._check_rights(who, packet)
        key = key_of(who.user, who.client_id)
        session = self.sessions.get(key)
        anew = session is None
        access.check_client(connection, who.client_id, anew=anew)
        if len(self.broker.connections) > limits.connections_max:
            raise PeerError(
                Reason.QUOTA_EXCEEDED, f"the broker takes up to {limits.connections_max} connections"
            )
        if anew and len(self.sessions) >= limits.sessions_max:
            raise PeerError(Reason.QUOTA_EXCEEDED, f"the broker keeps up to {limits.sessions_max} sessions")
        holdings = self.broker.holdings
        if not holdings.ample():
            payer = access.payer(connection, who.user)
            if not holdings.has_room(session, key, packet, payer):
                raise PeerError(Reason.QUOTA_EXCEEDED, NO_ROOM)

    def _check_identifier(self, who: Who) -> None:
        given = who.client_id.startswith(ASSIGNED) and key_of(who.user, who.client_id) in self.sessions
        if not given and not self.broker.access.may_connect(who.user, who.client_id):
            raise PeerError(
                Reason.CLIENT_ID_NOT_VALID,
                f"no rule gives the client identifier {who.client_id[:QUOTED_CHARS_MAX]!r} to this user",
            )

    def _check_rights(self, who: Who, packet: Connect) -> None:
        access, will = self.broker.access, packet.will
        rights = PUBLISHING_ALL if will is None else access.publishing(who, will.topic.encode())
        if will is not None and not allows(rights, will.qos, will.retain):
            text = f"{why_not_published(rights)} its will to {will.topic!r} like that"
            raise PeerError(Reason.NOT_AUTHORIZED, text)
        if serves_channels(packet) and not access.may_serve(who.user):
            raise PeerError(Reason.NOT_AUTHORIZED, "no rule lets this user serve channels")

    def connection_state(self, packet: Connect) -> ConnectionState:
        limits = self.broker.limits
        if packet.version == 5:
            expiry_s = packet.properties.session_expiry or 0
        else:
            expiry_s = 0 if packet.clean_start else NEVER_S
        if limits.session_expiry_max_ns is not None:
            expiry_s = min(expiry_s, limits.session_expiry_max_ns // S)
        keep_alive_s = packet.keep_alive
        if limits.keep_alive_max_s < 65_535 and not 0 < keep_alive_s <= limits.keep_alive_max_s:
            keep_alive_s = limits.keep_alive_max_s
        told = packet.properties.user
        return ConnectionState(
            keep_alive_ns=keep_alive_s * S,
            session_expiry_s=expiry_s,
            problem_info=packet.properties.request_problem_info is not False,
            will=packet.will,
            knows_groups=bool(told) and any(name == VIEW_PROPERTY for name, _ in told),
            serves=serves_channels(packet),
        )

    def admit(self, connection: Connection, packet: Connect, now_ns: int) -> None:
        """A connection that was kept for its client becomes its session's, as if it had come now."""
        try:
            who = self.broker.access.who(connection, packet.client_id)
            self._check_identifier(who)
            self._check_rights(who, packet)
        except PeerError as error:
            self.broker.fail(connection, error, now_ns)
            return
        state = self.connection_state(packet)
        goes_on = structs.replace(packet, clean_start=False)
        session, _ = self._session_for(connection, who, goes_on, now_ns)
        self.began(session, connection)
        connection.state = state
        session.state.expiry_s = state.session_expiry_s
        if state.will is not session.state.last_will:
            self.broker.holdings.keep_will(session, state.will)
        self.broker.recorder.session(session)
        connection.allow_aliases(packet.properties.topic_alias_max or 0)
        self._attach(session, connection, packet.properties.receive_max)
        self.broker.channels.attached(connection, session)
        connection.admit(session)
        self.broker.watch(connection, now_ns)
        self.broker.watched_sessions.forget(session)

    def _attach(self, session: Session, connection: Connection, window: int | None) -> None:
        """Whoever takes over knows what the client has missed before it gets anything newer."""
        if session.missed:
            self.broker.core.tell_the_rest()
        session.attach(connection, window or WINDOW_DEFAULT)
        self.broker.subscribing.replays.attached(session)

    def _session_for(
        self, connection: Connection, who: Who, packet: Connect, now_ns: int
    ) -> tuple[Session, bool]:
        """The session this client goes on with, and whether it was there before."""
        connection.permit = self.broker.access.permit(who)
        key = key_of(who.user, who.client_id)
        session = self.sessions.get(key)
        if session is not None and session.link is not None:
            self.close(
                session.link, now_ns, Reason.SESSION_TAKEN_OVER, "another connection uses this client id"
            )
            session = self.sessions.get(key)  # gone if it was to end with its connection
        if session is not None and packet.clean_start:
            self.end(session, now_ns)
            session = None
        if session is not None:
            if session.state.will is not None and session.state.will_ns <= now_ns:
                self._give_will(session, now_ns)
            session.state.expires_ns = None
            session.state.will = None
            session.state.grant = who.grant
            self.broker.subscribing.recheck(session)
            return session, True
        self._serial += 1
        return self.make_session(who.client_id, self._serial, who.user, who.grant), False

    def began(self, session: Session, connection: Connection | None) -> None:
        """The session is of that connection, if it is here: who pays for it may be another than before."""
        access = self.broker.access
        access.began(session, connection)
        self.broker.holdings.charge(session, access.payer(connection, session.state.user))

    def make_session(self, client_id: str, serial: int, user: str, grant: Grant | None = None) -> Session:
        """A new session, known by its user and its client identifier from now on."""
        if serial > self._serial:
            self._serial = serial
        limits = self.broker.limits
        session = Session(
            client_id,
            serial,
            self.broker.core.board,
            key=key_of(user, client_id),
            queue_messages_max=limits.queue_messages_max,
            queue_bytes_max=limits.queue_bytes_max,
        )
        session.state = SessionState(user=user, grant=grant)
        self.broker.holdings.begin(session)
        self.sessions[session.key] = self.by_serial[serial] = session
        return session

    def _welcome(self, connection: Connection, packet: Connect, present: bool, assigned: str | None) -> bool:
        if packet.version < 5:
            return connection.send(
                encode(Connack(session_present=present and packet.version == 4), packet.version)
            )
        limits = self.broker.limits
        state: ConnectionState = connection.state
        properties = Properties(
            receive_max=limits.receive_max,
            max_packet_size=connection.packet_bytes_max,
            topic_alias_max=limits.topic_alias_max or None,
            assigned_client_id=assigned,
            user=self.broker.view_for(connection),
        )
        if state.session_expiry_s != (packet.properties.session_expiry or 0):
            properties.session_expiry = state.session_expiry_s
        if state.keep_alive_ns != packet.keep_alive * S:
            properties.server_keep_alive = state.keep_alive_ns // S
        client_id = connection.session.client_id if connection.session else ""
        if (
            packet.properties.request_response_info
            and len(client_id.encode()) <= CLIENT_ID_BYTES_ANSWERED_MAX
        ):
            properties.response_info = f"response/{client_id}"
        return connection.send(encode(Connack(session_present=present, properties=properties), 5))

    def refuse(
        self, connection: Connection, version: int, error: PeerError, packet: Connect | None = None
    ) -> None:
        """Answers a CONNECT that cannot be accepted, and closes."""
        if version == 5:
            words = Properties(
                reason_string=error.text[:REASON_CHARS_MAX],
                server_reference=self.broker.elsewhere(error.reason),
            )
            if not connection.send(encode(Connack(reason=error.reason, properties=words), 5)):
                connection.send(encode(Connack(reason=error.reason), 5))
        else:
            connection.send(encode(Connack(reason=connect_return(error.reason)), 4))
        whose = self.broker.access.known_of(connection, packet)
        self.broker.count_refusal(error.reason, error.text, whose)
        self.broker.forget(connection)

    # The end of a connection

    def disconnect(self, connection: Connection, packet: Disconnect, now_ns: int) -> None:
        """The client says goodbye."""
        self.broker.goodbyes.take(connection, packet)
        if self.broker.farewell is not None:
            self.broker.farewell(connection, packet)
        self._hang_up(connection, now_ns)

    def hand_on(self, connection: Connection, now_ns: int, reason: int, text: str) -> None:
        """This broker ends: whoever goes on with its sessions knows their wills, and publishes those of
        clients that do not come."""
        session, state = connection.session, connection.state
        assert session is not None
        state.will, state.session_expiry_s = session.state.last_will, session.state.expiry_s
        self._hang_up(connection, now_ns, reason, text, publish=False)

    def close(self, connection: Connection, now_ns: int, reason: int | None = None, text: str = "") -> None:
        """Ends an accepted connection from our side, telling the client why if there is a reason to."""
        self.broker.goodbyes.heed(connection)
        self._hang_up(connection, now_ns, reason, text)

    def _hang_up(
        self,
        connection: Connection,
        now_ns: int,
        reason: int | None = None,
        text: str = "",
        *,
        publish: bool = True,
    ) -> None:
        """Whatever goodbye there is was heeded."""
        state: ConnectionState = connection.state
        if reason is not None and connection.version == 5:
            words = Properties(
                reason_string=text[:REASON_CHARS_MAX] or None,
                server_reference=self.broker.elsewhere(reason),
                user=self.broker.view_for(connection),
            )
            if not connection.send(encode(Disconnect(reason, words), 5)):
                connection.send(encode(Disconnect(reason), 5))
        session = connection.session
        if session is not None:
            session.detach(publish and state.session_expiry_s == 0)  # while it is known what was not written
        self.broker.forget(connection)
        if session is None:
            return
        self.broker.channels.detached(session)
        self.leave(session, state.session_expiry_s, state.will, now_ns, publish=publish)

    def leave(
        self, session: Session, expiry_s: int, will: Will | None, now_ns: int, *, publish: bool = True
    ) -> None:
        """The session's client left: this is its will now, and so long it may stay away."""
        state: SessionState = session.state
        state.will = will
        if (expiry_s, will) != (state.expiry_s, state.last_will):
            state.expiry_s = expiry_s
            self.broker.holdings.keep_will(session, will)
            self.broker.recorder.session(session)
        if not publish:
            state.will = None
            return
        if expiry_s == 0:
            self.end(session, now_ns)
            return
        state.expires_ns = None if expiry_s == NEVER_S else now_ns + expiry_s * S
        if will is not None:
            state.will_ns = now_ns + (will.properties.will_delay or 0) * S
        self.look_at(session, now_ns)

    def all_away(self, now_ns: int, grace_s: int) -> None:
        """This broker took over: every session awaits its client, a short while at least.

        Until then it also keeps what a contract promises with QoS 0: the client was connected a moment ago.
        """
        for session in list(self.sessions.values()):
            state: SessionState = session.state
            if session.link is not None:
                continue
            session.awaited_ns = now_ns + grace_s * S
            if state.expiry_s != NEVER_S:
                state.expires_ns = now_ns + max(state.expiry_s, grace_s) * S
            if state.last_will is not None:
                delay_s = max(state.last_will.properties.will_delay or 0, grace_s)
                state.will, state.will_ns = state.last_will, now_ns + delay_s * S
            self.look_at(session, now_ns)

    def none_away(self) -> None:
        """Another broker serves, and decides when sessions end and wills are due."""
        for session in self.sessions.values():
            session.state.expires_ns = session.state.will = None
            self.broker.watched_sessions.forget(session)

    def look_at(self, session: Session, now_ns: int) -> None:
        """A session without a connection: what is due now, and when to look again."""
        state: SessionState = session.state
        if state.ended or session.link is not None:
            return
        if state.will is not None and state.will_ns <= now_ns:
            self._give_will(session, now_ns)
        if state.expires_ns is not None and state.expires_ns <= now_ns:
            self.end(session, now_ns)
            return
        times = [
            time for time in (state.expires_ns, state.will_ns if state.will else None) if time is not None
        ]
        if times:
            self.broker.watched_sessions.watch(session, min(times))

    def end_now(self, session: Session, now_ns: int, reason: int, text: str) -> None:
        """More waits for the session than may: it ends, and its client is told why."""
        self.broker.refusals[reason] += 1
        session.give_up(at_once=False)
        if session.link is not None:
            session.link.state.session_expiry_s = 0
            self.close(session.link, now_ns, reason, text)
        else:
            self.end(session, now_ns)

    def end(self, session: Session, now_ns: int) -> None:
        """The session is over: its will is due now, and nothing of it stays."""
        if session.state.will is not None:
            self._publish_will(session)
        session.state.ended = True
        self.broker.watched_sessions.forget(session)
        self.broker.goodbyes.forget(session.key)
        session.over = True
        self.broker.subscribing.drop_all(session)
        self.broker.channels.ended(session)
        self.broker.recorder.ended(session)
        self.broker.access.ended(session)
        self.broker.holdings.end(session)
        self.by_serial.pop(session.serial, None)
        if self.sessions.get(session.key) is session:
            del self.sessions[session.key]

    def _give_will(self, session: Session, now_ns: int) -> None:
        """Its will is due, and the session goes on without one."""
        self._publish_will(session)
        self.broker.holdings.keep_will(session, None)
        if not self.given:
            self._given_ns = now_ns
        self.given.append(session)

    def tell_given(self, now_ns: int) -> None:
        """Records that wills were published, once no message waits before its dispatch and its copy."""
        if self.broker.core.jobs_waiting and now_ns < self._given_ns + GIVEN_NS:
            return
        given, self.given = self.given, []
        for session in given:
            if not session.state.ended:
                self.broker.recorder.session(session)

    def _publish_will(self, session: Session) -> None:
        will: Will = session.state.will
        session.state.will = None
        rights = self.broker.access.publishing(who_of(session), will.topic.encode())
        if allows(rights, will.qos, will.retain):
            why = self.broker.publish(will_as_publish(will), session)
            if not why:
                return
            reason, text = refusal_of(why)
        else:
            reason, text = Reason.NOT_AUTHORIZED, f"{why_not_published(rights)} a will any more"
        self.broker.core.messages_refused += 1
        self.broker.count_refusal(reason, text, {"user": session.state.user, "client": session.client_id})


def serves_channels(packet: Connect) -> bool:
    return (SERVES_PROPERTY, SERVES_CHANNELS) in packet.properties.user


def will_as_publish(will: Will) -> Publish:
    properties = Properties(
        payload_format=will.properties.payload_format,
        message_expiry=will.properties.message_expiry,
        content_type=will.properties.content_type,
        response_topic=will.properties.response_topic,
        correlation_data=will.properties.correlation_data,
        user=will.properties.user,
    )
    return Publish(
        topic=will.topic,
        payload=will.payload,
        qos=will.qos,
        retain=will.retain,
        packet_id=1 if will.qos else 0,
        properties=properties,
    )
