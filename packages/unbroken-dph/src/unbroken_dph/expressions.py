"""A recursive-descent parser for expressions and arguments: conditions, assignments, and the parentheses of blocks and
tools. It does not look up values (`evaluating` does)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from typing import TypeVar

from unbroken_dph.functions import FUNCTIONS
from unbroken_dph.lexing import Cursor
from unbroken_dph.syntax import (
    NAME,
    Applied,
    Argument,
    Binary,
    Constant,
    DictOf,
    Expression,
    ListOf,
    Quoted,
    Unary,
    Variable,
    Word,
)

Inside = TypeVar("Inside")

DEEPEST = 24
"""How deep brackets and signs may be nested."""
DIGITS = 300
LONGEST = 500
"""The most operators in one expression."""

_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.])")
_NAME = re.compile(NAME)
_VARIABLE = re.compile(r"\$(" + NAME + r")")
_KEY = re.compile(r"\.(" + NAME + r")")
_WORD = re.compile(r"[A-Za-z_*?][\w.*?:/-]*")
_STRING = re.compile(r'"""|' + r"'''" + r"|[\"']")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "'": "'", "\\": "\\", "/": "/"}
_COMPARISON = re.compile(r"==|!=|<=|>=|<|>(?!>)|in\b|not\s+in\b")
_SUM = re.compile(r"\+|-(?!>)")
_PRODUCT = re.compile(r"//|[*/%]")
_CONSTANTS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}


