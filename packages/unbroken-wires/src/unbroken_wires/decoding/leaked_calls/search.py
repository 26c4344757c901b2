"""Finds calls that leaked into the text of a response while it streams, and removes them from the text.

Text is held back only while it can still be the start of a mark or is inside an open form; everything that turns out
not to be a call is passed on as text, character for character. Only offered tools are called, and only with arguments
that are one strict JSON object: nothing is guessed or repaired. What the forms look like is data (`dialects`); how text
is read without looking back is in `reader`.

Strategy. Outside a form a search for the first characters of all marks, and for marks where there are some, decides
whether a piece needs more work. At a mark the dialect's grammar runs on the text as it arrives. Where the grammar
fails, everything before the token that did not fit is final text and the search continues there: a form that is never
closed costs one pass, not one per piece, and a complete call after a broken one is still found.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from unbroken_wires.decoding.arguments import Pending, parse_arguments
from unbroken_wires.decoding.leaked_calls.dialects import DIALECTS, Dialect
from unbroken_wires.decoding.leaked_calls.literal_forms import Quotation
from unbroken_wires.decoding.leaked_calls.reader import Found, Mismatch, Reader, Steps
from unbroken_wires.decoding.leaked_calls.typed_values import Offered
from unbroken_wires.messages import Json

MAX_HELD = 1 << 20
"""How many characters of one open form are held at most; a longer one is text."""

_REASONING_ENDS = ("</think>", "</thinking>", "</seed:think>", "[/THINK]", "<|END_THINKING|>", "<|inner_suffix|>")
"""Behind these the answer begins, also a bare one."""

_FENCE = "```"


def _found_in(marks: Iterable[str]) -> re.Pattern[str]:
    """Matches a mark, or the beginning of one that the text ends with. As a tree, so that each character is compared
    once however many marks there are."""
    tree: dict[str, Any] = {}
    for mark in marks:
        node = tree
        for character in mark:
            node = node.setdefault(character, {})
    return re.compile("|".join(re.escape(character) + _branches(rest) for character, rest in tree.items()))


def _branches(tree: dict[str, Any]) -> str:
    rests = [re.escape(character) + _branches(rest) for character, rest in tree.items()]
    return f"(?:{'|'.join([*rests, chr(92) + 'Z'])})" if rests else ""


_MARKED = tuple((mark, dialect) for dialect in DIALECTS for mark in dialect.marks if dialect.place != "start")
_BY_MARK = {mark: tuple(dialect for other, dialect in _MARKED if other == mark) for mark, _ in _MARKED}
_AT_START = {mark: dialect for dialect in DIALECTS for mark in dialect.marks if dialect.place == "start"}
_NAMED = next(dialect for dialect in DIALECTS if dialect.place == "name")
_AT_LINE = tuple(mark for mark, dialect in _MARKED if dialect.place == "line")
_MARKS = frozenset((*_BY_MARK, *_REASONING_ENDS))
_IS_FENCE = _found_in([_FENCE])
_NOT_BLANK = re.compile(r"[^ \t\r\n]")
_FIRST_CHARACTERS = frozenset([" ", "\t", "\r", "\n", *(mark[0] for mark in (*_MARKS, *_AT_START))])

# A mark that begins with a letter has another first character in it (`functools[`), so that plain text can be passed on
# without looking at each such letter: only the end of a piece needs it.
_WORDS = tuple(mark for mark in _AT_LINE if mark[0].isalpha())
_LETTERS = frozenset("".join(word[:-1] for word in _WORDS))
_LONGEST_WORD = max(map(len, _WORDS))
_CHARACTERS = "".join(sorted({mark[0] for mark in _MARKS.difference(_WORDS)}))
_ANY_CHARACTER = re.compile(f"[{re.escape(_CHARACTERS + ''.join(word[-1] for word in _WORDS))}]")
_SHORT = 64
"""In fewer characters than this, one search for all these characters is faster than one search for each."""


@cache
def _is_mark(first: str = "") -> re.Pattern[str]:
    """Matches the marks with this first character; without one, all marks. Compiled when it is needed, because all of
    them take 30 ms of start-up time."""
    return _found_in(sorted(mark for mark in _MARKS if mark.startswith(first)))


@dataclass(frozen=True, slots=True)
class ProseCall:
    """A call found in text. `arguments` is the text of a JSON object, `text` what the call looked like: all texts given
    and the `text` of all calls together are the text that came in."""

    name: str
    arguments: str
    dialect: str
    text: str


class Prose:
    """Feed it the text in any pieces. `names` are the offered tools: a form with another name stays text. `schemas` are
    the JSON Schemas of their parameters, which decide what values without a type are."""

    def __init__(
        self,
        names: Collection[str],
        schemas: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        max_held: int = MAX_HELD,
    ) -> None:
        self.offered = Offered(names, schemas)
        self._reader = Reader(max_held)
        self._steps: Steps[None] | None = None
        self._dialect: Dialect = DIALECTS[0]
        self._fresh = True
        """Nothing but white space and reasoning has come: what follows may be a response that is one bare call."""
        self._at_line = False
        """The mark of the open form is at the start of a line."""
        self._quoting = False
        """In a code block of some language: nothing but its end is searched for."""

    def restarted(self) -> Prose:
        """For the text behind a gap."""
        return Prose(self.offered.names, self.offered.schemas)

    @property
    def unread(self) -> int:
        """Characters that will be read again with the next piece: few, however much is held."""
        return self._reader.unread

    @property
    def quiet(self) -> bool:
        """Nothing is held, and plain text may simply pass."""
        reader = self._reader
        return not self._fresh and self._steps is None and reader.at == len(reader.text)

    def doubt(self, text: str) -> int:
        """Of text that comes while it is quiet: where a mark may begin; -1 if all of it is plain."""
        if not text[_SHORT:] and _ANY_CHARACTER.search(text) is None:
            return self._last_word(text) if text[-1] in _LETTERS else -1
        first = -1
        for character in _FENCE[0] if self._quoting else _CHARACTERS:
            # Two steps, because a search for a character is a hundred times faster than one for a pattern, and a
            # pattern with one first character five times faster than one with several.
            if character in text:
                found = (_IS_FENCE if self._quoting else _is_mark(character)).search(text)
                if found is not None and not 0 <= first < found.start():
                    first = found.start()
        for word in _WORDS:
            place = text.find(word) if word[-1] in text else -1
            if place >= 0 and not 0 <= first < place:
                first = place
        return self._last_word(text) if first < 0 and text[-1] in _LETTERS else first

    def skip(self, text: str) -> None:
        """This text came while it was quiet, and is plain. Only its last character can matter later."""
        reader = self._reader
        reader.before, reader.text = text[-1], ""
        reader.at = reader.begin = reader.end = 0

    def _last_word(self, text: str) -> int:
        """Where the last line begins, if it is the beginning of a mark that begins with a letter; else -1."""
        line = text.rfind("\n", -_LONGEST_WORD) + 1
        for word in _WORDS:
            if word.startswith(text[line:]) and (line or self._reader.at_line_start(self._reader.at)):
                return line
        return -1

    def feed(self, text: str) -> list[str | ProseCall]:
        if not text:
            return []
        if self._fresh and not self._reader.text and self._begins_as_text(text[0]):
            self._fresh = False
        if self.quiet and self.doubt(text) < 0:
            self.skip(text)
            return [text]
        self._reader.add(text)
        return self._continue()

    def _begins_as_text(self, first: str) -> bool:
        """Whether a response with this first character cannot begin with a call: nearly all are like that."""
        return first not in _FIRST_CHARACTERS and not any(name.startswith(first) for name in self.offered.names)

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
        """Find the next mark and start its grammar, or only pass it; false when the text at hand has none."""
        if self._fresh:
            opened = self._open_bare(out)
            if opened is not None:
                return opened
            if not self._fresh and not self._reader.at and self.doubt(self._reader.text) < 0:
                self._give(out, len(self._reader.text))  # maybe a long answer, all in one piece
                return False
        reader = self._reader
        at = reader.at
        pattern = _IS_FENCE if self._quoting else _is_mark()
        while found := pattern.search(reader.text, at):
            place, mark = found.start(), found.group()
            at = place + 1
            if not self._counts(mark, place):
                continue
            if mark not in _MARKS:  # only begun
                if reader.ended:
                    continue
                self._give(out, place)
                return False
            if mark not in _REASONING_ENDS and not self._quoting:
                return self._begin(out, place, mark)
            self._fresh, self._quoting = not self._quoting, False
            self._give(out, place + len(mark))
            return True
        self._give(out, len(reader.text))
        return False

    def _open_bare(self, out: list[str | ProseCall]) -> bool | None:
        """The same at the start of the text, where a form without a mark may stand; none if there is none."""
        reader = self._reader
        text = reader.text
        found = _NOT_BLANK.search(text, reader.at)
        if found is None:
            return None
        place = found.start()
        mark = _is_mark().match(text, place)
        if mark and self._counts(mark.group(), place) and (mark.group() in _MARKS or not reader.ended):
            self._fresh = mark.group() not in _MARKS
            return None
        starts = {*_AT_START, *self.offered.names} - {""}
        rest = text[place : place + max(map(len, starts))]
        if not reader.ended and any(len(rest) < len(mark) and mark.startswith(rest) for mark in starts):
            self._give(out, place)
            return False
        self._fresh = False
        for mark, dialect in _AT_START.items():
            if rest.startswith(mark):
                return self._begin(out, place, mark, dialect)
        if any(rest.startswith(name) for name in starts):
            return self._begin(out, place, "", _NAMED)
        return None

    def _counts(self, mark: str, place: int) -> bool:
        """Some marks count only at the start of a line; behind a backtick all are quoted."""
        if mark[0] == _FENCE[0]:
            return True
        if self._reader.follows(place, _FENCE[0]):
            return False
        return self._reader.at_line_start(place) or not any(line.startswith(mark) for line in _AT_LINE)

    def _begin(self, out: list[str | ProseCall], place: int, mark: str, dialect: Dialect | None = None) -> bool:
        """`dialect`: the one of a bare form, which reads its mark itself; empty for all that share the mark."""
        self._fresh = False
        self._give(out, place)
        self._at_line = self._reader.at_line_start(place)
        if dialect is None:
            self._reader.at = place + len(mark)
            self._steps = self._form(mark)
        else:
            self._dialect = dialect
            self._steps = dialect.read(self._reader, self.offered, mark)
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
        yield from self._dialect.read(self._reader, self.offered, mark)

    def _advance(self, out: list[str | ProseCall]) -> bool:
        """Continue the open form, if there is one; false when it waits for more text."""
        if self._steps is None:
            return True
        try:
            calls = next(self._steps)
        except (Mismatch, StopIteration) as end:
            self._steps = None
            self._quoting = isinstance(end, Quotation) and self._at_line
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


class DuplicateCalls:
    """Calls that a server parsed and left in the text too: each such pair is one call. `settle` recovers those in the
    text that has come; it is called before the wire's own calls begin or are decided."""

    def __init__(self, settle: Callable[[], None]) -> None:
        self.settle = settle
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
