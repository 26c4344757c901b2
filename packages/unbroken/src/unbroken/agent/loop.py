"""The loop: asks the model until there is an answer. `rounds` makes each request and runs the calls of its response.

What a run may have besides is decided by the rules of its agent (`rules`), which are asked here and named nowhere.
Whatever happens, the transcript is valid when `play` returns: every call in it has its result, unless the run waits for
one.
"""

from __future__ import annotations

import asyncio

from unbroken.agent.limits import StopReason
from unbroken.agent.rounds import Decisions, finish_round, play_round
from unbroken.agent.rules.composing import Rules, rules_of
from unbroken.agent.rules.endings import end_vetoed, end_with_own_text, end_with_text
from unbroken.agent.run import Run
from unbroken.agent.turns import Again, Ending, Turn
from unbroken.errors import Vetoed
from unbroken_wires.deltas import Verdict
from unbroken_wires.messages import Assistant

FINAL_REQUESTS = 2
"""How often the model is asked for a last text."""


async def play(run: Run, decisions: Decisions | None = None) -> Ending:
    """Runs rounds until the model answers, or until no more calls are allowed: then it makes a final request."""
    rules = rules_of(run)
    try:
        for begin in rules.begin:
            await begin(run)
        stop = run.state.counters.stop
        if not run.transcript.closed:
            stop, rules = await _finish_calls(run, rules, decisions)
        while True:
            for limit in rules.limit:
                stop = stop or limit(run)
            for deliver in rules.deliver:
                stop = stop or await deliver(run)
            if stop is not None:
                ending = await _end(run, rules, stop)
                break
            turn = await play_round(run, rules)
            run.account.extra = 0.0
            turn.stop = await _held(run, rules, turn)
            if turn.message.calls:
                stop = turn.stop
                for change in rules.change:
                    stop = await change(run, stop)
                    rules = rules_of(run)
            elif turn.stop == "answered":
                if (ending := await _judge_answer(run, rules, turn, "answered")) is not None:
                    break
            elif turn.stop is not None:
                ending = await end_with_text(run, turn.stop, turn.message.text, rules.leave)
                break
    except Vetoed as error:
        ending = end_vetoed(run, error)
    except BaseException as error:
        for close in rules.close:
            await close(run, error)
        raise
    for close in rules.close:
        await close(run, None)
    return ending


async def _finish_calls(run: Run, rules: Rules, decisions: Decisions | None) -> tuple[StopReason | None, Rules]:
    """The history ends in open calls. Their results come before the prompt."""
    calling = run.transcript.messages[-1]
    stop = await finish_round(run, rules, decisions)
    if isinstance(calling, Assistant):
        stop = await _held(run, rules, Turn(calling, Verdict("whole"), stop))
    for change in rules.change:
        stop = await change(run, stop)
    if stop != "waiting":
        run.state.add_question()
    return stop, rules_of(run)


async def _held(run: Run, rules: Rules, turn: Turn) -> StopReason | None:
    """Why no round may follow, unless the answer has to wait for something."""
    stop = turn.stop
    if stop == "answered":
        for hold in rules.hold:
            stop = None if await hold(run, turn) else stop
    return stop


async def _judge_answer(run: Run, rules: Rules, turn: Turn, stop: StopReason) -> Ending | None:
    """Is it the answer? Otherwise the model has to be asked again."""
    for judge in rules.judge:
        decided = judge(run, turn)
        if isinstance(decided, Again):
            return run.state.ask_again(turn.message, decided)
        if decided is not None:
            end_with_own_text(run, decided.text, stop)
            return Ending(decided.text, stop, turn.verdict.finish)
    for check in rules.check_answer:
        if (again := await check(run, turn)) is not None:
            return run.state.ask_again(turn.message, again)
    run.transcript.add(turn.message)
    run.judged.output += turn.value
    text = run.plan.text_of(turn.value[0]) if turn.value else turn.message.text
    return Ending(text, stop, turn.verdict.finish)


async def _end(run: Run, rules: Rules, stop: StopReason) -> Ending:
    for settle in rules.settle:
        await settle(run, stop)
    return _ending(run, rules, stop) or await _give_final_answer(run, rules, stop)


def _ending(run: Run, rules: Rules, stop: StopReason) -> Ending | None:
    for end in rules.ending:
        if (ending := end(run, stop)) is not None:
            return ending
    return None


async def _give_final_answer(run: Run, rules: Rules, stop: StopReason) -> Ending:
    """No more calls are allowed. A call made anyway is refused, and one more request asks the model for text."""
    said = ""
    run.state.counters.stop = stop
    try:
        async with asyncio.timeout(run.account.limits.final_seconds):
            for _ in range(FINAL_REQUESTS):
                turn = await play_round(run, rules, final=True)
                text = turn.message.text.strip()
                said = text or said
                ending = _ending(run, rules, stop)
                if ending is None and text and not turn.message.calls:
                    ending = await _judge_answer(run, rules, turn, stop)
                if ending is not None:
                    return ending
                said = "" if run.judged.refused else said
                run.state.counters.nudge = True
    except TimeoutError:
        pass
    return await end_with_text(run, stop, said, rules.leave)
