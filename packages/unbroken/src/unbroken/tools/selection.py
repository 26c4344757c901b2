"""`select`: tools from any source, renamed, filtered, and with rules for approval."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeAlias

from unbroken.errors import InvalidTool
from unbroken.tools.schema import NAME
from unbroken.tools.tool import Arguments, Tool
from unbroken.tools.toolbox import Source, Toolbox, ToolServer
from unbroken_wires.validation import checked

ApprovalRule: TypeAlias = Callable[[Arguments], bool]
"""Of the arguments of a call: does it need an approval?"""


@checked
def select(
    source: Source,
    *,
    prefix: str = "",
    only: Collection[str] | None = None,
    without: Collection[str] = (),
    keep: Callable[[Tool], bool] | None = None,
    approve: bool | Collection[str] | ApprovalRule | None = None,
) -> Toolbox | ToolServer:
    """Some of the tools of a source (a list, a toolbox, an MCP server …), for `Agent(tools=[select(…), …])`.

    - `prefix` is put before each name.
    - `only`, `without`: names as the source has them, before the prefix. A name that the source does not have is an
      error: a filter with a typing mistake would let everything through, or nothing.
    - `keep`: a function of the tool that decides.
    - `approve`: True: every call is asked about; names: calls of these tools; a function of the arguments: calls for
      which it returns True. Tools that ask anyway still do.
    """
    rule: bool | ApprovalRule | None = None
    asked: tuple[str, ...] = ()
    if approve is None or isinstance(approve, bool) or callable(approve):
        rule = approve
    else:
        asked = tuple(approve)
    rules = _Rules(prefix, only, without, keep, rule, asked)
    servers = servers_in(source)
    return _SelectedServer(source, servers, rules) if servers else Toolbox(*rules.apply(source))


class _Rules:
    def __init__(
        self,
        prefix: str,
        only: Collection[str] | None,
        without: Collection[str],
        keep: Callable[[Tool], bool] | None,
        approve: bool | ApprovalRule | None,
        asked: tuple[str, ...],
    ) -> None:
        self._prefix = prefix
        self._only = only
        self._without = frozenset(without)
        self._keep = keep
        self._approve = approve
        self._asked = asked
        """The tools whose calls need an approval."""
        self._names = (*(only or ()), *without, *asked)

    def apply(self, source: Source) -> list[Tool]:
        found = Toolbox(source)
        if found.server_tools:
            name = type(found.server_tools[0]).__name__
            raise InvalidTool(
                f"select(…): the provider runs `{name}`, so nothing can be selected of it: give it beside"
            )
        for name in self._names:
            if name not in found:
                raise InvalidTool(f"select(…): {found.lacks(name)}")
        if self._only is not None and self._without.issuperset(self._only):
            raise InvalidTool(f"select(only={[*self._only]}, without={sorted(self._without)}) leaves no tool")
        return [self._changed(tool) for tool in found if self._takes(tool)]

    def _takes(self, tool: Tool) -> bool:
        if self._only is not None and tool.name not in self._only:
            return False
        return tool.name not in self._without and (self._keep is None or self._keep(tool))

    def _changed(self, tool: Tool) -> Tool:
        rule = self._approve
        if rule is True or tool.name in self._asked:
            tool = replace(tool, approve=True)
        elif callable(rule) and tool.approve is not True:
            tool = replace(tool, approve=_either(tool, rule))
        if not self._prefix:
            return tool
        name = f"{self._prefix}{tool.name}"
        if not NAME.fullmatch(name):
            raise InvalidTool(f"select(prefix={self._prefix!r}): a tool cannot be called `{name}`")
        return replace(tool, spec=replace(tool.spec, name=name))


def _either(tool: Tool, rule: ApprovalRule) -> ApprovalRule:
    return lambda arguments: tool.needs_approval(arguments) or rule(arguments)


def servers_in(source: Source) -> list[ToolServer]:
    """The servers of a source, also in lists."""
    if isinstance(source, ToolServer):
        return [source]
    if isinstance(source, list | tuple):
        return [server for inner in source for server in servers_in(inner)]  # pyright: ignore[reportUnknownVariableType] - a caller's value
    return []


class _SelectedServer(ToolServer):
    """Tools of servers: known when these are open."""

    def __init__(self, source: Source, servers: list[ToolServer], rules: _Rules) -> None:
        self._source = source
        self._servers = servers
        self._rules = rules

    async def __aenter__(self) -> Self:
        entered: list[ToolServer] = []
        try:
            for server in self._servers:
                await server.__aenter__()
                entered.append(server)
            self._rules.apply(self._source)  # a wrong name is an error now, and not in the middle of a run
        except BaseException:
            for server in reversed(entered):
                await server.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in reversed(self._servers):
            await server.__aexit__(kind, error, trace)

    @property
    def tools(self) -> tuple[Tool, ...]:
        return tuple(self._rules.apply(self._source))
