"""Finds calls that leaked into the text of a response while it streams, and removes them from the text.

Text is held back only while it can still be the start of a mark or is inside an open form; everything that turns out
not to be a call is passed on as text, character for character. Only offered tools are called, and only with arguments
that are one strict JSON object: nothing is guessed or repaired. What the forms look like is data (`dialects`); how text
is read without looking back is in `reader`.

Strategy. Outside a form one search for the first characters of all marks decides whether a piece needs more work. At a
mark the dialect's grammar runs on the text as it arrives. Where the grammar fails, everything before the token that did
not fit is final text and the search continues there: a form that is never closed costs one pass, not one per piece, and
a complete call after a broken one is still found.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from unbroken.decoding.arguments import Pending, parse_arguments
from unbroken.decoding.prose.dialects import DIALECTS, Dialect
from unbroken.decoding.prose.reader import Found, Mismatch, Reader, Steps
from unbroken.messages import Json

MAX_HELD = 1 << 20
"""How many characters of one open form are held at most; a longer one is text."""

_MARKED = tuple((mark, dialect) for dialect in DIALECTS for mark in dialect.marks)
_BY_MARK = {mark: tuple(dialect for other, dialect in _MARKED if other == mark) for mark, _ in _MARKED}
_AT_START = frozenset(mark for mark, dialect in _MARKED if dialect.place == "start")
_AT_LINE = frozenset(mark for mark, dialect in _MARKED if dialect.place == "line")
_SEARCHED = tuple(mark for mark in _BY_MARK if mark not in _AT_START)
_LONGEST = max(map(len, _SEARCHED))
_PREFIXES = frozenset(mark[:size] for mark in _SEARCHED for size in range(1, len(mark)))
_LINE_PREFIXES = frozenset(mark[:size] for mark in _AT_LINE for size in range(1, len(mark)))
_FIRST = re.compile("[" + re.escape("".join(sorted({mark[0] for mark in _SEARCHED}))) + "]")
_MARK = re.compile("|".join(map(re.escape, _SEARCHED)))
_NOT_BLANK = re.compile(r"[^ \t\r\n]")


@dataclass(frozen=True, slots=True)
class ProseCall:
    """A call found in text. `arguments` is the text of a JSON object, `text` what the call looked like: all texts given
    and the `text` of all calls together are the text that came in."""

    name: str
    arguments: str
    dialect: str
    text: str


class Prose:
    """Feed it the text in any pieces. `names` are the offered tools: a form with another name stays text."""

    def __init__(self, names: Collection[str], *, max_held: int = MAX_HELD) -> None:
        self.names = frozenset(names)
        self._reader = Reader(max_held)
        self._steps: Steps[None] | None = None
        self._dialect: Dialect = DIALECTS[0]
        self._fresh = True
        """Nothing but white space has come: a brace here may open a response that is one bare call."""

    @property
    def unread(self) -> int:
        """Characters that will be read again with the next piece: few, however much is held."""
        return self._reader.unread

    def passes(self, text: str) -> bool:
        """Nothing is held and this piece has no mark: it is plain text and need not be fed."""
        reader = self._reader
        if self._fresh and not self._begins_as_text(text):
            return False
        if self._steps is None and reader.at == len(reader.text) and _FIRST.search(text) is None:
            # Only its last character can matter later.
            reader.text = text
            reader.at = reader.begin = reader.end = len(text)
            return True
        return False

    def _begins_as_text(self, text: str) -> bool:
        """Of the very first piece."""
        if self._reader.text or text[0] in _AT_START or text[0].isspace():
            return False
        self._fresh = False
        return True

    def feed(self, text: str) -> list[str | ProseCall]:
        if not text:
            return []
        if self.passes(text):
            return [text]
        self._reader.add(text)
        return self._continue()

    def end(self) -> list[str | ProseCall]:
        """No more text comes: what is still held becomes a call, where its form may end so, or text."""
        reader = self._reader
        reader.ended = True
        if self._steps is None and reader.begin == len(reader.text):
            return []  # nothing is held
        return self._continue()

    def _continue(self) -> list[str | ProseCall]:
        out: list[str | ProseCall] = []
        while (self._steps is not None or self._open(out)) and self._advance(out):
            pass
        return _joined(out)

    def _open(self, out: list[str | ProseCall]) -> bool:
        """Find the next mark and start its grammar; false when the text at hand has none."""
        reader = self._reader
        text, at = reader.text, reader.at
        if self._fresh:
            found = _NOT_BLANK.search(text, at)
            if found and text[found.start()] in _AT_START:
                return self._begin(out, found.start(), text[found.start()])
            self._fresh = found is None
        while found := _FIRST.search(text, at):
            place = found.start()
            mark = _MARK.match(text, place)
            if mark and (mark.group() not in _AT_LINE or reader.at_line_start(place)):
                return self._begin(out, place, mark.group())
            if not reader.ended and len(text) - place < _LONGEST and self._may_begin(place):
                self._give(out, place)
                return False
            at = place + 1
        self._give(out, len(text))
        return False

    def _may_begin(self, place: int) -> bool:
        """Is the text from here to its end the beginning of a mark?"""
        begun = self._reader.text[place:]
        return begun in _PREFIXES and (begun not in _LINE_PREFIXES or self._reader.at_line_start(place))

    def _begin(self, out: list[str | ProseCall], place: int, mark: str) -> bool:
        self._fresh = False
        self._give(out, place)
        self._reader.at = place + len(mark)
        self._steps = self._form(mark)
        return True

    def _give(self, out: list[str | ProseCall], to: int) -> None:
        out.extend(self._reader.take(to))
        self._reader.at = to

    def _form(self, mark: str) -> Steps[None]:
        dialects = _BY_MARK[mark]
        self._dialect = dialects[0]
        if len(dialects) > 1:
            yield from self._reader.blanks()
            next_character = yield from self._reader.peek()
            self._dialect = next(
                dialect for dialect in dialects if next_character in dialect.starts or not dialect.starts
            )
        yield from self._dialect.read(self._reader, self.names, mark)

    def _advance(self, out: list[str | ProseCall]) -> bool:
        """Continue the open form; false when it waits for more text."""
        try:
            calls = next(self._steps) if self._steps is not None else ()
        except (Mismatch, StopIteration):
            self._steps = None
            return True
        if calls:
            self._deliver(out, calls)
        return bool(calls)

    def _deliver(self, out: list[str | ProseCall], calls: tuple[Found, ...]) -> None:
        whole = "".join(self._reader.take(self._reader.at))
        start = 0
        for number, call in enumerate(calls, 1):
            end = call.end if number < len(calls) else len(whole)
            out.append(ProseCall(call.name, call.arguments, self._dialect.name, whole[start:end]))
            start = end


def _joined(items: list[str | ProseCall]) -> list[str | ProseCall]:
    joined: list[str | ProseCall] = []
    texts: list[str] = []
    for item in items:
        if isinstance(item, str):
            texts.append(item)
            continue
        if texts:
            joined.append("".join(texts))
            texts = []
        joined.append(item)
    if texts:
        joined.append("".join(texts))
    return joined


class Twins:
    """Calls that a server parsed and left in the text too: each such pair is one call."""

    def __init__(self) -> None:
        self.recovered: set[Pending] = set()
        """The calls found in the text."""
        self._alone: defaultdict[tuple[str, str], list[Pending]] = defaultdict(list)
        """By name and arguments: calls of one kind that have no counterpart of the other kind yet."""
        self._reported: list[tuple[Pending, dict[str, Json]]] = []
        """Calls that the wire reported before any was found in the text: most responses never compare them."""

    def find_recovered(self, call: Pending, arguments: dict[str, Json]) -> Pending | None:
        """The wire reports a call: returns the same call if it was found in the text before."""
        if call in self.recovered:
            return None
        if not self.recovered:
            self._reported.append((call, arguments))
            return None
        alone = self._alone[_fingerprint(call.name, arguments)]
        if alone and alone[-1] in self.recovered:
            return alone.pop()
        alone.append(call)
        return None

    def was_reported(self, name: str, arguments: str) -> bool:
        """A call is found in the text: has the wire reported it?"""
        for call, given in self._reported:
            self._alone[_fingerprint(call.name, given)].append(call)
        self._reported.clear()
        alone = self._alone[_fingerprint(name, parse_arguments(arguments).arguments)]
        if alone and alone[-1] not in self.recovered:
            alone.pop()
            return True
        return False

    def add_recovered(self, call: Pending, arguments: str) -> None:
        self.recovered.add(call)
        self._alone[_fingerprint(call.name, parse_arguments(arguments).arguments)].append(call)


def _fingerprint(name: str, arguments: dict[str, Json] | None) -> tuple[str, str]:
    return name, json.dumps(arguments, sort_keys=True)
