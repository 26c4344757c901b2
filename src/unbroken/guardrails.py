"""Checks on what goes into a run and what comes out of it: the prompt, each answer, each tool call, the final output.

A check is a function, synchronous or not, of the value, or of the run's context and the value. If it returns nothing,
the value passes. It may return another value, which takes the place of the first. It raises `Veto` to refuse the value,
or `Retry` to let the model try again. Each check is middleware: `Agent(…, middleware=[check_output(is_polite)])`; the
decorators of an agent add one: `@agent.check_output`.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Literal, Self, TypeAlias

from unbroken.deltas import (
    AttemptFailed,
    CallOpened,
    CallReady,
    Delta,
    Ended,
    PartialResponse,
    ReasoningDelta,
    Received,
    Restarted,
    TextDelta,
    UsageReported,
    Verdict,
)
from unbroken.errors import AnswerInvalid, UserError, Vetoed
from unbroken.messages import Assistant, Message, Request, Text, ToolCall, ToolMessage, ToolResult, User
from unbroken.middleware import Ask, CheckInput, CheckOutput, Middleware, RunStart
from unbroken.models.model import closing
from unbroken.tools.caller import Caller, in_words, not_executed
from unbroken.tools.context import CallContext, RunContext
from unbroken.tools.results import Retry
from unbroken.tools.threads import call_anywhere

Check: TypeAlias = Callable[..., Any]
"""`check(value)` or `check(context, value)`; may be async."""
To: TypeAlias = Literal["user", "model"]

REFUSED = "I cannot help with that."
_LATER = (CallOpened, CallReady, Ended)
"""Deltas that come after the text."""


class Veto(Exception):
    """Raise it in a check. With `to="user"` the run ends, and the message is its answer (stop reason `vetoed`). With
    `to="model"` the model reads the message and continues. A veto of a call is for the model, every other for the
    user, unless you say otherwise."""

    def __init__(self, message: str = REFUSED, *, to: To | None = None) -> None:
        super().__init__(message)
        if to not in (None, "user", "model"):
            raise UserError(f"Veto(to={to!r}): expected 'user' or 'model'")
        self.to: To | None = to


def check_input(check: Check, *, parallel: bool = False) -> Middleware:
    """Checks the text of the prompt before the model is asked. A text that it returns is asked instead.

    With `parallel=True` it runs while the model answers; a veto then cancels the answer. No call starts, and the run
    does not end, before the check has passed; text that streams may be seen before. It cannot replace the prompt."""
    return _ParallelInputCheck(check) if parallel else _InputCheck(check)


def check_answers(check: Check, *, retries: int = 1) -> Middleware:
    """Checks each answer of the model, an `Assistant` message with `text` and `calls`, when it is complete. Nothing of
    it is shown and no call of it starts before. A text that it returns takes the place of the answer's text."""
    return _AnswerCheck(check, retries)


def check_calls(check: Check, *, tools: Collection[str] = ()) -> Middleware:
    """Checks each tool call, or those of the given tools, before it runs. A dict that it returns replaces the
    arguments."""
    return _CallCheck(check, tools)


def check_output(check: Check, *, retries: int = 1) -> Middleware:
    """Checks the final output: the text of the answer, or its typed value."""
    return _OutputCheck(check, retries)


def redact(pattern: str | re.Pattern[str], by: str = "[redacted]") -> Middleware:
    """Replaces what matches the pattern in everything that the model reads (prompts, results of tools) and writes. An
    answer is passed on when it is complete: a match may begin in one piece of it and end in another."""
    return _Redaction(re.compile(pattern), by)


class _Check(Middleware):
    def __init__(self, check: Check) -> None:
        self._function = check
        self.name = getattr(check, "__name__", type(check).__name__)
        self._takes_context = _takes_context(check, self.name)
        self._run: RunStart | None = None

    def start(self, run: RunStart) -> Self:
        started = copy(self)
        started._run = run
        return started

    async def _checked(self, value: Any, in_thread: bool = False) -> Any:
        """What the check returned. An error in it is not a veto: the run fails, and nothing passes unchecked."""
        context = RunContext[Any]() if self._run is None else self._run.context()
        arguments = (context, value) if self._takes_context else (value,)
        try:
            if in_thread:
                return await call_anywhere(self._function, *arguments)
            found = self._function(*arguments)
            return await found if inspect.isawaitable(found) else found
        except (Veto, Retry, Vetoed):
            raise
        except Exception as error:
            raise UserError(f"the check `{self.name}` failed: {in_words(error)}") from error


class _InputCheck(_Check):
    async def check_input(self, prompt: User, call_next: CheckInput) -> User:
        prompt = await call_next(prompt)
        text = await self._judged(prompt)
        return prompt if text is None else prompt.with_text(_as_text(text, self.name))

    async def _judged(self, prompt: User, in_thread: bool = False) -> Any:
        try:
            return await self._checked(prompt.text, in_thread)
        except (Veto, Retry) as error:
            raise Vetoed(str(error)) from None


