"""A set of tools by name, collected from functions, objects, classes, modules, files, servers and other toolboxes.
`tool` defines a tool, `caller` runs it.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import importlib.util
import inspect
import io
import json
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from contextlib import suppress
from inspect import get_annotations
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self, TypeAlias, cast

from unbroken.errors import InvalidTool, UserError
from unbroken.tools.parameters import innermost, takes_self
from unbroken.tools.tool import Tool, tool
from unbroken_wires.messages import ServerTool, ToolSpec
from unbroken_wires.server_tools import DeferredTools
from unbroken_wires.validation import fits

Source: TypeAlias = Any
"""A `Tool`, a function, an object or a class with `@tool` methods, a module with `@tool` functions, the path of a
Python file with such, a `ToolServer` that is open, a `Toolbox`, a tool that the provider runs (`ServerTool`), or a list
of these."""

SEARCH = "search_tools"
"""The tool that finds others (`ToolSearch`)."""
LISTED = 30
"""Names of tools in an error for people."""


class ToolServer(ABC):
    """Tools that have to be fetched from elsewhere first (an MCP server). It is open inside its `async with`; several
    may enter it, and the last to leave closes it."""

    @abstractmethod
    async def __aenter__(self) -> Self: ...

    @abstractmethod
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @property
    @abstractmethod
    def tools(self) -> tuple[Tool, ...]:
        """They may change while it is open; raises `InvalidTool` if it is not."""


class Toolbox:
    """Tools in the order in which they were given, each name once."""

    __slots__ = ("_needs", "_specs", "_tools", "background", "server_tools")

    def __init__(self, *sources: Source) -> None:
        self._tools: dict[str, Tool] = {}
        self.background = False
        """Whether calls of some of them may go to the background."""
        self.server_tools: tuple[ServerTool, ...] = ()
        """Those that the provider runs itself. They are not among the others: nothing here can call them."""
        for source in sources:
            for one in _tools_of(source):
                if isinstance(one, ServerTool):
                    self._add_server_tool(one)
                else:
                    self._add(one)
        self._specs = tuple(one.spec for one in self._tools.values())
        self._needs = {one.signature.deps: one.name for one in self if isinstance(one.signature.deps, type)}
        """For each class of `deps` that a tool needs: the name of one such tool."""

    @classmethod
    def from_file(cls, path: str | Path) -> Toolbox:
        """The tools of a Python file, which is executed."""
        return cls(_run_file(Path(path)))

    @property
    def names(self) -> tuple[str, ...]:
        """In the order in which the tools were given."""
        return tuple(self._tools)

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools as a model sees them, in their order: for a `Request`."""
        return self._specs

    def get(self, name: str) -> Tool | None:
        """The tool with exactly this name, or None; `close_to` suggests similar names."""
        return self._tools.get(name)

    def close_to(self, name: str) -> tuple[str, ...]:
        """Names that may have been meant, the likeliest first."""
        plain: dict[str, str] = {}
        for known in self._tools:
            plain.setdefault(_plain(known), known)
        return tuple(plain[found] for found in difflib.get_close_matches(_plain(name), plain, n=3, cutoff=0.6))

    def lacks(self, name: str) -> str:
        """Words for an error: there is no tool of this name, and which ones there are."""
        close = self.close_to(name)
        meant = f": did you mean `{close[0]}`? There are" if close else "; there are"
        more = f" and {len(self) - LISTED} more" if len(self) > LISTED else ""
        return f"there is no tool `{name}`{meant}: {', '.join(self.names[:LISTED]) or 'none'}{more}"

    def refuse_deps(self, deps: object) -> None:
        """Raises `UserError` if a tool needs other `deps`. An object of another class passes if it has something in
        common with the one that is needed, as the fake objects of tests have."""
        for needed, name in self._needs.items():
            if deps is None or fits(deps, needed):
                continue
            members = {each for each in (*dir(needed), *get_annotations(needed)) if not each.startswith("_")}
            if members and members.isdisjoint(dir(deps)):
                raise UserError(
                    f"tool `{name}` needs deps of the type `{needed.__name__}` (CallContext[{needed.__name__}]), and "
                    f"got `{type(deps).__name__}`: give others with Agent(…, deps=…) or run(…, deps=…)"
                )

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __add__(self, other: Source) -> Toolbox:
        return Toolbox(self, other)

    __or__ = __add__

    def __repr__(self) -> str:
        return f"Toolbox({', '.join(self._tools)})"

    def _add_server_tool(self, new: ServerTool) -> None:
        if isinstance(new, DeferredTools):
            before = [tool for tool in self.server_tools if isinstance(tool, DeferredTools)]
            others = tuple(tool for tool in self.server_tools if not isinstance(tool, DeferredTools))
            names = new.names.union(*(tool.names for tool in before))
            self.server_tools = (*others, DeferredTools(names))
            return
        names = [getattr(tool, "name", type(tool).__name__) for tool in self.server_tools]
        name = getattr(new, "name", type(new).__name__)
        if new in self.server_tools:
            return
        if name in names:
            raise InvalidTool(f"`{name}` is given twice, with different settings: leave one of them out")
        self.server_tools = (*self.server_tools, new)

    def _add(self, new: Tool) -> None:
        self.background = self.background or new.background is not None or new.role == "task"
        old = self._tools.setdefault(new.name, new)
        # The same tool twice (two toolboxes that share one) is not a clash.
        if old is not new and (old.function is None or old.function is not new.function or old.spec != new.spec):
            raise InvalidTool(
                f"two tools are called `{new.name}`: {origin_of(old)} and {origin_of(new)}; "
                "rename one with @tool(name='...'), or give an MCP server a prefix"
            )


