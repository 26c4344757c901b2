"""Redaction of what a model reads and writes, and an answer that is held back until it is complete."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, Self, cast

from unbroken.events import CallProgress, Event
from unbroken.middleware import Ask, Middleware, RunStart
from unbroken.models.model import closing
from unbroken.tools.caller import Caller
from unbroken.tools.context import CallContext
from unbroken_wires.deltas import (
    AttemptFailed,
    CallArguments,
    CallOpened,
    CallReady,
    CallSpoiled,
    Delta,
    Ended,
    PartialResponse,
    ReasoningDelta,
    Received,
    Restarted,
    TextDelta,
    UsageReported,
)
from unbroken_wires.messages import Assistant, Message, Request, System, Text, ToolCall, ToolMessage, ToolResult, User

_LATER = (CallOpened, CallReady, Ended)
"""Deltas that come after the text."""


class HeldAnswer:
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


def answer_tool(run: RunStart) -> str:
    """The name of the tool with which the model gives a typed answer; empty if there is none."""
    output = cast("dict[str, str] | None", run.settings.get("output"))
    return output["tool"] if output else ""


class Redaction(Middleware):
    """Replaces what matches a pattern (`unbroken.guardrails.redact`)."""

    def __init__(self, pattern: re.Pattern[str], by: str, arguments: bool = False) -> None:
        self._pattern = pattern
        self._by = by
        self._arguments = arguments
        self._answer_tool = ""
        """Takes a typed answer, which is part of what the model writes."""

    def start(self, run: RunStart) -> Self:
        started = copy(self)
        started._answer_tool = answer_tool(run)
        return started

    def _clean(self, text: str) -> str:
        return self._pattern.sub(self._by, text)

    async def ask_model(self, request: Request, call_next: Ask) -> AsyncIterator[Sequence[Delta]]:
        answer = HeldAnswer()
        messages = tuple(self._cleaned(message) for message in request.messages)
        async with closing(call_next(replace(request, messages=messages))) as batches:
            async for deltas in batches:
                if passed := answer.hold(deltas):
                    yield passed
        yield self._cleaned_answer(answer)

    def _cleaned_answer(self, answer: HeldAnswer) -> list[Delta]:
        message = answer.message
        if (reasoning := self._clean(message.reasoning)) != message.reasoning:
            answer.deltas = answer.with_text(reasoning, ReasoningDelta)
        if (text := self._clean(message.text)) != message.text:
            answer.deltas = answer.with_text(text)
        if self._answer_tool or self._arguments:
            answer.deltas = [self._in_call(delta) for delta in answer.deltas if not isinstance(delta, CallArguments)]
        return answer.deltas

    def _in_call(self, delta: Delta) -> Delta:
        if not isinstance(delta, CallReady | CallSpoiled):
            return delta
        call = delta.call
        if not self._arguments and call.name != self._answer_tool:
            return delta
        if isinstance(delta, CallSpoiled):
            return CallSpoiled(replace(call, raw=self._clean(call.raw)))
        cleaned = self._cleaned_call(call)
        return delta if cleaned is call else CallReady(cleaned)

    def _cleaned_call(self, call: ToolCall) -> ToolCall:
        if call.arguments is None:  # free text
            raw = self._clean(call.raw)
            return call if raw == call.raw else replace(call, raw=raw)
        arguments = self._values(call.arguments)
        if arguments == call.arguments:
            return call
        return replace(call, arguments=arguments, raw=json.dumps(arguments, ensure_ascii=False))

    def _values(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._clean(value)
        if isinstance(value, list):
            return [self._values(each) for each in cast("list[Any]", value)]
        if isinstance(value, dict):
            return {name: self._values(each) for name, each in cast("dict[str, Any]", value).items()}
        return value

    def _cleaned(self, message: Message) -> Message:
        """The message as the model reads it; the same object if nothing in it matches."""
        match message:
            case Assistant(text, calls, reasoning):
                cleaned = replace(message, text=self._clean(text), reasoning=self._clean(reasoning), native=None)
                if self._arguments and calls:
                    cleaned = replace(cleaned, calls=tuple(map(self._cleaned_call, calls)))
                same = cleaned.text == text and cleaned.reasoning == reasoning and cleaned.calls == calls
                return message if same else cleaned
            case ToolMessage(results):
                read = tuple(map(self._cleaned_result, results))
                return message if read == results else ToolMessage(read)
            case System() | User():
                parts = self._cleaned_parts(message.parts)
                return message if parts == message.parts else replace(message, parts=parts)

    def _cleaned_parts(self, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(replace(p, text=self._clean(p.text)) if isinstance(p, Text) else p for p in parts)

    def _cleaned_result(self, result: ToolResult) -> ToolResult:
        content = self._cleaned_parts(result.content)
        return result if content == result.content else replace(result, content=content, native=None)

    async def call_tool(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
        context.say = partial(self._say, context.say)
        return self._cleaned_result(await call_next(call, context))

    def _say(self, say: Callable[..., None], kind: type[Event], *fields: Any) -> None:
        """What a tool reports while it runs; the items of a generator are reported too."""
        if kind is CallProgress:
            number, id, name, message, *rest = fields
            fields = (number, id, name, self._clean(message), *rest)
        say(kind, *fields)
