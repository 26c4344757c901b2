"""The state of an active run: its plan, history, account and emitter. The loop changes it."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from unbroken.agent.aside import ask_aside, estimate
from unbroken.agent.emitter import Emitter, RoundReporter, report_finished
from unbroken.agent.handoffs import Changing
from unbroken.agent.limits import Account, Limits, StopReason
from unbroken.agent.plan import Plan
from unbroken.agent.prompts import TIME_IS_UP, Language
from unbroken.agent.rules.repetition import Repetition
from unbroken.agent.server_calls import ServerCalls
from unbroken.agent.turns import Again
from unbroken.errors import UnbrokenError, UserError, Vetoed
from unbroken.events import RequestRetried
from unbroken.middleware import blaming
from unbroken.models.model import Model
from unbroken.tools.approval import Approval, OnApproval
from unbroken.tools.caller import Prepared, in_words, prepare, ran_and_failed
from unbroken.tools.context import CallContext, RunContext
from unbroken.tools.entry import EARLIER_FAILED
from unbroken.tools.execution import Batch
from unbroken.tools.futures import Futures
from unbroken.tools.handles import BackgroundCall
from unbroken.tools.order import EarlierCalls, Order
from unbroken.tools.results import CallWaits
from unbroken.tools.tool import Tool
from unbroken.tools.toolbox import Toolbox
from unbroken_wires.deltas import Delta, Verdict
from unbroken_wires.frozen import plain_factories, quick
from unbroken_wires.messages import (
    Assistant,
    Json,
    Message,
    Outcome,
    Request,
    ToolCall,
    ToolMessage,
    ToolResult,
    Usage,
    User,
    own_messages,
)
from unbroken_wires.transcript import Transcript
from unbroken_wires.transcript.prefix import Prefix
from unbroken_wires.transcript.shorten import characters
from unbroken_wires.transcript.summaries import is_prompt

LOG = logging.getLogger("unbroken.chain")

NOT_RESUMED = "the run was resumed, and this call is not in the answer that it resumed with"


class Earlier(Protocol):
    """What is known of the part of a resumed run that an earlier process ran."""

    def began(self, prepared: Prepared, turn: int) -> bool:
        """Had this call started when the process died, without a result?"""
        ...

    def shown_of(self, turn: int) -> tuple[str, str] | None:
        """The text and reasoning of this turn that listeners have already, if there is any."""
        ...

    def number_of(self, call: ToolCall, turn: int) -> int | None:
        """The number that this call had."""
        ...

    def had_started(self, number: int) -> bool: ...

    @property
    def replays_tools(self) -> bool:
        """Do all results come from the recording?"""
        ...

    def seconds_of(self, context: CallContext[Any]) -> float | None:
        """How long this call ran, if its result is known; then it does not run again."""
        ...

    def lost_calls(self) -> Iterable[tuple[int, ToolCall, ToolResult | None]]:
        """The calls that were not continued, with their numbers; and how one ended whose end was not reported yet."""
        ...

    def went_to_background(self, turn: int, call_id: str) -> bool | None:
        """Did this call go to the background? None if that is still to be decided."""
        ...

    def arrivals(self, turn: int) -> Collection[str] | None:
        """The handles of the background calls whose results the history got after this turn. None if that is still to
        be decided."""
        ...


@quick
@dataclass(frozen=True, slots=True)
class CallRecord:
    """A call and its result."""

    call: ToolCall
    result: ToolResult
    turn: int
    seconds: float

    @property
    def id(self) -> str:
        """The call's id, which its result has too."""
        return self.call.id

    @property
    def name(self) -> str:
        """The name of the tool that the model called; it may not exist."""
        return self.call.name

    @property
    def arguments(self) -> dict[str, Json]:
        """As the model wrote them; empty if they could not be read and nothing ran."""
        return self.call.arguments or {}

    @property
    def error(self) -> bool:
        """It failed, or was not executed: `result.text` has the reason."""
        return self.result.error

    @property
    def outcome(self) -> Outcome:
        """How it ended: `unknown` if its process died while the tool ran."""
        return self.result.outcome


