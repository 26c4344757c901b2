"""`RetryingModel`: a model whose answers do not break. It retries, asks without streaming, and falls back to another.

Strategy. As long as nothing was passed on, a failed attempt is simply repeated, at once if possible: rather with
another model than after a wait. Once something was, the consumer has shown text and started calls: it receives
`Restarted`, then the complete answer of the next attempt, which is requested without streaming, because then it arrives
complete or not at all. The consumer knows what was shown and decides what still has to be shown (`decoding.shown`); its
`Batch` decides what still has to run. There is one budget for every kind of failure: `attempts` at each model, and
`seconds` in which a new one may begin. Whether a response is complete is decided elsewhere (`decoding.verdict`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Generic, Self, TypeGuard, TypeVar, cast

from unbroken.errors import (
    ChainBroken,
    ContextTooLong,
    ProviderError,
    StreamError,
    TooLarge,
    UnbrokenError,
    Unreachable,
    UserError,
)
from unbroken.models.model import RESPONSE_HEAD, RESPONSE_LIMIT, Model, close, refuse_single
from unbroken_wires.decoding.answer_size import answer_too_large, size_of
from unbroken_wires.decoding.verdict import judge_failure
from unbroken_wires.deltas import AttemptFailed, CallReady, Delta, Ended, Restarted, UsageReported, Verdict
from unbroken_wires.messages import Assistant, Message, Request, User
from unbroken_wires.transcript import shorten
from unbroken_wires.validation import checked
from unbroken_wires.wires.sse import MAX_ANSWER

ATTEMPTS = 3
SECONDS = 300.0
FIRST_WAIT = 0.5
LONGEST_WAIT = 30.0
"""Maximum seconds between attempts at a provider that did not answer; each wait is twice as long as the one before."""
NO_ANSWER = frozenset({"limited", "unavailable", "unreachable", "unanswered", "error"})
"""Kinds of failures of a provider that did not answer, or whose answer is an error: another model is asked before this
one again."""
EMPTY_ANSWERS = 2
"""After this many empty answers, the answer is passed on: repeating the same request will not help, another may."""


M_co = TypeVar("M_co", bound=Model, covariant=True)


@checked
class RetryingModel(Generic[M_co]):
    """Around any `Model`; `connect` puts it around its own.

    `attempts` are made at each model, including the first; none begins more than `seconds` after the first failure, so
    that an answer that took long before it broke is retried too. `stream_with_tools=False` does not stream requests
    with tools. Waits are `first_wait`, twice that, and so on, each shortened by up to a half by `jitter` (a function
    that returns a number from 0 to 1). A provider's own Retry-After comes before them; if it is longer than the rest of
    `seconds`, that model is not tried again.

    `fallback` are other models. One of them is asked at once if a provider does not answer (429, 5xx, no connection)
    and a retry would have to wait, or if a model has failed for good. Only if all have to wait, the shortest wait is
    waited for.

    `continue_prompt` is a sentence for the model, such as "Please finish the tool calls". It is the last message of the
    second and every further request that repeats an answer which broke off after a part of it was passed on; it is not
    added to the history.
    """

    def __init__(
        self,
        model: M_co,
        attempts: int = ATTEMPTS,
        seconds: float | None = SECONDS,
        *,
        fallback: Sequence[Model] = (),
        stream_with_tools: bool = True,
        continue_prompt: str = "",
        first_wait: float = FIRST_WAIT,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        if attempts < 1:
            raise UserError(
                f"RetryingModel(attempts={attempts!r}): it is a number from 1, and includes the first attempt"
            )
        if seconds is not None and seconds <= 0:
            raise UserError(f"RetryingModel(seconds={seconds!r}): give seconds above 0, or None for no limit")
        given = (model, *fallback)
        # A RetryingModel among them adds its models, not its own budget.
        models = [one for each in given for one in _unguarded(each)]
        self._model = cast("M_co", models[0])
        self.fallback = tuple(models[1:])
        self._asked_whole = {one for each in given for one in _asked_whole(each)}
        if not stream_with_tools:
            self._asked_whole.update(map(id, _unguarded(model)))
        self.attempts = attempts
        self.seconds = seconds
        self.continue_prompt = continue_prompt
        self._first_wait = first_wait
        self._jitter = jitter

    def __repr__(self) -> str:
        others = f", fallback=[{', '.join(model.name for model in self.fallback)}]" if self.fallback else ""
        return f"RetryingModel({self.model!r}, attempts={self.attempts}, seconds={self.seconds}{others})"

    def with_fallback(self, *models: Model) -> RetryingModel[M_co]:
        """The same model and budget, with these fallbacks."""
        other = copy(self)
        other.fallback = tuple(one for each in models for one in _unguarded(each))
        other._asked_whole = self._asked_whole.union(*map(_asked_whole, models))
        return other

    @property
    def model(self) -> M_co:
        """The inner model, without retries."""
        return self._model

    @property
    def name(self) -> str:
        """The first model's name, even if a fallback answers."""
        return self._model.name

    @property
    def manages(self) -> frozenset[str]:
        """What the provider of the first model can do by itself with a long history."""
        return getattr(self._model, "manages", frozenset[str]())

    @property
    def secrets(self) -> tuple[str, ...]:
        """The secrets of all its models."""
        if not self.fallback:
            return tuple(getattr(self._model, "secrets", ()))
        return tuple(each for model in (self._model, *self.fallback) for each in getattr(model, "secrets", ()))

    @property
    def finds_tools(self) -> bool:
        """Whether all its models search deferred tools themselves."""
        return all(getattr(model, "finds_tools", False) for model in (self._model, *self.fallback))

    @property
    def later_system(self) -> bool:
        """Whether all its models read new instructions between the messages."""
        if not getattr(self._model, "later_system", False):
            return False
        return all(getattr(model, "later_system", False) for model in self.fallback)

    async def aclose(self) -> None:
        """Closes all its models that can be closed, including the fallbacks."""
        for model in (self.model, *self.fallback):
            close: Any = getattr(model, "aclose", None)
            if close is not None:
                await close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        """Retries until an answer is complete. `AttemptFailed` reports each attempt that was not; `Restarted` follows
        if something was passed on already, and then all of the next answer. Raises after the last attempt:
        `ProviderError` if no provider answered, `ChainBroken` if an answer broke off."""
        story: _Story | None = None
        model: Model = self._model
        asked = request
        if self._asked_whole or self.fallback:
            request = self.fit(request, model)
        while True:
            passed_on = False
            ended: Ended | None = None
            error: Exception | None = None
            received: list[Sequence[Delta]] = []
            stream, left = model.stream(request), True
            try:
                async for deltas in stream:
                    if not isinstance(deltas, (list, tuple)):
                        refuse_single(model.name, deltas)
                    received.append(deltas)
                    last = deltas[-1]
                    if isinstance(last, Ended):
                        ended = last
                        if self.fallback:
                            ended = _signed(ended, model, _unread(asked, _origin(model)))
                            deltas = (*deltas[:-1], ended)
                        if story is not None or not ended.verdict.whole:
                            if deltas := deltas[:-1]:
                                passed_on = passed_on or _says_something(deltas)
                                yield deltas
                            break
                    if not passed_on:
                        passed_on = not isinstance(deltas[0], UsageReported) or _says_something(deltas)
                    yield deltas
                else:
                    left = False
                    if story is not None:  # a custom model that does not yield `Ended`
                        yield (Ended(story.judge(Ended(Verdict("whole")), None)),)
                    return
            except (ProviderError, StreamError, OSError) as failure:  # OSError: a custom model with its own connection
                error, left = failure, False
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                error, left = Unreachable(f"model `{model.name}` was cancelled, but not by its caller"), False
            finally:
                if left:
                    await close(stream)
            if story is None:
                story = _Story(self, asked, request, asyncio.get_running_loop().time())
            verdict = story.judge(ended, error)
            if ended is not None and not story.breaks(verdict):
                yield (Ended(verdict, ended.message),)
                return
            wait = story.next_try(verdict, error, passed_on)
            failed = AttemptFailed(verdict, wait, story.model is not model, request.stream)
            model, request = story.model, story.request
            yield (failed,)
            if passed_on:
                ready = [delta.call for deltas in received for delta in deltas if isinstance(delta, CallReady)]
                calls = ended.message.calls if ended is not None and ended.message is not None else ()
                yield (Restarted(tuple(dict.fromkeys(call.id for call in (*ready, *calls)))),)
            if wait:
                await asyncio.sleep(wait)

    def fit(self, request: Request, model: Model) -> Request:
        """Without streaming if the model cannot stream tools reliably, and without what another provider has signed."""
        if self.fallback:
            if (head := RESPONSE_HEAD.get()) is not None:
                head.unread = _unread(request, _origin(model))
            request = _without_foreign(request, _origin(model))
        if request.stream and request.tools and id(model) in self._asked_whole:
            return replace(request, stream=False)
        return request

    def backoff(self, failures: int) -> float:
        """Seconds to wait after this many failures at one model, if the provider gave no Retry-After."""
        wait = min(self._first_wait * 2.0 ** (failures - 1), LONGEST_WAIT)
        return wait * (1 - self._jitter() / 2)


