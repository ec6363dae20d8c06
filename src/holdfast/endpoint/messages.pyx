"""A message that arrived, as small as it can be: what is rarely asked for is made when it is.

Laws:
- it never changes once its user has it
- latency, sequence and publisher are of its stamp, and None without one
"""

cimport cython

from holdfast.mqtt.conventions import Stamp, format_stamp
from holdfast.mqtt.packets import Properties


@cython.no_gc
@cython.freelist(1024)
cdef class Message:
    def __init__(self, str topic not None, bytes payload not None, int qos, bint retain, bint dup, properties,
                 arrived_ns, stamp, missed=0):
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.dup = dup
        self.arrived_ns = arrived_ns
        self.missed = missed
        self.listed = properties
        if stamp is not None:
            self.stamped = True
            self.created = stamp.created_ns
            self.number = stamp.sequence
            self.author = stamp.publisher

    @property
    def stamp(self):
        """When it was made, which of its topic it is, and by whom."""
        return Stamp(self.created, self.number, self.author) if self.stamped else None

    @property
    def created_ns(self):
        return self.created if self.stamped else None

    @property
    def sequence(self):
        return self.number if self.stamped else None

    @property
    def publisher(self):
        return self.author

    @property
    def latency_ns(self):
        """From creation to arrival; None without a stamp, negative if the clocks disagree."""
        return self.arrived_ns - self.created if self.stamped else None

    @property
    def properties(self):
        if self.listed is None:
            user = [format_stamp(self.created, self.number, self.author)] if self.stamped else []
            self.listed = Properties(user=user)
        return self.listed

    def __repr__(self):
        return f"Message({self.topic!r}, {self.payload!r}, qos={self.qos}, stamp={self.stamp}, missed={self.missed})"
