"""The parameters of a function, of whatever kind of callable it is: their types with the names in them resolved, their
defaults, and which of them takes the `CallContext`. What JSON can say of them is `schema`'s."""

from __future__ import annotations

import functools
import inspect
import re
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Union, cast, get_args, get_origin, get_type_hints

from unbroken.errors import InvalidTool
from unbroken.tools.context import CallContext

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
            call = getattr(type(function), "__call__")  # noqa: B004, B009 - the method is wanted, of whoever has one
            return call if inspect.isroutine(call) else function


def read_parameters(name: str, function: Callable[..., Any]) -> Parameters:
    try:
        # A static method is called as it stands; its own signature is that of the function in it.
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
    context = ""
    for parameter in found.values():
        _refuse_kinds(name, parameter)
        kind = names.resolve(name, parameter)
        if not _is_context(kind):
            shown.append(Parameter(parameter.name, kind, parameter.default))
        elif context:
            raise InvalidTool(f"tool `{name}`: `{context}` and `{parameter.name}` both take the CallContext; keep one")
        else:
            context = parameter.name
    return Parameters(tuple(shown), context)


def _bound_by_name(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(cast("functools.partial[Any]", function).keywords) if isinstance(function, functools.partial) else ()


def takes_self(function: Callable[..., Any]) -> bool:
    """A function of a class body that is not bound yet: its object comes later."""
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
    """Resolves annotations that are text. Where a function was made inside another one, the names of that one count:
    it is still running while its inner function becomes a tool."""

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
            # Often imported under TYPE_CHECKING only: all that matters of it is its name.
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
    origin = get_origin(kind)
    if origin is Annotated:
        return _is_context(get_args(kind)[0])
    if origin in (Union, types.UnionType):
        return any(_is_context(one) for one in get_args(kind))
    kind = origin or kind
    return isinstance(kind, type) and issubclass(kind, CallContext)
