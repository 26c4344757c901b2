"""Checks on what goes into a run and what comes out of it: the prompt, each answer, each tool call, the final output.

A check is a function, synchronous or not, of the value, or of the run's context and the value. If it returns nothing,
the value passes. It may return another value, which takes the place of the first. It raises `Veto` to refuse the value,
or `Retry` to let the model try again. Each check is middleware: `Agent(…, middleware=[check_output(is_polite)])`; the
decorators of an agent add one: `@agent.check_output`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from copy import copy
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, Literal, Self, TypeAlias, cast

from unbroken.errors import AnswerInvalid, PromptVetoed, UserError, Vetoed
from unbroken.middleware import Ask, CheckInput, CheckOutput, Middleware, RunStart
from unbroken.models.model import closing
from unbroken.redacting import HeldAnswer, Redaction, answer_tool
from unbroken.tools.caller import Caller, in_words, not_executed
from unbroken.tools.context import CallContext, RunContext
from unbroken.tools.results import Retry as Retry  # checks raise it, so it can be imported here too
from unbroken.tools.threads import call_anywhere
from unbroken.tools.toolbox import LISTED, Toolbox
from unbroken_wires.deltas import (
    AttemptFailed,
    CallReady,
    Delta,
    Ended,
    UsageReported,
    Verdict,
)
from unbroken_wires.messages import Assistant, Message, Request, ToolCall, ToolMessage, ToolResult, User, own_messages
from unbroken_wires.validation import checked

LOG = logging.getLogger("unbroken.guardrails")

Check: TypeAlias = Callable[..., Any]
"""`check(value)` or `check(context, value)`; may be async."""
_Arrived: TypeAlias = Sequence[Delta] | BaseException | None
"""A part of an answer, the error that ended it, or its end."""
To: TypeAlias = Literal["user", "model"]

REFUSED = "I cannot help with that."


class Veto(Exception):
    """Raise it in a check. With `to="user"` the run ends, and the message is its answer (stop reason `vetoed`). With
    `to="model"` the model reads the message and continues. A veto of a call is for the model, every other for the
    user, unless you say otherwise."""

    def __init__(self, message: str = REFUSED, *, to: To | None = None) -> None:
        super().__init__(message)
        if to not in (None, "user", "model"):
            raise UserError(f"Veto(to={to!r}): expected 'user' or 'model'")
        self.to: To | None = to


@checked
def check_input(check: Check, *, parallel: bool = False) -> Middleware:
    """Checks the text of the prompt before the model is asked. A text that it returns is asked instead.

    With `parallel=True` it runs while the model answers; a veto then cancels the answer. No call starts, and the run
    does not end, before the check has passed; text that streams may be seen before. It cannot replace the prompt."""
    return _ParallelInputCheck(check) if parallel else _InputCheck(check)


@checked
def check_answers(check: Check, *, retries: int = 1) -> Middleware:
    """Checks each answer of the model, an `Assistant` message with `text` and `calls`, when it is complete. Nothing of
    it is shown and no call of it starts before. A text that it returns takes the place of the answer's text."""
    return _AnswerCheck(check, retries)


@checked
def check_calls(check: Check, *, tools: Collection[str] = ()) -> Middleware:
    """Checks each tool call, or those of the given tools, before it runs. A dict that it returns replaces the
    arguments."""
    return CallCheck(check, tools)


@checked
def check_output(check: Check, *, retries: int = 1) -> Middleware:
    """Checks the final output: the text of the answer, or its typed value."""
    return _OutputCheck(check, retries)


@checked
def redact(pattern: str | re.Pattern[str], by: str = "[redacted]", *, arguments: bool = False) -> Middleware:
    """Replaces what matches the pattern in everything that the model reads (prompts, results of tools) and writes. An
    answer is passed on when it is complete: a match may begin in one piece of it and end in another. With `arguments`
    also in the arguments of calls: their tools get the replacement."""
    return Redaction(re.compile(pattern), by, arguments)


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
        arguments: tuple[Any, ...] = (value,)
        if self._takes_context:
            arguments = (RunContext[Any]() if self._run is None else self._run.context(), value)
        try:
            if in_thread:
                return await call_anywhere(self._function, *arguments)
            found = self._function(*arguments)
            return await found if inspect.isawaitable(found) else found
        except (Veto, Retry, Vetoed):
            raise
        except (Exception, SystemExit) as error:
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
            raise PromptVetoed(str(error)) from None


