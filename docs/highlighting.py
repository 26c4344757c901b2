"""The colours of two kinds of code on these pages: programs in DPH, and commands with what they print.

Pygments knows no DPH, and takes a line of output with a `$` in it for one more command. Only the site uses this: what a
program means is read in `unbroken_dph`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any, ClassVar

from pygments.lexer import Lexer, RegexLexer, bygroups
from pygments.lexers import LEXERS, BashLexer
from pygments.token import Comment, Generic, Keyword, Name, Number, Operator, Punctuation, String, Text, Whitespace

__all__ = ["CommandLexer", "DphLexer"]

PROMPT = "$ "
BLOCK = "/(?:prompt|explore|judge|if|for|parallel|end)/"


class DphLexer(RegexLexer):
    """A block at the start of a line, its parentheses, variables, texts in quotes, arrows. The rest is prose."""

    name = "DPH"
    aliases: ClassVar = ["dph"]
    filenames: ClassVar = ["*.dph"]

    tokens: ClassVar = {
        "root": [
            (r"(?m)^\s*#.*$", Comment.Single),
            (r"(?ms)^@DESC\b.*?^@DESC\b", Comment.Multiline),
            (rf"(?m)^(\s*)({BLOCK})(\()", bygroups(Whitespace, Keyword, Punctuation), "arguments"),
            (rf"(?m)^(\s*)({BLOCK}|elif\b|else(?=:))", bygroups(Whitespace, Keyword)),
            (r"(?m)^(\s*)(@\w+)(\()", bygroups(Whitespace, Name.Function, Punctuation), "arguments"),
            (r"(->|>>)([ \t]*)(\w+)(?=[ \t]*(?:#.*)?$)", bygroups(Operator, Whitespace, Name.Constant)),
            (r"\$\w+(?:\.\w+|\[\d+\])*", Name.Constant),
            (r'"(?:\\.|[^"\\\n])*"', String),
            (r"\s+", Whitespace),
            (r"[^\s$\"@/#\->]+|.", Text),
        ],
        "arguments": [
            (r"\)", Punctuation, "#pop"),
            (r"#.*$", Comment.Single),
            (r"\$\w+(?:\.\w+|\[\d+\])*", Name.Constant),
            (r"\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", String),
            (r"\b\d+(?:\.\d+)?\b", Number),
            (r"\b(?:true|false|null)\b", Keyword.Constant),
            (r"(\w+)(\s*)(=)", bygroups(Name.Attribute, Whitespace, Operator)),
            (r"\s+", Whitespace),
            (r"\w+\*?|.", Text),
        ],
    }


class CommandLexer(Lexer):
    """What follows `$ ` at the start of a line is a command, until its quotations are closed; all else is output."""

    name = "Command and output"
    aliases: ClassVar = ["console"]
    filenames: ClassVar = []

    def get_tokens_unprocessed(self, text: str) -> Iterator[tuple[int, Any, str]]:
        lines = text.splitlines(keepends=True)
        at = place = 0
        while at < len(lines):
            if not lines[at].startswith(PROMPT):
                yield place, Generic.Output, lines[at]
                place += len(lines[at])
                at += 1
                continue
            end = _end_of_command(lines, at)
            command = "".join(lines[at:end]).removeprefix(PROMPT)
            yield place, Generic.Prompt, PROMPT
            for inside, kind, value in BashLexer().get_tokens_unprocessed(command):
                yield place + len(PROMPT) + inside, kind, value
            place += len(PROMPT) + len(command)
            at = end


def _end_of_command(lines: list[str], start: int) -> int:
    for end in range(start + 1, len(lines) + 1):
        if lines[end - 1].endswith("\\\n"):
            continue
        try:
            shlex.split("".join(lines[start:end]))
        except ValueError:  # a quotation that goes on in the next line
            continue
        return end
    return start + 1


def register() -> None:
    """For every block that names its language. The own `console` of Pygments makes room."""
    known: dict[str, Any] = LEXERS
    known.pop("BashSessionLexer", None)
    for lexer in (DphLexer, CommandLexer):
        known[lexer.__name__] = (__name__, lexer.name, tuple(lexer.aliases), tuple(lexer.filenames), ())
