"""The `tools=` of an agent: fixed tools, servers that have to be opened first, or a function that returns them.

Each run (and each `async with agent`) enters the servers; they close when the last one leaves.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from types import ModuleType
from typing import Any, TypeAlias, cast

from unbroken.errors import UserError
from unbroken.tools.caller import Prepared
from unbroken.tools.context import RunContext
from unbroken.tools.search import ToolSearch
from unbroken.tools.tool import NeedsT, Tool
from unbroken.tools.toolbox import Source, Toolbox, ToolServer
from unbroken_wires.messages import ServerTool
from unbroken_wires.transcript import Transcript

ToolsOf: TypeAlias = (
    Callable[[RunContext[Any]], Iterable[Source] | Awaitable[Iterable[Source]]]
    | Callable[[int, Transcript], Iterable[Source] | Awaitable[Iterable[Source]]]
)
"""A function that returns the tools of a turn: of the run's context, or of turn and transcript. It may be async."""
Tools: TypeAlias = Sequence[Source] | str | Toolbox | ToolServer | ToolSearch | ServerTool | ToolsOf
ToolsFor: TypeAlias = Sequence[Tool[NeedsT] | Hashable | ModuleType | Sequence[Source]] | (
    str | Toolbox | ToolServer | ToolSearch | ServerTool | ToolsOf
)
"""The same for type checkers: tools that need no other `deps`. A source may be any object, and `Hashable` stands for
those that are no `Tool`, which cannot be hashed."""


ToolSource: TypeAlias = Callable[[RunContext[Any], Transcript], Awaitable[Toolbox]]
"""The tools of a turn."""


class ToolSet:
    def __init__(self, tools: Tools) -> None:
        self._choose: Callable[..., Any] | None = None
        self._takes_context = False
        self._sources: tuple[Source, ...] = ()
        if callable(tools) and not isinstance(tools, Tool):
            self._choose, self._takes_context = tools, _takes_context(tools)
        else:
            self._sources = _sources(tools)
        searches = [source for source in self._sources if isinstance(source, ToolSearch)]
        if len(searches) > 1:
            raise UserError("tools=: there are two `ToolSearch`; give all sources to one of them")
        self._searches = bool(searches)
        self._servers = tuple(server for source in self._sources for server in _servers_of(source))
        self.fixed = None if self._choose or self._servers or self._searches else Toolbox(*self._sources)
        """The tools, if they are the same in every run and known before it."""
        if self._searches and not self._servers:  # two tools of one name are an error now, and not when one is found
            Toolbox(*(source.all if isinstance(source, ToolSearch) else source for source in self._sources))

    @property
    def has_servers(self) -> bool:
        return bool(self._servers)

    def all_names(self, run: bool) -> frozenset[str] | None:
        """The names of all tools, also of those that a search has not found. None if they are not known: a function
        chooses them, or they are those of servers that no `run` has opened."""
        if self._choose is not None or (self._servers and not run):
            return None
        if self.fixed is not None:
            return frozenset(self.fixed.names)
        return frozenset(Toolbox(*(each.all if isinstance(each, ToolSearch) else each for each in self._sources)).names)

    @property
    def offers_tools(self) -> bool:
        return self.fixed is None or len(self.fixed) > 0

    def of(self, model: object) -> ToolSource | Toolbox:
        """The tools for this model: always the same, or those of a turn."""
        if self.fixed is not None:
            return self.fixed
        native = (self._searches or self._choose is not None) and bool(getattr(model, "finds_tools", False))
        return partial(self.toolbox, native=native) if native else self.toolbox

    async def toolbox(self, context: RunContext[Any], transcript: Transcript, native: bool = False) -> Toolbox:
        """The tools of a turn. `native`: the model searches tools itself."""
        if self._choose is None:
            sources = _offered(self._sources, transcript, native) if self._searches else self._sources
            return self.fixed or Toolbox(*sources)
        chosen = self._choose(context) if self._takes_context else self._choose(context.turn, transcript)
        found: Any = await chosen if inspect.isawaitable(chosen) else chosen
        if found is None:
            raise UserError("the function given as tools= returned None; return a list of tools, which may be empty")
        return Toolbox(*_offered(_sources(found), transcript, native))

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[None]:
        await self.open()
        try:
            yield
        finally:
            await self.close()

    async def open(self) -> None:
        async with AsyncExitStack() as stack:
            for server in self._servers:
                await stack.enter_async_context(server)
            stack.pop_all()  # all are open until `close`

    async def close(self) -> None:
        async with AsyncExitStack() as stack:
            for server in self._servers:
                stack.push_async_exit(server)


