"""What a program is made of, once it is read: statements and expressions, each with its place in the text. Data only;
`parsing` makes it, `checking` and `running` go through it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from unbroken.dph.source import Source
from unbroken.messages import Json

NAME = r"[A-Za-z_][A-Za-z0-9_]*"
"""What a name looks like. Letters of other scripts are none of it: in `$city的天气` the name ends before them."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A number, true, false, null."""

    at: int
    value: Json


@dataclass(frozen=True, slots=True)
class Quoted:
    """A text in quotes; variables in it are replaced."""

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
    """As it stands in the program."""


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
    """A function by its name: `len($hits)`."""

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
    """Of the operator."""
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
    """A model is asked: `/prompt/`, `/explore/`, `/judge/`."""

    at: int
    kind: BlockKind
    arguments: tuple[Argument, ...]
    text: str
    text_at: int
    target: Target


@dataclass(frozen=True, slots=True)
class CallStatement:
    """`@name(…)`: a tool, or another program."""

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
    """`/if/`, `elif` or `else`, which has no condition."""

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
    """What stands between `@DESC` and `@DESC`."""
