"""Hand-offs: another agent takes over a run with its history. The model calls a tool such as `transfer_to_billing`, and
from the next request on the other agent's model, instructions, tools and output type apply. The run keeps its limits,
dependencies, approver, middleware and listeners.

The change follows from the history alone (which call succeeded), so a replayed or resumed run makes it again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from unbroken.agent.handoffs import Changing, Handoff
from unbroken.agent.limits import StopReason, models_of
from unbroken.agent.outgoing import filter_history
from unbroken.agent.plan import Plan
from unbroken.agent.run import Run
from unbroken.agent.run_state import Taken
from unbroken.errors import UserError
from unbroken.events import AgentChanged
from unbroken.middleware import Middleware, start, wrap_approver
from unbroken.tools.caller import Prepared
from unbroken.tools.tool import Tool
from unbroken_wires.messages import ToolMessage

NO_MORE = (
    "not executed: the conversation was handed over {most} times, and Policy(most_handoffs={most}) allows no more: "
    "answer with what you have"
)
HANDED_OFF = "not executed: `{name}` hands the conversation over already"


def offer(run: Run) -> list[Tool]:
    return [handoff.tool for handoff in run.plan.settings.handoffs.values()]


def refuse(run: Run, prepared: Prepared, before: Sequence[Prepared]) -> str:
    """One message hands the run over once. The calls are writes, so none of them starts before its message is
    complete."""
    handoffs, changing = run.plan.settings.handoffs, run.changing
    if prepared.call.name not in handoffs or changing is None:
        return ""
    if len(run.state.handoffs) >= changing.most:
        return NO_MORE.format(most=changing.most)
    first = next((each.call.name for each in before if each.call.name in handoffs and not each.refusal), None)
    return "" if first is None else HANDED_OFF.format(name=first)


async def change_agent(run: Run, stop: StopReason | None) -> StopReason | None:
    """After a round: the agent that it handed the run off to takes over, if it did."""
    message = run.transcript.messages[-1]
    if stop is None and isinstance(message, ToolMessage):
        handoffs = run.plan.settings.handoffs
        name = next((each.name for each in message.results if each.name in handoffs and not each.error), None)
        if name is not None:
            await _take_over(run, Taken(name, len(run.transcript.messages)))
            _report(run, name)
    return stop


async def change_agent_again(run: Run, report: bool) -> None:
    """The agents take over that did so in an earlier part of the run."""
    taken, run.state.handoffs = run.state.handoffs, []
    for each in taken:
        if each.tool not in run.plan.settings.handoffs:
            raise UserError(
                f"resume: the run was handed off with `{each.tool}`, and agent `{run.state.agent}` has no such "
                f"hand-off: add it to Agent(handoffs=[…])"
            )
        await _take_over(run, each)
    if taken and report:
        _report(run, taken[-1].tool)


async def _take_over(run: Run, taken: Taken) -> None:
    handoff: Handoff = run.plan.settings.handoffs[taken.tool]
    agent, before, changing = handoff.agent, run.plan, run.changing
    assert changing is not None
    if handoff.filter is not None:
        changing.shown = taken.messages, await filter_history(run, handoff.filter, taken.messages)
    taking = agent.ready(run.id, run.state, run.account, agent.overridden({}), None)
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
    run.plan, run.state.agent, run.state.counters.corrections = plan, agent.name, 0
    run.inside.path = "/".join([*run.inside.path.split("/")[:-1], agent.name])
    run.state.handoffs.append(taken)


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
    run.emitter.emit(AgentChanged, run.state.agent, plan.model.name, tool, plan.header(run.account.limits))
