"""`sentences`: the text of a run, sentence by sentence, for speech and for chats that cannot show every word.

Nothing is changed: the pieces joined are the text. A sentence is yielded as soon as it is certainly complete, with the
white space after it, and then the same sentences come out however the text was split into deltas. If no more text
arrives for `PAUSE` seconds, because the model thinks or writes the arguments of a call, a sentence that looks complete
is yielded as well. It is not a grammar: if a full stop may not be an end (`Dr. No`, `3.14`, `e.g. this`, `1. First`),
the sentence continues; too long is better than torn.

What was yielded cannot be taken back. If a stream breaks and the retry gives a different answer, that follows as a new
paragraph; the half sentence in which the first one broke off is never yielded.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterable
from typing import Final

from unbroken.agent.streaming import OTHER_LOOP, Buffered, Readable, translate
from unbroken.errors import UserError
from unbroken.events import (
    Event,
    RequestRetried,
    RequestSent,
    RunFailed,
    RunFinished,
    TextAdded,
    TextFinished,
    TextReplaced,
)
from unbroken.models.model import close
from unbroken_wires.decoding.assembler import Shown

STRONG = "。！？｡।۔؟"
"""These always end a sentence; `.`, `!`, `?` and `…` may also be inside of one."""

TITLES = (
    " mr mrs ms mx dr prof st mt messrs gen col capt lt sgt cpl maj rep sen gov pres rev hon fr hr hrn mme mlle "
    "vs cf ca approx resp viz al bzw evtl ggf inkl sog vgl sr sra srta dott sig "
)
"""Abbreviations that never end a sentence."""

NUMBERED = " no nos nr fig figs eq eqs vol ch sec art para p pp pt ver abb tab kap "
"""Abbreviations if a number follows, otherwise words."""

LONGEST = 64
"""More marks or white space than this end a sentence, so that no text makes the splitter scan it again and again."""

PARAGRAPH = "\n\n"

PAUSE = 0.04
"""Seconds after which a sentence that looks complete is yielded, though the next one has not begun."""

_MARK = re.compile(rf"[.!?…{STRONG}\n]")
_RUN = re.compile(rf"[.!?…{STRONG}]{{1,{LONGEST}}}")
_CLOSERS: Final = frozenset("'”’»)]}」』）】》〉〕］｝〗")
_QUOTES: Final = frozenset("'\"＂'”’»」』")
_PAIRED = {mark: re.compile(f"{re.escape(mark)}+") for mark in '"*_`＂'}
"""Marks that open and close with the same sign."""
_SPACE = re.compile(rf"[^\S\n]{{0,{LONGEST}}}")
_GOES_ON = frozenset(",;:，、；：")
_GOES_ON_AFTER_SPACE = _GOES_ON | frozenset(")]}–—|…")
_WORD = re.compile(r"[^\s(\[{\"'“‘«*_—–/]*\Z")
_LONGEST_WORD = 32
_ADDRESS = re.compile(r"\S[./@:_\\]\S*\Z")
"""The beginning of an address, a path or a file name: after it, a full stop is often a part of it."""
_BULLET = re.compile(r"[*+-]\s")
_LIST_NUMBER = re.compile(r"[ >*#_-]*(?:\d{1,3}|[A-Za-z]|[ivxIVX]{1,4})\Z")
_FENCE = re.compile(r"`{3,}|~{3,}")


def sentences(stream: AsyncIterable[Event]) -> Buffered[str]:
    """The text of a run (`agent.stream(…)`, or any events) in sentences. The rest of a turn is yielded at its end; a
    code block is one piece, and so is a line without a full stop. If a retry gives a different answer, it follows after
    an empty line. If you stop reading, the run ends."""
    speaker = Sentences()
    return translate(
        with_pauses(stream, speaker),
        lambda event: speaker.pause() if event is None else speaker.take(event),
        lambda: filter(None, [speaker.end()]),
    )


class with_pauses(Readable[Event | None]):
    """The events; and None each time that `speaker` holds a sentence that looks complete and nothing has arrived for
    `PAUSE` seconds: call `speaker.pause()` then. If you stop reading, the run ends."""

    def __init__(self, stream: AsyncIterable[Event], speaker: Sentences) -> None:
        self._events = aiter(stream)
        self._speaker = speaker
        self._reading: asyncio.Future[Event] | None = None
        """A read that continues while the sentence is yielded: cancelling it would end a generator."""

    async def __anext__(self) -> Event | None:
        if self._reading is None:
            if not self._speaker.looks_complete:
                return await anext(self._events)
            self._reading = asyncio.ensure_future(anext(self._events))
        if self._reading.get_loop() is not asyncio.get_running_loop():
            raise UserError(OTHER_LOOP)
        limit = PAUSE if self._speaker.looks_complete else None
        if not (await asyncio.wait([self._reading], timeout=limit))[0]:
            return None
        reading, self._reading = self._reading, None
        return reading.result()

    async def aclose(self) -> None:
        if (reading := self._reading) is not None:
            reading.get_loop().call_soon_threadsafe(reading.cancel)
            if reading.get_loop() is asyncio.get_running_loop():
                await asyncio.wait([reading])
        await close(self._events)


class Sentences:
    """If you consume events yourself, `Sentences` splits the text as it arrives. `take` returns the sentences that are
    now complete, `pause` one that only looks complete, `end` the white space that is left at the very end.
    `with_pauses` reports when it is time for `pause`."""

    def __init__(self) -> None:
        self._splitter = Splitter()
        self._before = ""
        """White space that was left of the previous turn; the first sentence of this one begins with it."""
        self._given: list[str] = []
        """The text of this turn."""
        self._retried = False

    def take(self, event: Event) -> list[str]:
        """The sentences that this event completes, and the rest of a turn when it ends; most events complete none."""
        match event:
            case TextAdded():
                return self._give(self._splitter.feed(event.text))
            case TextReplaced():
                return self._give(self._replace(event.text))
            case RequestRetried():
                self._retried = True
                return []
            case TextFinished():
                return self._give(self._end_turn(event.text))
            case RequestSent() | RunFinished() | RunFailed():
                rest = self._splitter.flush()
                self._before, self._given, self._retried = self._splitter.blank, [], False
                return [rest] if rest else []
            case _:
                return []

    @property
    def looks_complete(self) -> bool:
        """Is there a sentence that only lacks the beginning of the next one?"""
        return self._splitter.looks_complete

    def pause(self) -> list[str]:
        """The sentence that looks complete, in a list; an empty list if there is none."""
        return self._give([self._splitter.flush_sentence()]) if self.looks_complete else []

    def end(self) -> str:
        """What is left after the last event; with it, the pieces joined are the text."""
        return self._splitter.end()

    def _give(self, sentences: list[str]) -> list[str]:
        self._given += sentences
        return sentences

    def _replace(self, text: str) -> list[str]:
        """Drops what was held back. If what was yielded is the beginning of the new text, the rest of it follows."""
        given = "".join(self._given)
        self._splitter.drop(not given or given.endswith("\n"))
        if not given:
            return self._splitter.feed(self._before + text)
        rest = Shown(given[len(self._before) :]).compare(text)
        if not rest.replaced:
            return self._splitter.feed(rest.text)
        self._given, self._before = [], ""
        self._splitter.drop(True)
        newlines = len(given) - len(given.rstrip("\n"))
        return self._splitter.feed(f"{PARAGRAPH[newlines:]}{text}")

    def _end_turn(self, text: str) -> list[str]:
        if self._retried and text == "".join(self._given)[len(self._before) :]:
            self._splitter.drop(True)  # the second answer ends before the half sentence in which the first one broke
        rest = self._splitter.flush()
        return [rest] if rest else []


class Splitter:
    """Text in, sentences out: `feed` returns those that are now complete, `flush` what is left at the end of a turn.

    White space before the first word of a sentence belongs to it, and so does white space after it, up to the end of
    the line.
    """

    def __init__(self) -> None:
        self._blank: list[str] = []
        """White space before the first word."""
        self._rest = ""
        """The sentence, or the code block, that is being written, from its first word on."""
        self._from = 0
        """There is no end before this place."""
        self._opened: dict[str, tuple[int, int]] = {}
        """For marks like `"`: how many of them are before a place."""
        self._line: int = 0
        """In a code block: where its last line starts; in the line that may open one: how far it has been read."""
        self._at_line_start = True
        self._fence = ""
        """The mark that opened the code block."""

    def feed(self, text: str) -> list[str]:
        # A string grows in place only if nothing else refers to it; otherwise a long code block would take quadratic
        # time.
        rest, self._rest = self._rest, ""
        rest += text
        self._rest = rest
        found: list[str] = []
        while end := self._end():
            found.append(self._take(end))
            self._at_line_start = found[-1].endswith("\n")
        return found

    def flush(self) -> str:
        """The rest of a turn. White space alone waits for the first sentence of the next one."""
        self._at_line_start, self._fence = True, ""
        return self._take(len(self._rest)) if self._rest else ""

    @property
    def looks_complete(self) -> bool:
        """Does the text so far end where a sentence most likely ends? After `...` it often continues, and after a
        quoted question ("Really?" he asked)."""
        rest = self._rest
        if self._fence or not rest or self._from == len(rest):
            return False
        run = _RUN.match(rest, self._from)
        if run is None or (self._at_line_start and rest[0] == "|"):
            return False
        marks, closers = run[0], rest[run.end() : self._tail(self._from, run.end())]
        if marks[-1] in "!?！？" and not _QUOTES.isdisjoint(closers):
            return False
        if marks != ".":
            return not marks.strip(f"!?{STRONG}")
        after_digit = rest[self._from - 1 : self._from].isdigit()
        word = rest[max(self._from - _LONGEST_WORD, 0) : self._from]
        return not (after_digit or _ADDRESS.search(word) or self._is_abbreviated(self._from, "A"))

    def flush_sentence(self) -> str:
        """The sentence that looks complete; the next text continues after it, in the same line."""
        self._at_line_start = False
        return self._take(len(self._rest))

    @property
    def blank(self) -> str:
        """White space that waits for the first word."""
        return "".join(self._blank)

    def drop(self, at_line_start: bool) -> None:
        """Drops what is held back; what follows continues after what was returned."""
        self._take(len(self._rest))
        self._at_line_start, self._fence = at_line_start, ""

    def end(self) -> str:
        """What is left at the very end, including white space."""
        return self._take(len(self._rest))

    def _take(self, end: int) -> str:
        taken = "".join([*self._blank, self._rest[:end]])
        self._blank.clear()
        self._rest, self._from = self._rest[end:], 0
        self._line = 0
        self._opened.clear()
        return taken

    def _end(self) -> int:
        """Where the sentence or the code block ends, or 0 if that is not known yet."""
        if self._fence:
            return self._end_of_block()
        if self._from == 0 and (word := self._rest.lstrip()) != self._rest:
            blank = self._rest[: len(self._rest) - len(word)]
            self._at_line_start = self._at_line_start or "\n" in blank
            self._blank.append(blank)
            self._rest = word
        return self._end_of_sentence() if self._rest else 0

    def _end_of_sentence(self) -> int:
        rest, at = self._rest, self._from
        if at == 0 and self._at_line_start and rest.startswith(("```", "~~~")):
            newline = rest.find("\n", self._line)
            if newline < 0:
                self._line = len(rest)
                return 0
            self._line = 0
            opening = _FENCE.match(rest)
            assert opening is not None
            if opening[0][0] not in rest[opening.end() : newline]:  # otherwise it is code within one line
                self._fence = opening[0]
                self._line = self._from = newline + 1
                return self._end_of_block()
        if self._at_line_start and rest[0] == "|":  # a row of a table
            newline = rest.find("\n", at)
            at = len(rest) if newline < 0 else newline
        while mark := _MARK.search(rest, at):
            at = mark.start()
            if mark[0] == "\n":
                return at + 1
            run = _RUN.match(rest, at)
            assert run is not None
            tail = self._tail(at, run.end())
            space = _SPACE.match(rest, tail)
            assert space is not None
            if space.end() - tail == LONGEST:
                return space.end()
            if space.end() == len(rest):
                self._from = at
                return 0
            if rest[space.end()] == "\n":
                return space.end() + 1
            if self._ends(at, run[0], rest[tail : space.end()], rest[space.end()]):
                return space.end()
            at = tail
        may_be_a_fence = len(rest) < 3 and rest.strip("`~") == ""
        self._from = 0 if may_be_a_fence else len(rest)
        return 0

    def _tail(self, start: int, at: int) -> int:
        """The position after everything that belongs to the sentence whose first mark is at `start`: quotes, brackets,
        more marks."""
        rest = self._rest
        while at < min(len(rest), start + LONGEST):
            sign = rest[at]
            if sign not in _CLOSERS and not _RUN.match(sign) and not self._is_open(sign, start):
                break
            at += 1
        return at

    def _is_open(self, sign: str, start: int) -> bool:
        if sign not in _PAIRED:
            return False
        counted = self._opened.get(sign)
        if counted is None:
            bullet = _BULLET.match(self._rest)
            counted = (bullet.end() if bullet else 0, 0)
        count = counted[1] + len(_PAIRED[sign].findall(self._rest, counted[0], start))
        self._opened[sign] = (start, count)
        return count % 2 == 1

    def _ends(self, start: int, run: str, space: str, following: str) -> bool:
        """Is this the end of a sentence: the marks `run` at `start`, and what follows them?"""
        if any(mark in STRONG for mark in run):
            return following not in _GOES_ON
        if not space:
            before = self._rest[start - 1 : start]
            return (_is_wide(following) or following in "“‘") and (_is_wide(before) or run != ".")
        if following.islower() or following in _GOES_ON_AFTER_SPACE:
            return False
        return run != "." or not self._is_abbreviated(start, following)

    def _is_abbreviated(self, start: int, following: str) -> bool:
        if self._at_line_start and _LIST_NUMBER.match(self._rest, 0, start):
            return True
        found = _WORD.search(self._rest[max(start - _LONGEST_WORD, 0) : start])
        word = found[0] if found else ""
        if f" {word.lower()} " in NUMBERED:
            return following.isdigit()
        if f" {word.lower()} " in TITLES:
            return True
        letters = word.split(".")
        if word in ("I", "a.m", "p.m", "A.M", "P.M") or not all(len(part) == 1 and part.isalpha() for part in letters):
            return False
        return len(letters) > 1 or word.isupper()

    def _end_of_block(self) -> int:
        rest = self._rest
        while (newline := rest.find("\n", self._from)) >= 0:
            line = rest[self._line : newline].strip()
            self._line = self._from = newline + 1
            if line.startswith(self._fence) and not line.strip(self._fence[0]):
                self._fence = ""
                return newline + 1
        self._from = len(rest)
        return 0


def _is_wide(character: str) -> bool:
    """Chinese, Japanese, Korean: letters and marks."""
    return (
        "\u2e80" <= character <= "\ua4cf"
        or "\uac00" <= character <= "\ud7a3"
        or "\uf900" <= character <= "\ufaff"
        or "\uff00" <= character <= "\uffef"
        or "\U00020000" <= character <= "\U0003ffff"
    )
