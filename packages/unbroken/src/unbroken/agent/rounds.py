"""One round: makes a request, reads the response, and runs its calls, with the rules of the agent that runs now.

Only `play_round` sees both the stream and the tools. Provider differences are handled by the model, the start of calls
by the `Batch`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from unbroken.agent.emitter import RoundReporter
from unbroken.agent.limits import StopReason
from unbroken.agent.outgoing import write_request
from unbroken.agent.response_reader import BROKE_OFF, Listener, listen
from unbroken.agent.rules.composing import Rules
from unbroken.agent.run import Run
from unbroken.agent.turns import Round, Turn
from unbroken.events import RequestSent, TextFinished
from unbroken.tools.approval import Approval, Wait
from unbroken.tools.caller import Prepared, number_identical
from unbroken.tools.execution import NOT_ASKED_AGAIN, NOT_IN_MESSAGE, Batch
from unbroken.tools.schedule import Schedule
from unbroken.tools.toolbox import Toolbox
from unbroken_wires.deltas import Verdict
from unbroken_wires.messages import Assistant, ToolCall, ToolResult

Decisions: TypeAlias = Mapping[str, Approval | ToolResult]
"""Outside decisions about calls that waited, by call id."""


async def play_round(run: Run, rules: Rules, final: bool = False) -> Turn:
    """Makes one request and runs the calls of its response; results are in call order."""
    run.next_turn()
    toolbox = await run.toolbox(rules.offer)
    for prepare in rules.prepare:
        prepare(run, toolbox)
    request = await write_request(run, toolbox, final)
    emitter, plan = run.emitter, run.plan
    emitter.emit(RequestSent, len(request.messages), len(request.tools), final, run.spending.prefix.changed)
    closed = final or request.choice == "none"  # a call that is made anyway is refused
    observer = RoundReporter(emitter, plan.clock, plan.settings.schedule, run.futures)
    batch = run.batch(toolbox, observer, plan.on_approval)
    listener = Listener(run, toolbox, batch, observer, closed=closed, may_run=rules.may_run)
    try:
        async with batch:
            turn = await listen(run, request, listener)
            turn.closed = closed or not request.tools
            message = turn.message
            if message.text and (rules.unfinished or emitter.has_listeners):
                _finish_text(run, rules, turn, toolbox)
            if message.calls:
                run.state.add_calls(message, counts=not closed)
                numbers = [listener.number(call) for call in message.calls]
                observer.detected(message.calls, numbers, run.account.request_cost)
                run.drop_earlier(observer)
                for bind in rules.bind:
                    await bind(run, listener.prepared, toolbox)
                prepared = _plan_round(run, rules, toolbox, message.calls, listener)
                for check in rules.check_calls:
                    await check(run, prepared)
                turn.stop = await _run_calls(run, rules, batch, prepared, prepared, {}, turn.verdict)
                observer.drop_loose(NOT_IN_MESSAGE)
            else:
                batch.abandon()
                observer.drop_loose(NOT_ASKED_AGAIN)
                run.drop_earlier(observer)
    except BaseException as error:
        _leave_valid(run, batch, observer, listener, error)
        raise
    if not message.calls:
        turn.stop = turn.stop or "answered"
        for hear in rules.heard:
            hear(run, turn)
    elif turn.stop != "waiting":
        observer.ended(run.account.round_cost)
    return turn


def _finish_text(run: Run, rules: Rules, turn: Turn, toolbox: Toolbox) -> None:
    message = turn.message
    if not message.calls:
        for unfinished in rules.unfinished:
            turn.unfinished = turn.unfinished or unfinished(run, turn, toolbox)
    if run.emitter.has_listeners:
        final = not (message.calls or turn.unfinished)
        run.emitter.emit(TextFinished, message.text, final, run.account.request_cost)


def _plan_round(
    run: Run, rules: Rules, toolbox: Toolbox, calls: Sequence[ToolCall], listener: Listener
) -> list[Prepared]:
    """The entry of each call, in call order, and which calls may not run."""
    planned: list[Prepared] = []
    refusals = listener.refusals
    for place, call in enumerate(calls):
        prepared = listener.prepared.get(call.index)
        if prepared is None or prepared.call is not call:
            prepared = run.prepare(call, toolbox)
            prepared.number = listener.number(call)
        why = ""
        for refuse in refusals:
            why = why or refuse(prepared, place)
        for refuse in rules.in_message:
            why = why or refuse(run, prepared, planned)
        prepared.refusal = why or prepared.refusal
        planned.append(prepared)
    number_identical(planned)
    run.mark_uncertain(planned)
    run.account.take_calls(len(calls))
    return planned


async def _run_calls(
    run: Run,
    rules: Rules,
    batch: Batch,
    prepared: Sequence[Prepared],
    calls: Sequence[Prepared],
    decisions: Decisions,
    verdict: Verdict | None,
) -> StopReason | None:
    """Answers every call in the transcript; or, if some wait for an outside decision, all the others. `calls` are
    all of the message, which may have results already."""
    earlier = run.transcript.answered
    results = await batch.seal(prepared, decisions)
    took = batch.order.seconds()
    if len(prepared) > 1 and run.plan.settings.schedule is Schedule.EAGER:
        run.plan.kept.order_hint.note(prepared, took)
    run.add_results(prepared, results, took, calls)
    if earlier and run.transcript.closed:
        run.state.order_calls([each.call for each in calls])
    done = Round(calls, earlier, results, batch, verdict)
    for rule in rules.end_round if batch.out_of_time else rules.end_round + rules.go_on:
        if (stop := rule(run, done)) is not None:
            return stop
    return None


async def finish_round(run: Run, rules: Rules, decisions: Decisions | None) -> StopReason | None:
    """Runs the calls that a run was waiting for, with the decisions about them; or, without decisions, the open
    calls of a given history."""
    run.emitter.turn = max(run.state.used.requests - 1, 0)
    toolbox = await run.toolbox(rules.offer)
    for prepare in rules.prepare:
        prepare(run, toolbox)
    message = run.transcript.messages[-1]
    calls = [run.prepare(call, toolbox) for call in message.calls] if isinstance(message, Assistant) else []
    number_identical(calls)
    run.mark_uncertain(calls)
    for recall in rules.recall:
        await recall(run, calls)
    waiting = {call.id for call in run.transcript.open}
    prepared = [each for each in calls if each.call.id in waiting]
    observer = RoundReporter(run.emitter, run.plan.clock, run.plan.settings.schedule, run.futures)
    numbers = {each.call.id: _renumber(run, each, observer) for each in prepared}
    observer.reopen([*numbers.values()])
    if decisions is None:
        for check in rules.check_calls:
            await check(run, prepared)
    # If only some calls are answered, the rest keeps waiting; without a handler it would be denied.
    waits = None if decisions is None else _keep_waiting
    batch = run.batch(toolbox, observer, run.plan.on_approval or waits)
    try:
        async with batch:
            stop = await _run_calls(run, rules, batch, prepared, calls, decisions or {}, None)
    except BaseException as error:
        for result in batch.settle(run.transcript.open, lambda call: numbers[call.id], error):
            run.transcript.answer(result)
        batch.abandon(BROKE_OFF)
        raise
    if stop != "waiting":
        observer.ended(run.account.round_cost)
    return stop


def _leave_valid(run: Run, batch: Batch, observer: RoundReporter, listener: Listener, error: BaseException) -> None:
    """The run ends here. What was received before a cancellation is kept, and every call gets its result."""
    if isinstance(error, asyncio.CancelledError) and run.transcript.closed:
        message = listener.shown_message()
        if message.text or message.calls:
            run.transcript.add(message)
            run.cut_off = message.text
    run.voided = bool(listener.shown_message().text)
    calls = run.transcript.open
    observer.place(map(listener.number, calls))
    for result in batch.settle(calls, listener.number, error):
        run.transcript.answer(result)
    batch.abandon(BROKE_OFF)
    observer.drop_loose(BROKE_OFF)


def _keep_waiting(call: ToolCall) -> Approval:
    return Wait()


def _renumber(run: Run, prepared: Prepared, observer: RoundReporter) -> int:
    """The number of an open call of the history: its old one, unless its process died while it ran."""
    old = run.number_before(prepared.call)
    if old is not None and not run.past.had_started(old):
        prepared.number = old
        return old
    prepared.number = observer.written(prepared.call)
    observer.place([prepared.number])
    if old is not None:
        observer.adopted(prepared, old)
    return prepared.number
