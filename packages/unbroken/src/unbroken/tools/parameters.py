"""The parameters of any callable: their resolved types, their defaults, and which of them takes the `CallContext`.
`schema` turns them into a JSON Schema.
"""

from __future__ import annotations

import functools
import inspect
import json
import math
import re
import types
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Union, cast, get_args, get_origin, get_type_hints

from unbroken.errors import InvalidTool
from unbroken.tools.context import CallContext
from unbroken_wires.messages import ToolCall

ABSENT: Any = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    type: Any
    default: Any = ABSENT


@dataclass(frozen=True, slots=True)
class Parameters:
    shown: tuple[Parameter, ...]
    """To the model, that is."""
    context: str = ""
    deps: Any = Any
    """The `deps` that its annotation names."""


def innermost(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function inside partials, static and bound methods and objects with `__call__`: the one that has the
    annotations, the docstring and the `async`."""
    while True:
        if isinstance(function, functools.partial):
            function = cast("functools.partial[Any]", function).func
        elif isinstance(function, staticmethod | classmethod):
            function = cast("Callable[..., Any]", function.__func__)  # pyright: ignore[reportUnknownMemberType] - untyped
        elif inspect.ismethod(function):
            function = function.__func__
        elif inspect.isroutine(function) or inspect.isclass(function):
            return function
        else:
            call = getattr(type(function), "__call__")  # noqa: B004, B009 - the method of the type is needed
            return call if inspect.isroutine(call) else function


def read_parameters(name: str, function: Callable[..., Any]) -> Parameters:
    try:
        # A static method is called directly; it has the signature of its function.
        found = dict(inspect.signature(function).parameters)
    except (ValueError, TypeError) as error:
        raise InvalidTool(
            f"tool `{name}`: its signature cannot be read ({error}); wrap it in a function with annotated parameters"
        ) from error
    for bound in _bound_by_name(function):
        found.pop(bound, None)
    if takes_self(function):
        found.pop(next(iter(found)))
    names = _Names(innermost(function))
    shown: list[Parameter] = []
    context, deps = "", Any
    for parameter in found.values():
        _refuse_kinds(name, parameter)
        kind = names.resolve(name, parameter)
        if not _is_context(kind):
            _refuse_other_contexts(name, parameter.name, kind)
            shown.append(Parameter(parameter.name, kind, parameter.default))
        elif context:
            raise InvalidTool(f"tool `{name}`: `{context}` and `{parameter.name}` both take the CallContext; keep one")
        else:
            context, deps = parameter.name, next(iter(get_args(kind)), Any)
    return Parameters(tuple(shown), context, deps)


def _bound_by_name(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(cast("functools.partial[Any]", function).keywords) if isinstance(function, functools.partial) else ()


def takes_self(function: Callable[..., Any]) -> bool:
    """Is it a function of a class body that is not bound to an object yet?"""
    if not inspect.isfunction(function):
        return False
    owner = function.__qualname__.rpartition(".")[0]
    if not owner or owner.endswith("<locals>"):
        return False
    return next(iter(inspect.signature(function).parameters), "") in ("self", "cls")


def _refuse_kinds(name: str, parameter: inspect.Parameter) -> None:
    if parameter.kind is parameter.VAR_POSITIONAL or parameter.kind is parameter.VAR_KEYWORD:
        stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
        raise InvalidTool(
            f"tool `{name}`: parameter `{stars}{parameter.name}` cannot become a JSON Schema; name each parameter"
        )
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise InvalidTool(
            f"tool `{name}`: parameter `{parameter.name}` is positional-only and arguments come by name; "
            "remove the `/` from its signature"
        )


class _Names:
    """Resolves annotations that are text. If a function is defined inside another one, the local names of that one
    apply: it is still running while its inner function becomes a tool."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._globals: dict[str, Any] = getattr(inspect.unwrap(function), "__globals__", {})
        self._function = function
        self._locals: dict[str, Any] | None = None

    def resolve(self, name: str, parameter: inspect.Parameter) -> Any:
        annotation = parameter.annotation
        if annotation is ABSENT:
            return Any
        holder = types.SimpleNamespace(__annotations__={"it": annotation})
        try:
            return get_type_hints(holder, self._globals, self._around(), include_extras=True)["it"]
        except Exception as error:
            text = annotation if isinstance(annotation, str) else str(annotation)
            # Often imported under TYPE_CHECKING only, so the name alone decides.
            if re.search(r"\bCallContext\b", text):
                return CallContext
            raise InvalidTool(
                f"tool `{name}`: the type `{text}` of parameter `{parameter.name}` cannot be resolved ({error}); "
                "import or define it where the function is defined"
            ) from error

    def _around(self) -> dict[str, Any]:
        if self._locals is None:
            self._locals = _locals_around(inspect.unwrap(self._function))
        return self._locals


def _locals_around(function: Callable[..., Any]) -> dict[str, Any]:
    owners: list[str] = []
    owner = getattr(function, "__qualname__", "").rpartition(".")[0]
    while owner:
        owners.append(owner.removesuffix(".<locals>"))
        owner = owners[-1].rpartition(".")[0]
    found: dict[str, Any] = {}
    frame = inspect.currentframe() if owners and inspect.isfunction(function) else None
    while frame is not None:
        if frame.f_code.co_qualname in owners and frame.f_code.co_filename == function.__code__.co_filename:
            found = {**frame.f_locals, **found}
        frame = frame.f_back
    return found


def _is_context(kind: Any) -> bool:
    return any(issubclass(one, CallContext) for one in _classes(kind))


def _classes(kind: Any) -> tuple[type, ...]:
    """The classes that an annotation accepts."""
    origin = get_origin(kind)
    if origin is Annotated:
        return _classes(get_args(kind)[0])
    if origin in (Union, types.UnionType):
        return tuple(each for one in get_args(kind) for each in _classes(one))
    kind = origin or kind
    return (kind,) if isinstance(kind, type) else ()


_OTHER_CONTEXTS = {
    ("unbroken", "RunContext"),  # what checks and other functions of an agent get
    ("pydantic_ai", "RunContext"),
    ("agents", "RunContextWrapper"),
    ("langgraph", "ToolRuntime"),
}
"""By package and name: what a function of an agent, or a tool of another library, gets from its run."""


def _refuse_other_contexts(name: str, parameter: str, kind: Any) -> None:
    """Some of them are dataclasses: as a parameter of its own, the model would write the `deps` of the run."""
    for base in (base for each in _classes(kind) for base in each.__mro__):
        if (base.__module__.partition(".")[0], base.__name__) in _OTHER_CONTEXTS:
            raise InvalidTool(
                f"tool `{name}`: parameter `{parameter}` is a `{base.__name__}`, which no tool gets here; "
                "annotate it with `CallContext` of `unbroken`, which has `deps` too"
            )


# Arguments that two JSON parsers would read differently: a duplicate key in an object, a number beyond the range of a
# float. The tool never gets a guess: the call is refused with an error for the model. This checks calls before they
# run. Calls that a gateway passes on are not checked.


SHOWN = 40
"""Maximum characters of a key or a number in a refusal."""


_EXACT = frozenset({str, int, bool, type(None)})


class _Inexact(Exception):
    pass


def inexact(call: ToolCall) -> str:
    """Why the text of its arguments is ambiguous; empty if it is not."""
    raw, arguments = call.raw, call.arguments
    if not raw or arguments is None:
        return ""
    # Each key has a colon: if there are no more colons than keys, no key is a duplicate.
    if raw.count(":") == len(arguments) and _EXACT.issuperset(map(type, arguments.values())):
        return ""
    try:
        value = _DECODER.decode(raw)
        if isinstance(value, str):  # encoded twice
            _DECODER.decode(value)
    except _Inexact as error:
        return str(error)
    except (ValueError, RecursionError):
        pass  # they did not come as this text
    return ""


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise _Inexact(f"`{twice[:SHOWN]}` is given more than once in the same object; give each name once")
    return found


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise _Inexact(f"the number {digits[:SHOWN]} is too large to be read; give a smaller one, or a text")
    return number


_DECODER = json.JSONDecoder(object_pairs_hook=_once_each, parse_float=_finite)


# Reads docstrings: the description of a function and of each of its parameters.
#
# Reads the Google, NumPy and reST styles, line by line and by hand. Not a checker: anything else is description, and
# nothing in a docstring is an error. Types in docstrings are ignored, because annotations have them.


_HEADERS = "args|arguments|parameters|params|keyword args|keyword arguments|other parameters|参数|參數|参数说明"
_GOOGLE = re.compile(rf"\s*(?:{_HEADERS})\s*[:：]\s*", re.IGNORECASE)
_NUMPY = re.compile(rf"\s*(?:{_HEADERS})\s*", re.IGNORECASE)
_UNDERLINE = re.compile(r"\s*(?:-{3,}|={3,})\s*")

_GOOGLE_ENTRY = re.compile(
    r"""\s* (?:[-*]\s+)?            # some write a list
    `{0,2} \*{0,2} (?P<name>\w+) `{0,2}
    \s* (?:[(（].*?[)）])?          # the type, and whether it is optional
    (?: \s*[:：]\s* | \s+[-–—]{1,2}\s+ )
    (?P<text>.*)""",
    re.VERBOSE,
)
_NUMPY_ENTRY = re.compile(r"\s*(?P<names>\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?:[:：].*)?")
_FIELD = re.compile(r"\s*[:@](?P<kind>\w+)(?:\s+(?P<subject>[^:：]*?))?\s*[:：](?:\s+|$)(?P<text>.*)")
_PARAMETER_FIELDS = {"param", "parameter", "arg", "argument", "key", "keyword"}


@dataclass(frozen=True, slots=True)
class Docstring:
    description: str = ""
    """The summary and the body, without the part about the parameters."""
    parameters: dict[str, str] | None = None

    def of(self, parameter: str) -> str:
        return (self.parameters or {}).get(parameter, "")


def read_docstring(text: str | None) -> Docstring:
    lines = _lines_of(text or "")
    kept: list[str] = []
    found: dict[str, list[str]] = {}
    at = 0
    while at < len(lines):
        line, below = lines[at], lines[at + 1] if at + 1 < len(lines) else ""
        if _in_section(lines, at):
            kept.append(line)
            end = at + 1
        elif _GOOGLE.fullmatch(line) and _indent_of_next(lines, at + 1) > _indent(line):
            end = _end_of_block(lines, at + 1, _indent(line) + 1)
            _read_google(lines[at + 1 : end], found)
        elif _NUMPY.fullmatch(line) and _UNDERLINE.fullmatch(below):
            end = _end_of_numpy(lines, at + 2)
            _read_numpy(lines[at + 2 : end], found)
        elif (field := _FIELD.fullmatch(line)) and field["kind"].lower() in _PARAMETER_FIELDS | {"type"}:
            end = _end_of_field(lines, at + 1, _indent(line) + 1)
            words = (field["subject"] or "").split()
            if words and field["kind"].lower() != "type":
                found.setdefault(words[-1].lstrip("*"), [field["text"], *lines[at + 1 : end]])
        else:
            kept.append(line)
            end = at + 1
        at = end
    parameters = {name: text for name, texts in found.items() if (text := _join(texts))}
    return Docstring(re.sub(r"\n\s*\n(\s*\n)+", "\n\n", "\n".join(kept)).strip(), parameters)


def _lines_of(text: str) -> list[str]:
    """Without the margin. If the first line is a header, the entries below it would lose their indentation, so it is
    restored."""
    lines = inspect.cleandoc(text).splitlines()
    first, *below = text.splitlines() or [""]
    if _GOOGLE.fullmatch(first) and _indent_of_next(below, 0) > 0 and _indent_of_next(lines, 1) == 0:
        return [lines[0], *(f"    {line}" for line in lines[1:])]
    return lines


def _in_section(lines: list[str], at: int) -> bool:
    """Below `Example:` or another header, parameters are not those of this function."""
    margin = _indent(lines[at])
    if margin == 0 or not lines[at].strip():
        return False
    above = next((line for line in reversed(lines[:at]) if line.strip() and _indent(line) < margin), "")
    return above.rstrip().endswith((":", "："))


def _read_google(block: list[str], found: dict[str, list[str]]) -> None:
    margin = _indent_of_next(block, 0)
    current: list[str] | None = None
    for line in block:
        if _indent(line) <= margin and (entry := _GOOGLE_ENTRY.fullmatch(line)):
            current = found.setdefault(entry["name"], [])
            current.append(entry["text"])
        elif current is not None:
            current.append(line)


def _read_numpy(block: list[str], found: dict[str, list[str]]) -> None:
    margin = _indent_of_next(block, 0)
    current: list[list[str]] = []
    for line in block:
        if line.strip() and _indent(line) <= margin and (entry := _NUMPY_ENTRY.fullmatch(line)):
            current = [found.setdefault(name.strip().lstrip("*"), []) for name in entry["names"].split(",")]
        else:
            for texts in current:
                texts.append(line)


def _end_of_block(lines: list[str], at: int, margin: int) -> int:
    while at < len(lines) and (not lines[at].strip() or _indent(lines[at]) >= margin):
        at += 1
    return at


def _end_of_field(lines: list[str], at: int, margin: int) -> int:
    while at < len(lines) and lines[at].strip() and _indent(lines[at]) >= margin:
        at += 1
    return at


def _end_of_numpy(lines: list[str], at: int) -> int:
    """At the next underlined header, or at a line that can be neither an entry nor its text."""
    while at < len(lines):
        if at + 1 < len(lines) and lines[at].strip() and _UNDERLINE.fullmatch(lines[at + 1]):
            break
        if lines[at].strip() and _indent(lines[at]) == 0 and not _NUMPY_ENTRY.fullmatch(lines[at]):
            break
        at += 1
    return at


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _indent_of_next(lines: list[str], at: int) -> int:
    return next((_indent(line) for line in lines[at:] if line.strip()), 0)


def _join(texts: Iterable[str]) -> str:
    """One line: a space between two lines, but none between two Chinese characters."""
    joined = ""
    for text in (text.strip() for text in texts):
        if not text:
            continue
        wide = joined and ord(joined[-1]) >= 0x2E80 and ord(text[0]) >= 0x2E80
        joined += text if wide or not joined else f" {text}"
    return joined
