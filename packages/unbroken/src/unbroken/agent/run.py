"""The state of an active run: its plan, history, account and emitter. The loop changes it."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from sys import maxsize
from typing import Any

from unbroken.agent.aside import ask_aside
from unbroken.agent.emitter import Emitter, RoundReporter, report_finished
from unbroken.agent.handoffs import Changing
from unbroken.agent.limits import Account, Limits
from unbroken.agent.plan import Plan
from unbroken.agent.prompts import TIME_IS_UP, Language
from unbroken.agent.run_state import RunState
from unbroken.agent.server_calls import ServerCalls
from unbroken.agent.spending import Spending
from unbroken.errors import UnbrokenError, UserError, Vetoed
from unbroken.events import CallAdopted, RequestRetried
from unbroken.middleware import blaming
from unbroken.models.model import Model
from unbroken.tools.approval import OnApproval
from unbroken.tools.caller import Prepared, in_words, prepare, ran_and_failed
from unbroken.tools.context import CallContext, RunContext
from unbroken.tools.entry import EARLIER_FAILED
from unbroken.tools.execution import Batch
from unbroken.tools.futures import Futures
from unbroken.tools.order import EarlierCalls
from unbroken.tools.tool import Tool
from unbroken.tools.toolbox import Toolbox
from unbroken.trajectory.past import NOTHING_BEFORE, Past
from unbroken_wires.deltas import Delta, Verdict
from unbroken_wires.frozen import plain_factories
from unbroken_wires.messages import (
    Assistant,
    Message,
    Request,
    ToolCall,
    ToolResult,
    Usage,
    User,
    own_messages,
)
from unbroken_wires.transcript import Transcript
from unbroken_wires.transcript.summaries import is_prompt

LOG = logging.getLogger("unbroken.chain")

NOT_RESUMED = "the run was resumed, and this call is not in the answer that it resumed with"


@dataclass(slots=True)
class Inside:
    """Where a run stands among agents that run inside of each other."""

    path: str = ""
    """The agent's name, after those of the agents that run it as a tool: `main/researcher`."""
    depth: int = maxsize
    """How many agents may run inside of each other as tools of this run."""
    answers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, "Mapping[str, Any]"])
    """The answers to calls of agents that wait inside of calls of this run, by the ids of these calls."""
    asking: asyncio.Lock | None = None
    """Held while such an agent asks the approver of this run."""


@dataclass(slots=True)
@plain_factories
class Judged:
    """What the checks of the run have decided."""

    prompt: User | None = None
    """The prompt that was checked, as it is in the history."""
    output: list[Any] = field(default_factory=list[Any])
    """The structured answer, once there is one."""
    refused: str = ""
    """Why a check did not accept the last output."""
    broken: UnbrokenError | None = None
    """A check of a typed answer has ended the run with this error."""
    vetoed: Vetoed | None = None
    """A check of a call ends the run."""


