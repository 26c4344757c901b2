"""The picture in the terminal: lines of rich text that fit the width; in a pipe the same without colours.

What a page can open by a click stands here in one line: the marks after a call say how it ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from datetime import datetime

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from unbroken.errors import StreamError
from unbroken.viewer.clips import Clip
from unbroken.viewer.fields import as_object
from unbroken.viewer.lanes import CallLane, Mark, Turn
from unbroken.viewer.listing import Row
from unbroken.viewer.picture import RECORDED, Picture
from unbroken.viewer.ruler import (
    EARLY,
    FAILED,
    FINE,
    MODEL,
    RUNNING,
    SHARED,
    WAITING,
    WRITING,
    Glyphs,
    Ruler,
    Stretch,
)
from unbroken.wires.jsontext import loads

_TOOK = 9
"""Columns for seconds, at the right edge."""
_NARROWEST = 20
_PROMPT = 20
"""Columns that a prompt needs, to stand in the line of its run."""


def picture_lines(picture: Picture, width: int, glyphs: Glyphs = FINE) -> Iterator[Text]:
    width = max(width, _NARROWEST)
    yield Text(_fit(_line(picture.prompt) or picture.run or picture.file, width).rstrip(), "bold")
    yield from _wrapped(_facts(picture), width, "dim")
    for banner in picture.banners:
        yield from _wrapped(f"! {_line(banner)}", width, "yellow")
    if not picture.turns:
        return
    label = min(max(width * 7 // 20, 4), 36)
    ruler = Ruler(0.0, max(picture.seconds, 0.001), max(width - label - _TOOK - 1, 1))
    yield Text("")
    head = _line(picture.schedule).upper() or "RUN"
    yield Text.assemble((_fit(head, label), "bold"), (ruler.axis(), "dim"), _seconds(picture.seconds).rjust(_TOOK))
    marks = deque(mark for mark in picture.marks if mark.kind != "note")  # notes are among the banners
    for turn in picture.turns:
        while marks and marks[0].at < turn.asked:
            yield _mark(marks.popleft(), width, glyphs)
        bar = ruler.bar(_heard(turn, glyphs, picture.seconds))
        took = "" if turn.ended is None else _seconds(turn.ended - turn.asked)
        yield Text.assemble((_fit(_title(turn), label), "dim"), bar, (took.rjust(_TOOK), "dim"))
        for attempt in turn.attempts:
            if attempt.broken:
                yield Text(_fit(f"  {glyphs.broken} {_line(attempt.broken)}", width).rstrip(), FAILED)
        for call in turn.calls:
            if call.state != "withdrawn":
                yield _call(call, ruler, label, glyphs, picture.seconds)
                if call.error and call.result is not None and call.state != "dropped":
                    why = _line(call.result.text).removeprefix("Error: ")
                    yield Text(_fit(f"    {glyphs.failed} {why}", width).rstrip(), FAILED)
    for mark in marks:
        yield _mark(mark, width, glyphs)
    yield Text("")
    yield from _legend(picture, width, glyphs)
    if picture.answer.text:
        yield Text("")
        yield from _wrapped(_cut(picture.answer, 2000), width, "" if picture.state != "failed" else FAILED)


def list_lines(rows: Sequence[Row], width: int) -> Iterator[Text]:
    """The list of runs; what is none comes last. The name of the file stands in the line of a run if there is room for
    it, else below: it is what `unbroken view` and `unbroken replay` want to know."""
    width = max(width, _NARROWEST)
    runs = [row for row in rows if not row.problem]
    head = f"{'when':<19} {'end':<12}{'calls':>7}{'failed':>8}{'time':>10}  "
    longest = max((cell_len(_line(row.name)) for row in runs), default=0)
    asked = max((cell_len(_line(row.prompt)) for row in runs), default=0)
    wide = width >= len(head) + max(min(asked + 1, 2 * _PROMPT), _PROMPT) + 2 + longest
    room = width - len(head) - (longest + 2 if wide else 0)
    if runs and room >= _PROMPT:
        yield Text(f"{head}{_fit('prompt', room)}{'  file' if wide else ''}".rstrip(), "dim")
    for row in runs:
        prompt = _line(row.prompt)
        if room < _PROMPT:
            yield from _wrapped(_in_short(row), width, _tone(row))
            yield from _wrapped(prompt, width, "", "  ") if prompt else ()
            yield from _wrapped(_line(row.name), width, "dim", "  ")
            continue
        failed = "?" if row.failed is None else str(row.failed)
        line = Text.assemble(
            (f"{_day(row.time):<19} ", "dim"),
            (_fit(_line(row.state).replace("_", " "), 12), _tone(row)),
            f"{'-' if row.calls is None else row.calls:>7}",
            (f"{failed:>8}", FAILED if row.failed else ""),
            f"{_seconds(row.seconds):>10}  ",
            _fit(prompt, room) if wide else _fit(prompt, room).rstrip(),
            (f"  {_line(row.name)}" if wide else "", "dim"),
        )
        yield line
        if not wide:
            yield from _wrapped(_line(row.name), width, "dim", "  ")
    for row in rows:
        if row.problem:
            yield from _wrapped(f"! {_line(row.problem)}", width, "yellow")


def _tone(row: Row) -> str:
    if row.state in ("answered", RECORDED):
        return "green"
    return "red" if row.state in ("failed", "unfinished") else "yellow"


def _in_short(row: Row) -> str:
    told = [
        _day(row.time),
        _line(row.state).replace("_", " "),
        _count(row.calls, "call") if row.calls is not None else "",
        f"{row.failed} failed" if row.failed else "",
        _seconds(row.seconds),
    ]
    return " · ".join(filter(None, told))


def _mark(mark: Mark, width: int, glyphs: Glyphs) -> Text:
    return Text(_fit(f"  {glyphs.mark} {_seconds(mark.at)}: {_line(mark.text)}", width).rstrip(), "yellow")


def _facts(picture: Picture) -> str:
    totals = picture.totals
    told = [
        _line(picture.state).replace("_", " "),
        _count(totals.rounds, "round"),
        _count(totals.calls, "call"),
        f"{totals.failed} failed" if totals.failed else "",
        f"{totals.uncertain} uncertain" if totals.uncertain else "",
        f"{totals.early} started early" if totals.early else "",
        f"{totals.duplicates} shared" if totals.duplicates else "",
        _count(totals.restarts, "restart") if totals.restarts else "",
        f"{totals.retries - totals.restarts} asked again" if totals.retries > totals.restarts else "",
        f"{'about ' if totals.estimated else ''}{totals.input_tokens:,} tokens in, {totals.output_tokens:,} out"
        if totals.input_tokens or totals.output_tokens
        else "",
        _seconds(picture.seconds),
        _line(picture.model),
    ]
    return " · ".join(filter(None, told))


def _title(turn: Turn) -> str:
    if turn.round:
        return f"round {turn.round}"
    return "no answer" if turn.failed else "no end" if turn.ended is None else "answer"


def _heard(turn: Turn, glyphs: Glyphs, now: float) -> list[Stretch]:
    """The attempts of a turn, one behind the other, with a mark where one broke off."""
    parts: list[Stretch] = []
    for attempt in turn.attempts:
        end = now if attempt.ended is None else attempt.ended
        parts.append((attempt.asked, end, glyphs.model, MODEL))
        if attempt.broken:
            parts.append((end, end, glyphs.broken, FAILED))
    return parts


def _call(call: CallLane, ruler: Ruler, label: int, glyphs: Glyphs, now: float) -> Text:
    name = f"  {_line(call.name)} {_line(_values(call.arguments))}"
    text = Text.assemble(_fit(name, label), ruler.bar(_stretches(call, glyphs, now)))
    took = "" if call.started is None else _seconds((now if call.ended is None else call.ended) - call.started)
    text.append(
        (took or ("died" if call.died and call.state != "uncertain" else _MARKS.get(call.state, ""))).rjust(_TOOK),
        FAILED if call.error else "dim",
    )
    return text


def _values(arguments: Clip | None) -> str:
    """Of arguments that are not long, their values: `Rome, 3`."""
    if arguments is None or arguments.size > 4000:
        return arguments.text if arguments else ""
    try:
        value = loads(arguments.text.encode("utf-8", "replace"))
    except StreamError:
        return arguments.text
    return ", ".join(map(str, as_object(value).values())) if isinstance(value, dict) else arguments.text


_MARKS = {
    "shared": "shared",
    "refused": "refused",
    "spoiled": "not whole",
    "handed": "handed",
    "waiting": "never ran",
    "uncertain": "unknown",
}


def _stretches(call: CallLane, glyphs: Glyphs, now: float) -> list[Stretch]:
    parts: list[Stretch] = []
    written = call.opened if call.written is None else call.written
    ended = call.ended if call.ended is not None else now
    begun = call.died[0][0] if call.died else call.started
    if written is not None:
        parts.append((written if call.opened is None else call.opened, written, glyphs.writing, WRITING))
        if call.state == "shared":
            parts.append((written, ended, glyphs.waiting, SHARED))
        elif begun is not None or call.ended is not None:
            parts.append((written, ended if begun is None else begun, glyphs.waiting, WAITING))
    parts += [(start, end, glyphs.broken, FAILED) for start, end in call.died]
    if call.started is not None:
        sign, style = (glyphs.early, EARLY) if call.early else (glyphs.running, RUNNING)
        if call.error or call.state == "dropped":
            sign, style = glyphs.failed, FAILED
        parts.append((call.started, ended, sign, style))
    return parts


def _legend(picture: Picture, width: int, glyphs: Glyphs) -> Iterator[Text]:
    calls = [call for turn in picture.turns for call in turn.calls]
    signs = [(glyphs.model, MODEL, "the model is heard")]
    if calls:
        signs += [(glyphs.writing, WRITING, "the call is written"), (glyphs.waiting, WAITING, "it waits, or shares")]
        signs += [(glyphs.early, EARLY, "it runs, started early"), (glyphs.running, RUNNING, "it runs")]
    if any(call.error and call.state != "dropped" for call in calls):
        signs.append((glyphs.failed, FAILED, "it failed"))
    if any(call.state == "dropped" and call.started is not None for call in calls):
        signs.append((glyphs.failed, FAILED, "it was lost"))
    if any(attempt.broken for turn in picture.turns for attempt in turn.attempts):
        none = picture.totals.retries and not picture.totals.restarts
        signs.append((glyphs.broken, FAILED, "there was no answer" if none else "the answer broke off"))
    if any(call.died for call in calls):
        signs.append((glyphs.broken, FAILED, "its process died"))
    line = Text()
    for sign, style, words in signs:
        if line and cell_len(line.plain) + len(words) + 6 > width:
            yield line
            line = Text()
        line.append("   " if line else "").append(sign * 2, style).append(f" {words}")
    yield line


def _wrapped(words: str, width: int, style: str, indent: str = "") -> Iterator[Text]:
    line, room = "", width - len(indent)
    for word in words.split(" "):
        if line and cell_len(line) + 1 + cell_len(word) > room:
            yield Text(indent + line, style)
            line = ""
        line = f"{line} {word}" if line else word
        while cell_len(line) > room:
            head = set_cell_size(line, room)
            yield Text(indent + head, style)
            line = line[len(head.rstrip()) or 1 :]
    yield Text(indent + line, style)


def _cut(clip: Clip, most: int) -> str:
    words = _line(clip.text[:most])
    return f"{words} … ({clip.size:,} bytes)" if clip.cut or len(clip.text) > most else words


def _line(words: str) -> str:
    """In one line, with nothing in it that a terminal would obey."""
    line = " ".join(words[:4000].split())
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in line)


def _fit(words: str, columns: int) -> str:
    """Exactly so wide, and a column of space behind it where it had to be cut."""
    if cell_len(words) >= columns:
        words = f"{set_cell_size(words, max(columns - 2, 1)).rstrip()}…"
    return set_cell_size(words, columns)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _seconds(value: float) -> str:
    """In no more than nine columns."""
    if 0 < value < 0.01:
        return f"{value * 1000:.1f} ms" if value >= 0.001 else f"{value * 1000:.2f} ms"
    if value < 10:
        return f"{value:.2f} s"
    return f"{value:.1f} s" if value < 10_000 else f"{value:.0f} s" if value < 1e7 else f"{value:.1e} s"


def _day(time: float) -> str:
    try:
        return f"{datetime.fromtimestamp(time):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return ""
