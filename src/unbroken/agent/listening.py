"""One response, heard to its end: its text is said, its calls go to the batch as they become complete, and what broke
off and comes again is put together with what was heard before. Rounds and limits are the business of `loop`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace

from unbroken.agent.heard import Heard
from unbroken.agent.limits import StopReason
from unbroken.agent.prompts import TIME_IS_UP
from unbroken.agent.run import Run
from unbroken.deltas import (
    AttemptFailed,
    CallOpened,
    CallReady,
    CallSpoiled,
    CallWithdrawn,
    Delta,
    Ended,
    ReasoningDelta,
    Restarted,
    TextDelta,
    UsageReported,
)
from unbroken.errors import ChainBroken, ProviderError, UnbrokenError
from unbroken.events import CallsIgnored, LimitReached, ReasoningAdded, ReasoningReplaced, TextAdded, TextReplaced
from unbroken.messages import Assistant, Request, Usage
from unbroken.models.model import closing, reads
from unbroken.tools.calling import in_words, prepare
from unbroken.tools.execution import Batch
from unbroken.tools.toolbox import Toolbox
from unbroken.trajectory.companion import Ear, open_ear
from unbroken.verdicts import Verdict

STILL = nullcontext()


@dataclass(slots=True)
class Turn:
    """What one request came to. `stop` says why no round may follow."""

    message: Assistant
    verdict: Verdict
    stop: StopReason | None = None
    announces: bool = False
    """It announces a call that is not there."""


async def listen(run: Run, request: Request, toolbox: Toolbox, batch: Batch, heard: Heard, closed: bool) -> Turn:
    """The response to its end. Calls go to the batch as they become complete."""
    plan, voice, allowed = run.plan, run.voice, run.account.calls_left
    loud = voice.heard
    usage: Usage | None = None
    ended: Ended | None = None
    limit = None if request.final or run.account.deadline is None else asyncio.timeout(run.time_left())
    ear = open_ear(run.companions, request) if run.companions else None
    try:
        arriving = reads(plan.model, request)
        async with closing(arriving) if limit is ear is None else _heard_within(limit, ear, arriving):
            async for deltas in arriving:
                for delta in deltas:
                    if ear is not None:
                        ear(delta)
                    # Not `match`: of thousands of deltas nearly all are of the first few kinds.
                    if isinstance(delta, TextDelta):
                        heard.text.append(delta.text)
                        if loud:
                            voice.say_piece(TextAdded, delta.text)
                    elif isinstance(delta, CallReady):
                        call = delta.call
                        if call.index and not plan.several_calls:
                            continue
                        heard.calls[call.index] = call
                        if closed:
                            continue
                        prepared = prepare(call, toolbox)
                        if run.repetition.verdict(prepared) != "refuse" and (allowed is None or call.index < allowed):
                            heard.prepared[call.index] = prepared
                            batch.submit(prepared)
                    elif isinstance(delta, CallOpened):
                        tool = toolbox.get(delta.name)
                        batch.open(delta.index, tool is not None and tool.effect == "read" and tool.key is None)
                    elif isinstance(delta, ReasoningDelta):
                        heard.reasoning.append(delta.text)
                        if loud:
                            voice.say_piece(ReasoningAdded, delta.text)
                    elif isinstance(delta, Ended):
                        ended = delta
                    elif isinstance(delta, UsageReported):
                        # Some report zeros: they do not know.
                        usage = delta.usage if delta.usage.total_tokens else usage
                    elif isinstance(delta, CallSpoiled):
                        heard.forget(delta.call.index)
                        batch.take_out(delta.call.index, f"not executed: {delta.call.problem}")
                    elif isinstance(delta, CallWithdrawn):
                        heard.forget(delta.index)
                        batch.take_out(delta.index, "it was no call of its own")
                    elif isinstance(delta, AttemptFailed):
                        if usage or heard.anything:
                            run.spend(usage or run.estimate(heard.received()))
                        usage = None
                        run.attempt_failed(delta.verdict, delta.wait, delta.elsewhere, len(heard.calls))
                    elif isinstance(delta, Restarted):
                        loud = False
                        heard.restart()
                        batch.restart()
    except TimeoutError as error:
        if limit is None or not limit.expired():
            raise ProviderError(f"model `{plan.model.name}` failed: {in_words(error)}") from error
        run.voice.say(LimitReached, "time_limit", run.account.limits.seconds)
        message = replace(heard.message(), calls=())
        run.spend(usage or run.estimate(message))
        return Turn(message, Verdict("unfinished", TIME_IS_UP), "time_limit")
    except UnbrokenError as error:
        error.verdicts = tuple(replace(verdict, turn=voice.turn) for verdict in error.verdicts)
        raise
    except Exception as error:
        raise ProviderError(f"model `{plan.model.name}` failed: {in_words(error)}") from error
    verdict = ended.verdict if ended else Verdict("whole")
    message = ended.message if ended and ended.message else heard.received()
    run.spend(usage or run.estimate(message))
    run.ended_with(verdict)
    if verdict.failed:
        raise ChainBroken(f"the answer of `{plan.model.name}` broke off: {verdict.reason}", tuple(run.verdicts))
    if heard.restarted:
        _say_the_rest(run, heard, message)
    if not plan.several_calls and len(message.calls) > 1:
        voice.say(CallsIgnored, [call.name for call in message.calls[1:]])
        message = replace(message, calls=message.calls[:1])
    return Turn(message, verdict)


@asynccontextmanager
async def _heard_within(
    limit: asyncio.Timeout | None, ear: Ear | None, arriving: AsyncIterator[Sequence[Delta]]
) -> AsyncGenerator[None]:
    async with limit or STILL, ear or STILL, closing(arriving):
        yield


def _say_the_rest(run: Run, heard: Heard, message: Assistant) -> None:
    """Of an answer that came a second time: what was not said yet, or all of it in place of what was."""
    run.fallback_used = True
    run.voided = not message.text.strip()
    text, reasoning = heard.still_to_say(message.text, message.reasoning)
    for rest, added, replaced in (
        (reasoning, ReasoningAdded, ReasoningReplaced),
        (text, TextAdded, TextReplaced),
    ):
        if rest.replaced or rest.text:
            run.voice.say(replaced if rest.replaced else added, rest.text)