@dataclass(slots=True)
@plain_factories
class Run:
    """The live half of a run. Nothing in it but `state` has to survive."""

    id: str
    plan: Plan
    state: RunState
    account: Account
    emitter: Emitter
    past: Past = NOTHING_BEFORE
    inside: Inside = field(default_factory=Inside)
    judged: Judged = field(default_factory=Judged)
    spending: Spending = field(default_factory=Spending)
    voided: bool = False
    """What was shown of this turn is void: the retry gave a different answer."""
    cut_off: str = ""
    """The text of an answer that was cut off; it is in the history."""
    asked_in: Language | None = None
    """The language of the prompt, once a text for the model depends on it."""
    shared: EarlierCalls | None = None
    """With `Policy(share_rounds=True)`: the results of earlier rounds."""
    changing: Changing | None = None
    """Set if other agents may take over."""
    futures: Futures | None = None
    """The calls in the background; None as long as no tool may have any."""
    server_calls: ServerCalls | None = None
    """The tools that the provider runs, if there are any."""
    transcript: Transcript = field(init=False)
    """That of the state."""

    def __post_init__(self) -> None:
        self.transcript = self.state.transcript
        if self.state.server_calls:
            self.server_calls = ServerCalls(self.emitter, self.state.server_calls)

    @property
    def vetoed(self) -> Vetoed | None:
        return self.judged.vetoed

    def take_server_call(self, delta: Delta) -> None:
        if self.server_calls is None:
            self.server_calls = ServerCalls(self.emitter, self.state.server_calls)
        self.server_calls.take(delta)

    def end_server_calls(self) -> None:
        """The run is over: nothing more is heard of those that the provider still runs."""
        if self.server_calls is not None:
            self.server_calls.end()

    def mark_uncertain(self, calls: Iterable[Prepared]) -> None:
        """Marks the calls that had started when the process of a resumed run died."""
        for prepared in calls:
            prepared.uncertain = self.past.began(prepared, self.emitter.turn)

    def number_before(self, call: ToolCall) -> int | None:
        """The number that a call of a resumed run had in an earlier part of it. If its process died before that call
        could adopt one of a response that broke off, it does so now."""
        number = self.past.number_of(call, self.emitter.turn)
        if number is None:
            return self.state.waiting.numbers.pop(call.id, None)
        if (orphan := self.past.orphan_of(call, number)) is not None:
            self.emitter.emit(CallAdopted, number, call.id, call.name, orphan)
        return number

    def drop_earlier(self, observer: RoundReporter) -> None:
        """Drops calls that an earlier process received and that are not in the final answer."""
        for number, call, result in self.past.lost_calls():
            if result is not None:
                report_finished(self.emitter, Prepared(call, None, number), result, 0.0)
            observer.drop(number, call, NOT_RESUMED)

    def note_left_out(self, verdict: Verdict) -> None:
        """What a request could not have for this model. Each is reported once."""
        model = verdict.model or self.plan.model.name
        for name in verdict.left_out:
            text = f"{model} does not accept `{name}` as it was given: it was left out or replaced"
            if text not in self.state.warnings:
                self.state.warnings[text] = None
                LOG.warning("%s", text)

    def next_turn(self) -> None:
        self.emitter.turn = self.state.next_turn()
        self.account.next_request()
        self.voided = False
        self.judged.refused = ""
        if self.server_calls is not None:
            self.server_calls.begin_answer()

    @property
    def awaits_results(self) -> bool:
        """Are there background calls whose results the model has to read before the run may end?"""
        return (
            self.futures is not None
            and self.plan.settings.policy.wait_for_background
            and bool(self.futures.undelivered())
        )

    def prepare(self, call: ToolCall, toolbox: Toolbox) -> Prepared:
        """Everything needed to run the call. Handles of background calls in its arguments are replaced later."""
        held = self.futures.prepare(call, toolbox) if self.futures is not None else None
        return held or prepare(call, toolbox, self.plan.settings.policy.tool_errors)

    def add_results(
        self,
        calls: Sequence[Prepared],
        results: Sequence[ToolResult | None],
        took: Sequence[float],
        of_message: Sequence[Prepared],
    ) -> None:
        """The results of these calls; None stands for one that waits. `of_message`: with those that had results."""
        state, turn = self.state, self.emitter.turn
        given = results if state.repetition.calm else state.repetition.remind(calls, results)
        for each, result, seconds in zip(calls, given, took, strict=True):
            if result is not None:
                state.add_result(each.call, result, turn, seconds)
        if self.shared is not None:
            self.shared.end_round(calls, results)
        if None not in results:  # else the round is not over
            state.repetition.next_round(of_message)

    @property
    def cut_off_last(self) -> bool:
        """Does the history end in an answer that was cut off?"""
        return bool(self.cut_off) and isinstance(self.transcript.messages[-1], Assistant)

    @property
    def last_prompt(self) -> str:
        """Its text."""
        return next((message.text for message in reversed(self.transcript.messages) if is_prompt(message)), "")

    def attempt_failed(self, verdict: Verdict, wait: float, elsewhere: bool, calls: int, streamed: bool) -> None:
        """A response broke or did not arrive, and the request is retried; `calls` of it were complete. Only a stream
        that broke with calls in it has left the chain incomplete."""
        self.state.attempt_failed(replace(verdict, turn=self.emitter.turn), elsewhere)
        self.emitter.emit(RequestRetried, verdict.attempt, verdict.kind, verdict.reason, wait, verdict.model, elsewhere)
        broken = calls + len(verdict.open_calls)
        if streamed and broken:
            made, returned = self.state.chain
            LOG.warning(
                "tool_chain_incomplete_on_stream run=%s tool_calls=%d tool_returns=%d attempt=%d kind=%s: %s",
                self.id,
                made + broken,
                returned,
                verdict.attempt,
                verdict.kind,
                verdict.reason,
            )
        else:
            attempt, why = verdict.attempt, verdict.reason
            LOG.warning("request_retried run=%s attempt=%d wait=%.1fs: %s", self.id, attempt, wait, why)

    def ended_with(self, verdict: Verdict) -> None:
        if not verdict.whole:
            self.state.verdicts.append(replace(verdict, turn=self.emitter.turn))

    def time_left(self) -> float | None:
        """Seconds until a response must have ended: up to `final_seconds` beyond the limit."""
        deadline = self.account.deadline
        if deadline is None:
            return None
        return max(deadline - self.plan.clock.elapsed(), 0.0) + self.account.limits.final_seconds

    async def toolbox(self, offers: Sequence[Callable[[Run], Sequence[Tool]]]) -> Toolbox:
        """The tools of the next round: those of the agent, and others that its features offer."""
        tools = self.plan.tools
        try:
            tools = tools if isinstance(tools, Toolbox) else await tools(self.run_context(), self.transcript)
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            raise UserError(f"the function given as tools= failed: {in_words(error)}") from error
        if offers:
            tools = Toolbox(tools, *(tool for offer in offers for tool in offer(self)))
        tools.refuse_deps(self.plan.deps)
        for middleware in self.plan.middleware:
            with blaming(middleware, "on_tools"):
                middleware.on_tools(self.emitter.turn, tools)
        return tools

    def veto(self, error: Vetoed) -> None:
        """A check of a call ends the run when the round is over."""
        self.judged.vetoed = self.judged.vetoed or error

    def run_context(self) -> RunContext[Any]:
        """What functions of the agent know about the run."""
        plan = self.plan
        return RunContext(
            self.id,
            self.state.agent,
            plan.model.name,
            self.emitter.turn,
            plan.deps,
            plan.store,
            own_messages(self.transcript.messages),
            self.state.used.usage,
        )

    async def choose_limits(self) -> None:
        """The limits of a run that starts, if they are a function."""
        choose = self.plan.choose_limits
        if choose is None:
            return
        try:
            chosen = choose(self.run_context())
            limits = await chosen if inspect.isawaitable(chosen) else chosen
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            raise UserError(f"the function given as limits= failed: {in_words(error)}") from error
        if not isinstance(limits, Limits):  # pyright: ignore[reportUnnecessaryIsInstance] - a caller's value
            raise UserError(f"the function given as limits= returned {limits!r}, and not Limits(…)")
        self.account.limits = limits

    def shown_messages(self, until: int | None = None) -> tuple[Message, ...]:
        """The history as the agent sees it that has taken over; or so many messages of it."""
        messages, shown = self.transcript.messages[:until], self.changing.shown if self.changing is not None else None
        return messages if shown is None else (*shown[1], *messages[shown[0] :])

    def batch(self, toolbox: Toolbox, observer: RoundReporter, on_approval: OnApproval | None) -> Batch:
        """A batch for the calls of one message; it is halted at the time limit of the run."""
        plan = self.plan
        if plan.settings.policy.share_rounds and self.shared is None:
            self.shared = EarlierCalls()
            if not self.state.handoffs:  # all are of this agent
                calls = [prepare(record.call, toolbox) for record in self.state.calls]
                self.shared.resume(calls, [record.result for record in self.state.calls])
        batch = Batch(
            plan.settings.schedule,
            plan.caller_of(toolbox),
            lambda call: prepare(call, toolbox, plan.settings.policy.tool_errors),
            self.context,
            observer,
            plan.clock,
            on_approval=on_approval,
            stop_on_failure=plan.settings.on_error == "finish",
            share_all=plan.settings.policy.share_all,
            futures=self.futures,
        )
        if plan.settings.on_error == "finish" and any(map(ran_and_failed, self.transcript.answered)):
            batch.halt(EARLIER_FAILED)
        if self.account.deadline is not None:
            batch.halt_after(max(self.account.deadline - plan.clock.elapsed(), 0.0), TIME_IS_UP, self.report_time_up)
        return batch

    def report_time_up(self) -> None:
        """The time limit is reached while calls are running."""
        for middleware in self.plan.middleware:
            middleware.on_time_limit()

    def context(self, prepared: Prepared, turn: int | None = None) -> CallContext[Any]:
        """What the call may know; `turn` is that of a call of an earlier turn."""
        call, plan = prepared.call, self.plan
        context: CallContext[Any] = CallContext(
            run=self.id,
            turn=self.emitter.turn if turn is None else turn,
            call_id=call.id,
            name=call.name,
            fingerprint=prepared.fingerprint,
            nth=prepared.nth,
            number=prepared.number,
            deps=plan.deps,
            store=plan.store,
            say=self.emitter.emit,
            retries=self.state.counters.retries,
            most_retries=plan.settings.policy.tool_retries,
            spend=self.account.spend,
            approver=plan.on_approval,
            ask_model=self.ask_model,
            host=self,
        )
        context.ran_before = self.past.seconds_of(context)
        if prepared.tool is not None and (self.shared is not None or prepared.tool.cache is not None):
            self._look_up(prepared, prepared.tool, context)
        if self.shared is not None:
            self.shared.begin(prepared, context)
        return context

    def _look_up(self, prepared: Prepared, tool: Tool, context: CallContext[Any]) -> None:
        """Is the result known from an identical call? Then this one is answered without its tool."""
        if context.ran_before is not None or self.past.replays_tools:
            return
        if self.shared is not None and self.plan.settings.policy.share_rounds:
            context.known = self.shared.find(prepared)
        if context.known is None and tool.cache is not None:
            context.known = self.plan.kept.results.find(tool, prepared.call, context, self.plan.clock.elapsed())
        if context.known is not None:
            context.ran_before = 0.0

    async def ask_model(
        self, request: Request, model: Model | None, spend: Callable[[Usage], None]
    ) -> tuple[Assistant, str]:
        """Asks a model beside the conversation, for a tool that needs it; returns the answer and the model's name."""
        return await ask_aside(self.account, self.plan.clock, model or self.plan.model, request, spend)

    def spend_on(self, answer: Assistant, reported: Usage | None, verdict: Verdict) -> None:
        """Counts what a request and its answer used: as reported, or else estimated by their characters."""
        self.spending.answered(self.state, self.plan, self.account, answer, reported, verdict)
