"""One response, heard to its end: its text is said, its calls go to the batch as they become complete, and what broke
off and comes again is put together with what was heard before. Rounds and limits are the business of `loop`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
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
from unbroken.messages import Assistant, Request, ToolCall, Usage
from unbroken.models.model import close, reads
from unbroken.tools.calling import in_words, prepare
from unbroken.tools.execution import Batch
from unbroken.tools.toolbox import Toolbox
from unbroken.trajectory.companion import Ear, open_ear
from unbroken.verdicts import Verdict


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
    plan, voice = run.plan, run.voice
    limit = None if request.final or run.account.deadline is None else asyncio.timeout(run.time_left())
    ear = open_ear(run.companions, request) if run.companions else None
    listener = _Listener(run, toolbox, batch, heard, closed, ear)
    try:
        if limit is None:
            await listener.hear(request)
        else:
            async with limit:
                await listener.hear(request)
    except TimeoutError as error:
        if limit is None or not limit.expired():
            raise ProviderError(f"model `{plan.model.name}` failed: {in_words(error)}") from error
        run.voice.say(LimitReached, "time_limit", run.account.limits.seconds)
        message = replace(heard.message(), calls=())
        run.spend_on(message, listener.usage)
        return Turn(message, Verdict("unfinished", TIME_IS_UP), "time_limit")
    except UnbrokenError as error:
        error.verdicts = tuple(replace(verdict, turn=voice.turn) for verdict in error.verdicts)
        raise
    except Exception as error:
        raise ProviderError(f"model `{plan.model.name}` failed: {in_words(error)}") from error
    ended = listener.ended
    verdict = ended.verdict if ended else Verdict("whole")
    message = ended.message if ended and ended.message else heard.received()
    run.spend_on(message, listener.usage)
    run.ended_with(verdict)
    if verdict.failed:
        raise ChainBroken(f"the answer of `{plan.model.name}` broke off: {verdict.reason}", tuple(run.verdicts))
    if heard.restarted:
        _say_the_rest(run, heard, message)
    if not plan.several_calls and len(message.calls) > 1:
        voice.say(CallsIgnored, [call.name for call in message.calls[1:]])
        message = replace(message, calls=message.calls[:1])
    return Turn(message, verdict)


class _Listener:
    """Does what the deltas of one response ask for, in their order."""

    __slots__ = ("_allowed", "_batch", "_closed", "_ear", "_heard", "_loud", "_run", "_toolbox", "ended", "usage")

    def __init__(
        self, run: Run, toolbox: Toolbox, batch: Batch, heard: Heard, closed: bool, ear: Ear | None = None
    ) -> None:
        self._run = run
        self._toolbox = toolbox
        self._batch = batch
        self._heard = heard
        self._closed = closed
        self._ear = ear
        self._loud = run.voice.heard
        self._allowed = run.account.calls_left
        self.usage: Usage | None = None
        self.ended: Ended | None = None

    async def hear(self, request: Request) -> None:
        arriving, ear = None, self._ear
        try:
            arriving = reads(self._run.plan.model, request)
            async for deltas in arriving:
                self._take(deltas)
        except BaseException as error:
            try:
                if arriving is not None:
                    await close(arriving)
            finally:
                if ear is not None:
                    ear.end(error)
            raise
        if ear is not None:
            ear.end(None)

    def _take(self, deltas: Sequence[Delta]) -> None:
        ear, heard, voice, loud = self._ear, self._heard, self._run.voice, self._loud
        spoken = loud and voice.has_ears
        if ear is not None:
            ear(deltas)
        elif loud and len(deltas) > 1:
            deltas = _joined(deltas)
        for delta in deltas:
            if isinstance(delta, TextDelta):
                heard.text.append(delta.text)
                if spoken:
                    voice.say_piece(TextAdded, delta.text)
                elif loud:
                    voice.next_seq += 1
            elif isinstance(delta, CallReady):
                self._take_call(delta.call)
            elif isinstance(delta, CallOpened):
                tool = self._toolbox.get(delta.name)
                self._batch.open(delta.index, tool is not None and tool.effect == "read" and tool.key is None)
            elif isinstance(delta, ReasoningDelta):
                heard.reasoning.append(delta.text)
                if spoken:
                    voice.say_piece(ReasoningAdded, delta.text)
                elif loud:
                    voice.next_seq += 1
            elif isinstance(delta, Ended):
                self.ended = delta
            else:
                self._take_other(delta)
                loud = self._loud
                spoken = spoken and loud

    def _take_call(self, call: ToolCall) -> None:
        run, index = self._run, call.index
        if index and not run.plan.several_calls:
            return
        self._heard.calls[index] = call
        if self._closed:
            return
        prepared = prepare(call, self._toolbox)
        if run.repetition.verdict(prepared) != "refuse" and (self._allowed is None or index < self._allowed):
            self._heard.prepared[index] = prepared
            self._batch.submit(prepared)

    def _take_other(self, delta: Delta) -> None:
        run, batch, heard = self._run, self._batch, self._heard
        match delta:
            case UsageReported(reported):
                self.usage = reported if reported.total_tokens else self.usage  # some report zeros: they do not know
            case CallSpoiled(call):
                heard.forget(call.index)
                batch.take_out(call.index, f"not executed: {call.problem}")
            case CallWithdrawn(index):
                heard.forget(index)
                batch.take_out(index, "it was no call of its own")
            case AttemptFailed(verdict, wait, elsewhere):
                if self.usage or heard.anything:
                    run.spend_on(heard.received(), self.usage)
                self.usage = None
                run.attempt_failed(verdict, wait, elsewhere, len(heard.calls))
            case Restarted():
                self._loud = False
                heard.restart()
                batch.restart()
            case _:
                pass  # half a call, say: nobody may act on it


def _joined(deltas: Sequence[Delta]) -> Sequence[Delta]:
    """Text that came together is said together. (Who records hears each piece for himself, and plays it again so.)"""
    joined: list[Delta] = []
    texts: list[str] = []
    for delta in deltas:
        if isinstance(delta, TextDelta):
            texts.append(delta.text)
            continue
        if texts:
            joined.append(TextDelta("".join(texts)))
            texts = []
        joined.append(delta)
    if texts:
        joined.append(TextDelta("".join(texts)))
    return joined


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