class _ParallelInputCheck(_InputCheck):
    """The prompt stays unchecked until the check has passed: if a request fails or is cut off, the next one is guarded
    too, and so are calls of the given history and the output."""

    def __init__(self, check: Check) -> None:
        super().__init__(check)
        self._prompt: User | None = None
        """What is not checked yet."""
        self._veto: PromptVetoed | None = None
        self._checking = asyncio.Lock()

    def start(self, run: RunStart) -> Self:
        started = super().start(run)
        started._checking = asyncio.Lock()
        return started

    async def check_input(self, prompt: User, call_next: CheckInput) -> User:
        self._prompt = await call_next(prompt)
        return self._prompt

    def ask_model(self, request: Request, call_next: Ask) -> AsyncIterator[Sequence[Delta]]:
        if self._veto is not None:
            raise self._veto
        return call_next(request) if self._prompt is None else self._beside(call_next(request))

    async def call_tool(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
        if self._prompt is not None:
            try:
                await self._pass()
            except Vetoed as veto:
                return not_executed(call, str(veto))
        return await call_next(call, context)

    async def check_client_call(self, call: ToolCall) -> str:
        try:
            await self._pass()
        except Vetoed as veto:
            return str(veto)
        return ""

    async def check_output(self, output: Any, call_next: CheckOutput) -> Any:
        await self._pass()
        return await call_next(output)

    async def _pass(self) -> None:
        """Returns when the prompt has passed. Raises `Vetoed`."""
        async with self._checking:
            if self._veto is not None:
                raise self._veto
            if self._prompt is None:
                return
            try:
                found = await self._judged(self._prompt, in_thread=True)
            except PromptVetoed as veto:
                self._veto = veto
                raise
            if found is not None:
                raise UserError(f"the check `{self.name}` runs beside the model, so it cannot replace the prompt")
            self._prompt = None

    async def _beside(self, stream: AsyncIterator[Sequence[Delta]]) -> AsyncIterator[Sequence[Delta]]:
        """The answer, while the check runs."""
        arrived: asyncio.Queue[_Arrived] = asyncio.Queue()
        reading = asyncio.create_task(_read(stream, arrived))
        checking = asyncio.create_task(self._pass())
        following = asyncio.create_task(arrived.get())
        try:
            while True:
                await asyncio.wait({following, checking}, return_when=asyncio.FIRST_COMPLETED)
                if checking.done():
                    if checking.exception() is not None and (used := _used(following, arrived)):
                        yield used
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


def _used(following: asyncio.Task[_Arrived], arrived: asyncio.Queue[_Arrived]) -> list[Delta]:
    """What the provider has reported as used in the part of an answer that is not passed on any more."""
    batches = [following.result()] if following.done() else []
    while not arrived.empty():
        batches.append(arrived.get_nowait())
    answered = [batch for batch in batches if batch is not None and not isinstance(batch, BaseException)]
    return [delta for batch in answered for delta in batch if isinstance(delta, UsageReported)]


async def _read(stream: AsyncIterator[Sequence[Delta]], arrived: asyncio.Queue[Any]) -> None:
    """Reads a stream to its end in one task: what it waits for belongs to that task."""
    try:
        async with closing(stream) as batches:
            async for deltas in batches:
                arrived.put_nowait(deltas)
    except BaseException as error:  # noqa: BLE001 - the reader of the queue raises it; also if the model cancels itself
        arrived.put_nowait(error)
    else:
        arrived.put_nowait(None)


class _AnswerCheck(_Check):
    def __init__(self, check: Check, retries: int) -> None:
        super().__init__(check)
        self._retries = _count(retries, "check_answers")

    async def ask_model(self, request: Request, call_next: Ask) -> AsyncIterator[Sequence[Delta]]:
        for attempt in range(self._retries + 1):
            answer = HeldAnswer()
            async with closing(call_next(request)) as batches:
                async for deltas in batches:
                    if passed := answer.hold(deltas):
                        yield passed
            try:
                text = await self._checked(own_messages((answer.message,))[0])
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


class CallCheck(_Check):
    def __init__(self, check: Check, tools: Collection[str]) -> None:
        super().__init__(check)
        self._tools = frozenset(tools)
        self._veto = ""
        """Why the run ends after this round. No other call of it starts."""
        self._known = False
        """Its tools were looked for among those of the run."""
        self._answer_tool = ""
        """Takes a typed answer, which `check_output` is for."""

    def start(self, run: RunStart) -> Self:
        started = super().start(run)
        started._answer_tool = answer_tool(run)
        return started

    def on_tools(self, turn: int, toolbox: Toolbox) -> None:
        if not self._known and self._tools:
            self._refuse_unknown(toolbox)
        self._known = True

    def _refuse_unknown(self, toolbox: Toolbox) -> None:
        """A check that names no tool would let every call pass. If a function chooses the tools, a name may come later:
        it is an error only if it is similar to one that there is."""
        known = None if self._run is None else self._run.known_tools()
        names = [*toolbox.names, *(known or ())]
        for name in sorted(self._tools.difference(names)):
            close = get_close_matches(name, names, n=1) or [each for each in names if each.endswith(f"_{name}")]
            meant = f"did you mean `{close[0]}`?" if close else f"there are: {', '.join(names[:LISTED]) or 'none'}"
            problem = f"check_calls(tools=[{name!r}]) for the check `{self.name}`: there is no such tool; {meant}"
            if known is not None or close:
                raise UserError(problem)
            LOG.warning("%s (a function chooses the tools, so it may come later)", problem)

    async def call_tool(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
        arguments, refusal = await self.decide(call)
        if refusal:
            return not_executed(call, refusal)
        return await call_next(call if arguments is None else replace(call, arguments=arguments), context)

    async def check_client_call(self, call: ToolCall) -> str:
        try:
            arguments, refusal = await self.decide(call)
        except UserError as error:
            return str(error)
        return refusal or ("" if arguments is None else f"the check `{self.name}` cannot change what a client is given")

    async def decide(self, call: ToolCall) -> tuple[dict[str, Any] | None, str]:
        """Other arguments, if there are any; or why it may not run."""
        if self._veto or call.name == self._answer_tool or (self._tools and call.name not in self._tools):
            return None, self._veto
        try:
            arguments = await self._checked(call)
        except Veto as veto:
            if veto.to == "user" and self._run is not None:
                self._veto = str(veto) or REFUSED
                self._run.veto(Vetoed(self._veto))
            return None, str(veto) or REFUSED
        except Retry as retry:
            return None, str(retry) or REFUSED
        if arguments is None or isinstance(arguments, dict):
            return cast("dict[str, Any] | None", arguments), ""
        raise UserError(f"the check `{self.name}` returned {arguments!r}: return nothing, or new arguments as a dict")


class _OutputCheck(_Check):
    def __init__(self, check: Check, retries: int) -> None:
        super().__init__(check)
        self._retries = _count(retries, "check_output")
        self._asked = 0

    def start(self, run: RunStart) -> Self:
        started = super().start(run)
        started._asked = run.retries.get(self._counted_as, 0)
        return started

    @property
    def _counted_as(self) -> str:
        return f"output:{self.name}"  # no tool has such a name

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
        if self._run is not None:
            self._run.retries[self._counted_as] = self._asked
        return (
            Retry(why)
            if self._asked <= self._retries
            else AnswerInvalid(_refusals("output", self.name, self._retries, why))
        )


def _takes_context(check: Check, name: str) -> bool:
    try:
        signature = inspect.signature(check)
    except ValueError:
        return False  # it has no signature
    needed = [each for each in signature.parameters.values() if each.default is each.empty and each.kind in _GIVEN]
    given = 1 if len(needed) == 1 else 2  # `check(text, words=("a", "b"))` takes the value
    for count in (given, 3 - given):
        try:
            signature.bind(*[None] * count)
        except TypeError:
            continue
        return count == 2
    raise UserError(f"the check `{name}` has to take the value, or two arguments: check(context, value)")


_GIVEN = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


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
