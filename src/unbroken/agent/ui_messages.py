"""The AI SDK's UI message stream, so that `useChat` in a browser shows a run: `ui_messages` writes it from events, and
`from_ui_messages` reads what `useChat` posts. It is neither a server nor a wire: nobody asks a model with it.

Only what the AI SDK 5, 6 and 7 all take is sent, except for approvals, which 5 does not know.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast
from urllib.parse import unquote_to_bytes

from unbroken.agent.closing import closing
from unbroken.errors import UserError
from unbroken.events import (
    ApprovalAsked,
    CallFinished,
    CallProgress,
    CallStarted,
    Event,
    ReasoningAdded,
    RequestSent,
    RunFailed,
    RunFinished,
    RunStarted,
    Said,
    TextAdded,
    TodoUpdated,
    ToolCallsDetected,
)
from unbroken.messages import Assistant, Json, Media, Message, Part, Text, ToolCall, ToolMessage, ToolResult, User
from unbroken.tools.approval import Allow, Deny
from unbroken.tools.calling import failure
from unbroken.tools.results import to_parts
from unbroken.transcript import repair
from unbroken.wires.jsontext import dumps

LOG = logging.getLogger("unbroken.agent")

UI_MESSAGE_HEADERS: Mapping[str, str] = {
    "content-type": "text/event-stream",
    "cache-control": "no-cache",
    "connection": "keep-alive",
    "x-vercel-ai-ui-message-stream": "v1",
    "x-accel-buffering": "no",
}
"""What a response that streams UI messages says of itself."""

FINISH_REASONS = {"answered": "stop", "waiting": "tool-calls", "token_limit": "length"}
WITHDRAWN = "no result: the call was withdrawn"
EXACT_IN_JAVASCRIPT = 2**53

Chunk: TypeAlias = dict[str, Json]
Failed: TypeAlias = Callable[[RunFailed], str]


def _say_little(failed: RunFailed) -> str:
    return "An error occurred."


async def ui_messages(
    stream: AsyncIterable[Event],
    *,
    message_id: str = "",
    approvals: bool = True,
    error_text: Failed = _say_little,
) -> AsyncGenerator[str]:
    """The lines of a UI message stream for a run (`agent.stream(…)`, or any events); send `UI_MESSAGE_HEADERS` first.

    A run that fails is told in the stream and logged, and raises nothing: `error_text` says how much of it the browser
    may know. `approvals=False` is for AI SDK 5: calls that wait for one are then calls without a result. `message_id`
    names the message; without it the client does. Who stops reading ends the run.
    """
    writer = _Writer(approvals, error_text)
    async with closing(stream) as events:
        async for event in events:
            for chunk in writer.take(event):
                if message_id and chunk["type"] == "start":
                    chunk["messageId"] = message_id
                yield f"data: {dumps(chunk).decode()}\n\n"
            if isinstance(event, RunFailed):
                break  # the stream would raise now what was told just so
        for chunk in writer.close():
            yield f"data: {dumps(chunk).decode()}\n\n"
        yield "data: [DONE]\n\n"


class _Writer:
    """From events to chunks. A turn is a step; a part that was opened is closed before another one begins."""

    def __init__(self, approvals: bool, error_text: Failed) -> None:
        self._approvals = approvals
        self._error_text = error_text
        self._part: Literal["", "text", "reasoning"] = ""
        self._parts = 0
        self._in_step = False
        self._known = False
        """A request was sent in this stream: whatever call comes now is new to the client."""
        self._open: dict[str, str] = {}
        """Calls that were shown and have no result yet, with their names."""
        self._shown: set[str] = set()
        self._asked: set[str] = set()
        self._saying: list[str] = []
        self._said: set[str] = set()

    def take(self, event: Event) -> Iterator[Chunk]:
        match event:
            case RunStarted():
                yield {"type": "start"}
            case RequestSent():
                yield from self._next_step()
            case TextAdded():
                self._saying.append(event.text)
                yield from self._add("text", event.text)
            case ReasoningAdded():
                yield from self._add("reasoning", event.text)
            case Said():
                self._said.add(event.text)
                yield from self._end_part()
            case ToolCallsDetected():
                for call in event.calls:
                    if call["arguments"] is not None:
                        yield from self._show(call["id"], call["name"], call["arguments"])
            case CallStarted():
                yield from self._show(event.call_id, event.name, event.arguments)
            case ApprovalAsked():
                self._asked.add(event.call_id)
                yield from self._show(event.call_id, event.name, event.arguments)
            case CallFinished():
                yield from self._finish_call(event)
            case CallProgress():
                data = {"toolCallId": event.call_id, "toolName": event.name, "message": event.message}
                yield {"type": "data-progress", "data": {**data, "done": event.done}, "transient": True}
            case TodoUpdated():
                yield {"type": "data-todo", "id": "todo", "data": {"todos": event.todos}}
            case RunFinished():
                yield from self._finish(event)
            case RunFailed():
                yield from self._fail(event)
            case _:
                pass

    def close(self) -> Iterator[Chunk]:
        """Of a stream that ends without saying so, whatever is open; otherwise nothing."""
        yield from self._end_step()

    def _add(self, kind: Literal["text", "reasoning"], text: str) -> Iterator[Chunk]:
        if self._part != kind:
            yield from self._end_part()
            self._part = kind
            self._parts += 1
            yield {"type": f"{kind}-start", "id": str(self._parts)}
        yield {"type": f"{kind}-delta", "id": str(self._parts), "delta": text}

    def _end_part(self) -> Iterator[Chunk]:
        if self._part:
            yield {"type": f"{self._part}-end", "id": str(self._parts)}
            self._part = ""

    def _next_step(self) -> Iterator[Chunk]:
        yield from self._end_step()
        self._in_step = self._known = True
        self._shown.clear()  # a provider may use its ids again
        yield {"type": "start-step"}

    def _end_step(self, waiting: Iterable[str] = ()) -> Iterator[Chunk]:
        yield from self._end_part()
        for id in self._open:
            if id not in waiting:
                yield {"type": "tool-output-error", "toolCallId": id, "errorText": WITHDRAWN}
        self._open.clear()
        self._said.add("".join(self._saying))
        self._saying.clear()
        if self._in_step:
            self._in_step = False
            yield {"type": "finish-step"}

    def _show(self, id: str, name: str, arguments: Json) -> Iterator[Chunk]:
        if id in self._shown:
            return
        yield from self._end_part()
        self._shown.add(id)
        self._open[id] = name
        yield {"type": "tool-input-available", "toolCallId": id, "toolName": name, "input": arguments}

    def _finish_call(self, event: CallFinished) -> Iterator[Chunk]:
        id = event.call_id
        if self._known and id not in self._shown:  # its arguments were cut
            yield from self._end_part()
            self._shown.add(id)
            call = {"toolCallId": id, "toolName": event.name, "input": {}}
            yield {"type": "tool-input-error", **call, "errorText": event.text}
            return
        self._open.pop(id, None)
        if event.error:
            yield {"type": "tool-output-error", "toolCallId": id, "errorText": event.text}
        else:
            yield {"type": "tool-output-available", "toolCallId": id, "output": _output(event.text)}

    def _finish(self, event: RunFinished) -> Iterator[Chunk]:
        for call in event.pending:
            yield from self._show(call["id"], call["name"], call["arguments"])
            if self._approvals and call["id"] in self._asked:
                yield {"type": "tool-approval-request", "approvalId": call["id"], "toolCallId": call["id"]}
        self._said.add("".join(self._saying))
        if event.text and event.text not in self._said:  # a structured answer was never said
            yield from self._add("text", event.text)
        yield from self._end_step([call["id"] for call in event.pending])
        told = {"run": event.run, "stopReason": event.stop_reason, "rounds": event.rounds, "requests": event.requests}
        told |= {"calls": event.calls, "seconds": event.seconds, "usage": event.usage}
        reason = FINISH_REASONS.get(event.stop_reason, "other")
        yield {"type": "finish", "finishReason": reason, "messageMetadata": told}

    def _fail(self, event: RunFailed) -> Iterator[Chunk]:
        yield from self._end_step()
        if event.error == "CancelledError":
            yield {"type": "abort"}
        else:
            LOG.error("Run %s failed: %s: %s", event.run, event.error, event.message)
            yield {"type": "error", "errorText": self._error_text(event)}


def _output(text: str) -> Json:
    """An object or a list as such, so that a page can show what is in it; all else as the text that the model read."""
    if text[:1] not in ("{", "["):
        return text
    try:
        return json.loads(text, parse_int=_exact, parse_constant=_exact)
    except (ValueError, RecursionError):
        return text


def _exact(number: str) -> int:
    value = int(number)
    if abs(value) >= EXACT_IN_JAVASCRIPT:
        raise ValueError(f"{number} would be another number in JavaScript")
    return value


def from_ui_messages(messages: Sequence[Mapping[str, Json]]) -> tuple[Message, ...]:
    """The history that `useChat` posts as `messages`, for `agent.stream(None, history=…)`.

    What a browser says is what its user says, so system messages are left out: instructions are the agent's. A call
    without a result is answered as having none, one whose arguments were not complete is left out.
    """
    history: list[Message] = []
    for number, message in enumerate(messages):
        role = message.get("role")
        if role == "user":
            if parts := [part for each in _parts(message, number) for part in _said(each, number)]:
                history.append(User(tuple(parts)))
        elif role == "assistant":
            for step in _steps(_parts(message, number)):
                history += _turn(step, number)
        elif role != "system":
            raise _unreadable(number, f"its role is {role!r}, and not user or assistant")
    return repair(history)[0]


def answers_from_ui_messages(messages: Sequence[Mapping[str, Json]], pending: Iterable[ToolCall]) -> dict[str, Any]:
    """What was decided or done at the client about calls that a run waits for (`result.pending`), for `agent.resume`:
    approvals given with `addToolApprovalResponse`, and results given with `addToolOutput`."""
    last = messages[-1] if messages else {}
    waiting = {call.id: call for call in pending}
    answers: dict[str, Any] = {}
    if last.get("role") != "assistant":
        return answers
    for part in _parts(last, len(messages) - 1):
        call = waiting.get(str(part.get("toolCallId")))
        if call is None:
            continue
        approval = part.get("approval")
        if part.get("state") == "approval-responded" and isinstance(approval, dict):
            decided = cast("dict[str, Json]", approval)
            answers[call.id] = Allow() if decided.get("approved") is True else Deny(str(decided.get("reason") or ""))
        elif (result := _result(part, call)) is not None:
            answers[call.id] = result
    return answers


def _parts(message: Mapping[str, Json], number: int) -> list[dict[str, Json]]:
    parts = message.get("parts")
    if parts is None and isinstance(message.get("content"), str):
        return [{"type": "text", "text": message["content"]}]
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in cast("list[Json]", parts)):
        raise _unreadable(number, "it has no list of parts")
    return cast("list[dict[str, Json]]", parts)


def _said(part: dict[str, Json], number: int) -> Iterator[Part]:
    if part.get("type") == "text" and isinstance(part.get("text"), str):
        if part["text"]:
            yield Text(part["text"])
    elif part.get("type") == "file":
        yield _media(part, number)


def _media(part: dict[str, Json], number: int) -> Media:
    url, mime, name = (part.get(key) or "" for key in ("url", "mediaType", "filename"))
    if not all(isinstance(value, str) for value in (url, mime, name)) or not url:
        raise _unreadable(number, "a file in it has no URL")
    if not url.startswith("data:"):
        return Media(mime, url=url, name=name)
    head, comma, data = url[len("data:") :].partition(",")
    try:
        content = base64.b64decode(data, validate=True) if head.endswith(";base64") else unquote_to_bytes(data)
    except binascii.Error:
        raise _unreadable(number, "the data URL of a file in it is not base64") from None
    mime = mime or head.split(";")[0] or "text/plain"
    if not comma or not content:
        raise _unreadable(number, "a file in it is empty")
    return Media(mime, base64.b64encode(content).decode(), name=name)


def _steps(parts: Iterable[dict[str, Json]]) -> list[list[dict[str, Json]]]:
    steps: list[list[dict[str, Json]]] = [[]]
    for part in parts:
        if part.get("type") == "step-start":
            steps.append([])
        else:
            steps[-1].append(part)
    return steps


def _turn(parts: Iterable[dict[str, Json]], number: int) -> Iterator[Message]:
    """One step as a message with its calls, and their results."""
    said: dict[str, list[str]] = {"text": [], "reasoning": []}
    calls: list[ToolCall] = []
    results: list[ToolResult] = []
    for part in parts:
        kind = str(part.get("type"))
        if kind in said and isinstance(part.get("text"), str):
            said[kind].append(part["text"])
        elif kind.startswith("tool-") or kind == "dynamic-tool":
            # What a provider ran itself is no call of ours, and half a call is none.
            if part.get("providerExecuted") is not True and part.get("state") != "input-streaming":
                calls.append(_call(part, kind, len(calls), number))
                result = _result(part, calls[-1])
                if result is not None:
                    results.append(result)
    text, reasoning = "".join(said["text"]), "\n\n".join(filter(None, said["reasoning"]))
    if text or calls:
        yield Assistant(text, tuple(calls), reasoning)
    if results:
        yield ToolMessage(tuple(results))


def _call(part: dict[str, Json], kind: str, index: int, number: int) -> ToolCall:
    name = part.get("toolName") if kind == "dynamic-tool" else kind.removeprefix("tool-")
    id = part.get("toolCallId")
    if not (isinstance(name, str) and name and isinstance(id, str)):
        raise _unreadable(number, "a call in it has no name, or no toolCallId")
    given = part.get("input")
    arguments = cast("dict[str, Json]", given) if isinstance(given, dict) else {}
    return ToolCall(id, name, arguments, dumps(arguments).decode(), index)


def _result(part: dict[str, Json], call: ToolCall) -> ToolResult | None:
    state, approval = part.get("state"), part.get("approval")
    decided = cast("dict[str, Json]", approval) if isinstance(approval, dict) else {}
    if state == "output-available" and part.get("preliminary") is not True:
        return ToolResult(call.id, to_parts(part.get("output")), name=call.name)
    if state == "output-error":
        return ToolResult.of(call, str(part.get("errorText") or "Error: it failed"), error=True)
    if state == "output-denied" or (state == "approval-responded" and decided.get("approved") is False):
        reason = decided.get("reason")
        return failure(call, f"not executed: denied: {reason}" if reason else "not executed: denied")
    return None


def _unreadable(number: int, why: str) -> UserError:
    return UserError(f"message {number} of the UI messages cannot be read: {why}")
