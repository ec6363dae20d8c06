"""Each message once, and in order, for every publisher and topic.

Laws:
- what is not newer than the newest seen of its stream is not given out
- the gap before a message is exact: what is missing there was never given out and never will be; a publisher
  that leaves gaps misses nothing
- at most `streams_max` streams are remembered; when there are more, the topics known longest are forgotten
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcmp

from holdfast.mqtt.topics cimport topic_problem
from holdfast.mqtt.wire cimport utf8_valid

from holdfast.mqtt.conventions import leaves_gaps


cdef class Stream:
    pass


cdef class Topic:
    cdef Stream find(self, const uint8_t* author, Py_ssize_t size):
        """The stream of this publisher, or None."""
        cdef Stream found = self.latest
        if found is not None and PyBytes_GET_SIZE(found.author_bytes) == size and (
                memcmp(PyBytes_AS_STRING(found.author_bytes), author, size) == 0):
            return found
        found = self.streams.get(PyBytes_FromStringAndSize(<const char*>author, size))
        if found is not None:
            self.latest = found
        return found


cdef class Order:
    def __init__(self, int streams_max):
        assert streams_max > 0
        self.topics = {}
        self.streams_max = streams_max

    cdef Topic topic(self, const uint8_t* name, Py_ssize_t size):
        """The topic of this name; None if that is no name of a topic."""
        cdef Topic found = None if self.last is None else self.last.next
        if found is None or found.forgotten or PyBytes_GET_SIZE(found.key) != size or (
                memcmp(PyBytes_AS_STRING(found.key), name, size) != 0):
            found = self.find(name, size)
            if found is None:
                return None
            if self.last is not None:
                self.last.next = found
        self.last = found
        return found

    cdef Topic find(self, const uint8_t* name, Py_ssize_t size):
        cdef bytes key = PyBytes_FromStringAndSize(<const char*>name, size)
        cdef object found = self.topics.get(key)
        cdef Topic made
        if found is not None:
            return <Topic>found
        if not utf8_valid(name, size) or topic_problem(name, size) != NULL:
            return None
        made = Topic()
        made.name = key.decode()
        made.key = key
        made.streams = {}
        self._forget()
        self.topics[key] = made
        return made

    cdef Stream stream(self, Topic topic, const uint8_t* author, Py_ssize_t size):
        """The stream of a publisher in a topic; None if its name is not UTF-8."""
        cdef Stream found = topic.find(author, size)
        if found is not None:
            return found
        if not utf8_valid(author, size):
            return None
        found = Stream()
        found.author_bytes = PyBytes_FromStringAndSize(<const char*>author, size)
        found.author = found.author_bytes.decode()
        found.newest = -1
        found.gaps = leaves_gaps(found.author)
        self._forget()
        topic.streams[found.author_bytes] = found
        topic.latest = found
        self.streams += 1
        return found

    cdef int64_t advance(self, Stream stream, int64_t sequence):
        """How many are missing right before this message, or DUPLICATE."""
        cdef int64_t newest = stream.newest
        if newest < 0:
            stream.newest = sequence
            return 0
        if sequence <= newest:
            self.duplicates += 1
            return DUPLICATE
        stream.newest = sequence
        return 0 if stream.gaps else sequence - newest - 1

    def _forget(self):
        cdef Topic oldest
        while self.topics and self.streams + len(self.topics) >= 2 * self.streams_max:
            oldest = <Topic>self.topics.pop(next(iter(self.topics)))
            self.streams -= len(oldest.streams)
            oldest.forgotten, oldest.next = True, None

    def seen(self, str publisher not None, str topic not None, int64_t sequence):
        """How many are missing right before this message, or DUPLICATE (-1); the topic is a valid name."""
        cdef bytes name = topic.encode()
        cdef bytes author = publisher.encode()
        cdef Topic found = self.topic(<const uint8_t*>PyBytes_AS_STRING(name), len(name))
        cdef Stream stream = self.stream(found, <const uint8_t*>PyBytes_AS_STRING(author), len(author))
        return self.advance(stream, sequence)
