"""The syntax tree of a program: statements and expressions, each with its position in the text, and functions that
traverse them.

Data only: `parsing` builds the tree, `checking` and `running` use it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from unbroken_dph.problems import Source
from unbroken_wires.messages import Json

NAME = r"[A-Za-z_][A-Za-z0-9_]*"
"""The pattern of a name. Letters of other scripts are not part of it: in `$city的天气` the name ends before them."""
VARIABLE = re.compile(r"\$(" + NAME + r")((?:\." + NAME + r"|\[-?\d{1,9}\]|\[\"[^\"\n]*\"\]|\['[^'\n]*'\])*)")
"""A variable in a text, with the keys and indices after it: `$name`, `$name.key`, `$name[0]`."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A number, true, false, null."""

    at: int
    value: Json


@dataclass(frozen=True, slots=True)
class Quoted:
    """A string in quotes; variables in it are replaced."""

    at: int
    text: str


@dataclass(frozen=True, slots=True)
class Word:
    """A bare word in a list of names: a tool, or a pattern such as `fs.*`."""

    at: int
    text: str


@dataclass(frozen=True, slots=True)
class Variable:
    at: int
    name: str
    path: tuple[Expression, ...] = ()
    """Keys and positions, from the outside in."""
    written: str = ""
    """As it is written in the program."""


@dataclass(frozen=True, slots=True)
class ListOf:
    at: int
    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class DictOf:
    at: int
    items: tuple[tuple[Expression, Expression], ...]


@dataclass(frozen=True, slots=True)
class Applied:
    """A function call: `len($hits)`."""

    at: int
    function: str
    arguments: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Unary:
    at: int
    operator: str
    operand: Expression


@dataclass(frozen=True, slots=True)
class Binary:
    at: int
    """The position of the operator."""
    operator: str
    left: Expression
    right: Expression


Expression: TypeAlias = Constant | Quoted | Word | Variable | ListOf | DictOf | Applied | Unary | Binary


@dataclass(frozen=True, slots=True)
class Argument:
    at: int
    name: str
    value: Expression


@dataclass(frozen=True, slots=True)
class Target:
    """Where a value goes: `-> name` sets it, `>> name` appends to it."""

    at: int
    name: str
    append: bool


BlockKind: TypeAlias = Literal["prompt", "explore", "judge"]


@dataclass(frozen=True, slots=True)
class Block:
    """Asks a model: `/prompt/`, `/explore/`, `/judge/`."""

    at: int
    kind: BlockKind
    arguments: tuple[Argument, ...]
    text: str
    text_at: int
    target: Target


@dataclass(frozen=True, slots=True)
class CallStatement:
    """`@name(…)`: calls a tool or another program."""

    at: int
    name: str
    arguments: tuple[Argument, ...]
    target: Target


@dataclass(frozen=True, slots=True)
class Assignment:
    at: int
    value: Expression
    target: Target


@dataclass(frozen=True, slots=True)
class Branch:
    """`/if/`, `elif` or `else` (which has no condition)."""

    at: int
    condition: Expression | None
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class If:
    at: int
    branches: tuple[Branch, ...]


@dataclass(frozen=True, slots=True)
class For:
    at: int
    variable: str
    items: Expression
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Parallel:
    at: int
    body: tuple[Statement, ...]


Statement: TypeAlias = Block | CallStatement | Assignment | If | For | Parallel


@dataclass(frozen=True, slots=True)
class Program:
    source: Source
    statements: tuple[Statement, ...]
    description: str = ""
    """The text between `@DESC` and `@DESC`."""


def names_in(text: str) -> Iterator[tuple[int, str, str]]:
    """Each variable in a text: its position, its name, and the complete expression."""
    for found in VARIABLE.finditer(text):
        yield found.start(), found[1], found.group()


def names_used(program: Program) -> set[str]:
    """All variables that the program reads."""
    used: set[str] = set()
    for statement in all_statements(program.statements):
        match statement:
            case Block():
                used |= {name for _, name, _ in names_in(statement.text)}
                values = [argument.value for argument in statement.arguments]
            case CallStatement():
                values = [argument.value for argument in statement.arguments]
            case Assignment():
                values = [statement.value]
            case If():
                values = [branch.condition for branch in statement.branches if branch.condition is not None]
            case For():
                values = [statement.items]
            case Parallel():
                values = []
        for part in (part for value in values for part in parts(value)):
            if isinstance(part, Variable):
                used.add(part.name)
            elif isinstance(part, Quoted):
                used |= {name for _, name, _ in names_in(part.text)}
    return used


def all_statements(statements: Iterable[Statement]) -> Iterator[Statement]:
    """These statements and all statements inside them."""
    for statement in statements:
        yield statement
        match statement:
            case If():
                for branch in statement.branches:
                    yield from all_statements(branch.body)
            case For() | Parallel():
                yield from all_statements(statement.body)
            case _:
                pass


def lists_of(program: Program) -> list[str]:
    """Names that a program only appends to: they are lists from the beginning, even if nothing is ever appended."""
    appended = dict.fromkeys(target.name for target in targets(program.statements) if target.append)
    for target in targets(program.statements):
        if not target.append:
            appended.pop(target.name, None)
    return [*appended]


def targets(statements: Iterable[Statement]) -> Iterator[Target]:
    """All names that are set or appended to."""
    for statement in all_statements(statements):
        if isinstance(statement, Block | CallStatement | Assignment):
            yield statement.target


def variables(expression: Expression) -> Iterable[Variable]:
    """All variables that the expression reads."""
    return (part for part in parts(expression) if isinstance(part, Variable))


def each_once(variables: Iterable[Variable]) -> Iterable[Variable]:
    """The first variable of each name."""
    return {variable.name: variable for variable in reversed([*variables])}.values()


def parts(expression: Expression) -> Iterable[Expression]:
    """An expression and all of its parts."""
    waiting = [expression]
    while waiting:
        part = waiting.pop()
        yield part
        match part:
            case Variable():
                waiting += part.path
            case ListOf():
                waiting += part.items
            case DictOf():
                waiting += [one for pair in part.items for one in pair]
            case Applied():
                waiting += part.arguments
            case Unary():
                waiting.append(part.operand)
            case Binary():
                waiting += [part.right, part.left]
            case Constant() | Quoted() | Word():
                pass
