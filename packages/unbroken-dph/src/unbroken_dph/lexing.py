"""Finds where statements begin and where the free text of a prompt ends. No grammar can do this, because a prompt may
contain anything.

Strategy. A prompt ends at a line that ends in `-> name` or `>> name`, if what follows (after blank lines and comments)
is the end of the program or begins a statement. So arrows inside a prompt are text, and so are Markdown headings,
lists, `else:` and code: none of them begins a statement. Code fences are skipped. A block such as `/prompt/` at the
start of a line inside a prompt is an error: the arrow before it was forgotten. Each line is read a bounded number of
times, so the time is linear in the text.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from unbroken_dph.functions import FUNCTIONS
from unbroken_dph.problems import InvalidProgram, Problem, Source
from unbroken_dph.syntax import NAME

DESCRIPTION = "@DESC"
BLOCKS = ("prompt", "explore", "judge", "if", "for", "parallel", "end")
_BLOCK = re.compile(r"[ \t]*/(" + "|".join(BLOCKS) + r")/")
_ENDING = re.compile(r"(?:(?<![!-~])|(?<=[.:;,!?]))(->|>>)[ \t]*(" + NAME + r")[ \t]*(?:(?=/end/[ \t]*$)|$)")
"""The arrow at the end of a prompt. After a letter or a bracket it is code (`node->next`), but in Chinese, and after a
full stop or a colon, people write it without a space."""
_FENCE = re.compile(r"[ \t]*(```+|~~~+)(.*)$")
_SKIPPED = re.compile(r"(?:[ \t]*(?:#[^\n]*)?\n)*[ \t]*(?:#[^\n]*\Z)?")
_TOKEN = re.compile(r"->|>>|[=!<>]=|\$?\w+|[^\w\s]")
_SPACE = re.compile(r"[ \t]*")
_SPACE_AND_COMMENTS = re.compile(r"(?:\s+|#[^\n]*)*")
_OPERATOR = r"[ \t]*(?:->|>>|[-+*/%<>]|[=!]=|(?:and|or|in|not)\b)"
_TO_AN_ARROW = r"(?=[^\n]*(?:->|>>)[ \t]*" + NAME + r"[ \t]*(?:#[^\n]*)?$)"
_BEGINS = re.compile(
    r"/(?:" + "|".join(BLOCKS) + r")/|@[A-Za-z_][\w-]*\(|"
    r"\$" + NAME + r"(?:\." + NAME + r"|\[[^\]\n]*\])*+" + _TO_AN_ARROW + _OPERATOR + r"|"
    r'"(?:[^"\\\n]|\\.)*+"' + _TO_AN_ARROW + _OPERATOR + r"|'(?:[^'\\\n]|\\.)*+'" + _TO_AN_ARROW + _OPERATOR,
    re.MULTILINE,
)
"""The beginning of a statement. This is enough to distinguish it from the text of a prompt, so that a mistake later in
the statement is reported there and does not turn the statement into text. (Complete statements are found by parsing
them.)"""
_MAY_BEGIN = re.compile(
    r"[\[{(\"'$\d]|-(?=[\d$(\w])|(?:not|true|false|null|True|False|None)\b|(?:" + "|".join(FUNCTIONS) + r")\("
)
_NEAR_BLOCK = re.compile(r"[ \t]*/([a-z]{2,10})/")
_BEGINS_BRANCH = re.compile(r"else[ \t]*:|elif\b[^\n]*:")


@dataclass(frozen=True, slots=True)
class PromptText:
    text: str
    at: int
    arrow_at: int
    append: bool
    name: str


class Cursor:
    """A position in the text of a program, which moves forward."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.text = source.text
        self.at = 0
        self._skipped = (0, 0)
        """The range of blank lines and comments that was skipped last: any position in it leads to its end."""

    def error(self, at: int, message: str, expected: str = "") -> InvalidProgram:
        return InvalidProgram([Problem(self.source.place(at), message, expected)])

    @property
    def ended(self) -> bool:
        return self.at >= len(self.text)

    def skip_space(self) -> None:
        """Skips spaces on this line."""
        self.at = _end(_SPACE, self.text, self.at)

    def skip_inside(self) -> None:
        """Skips space inside brackets, where line breaks do not matter and `#` begins a comment."""
        self.at = _end(_SPACE_AND_COMMENTS, self.text, self.at)

    def skip_between(self) -> None:
        """Skips to the next statement, over blank lines and comments. After a statement it also skips the rest of the
        line if that is a comment."""
        self.at = _end(_SKIPPED, self.text, self.at)

    def starts(self, word: str) -> bool:
        return self.text.startswith(word, self.at)

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self.text, self.at)
        if found is not None:
            self.at = found.end()
        return found

    def found(self) -> str:
        """What is at this position, for an error message."""
        if self.ended:
            return "the end of the program"
        if self.text[self.at] == "\n":
            return "the end of the line"
        word = _TOKEN.match(self.text, self.at)
        return f"`{word.group() if word else self.text[self.at]}`"

    def take_prompt(self, kind: str, began: int, in_branch: bool, is_statement: Callable[[int], bool]) -> PromptText:
        """The text of a prompt from here on, and the arrow and name that end it. `is_statement` tells whether a
        statement begins at a position."""
        start = self.at
        line_start, fence, fence_at, odd = start, "", 0, ""
        followed = -1
        """The position of what follows the last arrow and is not a statement."""
        while line_start <= len(self.text):
            line_end = self.text.find("\n", line_start)
            line_end = len(self.text) if line_end < 0 else line_end
            line = self.text[line_start:line_end]
            whole_line = line_start != start
            if (mark := _FENCE.match(line)) and (_closes(mark, fence) if fence else _opens(mark)):
                fence, fence_at = ("", 0) if fence else (mark[1], line_start)
            elif not fence:
                if whole_line and (block := _BLOCK.match(line) or _misspelled(line)):
                    raise self._forgotten(kind, began, line_start + block.start(1) - 1, block[1])
                if ending := _ENDING.search(line):
                    end = line_start + ending.end()
                    if self._ends_at(end, in_branch, is_statement):
                        self.at = end
                        return self._prompt(kind, start, line_start + ending.start(1), ending)
                    followed = self._skipped[1]
                odd = odd or _near_ending(line)
            line_start = line_end + 1
        if followed >= 0 and not fence:
            raise self.error(
                followed,
                f"this is not a statement, so the arrow before it is text, and the `/{kind}/` in line "
                f"{self.source.place(began).line} never ends",
                "expected a statement (a value needs an arrow: `-> name`), or an arrow that ends the text",
            )
        raise self._unclosed(kind, began, fence_at if fence else None, odd)

    def _prompt(self, kind: str, start: int, arrow: int, ending: re.Match[str]) -> PromptText:
        text = self.text[start:arrow]
        first, newline, rest = text.partition("\n")
        # Text that begins on the line of its block is stripped; text that begins on the next line keeps its
        # indentation.
        if first.strip():
            at, text = start + len(first) - len(first.lstrip()), text.lstrip()
        else:
            lines = rest.split("\n")
            blank = next((n for n, line in enumerate(lines) if line.strip()), len(lines))
            at = start + len(first) + len(newline) + sum(len(line) + 1 for line in lines[:blank])
            text = "\n".join(lines[blank:])
        if not text.strip():
            raise self.error(
                arrow, f"`/{kind}/` has no text: there is nothing to ask", "expected a text before the arrow"
            )
        return PromptText(text.rstrip(), at, arrow, ending[1] == ">>", ending[2])

    def _ends_at(self, at: int, in_branch: bool, is_statement: Callable[[int], bool]) -> bool:
        """Whether a statement or the end of the program follows."""
        first, last = self._skipped
        if not first < at <= last:
            self._skipped = (at, _end(_SKIPPED, self.text, at))
        at = self._skipped[1]
        if at >= len(self.text) or _BEGINS.match(self.text, at) or _misspelled(self.text, at):
            return True
        if in_branch and _BEGINS_BRANCH.match(self.text, at):
            return True
        if self.text.startswith(DESCRIPTION, at):
            return self.text.find(DESCRIPTION, at + len(DESCRIPTION)) >= 0
        return _MAY_BEGIN.match(self.text, at) is not None and is_statement(at)

    def _forgotten(self, kind: str, began: int, at: int, block: str) -> InvalidProgram:
        line = self.source.place(began).line
        return self.error(
            at,
            f"`/{block}/` is inside the text of the `/{kind}/` in line {line}, which has not ended",
            "expected `-> name` before it (or put it into a code fence, if it is text)",
        )

    def _unclosed(self, kind: str, began: int, fence_at: int | None, odd: str) -> InvalidProgram:
        why = f"no line after it ends in `-> name`{odd}"
        if fence_at is not None:
            why = f"the code fence in line {self.source.place(fence_at).line} is never closed"
        return self.error(
            began, f"`/{kind}/` never ends: {why}", "expected `-> name` or `>> name` at the end of its text"
        )


