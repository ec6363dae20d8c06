# One WebSocket (RFC 6455) seen from the server: HTTP upgrade, then frames, without a socket.
#
# Laws:
#   a payload byte is handed on when it is read, wherever frames are cut: MQTT packets need not know of frames
#   memory is bounded: a request of REQUEST_BYTES_MAX, a frame's head, one control frame, and answers
#   what breaks the protocol is a fault with the code that the peer is told, and nothing after it is looked at

from libc.stdint cimport uint8_t, uint64_t

from holdfast.mqtt.wire cimport Out

cdef enum:
    HEAD_MAX = 14           # the longest head of a frame
    CONTROL_MAX = 125       # the longest payload of a control frame


cdef class WebSocket:
    cdef object judge               # (request) -> what to answer to it
    cdef bytearray request          # what came of the HTTP request; None: it is answered
    cdef readonly bint open         # frames are exchanged
    cdef readonly bint over         # the peer said that it is done
    cdef readonly str fault         # why the connection cannot go on
    cdef readonly int code          # what a Close from us says
    cdef Out replies                # for the peer: an HTTP answer, Pong, Close
    cdef uint8_t head[HEAD_MAX]
    cdef int head_len
    cdef uint64_t left              # payload bytes of this frame that are still to come
    cdef uint8_t key[4]
    cdef unsigned int key_at
    cdef uint8_t opcode
    cdef bint final
    cdef bint within                # a message of several frames is under way
    cdef uint8_t control[CONTROL_MAX]
    cdef int control_len

    cdef size_t take(self, uint8_t* data, size_t size) except? 0
    cdef bint put(self, Out* out, const uint8_t* data, size_t size) except 0
    cdef bint part(self) except 0

    cdef size_t _greet(self, uint8_t* data, size_t size) except? 0
    cdef size_t _frames(self, uint8_t* data, size_t size) except? 0
    cdef int _head_size(self) noexcept
    cdef bint _begin(self) except -1
    cdef bint _end(self) except -1
    cdef bint _closed(self) except -1
    cdef bint _fail(self, int code, str why) except -1
    cdef bint _reply(self, uint8_t opcode, const uint8_t* data, size_t size) except 0
