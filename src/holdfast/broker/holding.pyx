"""Publishers that are not read while a subscriber is behind."""

from libc.stdint cimport int64_t, uint8_t

from holdfast.broker.link cimport Link
from holdfast.broker.message cimport EARLY, FINITE, Message


cdef class Holding:
    def release_publishers(self) -> None:
        """Lets the publishers go on that this session held back."""
        cdef Link link
        if self.holding is not None:
            for link in self.holding:
                link.unhold()
            self.holding = None

    def reconsider(self, int64_t now_ns) -> bool:
        """After a while of holding publishers back: whether any are still held.

        Those that keep to their contracts go on now. Those that send faster than theirs, or await
        acknowledgements, stay while this client takes messages at all."""
        cdef Link link
        cdef bint moved = self.sent != self.sent_when_held
        if self.holding is None:
            return False
        self.impatient = True
        for link, patient in list(self.holding.items()):
            if not (patient and moved):
                del self.holding[link]
                link.unhold()
        if not self.holding:
            self.holding = None
            return False
        self.impatient = False
        self.held_since_ns = now_ns
        self.sent_when_held = self.sent
        return True

    cdef void hold_back(self, Message* m, uint8_t qos):
        """Stops reading from the publisher of what this session cannot take, for a bounded while."""
        if m.source == NULL:
            return
        cdef Link source = <Link>m.source
        cdef bint patient = (qos and m.qos and not m.flags & FINITE) or m.flags & EARLY
        if source is self.link or source.closing:
            return
        if self.holding is None:
            self.holding = {}
            self.held_since_ns = self.board.now_ns
            self.sent_when_held = self.sent
            self.board.held.append(self)
        if source not in self.holding:
            source.hold()
            self.holding[source] = patient
        elif patient:
            self.holding[source] = True
