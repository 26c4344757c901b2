"""Hand-offs as an agent declares them and a run remembers them: which agents may take over, the tool with which the
model lets them, and which of them have. `rules.handoffs` makes the change."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, Protocol

from unbroken.agent.limits import Account, Limits
from unbroken.agent.options import ResumeOptions, Settings, Trim
from unbroken.agent.plan import Plan
from unbroken.agent.run_state import RunState, Taken
from unbroken.agent.toolset import ToolSet
from unbroken.clock import Clock
from unbroken.errors import UserError
from unbroken.middleware import Middleware, RunStart
from unbroken.tools.tool import Tool, tool
from unbroken_wires.messages import Message

_ODD = re.compile(r"[^A-Za-z0-9_-]+")


class Taking(Protocol):
    """A run that another agent takes over, as that agent prepares it."""

    plan: Callable[[Clock], Plan]
    tools: ToolSet


class NextAgent(Protocol):
    """What a hand-off needs of the `Agent` that takes over."""

    settings: Settings

    @property
    def name(self) -> str: ...

    def overridden(self, options: ResumeOptions[Any]) -> ResumeOptions[Any]: ...

    def ready(
        self, id: str, state: RunState, limits: Account | Limits, options: ResumeOptions[Any], output: Any
    ) -> Taking: ...


@dataclass(frozen=True, slots=True)
class Handoff:
    """An agent that may take over, and the tool with which the model lets it."""

    agent: NextAgent
    tool: Tool
    filter: Trim | None = None


@dataclass(slots=True)
class Changing:
    """What a run has to know so that other agents can take it over."""

    most: int
    """How often they may."""
    about: Callable[[], RunStart]
    """What is known of the run, for the middleware of those agents."""
    known: tuple[Middleware, ...]
    """The middleware of the run itself."""
    own: list[Middleware]
    """The same, started."""
    ends: list[Middleware]
    """What has to be ended with the run."""
    servers: AsyncExitStack
    """Closes the servers of the tools of those agents."""
    shown: tuple[int, tuple[Message, ...]] | None = None
    """What the agent sees in place of so many messages of the history, if a filter chose that."""


def make_handoff(agent: NextAgent, name: str, description: str, filter: Trim | None) -> Handoff:
    if agent.name == "main" and not name:
        raise UserError(
            "handoffs=[…]: an agent that takes over needs a name: Agent(…, name='billing'), or other.as_handoff('…')"
        )

    async def transfer() -> str:
        return f"The conversation is handed over to `{agent.name}`."

    made = tool(
        name=name or f"transfer_to_{_ODD.sub('_', agent.name)}",
        description=description or f"Hand the conversation over to `{agent.name}`, which answers from then on.",
        effect="write",
        overlap=True,
        timeout=None,
        after_crash="rerun",
    )
    return Handoff(agent, replace(made(transfer), role="handoff"), filter)


def read_handoffs(given: Iterable[NextAgent | Handoff]) -> dict[str, Handoff]:
    """By the names of their tools."""
    found: dict[str, Handoff] = {}
    for each in given:
        handoff = each if isinstance(each, Handoff) else make_handoff(each, "", "", None)
        if handoff.tool.name in found:
            raise UserError(f"handoffs=[…] has two hand-offs with the name `{handoff.tool.name}`: name one differently")
        found[handoff.tool.name] = handoff
    return found


def final_agent(agent: NextAgent, taken: Iterable[Taken]) -> NextAgent | None:
    """The agent that answers after these hand-offs; None if there is none any more."""
    for each in taken:
        handoff = agent.settings.handoffs.get(each.tool)
        if handoff is None:
            return None
        agent = handoff.agent
    return agent
