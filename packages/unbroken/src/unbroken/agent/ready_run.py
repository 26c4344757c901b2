"""A run that is ready to start: reports the start, runs, and always reports the end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from unbroken.agent.emitter import Emitter
from unbroken.agent.handoffs import Changing, NextAgent
from unbroken.agent.limits import NOTHING_USED, Account, Limits, models_of
from unbroken.agent.loop import play
from unbroken.agent.options import Options, ResumeOptions
from unbroken.agent.plan import Plan
from unbroken.agent.prompts import Prompt
from unbroken.agent.result import Result, result_of, verdict_to_json
from unbroken.agent.rounds import Decisions
from unbroken.agent.rules.handoffs import change_agent_again
from unbroken.agent.run import Inside, Run
from unbroken.agent.run_state import RunState, Waiting
from unbroken.agent.toolset import ToolSet
from unbroken.agent.turns import Ending
from unbroken.clock import Clock, current_clock
from unbroken.errors import UnbrokenError, UserError
from unbroken.events import RunFailed, RunFinished, RunStarted, Sink
from unbroken.middleware import Middleware, RunStart, as_middleware, end, start
from unbroken.tools.caller import in_words
from unbroken.trajectory.past import NOTHING_BEFORE, Past
from unbroken_wires.frozen import plain_factories
from unbroken_wires.messages import Json, Message, Usage, own
from unbroken_wires.transcript import repair, to_json

OptionsT = TypeVar("OptionsT", bound=ResumeOptions[Any])

CHAIN_LOG = logging.getLogger("unbroken.chain")


@dataclass(slots=True)
@plain_factories
class ReadyRun:
    """Call it to run it."""

    id: str
    plan: Callable[[Clock], Plan]
    clock: Clock | None
    tools: ToolSet
    state: RunState
    """What has happened so far: nothing, or what an earlier part of the run left."""
    account: Account
    middleware: tuple[Middleware, ...] = ()
    name: str = "main"
    """The agent's name."""
    decisions: Decisions | None = None
    """Those about calls that the run has waited for."""
    past: Past = NOTHING_BEFORE
    continued: bool = False
    """It is continued from its recording."""
    lost: Usage = NOTHING_USED
    """What the last request of the earlier part used, or may have, if its process died."""
    trace: dict[str, str] | None = None
    """The span that the parts of a durable run belong to."""
    inside: Inside = field(default_factory=Inside)

    def messages(self) -> tuple[Message, ...]:
        """The history as it is now, every call answered."""
        transcript = self.state.transcript
        return transcript.messages if transcript.closed else repair(transcript.messages)[0]

    async def __call__(
        self, sinks: Sequence[Sink | Middleware] = (), outermost: Sequence[Middleware] = ()
    ) -> Result[Any]:
        state = self.state
        plan = self.plan(self.clock or current_clock())
        emitter = Emitter(self.id, plan.clock, state.emitted)
        depth = min(self.inside.depth, plan.settings.policy.agent_depth)
        inside = Inside(self.inside.path or self.name, depth, self.inside.answers)
        run = Run(self.id, plan, state, self.account, emitter, self.past, inside)
        state.agent = self.name
        if state.waited:  # all is decided now; other calls still have their numbers, and agents inside their results
            state.waiting = Waiting(numbers=dict(state.waiting.numbers), inner=state.waiting.inner)
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
                await change_agent_again(run, report=not self.continued)
            return await play(run, self.decisions)

    def _start(self, run: Run, middleware: Sequence[Middleware]) -> list[Middleware]:
        """Starts all middleware for this run and installs it."""
        plan = run.plan
        started: list[Middleware] = []
        about = partial(self._about, run)
        if plan.settings.handoffs or self.state.handoffs:
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

    def _about(self, run: Run) -> RunStart:
        plan, state = run.plan, run.state
        return RunStart(
            self.id,
            self.name,
            plan.model.name,
            plan.clock,
            plan.header(self.account.limits),
            state.transcript.messages,
            state.question,
            resumed=self.continued or state.waited,
            history=lambda: state.transcript.messages,
            state=lambda: state.recorded(prepares=bool(run.plan.preparing)),
            decisions=self.decisions or {},
            emit=run.emitter.emit,
            veto=run.veto,
            retries=state.counters.retries,
            secrets=lambda: getattr(run.plan.model, "secrets", ()),
            asks=plan.model,
            context=run.run_context,
            known_tools=plan.known_tools,
            trace=self.trace,
        )


class PreparesRuns(NextAgent, Protocol):
    """What a resumed, a replayed or an inner run needs of its `Agent`."""

    def stack(self, options: ResumeOptions[Any]) -> tuple[Middleware, ...]: ...

    def prepare(self, prompt: Prompt | None, options: Options[Any], output: Any = None) -> ReadyRun: ...

    def ready(
        self, id: str, state: RunState, limits: Limits | Account, options: ResumeOptions[Any], output: Any
    ) -> ReadyRun: ...


def _result(run: Run, ending: Ending) -> Result[Any]:
    plan, state, account = run.plan, run.state, run.account
    if run.futures is not None:
        state.background = run.futures.calls
    structured = plan.output is not None
    output = next(iter(run.judged.output), None) if structured else ending.text
    return result_of(
        run.id,
        state,
        ending,
        account.spent,
        account.elapsed(plan.clock),
        cost=account.cost,
        output=output,
        structured=structured,
    )


def _emit_failed(run: Run, error: BaseException, words: str, verdicts: list[dict[str, Json]]) -> None:
    used, counters = run.state.used, run.state.counters
    usage = used.usage.to_json()
    run.end_server_calls()
    spent = usage, used.requests, counters.attempts, run.account.cost
    run.emitter.emit(RunFailed, type(error).__name__, words, verdicts, *spent, counters.fallback_used)


def _emit_end(run: Run, result: Result[Any]) -> None:
    _log_chain(run, logging.INFO if result.fallback_used else logging.DEBUG)
    if run.emitter.has_listeners:
        run.emitter.emit_written(RunFinished, partial(_end_of, run, result))


def _end_of(run: Run, result: Result[Any], copy: bool) -> tuple[Any, ...]:
    """The fields of `RunFinished`, which never share an object or a list with the run."""
    calls, returns = run.state.chain
    needs_result = run.state.waiting.needs_result
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
        calls, returns = run.state.chain
        CHAIN_LOG.log(
            level,
            "tool_chain_status run=%s tool_calls=%d tool_returns=%d fallback_used=%s",
            run.id,
            calls,
            returns,
            run.state.counters.fallback_used,
        )
