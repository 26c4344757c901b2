"""Hand-offs: another agent takes over a run with its history. The model calls a tool such as `transfer_to_billing`, and
from the next request on the other agent's model, instructions, tools and output type apply. The run keeps its limits,
dependencies, approver, middleware and listeners.

The change follows from the history alone (which call succeeded), so a replayed or resumed run makes it again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from unbroken.agent.handoff_state import Changing, Taken
from unbroken.agent.limits import models_of
from unbroken.agent.options import Trim
from unbroken.agent.outgoing import filter_history
from unbroken.agent.plan import Plan
from unbroken.agent.run import Run
from unbroken.errors import UserError
from unbroken.events import AgentChanged
from unbroken.middleware import Middleware, start, wrap_approver
from unbroken.tools.caller import Prepared
from unbroken.tools.tool import Tool, tool
from unbroken_wires.messages import ToolMessage

if TYPE_CHECKING:
    from unbroken.agent.agent import Agent

NO_MORE = (
    "not executed: the conversation was handed over {most} times, and Policy(most_handoffs={most}) allows no more: "
    "answer with what you have"
)
HANDED_OFF = "not executed: `{name}` hands the conversation over already"

_ODD = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Handoff:
    """An agent that may take over, and the tool with which the model lets it."""

    agent: Agent[Any, Any]
    tool: Tool
    filter: Trim | None = None


def make_handoff(agent: Agent[Any, Any], name: str, description: str, filter: Trim | None) -> Handoff:
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


def read_handoffs(given: Iterable[Agent[Any, Any] | Handoff]) -> dict[str, Handoff]:
    """By the names of their tools."""
    found: dict[str, Handoff] = {}
    for each in given:
        handoff = each if isinstance(each, Handoff) else make_handoff(each, "", "", None)
        if handoff.tool.name in found:
            raise UserError(f"handoffs=[…] has two hand-offs with the name `{handoff.tool.name}`: name one differently")
        found[handoff.tool.name] = handoff
    return found


def refuse_handoff(run: Run, name: str, others: Iterable[Prepared]) -> str:
    """Why a call may not hand the run off; empty if it may, or if it does something else. `others` are the calls before
    it in its message."""
    handoffs, changing = run.plan.settings.handoffs, run.changing
    if name not in handoffs or changing is None:
        return ""
    if len(changing.taken) >= changing.most:
        return NO_MORE.format(most=changing.most)
    first = next((each.call.name for each in others if each.call.name in handoffs and not each.refusal), None)
    return "" if first is None else HANDED_OFF.format(name=first)


async def change_agent(run: Run) -> None:
    """After a round: the agent that it handed the run off to takes over, if it did."""
    message = run.transcript.messages[-1]
    if not isinstance(message, ToolMessage):
        return
    handoffs = run.plan.settings.handoffs
    name = next((each.name for each in message.results if each.name in handoffs and not each.error), None)
    if name is not None:
        count = len(run.transcript.messages)
        await _take_over(run, Taken(name, count))
        _report(run, name)


async def change_agent_again(run: Run, taken: Sequence[Taken], report: bool) -> None:
    """The agents take over that did so in an earlier part of the run."""
    for each in taken:
        if each.tool not in run.plan.settings.handoffs:
            raise UserError(
                f"resume: the run was handed off with `{each.tool}`, and agent `{run.agent}` has no such hand-off: add "
                f"it to Agent(handoffs=[…])"
            )
        await _take_over(run, each)
    if taken and report:
        _report(run, taken[-1].tool)


def final_agent(agent: Agent[Any, Any], taken: Iterable[Taken]) -> Agent[Any, Any] | None:
    """The agent that answers after these hand-offs; None if there is none any more."""
    for each in taken:
        handoff = agent.settings.handoffs.get(each.tool)
        if handoff is None:
            return None
        agent = handoff.agent
    return agent


async def _take_over(run: Run, taken: Taken) -> None:
    handoff, before, changing = run.plan.settings.handoffs[taken.tool], run.plan, run.changing
    assert changing is not None
    agent: Agent[Any, Any] = handoff.agent
    if handoff.filter is not None:
        changing.shown = taken.messages, await filter_history(run, handoff.filter, taken.messages)
    taking = agent.performance(run.id, run.transcript, run.account, agent.overridden({}), None)
    plan, tools = taking.plan(before.clock), taking.tools
    _keep(before, plan)
    if tools.has_servers:
        await changing.servers.enter_async_context(tools.opened())
    await run.account.load_prices(models_of(plan.model), plan.clock)
    middleware = [*changing.own, *_start(changing, agent.settings.middleware)]
    asked = plan.on_approval
    plan.install(middleware)
    # An approver that the run had is wrapped already.
    plan.on_approval = asked if asked is before.on_approval else wrap_approver(middleware, asked)
    run.emitter.listen(middleware)
    before.remove_middleware()
    run.plan, run.agent, run.corrections = plan, agent.name, 0
    run.path = "/".join([*run.path.split("/")[:-1], agent.name])
    changing.taken.append(taken)


def _keep(before: Plan, plan: Plan) -> None:
    """What stays the same in a run that is handed off."""
    plan.store = before.store
    plan.deps = plan.deps if before.deps is None else before.deps
    plan.on_approval = plan.on_approval or before.on_approval
    plan.trim = plan.trim or before.trim
    if before.output_given:
        plan.output, plan.output_given = before.output, True


def _start(changing: Changing, middleware: Iterable[Middleware]) -> list[Middleware]:
    """Starts the middleware of an agent that takes over, except what the run has already. Nothing of it records: the
    run has its own recorder."""
    own = [each for each in middleware if not each.records and not any(each is known for known in changing.known)]
    first = len(changing.ends)
    start(own, changing.about, changing.ends)
    return changing.ends[first:]


def _report(run: Run, tool: str) -> None:
    plan = run.plan
    run.emitter.emit(AgentChanged, run.agent, plan.model.name, tool, plan.header(run.account.limits))
