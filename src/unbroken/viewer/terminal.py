"""The picture in the terminal: lines of rich text that fit the width; in a pipe the same without colours.

Details that the page opens on a click are one line here: the marks after a call show how it ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from datetime import datetime

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from unbroken.viewer.entries import Clip
from unbroken.viewer.lanes import Mark
from unbroken.viewer.listing import Row
from unbroken.viewer.picture import RECORDED, Picture
from unbroken.viewer.waterfall import (
    EARLY,
    FAILED,
    FINE,
    MODEL,
    RUNNING,
    WAITING,
    WRITING,
    Glyphs,
    Waterfall,
    fit,
    in_line,
    legend_lines,
    seconds_in_words,
)

_NARROWEST = 20
_PROMPT = 20
"""The least columns for a prompt in the line of its run."""


def picture_lines(picture: Picture, width: int, glyphs: Glyphs = FINE) -> Iterator[Text]:
    width = max(width, _NARROWEST)
    yield Text(fit(in_line(picture.prompt) or picture.run or picture.file, width).rstrip(), "bold")
    yield from _wrapped(_facts(picture), width, "dim")
    for banner in picture.banners:
        yield from _wrapped(f"! {in_line(banner)}", width, "yellow")
    if not picture.turns:
        return
    waterfall = Waterfall(picture.seconds, width, glyphs)
    yield Text("")
    yield waterfall.head(picture.schedule)
    marks = deque(mark for mark in picture.marks if mark.kind != "note")  # notes are among the banners
    for turn in picture.turns:
        while marks and marks[0].at < turn.asked:
            yield _mark(marks.popleft(), width, glyphs)
        yield waterfall.turn(turn)
        for attempt in turn.attempts:
            if attempt.broken:
                yield Text(fit(f"  {glyphs.broken} {in_line(attempt.broken)}", width).rstrip(), FAILED)
        for call in turn.calls:
            if call.state != "withdrawn":
                yield waterfall.call(call)
                if call.error and call.result is not None and call.state != "dropped":
                    why = in_line(call.result.text).removeprefix("Error: ")
                    yield Text(fit(f"    {glyphs.failed} {why}", width).rstrip(), FAILED)
    for mark in marks:
        yield _mark(mark, width, glyphs)
    yield Text("")
    yield from _legend(picture, width, glyphs)
    if picture.answer.text:
        yield Text("")
        yield from _wrapped(_cut(picture.answer, 2000), width, "" if picture.state != "failed" else FAILED)


def list_lines(rows: Sequence[Row], width: int) -> Iterator[Text]:
    """The list of runs; files that are not recordings come last. The name of the file is in the line of its run if it
    fits, else below: `unbroken view` and `unbroken replay` need it."""
    width = max(width, _NARROWEST)
    runs = [row for row in rows if not row.problem]
    head = f"{'when':<19} {'end':<12}{'calls':>7}{'failed':>8}{'time':>10}  "
    longest = max((cell_len(in_line(row.name)) for row in runs), default=0)
    asked = max((cell_len(in_line(row.prompt)) for row in runs), default=0)
    wide = width >= len(head) + max(min(asked + 1, 2 * _PROMPT), _PROMPT) + 2 + longest
    room = width - len(head) - (longest + 2 if wide else 0)
    if runs and room >= _PROMPT:
        yield Text(f"{head}{fit('prompt', room)}{'  file' if wide else ''}".rstrip(), "dim")
    for row in runs:
        prompt = in_line(row.prompt)
        if room < _PROMPT:
            yield from _wrapped(_in_short(row), width, _tone(row))
            yield from _wrapped(prompt, width, "", "  ") if prompt else ()
            yield from _wrapped(in_line(row.name), width, "dim", "  ")
            continue
        failed = "?" if row.failed is None else str(row.failed)
        line = Text.assemble(
            (f"{_day(row.time):<19} ", "dim"),
            (fit(in_line(row.state).replace("_", " "), 12), _tone(row)),
            f"{'-' if row.calls is None else row.calls:>7}",
            (f"{failed:>8}", FAILED if row.failed else ""),
            f"{seconds_in_words(row.seconds):>10}  ",
            fit(prompt, room) if wide else fit(prompt, room).rstrip(),
            (f"  {in_line(row.name)}" if wide else "", "dim"),
        )
        yield line
        if not wide:
            yield from _wrapped(in_line(row.name), width, "dim", "  ")
    for row in rows:
        if row.problem:
            yield from _wrapped(f"! {in_line(row.problem)}", width, "yellow")


def _tone(row: Row) -> str:
    if row.state in ("answered", RECORDED):
        return "green"
    return "red" if row.state in ("failed", "unfinished") else "yellow"


def _in_short(row: Row) -> str:
    told = [
        _day(row.time),
        in_line(row.state).replace("_", " "),
        _count(row.calls, "call") if row.calls is not None else "",
        f"{row.failed} failed" if row.failed else "",
        seconds_in_words(row.seconds),
    ]
    return " · ".join(filter(None, told))


def _mark(mark: Mark, width: int, glyphs: Glyphs) -> Text:
    return Text(fit(f"  {glyphs.mark} {seconds_in_words(mark.at)}: {in_line(mark.text)}", width).rstrip(), "yellow")


def _facts(picture: Picture) -> str:
    totals = picture.totals
    told = [
        in_line(picture.state).replace("_", " "),
        _count(totals.rounds, "round"),
        _count(totals.calls, "call"),
        f"{totals.failed} failed" if totals.failed else "",
        f"{totals.uncertain} uncertain" if totals.uncertain else "",
        f"{totals.early} started early" if totals.early else "",
        f"{totals.duplicates} shared" if totals.duplicates else "",
        _count(totals.restarts, "restart") if totals.restarts else "",
        f"{totals.retries - totals.restarts} asked again" if totals.retries > totals.restarts else "",
        f"{'about ' if totals.estimated else ''}{_count(totals.input_tokens, 'token')} in, {totals.output_tokens:,} out"
        if totals.input_tokens or totals.output_tokens
        else "",
        seconds_in_words(picture.seconds),
        in_line(picture.model),
    ]
    return " · ".join(filter(None, told))


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
    return legend_lines(signs, width)


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
    words = in_line(clip.text[:most])
    return f"{words} … ({clip.size:,} bytes)" if clip.cut or len(clip.text) > most else words


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _day(time: float) -> str:
    try:
        return f"{datetime.fromtimestamp(time):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return ""
