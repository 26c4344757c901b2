"""Removes secrets from bytes as they pass, even if a read cuts one in two or a stream splits it over several events.

Pure. For messages that people read, use `secrets.mask`, which also guesses what looks like a key. Here nothing is
guessed, because the log must show what was sent: everything else passes unchanged. For split secrets, JSON strings that
continue each other (same field, same `index` values) are read as one text. A line is held back while the end of such a
text matches much of the beginning of a secret; all other lines leave at once.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from unbroken.models.secrets import MASK, Folded, Span, collect, spellings, united, without_line_breaks

_MASK = MASK.encode()
_WORDS = (
    "true false null none auto empty user model system developer assistant tool tool_calls tool_use tool_result "
    "function_call function parameters arguments messages message content contents parts text role type name index "
    "choices choice delta data event stop usage stream chat.completion.chunk response output input completed required "
    "properties object string number integer boolean array finish_reason reasoning_content candidates"
)
"""Words of the wires. A placeholder key like `none` for a server without keys is not a secret, and masking it would
destroy the body."""
_SHORTEST_CUT = 6
"""This many bytes of a secret reveal something, if a stream ends in the middle of it."""
_BEGIN = 3
"""Length of the prefix by which a secret is searched; every secret is longer."""
_SIGN = 6
"""Length of the prefix for a first, fast search: without it there is no complete secret. The prefixes are few, because
most spellings begin alike."""
_SHORTEST_NUMBER = 8
"""Minimum number of digits: shorter ones occur in many numbers."""


class Masker:
    """Masks secrets in bytes. Use one `Passage` for the bytes of one stream."""

    def __init__(self, secrets: Iterable[str]) -> None:
        found = collect(secret for secret in secrets if is_secret(secret))
        spelled = {spelling.encode("utf-8", "replace") for secret in found for spelling in spellings(secret)}
        self.secrets = tuple(sorted(spelled, key=lambda secret: (-len(secret), secret)))
        self._signs = tuple({secret[:_SIGN] for secret in self.secrets})
        self._folded = Folded(found)
        self._any = re.compile(b"|".join(map(re.escape, self.secrets)) or b"(?!)")
        self._by_begin: dict[bytes, list[bytes]] = {}
        for secret in self.secrets:
            self._by_begin.setdefault(secret[:_BEGIN], []).append(secret)
        self._shorter = {begin[:length] for begin in self._by_begin for length in range(1, _BEGIN)}
        self._shortest = min(map(len, self.secrets), default=0)
        self._longest = max(map(len, self.secrets), default=0)

    def mask(self, data: bytes) -> bytes:
        return _without(data, self._spans(data))

    def mask_text(self, text: str) -> str:
        return self.mask(text.encode("utf-8", "replace")).decode("utf-8", "replace")

    def split(self, data: bytes) -> tuple[bytes, bytes]:
        """The part that can be shown now, and the rest, in which a secret may begin."""
        spans, cut = self.find(data)
        return _without(data[:cut], spans), data[cut:]

    def find(self, data: bytes) -> tuple[list[Span], int]:
        """The spans of secrets, and where an incomplete secret may begin; the length of the data if none does."""
        spans: list[Span] = []
        at, found = 0, self._found_in(data)
        folded = self._folded.spans_in_bytes(data)
        while True:
            whole, cut = self._any.search(data, at) if found else None, self._cut(data, at)
            # If both begin at the same place, it may become a longer secret.
            if whole is None or whole.start() >= cut:
                break
            spans.append(whole.span())
            at = whole.end()
        if not folded:
            return spans, cut
        spans = united([*spans, *(span for span in folded if span[0] < cut)])
        at = spans[-1][1] if spans else 0
        return spans, cut if at <= cut else self._cut(data, at)  # a masked part is not the beginning of another secret

    def find_rest(self, data: bytes) -> list[Span]:
        """The same at the end of a stream, where an incomplete secret must be masked too."""
        spans = self._spans(data)
        cut = self._cut(data, spans[-1][1] if spans else 0)
        return [*spans, (cut, len(data))] if len(data) - cut >= _SHORTEST_CUT else spans

    def gives_away(self, begin: bytes) -> bool:
        """Is this enough of the beginning of a secret that it must not be shown?"""
        begin = without_line_breaks(begin)
        return bool(begin) and any(
            len(begin) >= min(_SHORTEST_CUT, len(secret) // 2) and secret[: len(begin)] == begin[: len(secret)]
            for secret in self.secrets
        )

    def mask_rest(self, data: bytes) -> bytes:
        return _without(data, self.find_rest(data))

    def _spans(self, data: bytes) -> list[Span]:
        spans = [whole.span() for whole in self._any.finditer(data)] if self._found_in(data) else []
        folded = self._folded.spans_in_bytes(data)
        return united([*spans, *folded]) if folded else spans

    def _found_in(self, data: bytes) -> bool:
        """Many searches for one text each are much faster than one regular expression for all."""
        if len(data) < self._shortest or not any(sign in data for sign in self._signs):
            return False
        return any(secret in data for secret in self.secrets)

    def _cut(self, data: bytes, at: int) -> int:
        """Where the first secret begins that is cut by the end of the data; the end if none is."""
        return min(self._cut_in_one_piece(data, at), self._folded.cut_in_bytes(data, at))

    def _cut_in_one_piece(self, data: bytes, at: int) -> int:
        size = len(data)
        cut, at = size, max(at, size - self._longest + 1)
        for begin, secrets in self._by_begin.items():
            place = data.find(begin, at)
            while 0 <= place < cut:
                tail = data[place:]
                if any(len(tail) < len(secret) and secret.startswith(tail) for secret in secrets):
                    cut = place
                place = data.find(begin, place + 1)
        if cut == size:
            places = range(max(at, size - _BEGIN + 1), size)
            return next((place for place in places if data[place:] in self._shorter), size)
        return cut


class Passage:
    """Masks one stream: `feed` returns what may be shown, `flush` the rest."""

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        shown, self._held = self._masker.split(self._held + chunk)
        return shown

    def flush(self) -> bytes:
        rest, self._held = self._held, b""
        return self._masker.mask_rest(rest)


def _without(data: bytes, spans: list[Span]) -> bytes:
    if not spans:
        return data
    shown, at = bytearray(), 0
    for begin, end in spans:
        shown += data[at:begin] + _MASK
        at = end
    return bytes(shown + data[at:])


def is_secret(text: str) -> bool:
    return text.lower() not in _WORDS and not (text.isdigit() and len(text) < _SHORTEST_NUMBER)


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
