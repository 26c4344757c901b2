"""The `tools=` of an agent: fixed tools, servers that have to be opened first, or a function of turn and transcript.

Each run (and each `async with agent`) enters the servers; they close when the last one leaves.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeAlias

from unbroken.errors import UserError
from unbroken.tools.caller import Prepared
from unbroken.tools.tool import Tool
from unbroken.tools.toolbox import Source, Toolbox, ToolServer
from unbroken.transcript import Transcript

Tools: TypeAlias = Sequence[Source] | str | Toolbox | Callable[[int, Transcript], Iterable[Source]]


class ToolSet:
    def __init__(self, tools: Tools) -> None:
        self._choose: Callable[[int, Transcript], Iterable[Source]] | None = None
        self._sources: tuple[Source, ...] = ()
        if callable(tools) and not isinstance(tools, Tool):
            self._choose = _chooser(tools)
        else:
            self._sources = (tools,) if isinstance(tools, Toolbox | Tool | str) else tuple(tools)
        self._servers = tuple(source for source in self._sources if isinstance(source, ToolServer))
        self.fixed = None if self._choose or self._servers else Toolbox(*self._sources)
        """The tools, if they are the same in every run and known before it."""

    @property
    def has_servers(self) -> bool:
        return bool(self._servers)

    @property
    def offers_tools(self) -> bool:
        return self.fixed is None or len(self.fixed) > 0

    def toolbox(self, turn: int, transcript: Transcript) -> Toolbox:
        if self.fixed is not None:
            return self.fixed
        return Toolbox(*(self._sources if self._choose is None else self._choose(turn, transcript)))

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


def _chooser(function: Callable[[int, Transcript], Iterable[Source]]) -> Callable[[int, Transcript], Iterable[Source]]:
    """Refuses a function that was meant as a tool."""
    name = getattr(function, "__name__", repr(function))
    try:
        fits = not inspect.iscoroutinefunction(function)
        inspect.signature(function).bind(0, None)
    except TypeError:
        fits = False
    except ValueError:
        fits = True  # it has no signature
    if not fits:
        raise UserError(
            f"Agent(tools={name}): this function has to return the tools of a turn, for (turn, transcript), and is not "
            f"async; if it is a tool itself, put it into a list: tools=[{name}]"
        )
    return function


# Detects tools without declarations that ran one after another and lost time, and suggests the declaration to add. Only
# a hint: it does not change when calls run.


LOG = logging.getLogger("unbroken.tools")

WORTH_SAYING = 0.5
"""Minimum seconds that overlapping would have saved in one round."""

HINT = (
    "{count} calls of {tools} ran one after another and took {total:.1f} s; side by side {longest:.1f} s. Tools that "
    'declare nothing keep their order. Declare @tool(effect="read") if a tool changes nothing, key= or overlap=True if '
    'the order of its calls does not matter, or effect="write" to keep the order without this hint.'
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
