"""A listener's side of the poller: whom it lets in, and how long that may take."""

from libc.stdint cimport int64_t

cdef int64_t GREETING_CROWDED_NS_MAX = 500_000_000  # while nobody else is let in for want of room


cdef class Listening:
    """What a listening socket does with whom it accepts.

    `opener(inbox, now)` makes the wire, or gives None when nobody is let in; `layers()` makes what stands before
    it, and `greeting_ns_max` is how long their greetings may take; `names` are the certificate names that are let
    in; `config` is handed to the wire as its `listener`, and whether it is `local`. With `strangers` it is the port
    for members: `opener(inbox, now, address)` makes a Peer, and those who come are in the lobby at first."""

    def __init__(
        self, opener, layers=None, names=None, config=None, local=False, int64_t greeting_ns_max=10_000_000_000,
        strangers=False,
    ) -> None:
        self.local = local
        self.strangers = strangers
        self.greeting_ns_max = greeting_ns_max
        self.opener = opener
        self.layers = layers
        self.names = names
        self.config = config
        self.greeting = {}

    cdef int64_t time_ns(self) except -1:
        """How long greetings may take now."""
        if len(self.greeting) < GREETERS_MAX:
            return self.greeting_ns_max
        return min(self.greeting_ns_max, GREETING_CROWDED_NS_MAX)
