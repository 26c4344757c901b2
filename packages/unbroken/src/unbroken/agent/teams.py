"""An agent as a tool of another. Its approvals, events, usage, limits and cancellation are those of the outer run, and
its run is recorded inside of that one, so that both wait, stop and continue together."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from unbroken.agent.options import Options, ResumeOptions
from unbroken.agent.plan import Plan
from unbroken.agent.ready_run import PreparesRuns, ReadyRun
from unbroken.agent.recorded_state import ended_result, waiting_state
from unbroken.agent.result import Result, inside_id, still_pending
from unbroken.agent.resuming import prepare_inner, prepare_resume
from unbroken.agent.run import Inside, Run
from unbroken.clock import Clock
from unbroken.errors import UserError
from unbroken.events import (
    ApprovalAsked,
    CallFinished,
    CallStarted,
    Event,
    InnerEvent,
    RunFinished,
    event_to_json,
)
from unbroken.middleware import Middleware
from unbroken.tools.approval import Approval, Wait, ask_within
from unbroken.tools.context import CallContext
from unbroken.tools.results import CallWaits, ToolFailed, to_parts
from unbroken.tools.tool import AfterCrash, Effect, Tool, tool
from unbroken.trajectory.inner_runs import InnerRecorder
from unbroken.trajectory.lines import Line, read_usage
from unbroken.trajectory.recorded_run import RecordedRun
from unbroken.trajectory.recording import Recording
from unbroken_wires.messages import ToolCall, ToolResult, Usage

SAME_DEPS: Any = object()
"""The inner run has the `deps` of the outer one."""

TOO_DEEP = (
    "not executed: `{path}` would be an agent inside of too many others, and Policy(agent_depth={limit}) allows no "
    "more: do this yourself, or answer with what you have"
)


def agent_tool(
    agent: PreparesRuns,
    name: str,
    description: str,
    *,
    effect: Effect,
    overlap: bool | None,
    timeout: float | None,
    after_crash: AfterCrash | None,
    stream_text: bool,
    deps: Any,
) -> Tool:
    """A tool that takes a task as text and returns the agent's answer."""
    if not name or not description:
        raise UserError(
            "agent.as_tool(name, description): give the name of the tool and what it is for, which the model reads: "
            'agent.as_tool("research", "Find out about a topic.")'
        )

    async def delegate(context: CallContext[Any], task: str) -> str | ToolResult:
        host = context.host if isinstance(context.host, Run) else None
        if host is not None and host.inside.depth < 1:
            words = TOO_DEEP.format(path=f"{host.inside.path}/{name}", limit=host.plan.settings.policy.agent_depth)
            return ToolResult(context.call_id, to_parts(f"Error: {words}"), error=True, ended_as="not_executed")
        if host is None:
            return await _run_alone(agent, name, context, task)
        return await _InnerRun(agent, name, context, host, stream_text, deps).run(task)

    made = tool(
        name=name, description=description, effect=effect, overlap=overlap, timeout=timeout, after_crash=after_crash
    )
    return replace(made(delegate), role="agent")


async def _run_alone(agent: PreparesRuns, name: str, context: CallContext[Any], task: str) -> str:
    """The tool was called without a run."""
    result = await agent.prepare(task, {"deps": context.deps, "run_id": context.key})()
    if result.pending:
        names = ", ".join(f"`{call.name}`" for call in result.pending)
        raise ToolFailed(
            f"`{name}` cannot continue: {names} waits for an outside decision, and there is no run to wait"
        )
    return result.text


