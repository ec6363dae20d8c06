"""Exchanges that are not over, and the ordinary end of most: a short PUBACK.

Laws:
- a request knows what it awaits; a publication of QoS 2 awaits PUBREC, then PUBCOMP
- what is written to a second connection says that it was written before (DUP), or goes on where it was (PUBREL)
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t

from holdfast.mqtt.wire cimport read_u16

from holdfast.mqtt.codec import encode
from holdfast.mqtt.packets import Puback, Pubcomp, Pubrec, Pubrel

cdef enum:
    VERSION = 5
    DUP = 0x08
    PUBACK_BYTE = 0x40
    SHORT = 2      # nothing but the identifier: success
    WITH_REASON = 3
    NO_MATCHING_SUBSCRIBERS = 0x10

cdef object AWAITS_PUBACK = Puback
cdef object AWAITS_PUBREC = Pubrec
cdef object AWAITS_PUBCOMP = Pubcomp


cdef class Pending:
    """A request on its way, and the type of answer it `awaits`."""

    def __init__(self, int packet_id, awaits, bytes packet not None, ticket):
        self.packet_id = packet_id
        self.awaits = awaits
        self.packet = packet
        self.ticket = ticket

    @property
    def publication(self):
        return self.awaits is AWAITS_PUBACK or self.awaits is AWAITS_PUBREC or self.awaits is AWAITS_PUBCOMP

    def to_write(self):
        """Its bytes for a connection that has not seen it."""
        if self.awaits is AWAITS_PUBCOMP:
            return encode(Pubrel(self.packet_id), VERSION)
        if self.written and self.publication:
            return bytes([self.packet[0] | DUP]) + self.packet[1:]
        return self.packet


cdef Pending publication(int packet_id, int qos, bytes packet, object ticket):
    return Pending(packet_id, AWAITS_PUBACK if qos == 1 else AWAITS_PUBREC, packet, ticket)


def acknowledge(bytes data not None, Py_ssize_t start, dict pending not None, list answered not None):
    """Ends the publications whose ordinary PUBACKs lie at `start`, and lists tickets that are done by that.

    Returns where the first other packet begins, and how many publications are over.
    """
    cdef const uint8_t* base = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef const uint8_t* end = base + PyBytes_GET_SIZE(data)
    cdef const uint8_t* at = base + start
    cdef Pending found
    cdef int reason
    cdef int over = 0
    while end - at >= 4 and at[0] == PUBACK_BYTE:
        reason = 0
        if at[1] == WITH_REASON:
            if end - at < 5 or at[4] not in (0, NO_MATCHING_SUBSCRIBERS):
                break
            reason = at[4]
        elif at[1] != SHORT:
            break
        packet_id = read_u16(at + 2)
        at += 2 + at[1]
        found = pending.get(packet_id)
        if found is None or found.awaits is not AWAITS_PUBACK:
            continue
        del pending[packet_id]
        over += 1
        ticket = found.ticket
        if reason:
            ticket.reasons[found.place] = reason
        ticket.left -= 1
        if ticket.left == 0:
            ticket.done = True
            answered.append(ticket)
    return at - base, over
