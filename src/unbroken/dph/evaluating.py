"""What an expression comes to. A closed list of operators over JSON values (functions stand in `functions`): nothing of
Python can be reached from a program, and nothing is run that is not written here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, assert_never, cast

from unbroken.dph.filling import fill
from unbroken.dph.functions import apply
from unbroken.dph.scope import Scope
from unbroken.dph.syntax import (
    Applied,
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
from unbroken.dph.values import Answer, Missing, bounded, in_text, is_number, kind_of, refuse_beyond, same, step_into
from unbroken.messages import Json


class CannotEvaluate(Exception):
    """With the place of the part that cannot be."""

    def __init__(self, at: int, message: str) -> None:
        super().__init__(message)
        self.at = at


def evaluate(expression: Expression, variables: Mapping[str, Json], *, as_written: bool = False) -> Json:
    """Its value. A variable that is not set cannot be evaluated; `as_written` lets it stand for its own text, as it
    does in the arguments of blocks and tools."""
    match expression:
        case Constant():
            return expression.value
        case Quoted():
            return _guarded(expression.at, "the text", lambda: _spent(variables, fill(expression.text, variables)))
        case Word():
            return expression.text
        case Variable():
            return _variable(expression, variables, as_written)
        case ListOf():
            return [evaluate(item, variables, as_written=as_written) for item in expression.items]
        case DictOf():
            return {
                in_text(evaluate(key, variables)): evaluate(value, variables, as_written=as_written)
                for key, value in expression.items
            }
        case Applied():
            return _apply(expression, variables)
        case Unary():
            return _unary(expression, variables)
        case Binary():
            return _binary(expression, variables)
        case _:
            assert_never(expression)


def _variable(variable: Variable, variables: Mapping[str, Json], as_written: bool) -> Json:
    if variable.name not in variables:
        if as_written:
            return variable.written
        raise CannotEvaluate(variable.at, f"`${variable.name}` is not set")
    value = variables[variable.name]
    for key in variable.path:
        try:
            value = step_into(value, evaluate(key, variables))
        except Missing as error:
            raise CannotEvaluate(key.at, f"`{variable.written}`: {error}") from None
    return value


def _unary(expression: Unary, variables: Mapping[str, Json]) -> Json:
    value = evaluate(expression.operand, variables)
    if expression.operator == "not":
        return not bool(value)
    if not is_number(value):
        raise CannotEvaluate(expression.at, f"`-` needs a number, and this is {kind_of(value)}")
    return -value


def _binary(expression: Binary, variables: Mapping[str, Json]) -> Json:
    # A long sum leans to the left, one operator in the other: it is gone through without a call for each.
    spine: list[Binary] = []
    node: Expression = expression
    while isinstance(node, Binary):
        spine.append(node)
        node = node.left
    value = evaluate(node, variables)
    for each in reversed(spine):
        if each.operator == "and":
            value = evaluate(each.right, variables) if bool(value) else value
        elif each.operator == "or":
            value = value if bool(value) else evaluate(each.right, variables)
        else:
            value = _operate(each, value, evaluate(each.right, variables), variables)
    return value


def _apply(expression: Applied, variables: Mapping[str, Json]) -> Json:
    arguments = [evaluate(argument, variables) for argument in expression.arguments]

    def work() -> Json:
        if expression.function != "len":
            for argument in arguments:
                _spent(variables, argument, expression.function in ("str", "join"))
        return _spent(variables, apply(expression.function, arguments))

    return _guarded(expression.at, f"{expression.function}(…)", work)


def _spent(variables: Mapping[str, Json], value: Json, deep: bool = False) -> Json:
    """The value; where a program runs, it is counted what it costs to go through it."""
    if isinstance(variables, Scope):
        variables.spend(value, deep)
    return value


def _operate(node: Binary, left: Json, right: Json, variables: Mapping[str, Json]) -> Json:
    # Beside a text the value of a block stands for its answer, as it does in a text.
    if isinstance(left, str) and isinstance(right, Answer):
        right = in_text(right)
    elif isinstance(left, Answer) and (isinstance(right, str) or node.operator in ("in", "not in")):
        left = in_text(left)

    def work() -> Json:
        deep = node.operator in ("==", "!=", "in", "not in") or isinstance(left, str) or isinstance(right, str)
        _spent(variables, left, deep)
        _spent(variables, right, deep)
        return _OPERATORS[node.operator](left, right)

    return _guarded(node.at, f"`{node.operator}`", work)


def _guarded(at: int, what: str, work: Callable[[], Json]) -> Json:
    try:
        return work()
    except (TypeError, ValueError, ArithmeticError, Missing) as error:
        raise CannotEvaluate(at, f"{what}: {error}") from None


def _add(left: Json, right: Json) -> Json:
    if isinstance(left, str) or isinstance(right, str):
        one, other = in_text(left), in_text(right)
        refuse_beyond(len(one) + len(other))
        return one + other
    if isinstance(left, list) and isinstance(right, list):
        ours, theirs = cast("list[Json]", left), cast("list[Json]", right)
        refuse_beyond(len(ours) + len(theirs))
        return [*ours, *theirs]
    if isinstance(left, dict) and isinstance(right, dict):
        return {**cast("dict[str, Any]", left), **cast("dict[str, Any]", right)}
    return _numbers("+", left, right, lambda: left + right)


def _numbers(operator: str, left: Json, right: Json, work: Callable[[], Json]) -> Json:
    for value in (left, right):
        if not is_number(value):
            raise TypeError(f"needs numbers, and one side is {kind_of(value)}")
    return bounded(work())


def _divide(left: Json, right: Json, work: Callable[[], Json]) -> Json:
    if is_number(right) and right == 0:
        raise ValueError("nothing can be divided by 0")
    return _numbers("/", left, right, work)


def _order(left: Json, right: Json, compare: Callable[[Any, Any], bool]) -> bool:
    if (is_number(left) and is_number(right)) or (isinstance(left, str) and isinstance(right, str)):
        return compare(left, right)
    raise TypeError(f"{kind_of(left)} and {kind_of(right)} have no order; compare numbers, or texts")


def _contains(whole: Json, part: Json) -> bool:
    if isinstance(whole, str) and isinstance(part, str):
        return part in whole
    if isinstance(whole, list):
        return any(same(part, item) for item in cast("list[Json]", whole))
    if isinstance(whole, dict) and isinstance(part, str):
        return part in whole
    if isinstance(whole, str | dict):
        raise TypeError(f"in {kind_of(whole)} a text is looked for, and this is {kind_of(part)}")
    raise TypeError(f"nothing is looked for in {kind_of(whole)}; use a text, a list or an object")


_OPERATORS: dict[str, Callable[[Any, Any], Json]] = {
    "+": _add,
    "-": lambda a, b: _numbers("-", a, b, lambda: a - b),
    "*": lambda a, b: _numbers("*", a, b, lambda: a * b),
    "/": lambda a, b: _divide(a, b, lambda: a / b),
    "//": lambda a, b: _divide(a, b, lambda: a // b),
    "%": lambda a, b: _divide(a, b, lambda: a % b),
    "==": same,
    "!=": lambda a, b: not same(a, b),
    "<": lambda a, b: _order(a, b, lambda x, y: x < y),
    "<=": lambda a, b: _order(a, b, lambda x, y: x <= y),
    ">": lambda a, b: _order(a, b, lambda x, y: x > y),
    ">=": lambda a, b: _order(a, b, lambda x, y: x >= y),
    "in": lambda a, b: _contains(b, a),
    "not in": lambda a, b: not _contains(b, a),
}