class _ParallelInputCheck(_InputCheck):
    def __init__(self, check: Check) -> None:
        super().__init__(check)
        self._prompt: User | None = None
        """What is not checked yet."""

    async def check_input(self, prompt: User, call_next: CheckInput) -> User:
        self._prompt = await call_next(prompt)
        return self._prompt

    def ask_model(self, request: Request, call_next: Ask) -> AsyncIterator[Sequence[Delta]]:
        prompt, self._prompt = self._prompt, None
        return call_next(request) if prompt is None else self._beside(call_next(request), prompt)

    async def _beside_check(self, prompt: User) -> None:
        if await self._judged(prompt, in_thread=True) is not None:
            raise UserError(f"the check `{self.name}` runs beside the model, so it cannot replace the prompt")

    async def _beside(self, stream: AsyncIterator[Sequence[Delta]], prompt: User) -> AsyncIterator[Sequence[Delta]]:
        """The answer, while the check runs."""
        arrived: asyncio.Queue[Sequence[Delta] | BaseException | None] = asyncio.Queue()
        reading = asyncio.create_task(_read(stream, arrived))
        checking = asyncio.create_task(self._beside_check(prompt))
        following = asyncio.create_task(arrived.get())
        try:
            while True:
                await asyncio.wait({following, checking}, return_when=asyncio.FIRST_COMPLETED)
                if checking.done():
                    checking.result()  # raises the veto
                if not following.done():
                    await following
                deltas = following.result()
                if isinstance(deltas, BaseException):
                    raise deltas
                if deltas is None or any(isinstance(delta, CallReady | Ended) for delta in deltas):
                    await checking
                if deltas is None:
                    return
                yield deltas
                following = asyncio.create_task(arrived.get())
        finally:
            tasks = (reading, checking, following)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _read(stream: AsyncIterator[Sequence[Delta]], arrived: asyncio.Queue[Any]) -> None:
    """Reads a stream to its end in one task: what it waits for belongs to that task."""
    try:
        async with closing(stream) as batches:
            async for deltas in batches:
                arrived.put_nowait(deltas)
    except Exception as error:  # noqa: BLE001 - the reader of the queue raises it
        arrived.put_nowait(error)
    else:
        arrived.put_nowait(None)


class _AnswerCheck(_Check):
    def __init__(self, check: Check, retries: int) -> None:
        super().__init__(check)
        self._retries = _count(retries, "check_answers")

    async def ask_model(self, request: Request, call_next: Ask) -> AsyncIterator[Sequence[Delta]]:
        for attempt in range(self._retries + 1):
            answer = _HeldAnswer()
            async with closing(call_next(request)) as batches:
                async for deltas in batches:
                    if passed := answer.hold(deltas):
                        yield passed
            try:
                text = await self._checked(answer.message)
            except Veto as veto:
                if veto.to != "model":
                    raise Vetoed(str(veto)) from None
                feedback = str(veto)
            except Retry as retry:
                feedback = str(retry)
            else:
                yield answer.deltas if text is None else answer.with_text(_as_text(text, self.name))
                return
            yield [AttemptFailed(Verdict("refused", f"`{self.name}`: {feedback}", attempt=attempt + 1))]
            request = replace(request, messages=(*request.messages, *_feedback(answer.message, feedback)))
        raise AnswerInvalid(_refusals("answer", self.name, self._retries, feedback))  # pyright: ignore[reportPossiblyUnboundVariable] - set in the loop


class _HeldAnswer:
    """An answer that is not passed on yet."""

    def __init__(self) -> None:
        self.deltas: list[Delta] = []
        self._response = PartialResponse()

    def hold(self, deltas: Sequence[Delta]) -> list[Delta]:
        """Returns what is passed on at once: what is not part of the answer itself."""
        passed: list[Delta] = []
        for delta in deltas:
            self._response.feed(delta)
            if isinstance(delta, Restarted):
                self.deltas.clear()
            if isinstance(delta, Restarted | AttemptFailed | Received | UsageReported):
                passed.append(delta)
            else:
                self.deltas.append(delta)
        return passed

    @property
    def message(self) -> Assistant:
        last = self.deltas[-1] if self.deltas else None
        return last.message if isinstance(last, Ended) and last.message is not None else self._response.message

    def with_text(self, text: str, kind: type[TextDelta | ReasoningDelta] = TextDelta) -> list[Delta]:
        """Another text, or another reasoning, in its first place."""
        place = next((at for at, delta in enumerate(self.deltas) if isinstance(delta, kind)), None)
        if place is None:
            place = next((at for at, delta in enumerate(self.deltas) if isinstance(delta, _LATER)), len(self.deltas))
        before, after = self.deltas[:place], self.deltas[place:]
        rest = [delta for delta in after if not isinstance(delta, kind)]
        return [*before, kind(text), *rest] if text else [*before, *rest]


