"""Bytes in, JSON texts out, whatever the split: the framing that all wires share.

Server-sent events, one JSON object a line, one JSON array, one complete JSON body, Amazon's binary frames: the first
bytes show which of them it is. Knows nothing of what is inside an event (that is parsed by `jsontext`).

Strategy: a line is the unit. In server-sent events a `data:` line is kept until the blank line that ends its event;
in JSON framing the end of each top-level object is found by one pass over the brackets (`JsonSplitter`), because
pretty-printed bodies have line ends everywhere. Both keep at most one unfinished event in memory.
"""

from __future__ import annotations

import re
from typing import NoReturn

import orjson

from unbroken_wires.errors import TooLarge
from unbroken_wires.wires.event_stream import EventStreamSplitter, begins_stream, may_begin_stream
from unbroken_wires.wires.jsontext import MAX_DEPTH, shallow, too_deep

MAX_EVENT = 32 * 1024 * 1024
MAX_BODY = 256 * 1024 * 1024
MAX_ANSWER = 16 * 1024 * 1024
"""Characters of text, reasoning and calls: what is kept of the bytes, which may be a hundred times as many."""

_BOM = b"\xef\xbb\xbf"
_BLANK = b" \t\r\n"


class Framer:
    """Feed it the body in any pieces; it gives the JSON text of each event as soon as that event has ended."""

    def __init__(self, max_event: int = MAX_EVENT, max_body: int = MAX_BODY) -> None:
        self.max_event = max_event
        self.max_body = max_body
        self.bytes_seen = 0
        self.noise = b""
        """The first line that was neither a field nor an event: what an HTML page or a proxy's message looks like."""
        self._tail = bytearray()
        self._data: list[bytes] = []
        self._data_size = 0
        self._splitter: JsonSplitter | EventStreamSplitter | None = None
        self._sniffed = False
        self._after_cr = False
        self._given = False
        self._switched = False

    def feed(self, chunk: bytes) -> list[bytes]:
        self.bytes_seen += len(chunk)
        if self.bytes_seen > self.max_body:
            self._too_large("the body", self.max_body, "max_body")
        if self._splitter is None and b"\n" in chunk and not (self._data or self._after_cr):
            events = self._take_plain(bytes(self._tail) + chunk if self._tail else chunk)
            if events is not None:
                return events
        if not self._sniffed:
            chunk = self._sniff(chunk)
        if self._splitter is not None and not self._switched:
            return self._splitter.feed(chunk)
        if b"\r" in chunk or self._after_cr:
            chunk = self._unify_line_ends(chunk)
        if self._splitter is not None:
            return self._splitter.feed(chunk)
        if b"\n" not in chunk:
            self._tail += chunk
            if len(self._tail) > self.max_event:
                self._too_large("one event", self.max_event, "max_event")
            return []
        if self._tail:
            chunk = bytes(self._tail) + chunk
            self._tail.clear()
        lines = chunk.split(b"\n")
        self._tail = bytearray(lines.pop())
        return self._take(lines)

    def _take_plain(self, chunk: bytes) -> list[bytes] | None:
        """Fast path for events that are one `data:` line each; it saves 1 µs of 6 for each. None if there is anything
        else."""
        end = len(chunk) if chunk.endswith(b"\n\n") else chunk.rfind(b"\n\n") + 2
        if end < 8 or not chunk.startswith(b"data:") or end > self.max_event or b"\r" in chunk:
            return None
        events = chunk[5 : end - 2].split(b"\n\ndata:")
        if b"\n" in b"".join(events):
            return None
        self._sniffed = self._given = True
        last = events[-1]  # short, mostly: `[DONE]`
        if (len(last) <= 8 and not last.strip()) or (len(events) > 1 and min(map(len, events[:-1])) <= 8):
            events = [event for event in events if len(event) > 8 or event.strip()]
        if end == len(chunk):
            self._tail.clear()
            return events
        *lines, tail = chunk[end:].split(b"\n")
        self._tail = bytearray(tail)
        return events + self._take(lines) if lines else events

    def end(self) -> list[bytes]:
        """The body has ended: what is still unfinished is given as it stands, for the parser to judge."""
        if self._splitter is not None:
            return self._splitter.end()
        lines = [bytes(self._tail), b""]
        self._tail.clear()
        return self._take(lines)

    @property
    def clean(self) -> bool:
        """Every event was returned when it ended, and nothing follows the last."""
        return self._splitter is None and not (self._tail or self._data)

    @property
    def held(self) -> int:
        """The bytes of an event that has not ended."""
        return self._splitter.held if self._splitter is not None else len(self._tail) + self._data_size

    @property
    def unfinished(self) -> bool:
        if self._splitter is not None:
            return self._splitter.inside
        return bool(self._tail or self._data)

    def _sniff(self, chunk: bytes) -> bytes:
        head = (bytes(self._tail) + chunk).lstrip(_BLANK)
        self._tail.clear()
        while head.startswith(_BOM):
            head = head.removeprefix(_BOM).lstrip(_BLANK)
        if (len(head) < 3 and _BOM.startswith(head)) or (may_begin_stream(head) and len(head) < 12):
            self._tail += head
            return b""
        if head:
            self._sniffed = True
            if head[:1] in (b"{", b"["):
                self._splitter = JsonSplitter(self.max_event)
            elif begins_stream(head):
                self._splitter = EventStreamSplitter(self.max_event)
        return head

    def _unify_line_ends(self, chunk: bytes) -> bytes:
        # A raw CR can only be white space in JSON text, so this never changes a value.
        if not chunk:
            return chunk
        after_cr, self._after_cr = self._after_cr, chunk[-1:] == b"\r"
        if after_cr and chunk[:1] == b"\n":
            chunk = chunk[1:]
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _take(self, lines: list[bytes]) -> list[bytes]:
        events: list[bytes] = []
        data = self._data
        for number, line in enumerate(lines):
            if line.startswith(b"data:"):
                self._data_size += len(line)
                if self._data_size > self.max_event:
                    self._too_large("one event", self.max_event, "max_event")
                line = line[5:]
                if data and _is_another(data[-1], line):
                    events += self._give()
                    self._data_size = len(line)
                data.append(line)
            elif not line:
                if len(data) == 1 and len(data[0]) > 8:  # nearly all events: without a call
                    events.append(data.pop())
                    self._given = True
                elif data:
                    events += self._give()
                self._data_size = 0
            elif not (self._given or data) and line.lstrip(b" ")[:1] in (b"{", b"["):
                return events + self._switch(lines[number:])
            else:
                other = self._take_other(line)
                if other and data:
                    events += self._give()
                events += other
        return events

    def _give(self) -> list[bytes]:
        """The event that has been collected; `data:` alone is how some servers keep a connection alive."""
        event = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
        self._data.clear()
        self._given = True
        return [event] if len(event) > 8 or event.strip() else []

    def _switch(self, lines: list[bytes]) -> list[bytes]:
        """Nothing but comments have come, and now JSON: it was no stream of events after all."""
        self._splitter = JsonSplitter(self.max_event)
        self._switched = True
        rest = b"\n".join([*lines, bytes(self._tail)])
        self._tail.clear()
        return self._splitter.feed(rest)

    def _take_other(self, line: bytes) -> list[bytes]:
        if len(line) > self.max_event:
            self._too_large("one line", self.max_event, "max_event")
        if line[:1] in (b"{", b"["):
            return [line]  # a proxy's JSON error, or a chunk without its field name, in the middle of a stream
        if line[:1] == b":" or (_FIELD.match(line) and b"{" not in line):
            return []
        if line[:1] == b" " and line.strip():
            return self._take([line.lstrip()])  # a field that was indented is still a field
        self.noise = self.noise or line[:200]
        # A field name that was damaged may have held a part of a call: give it to the parser, which refuses it.
        return [] if is_word(line) or _is_other_field(line) else [line]

    def _too_large(self, what: str, limit: int, setting: str) -> NoReturn:
        raise TooLarge(
            f"reading the response stopped: {what} is larger than {limit:,} bytes; if that is meant, raise {setting} "
            "(`max_answer` of `connect`)"
        )