def _says_something(deltas: Sequence[Delta]) -> bool:
    return any(not isinstance(delta, UsageReported) for delta in deltas)


class _Candidate:
    """A model, and what is known of it after its attempts."""

    __slots__ = ("is_over", "model", "ready", "shortened", "tries")

    def __init__(self, model: Model) -> None:
        self.model = model
        self.tries = 0
        self.ready = 0.0
        """When the next attempt may begin, on the loop's clock."""
        self.shortened = False
        """It was asked with a shortened history."""
        self.is_over = False
        """There is no further attempt."""


class _Story:
    """The state of one answer over several attempts: the next model, its request, and the wait."""

    def __init__(self, retrying: RetryingModel[Any], asked: Request, request: Request, began: float) -> None:
        self._retrying = retrying
        self._asked = asked
        self._began = began
        self._verdicts: list[Verdict] = []
        self._empty = 0
        self._candidates = [_Candidate(model) for model in (retrying.model, *retrying.fallback)]
        self._asking = self._candidates[0]
        self._pause = 0.0
        """Seconds before the next attempt at the same model."""
        self._shown = False
        """A part of a broken response was passed on: from then on requests are not streamed."""
        self._repeated = False
        """Such a response was requested again already."""
        self.request = request
        self._received = 0
        """The characters of all attempts."""

    @property
    def model(self) -> Model:
        return self._asking.model

    def judge(self, ended: Ended | None, error: Exception | None) -> Verdict:
        """The verdict of the attempt, with its number and model."""
        if ended is not None:
            verdict = ended.verdict
            self._received += 0 if ended.message is None else size_of(ended.message)
        elif isinstance(error, ProviderError):
            verdict = judge_failure(error)
        elif isinstance(error, StreamError):
            verdict = error.verdicts[-1] if error.verdicts else Verdict("damaged", str(error), again=True)
        else:
            verdict = judge_failure(Unreachable(f"model `{self.model.name}` failed: {error or type(error).__name__}"))
        self._asking.tries += 1
        self._empty += verdict.kind == "empty"
        self._pause = self._wait(verdict, error)
        return replace(verdict, attempt=len(self._verdicts) + 1, model=self.model.name)

    def breaks(self, verdict: Verdict) -> bool:
        """Does the answer have to be retried? If retries do not help but it is an answer, it is passed on: the loop can
        report a cut call to the model, or nudge it after an empty answer."""
        if verdict.failed:
            return True
        if verdict.kind == "empty" and (self._empty >= EMPTY_ANSWERS or self._asked.insists):
            return False
        return verdict.retryable and self._may_try(self._pause)

    def next_try(self, verdict: Verdict, error: Exception | None, passed_on: bool) -> float:
        """Prepares the next attempt and returns how long to wait for it. Raises the typed error if there is none."""
        self._verdicts.append(verdict)
        most = getattr(self.model, "max_answer", MAX_ANSWER)
        if self._received > most and RESPONSE_LIMIT.get() is None:  # a server counts the bytes of all attempts itself
            raise answer_too_large(most) from error
        self._shown = self._shown or passed_on
        asking, now = self._asking, asyncio.get_running_loop().time()
        if verdict.kind == "too_long" and not asking.shortened and self._may_try(0.0):
            shorter = shorten(self._asked.messages)
            if shorter is not None:
                asking.shortened = True
                self._ask(replace(self._asked, messages=shorter))
                return 0.0
        asking.is_over = not (verdict.retryable and self._may_try(self._pause))
        asking.ready = now + self._pause
        chosen = self._first_ready(now, stays=verdict.kind not in NO_ANSWER)
        if chosen is asking:
            unanswered = verdict.kind == "unanswered" and not self.request.stream
            self._ask(self.request, streamed=unanswered)
            return self._pause
        if chosen is not None and verdict.kind != "too_large" and self._in_time(wait := max(chosen.ready - now, 0.0)):
            self._asking = chosen
            self._ask(self._asked)
            return wait
        given = self._give_up(verdict, error)
        raise given from (given.__cause__ if error is given else error)

    def _first_ready(self, now: float, stays: bool) -> _Candidate | None:
        """The model to ask next: the same if it needs no wait or `stays`, else that with the shortest wait."""
        asking = self._asking
        if not asking.is_over and (stays or asking.ready <= now):
            return asking
        possible = [each for each in self._candidates if not each.is_over]
        return min(possible, key=lambda each: max(each.ready, now), default=None)

    def _ask(self, request: Request, streamed: bool = False) -> None:
        """`streamed`: a non-streaming answer takes long to begin, and this one took too long."""
        if self._shown:
            request = replace(request, stream=streamed and self._asked.stream)
            if self._repeated and (prompt := self._retrying.continue_prompt):
                request = replace(request, messages=_with_prompt(request.messages, prompt))
            self._repeated = True
        self.request = self._retrying.fit(request, self.model)

    def _wait(self, verdict: Verdict, error: Exception | None) -> float:
        if isinstance(error, ProviderError) and error.retry_after is not None:
            return error.retry_after
        if verdict.kind not in ("limited", "unavailable", "unreachable", "error") and self._asking.tries == 1:
            return 0.0  # a broken connection does not predict the next one
        return self._retrying.backoff(self._asking.tries)

    def _may_try(self, wait: float) -> bool:
        return self._asking.tries < self._retrying.attempts and self._in_time(wait)

    def _in_time(self, wait: float) -> bool:
        seconds = self._retrying.seconds
        return seconds is None or asyncio.get_running_loop().time() - self._began + wait < seconds

    def _give_up(self, verdict: Verdict, error: Exception | None) -> UnbrokenError:
        """Raises the provider's own error if nothing answered, `ChainBroken` if an answer broke; with the verdicts of
        all attempts."""
        verdicts = tuple(self._verdicts)
        if isinstance(error, ProviderError) and not self._shown and not any(map(_broke_off, verdicts)):
            given: UnbrokenError = error
        elif isinstance(error, TooLarge):
            given = error
        elif verdict.kind == "too_long":
            given = ContextTooLong(verdict.reason)
        else:
            tries = "" if len(verdicts) == 1 else f", at {len(verdicts)} tries"
            given = ChainBroken(f"the answer of `{verdict.model}` broke off{tries}: {verdict.reason}")
        given.verdicts = verdicts
        return given


