"""Parses the text of a program into statements. `lexing` finds the end of prompts, `expressions` parses arguments and
conditions."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Literal

from unbroken.errors import UserError
from unbroken_dph.expressions import Expressions
from unbroken_dph.lexing import BLOCKS, Cursor
from unbroken_dph.problems import InvalidProgram, Problem, Source
from unbroken_dph.syntax import (
    NAME,
    Assignment,
    Block,
    BlockKind,
    Branch,
    CallStatement,
    Expression,
    For,
    If,
    Parallel,
    Program,
    Statement,
    Target,
)
from unbroken_wires.validation import checked

DEEPEST = 30
"""How deep `/if/`, `/for/` and `/parallel/` may be nested."""

MOST_LOOKAHEAD = 50_000
"""Characters that may be read in vain to find out whether an arrow is followed by a statement. The limit keeps parsing
fast for every text."""

_KEYWORD = re.compile(r"/(\w+)/")
_CALL = re.compile(r"@([A-Za-z_][\w-]*)[ \t]*\(")
_ARROW = re.compile(r"->|>>")
_NAME = re.compile(NAME)
_VARIABLE = re.compile(r"\$(" + NAME + r")")
_IN = re.compile(r"[ \t]*in\b")
_ARGUMENTS = re.compile(r"\(|[ \t]+\((?=\s*(?:" + NAME + r"\s*=(?!=)|\)))")
"""A parenthesis directly after its block contains arguments; after a space only if it looks like arguments, because a
text may begin with a parenthesis."""
_LINE_END = re.compile(r"[ \t]*(?:#[^\n]*|/end/[ \t]*)?(?:\n|\Z)")
_ELIF = re.compile(r"elif\b")
_ELSE = re.compile(r"else[ \t]*(?=:)")
_DESCRIPTION = re.compile(r"@DESC\b")


def read_source(path: str | Path) -> Source:
    """Reads the file of a program. Errors name its path."""
    file = Path(path)
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        beside = sorted(one.name for one in file.parent.glob("*.dph") if one.exists()) if file.parent.is_dir() else []
        close = difflib.get_close_matches(file.name, beside, n=1)
        raise UserError(
            f"{path}: there is no such program; {f'did you mean {close[0]}?' if close else 'check its path'}"
        ) from None
    except OSError as error:
        raise UserError(f"{path}: the program cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: the program is not UTF-8 (byte {error.start}); save it as UTF-8") from None
    return Source(_plain(text), str(path), file)


@checked
def parse_program(source: str | Source, name: str = "<program>") -> Program:
    """Parses a program; raises `InvalidProgram` with the first mistake."""
    if isinstance(source, str):
        source = Source(_plain(source), name)
    return _Parser(source).program()


def _plain(text: str) -> str:
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


class _Parser:
    def __init__(self, source: Source) -> None:
        self._cursor = Cursor(source)
        self._expressions = Expressions(self._cursor)
        self._open: list[tuple[str, int]] = []
        """The control blocks around the current position."""
        self._descriptions: list[str] = []
        self._looked_at = (-1, False)
        """The position where a statement was last looked for, and whether there is one."""
        self._lookahead = 0

    def program(self) -> Program:
        statements = self._statements()
        cursor = self._cursor
        if not cursor.ended:  # `/end/`, `else` or `elif` outside
            word = cursor.found() if not cursor.starts("/end/") else "`/end/`"
            raise cursor.error(cursor.at, f"{word} closes nothing: no block is open here", "expected a statement")
        return Program(cursor.source, statements, "\n\n".join(self._descriptions))

    def _statements(self) -> tuple[Statement, ...]:
        """Statements until the end of the program or of the block around them, or until `else` or `elif`."""
        found: list[Statement] = []
        cursor = self._cursor
        while True:
            cursor.skip_between()
            if cursor.ended or cursor.starts("/end/"):
                return tuple(found)
            if self._in_branch and (_ELSE.match(cursor.text, cursor.at) or _ELIF.match(cursor.text, cursor.at)):
                return tuple(found)
            if _DESCRIPTION.match(cursor.text, cursor.at):
                self._describe()
            else:
                found.append(self._statement())

    @property
    def _in_branch(self) -> bool:
        return bool(self._open) and self._open[-1][0] == "if"

    def _statement(self) -> Statement:
        cursor, at = self._cursor, self._cursor.at
        if keyword := cursor.take(_KEYWORD):
            return self._block(at, keyword[1])
        if call := cursor.take(_CALL):
            arguments = self._expressions.read_arguments()
            return CallStatement(at, call[1], arguments, self._target("the call"))
        if cursor.starts("@"):
            raise cursor.error(at, "a tool is called as `@name(key=value)`", "expected a name and `(`")
        if _ARROW.match(cursor.text, at):
            raise cursor.error(at, "there is nothing before the arrow", "expected a value or a block before it")
        return Assignment(at, self._value(), self._target("the value"))

    def _value(self) -> Expression:
        cursor, at = self._cursor, self._cursor.at
        try:
            return self._expressions.read()
        except InvalidProgram as error:
            problem = error.problems[0]
            bare = cursor.text[at : at + 1] not in "\"'"
            if bare and problem.place == cursor.source.place(at):  # it does not begin like a value
                raise InvalidProgram(
                    [
                        Problem(
                            problem.place,
                            f"this is not a statement: {problem.message}",
                            "expected `/prompt/`, `/explore/`, `/judge/`, `@tool(…)`, or a value and `->`",
                        )
                    ]
                ) from None
            raise

    def _block(self, at: int, keyword: str) -> Statement:
        match keyword:
            case "prompt" | "explore" | "judge":
                return self._asking(at, keyword)
            case "if":
                return self._if(at)
            case "for":
                return self._for(at)
            case "parallel":
                self._enter("parallel", at)
                body = self._statements()
                self._leave()
                return Parallel(at, body)
            case _:
                known = [f"/{block}/" for block in BLOCKS]
                close = difflib.get_close_matches(f"/{keyword}/", known, n=1)
                meant = f"; did you mean `{close[0]}`?" if close else ""
                raise self._cursor.error(
                    at, f"there is no block `/{keyword}/`{meant}", f"expected one of {', '.join(known)}"
                )

    def _asking(self, at: int, kind: BlockKind) -> Block:
        cursor = self._cursor
        arguments = self._expressions.read_arguments() if cursor.take(_ARGUMENTS) else ()
        in_branch = any(block == "if" for block, _ in self._open)
        prompt = cursor.take_prompt(kind, at, in_branch, self._is_assignment)
        target = Target(prompt.arrow_at, prompt.name, prompt.append)
        return Block(at, kind, arguments, prompt.text, prompt.at, target)

    def _is_assignment(self, at: int) -> bool:
        """Whether a value with an arrow and a name begins here."""
        if at == self._looked_at[0]:
            return self._looked_at[1]
        if self._lookahead > MOST_LOOKAHEAD:
            return False
        ahead = Cursor(self._cursor.source)
        ahead.at = at
        found = self._reads_assignment(ahead)
        if not found:
            self._lookahead += ahead.at - at
        self._looked_at = (at, found)
        return found

    def _reads_assignment(self, ahead: Cursor) -> bool:
        try:
            Expressions(ahead).read()
        except InvalidProgram:
            return False
        ahead.skip_space()
        if ahead.take(_ARROW) is None:
            return False
        ahead.skip_space()
        return ahead.take(_NAME) is not None and ahead.take(_LINE_END) is not None

    def _if(self, at: int) -> If:
        cursor = self._cursor
        self._enter("if", at)
        branches = [self._branch(at, conditional=True)]
        while True:
            cursor.skip_between()
            branch_at = cursor.at
            last = branches[-1].condition is None
            word = cursor.take(_ELIF) or cursor.take(_ELSE)
            if word is None:
                break
            if last:
                raise cursor.error(branch_at, f"`{word.group().strip()}` comes after `else`", "expected `/end/`")
            branches.append(self._branch(branch_at, conditional=word.group() == "elif"))
        self._leave()
        return If(at, tuple(branches))

    def _branch(self, at: int, *, conditional: bool) -> Branch:
        condition = None
        if conditional:
            self._cursor.skip_space()
            condition = self._expressions.read()
        self._colon("the condition" if conditional else "`else`")
        return Branch(at, condition, self._statements())

    def _for(self, at: int) -> For:
        cursor = self._cursor
        cursor.skip_space()
        variable = cursor.take(_VARIABLE)
        if variable is None:
            raise cursor.error(cursor.at, f"a loop needs a variable; found {cursor.found()}", "expected `$name`")
        if cursor.take(_IN) is None:
            cursor.skip_space()
            raise cursor.error(cursor.at, f"found {cursor.found()}", "expected `in` and a list")
        items = self._expressions.read()
        self._colon("the list")
        self._enter("for", at)
        body = self._statements()
        self._leave()
        return For(at, variable[1], items, body)

    def _enter(self, block: Literal["if", "for", "parallel"], at: int) -> None:
        self._open.append((block, at))
        if len(self._open) > DEEPEST:
            raise self._cursor.error(at, f"blocks are nested more than {DEEPEST} deep", "expected fewer: use a file")

    def _leave(self) -> None:
        """Expects the `/end/` of the innermost block."""
        cursor = self._cursor
        block, at = self._open.pop()
        if not cursor.starts("/end/"):
            here = "the program ends" if cursor.ended else f"found {cursor.found()}"
            place = at if cursor.ended else cursor.at
            line = cursor.source.place(at).line
            raise cursor.error(
                place, f"the `/{block}/` in line {line} is never closed: {here}", "expected `/end/` for it"
            )
        cursor.at += len("/end/")

    def _colon(self, after: str) -> None:
        cursor = self._cursor
        cursor.skip_space()
        if not cursor.starts(":"):
            raise cursor.error(cursor.at, f"found {cursor.found()}", f"expected `:` after {after}")
        cursor.at += 1

    def _target(self, after: str) -> Target:
        cursor = self._cursor
        cursor.skip_space()
        at = cursor.at
        arrow = cursor.take(_ARROW)
        if arrow is None and after == "the call":  # after a parenthesis the arrow may be on the next line
            cursor.skip_between()
            arrow = cursor.take(_ARROW)
        if arrow is None:
            cursor.at = at
            raise cursor.error(at, f"found {cursor.found()}", f"expected `-> name` or `>> name` after {after}")
        cursor.skip_space()
        name = cursor.take(_NAME)
        if name is None:
            way_out = "a name without `$`" if cursor.starts("$") else "a name"
            raise cursor.error(cursor.at, f"found {cursor.found()} after the arrow", f"expected {way_out}")
        return Target(at, name.group(), arrow.group() == ">>")

    def _describe(self) -> None:
        cursor, at = self._cursor, self._cursor.at
        end = cursor.text.find("@DESC", at + len("@DESC"))
        if end < 0:
            raise cursor.error(at, "this description is never closed", "expected a second `@DESC`")
        self._descriptions.append(cursor.text[at + len("@DESC") : end].strip())
        cursor.at = end + len("@DESC")
