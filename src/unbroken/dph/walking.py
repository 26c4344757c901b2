"""Goes through the statements of a program and the parts of its expressions, wherever they stand in each other. It
judges nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from unbroken.dph.arguments import names_in
from unbroken.dph.syntax import (
    Applied,
    Assignment,
    Binary,
    Block,
    CallStatement,
    Constant,
    DictOf,
    Expression,
    For,
    If,
    ListOf,
    Parallel,
    Program,
    Quoted,
    Statement,
    Target,
    Unary,
    Variable,
    Word,
)


def names_used(program: Program) -> set[str]:
    """Every variable that is read anywhere in it."""
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
    """These, and all that stand inside of them."""
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
    """Names that a program only appends to: they are lists from its beginning, also if nothing is ever appended."""
    appended = dict.fromkeys(target.name for target in targets(program.statements) if target.append)
    for target in targets(program.statements):
        if not target.append:
            appended.pop(target.name, None)
    return [*appended]


def targets(statements: Iterable[Statement]) -> Iterator[Target]:
    """Every name that is set or appended to."""
    for statement in all_statements(statements):
        if isinstance(statement, Block | CallStatement | Assignment):
            yield statement.target


def variables(expression: Expression) -> Iterable[Variable]:
    """Every variable that is read in it."""
    return (part for part in parts(expression) if isinstance(part, Variable))


def each_once(variables: Iterable[Variable]) -> Iterable[Variable]:
    """By name; the first that is found."""
    return {variable.name: variable for variable in reversed([*variables])}.values()


def parts(expression: Expression) -> Iterable[Expression]:
    """An expression and all that it is made of."""
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