@dataclass(slots=True)
@plain_factories
class Run:
    id: str
    plan: Plan
    transcript: Transcript
    account: Account
    emitter: Emitter
    agent: str = "main"
    """The agent's name."""
    repetition: Repetition = field(default_factory=Repetition)
    verdicts: list[Verdict] = field(default_factory=list[Verdict])
    """What was wrong with each incomplete response."""
    warnings: dict[str, None] = field(default_factory=dict[str, None])
    attempts: int = 0
    """Requests that were sent, including those that failed."""
    fallback_used: bool = False
    """A response was retried without streaming, or with another model."""
    voided: bool = False
    """What was shown of this turn is void: the retry gave a different answer."""
    nudge: bool = False
    """The last answer was empty: ask for more in the next request."""
    nudges: int = 0
    """How often the model was asked to continue."""
    empty_answers: int = 0
    """How many came last, in a row."""
    question: User | None = None
    """The prompt that follows the open calls of the given history."""
    asked_in: Language | None = None
    """The language of the prompt, once a text for the model depends on it."""
    prompt: User | None = None
    """The prompt that was checked, as it is in the history."""
    stop: StopReason | None = None
    """Why no more calls are allowed; empty while they are."""
    pauses: int = 0
    corrections: int = 0
    """How often the model was asked to correct its structured answer."""
    output: list[Any] = field(default_factory=list[Any])
    """The structured answer, once there is one."""
    pending: tuple[ToolCall, ...] = ()
    """Calls that wait for an outside decision."""
    uncertain: tuple[str, ...] = ()
    """The ids of waiting calls that may have taken effect before their process died."""
    decided: dict[str, Approval] = field(default_factory=dict[str, Approval])
    """Decisions about calls that wait behind them."""
    numbers: dict[str, int] = field(default_factory=dict[str, int])
    """The numbers of all calls without a result, by id."""
    earlier: Earlier | None = None
    """Set if the run is resumed from its recording."""
    retries: dict[str, int] = field(default_factory=dict[str, int])
    """How often each tool, and each check of the output, has asked for a retry."""
    refused: str = ""
    """Why a check did not accept the last output."""
    broken: UnbrokenError | None = None
    """A check of a typed answer has ended the run with this error."""
    vetoed: Vetoed | None = None
    """A check of a call ends the run."""
    cut_off: str = ""
    """The text of an answer that was cut off; it is in the history."""
    records: list[CallRecord] = field(default_factory=list["CallRecord"])
    shared: EarlierCalls | None = None
    """With `Policy(share_rounds=True)`: the results of earlier rounds."""
    notes: dict[str, Json] = field(default_factory=dict[str, Json])
    """What middleware has noted about the run, and requests that were made beside its rounds (`aside`)."""
    aside: bool = False
    """A request is made beside the rounds of the run: for a summary, for example."""
    tokens: int = 0
    """What the provider reported for the last request and its answer."""
    path: str = "main"
    """The agent's name, after those of the agents that run it as a tool: `main/researcher`."""
    depth: int = 0
    """How many agents may run inside of each other as tools of this run."""
    waited: bool = False
    """An earlier part of the run waited."""
    inner: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Results of agents that wait inside of calls of this run, by the ids of the calls."""
    inner_answers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, "Mapping[str, Any]"])
    """The answers to calls of those agents."""
    waits: dict[str, CallWaits] = field(default_factory=dict[str, CallWaits])
    """What calls that run agents wait for, by their ids."""
    changing: Changing | None = None
    """Set if other agents may take over."""
    asking: asyncio.Lock | None = None
    """Held while such an agent asks the approver of this run."""
    futures: Futures | None = None
    """The calls in the background; None as long as no tool may have any."""
    restored: tuple[BackgroundCall, ...] = ()
    """Background calls of an earlier part of the run that have not been continued yet."""
    server_calls: ServerCalls | None = None
    """The tools that the provider has run, if there are any."""
    prefix: Prefix = field(default_factory=Prefix)
    """What the last request began with."""
    _cached: int = 0
    """Tokens of the last request that the provider has in its cache."""
    _counted: int = 0
    _characters: int = 0
    """Characters of the agent's instructions and the first `_counted` messages."""

    def take_server_call(self, delta: Delta) -> None:
        if self.server_calls is None:
            self.server_calls = ServerCalls(self.emitter)
        self.server_calls.take(delta)

    def end_server_calls(self) -> None:
        """The run is over: nothing more is heard of those that the provider still runs."""
        if self.server_calls is not None:
            self.server_calls.end()

    def mark_uncertain(self, calls: Iterable[Prepared]) -> None:
        """Marks the calls that had started when the process of a resumed run died."""
        if self.earlier is not None:
            for prepared in calls:
                prepared.uncertain = self.earlier.began(prepared, self.emitter.turn)

    def number_before(self, call: ToolCall) -> int | None:
        """The number that a call of a resumed run had in an earlier part of it."""
        if self.earlier is not None:
            return self.earlier.number_of(call, self.emitter.turn)
        return self.numbers.pop(call.id, None)

    def wait_for(self, order: Order) -> None:
        """The run cannot continue before somebody outside decides."""
        self.pending, self.decided, self.waits = order.pending, order.decided, order.waits
        known, self.numbers, self.uncertain = self.numbers, order.numbers, order.uncertain
        for waits in self.waits.values():
            self.uncertain += tuple(waits.uncertain)
            for call in waits.pending:
                number = known.get(call.id)
                if number is None:
                    number, self.emitter.next_call = self.emitter.next_call, self.emitter.next_call + 1
                self.numbers[call.id] = number

    def drop_earlier(self, observer: RoundReporter) -> None:
        """Drops calls that an earlier process received and that are not in the final answer."""
        if self.earlier is not None:
            for number, call, result in self.earlier.lost_calls():
                if result is not None:
                    report_finished(self.emitter, Prepared(call, None, number), result, 0.0)
                observer.drop(number, call, NOT_RESUMED)

    def note_left_out(self, verdict: Verdict) -> None:
        """What a request could not have for this model. Each is reported once."""
        model = verdict.model or self.plan.model.name
        for name in verdict.left_out:
            text = f"{model} does not accept `{name}` as it was given: it was left out or replaced"
            if text not in self.warnings:
                self.warnings[text] = None
                LOG.warning("%s", text)

    def next_turn(self) -> None:
        self.emitter.turn = self.account.requests
        self.account.next_request()
        self.attempts += 1
        self.voided = False
        self.refused = ""
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

    def ask_again(self, message: Assistant, again: Again) -> None:
        """This message is not the answer."""
        why = again.why
        if why == "paused":
            self.pauses += 1
        else:
            self.nudge = why == "silent"
            self.empty_answers = self.empty_answers + 1 if self.nudge else 0
            self.nudges += why in ("silent", "announced")
            self.corrections += why == "misfit"
        if again.keeps:
            self.transcript.add(message)
        if again.reply:
            self.transcript.add(User.of(again.reply))

    def add_calls(self, message: Assistant, counts: bool) -> None:
        """This message has calls; `counts`: its request was no final one, so this is a round."""
        self.nudge, self.empty_answers = False, 0
        self.transcript.add(message)
        self.account.rounds += counts

    def add_results(
        self, calls: Sequence[Prepared], results: Sequence[ToolResult | None], took: Sequence[float]
    ) -> None:
        """The results of these calls; None stands for one that waits."""
        given = results if self.repetition.calm else self.repetition.remind(calls, results)
        for each, result, seconds in zip(calls, given, took, strict=True):
            if result is not None:
                self.transcript.answer(result if result.exception is None else replace(result, exception=None))
                if result.ended_as == "retry":
                    self.count_retry(each.call.name)
                self.records.append(CallRecord(each.call, result, self.emitter.turn, seconds))
        if self.shared is not None:
            self.shared.end_round(calls, results)
        self.repetition.next_round(calls)

    def count_retry(self, name: str) -> None:
        self.retries[name] = self.retries.get(name, 0) + 1

    def add_question(self) -> None:
        """The prompt follows the results of the open calls of the given history."""
        if self.question is not None:
            self.transcript.add(self.question)
            self.question = None

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
        self.attempts += 1
        self.empty_answers += verdict.kind == "empty"
        self.fallback_used = self.fallback_used or elsewhere
        self.verdicts.append(replace(verdict, turn=self.emitter.turn))
        self.emitter.emit(RequestRetried, verdict.attempt, verdict.kind, verdict.reason, wait, verdict.model, elsewhere)
        broken = calls + len(verdict.open_calls)
        if streamed and broken:
            made, returned = self.chain()
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
            self.verdicts.append(replace(verdict, turn=self.emitter.turn))

    def chain(self) -> tuple[int, int]:
        """How many calls and how many results the history has."""
        calls = returns = 0
        for message in self.transcript.messages:
            if isinstance(message, Assistant):
                calls += len(message.calls)
            elif isinstance(message, ToolMessage):
                returns += len(message.results)
        return calls, returns + len(self.transcript.answered)

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
        self.vetoed = self.vetoed or error

    def run_context(self) -> RunContext[Any]:
        """What functions of the agent know about the run."""
        plan = self.plan
        return RunContext(
            self.id,
            self.agent,
            plan.model.name,
            self.emitter.turn,
            plan.deps,
            plan.store,
            own_messages(self.transcript.messages),
            self.account.usage,
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
            if self.records and not (self.changing is not None and self.changing.taken):  # all are of this agent
                calls = [prepare(record.call, toolbox) for record in self.records]
                self.shared.resume(calls, [record.result for record in self.records])
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
            retries=self.retries,
            most_retries=plan.settings.policy.tool_retries,
            spend=self.account.spend,
            approver=plan.on_approval,
            ask_model=self.ask_model,
            host=self,
        )
        if self.earlier is not None:
            context.ran_before = self.earlier.seconds_of(context)
        if prepared.tool is not None and (self.shared is not None or prepared.tool.cache is not None):
            self._look_up(prepared, prepared.tool, context)
        if self.shared is not None:
            self.shared.begin(prepared, context)
        return context

    def _look_up(self, prepared: Prepared, tool: Tool, context: CallContext[Any]) -> None:
        """Is the result known from an identical call? Then this one is answered without its tool."""
        if context.ran_before is not None or (self.earlier is not None and self.earlier.replays_tools):
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
        model = verdict.model or self.plan.model.name
        usage = reported or self._estimate(answer)
        self.tokens = 0 if usage.estimated else usage.total_tokens
        self.account.spend_on_request(usage, model, self.emitter.turn, self.plan.clock)
        missed, self._cached = self._cached - usage.cached_tokens, usage.cached_tokens + usage.cache_write_tokens
        if missed > 0 and self.prefix.changed and not usage.estimated:
            self._note_missed_cache(missed, model)

    def _note_missed_cache(self, tokens: int, model: str) -> None:
        """The provider had this many tokens in its cache, and the request began otherwise."""
        missed = self.account.priced(Usage(input_tokens=tokens, cached_tokens=tokens), model, self.plan.clock)
        cost = "" if missed.cache_saving is None else f" (${missed.cache_saving:.4f} more)"
        where = f"request {self.emitter.turn + 1}: {self.prefix.changed} changed"
        self.warnings[f"{where}, so {tokens:,} tokens were not read from the provider's cache again{cost}"] = None

    def _estimate(self, answer: Assistant) -> Usage:
        messages = self.transcript.messages
        if not self._counted and self.plan.system is not None:
            self._characters = characters(self.plan.system)
        for message in messages[self._counted :]:
            self._characters += characters(message)
        self._counted = len(messages)
        return estimate(self._characters, answer)
