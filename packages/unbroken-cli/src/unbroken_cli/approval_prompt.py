"""Asks a person on a terminal whether a call may run.

All of the call is shown exactly, so that nothing in it can be mistaken for something else. Every row of a value begins
with a line number and a bar, so a value cannot imitate the lines of the prompt. Characters that are invisible, look
like a space or change the order of others are written as `⟨U+202E⟩`, and so is the bracket `⟨` itself: different
arguments never look the same. A long call is shown page by page: it cannot be approved before its end was shown, and
what was typed before that is discarded.
"""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import replace

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from unbroken.errors import UserError
from unbroken.tools.approval import Allow, Approval, Deny, Edit, Question
from unbroken_cli.terminal_text import counted, visible
from unbroken_wires.messages import Json, ToolCall

try:
    import termios
except ImportError:  # Windows
    termios = None

QUESTION = "  run it? (y)es, (n)o, (e)dit, or type a reason to deny it: "
ASKS = {
    "form": "  answer with these values? (y)es, (n)o, (e)dit them: ",
    "url": "  did you open the page, or will you? (y)es, (n)o: ",
    "sampling": "  let the server ask the model? (y)es, (n)o: ",
}
"""For the questions of MCP servers."""
NOBODY_ASKED = "nobody could be asked"
"""The reason of a denial without a terminal."""


def ask_on_terminal(console: Console, call: ToolCall) -> Approval:
    """Raises `EOFError` if standard input is closed. A call with edited arguments is shown again before it can be
    approved."""
    shown, edited = call, False
    refusal = _show(console, call)
    asks = ASKS.get(call.kind, QUESTION) if isinstance(call, Question) else QUESTION
    while refusal is None:
        answer = _answer(asks)
        if answer.lower() in ("y", "yes"):
            if why := _unfit(call, shown.arguments or {}):
                console.print(Text(f"  these values do not fit: {visible(why)}; (e)dit them", "red"), soft_wrap=True)
                continue
            return Edit(shown.arguments or {}) if edited else Allow()
        if answer.lower() in ("n", "no"):
            return Deny()
        if answer.lower() not in ("e", "edit"):
            if answer:
                return Deny(answer)
            continue
        console.print(Text(f"  now: {json.dumps(shown.arguments or {})}"), soft_wrap=True)
        try:
            arguments = _read_arguments(input("  new: "))
        except UserError as error:
            console.print(Text(f"  {visible(str(error))}", "red"), soft_wrap=True)
            continue
        shown, edited = replace(call, arguments=arguments, raw=""), True
        refusal = _show(console, shown)
    return refusal


def _unfit(call: ToolCall, values: Mapping[str, Json]) -> str:
    """Why a server would be refused these values of its form; empty if they fit."""
    if not isinstance(call, Question) or call.kind != "form":
        return ""
    from unbroken.mcp.client.forms import why_not  # noqa: PLC0415 - with the optional extra that asks such questions

    return why_not(call.schema, values)


def _show(console: Console, call: ToolCall) -> Approval | None:
    """Shows all of the call, a page at a time. Before the end is shown, the person can only deny it."""
    rows = approval_text(call, console.width)
    page = max(console.height - 2, 5)
    at = 0
    while True:
        for row in rows[at : at + page]:
            style = "bold yellow" if row is rows[0] or row is rows[-1] else ""
            console.print(Text(row, style), soft_wrap=True)
        first, at = at + 1, at + page
        if at >= len(rows):
            return None
        more = f"  rows {first} to {at} of {len(rows)}: Enter shows the next page, (a)ll the rest, (n)o denies: "
        answer = _answer(more).lower()
        if answer in ("n", "no"):
            return Deny()
        if answer in ("a", "all"):
            page = len(rows)


def _answer(question: str) -> str:
    """Reads what is typed from now on: what was typed before the question was not meant as its answer."""
    if termios is not None and sys.stdin.isatty():
        termios.tcflush(sys.stdin, termios.TCIFLUSH)
    return input(question).strip()


