"""What a guardrail of the gateway can do beside the methods of `Middleware`, and the middleware that redacts here."""

from __future__ import annotations

import asyncio
import inspect
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import Any, Self, cast
from urllib.parse import quote

from unbroken.asgi import Refused
from unbroken.errors import UnbrokenError, UserError
from unbroken.middleware import Ask, Middleware, RunStart
from unbroken.models.model import closing
from unbroken.redacting import HeldAnswer, Redaction
from unbroken.tools.threads import call_anywhere
from unbroken_gateway.guards.client_texts import data_url, read_or_search, text_in
from unbroken_gateway.http.large_requests import MAIN_LOOP
from unbroken_wires.deltas import (
    AttemptFailed,
    Delta,
    Ended,
    ServerCallEnded,
    ServerCallOpened,
    ServerCallSeen,
    Verdict,
)
from unbroken_wires.messages import (
    Assistant,
    Json,
    Media,
    Message,
    Native,
    Request,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    ToolSpec,
    User,
)

_NO_FILES: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """What a guardrail knows about the request: hooks get it as `info`, checks as `context.deps`."""

    alias: str
    """What the client asks for."""
    key: str
    """The name of its gateway key; empty without keys."""
    client: str
    """The program that sent it, as it calls itself."""
    request_id: str
    """As in `x-unbroken-request-id`."""


class Guard(Middleware):
    """Middleware that also sees the request before it is sent, and the complete answer."""

    checks_calls: bool = False
    """It looks at the calls of an answer, so they are held back until the answer is complete."""
    checks_answers: bool = False
    """The same for the complete answer."""

    async def prepare(self, request: Request) -> Request:
        """Returns the request as the provider gets it."""
        return request

    async def check_call(self, call: ToolCall) -> ToolCall:
        """Returns the call as the client gets it. Raises `Veto`, or `Retry`."""
        return call

    async def check_answer(self, message: Assistant) -> str | None:
        """Returns another text in place of the answer's, or None. Raises `Veto`, or `Retry`."""
        return None


async def call_user(function: Callable[..., Any], *arguments: Any, seconds: float) -> Any:
    """Calls a user's function: an async one on the server's loop, any other in a thread. Raises `TimeoutError`."""
    home = MAIN_LOOP.get()
    try:
        async with asyncio.timeout(seconds):
            if home is None or not inspect.iscoroutinefunction(function):
                return await call_anywhere(function, *arguments)
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(function(*arguments), home))
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise UserError("a guardrail cancelled its own task") from error
    except Exception:
        raise
    except BaseException as error:  # SystemExit would end the server, and others would be logged with their text
        raise UserError("a guardrail tried to exit the program") from error