def lines_outside_fences(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a prompt outside code fences, with their positions."""
    at, fence = 0, ""
    for line in text.split("\n"):
        mark = _FENCE.match(line)
        if mark and (_closes(mark, fence) if fence else _opens(mark)):
            fence = "" if fence else mark[1]
        elif not fence:
            yield at, line
        at += len(line) + 1


def _opens(mark: re.Match[str]) -> bool:
    return "`" not in mark[2]  # if it closes on its own line, it is inline code and not a fence


def _closes(mark: re.Match[str], fence: str) -> bool:
    return mark[1].startswith(fence) and not mark[2].strip()


def _misspelled(text: str, at: int = 0) -> re.Match[str] | None:
    """A word between slashes that is nearly the name of a block, in a line that ends like a prompt; otherwise it may be
    a file path."""
    found = _NEAR_BLOCK.match(text, at)
    if found is None or not difflib.get_close_matches(found[1], BLOCKS, n=1, cutoff=0.75):
        return None
    end = text.find("\n", at)
    return found if _ENDING.search(text[at : len(text) if end < 0 else end]) else None


def swallowed(text: str) -> Iterator[int]:
    """The position of a line inside a prompt that ends like a prompt, or nearly: it may have been meant as the end."""
    lines = [(at, line) for at, line in lines_outside_fences(text) if line.strip()]
    for at, line in lines[:-1]:
        if _ENDING.search(line) or _near_ending(line):
            yield at
            return  # one warning is enough


def _near_ending(line: str) -> str:
    """Explains something that looks like the end of a prompt but is not."""
    if re.search(r"(?:^|\s)(?:->|>>)[ \t]*\$" + NAME + r"[ \t]*$", line):
        return " (write the name without `$`)"
    if re.search(r"(?:^|\s)(?:->|>>)[ \t]*" + NAME + r"[ \t]+#[^\n]*$", line):
        return " (a comment after the name makes it text: put the comment on a separate line)"
    if re.search(r"(?:^|\s)(?:->|>>)[ \t]*" + NAME + r"[.\[][^\s]*[ \t]*$", line):
        return " (only a variable can be set, not a part of it)"
    return ""


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at