_FIELD = re.compile(rb"(?:event|id|retry|data)(?::|$)")
_NAME = re.compile(rb"[A-Za-z][\w.-]*")
_OPENING = frozenset(b"{[")
_LOST_LINE_END = re.compile(rb"data:\s*[{\[]")


def _is_other_field(line: bytes) -> bool:
    """A field that has no meaning here, whatever its value, as the specification has it. Not if its name may be `data`,
    damaged, or if the line end before `data:` is missing or damaged."""
    name, _, value = line.partition(b":")
    if not _NAME.fullmatch(name) or _LOST_LINE_END.search(value):
        return False
    if _FIELD.match(line) is not None:
        return _OPENING.isdisjoint(value) or _is_json(value)  # what follows a damaged line end begins in the middle
    return len(set(name.lower()) - set(b"dat")) > 1


def _is_json(value: bytes) -> bool:
    try:
        orjson.loads(value)
    except orjson.JSONDecodeError:
        return False
    return True


_WORD = re.compile(rb"[\w\s.:;!?*-]*")


def is_word(data: bytes) -> bool:
    """Plain words, as servers send them to keep a connection alive: they cannot be part of an event."""
    return _WORD.fullmatch(data) is not None


def _is_another(line: bytes, following: bytes) -> bool:
    """Are two `data:` lines without a blank line between them two events? Some servers leave it out, and no JSON text
    has a line that ends in a bracket before one that starts with a bracket."""
    if not following.lstrip().startswith((b"{", b"[{", b"[DONE]")):
        return False
    return line.rstrip().endswith((b"}", b"]")) or is_word(line)


