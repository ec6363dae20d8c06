# Packets to bodies. See encoder.pyx for the laws.

from holdfast.mqtt.wire cimport Out

# Appends the body of `packet` and returns the first byte of its header.
cdef int put_packet(Out* out, object packet, int version) except -1
