# What stands between a socket and its wire: TLS, WebSocket, or WebSocket in TLS.
#
# Laws:
#   nothing is kept back: what one read of the socket brought is handed on whole, less what is no whole record
#   or head of a frame yet; so a wire that is not read leaves its bytes in the kernel, as without layers
#   nothing of the wire's leaves before the greetings are over, and nothing reaches it
#   what is put here leaves in that order; the farewell comes last, once
#   a fault is said once, with the MQTT reason code under which it is counted; after it nothing passes

from libc.stdint cimport int64_t, uint8_t

from holdfast.broker.link cimport Inbox
from holdfast.mqtt.wire cimport Out
from holdfast.runtime.websocket cimport WebSocket


cdef class Layers:
    cdef object tls                 # an ssl.SSLObject, or None
    cdef object incoming, outgoing  # its ssl.MemoryBIOs
    cdef WebSocket websocket        # or None
    cdef bint greeted               # TLS is agreed on
    cdef bint parted                # the farewell is among what was put
    cdef Out out                    # for the socket
    cdef const uint8_t* raw         # without TLS: what was fed, until it is taken
    cdef size_t raw_len
    cdef readonly bint over         # the peer said that it is done
    cdef readonly str fault
    cdef readonly int reason
    cdef object listening           # through which it came; None: we dialed

    cdef bint is_open(self) noexcept
    cdef bint costly(self) noexcept
    cdef bint feed(self, const uint8_t* data, size_t size) except 0
    cdef size_t next(self, Inbox inbox) noexcept
    cdef bint put(self, const uint8_t* data, size_t size) except 0
    cdef bint part(self) except 0
    cdef void sent(self, size_t size) noexcept

    cdef size_t _next(self, Inbox inbox) except? 0
    cdef size_t _decrypt(self, Inbox inbox) except? 0
    cdef bint _greet(self) except -1
    cdef bint _seal(self, const uint8_t* data, size_t size) except 0
    cdef bint _collect(self) except 0
    cdef bint _answer(self) except 0
    cdef bint _append(self, const uint8_t* data, size_t size) except 0