_MARKS = re.compile(rb'["{}]')
_STRING_END = re.compile(rb'["\\\n]')


_SEPARATORS = b" \t\r\n,"

_UNREADABLE = b"{\x00"
"""Before noise that came where an object should: so it looks like an event, and like one that no parser takes."""


def _is_object(data: bytes) -> bool:
    try:
        return shallow(data) and isinstance(orjson.loads(data), dict)
    except orjson.JSONDecodeError:
        return False


class JsonSplitter:
    """Cuts a sequence of top-level JSON objects (one a line, or an array, or one body) where each of them closes.

    Separators between the objects are dropped; anything else there is given as an event of its own, for the parser to
    refuse, because it may be an object that lost its first brace. One pass: no byte is looked at twice.
    """

    def __init__(self, max_event: int = MAX_EVENT) -> None:
        self.max_event = max_event
        self.inside = False
        self._begun = bytearray()
        self._between = bytearray()
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, chunk: bytes) -> list[bytes]:
        if not (self.inside or self._between) and chunk[:1] == b"{" and len(chunk) <= self.max_event:
            whole = chunk.rstrip()
            if whole.endswith(b"}") and _is_object(whole):
                return [whole]  # nearly all bodies that are not streamed: to parse them is cheaper than to cut them
        objects: list[bytes] = []
        at = start = 0
        end = len(chunk)
        while at < end:
            if not self.inside:
                at = chunk.find(b"{", start)
                if at < 0:
                    break
                objects += self._separator(chunk[start:at])
                self.inside = True
                self._depth = 1
                start = at
                at += 1
                continue
            at, closed = self._follow(chunk, at, end)
            if closed:
                objects.append(self._close(chunk[start:at]))
                start = at
        rest = chunk[start:]
        if self.inside:
            self._begun += rest
            self._check(len(self._begun))
        else:
            self._between += rest if self._between else rest.lstrip(_SEPARATORS)
            self._check(len(self._between))
        return objects

    def _follow(self, chunk: bytes, at: int, end: int) -> tuple[int, bool]:
        """Go on inside an object to its next mark; true where the object ends."""
        if self._in_string:
            if self._escaped:
                self._escaped = False
                return at + 1, False
            found = _STRING_END.search(chunk, at)
            if found is None:
                return end, False
            if found.group() == b"\\":
                self._escaped = True
                return found.end(), False
            self._in_string = False
            # No string continues over a line end: this object was cut there, and what follows is another.
            return found.end(), found.group() == b"\n"
        found = _MARKS.search(chunk, at)
        if found is None:
            return end, False
        mark = found.group()
        if mark == b'"':
            self._in_string = True
        elif mark == b"{":
            self._depth += 1
            if self._depth > MAX_DEPTH:
                raise too_deep()
        else:
            self._depth -= 1
        return found.end(), self._depth == 0

    @property
    def held(self) -> int:
        return len(self._begun) + len(self._between)

    def end(self) -> list[bytes]:
        return [self._close(b"")] if self.inside else self._separator(b"")

    def _separator(self, last: bytes) -> list[bytes]:
        between = (bytes(self._between) + last).strip(_SEPARATORS)
        self._between.clear()
        found: list[bytes] = []
        for line in between.split(b"\n"):
            line = line.strip(_SEPARATORS).removeprefix(b"data:").strip(_SEPARATORS)
            if line.upper() == b"[DONE]":
                found.append(line)
            elif line.strip(b"[] \t,") and line[:1] != b":" and not _FIELD.match(line):
                return [_UNREADABLE + between]
        return found

    def _close(self, last: bytes) -> bytes:
        whole = bytes(self._begun) + last if self._begun else last
        self._check(len(whole))
        self._begun.clear()
        self._depth = 0
        self.inside = False
        return whole

    def _check(self, size: int) -> None:
        if size > self.max_event:
            raise TooLarge(
                f"reading the response stopped: one event is larger than {self.max_event:,} bytes; "
                "if that is meant, raise max_event (`max_answer` of `connect`)"
            )


def is_only_alive(data: bytes) -> bool:
    """Blank lines, comments, pings: bytes that keep a connection alive and have no content."""
    if data.startswith(b"data: {") and not data.startswith(b'data: {"type"'):  # nearly always
        return False
    start = data.lstrip()
    if not start:
        return True
    if start[:1] != b":" and b'"ping"' not in start and b'"keepalive"' not in start:
        return False
    return all(map(_ALIVE.fullmatch, start.splitlines()))


_ALIVE = re.compile(rb'(?::.*|(?:event|id|retry):.*|data: ?(?:\{"type": ?"(?:ping|keepalive)"[^{}]*\})?)?')
"""A line of an event that keeps a connection alive, of Anthropic or of OpenAI, or of a comment."""
