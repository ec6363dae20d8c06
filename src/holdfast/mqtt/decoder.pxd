# Bodies to packets. See decoder.pyx for the laws.

from holdfast.mqtt.fields cimport Reader

cdef object take_packet(int packet_type, int flags, Reader* reader, int version)
cdef tuple take_head(int packet_type, int flags, Reader* reader, int version)
cdef int take_filters(int packet_type, Reader* reader, int version, long most, list into) except -1
