"""One run from start to result: checks and repairs the given history, reports the start, runs, and always reports the
end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from unbroken.agent.emitter import Emitter
from unbroken.agent.handoffs import Changing, read_taken
from unbroken.agent.limits import NOTHING_USED, Account, models_of
from unbroken.agent.loop import play
from unbroken.agent.options import OpenCalls
from unbroken.agent.plan import Plan
from unbroken.agent.result import Result, verdict_to_json
from unbroken.agent.rounds import Decisions
from unbroken.agent.rules.handoffs import change_agent_again
from unbroken.agent.run import CallRecord, Earlier, Run
from unbroken.agent.saved_state import recall, saved_state
from unbroken.agent.toolset import ToolSet
from unbroken.agent.turns import Ending
from unbroken.clock import Clock, current_clock
from unbroken.errors import UnbrokenError, UserError
from unbroken.events import Event, RunFailed, RunFinished, RunStarted, Sink
from unbroken.middleware import Middleware, RunStart, as_middleware, end, start
from unbroken.tools.caller import in_words
from unbroken.tools.handles import BackgroundCall
from unbroken_wires.deltas import ServerCallSeen, Verdict
from unbroken_wires.frozen import plain_factories
from unbroken_wires.messages import Json, Message, ToolMessage, ToolResult, Usage, User, own
from unbroken_wires.transcript import NO_RESULT, Transcript, repair, to_json
from unbroken_wires.wires.chain import StoredHistory, may_be_stored, validate_tool_chain

LOG = logging.getLogger("unbroken.agent")
CHAIN_LOG = logging.getLogger("unbroken.chain")


@dataclass(slots=True)
@plain_factories
class Performance:
    """A run that is ready to start. Call it to run it."""

    id: str
    plan: Callable[[Clock], Plan]
    clock: Clock | None
    tools: ToolSet
    transcript: Transcript
    account: Account
    middleware: tuple[Middleware, ...] = ()
    name: str = "main"
    """The agent's name."""
    state: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The saved state of an earlier part of the run, whose process died."""
    records: tuple[CallRecord, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    """The calls and the incomplete answers of that part."""
    events: tuple[Event, ...] = ()
    """The events of that part that are counted."""
    continued: bool = False
    """It was started by another process."""
    lost: Usage = NOTHING_USED
    """What the last request of the earlier part used, or may have, if its process died."""
    next_seq: int = 0
    """The number of its first event."""
    next_call: int = 0
    """The number of its first call."""
    decisions: Decisions | None = None
    before: Result[Any] | None = None
    """The result of an earlier part of the run."""
    question: User | None = None
    """The prompt that follows the open calls of the given history."""
    earlier: Earlier | None = None
    """What is known of an earlier part of the run, which waited or whose process died."""
    background: tuple[BackgroundCall, ...] = ()
    """The background calls of that part."""
    trace: dict[str, str] | None = None
    """The span that the parts of a durable run belong to."""
    path: str = ""
    """Of an agent that runs as a tool: its name, after those of the agents that run it."""
    depth: int | None = None
    """Of such an agent: how many others may run inside of it."""
    inner_answers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, "Mapping[str, Any]"])
    """Answers to calls of agents that wait inside of calls of this run, by the ids of these calls."""

    def messages(self) -> tuple[Message, ...]:
        """The history as it is now, every call answered."""
        messages = self.transcript.messages
        return messages if self.transcript.closed else repair(messages)[0]

    async def __call__(
        self, sinks: Sequence[Sink | Middleware] = (), outermost: Sequence[Middleware] = ()
    ) -> Result[Any]:
        plan = self.plan(self.clock or current_clock())
        emitter = Emitter(self.id, plan.clock, self.next_seq, self.next_call)
        run = Run(
            self.id,
            plan,
            self.transcript,
            self.account,
            emitter,
            agent=self.name,
            question=self.question,
            earlier=self.earlier,
            path=self.path or self.name,
            depth=plan.settings.policy.agent_depth
            if self.depth is None
            else min(self.depth, plan.settings.policy.agent_depth),
            inner_answers=self.inner_answers,
            restored=self.background,
        )
        if self.state:
            recall(run, self.state)
        run.records.extend(self.records)
        emitter.counted.extend(self.events)
        run.verdicts.extend(self.verdicts)
        if self.before is not None:
            _recall(run, self.before)
        if plan.choose_limits is not None:
            await run.choose_limits()
        await self.account.load_prices(models_of(plan.model), plan.clock)
        if self.lost.total_tokens:
            self.account.spend(self.account.priced(self.lost, plan.model.name, plan.clock))
        middleware = self._start(run, (*outermost, *self.middleware, *as_middleware(sinks)))
        self.account.start(plan.clock)
        emitter.emit(RunStarted, plan.model.name, plan.settings.schedule.value)
        try:
            if self.tools.has_servers or run.changing is not None:
                ending = await self._play_with_servers(run)
            else:
                ending = await play(run, self.decisions)
        except UnbrokenError as error:
            error.messages = self.messages()
            _emit_failed(run, error, str(error), [*map(verdict_to_json, error.verdicts)])
            _log_chain(run, logging.INFO)
            raise
        except BaseException as error:
            _emit_failed(run, error, in_words(error), [])
            if isinstance(error, SystemExit):
                raise UserError(f"code of the program that the run called has failed: {in_words(error)}") from error
            raise
        else:
            run.end_server_calls()
            result = _result(run, ending)
            _emit_end(run, result)
            return result
        finally:
            emitter.end()
            end(middleware)
            run.plan.remove_middleware()
            run.changing = None

    async def _play_with_servers(self, run: Run) -> Ending:
        async with AsyncExitStack() as servers:
            if self.tools.has_servers:
                await servers.enter_async_context(self.tools.opened())
            if run.changing is not None:
                run.changing.servers = servers
                taken = read_taken(self.state.get("handoffs")) or (self.before.handoffs if self.before else ())
                await change_agent_again(run, taken, report=not self.continued)
            return await play(run, self.decisions)

    def _start(self, run: Run, middleware: Sequence[Middleware]) -> list[Middleware]:
        """Starts all middleware for this run and installs it."""
        plan = run.plan
        started: list[Middleware] = []
        about = partial(self._about, run)
        if plan.settings.handoffs or self._was_handed_off():
            own = list[Middleware]()
            most = plan.settings.policy.most_handoffs
            run.changing = Changing(most, about, tuple(middleware), own, started, AsyncExitStack())
        if not middleware:
            return started
        try:
            start(middleware, about, started)
        except BaseException:
            end(started)
            raise
        if run.changing is not None:
            run.changing.own += started
        plan.install(started)
        run.emitter.listen(started)
        return started

    def _was_handed_off(self) -> bool:
        return bool(self.state.get("handoffs") or (self.before is not None and self.before.handoffs))

    def _about(self, run: Run) -> RunStart:
        plan = run.plan
        return RunStart(
            self.id,
            self.name,
            plan.model.name,
            plan.clock,
            plan.header(self.account.limits),
            self.transcript.messages,
            self.question,
            resumed=self.continued or self.before is not None,
            history=lambda: self.transcript.messages,
            state=partial(saved_state, run),
            decisions=self.decisions or {},
            emit=run.emitter.emit,
            veto=run.veto,
            retries=run.retries,
            secrets=lambda: getattr(run.plan.model, "secrets", ()),
            asks=plan.model,
            context=run.run_context,
            known_tools=plan.known_tools,
            trace=self.trace,
        )


def _recall(run: Run, before: Result[Any]) -> None:
    run.records.extend(before.calls)
    for call in before.server_calls:
        run.take_server_call(ServerCallSeen(call))
    run.emitter.counted.extend(before.events)
    run.numbers = dict(before.numbers)
    run.restored = before.background
    run.verdicts.extend(before.verdicts)
    run.warnings.update(dict.fromkeys(before.warnings))
    run.attempts, run.fallback_used = before.attempts, before.fallback_used
    run.question = before.question
    run.waited, run.inner = True, before.inner


def _result(run: Run, ending: Ending) -> Result[Any]:
    account = run.account
    return Result(
        text=ending.text,
        stop_reason=ending.stop_reason,
        messages=run.transcript.messages,
        calls=tuple(run.records),
        rounds=account.rounds,
        requests=account.requests,
        usage=account.spent,
        cost=account.cost,
        seconds=account.elapsed(run.plan.clock),
        output=ending.text if run.plan.output is None else next(iter(run.output), None),
        pending=ending.pending,
        uncertain=run.uncertain if ending.pending else (),
        answered=run.transcript.answered,
        decided=run.decided,
        structured=run.plan.output is not None,
        finish=ending.finish,
        cut_off=ending.cut_off,
        run=run.id,
        call_count=account.calls,
        attempts=run.attempts,
        fallback_used=run.fallback_used,
        verdicts=tuple(run.verdicts),
        warnings=tuple(run.warnings),
        question=run.question if ending.stop_reason == "waiting" else None,
        numbers=run.numbers if ending.pending else {},
        agent=run.agent,
        handoffs=tuple(run.changing.taken) if run.changing is not None else (),
        inner={id: waits.state for id, waits in run.waits.items() if waits.state is not None} if ending.pending else {},
        next_call=run.emitter.next_call,
        background=run.futures.calls if run.futures is not None else run.restored,
        server_calls=() if run.server_calls is None else tuple(run.server_calls.seen),
        events=tuple(run.emitter.counted),
    )


def _emit_failed(run: Run, error: BaseException, words: str, verdicts: list[dict[str, Json]]) -> None:
    account = run.account
    usage = account.usage.to_json()
    run.end_server_calls()
    spent = usage, account.requests, run.attempts, account.cost
    run.emitter.emit(RunFailed, type(error).__name__, words, verdicts, *spent, run.fallback_used)


def _emit_end(run: Run, result: Result[Any]) -> None:
    _log_chain(run, logging.INFO if result.fallback_used else logging.DEBUG)
    if run.emitter.has_listeners:
        run.emitter.emit_written(RunFinished, partial(_end_of, run, result))


def _end_of(run: Run, result: Result[Any], copy: bool) -> tuple[Any, ...]:
    """The fields of `RunFinished`, which never share an object or a list with the run."""
    calls, returns = run.chain()
    needs_result = {id for waits in run.waits.values() for id in waits.needs_result}
    pending: list[dict[str, Any]] = [
        {"call": result.numbers[call.id], "id": call.id, "name": call.name, "arguments": own(call.arguments)}
        | ({"uncertain": True} if call.id in result.uncertain else {})
        | ({"agent": call.agent, "needs": "result" if call.id in needs_result else "approval"} if call.agent else {})
        for call in result.pending
    ]
    return (
        result.text,
        result.stop_reason,
        result.rounds,
        result.requests,
        len(result.calls),
        result.usage.to_json(),
        result.seconds,
        pending,
        calls == returns,
        calls,
        returns,
        result.fallback_used,
        result.attempts,
        [verdict_to_json(verdict) for verdict in result.verdicts],
        to_json(result.messages),
        result.cost,
        result.cache_saving,
        result.cut_off,
    )


def _log_chain(run: Run, level: int) -> None:
    if CHAIN_LOG.isEnabledFor(level):
        calls, returns = run.chain()
        CHAIN_LOG.log(
            level,
            "tool_chain_status run=%s tool_calls=%d tool_returns=%d fallback_used=%s",
            run.id,
            calls,
            returns,
            run.fallback_used,
        )


def read_history(history: Sequence[Message] | StoredHistory | Transcript | None, open_calls: OpenCalls) -> Transcript:
    if isinstance(history, Transcript):
        transcript = history
    elif history is None or history == ():
        return Transcript()
    else:
        given = own_messages(history)
        _refuse_foreign(given)
        messages, edits = repair(given, answer_open=False)
        if edits:
            LOG.warning("The given history was broken and has been repaired: %s", "; ".join(map(str, edits)))
        transcript = _transcript(messages)
    if transcript.closed or open_calls == "execute":
        return transcript
    names = ", ".join(f"`{call.id}` ({call.name})" for call in transcript.open)
    if open_calls == "error":
        raise UserError(
            f"history= ends in calls without results: {names}; answer them, or use open_calls='execute' to run them, "
            f"'answer' to tell the model that they did not run"
        )
    LOG.warning("The history that was handed in ends in calls without results, answered as not executed: %s", names)
    for call in transcript.open:
        transcript.answer(ToolResult.of(call, NO_RESULT, error=True))
    return transcript


def own_messages(history: Sequence[Message] | StoredHistory) -> Sequence[Message]:
    """The history that a caller gave. Stored messages of pydantic-ai become our own, and what cannot be carried is
    logged; anything else is returned as it is."""
    if not isinstance(history, Sequence) or not history or not may_be_stored(history[0]):  # pyright: ignore[reportUnnecessaryIsInstance] - a caller's value
        return cast("Sequence[Message]", history)
    from unbroken_wires.wires.pydantic_ai import is_stored, read_stored  # noqa: PLC0415 - few histories are of that kind

    if not is_stored(history):
        return cast("Sequence[Message]", history)
    messages, left_out = read_stored(history)
    if left_out:
        LOG.warning("Stored messages of pydantic-ai have parts that were left out: %s", "; ".join(left_out))
    return messages


HOW_TO_READ = "messages of a provider are read by `find_wire('openai-chat').decode_request({'messages': …}).messages`"


def _refuse_foreign(history: Sequence[Message]) -> None:
    if isinstance(history, str | bytes) or not isinstance(history, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] - a caller's value
        raise UserError(
            f"agent.run(history=…): expected the messages of a Result or a Conversation, or a Transcript, got "
            f"{type(history).__name__}"
        )
    for place, message in enumerate(history):
        if not isinstance(message, Message):  # pyright: ignore[reportUnnecessaryIsInstance] - a caller's value
            kind = type(message).__name__
            raise UserError(
                f"history= holds no message at {place}, but a value of the type {kind}: it takes what a Result or a "
                f"Conversation has in `messages`; {HOW_TO_READ}"
            )


def _transcript(messages: Sequence[Message]) -> Transcript:
    """Also accepts a history whose last round has only some of its results."""
    last = messages[-1] if messages else None
    if not isinstance(last, ToolMessage) or validate_tool_chain(messages):
        return Transcript(messages)
    transcript = Transcript(messages[:-1])
    for result in last.results:
        transcript.answer(result)
    return transcript
