"""The loop: asks the model until there is an answer. `rounds` makes each request and runs the calls of its response.

What a run may have besides is decided by the rules of its agent (`rules`), which are asked here and named nowhere.
Whatever happens, the transcript is valid when `play` returns: every call in it has its result, unless the run waits for
one.
"""

from __future__ import annotations

import asyncio

from unbroken.agent.limits import StopReason
from unbroken.agent.response_reader import Turn
from unbroken.agent.rounds import Decisions, finish_round, play_round
from unbroken.agent.rules.composing import rules_of
from unbroken.agent.rules.endings import end_vetoed, end_with_own_text, end_with_text
from unbroken.agent.rules.questions import Instead
from unbroken.agent.run import Again, Ending, Run
from unbroken.errors import Vetoed

FINAL_REQUESTS = 2
"""How often the model is asked for a last text."""


async def play(run: Run, decisions: Decisions | None = None) -> Ending:
    """Runs rounds until the model answers, or until no more calls are allowed: then it makes a final request."""
    loop = _Loop(run)
    try:
        ending = await loop.play(decisions)
    except Vetoed as error:
        ending = end_vetoed(run, error)
    except BaseException as error:
        await loop.close(error)
        raise
    await loop.close(None)
    return ending


class _Loop:
    """One run and the rules of the agent that it has now."""

    __slots__ = ("_rules", "_run")

    def __init__(self, run: Run) -> None:
        self._run = run
        self._rules = rules_of(run)

    async def play(self, decisions: Decisions | None) -> Ending:
        run = self._run
        for begin in self._rules.begin:
            await begin(run)
        stop = run.stop
        if not run.transcript.closed:
            stop = await self._change(await finish_round(run, self._rules, decisions))
            if stop != "waiting":
                run.add_question()
        while stop is None and (stop := await self._before_round()) is None:
            turn = await play_round(run, self._rules)
            run.account.extra = 0.0
            if turn.message.calls:
                stop = await self._change(None if turn.stop == "answered" and await self._held(turn) else turn.stop)
            elif turn.stop is not None:
                return await end_with_text(run, turn.stop, turn.message.text, self._rules.leave)
            elif not await self._held(turn) and (ending := await self._judge(turn, "answered")) is not None:
                return ending
        return await self._end(stop)

    async def close(self, error: BaseException | None) -> None:
        for close in rules_of(self._run).close:
            await close(self._run, error)

    async def _change(self, stop: StopReason | None) -> StopReason | None:
        for change in self._rules.change:
            stop = await change(self._run, stop)
            self._rules = rules_of(self._run)
        return stop

    async def _before_round(self) -> StopReason | None:
        for limit in self._rules.limit:
            if (stop := limit(self._run)) is not None:
                return stop
        for deliver in self._rules.deliver:
            if (stop := await deliver(self._run)) is not None:
                return stop
        return None

    async def _held(self, turn: Turn) -> bool:
        """Does something come before this answer?"""
        for hold in self._rules.hold:
            if await hold(self._run, turn):
                return True
        return False

    async def _judge(self, turn: Turn, stop: StopReason) -> Ending | None:
        """Is it the answer? Otherwise the model has to be asked again."""
        run = self._run
        for judge in self._rules.judge:
            match judge(run, turn):
                case Again() as again:
                    return run.ask_again(turn.message, again)
                case Instead(text):
                    end_with_own_text(run, text, stop)
                    return Ending(text, stop, turn.verdict.finish)
                case None:
                    pass
        for check in self._rules.check_answer:
            if (again := await check(run, turn)) is not None:
                return run.ask_again(turn.message, again)
        run.transcript.add(turn.message)
        run.output += turn.value
        text = run.plan.text_of(turn.value[0]) if turn.value else turn.message.text
        return Ending(text, stop, turn.verdict.finish)

    async def _end(self, stop: StopReason) -> Ending:
        run = self._run
        for settle in self._rules.settle:
            await settle(run, stop)
        return self._ending(stop) or await self._give_final_answer(stop)

    def _ending(self, stop: StopReason) -> Ending | None:
        for end in self._rules.ending:
            if (ending := end(self._run, stop)) is not None:
                return ending
        return None

    async def _give_final_answer(self, stop: StopReason) -> Ending:
        """No more calls are allowed. A call made anyway is refused, and one more request asks the model for text."""
        run, said = self._run, ""
        run.stop = stop
        try:
            async with asyncio.timeout(run.account.limits.final_seconds):
                for _ in range(FINAL_REQUESTS):
                    turn = await play_round(run, self._rules, final=True)
                    said = turn.message.text.strip() or said
                    if (ending := self._ending(stop)) is not None:
                        return ending
                    speaks = not turn.message.calls and turn.message.text.strip()
                    if speaks and (ending := await self._judge(turn, stop)) is not None:
                        return ending
                    said = "" if run.refused else said
                    run.nudge = True
        except TimeoutError:
            pass
        return await end_with_text(run, stop, said, self._rules.leave)