def _unguarded(model: Model) -> tuple[Model, ...]:
    if not isinstance(model, RetryingModel):
        return (model,)
    retrying = cast("RetryingModel[Model]", model)
    return retrying.model, *retrying.fallback


def _asked_whole(model: Model) -> set[int]:
    return cast("RetryingModel[Model]", model)._asked_whole if isinstance(model, RetryingModel) else set()  # pyright: ignore[reportPrivateUsage] - its own


def _origin(model: Model) -> str:
    return getattr(model, "origin", model.name)


def _signed(ended: Ended, model: Model, unread: tuple[str, ...]) -> Ended:
    message, verdict = ended.message, ended.verdict
    if unread:
        verdict = replace(verdict, left_out=(*verdict.left_out, *unread))
    if message is None or message.native is None:
        return Ended(verdict, message) if unread else ended
    return Ended(verdict, replace(message, native=replace(message.native, source=_origin(model))))


def _is_foreign(message: Message, origin: str) -> TypeGuard[Assistant]:
    native = message.native if isinstance(message, Assistant) else None
    return native is not None and native.source not in ("", origin)


def _without_foreign(request: Request, origin: str) -> Request:
    if not any(_is_foreign(message, origin) for message in request.messages):
        return request
    kept = (replace(said, native=None) if _is_foreign(said, origin) else said for said in request.messages)
    return replace(request, messages=tuple(kept))


def _unread(request: Request, origin: str) -> tuple[str, ...]:
    """What a model of this origin is not sent although its provider wrote it, under another account."""
    if ", account " not in origin:
        return ()
    provider, _, _ = origin.partition(" at ")
    sources = [said.native.source for said in request.messages if _is_foreign(said, origin) and said.native is not None]
    return ("messages.thinking",) if any(source.startswith(f"{provider} at ") for source in sources) else ()


def _with_prompt(messages: tuple[Message, ...], prompt: str) -> tuple[Message, ...]:
    added = User.of(prompt)
    return messages if messages[-1:] == (added,) else (*messages, added)


def _broke_off(verdict: Verdict) -> bool:
    return verdict.kind in ("unfinished", "lost", "silent", "cut_call", "error", "damaged", "empty")
