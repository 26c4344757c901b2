"""Masks a secret that a stream splits over several events, so that its bytes are never adjacent.

Strings of JSON that continue each other (same field, same `index` values) are read as one text. A line is held back
while the end of such a text shows much of the beginning of a secret; all other lines leave at once, unchanged. Unsplit
secrets are masked before, by `masking.Passage`.
"""

from __future__ import annotations

import json
import re
from collections import deque
from dataclasses import dataclass, field

from unbroken.models.masking import Masker
from unbroken.models.secrets import MASK

_LINE_END = re.compile(rb"\r\n|[\r\n]")
_STRING = re.compile(rb'"([^"\\\r\n]*(?:\\.[^"\\\r\n]*)*\\?)(?:"|(?=[\r\n])|\Z)(\s*:\s*(\d*))?')
"""A string, its closing quote unless the stream was cut, and, if it names a field, the number that may be its value."""


@dataclass(slots=True, eq=False)
class _Piece:
    """A string in a line."""

    begin: int
    end: int
    text: bytes
    hidden: list[tuple[int, int, str]] = field(default_factory=list[tuple[int, int, str]])
    """Start, end, and replacement of what is masked."""
    written: bool = False

    def shown(self) -> bytes:
        parts, at = "", 0
        for begin, end, instead in self.hidden:
            parts += self._text(at, begin) + instead
            at = end
        return json.dumps(parts + self._text(at, len(self.text)))[1:-1].encode()

    def _text(self, begin: int, end: int) -> str:
        try:
            return self.text[begin:end].decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            return self.text[begin:end].decode("utf-8", "replace")


@dataclass(slots=True, eq=False)
class _Line:
    data: bytes
    pieces: list[_Piece]

    def shown(self) -> bytes:
        """Only strings with something masked are encoded again."""
        parts, at = bytearray(), 0
        for piece in self.pieces:
            piece.written = True
            if piece.hidden:
                parts += self.data[at : piece.begin] + piece.shown()
                at = piece.end
        return bytes(parts + self.data[at:])


class _Text:
    """Strings that continue each other. Keeps the last ones, which may be the beginning of a secret."""

    __slots__ = ("_masker", "_pieces", "_skipped")

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._pieces: list[_Piece] = []
        self._skipped = 0
        """Bytes of the first piece that are already done."""

    def feed(self, piece: _Piece) -> bool:
        """Whether the lines of the pieces at its end must wait."""
        self._pieces.append(piece)
        text = self._joined()
        spans, cut = self._masker.find(text)
        self._hide(spans)
        self._skip(cut)
        return self._masker.gives_away(text[cut:])

    @property
    def may_continue(self) -> bool:
        return bool(self._pieces)

    def end(self) -> None:
        self._hide(self._masker.find_rest(self._joined()))

    def waits(self, line: _Line) -> bool:
        return any(piece in self._pieces for piece in line.pieces)

    def _joined(self) -> bytes:
        return b"".join([piece.text for piece in self._pieces])[self._skipped :]

    def _hide(self, spans: list[tuple[int, int]]) -> None:
        for begin, end in spans:
            at, instead = -self._skipped, MASK
            for piece in self._pieces:
                first, last = max(0, begin - at), min(len(piece.text), end - at)
                if first < last and not piece.written:
                    piece.hidden.append((first, last, instead))
                    instead = ""
                at += len(piece.text)

    def _skip(self, count: int) -> None:
        self._skipped += count
        while self._pieces and self._skipped >= len(self._pieces[0].text):
            self._skipped -= len(self._pieces.pop(0).text)


class SplitSecrets:
    """One stream: `feed` returns what may be shown, `flush` the rest. Of a secret in pieces at most the first five
    bytes are shown, and no more than half of it."""

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._partial: list[bytes] = []
        """The incomplete line."""
        self._lines: deque[_Line] = deque()
        """Complete lines that are not written yet."""
        self._texts: dict[tuple[bytes, ...], _Text] = {}
        self._waiting: set[_Text] = set()

    def feed(self, data: bytes) -> bytes:
        shown, at = bytearray(), 0
        for end in _LINE_END.finditer(data):
            self._partial.append(data[at : end.end()])
            at = end.end()
            shown += self._take_line()
        if at < len(data):
            self._partial.append(data[at:])
        return bytes(shown)

    def flush(self) -> bytes:
        shown = self._take_line()
        for text in self._waiting:
            text.end()
        self._waiting.clear()
        return shown + self._written()

    def _take_line(self) -> bytes:
        line = b"".join(self._partial)
        self._partial.clear()
        self._lines.append(self._read(line))
        return self._written()

    def _read(self, data: bytes) -> _Line:
        """Finds the strings that are values, and what each of them continues."""
        found: list[tuple[bytes, _Piece]] = []
        name, places = b"", list[bytes]()
        for string in _STRING.finditer(data):
            if string[2] is not None:
                name = string[1]
                if string[3] and name.endswith(b"index"):
                    places.append(string[3])
            else:
                found.append((name, _Piece(string.start(1), string.end(1), _plain(string[1]))))
        for name, piece in found:
            self._continue((name, *places), piece)
        return _Line(data, [piece for _, piece in found])

    def _continue(self, key: tuple[bytes, ...], piece: _Piece) -> None:
        text = self._texts.pop(key, None) or _Text(self._masker)
        self._waiting.discard(text)
        if text.feed(piece):
            self._waiting.add(text)
        if text.may_continue:
            self._texts[key] = text

    def _written(self) -> bytes:
        shown = bytearray()
        while self._lines and not any(text.waits(self._lines[0]) for text in self._waiting):
            shown += self._lines.popleft().shown()
        return bytes(shown)


def _plain(literal: bytes) -> bytes:
    """The value of a JSON string, as UTF-8."""
    if b"\\" not in literal:
        return literal
    try:
        text: str = json.loads(b'"' + literal + b'"', strict=False)
    except ValueError:
        return literal
    return text.encode("utf-8", "surrogatepass")
