# Packet identifiers of QoS 2 across lives of a session: those that its client gave, until PUBREL, and those of
# deliveries that another broker began.
#
# Laws:
#   an identifier that marks repetitions is known from PUBLISH to PUBREL, whoever serves
#   no identifier is given that a client may still hold from a broker before
#   a delivery that another broker began goes on as its session's subscriptions say now: with their identifiers, and
#   as published where one of them asks for that; as a retained message if they are newer than it

from libc.stdint cimport uint8_t, uint16_t

from holdfast.broker.idset cimport IdSet
from holdfast.broker.message cimport Message, Topic
from holdfast.broker.session cimport Session

cdef enum:
    RECALLED_BYTES = 200    # of one of `Session.recalled`, about

cdef bint has_room(Session session, bint kept) noexcept
cdef bint has_received(Session session, uint16_t packet_id) noexcept
cdef bint receive(Session session, uint16_t packet_id, bint kept) except 0
cdef bint is_new(Session session, uint16_t packet_id, bytes topic, bytes payload)
cdef void give_back(Session session, uint16_t packet_id)
cdef bint is_kept(Session session, uint16_t packet_id) noexcept
cdef void unkeep(Session session, uint16_t packet_id) noexcept
cdef void go_on_with(Session session, IdSet received, IdSet kept, dict recalled)
cdef void forget_received(Session session)
cdef void skip_identifiers(Session session, uint16_t beyond) noexcept
cdef dict ways_to(Topic* topic, object serials)
cdef bint restore(Session session, Message* m, uint16_t packet_id, uint8_t stage, uint8_t notes, tuple way) noexcept
