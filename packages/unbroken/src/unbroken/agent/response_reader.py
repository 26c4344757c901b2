"""Reads one response to its end: emits its text, passes its calls to the batch as they become complete, and joins a
broken answer with its retry. Rounds and limits are decided in `loop`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from unbroken.agent.emitter import RoundReporter
from unbroken.agent.prompts import TIME_IS_UP
from unbroken.agent.run import Run
from unbroken.agent.turns import Refuse, Turn
from unbroken.errors import ChainBroken, ProviderError, UnbrokenError, Vetoed
from unbroken.events import CallsIgnored, LimitReached, ReasoningAdded, ReasoningReplaced, TextAdded, TextReplaced
from unbroken.models.model import close, refuse_single
from unbroken.tools.caller import Prepared, in_words
from unbroken.tools.execution import Batch
from unbroken.tools.toolbox import Toolbox
from unbroken_wires.decoding.assembler import Shown
from unbroken_wires.deltas import (
    AttemptFailed,
    CallOpened,
    CallReady,
    CallSpoiled,
    CallWithdrawn,
    Delta,
    Ended,
    PartialResponse,
    ReasoningDelta,
    Restarted,
    ServerCallEnded,
    ServerCallOpened,
    ServerCallSeen,
    TextDelta,
    UsageReported,
    Verdict,
)
from unbroken_wires.messages import Assistant, Request, ToolCall, Usage

BROKE_OFF = "the answer broke off"
ONLY_ONE = "only one call at a time was asked for"
WITHDRAWN = "it was no call of its own"

_TEXTS = TextDelta, ReasoningDelta
_SEVERAL = list, tuple


async def listen(run: Run, request: Request, listener: Listener) -> Turn:
    """Reads the response to its end. Calls go to the batch as they become complete."""
    plan = run.plan
    limit = None if request.final or run.account.deadline is None else asyncio.timeout(run.time_left())
    try:
        if limit is None:
            await listener.read(request)
        else:
            async with limit:
                await listener.read(request)
    except TimeoutError as error:
        if limit is None or not limit.expired():
            raise ProviderError(f"model `{plan.model.name}` failed: {in_words(error)}") from error
        run.emitter.emit(LimitReached, "time_limit", run.account.limits.seconds)
        message, verdict = replace(listener.shown_message(), calls=()), Verdict("unfinished", TIME_IS_UP)
        run.spend_on(message, listener.usage, verdict)
        return Turn(message, verdict, "time_limit")
    except UnbrokenError as error:
        if isinstance(error, Vetoed) and listener.usage is not None:  # of an answer that a check has refused
            run.spend_on(listener.shown_message(), listener.usage, Verdict("unfinished", str(error)))
        error.verdicts = tuple(replace(verdict, turn=run.emitter.turn) for verdict in error.verdicts)
        raise
    except (Exception, SystemExit) as error:
        raise ProviderError(f"model `{plan.model.name}` failed: {in_words(error)}") from error
    verdict = listener.ended.verdict if listener.ended else Verdict("whole")
    message = listener.message()
    run.spend_on(message, listener.usage, verdict)
    run.ended_with(verdict)
    if verdict.failed:
        raise ChainBroken(f"the answer of `{plan.model.name}` broke off: {verdict.reason}", tuple(run.state.verdicts))
    listener.emit_rest(message)
    if not plan.settings.several_calls and len(message.calls) > 1:
        run.emitter.emit(CallsIgnored, [call.name for call in message.calls[1:]])
        for call in message.calls[1:]:
            listener.drop(call, ONLY_ONE)
        message = replace(message, calls=message.calls[:1])
    return Turn(message, verdict)


class Listener:
    """Handles the deltas of one response, in order."""

    __slots__ = (
        "_batch",
        "_closed",
        "_may_run",
        "_numbers",
        "_observer",
        "_refusals",
        "_response",
        "_run",
        "_shown",
        "_toolbox",
        "ended",
        "prepared",
        "usage",
    )

    def __init__(
        self,
        run: Run,
        toolbox: Toolbox,
        batch: Batch,
        observer: RoundReporter,
        *,
        closed: bool,
        may_run: Sequence[Callable[[Run, bool], Refuse | None]],
    ) -> None:
        self._run = run
        self._toolbox = toolbox
        self._batch = batch
        self._observer = observer
        self._closed = closed
        self._may_run = may_run
        self._refusals: list[Refuse] | None = None
        self._response = PartialResponse()
        shown = run.past.shown_of(run.emitter.turn)
        self._shown: tuple[Shown, Shown] | None = None if shown is None else (Shown(shown[0]), Shown(shown[1]))
        """The text and reasoning of a response that broke off. The retry is emitted at its end, when the difference is
        known."""
        self.prepared: dict[int, Prepared] = {}
        """Calls that are complete, by index."""
        self._numbers: dict[tuple[int, str], int] = {}
        """The numbers of calls, by index and id: a custom model may give all calls the same index."""
        self.usage: Usage | None = None
        self.ended: Ended | None = None

    async def read(self, request: Request) -> None:
        arriving, name = self._run.plan.ask(request), self._run.plan.model.name
        try:
            async for deltas in arriving:
                if not isinstance(deltas, _SEVERAL):
                    refuse_single(name, deltas)
                self._take(deltas)
        except BaseException:
            await close(arriving)
            raise

    def _take(self, deltas: Sequence[Delta]) -> None:
        texts: list[str] = []
        """Text of one kind that arrived together is emitted together."""
        kind: type[TextDelta | ReasoningDelta] = TextDelta
        for delta in deltas:
            if isinstance(delta, kind):
                texts.append(delta.text)
                continue
            if texts:
                self._take_text(kind, texts)
                texts = []
            if isinstance(delta, _TEXTS):
                kind = type(delta)
                texts.append(delta.text)
            elif isinstance(delta, CallReady):
                self._take_call(delta.call)
            elif isinstance(delta, CallOpened):
                tool = self._toolbox.get(delta.name)
                self._batch.open(delta.index, tool is not None and tool.effect == "read" and tool.key is None)
            elif isinstance(delta, Ended):
                self.ended = delta
                if delta.verdict.left_out:
                    self._run.note_left_out(delta.verdict)
            elif isinstance(delta, UsageReported):
                if delta.usage.total_tokens:  # some servers report zeros for unknown
                    self.usage = delta.usage
            else:
                self._take_other(delta)
        if texts:
            self._take_text(kind, texts)

    def _take_text(self, kind: type[TextDelta | ReasoningDelta], texts: list[str]) -> None:
        is_text = kind is TextDelta
        if is_text:
            self._response.text += texts
        else:
            self._response.reasoning += texts
        if self._shown is None:
            text = texts[0] if len(texts) == 1 else "".join(texts)
            self._run.emitter.emit_streamed(TextAdded if is_text else ReasoningAdded, text)

    def _take_call(self, call: ToolCall) -> None:
        run, index = self._run, call.index
        self._response.calls[index] = call
        number = self.number(call)
        if self._closed or (index and not run.plan.settings.several_calls):
            return
        prepared = run.prepare(call, self._toolbox)
        prepared.number = number
        for refuse in self.refusals:
            if refuse(prepared, index):
                return
        self.prepared[index] = prepared
        self._batch.submit(prepared)

    @property
    def refusals(self) -> list[Refuse]:
        """What refuses calls of this response, if anything does. It is decided when the first of them is complete."""
        if self._refusals is None:
            run, closed = self._run, self._closed
            self._refusals = [refuse for may_run in self._may_run if (refuse := may_run(run, closed)) is not None]
        return self._refusals

    def _take_other(self, delta: Delta) -> None:
        run, batch, response = self._run, self._batch, self._response
        match delta:
            case CallSpoiled(call):
                self._forget(call.index)
                batch.take_out(call.index, f"not executed: {call.problem}")
            case CallWithdrawn(index):
                call = response.calls.get(index)
                self._forget(index)
                batch.take_out(index, WITHDRAWN)
                if call is not None:
                    self.drop(call, WITHDRAWN)
            case AttemptFailed(verdict, wait, elsewhere, streamed):
                if self.usage or not response.is_empty:
                    run.spend_on(response.message, self.usage, verdict)
                self.usage = None
                run.attempt_failed(verdict, wait, elsewhere, len(response.calls), streamed)
            case Restarted():
                run.state.counters.fallback_used = True
                if self._shown is None:
                    self._shown = Shown("".join(response.text)), Shown("".join(response.reasoning))
                response.restart()
                self.prepared, self._numbers = {}, {}
                self._observer.drop_loose(BROKE_OFF, but=batch.restart())
                if run.server_calls is not None:
                    run.server_calls.restart()
            case ServerCallOpened() | ServerCallSeen() | ServerCallEnded():
                run.take_server_call(delta)
            case _:
                pass  # for example half a call, which must not be used

    def _forget(self, index: int) -> None:
        self._response.calls.pop(index, None)
        self.prepared.pop(index, None)

    def number(self, call: ToolCall) -> int:
        """The number of a call of this response. A call that was never complete gets its number here."""
        known = call.index, call.id
        number = self._numbers.get(known)
        if number is None:
            number = self._numbers[known] = self._observer.written(call)
            if (old := self._run.number_before(call)) is not None:
                self._observer.adopted(Prepared(call, None, number), old)
        return number

    def drop(self, call: ToolCall, reason: str) -> None:
        """The call is not in the message."""
        self._observer.drop(self.number(call), call, reason)
        del self._numbers[call.index, call.id]

    def message(self) -> Assistant:
        """The complete answer: what was streamed, even if the message at the end holds something else."""
        message = self.ended.message if self.ended else None
        return self._response.message if message is None else self._response.agreeing(message)

    def shown_message(self) -> Assistant:
        """What listeners have received so far: nothing yet of a retry."""
        received = self._response.message
        if not self._run.plan.settings.several_calls:
            received = replace(received, calls=received.calls[:1])
        if self._shown is None:
            return received
        return Assistant(self._shown[0].text, received.calls, self._shown[1].text)

    def emit_rest(self, message: Assistant) -> None:
        """Emits the rest of a retried answer, or all of it as a replacement if it differs."""
        if self._shown is None:
            return
        run, (text, reasoning) = self._run, self._shown
        run.voided = not message.text.strip()
        for rest, added, replaced in (
            (reasoning.compare(message.reasoning), ReasoningAdded, ReasoningReplaced),
            (text.compare(message.text), TextAdded, TextReplaced),
        ):
            if rest.replaced or rest.text:
                run.emitter.emit(replaced if rest.replaced else added, rest.text)