class Expressions:
    """Reads from a cursor. Inside brackets a line may end anywhere; outside, the end of the line ends the
    expression."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._depth = 0
        """The number of open brackets."""
        self._nested = 0
        self._operators = 0
        self._words = False
        """Whether bare words are names, as in the list of an argument."""

    def read(self) -> Expression:
        """One expression, from the current position."""
        self._operators = self._nested = 0
        return self._or()

    def read_arguments(self) -> tuple[Argument, ...]:
        """The arguments after the opening parenthesis: `key=value, …` and the closing one."""
        cursor, opened = self._cursor, self._cursor.at - 1
        self._depth, self._operators, self._nested = 1, 0, 0
        found: dict[str, Argument] = {}
        try:
            while True:
                cursor.skip_inside()
                if cursor.starts(")"):
                    cursor.at += 1
                    return tuple(found.values())
                if cursor.ended:
                    raise cursor.error(opened, "this parenthesis is never closed", "expected a `)` for it")
                argument = self._argument()
                if argument.name in found:
                    raise cursor.error(
                        argument.at, f"the argument `{argument.name}` is given twice", "expected another name"
                    )
                found[argument.name] = argument
                cursor.skip_inside()
                if not cursor.starts(")"):
                    if not cursor.starts(",") and cursor.ended:
                        raise cursor.error(opened, "this parenthesis is never closed", "expected a `)` for it")
                    self._expect(",", "`,` or `)`")
        finally:
            self._depth = 0

    def _argument(self) -> Argument:
        cursor, at = self._cursor, self._cursor.at
        name = cursor.take(_NAME)
        cursor.skip_inside()
        if name is None or not cursor.starts("=") or cursor.starts("=="):
            cursor.at = at
            raise cursor.error(at, f"arguments are written `key=value`; found {cursor.found()}", "expected `key=`")
        cursor.at += 1
        cursor.skip_inside()
        self._words = True
        try:
            return Argument(at, name.group(), self._or())
        finally:
            self._words = False

    def _or(self) -> Expression:
        left = self._and()
        while at := self._keyword("or"):
            left = Binary(at - 1, "or", left, self._and())
        return left

    def _and(self) -> Expression:
        left = self._not()
        while at := self._keyword("and"):
            left = Binary(at - 1, "and", left, self._not())
        return left

    def _not(self) -> Expression:
        self._skip()
        at = self._cursor.at
        if self._cursor.text.startswith("not", at) and self._keyword("not"):
            return Unary(at, "not", self._deeper(self._not))
        return self._comparison()

    def _comparison(self) -> Expression:
        left = self._sum()
        self._skip()
        cursor, at = self._cursor, self._cursor.at
        operator = cursor.take(_COMPARISON)
        if operator is None:
            return left
        found = Binary(at, " ".join(operator.group().split()), left, self._sum())
        self._skip()
        if _COMPARISON.match(cursor.text, cursor.at):
            raise cursor.error(cursor.at, "comparisons cannot be chained", "expected `and` between two comparisons")
        return found

    def _sum(self) -> Expression:
        return self._chain(_SUM, self._product)

    def _product(self) -> Expression:
        return self._chain(_PRODUCT, self._signed)

    def _chain(self, operators: re.Pattern[str], operand: Callable[[], Expression]) -> Expression:
        left = operand()
        while True:
            self._skip()
            at = self._cursor.at
            operator = self._cursor.take(operators)
            if operator is None:
                return left
            self._count(at)
            left = Binary(at, operator.group(), left, operand())

    def _signed(self) -> Expression:
        self._skip()
        at = self._cursor.at
        if self._cursor.starts("-") and not self._cursor.starts("->"):
            self._cursor.at += 1
            return Unary(at, "-", self._deeper(self._signed))
        return self._primary()

    def _primary(self) -> Expression:
        self._skip()
        cursor, at = self._cursor, self._cursor.at
        if found := cursor.take(_VARIABLE):
            return self._path(at, found[1])
        if found := cursor.take(_NUMBER):
            return Constant(at, self._number(at, found.group()))
        if found := cursor.take(_STRING):
            return Quoted(at, self._string(at, found.group()))
        if cursor.starts("("):
            return self._bracket(self._group)
        if cursor.starts("["):
            return self._bracket(self._list)
        if cursor.starts("{"):
            return self._bracket(self._dict)
        if found := _NAME.match(cursor.text, at):
            return self._named(at, found.group())
        raise cursor.error(
            at, f"a value is missing; found {cursor.found()}", "expected a value: string, number, `$name`, …"
        )

    def _named(self, at: int, name: str) -> Expression:
        cursor = self._cursor
        if name in _CONSTANTS:
            cursor.at += len(name)
            return Constant(at, _CONSTANTS[name])
        if name in FUNCTIONS and cursor.text.startswith("(", at + len(name)):
            cursor.at += len(name)
            return Applied(at, name, self._bracket(self._applied))
        if cursor.text.startswith("(", at + len(name)):
            close = difflib.get_close_matches(name, FUNCTIONS, n=1)
            meant = f"; did you mean `{close[0]}`?" if close else f"; the functions are: {', '.join(FUNCTIONS)}"
            raise cursor.error(at, f"there is no function `{name}`{meant}", "expected a function, or `@` before a tool")
        raise cursor.error(
            at,
            f"`{name}` is neither a quoted string nor a variable",
            f'expected `"{name}"` or `${name}` (bare names are only allowed in the lists of arguments)',
        )

    def _path(self, at: int, name: str) -> Variable:
        cursor = self._cursor
        path: list[Expression] = []
        while True:
            if key := cursor.take(_KEY):
                path.append(Quoted(key.start() + 1, key[1]))
            elif cursor.starts("["):
                path.append(self._bracket(self._index))
            else:
                return Variable(at, name, tuple(path), cursor.text[at : cursor.at])

    def _index(self, opened: int) -> Expression:
        index = self._without_words(self._or)
        self._close(opened, "]", "`]`")
        return index

    def _group(self, opened: int) -> Expression:
        inside = self._without_words(self._or)
        self._close(opened, ")", "`)`")
        return inside

    def _applied(self, opened: int) -> tuple[Expression, ...]:
        return tuple(self._without_words(lambda: self._items(opened, ")", self._or)))

    def _list(self, opened: int) -> ListOf:
        return ListOf(opened, tuple(self._items(opened, "]", self._list_item)))

    def _list_item(self) -> Expression:
        cursor, at = self._cursor, self._cursor.at
        word = _WORD.match(cursor.text, at) if self._words else None
        if word is None or word.group() in (*_CONSTANTS, "not") or cursor.text.startswith("(", word.end()):
            return self._or()
        cursor.at = word.end()
        return Word(at, word.group())

    def _dict(self, opened: int) -> DictOf:
        return DictOf(opened, tuple(self._without_words(lambda: self._items(opened, "}", self._pair))))

    def _pair(self) -> tuple[Expression, Expression]:
        cursor = self._cursor
        at = cursor.at
        key = cursor.take(_STRING)
        if key is None:
            raise cursor.error(at, f"a key must be a quoted string; found {cursor.found()}", 'expected `"key": value`')
        name = Quoted(at, self._string(at, key.group()))
        self._skip()
        self._expect(":", "`:` after the key")
        return name, self._or()

    def _items(self, opened: int, closing: str, item: Callable[[], Inside]) -> list[Inside]:
        cursor = self._cursor
        found: list[Inside] = []
        while True:
            self._skip()
            if cursor.starts(closing):
                cursor.at += 1
                return found
            if cursor.ended:
                raise cursor.error(
                    opened, f"the `{cursor.text[opened]}` is never closed", f"expected a `{closing}` for it"
                )
            found.append(item())
            self._skip()
            if not cursor.starts(closing):
                if cursor.ended:
                    continue
                self._expect(",", f"`,` or `{closing}`")

    def _bracket(self, read: Callable[[int], Inside]) -> Inside:
        cursor, opened = self._cursor, self._cursor.at
        cursor.at += 1
        self._depth += 1
        inside = self._deeper(lambda: read(opened))
        self._depth -= 1
        return inside

    def _deeper(self, read: Callable[[], Inside]) -> Inside:
        self._nested += 1
        if self._nested > DEEPEST:
            raise self._cursor.error(
                self._cursor.at - 1, f"this is nested more than {DEEPEST} deep", "expected a simpler value"
            )
        inside = read()
        self._nested -= 1
        return inside

    def _without_words(self, read: Callable[[], Inside]) -> Inside:
        words, self._words = self._words, False
        try:
            return read()
        finally:
            self._words = words

    def _string(self, at: int, quote: str) -> str:
        cursor = self._cursor
        start = cursor.at
        end = _closing_quote(cursor.text, start, quote)
        if end < 0:
            way_out = "use three quotes for several lines" if len(quote) == 1 else "three quotes end it"
            raise cursor.error(at, f"this string is never closed; {way_out}", f"expected a {quote} that ends it")
        cursor.at = end + len(quote)
        return _ESCAPE.sub(_unescaped, cursor.text[start:end])

    def _number(self, at: int, text: str) -> int | float:
        if len(text) > DIGITS:
            raise self._cursor.error(at, f"a number may have at most {DIGITS} digits", "expected fewer")
        number = float(text) if any(mark in text for mark in ".eE") else int(text)
        if number == float("inf"):
            raise self._cursor.error(at, "this number is too large", "expected a smaller one")
        return number

    def _keyword(self, word: str) -> int:
        """The position after the keyword, plus 1; 0 if the keyword is not here."""
        self._skip()
        cursor, at = self._cursor, self._cursor.at
        if not cursor.starts(word) or re.compile(r"\w").match(cursor.text, at + len(word)):
            return 0
        cursor.at += len(word)
        self._count(at)
        return at + 1

    def _count(self, at: int) -> None:
        self._operators += 1
        if self._operators > LONGEST:
            raise self._cursor.error(
                at, f"an expression may have at most {LONGEST} operators", "expected an arrow: split it"
            )

    def _expect(self, mark: str, words: str) -> None:
        if not self._cursor.starts(mark):
            raise self._cursor.error(self._cursor.at, f"found {self._cursor.found()}", f"expected {words}")
        self._cursor.at += len(mark)

    def _close(self, opened: int, mark: str, words: str) -> None:
        self._skip()
        if self._cursor.ended:
            opening = self._cursor.text[opened]
            raise self._cursor.error(opened, f"the `{opening}` is never closed", f"expected a `{mark}` for it")
        self._expect(mark, words)

    def _skip(self) -> None:
        if self._depth:
            self._cursor.skip_inside()
        else:
            self._cursor.skip_space()


def _closing_quote(text: str, start: int, quote: str) -> int:
    """The position of the quote that ends a string, or -1."""
    at = start
    line_end = text.find("\n", start) if len(quote) == 1 else -1
    limit = len(text) if line_end < 0 else line_end
    while True:
        end = text.find(quote, at, limit)
        if end < 0:
            return -1
        slashes = 0
        while text[end - slashes - 1] == "\\" and end - slashes - 1 >= start:
            slashes += 1
        if slashes % 2 == 0:
            return end
        at = end + 1


def _unescaped(found: re.Match[str]) -> str:
    escape = found[1]
    if escape[0] == "u" and len(escape) == 5:
        return chr(int(escape[1:], 16))
    return _ESCAPED.get(escape, found.group())  # an unknown escape such as \d stays as it is
