"""One response, heard to its end: its text is said, its calls go to the batch as they become complete, and what broke
off and comes again is put together with what was heard before. Rounds and limits are the business of `loop`.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
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
    Ended,
    ReasoningDelta,
    Restarted,
    TextDelta,
    UsageReported,
)
from unbroken.errors import ChainBroken, ProviderError, UnbrokenError
from unbroken.events import CallsIgnored, LimitReached, ReasoningAdded, ReasoningReplaced, TextAdded, TextReplaced
from unbroken.messages import Assistant, Request, Usage
from unbroken.models.model import closing
from unbroken.tools.calling import in_words, prepare
from unbroken.tools.execution import Batch
from unbroken.tools.toolbox import Toolbox
from unbroken.trajectory.companion import open_ear
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
        async with limit or STILL, ear or STILL, closing(plan.model.stream(request)) as deltas:
            async for delta in deltas:
                if ear is not None:
                    ear(delta)
                match delta:
                    case TextDelta(text):
                        heard.text.append(text)
                        if loud:
                            voice.say_piece(TextAdded, text)
                    case CallOpened(index, name, _):
                        tool = toolbox.get(name)
                        batch.open(index, tool is not None and tool.effect == "read" and tool.key is None)
                    case CallReady(call):
                        if call.index and not plan.several_calls:
                            continue
                        heard.calls[call.index] = call
                        if closed:
                            continue
                        prepared = prepare(call, toolbox)
                        if run.repetition.verdict(prepared) != "refuse" and (allowed is None or call.index < allowed):
                            heard.prepared[call.index] = prepared
                            batch.submit(prepared)
                    case CallSpoiled(call):
                        heard.forget(call.index)
                        batch.take_out(call.index, f"not executed: {call.problem}")
                    case CallWithdrawn(index):
                        heard.forget(index)
                        batch.take_out(index, "it was no call of its own")
                    case ReasoningDelta(text):
                        heard.reasoning.append(text)
                        if loud:
                            voice.say_piece(ReasoningAdded, text)
                    case UsageReported(reported):
                        usage = reported if reported.total_tokens else usage  # some report zeros: they do not know
                    case Ended():
                        ended = delta
                    case AttemptFailed(verdict, wait, elsewhere):
                        if usage or heard.anything:
                            run.spend(usage or run.estimate(heard.received()))
                        usage = None
                        run.attempt_failed(verdict, wait, elsewhere, len(heard.calls))
                    case Restarted():
                        loud = False
                        heard.restart()
                        batch.restart()
                    case _:
                        pass  # half a call, say: nobody may act on it
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
