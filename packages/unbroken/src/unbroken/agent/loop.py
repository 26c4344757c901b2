"""The loop: `play` asks the model until there is an answer, `play_round` asks once and runs the calls of that response.

Only `play_round` sees both the stream and the tools: it reads the response (`response_reader`) and runs its calls.
Provider differences are handled by the model, the start of calls by the `Batch`, and limits by the `Account`. Whatever
happens, the transcript is valid when these functions return: every call in it has its result, unless the run waits for
one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from unbroken.agent import background
from unbroken.agent.announced_calls import announces
from unbroken.agent.checking import check_client_calls, check_prompt, checked_output, raise_broken, refuse_prompt
from unbroken.agent.emitter import RoundReporter
from unbroken.agent.handoffs import change_agent, refuse_handoff
from unbroken.agent.limits import REMINDER, REPEATED, StopReason
from unbroken.agent.outgoing import write_request
from unbroken.agent.output import ANSWER, CUT_OFF, invalid
from unbroken.agent.prompts import ALL_FAILED, BUDGET_EXHAUSTED, FINAL_REFUSED, NO_ANSWER
from unbroken.agent.response_reader import BROKE_OFF, Listener, Turn, listen
from unbroken.agent.run import NUDGES, CallRecord, Ending, Run
from unbroken.errors import AnswerInvalid, ChainBroken, PromptVetoed, Vetoed
from unbroken.events import RequestSent, TextAdded, TextFinished, TextReplaced
from unbroken.tools.approval import Approval, Wait
from unbroken.tools.caller import Prepared, not_executed, note, number_identical, ran_and_failed
from unbroken.tools.entry import EARLIER_FAILED
from unbroken.tools.execution import NOT_ASKED_AGAIN, NOT_IN_MESSAGE, Batch
from unbroken.tools.results import Retry
from unbroken.tools.schedule import Schedule
from unbroken.tools.schema import ArgumentsDoNotFit
from unbroken.tools.toolbox import Toolbox
from unbroken_wires.deltas import Verdict
from unbroken_wires.messages import Assistant, ToolCall, ToolResult, User

Decisions: TypeAlias = Mapping[str, Approval | ToolResult]
"""Outside decisions about calls that waited, by call id."""

NO_MORE_RETRIES = "not executed: `{name}` has asked for a retry {count}"

UNACCEPTED = "the run ended ({stop}) without an answer that its checks accept: {why}"

MOST_EMPTY_ANSWERS = 3
"""After this many empty answers in a row, those that a `RetryingModel` has repeated included, there is no answer."""

PAUSES = 16
"""How often a provider may pause one answer."""


async def play(run: Run, decisions: Decisions | None = None) -> Ending:
    """Runs rounds until the model answers, or until no more calls are allowed: then it makes a final request."""
    try:
        ending = await _play(run, decisions)
    except Vetoed as error:
        for call in run.transcript.open:  # of a history whose prompt was refused
            run.transcript.answer(not_executed(call, str(error)))
        if isinstance(error, PromptVetoed):
            refuse_prompt(run, error)
        _add_question(run)
        ending = _end_with_own_text(run, str(error), "vetoed")
    except BaseException as error:
        await background.end(run, error)
        raise
    if run.futures is not None:
        await background.end(run)
    return ending


async def _play(run: Run, decisions: Decisions | None) -> Ending:
    if run.plan.check_input is not None:
        await check_prompt(run)
    stop = run.stop
    if not run.transcript.closed:
        stop = await finish_round(run, decisions)
        if stop is None and run.plan.settings.handoffs:
            await change_agent(run)
        if stop != "waiting":
            _add_question(run)
    while stop is None and (stop := run.limit()) is None:
        if run.futures is not None and (stop := await background.deliver(run)) is not None:
            break
        turn = await play_round(run)
        run.account.extra = 0.0
        if run.vetoed is not None:  # for a call that the answer does not have after a restart
            run.voided = bool(turn.message.text)
            raise_broken(run)
        if turn.message.calls:
            stop = turn.stop if turn.stop != "answered" else await background.accept_output(run)
            if stop is None and run.plan.settings.handoffs:
                await change_agent(run)
        elif turn.stop is not None:
            return await _end_with_text(run, turn.stop, turn.message.text)
        elif not (run.awaits_results and await background.wait_for_first(run, turn)) and await _is_answer(run, turn):
            return _give(run, turn, "answered")
    return await conclude(run, stop)


def _add_question(run: Run) -> None:
    """The prompt follows the results of the open calls of the given history."""
    if run.question is not None:
        run.transcript.add(run.question)
        run.question = None


async def conclude(run: Run, stop: StopReason) -> Ending:
    await background.settle(run, stop)
    if stop == "waiting":
        return Ending("", stop, pending=run.pending)
    if run.output:
        return _give_output(run)
    if not run.plan.settings.policy.final_answer and run.plan.output is None:
        return Ending("", stop, cut_off=True)
    if stop == "tool_failure" and run.plan.settings.policy.on_all_failed == "stop":
        return _end_with_own_text(run, ALL_FAILED, stop)
    return await give_final_answer(run, stop)


async def give_final_answer(run: Run, stop: StopReason) -> Ending:
    """No more calls are allowed. A call made anyway is refused, and one more request asks the model for text."""
    said = ""
    run.stop = stop
    try:
        async with asyncio.timeout(run.account.limits.final_seconds):
            for _ in range(2):
                turn = await play_round(run, final=True)
                said = turn.message.text.strip() or said
                _raise_refusal(run, turn)
                if run.output:
                    return _give_output(run, stop)
                if not turn.message.calls and turn.message.text.strip() and await _is_answer(run, turn):
                    return _give(run, turn, stop)
                said = "" if run.refused else said
                run.nudge = True
    except TimeoutError:
        pass
    if run.refused:
        raise AnswerInvalid(UNACCEPTED.format(stop=stop, why=run.refused))
    return await _end_with_text(run, stop, said)


async def play_round(run: Run, final: bool = False) -> Turn:
    """Makes one request and runs the calls of its response; results are in call order."""
    run.next_turn()
    toolbox = await run.toolbox()
    background.open_futures(run, toolbox)
    if run.plan.write_system is not None:
        await run.write_system(toolbox)
    request = await write_request(run, toolbox, final)
    run.emitter.emit(RequestSent, len(request.messages), len(request.tools), final, run.prefix.changed)
    closed = final or request.choice == "none"  # a call that is made anyway is refused
    observer = RoundReporter(run.emitter, run.plan.clock, run.plan.settings.schedule, run.futures)
    batch = run.batch(toolbox, observer, run.plan.on_approval)
    listener = Listener(run, toolbox, batch, observer, closed)
    try:
        async with batch:
            turn = await listen(run, request, listener)
            message = turn.message
            if not (message.calls or closed or _is_json(run, message)) and request.tools and run.may_nudge:
                turn.announces = announces(message.text, toolbox.names)
            if message.text and run.emitter.has_listeners:
                final = not (message.calls or turn.announces or run.awaits_results)
                run.emitter.emit(TextFinished, message.text, final, run.account.request_cost)
            if not message.calls:
                batch.abandon()
                observer.drop_loose(NOT_ASKED_AGAIN)
                run.drop_earlier(observer)
                return turn
            run.nudge, run.empty_answers = False, 0
            run.transcript.add(message)
            run.account.rounds += not closed  # a refused request is not a round
            numbers = [listener.number(call) for call in message.calls]
            observer.detected(message.calls, numbers, run.account.request_cost)
            run.drop_earlier(observer)
            if run.futures is not None:
                await background.wait_for_approvable(run, listener.prepared.values())
            prepared = _plan_round(run, toolbox, message.calls, listener, closed)
            if run.plan.client_checks:
                await check_client_calls(run, prepared)
            stop = await _run_calls(run, batch, prepared, {}, turn.verdict)
            observer.drop_loose(NOT_IN_MESSAGE)
    except BaseException as error:
        _leave_valid(run, batch, observer, listener, error)
        raise
    if stop != "waiting":
        observer.ended(run.account.round_cost)
    turn.stop = stop
    return turn


async def finish_round(run: Run, decisions: Decisions | None) -> StopReason | None:
    """Runs the calls that a run was waiting for, with the decisions about them; or, without decisions, the open calls
    of a given history."""
    run.emitter.turn = max(run.account.requests - 1, 0)
    toolbox = await run.toolbox()
    background.open_futures(run, toolbox)
    message = run.transcript.messages[-1]
    everything = [run.prepare(call, toolbox) for call in message.calls] if isinstance(message, Assistant) else []
    number_identical(everything)
    run.mark_uncertain(everything)
    await _recall_output(run, everything)
    waiting = {call.id for call in run.transcript.open}
    prepared = [each for each in everything if each.call.id in waiting]
    observer = RoundReporter(run.emitter, run.plan.clock, run.plan.settings.schedule, run.futures)
    numbers = {each.call.id: _renumber(run, each, observer) for each in prepared}
    observer.reopen([*numbers.values()])
    if decisions is None and run.plan.client_checks:
        await check_client_calls(run, prepared)
    # If only some calls are answered, the rest keeps waiting; without a handler it would be denied.
    waits = None if decisions is None else _keep_waiting
    batch = run.batch(toolbox, observer, run.plan.on_approval or waits)
    if run.plan.settings.on_error == "finish" and any(map(ran_and_failed, run.transcript.answered)):
        batch.halt(EARLIER_FAILED)
    try:
        async with batch:
            stop = await _run_calls(run, batch, prepared, decisions or {})
    except BaseException as error:
        for result in batch.settle(run.transcript.open, lambda call: numbers[call.id], error):
            run.transcript.answer(result)
        batch.abandon(BROKE_OFF)
        raise
    if stop != "waiting":
        observer.ended(run.account.round_cost)
    return "tool_failure" if stop is None and _ends_the_rounds(run, everything) else stop


def _ends_the_rounds(run: Run, calls: Sequence[Prepared]) -> bool:
    """Does a call that cannot run end the rounds? A wrong typed answer is corrected instead."""
    return run.plan.settings.on_error == "finish" and any(each.unfit and each.call.name != ANSWER for each in calls)


def _renumber(run: Run, prepared: Prepared, observer: RoundReporter) -> int:
    """The number of an open call of the history: its old one, unless its process died while it ran."""
    old = run.number_before(prepared.call)
    if old is not None and not (run.earlier is not None and run.earlier.had_started(old)):
        prepared.number = old
        return old
    prepared.number = observer.written(prepared.call)
    observer.place([prepared.number])
    if old is not None:
        observer.adopted(prepared, old)
    return prepared.number


def _plan_round(
    run: Run, toolbox: Toolbox, calls: Sequence[ToolCall], listener: Listener, closed: bool
) -> list[Prepared]:
    """The entry of each call, in call order, and which calls may not run."""
    allowed = run.account.calls_left
    planned: list[Prepared] = []
    for place, call in enumerate(calls):
        prepared = listener.prepared.get(call.index)
        if prepared is None or prepared.call is not call or (prepared.asks and prepared.references):
            prepared = run.prepare(call, toolbox)
            prepared.number = listener.number(call)
        answers = run.plan.output is not None and call.name == ANSWER
        if closed and not answers:
            prepared.refusal = FINAL_REFUSED[run.plan.language]
        elif allowed is not None and place >= allowed and not answers:
            prepared.refusal = BUDGET_EXHAUSTED
        elif run.repetition.verdict(prepared) == "refuse":
            prepared.refusal = REPEATED
        elif run.retries and run.out_of_retries(call.name):
            prepared.refusal = NO_MORE_RETRIES.format(name=call.name, count=_times(run.retries[call.name]))
        elif run.plan.settings.handoffs and (refusal := refuse_handoff(run, call.name, planned)):
            prepared.refusal = refusal
        planned.append(prepared)
    number_identical(planned)
    run.mark_uncertain(planned)
    run.account.count_calls(len(calls) if allowed is None else min(len(calls), allowed))
    return planned


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


async def _run_calls(
    run: Run, batch: Batch, prepared: Sequence[Prepared], decisions: Decisions, verdict: Verdict | None = None
) -> StopReason | None:
    """Answers every call in the transcript; or, if some wait for an outside decision, all the others."""
    earlier = run.transcript.answered
    results = await batch.seal(prepared, decisions)
    answered = [result for result in results if result is not None]
    given = [*earlier, *answered]
    repetition, order = run.repetition, batch.order
    took = order.seconds()
    if len(prepared) > 1 and run.plan.settings.schedule is Schedule.EAGER:
        run.plan.kept.order_hint.note(prepared, took)
    for each, result, seconds in zip(prepared, results, took, strict=True):
        if result is not None:
            if not repetition.calm and repetition.verdict(each) == "remind":
                result = note(result, REMINDER.format(count=repetition.of(each)))
            run.transcript.answer(result if result.exception is None else replace(result, exception=None))
            if result.ended_as == "retry":
                run.retries[each.call.name] = run.retries.get(each.call.name, 0) + 1
            run.records.append(CallRecord(each.call, result, run.emitter.turn, seconds))
    if run.shared is not None:
        run.shared.end_round(prepared, results)
    repeated = not repetition.calm and any(repetition.verdict(each) == "refuse" for each in prepared)
    repetition.next_round(prepared)
    raise_broken(run)
    if len(answered) < len(results):
        run.wait_for(order)
        return "waiting"
    if run.output:
        return "answered"
    wrong = [] if run.plan.output is None or run.refused else [r for r in given if r.error and r.name == ANSWER]
    if wrong:
        cut = any(each.call.name == ANSWER and each.call.arguments is None for each in prepared)
        _correct(run, wrong[-1].text.removeprefix("Error: "), verdict if cut else None, wrong[-1].exception)
    if batch.out_of_time:
        return None  # the account reports it next
    if repeated:
        return "loop"
    if run.plan.settings.on_error == "finish" and (batch.failed or any(map(ran_and_failed, earlier))):
        return "tool_failure"
    if _ends_the_rounds(run, prepared):
        return "tool_failure"
    if run.plan.settings.policy.on_all_failed == "stop" and all(
        ran_and_failed(r) and r.outcome != "retry" for r in given
    ):
        return "tool_failure"
    return None


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


async def _is_answer(run: Run, turn: Turn) -> bool:
    """Adds an answer without calls to the history; returns false if another request is needed."""
    message, output = turn.message, run.plan.output
    if turn.verdict.meaning == "paused" and run.pauses < PAUSES:
        run.pauses += 1
        run.transcript.add(message)
        return False
    _raise_refusal(run, turn)
    if not message.text.strip() and not (run.server_calls is not None and run.server_calls.made_image()):
        run.empty_answers += 1
        if run.empty_answers < MOST_EMPTY_ANSWERS and run.nudges < NUDGES:
            run.nudge = True
            run.nudges += 1
            return False
        if output is not None or run.plan.settings.policy.empty_answer is None:
            raise _silent(run, turn)
        _end_with_own_text(run, run.plan.settings.policy.empty_answer, "answered")
        turn.message = Assistant(run.plan.settings.policy.empty_answer)
        return True
    run.empty_answers = 0
    run.nudge = False
    if turn.announces:
        run.nudges += 1
        run.transcript.add(message)
        run.transcript.add(User.of(run.nudge_text(message.text)))
        return False
    try:
        if output is None:
            if run.plan.check_output is not None:
                turn.message = await _checked_text(run, message)
        else:
            run.output.append(await _checked_value(run, output.read_text(message.text)))
    except Retry as error:
        run.transcript.add(message)
        run.transcript.add(User.of(str(error)))
        return False
    except ArgumentsDoNotFit as error:
        _correct(run, str(error), turn.verdict, error.__cause__)
        why = CUT_OFF if turn.verdict.meaning == "length" else str(error)
        run.transcript.add(message)
        run.transcript.add(User.of(output.correction(why) if output is not None else why))
        return False
    run.transcript.add(turn.message)
    return True


def _silent(run: Run, turn: Turn) -> ChainBroken:
    what = turn.verdict.reason or f"finish reason {turn.verdict.finish!r}"
    if turn.verdict.meaning == "length":
        what += "; raise `max_tokens`, its length limit"
    often = f"even after it was asked {_times(run.nudges)} to continue"
    return ChainBroken(f"`{run.plan.model.name}` gave an empty answer, {often}: {what}", tuple(run.verdicts))


async def _checked_value(run: Run, value: Any) -> Any:
    """The typed answer, as its checks have accepted it."""
    try:
        return await checked_output(run, value)
    except Vetoed:
        run.voided = True
        raise


async def _checked_text(run: Run, message: Assistant) -> Assistant:
    """The answer, with the text that its checks have accepted."""
    accepted = await _checked_value(run, message.text)
    if accepted is message.text:
        return message
    run.emitter.emit(TextReplaced, accepted)
    run.emitter.emit(TextFinished, accepted, True, run.account.request_cost)
    return Assistant(accepted, reasoning=message.reasoning)


def _is_json(run: Run, message: Assistant) -> bool:
    """Whether it is a structured answer, which announces nothing."""
    return run.plan.output is not None and message.text.lstrip().startswith(("{", "[", "```"))


async def _checked_rest(run: Run, stop: StopReason, said: str) -> str:
    """The text of a run that has reached a limit, as its checks leave it."""
    if not said or run.plan.check_output is None:
        return said
    try:
        accepted: str = await checked_output(run, said)
    except Retry as error:
        raise AnswerInvalid(UNACCEPTED.format(stop=stop, why=error)) from None
    except Vetoed:
        run.voided = True
        raise
    if accepted is not said:
        run.emitter.emit(TextReplaced, accepted)
        run.emitter.emit(TextFinished, accepted, True, run.account.request_cost)
    return accepted


async def _recall_output(run: Run, calls: Sequence[Prepared]) -> None:
    """A structured answer that was accepted beside waiting calls is still valid."""
    accepted = {result.call_id for result in run.transcript.answered if not result.error}
    for each in calls:
        if run.plan.output is not None and each.call.name == ANSWER and each.call.id in accepted:
            run.output.append(await checked_output(run, run.plan.output.read(each.call.arguments or {})))


def _keep_waiting(call: ToolCall) -> Approval:
    return Wait()


def _correct(run: Run, why: str, verdict: Verdict | None, cause: BaseException | None) -> None:
    """The typed answer does not fit. Raises if a correction was requested before."""
    if not run.corrections:
        run.corrections += 1
        return
    if verdict is not None and verdict.meaning == "length":
        most = run.plan.settings.sampling.max_tokens
        limit = "" if most is None else f" of {most} tokens"
        why = f"it was cut off at its length limit{limit}; raise `max_tokens`, or ask for a shorter answer"
    raise AnswerInvalid(invalid(run.plan.model.name, why)) from cause


def _raise_refusal(run: Run, turn: Turn) -> None:
    """A refusal is no answer of the requested type, and asking for a correction does not change it."""
    message, verdict = turn.message, turn.verdict
    output = run.plan.output
    if output is None or output.free_text or verdict.meaning != "refused" or message.calls:
        return
    text = message.text.strip()
    if text:
        run.transcript.add(message)
    words = text or verdict.reason or f"it gave no text (finish reason {verdict.finish!r})"
    raise AnswerInvalid(f"`{run.plan.model.name}` refused to answer: {words}")


def _give(run: Run, turn: Turn, stop: StopReason) -> Ending:
    if run.output and run.plan.output is not None:
        return Ending(run.plan.output.text_of(run.output[0]), stop, turn.verdict.finish)
    return Ending(turn.message.text, stop, turn.verdict.finish)


async def _end_with_text(run: Run, stop: StopReason, said: str) -> Ending:
    """A limit is reached. The text so far is the answer, if its checks accept it; if there is none, a message of ours
    is."""
    output = run.plan.output
    if output is not None and not (output.free_text and (said or run.cut_off)):
        raise AnswerInvalid(f"the run ended ({stop}) without an answer of the requested type")
    kept = bool(run.cut_off) and isinstance(run.transcript.messages[-1], Assistant)
    if kept and run.plan.check_output is None:
        run.output += [run.cut_off] if output is not None else []
        return Ending(run.cut_off, stop, cut_off=True)  # it is in the history already
    if kept:
        run.transcript.take_back()
        said = run.cut_off
    said = await _checked_rest(run, stop, said or run.cut_off)
    if not said:
        return _end_with_own_text(run, NO_ANSWER[run.plan.language].format(reason=stop), stop)
    run.transcript.add(Assistant(said))
    run.output += [said] if output is not None else []
    return Ending(said, stop, cut_off=True)


def _end_with_own_text(run: Run, text: str, stop: StopReason) -> Ending:
    run.transcript.add(Assistant(text))
    if text:
        run.emitter.emit(TextReplaced if run.voided else TextAdded, text)
        run.emitter.emit(TextFinished, text, True, run.account.request_cost)
    return Ending(text, stop, cut_off=True)


def _give_output(run: Run, stop: StopReason = "answered") -> Ending:
    assert run.plan.output is not None
    return Ending(run.plan.output.text_of(run.output[0]), stop)