class _CallCheck(_Check):
    def __init__(self, check: Check, tools: Collection[str]) -> None:
        super().__init__(check)
        if isinstance(tools, str):
            raise UserError(f"check_calls(tools={tools!r}): give a list of names, tools=[{tools!r}]")
        self._tools = frozenset(tools)
        self._veto: Vetoed | None = None

    def ask_model(self, request: Request, call_next: Ask) -> AsyncIterator[Sequence[Delta]]:
        if self._veto is not None:
            raise self._veto
        return call_next(request)

    async def call_tool(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
        if self._tools and call.name not in self._tools:
            return await call_next(call, context)
        try:
            arguments = await self._checked(call)
        except Veto as veto:
            if veto.to == "user":
                self._veto = Vetoed(str(veto))
            return not_executed(call, str(veto))
        except Retry as retry:
            return not_executed(call, str(retry))
        if arguments is None:
            return await call_next(call, context)
        if not isinstance(arguments, dict):
            raise UserError(
                f"the check `{self.name}` returned {arguments!r}: return nothing, or new arguments as a dict"
            )
        context.arguments = None  # they are bound again
        return await call_next(replace(call, arguments=arguments), context)


class _OutputCheck(_Check):
    def __init__(self, check: Check, retries: int) -> None:
        super().__init__(check)
        self._retries = _count(retries, "check_output")
        self._asked = 0

    async def check_output(self, output: Any, call_next: CheckOutput) -> Any:
        output = await call_next(output)
        try:
            found = await self._checked(output)
        except Veto as veto:
            if veto.to != "model":
                raise Vetoed(str(veto)) from None
            raise self._retry(str(veto)) from None
        except Retry as retry:
            raise self._retry(str(retry)) from None
        return output if found is None else found

    def _retry(self, why: str) -> Exception:
        self._asked += 1
        return (
            Retry(why)
            if self._asked <= self._retries
            else AnswerInvalid(_refusals("output", self.name, self._retries, why))
        )


class _Redaction(Middleware):
    def __init__(self, pattern: re.Pattern[str], by: str) -> None:
        self._pattern = pattern
        self._by = by

    def _clean(self, text: str) -> str:
        return self._pattern.sub(self._by, text)

    async def ask_model(self, request: Request, call_next: Ask) -> AsyncIterator[Sequence[Delta]]:
        answer = _HeldAnswer()
        messages = tuple(self._cleaned(message) for message in request.messages)
        async with closing(call_next(replace(request, messages=messages))) as batches:
            async for deltas in batches:
                if passed := answer.hold(deltas):
                    yield passed
        message = answer.message
        if (reasoning := self._clean(message.reasoning)) != message.reasoning:
            answer.deltas = answer.with_text(reasoning, ReasoningDelta)
        if (text := self._clean(message.text)) != message.text:
            answer.deltas = answer.with_text(text)
        yield answer.deltas

    def _cleaned(self, message: Message) -> Message:
        if not isinstance(message, User):
            return message
        parts = tuple(replace(p, text=self._clean(p.text)) if isinstance(p, Text) else p for p in message.parts)
        return message if parts == message.parts else replace(message, parts=parts)

    async def call_tool(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
        result = await call_next(call, context)
        content = tuple(replace(p, text=self._clean(p.text)) if isinstance(p, Text) else p for p in result.content)
        return result if content == result.content else replace(result, content=content, native=None)


def _takes_context(check: Check, name: str) -> bool:
    try:
        signature = inspect.signature(check)
    except ValueError:
        return False  # it has no signature
    for given in (2, 1):
        try:
            signature.bind(*[None] * given)
        except TypeError:
            continue
        return given == 2
    raise UserError(f"the check `{name}` has to take the value, or two arguments: check(context, value)")


def _count(retries: int, owner: str) -> int:
    if retries < 0:
        raise UserError(f"{owner}(retries={retries}): expected a number from 0")
    return retries


def _as_text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"the check `{name}` returned {value!r}: return nothing, or the text in place of the answer's")
    return value


def _feedback(answer: Assistant, why: str) -> tuple[Message, ...]:
    """An answer that was refused, and the reason for the model."""
    if not answer.calls:
        return (answer, User.of(why)) if answer.text else (User.of(why),)
    return answer, ToolMessage(tuple(not_executed(call, why) for call in answer.calls))


def _refusals(what: str, name: str, retries: int, why: str) -> str:
    asked = "" if not retries else f", even after {retries} correction{'s' if retries > 1 else ''}"
    return f"the {what} of the model was not accepted by the check `{name}`{asked}: {why}"
