"""Evaluates expressions. The operators work on JSON values only (functions are in `functions`): a program cannot reach
Python, and runs nothing that is not written here."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, assert_never, cast

from unbroken.clock import Clock
from unbroken.errors import UserError
from unbroken.models.connect import connect
from unbroken.models.model import Model
from unbroken.tools.approval import OnApproval
from unbroken.tools.caller import ResultCache
from unbroken.tools.parameters import innermost
from unbroken.tools.tool import Tool
from unbroken.tools.toolbox import Toolbox
from unbroken.trajectory.recorder import Recorder
from unbroken_dph.arguments import fill
from unbroken_dph.functions import apply
from unbroken_dph.outputs import BlockRun, ProgramSink
from unbroken_dph.problems import Position
from unbroken_dph.syntax import (
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
from unbroken_dph.values import (
    Answer,
    Missing,
    Scope,
    bounded,
    in_text,
    is_number,
    keeping,
    kind_of,
    refuse_beyond,
    same,
    step_into,
)
from unbroken_wires.messages import Json, Usage


class CannotEvaluate(Exception):
    """An evaluation error, with the position of the invalid part."""

    def __init__(self, at: int, message: str) -> None:
        super().__init__(message)
        self.at = at


def evaluate(expression: Expression, variables: Mapping[str, Json], *, as_written: bool = False) -> Json:
    """The value of an expression. An unset variable raises `CannotEvaluate`; with `as_written` its value is its own
    text instead, as in the arguments of blocks and tools."""
    match expression:
        case Constant():
            return expression.value
        case Quoted():
            return _guarded(expression.at, "the string", lambda: _spent(variables, fill(expression.text, variables)))
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
        raise CannotEvaluate(expression.at, f"`-` needs a number, not {kind_of(value)}")
    return -value


def _binary(expression: Binary, variables: Mapping[str, Json]) -> Json:
    # A long sum is nested to the left: it is evaluated without recursion.
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
    """Returns the value, after counting its size as work of the running program."""
    if isinstance(variables, Scope):
        variables.spend(value, deep)
    return value


def _operate(node: Binary, left: Json, right: Json, variables: Mapping[str, Json]) -> Json:
    # If the value of a block is compared or concatenated with a string, its answer is used.
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
            raise TypeError(f"needs numbers, not {kind_of(value)}")
    return bounded(work())


def _divide(left: Json, right: Json, work: Callable[[], Json]) -> Json:
    if is_number(right) and right == 0:
        raise ValueError("division by 0")
    return _numbers("/", left, right, work)


def _order(left: Json, right: Json, compare: Callable[[Any, Any], bool]) -> bool:
    if (is_number(left) and is_number(right)) or (isinstance(left, str) and isinstance(right, str)):
        return compare(left, right)
    raise TypeError(f"{kind_of(left)} and {kind_of(right)} cannot be ordered; compare numbers or strings")


def _contains(whole: Json, part: Json) -> bool:
    if isinstance(whole, str) and isinstance(part, str):
        return part in whole
    if isinstance(whole, list):
        return any(same(part, item) for item in cast("list[Json]", whole))
    if isinstance(whole, dict) and isinstance(part, str):
        return part in whole
    if isinstance(whole, str | dict):
        raise TypeError(f"{kind_of(whole)} can only contain a string, not {kind_of(part)}")
    raise TypeError(f"{kind_of(whole)} contains nothing; use a string, a list or an object")


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


# The environment of a program: its models, tools and sink. Programs that it calls share it; variables are in `Scope`.


NO_MODEL = "this block needs a model, and none was given; give one to the program (--model), or write model= here"
CHOICES = ("auto", "required", "none")


@dataclass(slots=True)
class Environment:
    run: str
    model: Model | None
    toolbox: Toolbox
    models: Mapping[str, Model]
    types: Mapping[str, Any]
    emit: ProgramSink
    clock: Clock
    on_approval: OnApproval | None = None
    deps: Any = None
    recorder: Recorder | None = None
    results: ResultCache = field(default_factory=ResultCache)
    usage: Usage = field(default_factory=Usage)
    requests: int = 0
    failed_blocks: list[BlockRun] = field(default_factory=list[BlockRun])
    """Blocks that stopped because all their tool calls failed."""
    programs: int = 0
    """Called programs that are still running."""
    steps: int = 0
    """Work done since other tasks last had a turn."""
    _with_values: dict[str, Tool] = field(default_factory=dict[str, Tool])
    """Tools that keep their values, by name."""
    _connected: dict[str, Model] = field(default_factory=dict[str, Model])
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def begin(self, kind: str, name: str, place: Position, called: str = "", parent: int = 0) -> BlockRun:
        return BlockRun.at(next(self._numbers), kind, name, place, called, parent)

    def keep_values(self, tool: Tool) -> Tool:
        """The tool with its values kept. All calls share one object, because results of a tool with `cache` are found
        by its function."""
        if tool.function is None:
            return tool
        return self._with_values.setdefault(tool.name, keeping(tool))

    def find_model(self, name: str | None) -> Model:
        """The model with this name: the program's default (None), one of `models`, or one that is connected now."""
        if name is None:
            if self.model is None:
                raise UserError(NO_MODEL)
            return self.model
        if name in self.models:
            return self.models[name]
        if name not in self._connected:
            if ":" not in name:
                raise UserError(no_such_model(name, self.models))
            self._connected[name] = connect(name)
        return self._connected[name]


def choose_tools(toolbox: Toolbox, wanted: list[str] | None) -> Toolbox:
    """The tools that match names and patterns, in the order of the toolbox; all tools if `wanted` is None."""
    if wanted is None:
        return toolbox
    for name in wanted:
        if problem := no_such_tool(toolbox, name):
            raise UserError(problem)
    return Toolbox(*(tool for tool in toolbox if any(fnmatchcase(tool.name, name) for name in wanted)))


def no_such_tool(toolbox: Toolbox, name: str) -> str:
    """The error message if no tool has this name or matches this pattern; otherwise empty."""
    if any(fnmatchcase(known, name) for known in toolbox.names):
        return ""
    what = f"no tool matches `{name}`" if any(mark in name for mark in "*?[") else f"there is no tool `{name}`"
    close = difflib.get_close_matches(name, toolbox.names, n=1)
    if close:
        return f"{what}; did you mean `{close[0]}`?"
    return f"{what}; the tools are: {', '.join(toolbox.names) or 'none (give a file with --tools)'}"


def no_such_model(name: str, models: Iterable[str]) -> str:
    """The error message for a name that does not identify a model."""
    known = ", ".join(models)
    return (
        f'model="{name}": no model has this name ({f"the names are: {known}" if known else "no names are defined"}); '
        f'write "provider:model", or define the name (models=, --also {name}=PROVIDER:MODEL)'
    )


def no_such_choice(choice: str | None, tools: Toolbox) -> str:
    """The error message for a tool choice that these tools do not allow; otherwise empty."""
    if choice is None or choice in CHOICES or choice in tools:
        return ""
    names = ", ".join(tools.names) or "it has none"
    return f"`tool_choice` must be {', '.join(CHOICES)} or a tool of this block ({names})"


def types_beside(tools: Toolbox) -> dict[str, Any]:
    """The classes in the modules of the tools: `output="obj/Type"` may name them."""
    found: dict[str, Any] = {}
    for tool in tools:
        for name, value in _globals_of(tool).items():
            if isinstance(value, type) and not name.startswith("_"):
                found.setdefault(name, value)
    return found


def _globals_of(tool: Tool) -> dict[str, Any]:
    return getattr(innermost(tool.function), "__globals__", {}) if tool.function is not None else {}
