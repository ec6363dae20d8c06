# Bodies to packets. See decoder.pyx for the laws.

from holdfast.mqtt.fields cimport Reader

cdef object take_packet(int packet_type, int flags, Reader* reader, int version)