def origin_of(tool: Tool) -> str:
    """Where a tool comes from, for people: `module.qualname (file:line)`."""
    if tool.function is None:
        return "one that runs at the client"
    if said := getattr(tool.function, "origin", ""):
        return str(said)
    function = innermost(tool.function)
    name = f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', tool.name)}"
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code else name


def _tools_of(source: Source) -> list[Tool | ServerTool]:
    match source:
        case Tool():
            if source.signature.takes_self and inspect.isfunction(source.function):
                raise _unbound(source.function)
            return [source]
        case Toolbox():
            return [*source, *source.server_tools]
        case ServerTool():
            return [source]
        case ModuleType():
            return [*_tools_of_module(source)]
        case str() | Path():
            return [*_tools_of_module(_run_file(Path(source)))]
        case list() | tuple():
            return [one for inner in cast("list[Source]", source) for one in _tools_of(inner)]
        case functools.partial():
            return [tool(cast("functools.partial[Any]", source))]
        case type():
            if issubclass(cast("type[object]", source), ServerTool):
                raise InvalidTool(f"`{source.__name__}` is a class: give an object, `{source.__name__}()`")
            return [*_tools_of_class(cast("type[object]", source))]
        case _ if takes_self(source):
            raise _unbound(source)
        case _ if inspect.isroutine(source):
            return [tool(source)]
        case ToolServer():
            return list(source.tools)
        case _:
            return [*_tools_of_object(source)]


def _unbound(method: Any) -> InvalidTool:
    owner = method.__qualname__.rpartition(".")[0].rpartition(".")[2]
    return InvalidTool(
        f"tool `{method.__name__}` is a method of `{owner}` without its object; give the object, or its method"
    )


def _tools_of_module(module: ModuleType) -> list[Tool]:
    """Its `@tool`s (those that `__all__` names, if it has one), also the imported ones. Unmarked functions are not
    tools, so that a model cannot call the rest of a module."""
    known = vars(module)
    listed: list[str] | None = known.get("__all__")
    values = [known[name] for name in (known if listed is None else listed) if name in known]
    marked: list[Tool] = [one for one in values if isinstance(one, Tool)]
    found = {id(one): one for one in marked}  # one tool may have two names there
    if not found:
        where = getattr(module, "__file__", None) or module.__name__
        raise InvalidTool(f"{where} has no tools; mark its functions with @tool")
    return list(found.values())


def _tools_of_class(kind: type[object]) -> list[Tool]:
    try:
        inspect.signature(kind).bind()
    except (TypeError, ValueError) as error:
        raise InvalidTool(
            f"class `{kind.__name__}` cannot be made without arguments ({error}); make an object and give that"
        ) from error
    try:
        holder = kind()
    except Exception as error:
        words = (str(error).splitlines() or [""])[0]
        raise InvalidTool(
            f"class `{kind.__name__}` cannot be made: {type(error).__name__}{': ' if words else ''}{words}; "
            "make an object and give that"
        ) from error
    return _tools_of_object(holder)