def _read_arguments(line: str) -> dict[str, Json]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise UserError(f"this is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UserError("the arguments must be a JSON object, as in the line above")
    return value  # pyright: ignore[reportUnknownVariableType] - JSON objects have text keys


NARROWEST = 20
_WORD = re.compile(r"\w+")
_SCRIPTS = ("LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE")
"""Scripts with letters that look like letters of another script."""


def approval_text(call: ToolCall, width: int = 100) -> list[str]:
    """The rows to show before a person decides. None is wider than `width`, unless the terminal is too narrow."""
    if call.arguments is None:
        values: list[tuple[str, Json]] = [("input", call.raw)]
    else:
        values = list(call.arguments.items())
    if isinstance(call, Question):
        return _question_text(call, values, width)
    of = f" of agent {_name(call.agent)}" if call.agent else ""
    rows = [f"Tool call{of}: {_name(call.name)}, {counted(len(values), 'argument')}"]
    rows += _values_text(values, width)
    rows.append(f"End of the call: {_name(call.name)}")
    return rows


def _question_text(question: Question, values: list[tuple[str, Json]], width: int) -> list[str]:
    """A question of an MCP server. What the server wrote is shown like the values of a call."""
    rows = [f"Question of {visible(question.server)} during a call of {_name(question.tool)}"]
    said: list[tuple[str, Json]] = [("message", question.message)]
    if question.url:
        said.append(("page", question.url))
    if question.schema:
        fields: Mapping[str, Json] = question.schema.get("properties", {})
        needed = question.schema.get("required", ())
        said += [(f"form.{name}{' (required)' * (name in needed)}", json.dumps(one)) for name, one in fields.items()]
    answers = [(f"answer.{name}", value) for name, value in values]
    rows += _values_text([*said, *answers], width)
    rows.append("End of the question")
    return rows


def _values_text(values: list[tuple[str, Json]], width: int) -> list[str]:
    rows: list[str] = []
    for name, value in values:
        text, kind = (value, "string") if isinstance(value, str) else (_json(value), "JSON")
        lines = text.split("\n")
        size = f"{counted(len(lines), 'line')}, {counted(len(text), 'character')}"
        rows.append(f"  {_name(name)} ({kind}, {size}):")
        rows += _numbered(lines, width)
    rows += [f"  note: {note}" for note in _notes(values)]
    return rows


def call_of(pending: Mapping[str, Json]) -> ToolCall:
    """A call in the form that events use."""
    agent = str(pending.get("agent") or "")
    return ToolCall(str(pending.get("id")), str(pending.get("name")), pending.get("arguments"), agent=agent)


def _line(text: str) -> str:
    """One line of a value. Spaces at its end are invisible, so they are counted."""
    kept = text.rstrip(" ")
    ending = len(text) - len(kept)
    return visible(kept) + (f"⟨{ending} × SPACE⟩" if ending else "")


def _name(name: str) -> str:
    """The name itself if it is an ordinary word, otherwise quoted."""
    return name if name.isidentifier() and name.isascii() else visible(json.dumps(name, ensure_ascii=False))


def _json(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


def _numbered(lines: list[str], width: int) -> Iterator[str]:
    digits = max(len(str(len(lines))), 3)
    room = max(width - digits - 4, NARROWEST)
    for number, line in enumerate(lines, 1):
        first, *more = _wrapped(_line(line), room)
        yield f"  {number:{digits}}│ {first}"
        for row in more:
            yield f"  {'':{digits}}┆ {row}"


def _wrapped(text: str, room: int) -> list[str]:
    """Cuts the text into rows: if the terminal wrapped it, the next row would have no bar."""
    if text.isascii() and len(text) <= room:
        return [text]
    rows: list[str] = []
    row: list[str] = []
    used = 0
    for character in text:
        wide = cell_len(character)
        if used + wide > room and wide:
            rows.append("".join(row))
            row, used = [], 0
        row.append(character)
        used += wide
    return [*rows, "".join(row)]


def _notes(values: list[tuple[str, Json]]) -> Iterator[str]:
    text = "\n".join(f"{name}\n{value if isinstance(value, str) else _json(value)}" for name, value in values)
    if text.isascii():
        return
    if any(unicodedata.bidirectional(character) in ("R", "AL") for character in text):
        yield "it contains letters that are written from right to left; your terminal may reorder them"
    mixed = dict.fromkeys(word for word in _WORD.findall(text) if not word.isascii() and len(_scripts(word)) > 1)
    for word in mixed:
        scripts = " and ".join(script.capitalize() for script in _scripts(word))
        yield f"{_name(word)} mixes {scripts} letters, which look alike"


def _scripts(word: str) -> list[str]:
    names = [unicodedata.name(character, "").split(" ")[0] for character in word]
    return sorted({name for name in names if name in _SCRIPTS})
