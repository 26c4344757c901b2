"""How large the packages are: tokens and files of their source, beside what `budgets.toml` allows and the aim.

    python tests/support/sizes.py [--write]

`--write` puts the present sizes into `budgets.toml`; what users get for growth is written beside them by hand.

Folding a line, dropping an annotation or the name of an argument changes nothing: a token is one of Python's tokenizer
without comments, docstrings, line ends, indentation, commas, brackets, annotations (with their `:` and `->`) and names
of keyword arguments (with their `=`). An f-string is one token on every version of Python. In a data file each key and
each value is one.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, cast

from checkout import PACKAGES, ROOT

Position = tuple[int, int]
"""A line from 1 and a column in characters from 0."""
NOT_COUNTED = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
FORMATTED = [getattr(tokenize, f"{kind}STRING_START", -1) for kind in "FT"]
FORMATTED_END = [getattr(tokenize, f"{kind}STRING_END", -1) for kind in "FT"]
"""Python 3.12 divides an f-string into tokens, 3.14 a t-string."""
BUDGETS = ROOT / "budgets.toml"
DATA = {".toml": tomllib.loads, ".json": json.loads}


@dataclass(frozen=True, slots=True)
class Size:
    tokens: int
    files: int


def size_of(package: str) -> Size:
    """Of a folder of packages/: its source, without its tests."""
    files = [path for path in (PACKAGES / package / "src").rglob("*") if path.suffix in (".py", *DATA)]
    return Size(sum(count_file(path) for path in files), len(files))


def count_file(path: Path) -> int:
    text = path.read_text("utf-8")
    return count_tokens(text) if path.suffix == ".py" else count_values(DATA[path.suffix](text))


def count_tokens(code: str) -> int:
    dropped = [*_dropped(ast.parse(code), _Columns(code))]
    keywords = {start for start, end in dropped if start == end}
    spans = sorted((start, end) for start, end in dropped if start != end)
    found = 0
    formatted = 0  # how many f-strings this token is inside of
    at = 0
    after_keyword = False
    for token in tokenize.generate_tokens(StringIO(code).readline):
        formatted -= token.type in FORMATTED_END
        inside, formatted = formatted > 0, formatted + (token.type in FORMATTED)
        while at < len(spans) and spans[at][1] <= token.start:
            at += 1
        if inside or token.type in NOT_COUNTED or token.type in FORMATTED_END:
            continue
        if after_keyword or token.start in keywords:
            after_keyword = not after_keyword  # the name, then its `=`
        elif not (at < len(spans) and spans[at][0] <= token.start) and token.string not in (*",()[]{}", "->"):
            found += 1
    return found


def count_values(data: Any) -> int:
    if isinstance(data, dict):
        return sum(1 + count_values(value) for value in cast(dict[str, Any], data).values())
    return sum(map(count_values, cast(list[Any], data))) if isinstance(data, list) else 1


class _Columns:
    """Turns the positions of `ast`, in bytes, into those of `tokenize`, in characters."""

    def __init__(self, code: str) -> None:
        self._lines = [line.encode() for line in StringIO(code)]

    def start(self, node: ast.expr | ast.stmt | ast.arg | ast.keyword) -> Position:
        return self._position(node.lineno, node.col_offset)

    def end(self, node: ast.expr | ast.stmt | ast.arg) -> Position:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._position(node.end_lineno, node.end_col_offset)

    def _position(self, line: int, column: int) -> Position:
        return line, len(self._lines[line - 1][:column].decode())


def _dropped(tree: ast.Module, columns: _Columns) -> Iterator[tuple[Position, Position]]:
    """Where annotations and docstrings are, from and to; for a keyword argument twice where its name begins."""
    for node in ast.walk(tree):
        match node:
            case ast.arg(annotation=ast.expr()):
                line, column = columns.start(node)
                yield (line, column + len(node.arg)), columns.end(node)
            case ast.AnnAssign():
                yield columns.end(node.target), columns.end(node.annotation)
            case ast.FunctionDef(returns=ast.expr() as returns) | ast.AsyncFunctionDef(returns=ast.expr() as returns):
                yield columns.start(returns), columns.end(returns)
            case ast.Expr(value=ast.Constant(value=str())):
                yield columns.start(node), columns.end(node)
            case ast.keyword(arg=str()):
                yield columns.start(node), columns.start(node)
            case _:
                pass


def read_budgets() -> dict[str, dict[str, Any]]:
    return tomllib.loads(BUDGETS.read_text("utf-8"))["packages"]


def packages() -> list[str]:
    return sorted(folder.parent.name for folder in PACKAGES.glob("*/pyproject.toml"))


def write_budgets() -> None:
    text = BUDGETS.read_text("utf-8")
    for package in packages():
        size = size_of(package)
        lines = f"\\1tokens = {size.tokens:_}\nfiles = {size.files}\n"
        text = re.sub(rf"(\[packages\.{package}\]\n)tokens = .*\nfiles = .*\n", lines, text)
    BUDGETS.write_text(text, "utf-8")


def main() -> None:
    if "--write" in sys.argv:
        write_budgets()
    budgets = read_budgets()
    rows = [["package", "tokens", "line", "aim", "files", "line"]]
    total = [0, 0, 0, 0, 0]
    for package in packages():
        size, budget = size_of(package), budgets[package]
        numbers = [size.tokens, budget["tokens"], budget["aim"], size.files, budget["files"]]
        total = [before + number for before, number in zip(total, numbers, strict=True)]
        rows.append([package, *(f"{number:,}" for number in numbers)])
    rows.append(["all", *(f"{number:,}" for number in total)])
    for name, *numbers in rows:
        sys.stdout.write(f"{name:<18}" + "".join(f"{number:>10}" for number in numbers) + "\n")
    sys.stdout.write("The lines are those of budgets.toml, which tests keep; the aims are not.\n")


if __name__ == "__main__":
    main()
