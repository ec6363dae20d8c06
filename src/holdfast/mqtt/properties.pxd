# The property section of an MQTT 5 packet. See properties.pyx for the laws.

from holdfast.mqtt.fields cimport Reader
from holdfast.mqtt.wire cimport Out

cdef object take_properties(Reader* reader, int packet_type)
cdef int put_properties(Out* out, object properties, int packet_type) except -1
