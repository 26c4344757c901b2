"""Writes the lines of one recording: a few at a time, in their order, without secrets. What they say is `record`.

What is put here is encoded when it is written, at the latest after `DELAY`. A piece of a text that may be the beginning
of a secret waits, and all that follows it, until that is known. If the file cannot be written, one warning says so.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from typing import Any, TypeAlias

from unbroken.deadlines import Deadline, deadline
from unbroken.deltas import Delta
from unbroken.events import NAMES as EVENT_NAMES
from unbroken.events import Event
from unbroken.trajectory.hiding import Hiding, Pieces
from unbroken.trajectory.lines import NAMES, Line, encode, exact, plain

LOG = logging.getLogger("unbroken.trajectory")

NOWHERE = -1
"""In place of a file that could not be opened."""
DELAY = 0.05
"""Seconds after which a line is in the file at the latest."""


class _Piece:
    """Of a text that is streamed; `text` is None until its words are final."""

    __slots__ = ("at", "masked", "name", "text", "turn")

    def __init__(self, at: float, turn: int, name: str, text: str | None) -> None:
        self.at = at
        self.turn = turn
        self.name = name
        self.text = text
        self.masked = False

    def follows(self, other: _Piece) -> bool:
        """May they stand in one line?"""
        return self.turn == other.turn and self.name == other.name and self.masked == other.masked


_Whole: TypeAlias = "Line | Event | tuple[float, int, Delta]"


class Scribe:
    """`file` is open, and is closed at the end."""

    def __init__(self, path: str, file: int, hiding: Hiding) -> None:
        self.path = path
        self.broken = file == NOWHERE
        self.exact = False
        """A number is in it that the fast encoder would bend."""
        self._file = file
        self._hiding = hiding
        self._items: list[_Whole | _Piece] = []
        self._timer: Deadline | None = None
        self._streams: dict[str, tuple[Pieces, deque[_Piece]]] = {}

    def hide(self, hiding: Hiding) -> None:
        """From now on this must not be shown."""
        self.settle()
        self._hiding = hiding

    def put(self, item: _Whole) -> None:
        self._items.append(item)
        if self._timer is None:
            self._timer = deadline(asyncio.get_running_loop(), DELAY, self._ring)

    def put_piece(self, at: float, turn: int, name: str, text: str) -> None:
        if not self._hiding.secrets:
            piece = _Piece(at, turn, name, text)
        else:
            piece = _Piece(at, turn, name, None)
            if name not in self._streams:
                self._streams[name] = (Pieces(self._hiding), deque())
            pieces, waiting = self._streams[name]
            waiting.append(piece)
            _settle(waiting, pieces.feed(text))
        self._items.append(piece)
        if self._timer is None:
            self._timer = deadline(asyncio.get_running_loop(), DELAY, self._ring)

    def settle(self) -> None:
        """No more will come of the texts that are streamed: their words are final."""
        for pieces, waiting in self._streams.values():
            _settle(waiting, pieces.end())
        self._streams.clear()

    def _ring(self) -> None:
        self._timer = None
        self._write()

    def flush(self) -> None:
        """Now, and all of it."""
        if self._items:
            self.settle()
            self._write()

    def end(self) -> None:
        self.flush()
        if self._timer is not None:
            self._timer.cancel()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write(self) -> None:
        items, self._items = self._items, []
        lines: list[bytes] = []
        said: list[_Piece] = []
        """Pieces of one text that came one after another: they share a line."""
        for place, item in enumerate(items):
            if isinstance(item, _Piece):
                if item.text is None:
                    self._items = items[place:]
                    break
                if said and not item.follows(said[-1]):
                    lines.append(self._pieces(said))
                    said = []
                said.append(item)
            else:
                if said:
                    lines.append(self._pieces(said))
                    said = []
                lines.append(self._line(item))
        if said:
            lines.append(self._pieces(said))
        if self.broken or self._file < 0 or not lines:
            return
        data = self._hiding.lines(lines)
        try:
            while data:  # at once, unless the disk is full
                data = data[os.write(self._file, data) :]
        except OSError as error:
            self.broken = True
            LOG.warning("the recording %s is not written any more: %s", self.path, error.strerror or error)

    def _pieces(self, pieces: list[_Piece]) -> bytes:
        first = pieces[0]
        line: Line = {"line": "pieces", "turn": first.turn, "delta": first.name}
        if first.masked:
            line["masked"] = True
        line["pieces"] = [(piece.at, piece.text) for piece in pieces]
        return encode(line)

    def _line(self, item: _Whole) -> bytes:
        try:
            return self._encoded(item)
        except Exception as error:  # noqa: BLE001 - a user's value that is no JSON
            what = item["line"] if isinstance(item, dict) else type(item).__name__
            return encode({"line": "note", "text": f"a line `{what}` could not be written: {error}"[:500]})

    def _encoded(self, item: _Whole) -> bytes:
        if isinstance(item, dict):
            return exact(item) if self.exact else encode(item)
        if isinstance(item, tuple):
            at, turn, delta = item
            beginning = b'{"line":"delta","at":%r,"turn":%d,"delta":"%b",' % (at, turn, _DELTAS[type(delta)])
            return beginning + plain(delta, self.exact)[1:]
        return _EVENTS[type(item)] + plain(item, self.exact)[1:]


def _settle(waiting: deque[_Piece], texts: list[tuple[str, bool]]) -> None:
    for text, masked in texts:
        piece = waiting.popleft()
        piece.text, piece.masked = text, masked


_DELTAS: dict[type[Any], bytes] = {kind: name.encode() for kind, name in NAMES.items()}
_EVENTS: dict[type[Any], bytes] = {
    kind: b'{"line":"event","event":"%s",' % name.encode() for kind, name in EVENT_NAMES.items()
}
