"""What a program runs in: the model that is asked, the tools that there are, who is told. The same for a program and
for those that it calls; variables are not in it (`scope`)."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from unbroken.clock import Clock
from unbroken.dph.events import BlockRun, ProgramSink
from unbroken.dph.keeping import keeping
from unbroken.dph.source import Position
from unbroken.errors import UserError
from unbroken.messages import Usage
from unbroken.models.connect import connect
from unbroken.models.model import Model
from unbroken.tools.approval import OnApproval
from unbroken.tools.caller import ResultCache
from unbroken.tools.parameters import innermost
from unbroken.tools.tool import Tool
from unbroken.tools.toolbox import Toolbox
from unbroken.trajectory.recorder import Recorder

NO_MODEL = "no model is named, and this block asks one; give one to the program (--model), or say model= here"
CHOICES = ("auto", "required", "none")


@dataclass(slots=True)
class Environment:
    run: str
    model: Model | None
    toolbox: Toolbox
    models: Mapping[str, Model]
    types: Mapping[str, Any]
    tell: ProgramSink
    clock: Clock
    on_approval: OnApproval | None = None
    deps: Any = None
    recorder: Recorder | None = None
    results: ResultCache = field(default_factory=ResultCache)
    usage: Usage = field(default_factory=Usage)
    requests: int = 0
    programs: int = 0
    """Programs that were called, and still run."""
    steps: int = 0
    """What was done since others had their turn."""
    _kept: dict[str, Tool] = field(default_factory=dict[str, Tool])
    """Tools whose values are kept, by name."""
    _connected: dict[str, Model] = field(default_factory=dict[str, Model])
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def begin(self, kind: str, name: str, place: Position, called: str = "", parent: int = 0) -> BlockRun:
        return BlockRun.at(next(self._numbers), kind, name, place, called, parent)

    def keep(self, tool: Tool) -> Tool:
        """The tool with its values kept: one for all calls, because what a tool with `cache` gave is known by its
        function."""
        if tool.function is None:
            return tool
        return self._kept.setdefault(tool.name, keeping(tool))

    def find_model(self, name: str | None) -> Model:
        """The program's own, one by its name, or one that is connected for it."""
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
    """The tools that names and patterns choose, in the order of the toolbox; all, if nothing is said."""
    if wanted is None:
        return toolbox
    for name in wanted:
        if problem := no_such_tool(toolbox, name):
            raise UserError(problem)
    return Toolbox(*(tool for tool in toolbox if any(fnmatchcase(tool.name, name) for name in wanted)))


def no_such_tool(toolbox: Toolbox, name: str) -> str:
    """Why no tool has this name, or fits this pattern; or nothing."""
    if any(fnmatchcase(known, name) for known in toolbox.names):
        return ""
    what = f"no tool fits `{name}`" if any(mark in name for mark in "*?[") else f"there is no tool `{name}`"
    close = difflib.get_close_matches(name, toolbox.names, n=1)
    if close:
        return f"{what}; did you mean `{close[0]}`?"
    return f"{what}; there are: {', '.join(toolbox.names) or 'none (give a file with --tools)'}"


def no_such_model(name: str, models: Iterable[str]) -> str:
    """Why a name alone names no model."""
    known = ", ".join(models)
    return (
        f'model="{name}": no model has this name ({f"there are: {known}" if known else "there are none"}); '
        f'write "provider:model", or give the name a meaning (models=, --also {name}=PROVIDER:MODEL)'
    )


def no_such_choice(choice: str | None, tools: Toolbox) -> str:
    """Why a choice cannot be made among these tools, or nothing."""
    if choice is None or choice in CHOICES or choice in tools:
        return ""
    return f"`tool_choice` is {', '.join(CHOICES)} or a tool of this block ({', '.join(tools.names) or 'it has none'})"


def types_beside(tools: Toolbox) -> dict[str, Any]:
    """Classes that can be seen from where the tools are defined: `output="obj/Type"` may name them."""
    found: dict[str, Any] = {}
    for tool in tools:
        for name, value in _globals_of(tool).items():
            if isinstance(value, type) and not name.startswith("_"):
                found.setdefault(name, value)
    return found


def _globals_of(tool: Tool) -> dict[str, Any]:
    return getattr(innermost(tool.function), "__globals__", {}) if tool.function is not None else {}
