"""Messages on the socket between a process and its child: a head with length and kind, then the body.

The parent reads them in whatever thread it waits, and that may be left by an exception between any
two instructions: Ctrl-C comes as one. What has been read by then must not be lost, or a message's
middle would be taken for the next one's head.
"""

from __future__ import annotations

import socket
import struct

HEAD = struct.Struct("!QB")
"""In front of every message: its length in bytes, and what it is."""
TALK, VALUE = range(2)
"""A pickled (kind, value); or what the function returned, by itself: it may be large."""


class Incoming:
    """What comes from a socket, one message after the other.

    A message is received into a buffer of its length, so that a large one is in memory once.
    """

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._parts: list[_Part] = []

    def read(self) -> bool:
        """Takes of the first message what has come; False where the stream has ended.

        Raises:
            BlockingIOError: Nothing has come.
            ConnectionError: The other side is gone.
        """
        if not self._parts:
            self._parts.append(_Part(HEAD.size))
        head = self._parts[0]
        if not head.whole and not head.fill(self._link):
            return False
        if head.whole and len(self._parts) == 1:
            self._parts.append(_Part(HEAD.unpack(head.buffer)[0]))
        return len(self._parts) == 1 or self._parts[1].whole or self._parts[1].fill(self._link)

    @property
    def message(self) -> tuple[int, memoryview] | None:
        """What the first message is, and its body, once it is here in full."""
        if len(self._parts) < 2 or not self._parts[1].whole:
            return None
        return HEAD.unpack(self._parts[0].buffer)[1], self._parts[1].buffer

    def drop(self) -> None:
        """Turns to the next message."""
        self._parts.clear()


class _Part:
    def __init__(self, size: int) -> None:
        self.buffer = memoryview(bytearray(size))
        self._counts: list[int] = []

    @property
    def _filled(self) -> int:
        return sum(self._counts)

    @property
    def whole(self) -> bool:
        return self._filled == len(self.buffer)

    def fill(self, link: socket.socket) -> bool:
        """Receives once; False at the end of the stream."""
        # In one call into C, which no exception of a signal can split: received is counted.
        self._counts.extend(map(link.recv_into, (self.buffer[self._filled :],)))
        return self._counts[-1] > 0