@dataclass(slots=True)
class _InnerRun:
    """The run of an agent that one call of the outer run, `host`, began."""

    agent: PreparesRuns
    name: str
    context: CallContext[Any]
    host: Run
    stream_text: bool
    deps: Any
    path: str = field(init=False)
    forwarder: Forwarder | None = None

    def __post_init__(self) -> None:
        self.path = f"{self.host.inside.path}/{self.name}"

    async def run(self, task: str) -> str:
        context = self.context
        recorded: Recording | None = context.inner
        if recorded is not None and _has_answered(recorded):
            ended = ended_result(recorded)
            self.context.spend(self._uncounted(ended.usage, recorded))
            self.context.count_calls(_calls_of(recorded))
            return ended.text
        ready = self._prepare(task, recorded)
        ready.inside = Inside(self.path, self.host.inside.depth - 1, ready.inside.answers)
        ready.clock = ready.clock or self.host.plan.clock
        ready.plan = _Approving(ready.plan, self)
        account = ready.account
        account.outer, account.on_spend, account.on_calls = self.host.account, context.spend, context.count_calls
        result = await ready()
        if result.pending:
            raise self._waits(result)
        return result.text

    def _prepare(self, task: str, recorded: Recording | None) -> ReadyRun:
        options = self._options()
        saved = self.host.state.waiting.inner.get(self.context.call_id)
        answers = self.host.inside.answers.get(self.context.call_id, {})
        if recorded is not None:
            return self._continue(recorded, saved, answers, options)
        if saved is not None:
            ready = prepare_resume(self.agent, saved, answers, options, self.agent.settings.output)
        else:
            fresh: Options = {**options, "run_id": self.context.key}
            ready = self.agent.prepare(task, fresh)
        recorders = [InnerRecorder(each, self.context) for each in self.context.recorders]
        ready.middleware = (*recorders, *ready.middleware)
        return ready

    def _continue(
        self, recorded: Recording, saved: Result[Any] | None, answers: Mapping[str, Any], options: ResumeOptions[Any]
    ) -> ReadyRun:
        """Continues where the recording ends. What it had used by then is counted if the outer run does not know it."""
        run = RecordedRun.of(recorded)
        waiting = waiting_state(run)
        pending = still_pending(waiting) if waiting is not None else set[str]()
        answers = {id: answer for id, answer in answers.items() if id in pending}  # others were used already
        journal = InnerRecorder(self.context.recorders[0], self.context, begun=True)
        ready = prepare_inner(self.agent, run, answers, options, journal, saved)
        used = ready.state.used
        self.context.count_calls(used.calls)
        self.context.spend(self._uncounted(used.usage, recorded))
        return ready

    def _uncounted(self, used: Usage, recorded: Recording) -> Usage:
        return _without(used, recorded) if self.host.state.waited else used

    def _options(self) -> ResumeOptions[Any]:
        options: ResumeOptions[Any] = {}
        deps = self.context.deps if self.deps is SAME_DEPS else self.deps
        if deps is not None:
            options["deps"] = deps
        if self.host.emitter.has_listeners:
            kind = StreamingForwarder if self.stream_text else Forwarder
            self.forwarder = kind(self.context, self.path)
            options["sinks"] = (self.forwarder,)
        return self.agent.overridden(options)

    def _waits(self, result: Result[Any]) -> CallWaits:
        outer = self.context.call_id
        needs = self.forwarder.needs_result if self.forwarder is not None else ()
        return CallWaits(
            tuple(shown_outside(outer, self.path, call) for call in result.pending),
            frozenset(inside_id(outer, id) for id in needs),
            frozenset(inside_id(outer, id) for id in result.uncertain),
            result,
        )

    async def approve(self, call: ToolCall) -> Approval:
        """Asks the approver of the outer run about a call of the inner one."""
        inside = self.host.inside
        lock = inside.asking = inside.asking or asyncio.Lock()  # one question at a time
        async with lock:
            decision = await ask_within(self.context, shown_outside(self.context.call_id, self.path, call))
        return Wait() if decision is None else decision


@dataclass(slots=True)
class _Approving:
    """The plan of an inner run: an agent without an approver of its own asks that of the outer run."""

    plan: Any
    inner: _InnerRun

    def __call__(self, clock: Clock) -> Plan:
        plan: Plan = self.plan(clock)
        if plan.on_approval is None and self.inner.context.approver is not None:
            plan.on_approval = self.inner.approve
        return plan


def shown_outside(outer: str, path: str, call: ToolCall) -> ToolCall:
    """A call of an inner run as the outer run shows it: with an id that is unique there, and with its agent."""
    return replace(call, id=inside_id(outer, call.id), agent=call.agent or path)


def _has_answered(recording: Recording) -> bool:
    return isinstance(recording.ending, RunFinished) and recording.ending.stop_reason != "waiting"


def _calls_of(recording: Recording) -> int:
    """The calls of an agent that has answered, and of agents inside of it."""
    states: list[Line] = [line["state"] for line in recording.of("request") if "state" in line]
    return int(states[-1].get("calls", 0)) if states else 0


def _without(used: Usage, recording: Recording) -> Usage:
    """The usage since the inner run waited last: what it had used by then is part of the outer run's usage."""
    waited = [e for e in recording.events if isinstance(e, RunFinished) and e.stop_reason == "waiting"]
    before = read_usage(waited[-1].usage, waited[-1].cost) if waited else None
    if before is None:
        return used
    return Usage(
        max(used.input_tokens - before.input_tokens, 0),
        max(used.output_tokens - before.output_tokens, 0),
        max(used.cached_tokens - before.cached_tokens, 0),
        max(used.cache_write_tokens - before.cache_write_tokens, 0),
        max(used.reasoning_tokens - before.reasoning_tokens, 0),
        estimated=used.estimated,
        cost=None if used.cost is None or before.cost is None else max(used.cost - before.cost, 0.0),
    )


class Forwarder(Middleware):
    """Sends the events of an inner run to the listeners of the outer one, without text as it streams."""

    mutates = False
    sees_deltas = True

    def __init__(self, context: CallContext[Any], path: str) -> None:
        self.needs_result: set[str] = set()
        """The ids of the calls that wait for a result, and not for an approval."""
        self._context = context
        self._path = path
        self._asked: set[str] = set()

    def on_event(self, event: Event) -> None:
        context = self._context
        if context.ended:
            return
        saved = event_to_json(event)
        if isinstance(event, RunFinished):
            saved["messages"] = []
            self.needs_result = {
                call["id"]
                for call in event.pending
                if call.get("needs", "approval" if call["id"] in self._asked else "result") == "result"
            }
        elif isinstance(event, ApprovalAsked):
            self._asked.add(event.call_id)
        context.say(InnerEvent, context.number, context.call_id, context.name, self._path, saved)
        if isinstance(event, CallStarted):
            context.report(f"{event.name} started")
        elif isinstance(event, CallFinished):
            context.report(f"{event.name} {'failed' if event.error else 'done'}")


class StreamingForwarder(Forwarder):
    """The same with text as it streams."""

    sees_deltas = False
