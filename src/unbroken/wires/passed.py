"""What went to a client as it came, for the encoder that has to go on where it stopped.

A relay touches every event and the switch to an encoder is rare, so bytes are only kept here; they are read when
somebody has to know what was in them, or when they have become many. What an event means is known to the subclass in
each wire's room. It never raises: what cannot be read is skipped, for the client has it already.
"""

from __future__ import annotations

from unbroken.errors import StreamError
from unbroken.messages import Json
from unbroken.wires.jsontext import loads
from unbroken.wires.parts import call_from_text
from unbroken.wires.sse import Framer
from unbroken.wires.values import Object, as_dict
from unbroken.wires.wire import MISSHAPEN

MANY = 16 * 1024
"""Bytes that are kept unread: little for a gateway that relays hundreds of streams at once."""


class Passed:
    marks: tuple[bytes, ...] = ()
    """What stands in every event that matters once the beginning is known; without any, all of them matter."""

    def __init__(self) -> None:
        self.begun = False
        """The beginning is known: from here on only events with a mark have to be read."""
        self._unread: list[bytes] = []
        self._size = 0
        self._news = False

    def add(self, data: bytes) -> None:
        """Whole events, as many as came at once."""
        self._unread.append(data)
        self._size += len(data)
        self._news = True
        if self._size > MANY:
            self._read_all()

    def catch_up(self) -> bool:
        """Read all of it. False if nothing was added since this was last asked."""
        if not self._news:
            return False
        self._news = False
        self._read_all()
        return True

    def _read_all(self) -> None:
        data = b"".join(self._unread)
        self._unread.clear()
        self._size = 0
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if self._may_skip(data):  # nearly all that ever passes is text
            return
        for event in data.split(b"\n\n"):
            at = event.find(b"data:")
            text = event[at + 5 :]
            if at >= 0 and b"\n" not in text and (not at or event[at - 1] == 10):
                self._read(text)
            elif event:
                self._read_oddly(event)

    def read(self, data: bytes) -> None:
        """The JSON text of one event; whatever is wrong with it may be raised."""
        raise NotImplementedError

    def _may_skip(self, data: bytes) -> bool:
        if not self.begun:
            return False
        for mark in self.marks:  # noqa: SIM110 - a generator would cost more than the search
            if mark in data:
                return False
        return True

    def _read(self, data: bytes) -> None:
        if self._may_skip(data):
            return
        try:
            self.read(data)
        except (*MISSHAPEN, StreamError):
            return

    def _read_oddly(self, event: bytes) -> None:
        """No blank line between events, one event on several lines, comments: as a decoder would take them."""
        framer = Framer()
        try:
            texts = framer.feed(event + b"\n\n") + framer.end()
        except StreamError:
            return
        for text in texts:
            self._read(text)


def same_input(said: str, whole: str) -> bool:
    """Is what a client was told of a call's arguments (or free text) all of it? Spelled otherwise is still the same."""
    if said == whole:
        return True
    arguments = call_from_text("", "", said, 0).arguments
    return arguments is not None and arguments == call_from_text("", "", whole, 0).arguments


def event_of(data: bytes) -> Object:
    event: Json = loads(data)
    return as_dict(event)