class GatewayRedaction(Guard, Redaction):
    """Redacts all of a request, not only its messages: a client writes every part of it."""

    found = False
    """Something was replaced in this request or its answer."""

    def start(self, run: RunStart) -> Self:
        started = super().start(run)
        started.found = False
        return started

    def _clean(self, text: str) -> str:
        cleaned = super()._clean(text)
        if cleaned != text:
            self.found = True
        return cleaned

    async def prepare(self, request: Request) -> Request:
        for name in _names(request):
            if self._pattern.search(name):
                words = "the name of a tool matches what a guardrail of this model redacts: give the tool another name"
                raise Refused(400, words)
        prepared = replace(
            request,
            messages=tuple(map(self._message, request.messages)),
            tools=tuple(map(self._tool, request.tools)),
            extra=self._json(request.extra),
            sampling=replace(request.sampling, stop=tuple(map(self._clean, request.sampling.stop))),
            output=request.output
            and replace(
                request.output,
                schema=self._json(request.output.schema),
                description=self._clean(request.output.description),
            ),
            managed=request.managed
            and replace(request.managed, instructions=self._clean(request.managed.instructions)),
        )
        return prepared if self.found else request

    def _message(self, message: Message) -> Message:
        """Also what only one wire knows of a message. The provider's own part of an answer (signed reasoning) is left
        out if something in it matches: it cannot be changed."""
        message = self._cleaned(message)
        match message:
            case Assistant(native=native):
                return replace(message, native=None) if native is not None and self._matches(native.value) else message
            case ToolMessage(results):
                return ToolMessage(tuple(map(self._result, results)))
            case User(parts):
                return replace(message, parts=self._media(parts))
            case _:
                return message

    def _result(self, result: ToolResult) -> ToolResult:
        content, native = self._media(result.content), result.native
        if native is not None:
            both = zip(result.content, content, strict=True)
            files = {old.data: new.data for old, new in both if isinstance(old, Media) and old.data}
            native = replace(native, value=self._json(native.value, files))
        return replace(result, content=content, native=native)

    def _media(self, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        """Text files, and the names and addresses of others, which are not opened."""
        return tuple(self._file(each) if isinstance(each, Media) else each for each in parts)

    def _file(self, file: Media) -> Media:
        data, native = self._data(file.mime, file.data), file.native
        if native is not None:
            native = replace(native, value=self._json(native.value, {file.data: data} if file.data else {}))
        return replace(file, data=data, name=self._clean(file.name), url=self._json(file.url), native=native)

    def _data(self, mime: str, data: str) -> str:
        """The contents of a file, as base64."""
        if (text := read_or_search(mime, data)) is None or (cleaned := self._clean(text)) == text:
            return data
        if text_in(mime, data) is None:  # it is no base64
            return cleaned
        return b64encode(cleaned.encode("utf-8", "surrogatepass")).decode()

    def _tool(self, tool: ToolSpec) -> ToolSpec:
        return replace(
            tool,
            description=self._clean(tool.description),
            parameters=self._json(tool.parameters),
            native=self._native(tool.native),
        )

    def _values(self, value: Any) -> Any:
        return self._json(value)

    def _cleaned_parts(self, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        """Texts in a row are one text for the model, so a match may reach from one into the next."""
        cleaned: list[Any] = []
        for is_text, group in groupby(parts, lambda part: isinstance(part, Text)):
            run = [*group]
            if is_text and len(run) > 1 and self._reaches([part.text for part in run]):
                run = [replace(run[-1], text="".join([part.text for part in run]))]
            cleaned += run
        return super()._cleaned_parts(tuple(cleaned))

    def _reaches(self, texts: Sequence[str]) -> bool:
        """Is there a match from one text into the next?"""
        borders = {*accumulate(len(text) for text in texts[:-1])}
        return any(
            not borders.isdisjoint(range(found.start() + 1, found.end()))
            for found in self._pattern.finditer("".join(texts))
        )

    def _native(self, native: Native | None) -> Native | None:
        return native and replace(native, value=self._json(native.value))

    def _json(self, value: Any, files: Mapping[str, str] = _NO_FILES) -> Any:
        """With the names of fields, which a client may choose too. `files`: contents of files, and what takes their
        place."""
        if isinstance(value, str):
            if (cleaned := files.get(value)) is not None:
                return cleaned
            return self._clean(value) if (file := data_url(value)) is None else self._address(value, *file)
        if isinstance(value, Mapping):
            items = cast("Mapping[str, Json]", value).items()
            return {self._clean(name): self._json(each, files) for name, each in items}
        if isinstance(value, list | tuple):
            return [self._json(each, files) for each in cast("Sequence[Json]", value)]
        return value

    def _address(self, url: str, mime: str, is_base64: bool, data: str) -> str:
        """A `data:` URL."""
        cleaned = self._data(mime, data) if is_base64 else self._clean(data)
        head, _, rest = url.partition(",")
        if cleaned != data:
            rest = cleaned if is_base64 else quote(cleaned)
        return f"{self._clean(head)},{rest}"

    def _matches(self, value: Json) -> bool:
        before, self.found = self.found, False
        self._json(value)
        matches, self.found = self.found, self.found or before
        return matches

    async def ask_model(self, request: Request, call_next: Ask) -> AsyncIterator[Sequence[Delta]]:
        """The request was prepared before; of the answer also what the provider's own tools found."""
        answer = HeldAnswer()
        try:
            async with closing(call_next(request)) as batches:
                async for deltas in batches:
                    if passed := answer.hold(deltas):
                        yield [self._in_delta(delta) for delta in passed]
        except UnbrokenError as error:
            if (cleaned := self._clean(str(error))) != str(error):  # providers quote in their errors
                error.args = (cleaned,)
            error.verdicts = tuple(map(self._verdict, error.verdicts))
            raise
        yield [self._in_delta(delta) for delta in self._cleaned_answer(answer)]

    def _in_delta(self, delta: Delta) -> Delta:
        match delta:
            case ServerCallOpened(call) | ServerCallSeen(call) | ServerCallEnded(call):
                return replace(
                    delta, call=replace(call, arguments=self._json(call.arguments), item=self._json(call.item))
                )
            case AttemptFailed(verdict):
                return replace(delta, verdict=self._verdict(verdict))
            case Ended(verdict, message):
                if message is not None and message.native is not None and self._matches(message.native.value):
                    message = replace(message, native=None)
                return Ended(self._verdict(verdict), message)
            case _:
                return delta

    def _verdict(self, verdict: Verdict) -> Verdict:
        """What is wrong with an answer, in the provider's words."""
        if verdict.whole:
            return verdict
        return replace(verdict, reason=self._clean(verdict.reason), error=self._json(verdict.error))


def _names(request: Request) -> Iterator[str]:
    """Names that cannot be replaced: the answer to a request has to have the same."""
    yield from (tool.name for tool in request.tools)
    if request.output is not None:
        yield request.output.name
    for message in request.messages:
        if isinstance(message, Assistant):
            yield from (call.name for call in message.calls)
        elif isinstance(message, ToolMessage):
            yield from (result.name for result in message.results)
