"""Background calls at the boundaries of turns: their results enter the history, the run waits for them before it ends,
and a resumed run continues them. `tools.futures` runs them.

In a replay the recording decides which results arrive when: a result that came a moment before a request may come a
moment after it here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from unbroken.agent.emitter import report_finished, report_started
from unbroken.agent.limits import StopReason
from unbroken.agent.output import ANSWER
from unbroken.agent.prompts import TIME_IS_UP
from unbroken.agent.run import Run
from unbroken.agent.turns import Turn, Unfinished
from unbroken.events import ResultArrived
from unbroken.tools.approval import refused
from unbroken.tools.caller import Prepared, fingerprint, prepare, ran_and_failed
from unbroken.tools.context import CallContext
from unbroken.tools.execution import CANCELLED, LEFT
from unbroken.tools.futures import Future, Futures
from unbroken.tools.handles import BackgroundCall, arrival
from unbroken.tools.toolbox import Toolbox
from unbroken_wires.messages import Assistant, ToolCall, ToolResult

ENDED = "the run has ended"


class _Reporter:
    """Reports the starts and ends of background calls, in whichever turn they happen."""

    def __init__(self, run: Run) -> None:
        self._emitter = run.emitter

    def started(self, prepared: Prepared, early: bool) -> None:
        report_started(self._emitter, prepared, early)

    def finished(self, prepared: Prepared, result: ToolResult, seconds: float) -> None:
        report_finished(self._emitter, prepared, result, seconds)


def may_have_any(run: Run) -> bool:
    """May calls of the agent that runs now go to the background, or are some there already?"""
    tools = run.plan.tools
    if run.plan.settings.policy.background is not None or not isinstance(tools, Toolbox) or tools.background:
        return True
    return run.futures is not None or bool(run.state.background)


def open_futures(run: Run, toolbox: Toolbox) -> None:
    """Prepares the run for background calls, if there may be any; continues those of an earlier part of the run."""
    plan, policy = run.plan, run.plan.settings.policy
    if run.futures is None and policy.background is None and not (toolbox.background or run.state.background):
        return
    foreground = ANSWER if plan.output is not None else ""
    if run.futures is not None:
        run.futures.configure(plan.settings.schedule, policy.background, foreground, policy.tool_errors)
    else:
        run.futures = Futures(
            plan.settings.schedule,
            plan.clock,
            _Reporter(run),
            lambda call: _place(run, call),
            seconds=policy.background,
            foreground=foreground,
            errors=policy.tool_errors,
            decided=run.past.went_to_background,
        )
    restored, run.state.background = run.state.background, ()
    for saved in restored:
        _restore(run, run.futures, saved, toolbox)


def _place(run: Run, call: ToolCall) -> int:
    """The number of this call among all calls of the history: handles stay different in a long conversation."""
    *before, last = [message.calls for message in run.transcript.messages if isinstance(message, Assistant)]
    ids = [each.id for each in last]
    return sum(map(len, before)) + (ids.index(call.id) if call.id in ids else len(ids)) + 1


def _restore(run: Run, futures: Futures, saved: BackgroundCall, toolbox: Toolbox) -> None:
    tool = toolbox.get(saved.call.name)
    own = Prepared(saved.call, tool, saved.number, fingerprint=fingerprint(saved.call), nth=saved.nth)
    if saved.result is not None:
        futures.restore(saved, own, CallContext())
        return
    errors = run.plan.settings.policy.tool_errors
    if saved.arguments is not None:
        prepared = prepare(replace(saved.call, arguments=saved.arguments), toolbox, errors)
    else:
        prepared = run.prepare(saved.call, toolbox)
    prepared.number = saved.number
    prepared.uncertain = run.past.began(own, saved.turn)
    if _before_handoff(run, saved.call):
        prepared.refusal = "the agent that made this call has handed the run over"
    context = run.context(own, saved.turn)
    context.arguments = prepared.arguments
    future = futures.restore(saved, prepared, context)
    if prepared.refusal:
        futures.finish(future, refused(prepared))
    else:
        caller = run.plan.caller_of(toolbox)
        futures.resume(future, caller, lambda call: prepare(call, toolbox, errors))


def _before_handoff(run: Run, call: ToolCall) -> bool:
    """Was it made by an agent that has handed the run over since? Another agent's tool of the same name is another
    tool."""
    if not run.state.handoffs:
        return False
    earlier = run.transcript.messages[: run.state.handoffs[-1].messages]
    return any(
        isinstance(message, Assistant) and any(each.id == call.id for each in message.calls) for message in earlier
    )


async def deliver(run: Run) -> StopReason | None:
    """Adds the results of background calls that have ended to the history. Returns why the run has to stop, if one of
    them failed and that ends it."""
    futures = run.futures
    if futures is None:
        return None
    ready = futures.undelivered()
    recorded = run.past.arrivals(run.emitter.turn)
    if recorded is not None:
        ready = [future for future in ready if future.handle in recorded]
        await _wait(run, ready, asyncio.ALL_COMPLETED)
    elif run.plan.settings.on_error == "finish" and any(each.result and ran_and_failed(each.result) for each in ready):
        await _end_all(run, futures)  # the run ends: all results arrive together
    if futures.refused is not None:
        raise futures.refused
    arrived: list[tuple[str, ToolResult]] = []
    for future in ready:
        if (result := future.result) is not None:
            future.delivered = True
            prepared = future.entry.prepared
            run.emitter.emit(ResultArrived, prepared.number, future.call.id, future.call.name, future.handle)
            arrived.append((future.handle, result))
            if result.outcome == "retry":
                run.state.count_retry(result.name)
            _update_records(run, future, result)
    if arrived:
        run.transcript.add(arrival(arrived))
        if run.plan.settings.on_error == "finish" and any(ran_and_failed(result) for _, result in arrived):
            return "tool_failure"
    return None


def awaited(run: Run, turn: Turn, toolbox: Toolbox) -> Unfinished:
    return "awaited" if run.awaits_results else ""


async def wait_for_first(run: Run, turn: Turn) -> bool:
    """The model has answered while calls are in the background: waits for the first of them, so that the model is asked
    again with its result. An answer that was given as a call is dropped. False if there is nothing to wait for."""
    if not run.awaits_results or run.futures is None:
        return False
    if turn.message.calls:
        run.judged.output.clear()
    elif turn.verdict.meaning == "paused":
        return False
    elif turn.message.text.strip():
        run.transcript.add(turn.message)
    await _wait(run, run.futures.undelivered(), asyncio.FIRST_COMPLETED)
    return True


async def settle(run: Run, stop: StopReason) -> None:
    """No more calls are allowed: waits for the calls in the background, within the time limit of the run, and adds
    their results to the history. A run that waits for somebody outside gets them when it is resumed."""
    futures = run.futures
    if futures is None or stop == "answered":
        return
    if stop == "time_limit":
        futures.halt(f"cancelled: {TIME_IS_UP}")
    await _end_all(run, futures)
    if stop != "waiting":
        await deliver(run)


async def _end_all(run: Run, futures: Futures) -> None:
    if not run.plan.settings.policy.wait_for_background:
        futures.halt(f"cancelled: {ENDED}")
    await _wait(run, futures.open(), asyncio.ALL_COMPLETED)


async def end(run: Run, error: BaseException | None) -> None:
    """The run is over: nothing of it continues. `error` is what ended it."""
    futures = run.futures
    if futures is None:
        return
    reason = ENDED if error is None else LEFT if error.args == (LEFT,) else CANCELLED
    cancelled = await futures.end(f"cancelled: {reason}")
    unread: list[tuple[str, ToolResult]] = []
    for future in futures.undelivered():
        if (result := future.result) is not None:
            _update_records(run, future, result)
            unread.append((future.handle, result))
    if unread and error is not None and run.transcript.closed:
        run.transcript.add(arrival(unread))  # a conversation continues with this history
    if cancelled is not None and error is None:
        raise cancelled


async def bind(run: Run, calls: dict[int, Prepared], toolbox: Toolbox) -> None:
    """An approver sees the arguments that a call will have: waits for the results that they refer to."""
    if run.futures is not None and (waiting := run.futures.awaited(calls.values())):
        await _wait(run, waiting, asyncio.ALL_COMPLETED)
    for index, each in calls.items():
        if each.asks and each.references:
            calls[index] = run.prepare(each.call, toolbox)
            calls[index].number = each.number


async def _wait(run: Run, futures: Iterable[Future], when: str) -> None:
    """At the time limit of the run, the calls in the background are cancelled."""
    waiting = [future.ended for future in futures]
    if not waiting or run.futures is None:
        return
    deadline = run.account.deadline
    left = None if deadline is None else max(deadline - run.plan.clock.elapsed(), 0.0)
    done, _ = await asyncio.wait(waiting, timeout=left, return_when=when)
    if done != set(waiting) and not (done and when == asyncio.FIRST_COMPLETED):
        run.report_time_up()
        run.futures.halt(f"cancelled: {TIME_IS_UP}")
        await asyncio.wait(waiting)


def _update_records(run: Run, future: Future, result: ToolResult) -> None:
    """`result.calls` has the result itself, once it is known."""
    shared = {prepared.call.id: shares for prepared, shares in future.answered}
    ids = {future.call.id, *shared}
    for at, record in enumerate(run.state.calls):
        if record.turn == future.turn and record.id in ids and record.outcome == "running":
            given = replace(result, call_id=record.id, duplicate_of=shared.get(record.id, ""))
            run.state.calls[at] = replace(record, result=given, seconds=future.entry.seconds)