def _sources(tools: Any) -> tuple[Source, ...]:
    """A list of sources, or one source alone."""
    alone = isinstance(tools, Toolbox | Tool | ToolSearch | ToolServer | ServerTool | str)
    return (cast("Source", tools),) if alone else tuple(tools)


def _offered(sources: Iterable[Source], transcript: Transcript, native: bool) -> list[Source]:
    messages = transcript.messages
    return [each.offered(messages, native) if isinstance(each, ToolSearch) else each for each in sources]


def _servers_of(source: Source) -> tuple[ToolServer, ...]:
    if isinstance(source, ToolSearch):
        return source.servers
    return (source,) if isinstance(source, ToolServer) else ()


def _takes_context(function: Callable[..., Any]) -> bool:
    """Or turn and transcript? Refuses a function that was meant as a tool."""
    name = getattr(function, "__name__", repr(function))
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return False  # it has no signature
    needed = [each for each in parameters if each.default is each.empty and each.kind in _GIVEN]
    if len(needed) == 2 or any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return False
    if len(needed) == 1 and (needed[0].name in ("context", "ctx", "_") or "RunContext" in str(needed[0].annotation)):
        return True
    raise UserError(
        f"Agent(tools={name}): this function has to return the tools of a turn: {name}(context) or {name}(turn, "
        f"transcript); if it is a tool itself, put it into a list: tools=[{name}]"
    )


_GIVEN = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


# Detects tools without declarations that ran one after another and lost time, and suggests the declaration to add. Only
# a hint: it does not change when calls run.


LOG = logging.getLogger("unbroken.tools")

WORTH_SAYING = 0.1
"""Minimum seconds that overlapping would have saved in one round."""

HINT = (
    "{count} calls of {tools} ran one after another and took {total:.1f} s; side by side {longest:.1f} s: write "
    '@tool(effect="read") if they only read, or overlap=True if their order does not matter. Tools that declare '
    'nothing keep their order; effect="write" keeps it without this line.'
)

_logged: set[str] = set()
"""Tools that this process has already logged."""


class OrderHint:
    """One for each agent. `text` is its first hint, or empty."""

    def __init__(self) -> None:
        self.text = ""

    def note(self, calls: Sequence[Prepared], took: Sequence[float]) -> None:
        """The calls of one round and how many seconds each ran."""
        if sum(took) < WORTH_SAYING:
            return
        timed = zip(calls, took, strict=True)
        waited = [(each.call.name, seconds) for each, seconds in timed if seconds and _declares_nothing(each)]
        if len(waited) < 2:
            return
        total, longest = sum(seconds for _, seconds in waited), max(seconds for _, seconds in waited)
        if total - longest < WORTH_SAYING:
            return
        names = dict.fromkeys(name for name, _ in waited)
        tools = ", ".join(f"`{name}`" for name in names)
        text = HINT.format(count=len(waited), tools=tools, total=total, longest=longest)
        self.text = self.text or text
        if not _logged.issuperset(names):
            _logged.update(names)
            LOG.warning("%s", text)


def _declares_nothing(prepared: Prepared) -> bool:
    tool = prepared.tool
    return tool is not None and tool.effect == "write" and tool.overlap is None and prepared.key is None