def _tools_of_object(holder: object) -> list[Tool]:
    """The `@tool` methods in the order of their definition, bound to the object; otherwise the object itself, if it is
    callable."""
    names: dict[str, Any] = {}
    for owner in reversed(type(holder).__mro__):
        names |= vars(owner)
    names |= getattr(holder, "__dict__", {})
    found: list[Tool] = []
    for value in names.values():
        owner = type(holder) if isinstance(value, classmethod) else holder
        inner = cast("Any", value).__func__ if isinstance(value, classmethod | staticmethod) else value
        if isinstance(inner, Tool):
            inner = cast("Tool", inner)
            # A tool without `self` (a static method, a function stored in the class) is not bound.
            found.append(inner.__get__(owner) if inner.signature.takes_self else inner)
    if found:
        return found
    if callable(holder):
        return [tool(holder)]
    if callable(getattr(holder, "as_tool", None)):
        raise InvalidTool(
            f"an object of the type `{type(holder).__name__}` is no tool: give `….as_tool(name, description)`"
        )
    raise InvalidTool(f"an object of the type `{type(holder).__name__}` has no tools; mark its methods with @tool")


def _run_file(path: Path) -> ModuleType:
    if path.suffix != ".py" or not path.is_file():
        problem = "is no file" if path.suffix == ".py" else "is no Python file"
        raise InvalidTool(f"{path} {problem}; give the path of a .py file that has functions marked with @tool")
    path = path.resolve()
    # A private name, so that it hides no module of the same name; kept, because its types are looked up by module.
    name = f"_unbroken_tools_{path.stem}_{hashlib.sha1(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))  # it may import files beside it, as when it is run directly
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        raise InvalidTool(_what_happened(path, error)) from error
    finally:
        if str(path.parent) in sys.path:
            sys.path.remove(str(path.parent))
    return module


def _what_happened(path: Path, error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"{error.filename or path}:{error.lineno}: {error.msg}; nothing of it was run"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    where = f"{path}:{lines[-1]}" if lines else str(path)
    words = (str(error).splitlines() or [""])[0]
    if isinstance(error, InvalidTool):
        return f"{where}: {words}"
    return f"{where}: running it failed: {type(error).__name__}{': ' if words else ''}{words}"


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


# Lazy values: generators, cursors, files, `map`. They are iterated once, where the tool runs, and become lists. An
# error on the way is the tool's failure.


ITEMS = 10_000
"""Maximum items of a lazy value: it may be endless, and more would be cut from the result anyway."""

REPORTED = 200
"""Maximum characters of an item in a progress report."""

NO_MORE = f"[... only the first {ITEMS:,} were asked for ...]"


class IterationFailed(Exception):
    """Iterating a lazy value failed; the cause is what it raised."""


def drain(values: Iterator[Any], stopped: Callable[[], bool] | None = None) -> list[Any]:
    """All of its items, or the first `ITEMS` and a remark. `stopped` returns whether they are no longer needed."""
    items: list[Any] = []
    try:
        for value in values:
            items.append(value)
            if len(items) == ITEMS:
                items.append(NO_MORE)
                break
            if stopped is not None and stopped():
                break
    except Exception as error:
        raise IterationFailed from error
    finally:
        # Closes what is still open, because it was not iterated to its end or never closes itself. A cursor may belong
        # to others.
        if isinstance(values, Generator | io.IOBase):
            with suppress(Exception):
                cast("Generator[Any, Any, Any]", values).close()
    return items


async def collect(values: AsyncIterator[Any], report: Callable[[str], None]) -> list[Any]:
    """The same for an asynchronous one; each item is reported as it arrives."""
    items: list[Any] = []
    try:
        async for value in values:
            items.append(value)
            if len(items) == ITEMS:
                items.append(NO_MORE)
                break
            report(_in_short(value))
    finally:
        if isinstance(values, AsyncGenerator):
            await cast("AsyncGenerator[Any, Any]", values).aclose()
    return items


def _in_short(value: Any) -> str:
    """Without running user code, because this runs on the event loop."""
    if type(value) is str:
        text = value
    elif value is None or type(value) in (bool, int, float, list, dict):
        try:
            text = json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError):
            text = type(value).__name__
    else:
        text = type(value).__name__
    return text if len(text) <= REPORTED else f"{text[:REPORTED]}…"
