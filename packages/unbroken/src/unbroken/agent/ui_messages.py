"""`ui_messages`: a run as the AI SDK's UI message stream, so that `useChat` in a browser shows it.

It is neither a server nor a wire for asking models. What `useChat` posts is read in `ui_history`. Only chunks that the
AI SDK 5, 6 and 7 all take are sent, except for approvals, which 5 does not know.

A stream of chunks cannot take anything back. If a response breaks off and is retried, text that differs is a new part
after a `data-replaced`; a call that was taken over keeps its part; dropped calls end as errors, and a `data-dropped`
names them. `ui_history` reads both, so that the history has only the final answer.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterable, Callable, Collection, Iterable, Iterator, Mapping
from typing import Literal, TypeAlias

from unbroken.agent.streaming import Buffered, translate
from unbroken.events import (
    AgentChanged,
    ApprovalAsked,
    CallAdopted,
    CallDropped,
    CallFinished,
    CallProgress,
    CallStarted,
    Event,
    InnerEvent,
    ReasoningAdded,
    ReasoningReplaced,
    RequestRetried,
    RequestSent,
    RunFailed,
    RunFinished,
    RunStarted,
    ServerCallFinished,
    ServerCallStarted,
    TextAdded,
    TextFinished,
    TextReplaced,
    TodoUpdated,
)
from unbroken.run_view import CallView, RunView
from unbroken_wires.messages import Json
from unbroken_wires.wires.jsontext import dumps

LOG = logging.getLogger("unbroken.agent")

UI_MESSAGE_HEADERS: Mapping[str, str] = {
    "content-type": "text/event-stream",
    "cache-control": "no-cache",
    "connection": "keep-alive",
    "x-vercel-ai-ui-message-stream": "v1",
    "x-accel-buffering": "no",
}
"""The headers of a response that streams UI messages."""

FINISH_REASONS = {"answered": "stop", "waiting": "tool-calls", "token_limit": "length"}
WITHDRAWN = "no result: the call was withdrawn"
EXACT_IN_JAVASCRIPT = 2**53
_METADATA = {
    "run": "run",
    "stopReason": "stop_reason",
    "rounds": "rounds",
    "requests": "requests",
    "calls": "calls",
    "seconds": "seconds",
    "usage": "usage",
    "attempts": "attempts",
    "fallbackUsed": "fallback_used",
}
"""What the last chunk has of the end of a run, by the names of the fields."""
_SHOWN_OF_INNER: dict[type[Event], dict[str, str]] = {
    TextAdded: {"text": "text"},
    TextReplaced: {"replaced": "text"},
    CallStarted: {"call": "call", "toolName": "name", "input": "arguments"},
    CallFinished: {"call": "call", "toolName": "name", "error": "error", "output": "text"},
}
"""The same for the events of an agent that runs as a tool."""

Chunk: TypeAlias = dict[str, Json]
Failed: TypeAlias = Callable[[RunFailed], str]


def generic_error(failed: RunFailed) -> str:
    return "An error occurred."


def ui_messages(
    stream: AsyncIterable[Event],
    *,
    message_id: str = "",
    approvals: bool = True,
    error_text: Failed = generic_error,
) -> Buffered[str]:
    """The lines of a UI message stream for a run (`agent.stream(…)`, or any events); send `UI_MESSAGE_HEADERS` first.

    A failed run is reported in the stream and logged, and raises nothing: `error_text` chooses what the browser may
    see. `approvals=False` is for AI SDK 5: calls that wait for one are then calls without a result. `message_id` names
    the message; without it the client does. If you stop reading, the run ends.
    """
    writer = ChunkWriter(approvals, error_text)

    def lines(chunks: Iterable[Chunk]) -> Iterator[str]:
        for chunk in chunks:
            if message_id and chunk["type"] == "start":
                chunk["messageId"] = message_id
            yield f"data: {dumps(chunk).decode()}\n\n"

    def end() -> Iterator[str]:
        yield from lines(writer.close())
        yield "data: [DONE]\n\n"

    return translate(stream, lambda event: lines(writer.take(event)), end, reports_failure=True)


class ChunkWriter:
    """Turns events into chunks. A turn is a step; an open part is closed before another one begins."""

    def __init__(self, approvals: bool, error_text: Failed) -> None:
        self._approvals = approvals
        self._error_text = error_text
        self._part: Literal["", "text", "reasoning"] = ""
        self._parts = 0
        self._in_step = False
        self._view = RunView()
        self._open: dict[str, None] = {}
        """Calls that were shown and have no result yet."""
        self._unshown: dict[int, CallView] = {}
        """Calls that have a result and were not shown yet."""
        self._ids: dict[int, str] = {}
        """The client's ids of the calls that were shown in this turn."""
        self._dropped: list[str] = []
        """The same for dropped calls."""

    def take(self, event: Event) -> Iterator[Chunk]:
        self._view.feed(event)
        match event:
            case RunStarted():
                yield {"type": "start"}
            case RequestSent():
                yield from self._next_step()
            case TextAdded():
                yield from self._add("text", event.text)
            case ReasoningAdded():
                yield from self._add("reasoning", event.text)
            case TextReplaced():
                yield from self._replace("text", event.text)
            case ReasoningReplaced():
                yield from self._replace("reasoning", event.text)
            case RequestRetried():
                # Without its reason: `error_text` decides what a browser may see.
                yield _transient("retry", {"attempt": event.attempt, "kind": event.kind, "wait": event.wait})
            case TextFinished():
                yield from self._end_part()
            case CallStarted() | ApprovalAsked():
                # Not when it is detected: a call that waits for another one must not look unanswered too.
                yield from self._show(event.call, event.call_id, event.name, event.arguments)
                yield from self._catch_up()
            case CallAdopted():
                if (known_as := self._ids.pop(event.adopted, None)) is not None:  # it keeps its part
                    self._ids[event.call] = known_as
            case CallDropped():
                if (known_as := self._ids.pop(event.call, None)) is not None:
                    self._dropped.append(known_as)
            case CallFinished():
                call = self._view.by_number[event.call]
                if self._view.requests and event.call not in self._ids:
                    self._unshown[event.call] = call
                else:  # if this stream made no request, the client knows the call already
                    yield from self._finish_call(call)
                yield from self._catch_up()
            case CallProgress():
                known_as = self._ids.get(event.call, event.call_id)
                data = {"toolCallId": known_as, "toolName": event.name, "message": event.message}
                yield _transient("progress", {**data, "done": event.done})
            case ServerCallStarted() | ServerCallFinished():
                # Not a tool part: what a client sends back as one would become a call of the next run.
                state = event.outcome if isinstance(event, ServerCallFinished) else "running"
                data = {"id": event.call_id, "tool": event.tool, "name": event.name, "input": event.arguments}
                yield _transient("server-call", {**data, "state": state})
            case InnerEvent():
                yield from self._inner(event, self._ids.get(event.call, event.call_id))
            case AgentChanged():
                yield {"type": "data-agent", "id": "agent", "data": {"agent": event.agent}}
            case TodoUpdated():
                yield {"type": "data-todo", "id": "todo", "data": {"todos": event.todos}}
            case RunFinished():
                yield from self._finish(event)
            case RunFailed():
                yield from self._fail(event)
            case _:
                pass

    def close(self) -> Iterator[Chunk]:
        """Closes open parts if the stream ended without an end event."""
        yield from self._end_step()

    def _add(self, kind: Literal["text", "reasoning"], text: str) -> Iterator[Chunk]:
        if self._part != kind:
            yield from self._end_part()
            self._part = kind
            self._parts += 1
            yield {"type": f"{kind}-start", "id": str(self._parts)}
        yield {"type": f"{kind}-delta", "id": str(self._parts), "delta": text}

    def _replace(self, kind: Literal["text", "reasoning"], text: str) -> Iterator[Chunk]:
        """The text of the step so far is void."""
        yield from self._end_part()
        yield {"type": "data-replaced", "data": {"part": kind}}
        yield from self._add(kind, text)

    def _end_part(self) -> Iterator[Chunk]:
        if self._part:
            yield {"type": f"{self._part}-end", "id": str(self._parts)}
            self._part = ""

    def _next_step(self) -> Iterator[Chunk]:
        yield from self._end_step()
        self._in_step = True
        self._ids.clear()  # a provider may reuse its ids
        yield {"type": "start-step"}

    def _end_step(self, waits: Collection[str] = ()) -> Iterator[Chunk]:
        yield from self._catch_up(all=True)
        yield from self._end_part()
        for id in self._open:
            if id not in waits:
                yield {"type": "tool-output-error", "toolCallId": id, "errorText": WITHDRAWN}
        self._open.clear()
        if self._dropped:
            yield {"type": "data-dropped", "data": {"toolCallIds": self._dropped}}
            self._dropped = []
        if self._in_step:
            self._in_step = False
            yield {"type": "finish-step"}

    def _show(self, number: int, id: str, name: str, arguments: Json) -> Iterator[Chunk]:
        if number in self._ids:
            return
        yield from self._end_part()
        known_as = self._name(number, id)
        self._open[known_as] = None
        yield {"type": "tool-input-available", "toolCallId": known_as, "toolName": name, "input": arguments}

    def _name(self, number: int, id: str) -> str:
        """The client's id of the call: its own id, unless another call of this turn has it."""
        known_as, tries = id, 1
        while known_as in self._dropped or known_as in self._ids.values():
            tries += 1
            known_as = f"{id}-{tries}"
        self._ids[number] = known_as
        return known_as

    def _catch_up(self, all: bool = False) -> Iterator[Chunk]:
        """Shows calls that have a result but never started (refused, shared), in call order: once every call before
        them was shown, or when the step ends."""
        for call in self._view.turns[-1].calls if self._view.turns else ():
            if call.detected is None:
                continue
            if call.number in self._unshown:
                yield from self._finish_unshown(self._unshown.pop(call.number))
            elif call.number not in self._ids and not all:
                return
        for call in self._unshown.values():
            yield from self._finish_unshown(call)
        self._unshown.clear()

    def _finish_unshown(self, call: CallView) -> Iterator[Chunk]:
        if call.arguments is not None and call.detected is not None:
            yield from self._show(call.number, call.id, call.name, call.arguments)
            yield from self._finish_call(call)
        else:
            yield from self._end_part()
            cut: Chunk = {"toolCallId": self._name(call.number, call.id), "toolName": call.name, "input": {}}
            yield {"type": "tool-input-error", **cut, "errorText": call.text}

    def _finish_call(self, call: CallView) -> Iterator[Chunk]:
        known_as = self._ids.get(call.number, call.id)
        before = self._view.before(call)
        if known_as not in self._open and before is not None and before.reported:
            return  # its result was sent before
        self._open.pop(known_as, None)
        if call.error:
            yield {"type": "tool-output-error", "toolCallId": known_as, "errorText": call.text}
        else:
            yield {"type": "tool-output-available", "toolCallId": known_as, "output": _output(call.text or "")}

    def _finish(self, event: RunFinished) -> Iterator[Chunk]:
        yield from self._catch_up(all=True)
        waits: set[str] = set()
        for call in event.pending:
            if call.get("agent"):
                yield from self._wait_inside(call, waits)
                continue
            yield from self._show(call["call"], call["id"], call["name"], call["arguments"])
            waits.add(known_as := self._ids[call["call"]])
            if self._approvals and self._view.by_number[call["call"]].approval is not None:
                yield {"type": "tool-approval-request", "approvalId": call["id"], "toolCallId": known_as}
        texts = [turn.text for turn in self._view.turns]
        if event.text and event.text not in texts:  # a structured answer, which was not streamed
            yield from self._add("text", event.text)
        yield from self._end_step(waits)
        told = {name: getattr(event, field) for name, field in _METADATA.items()}
        reason = FINISH_REASONS.get(event.stop_reason, "other")
        yield {"type": "finish", "finishReason": reason, "messageMetadata": told}

    def _wait_inside(self, call: Chunk, waits: set[str]) -> Iterator[Chunk]:
        """A call of an agent that runs as a tool: the client approves it at the part of that tool, one at a time."""
        calls, id = self._view.by_number, str(call["id"])
        runs = [number for number in self._ids if id.startswith(f"{calls[number].id}/")]
        outer = self._ids[max(runs, key=lambda number: len(calls[number].id))] if runs else None
        told = {"id": id, "agent": call["agent"], "toolName": call["name"], "input": call["arguments"]}
        yield {"type": "data-waiting", "id": id, "data": told | {"needs": call["needs"]}}
        if outer is not None and outer not in waits and self._approvals and call["needs"] == "approval":
            yield {"type": "tool-approval-request", "approvalId": id, "toolCallId": outer}
        if outer is not None:
            waits.add(outer)

    def _inner(self, event: InnerEvent, known_as: str) -> Iterator[Chunk]:
        """What an agent does that runs as a tool: its calls, and its text if it is streamed. Its errors are not shown:
        `error_text` decides about those."""
        inner = event.event
        if isinstance(inner, InnerEvent):
            yield from self._inner(inner, known_as)
        elif (shown := _SHOWN_OF_INNER.get(type(inner))) is not None:
            told = {name: getattr(inner, field) for name, field in shown.items()}
            yield _transient("inner", {"toolCallId": known_as, "agent": event.agent, **told})

    def _fail(self, event: RunFailed) -> Iterator[Chunk]:
        yield from self._end_step()
        if event.error == "CancelledError":
            yield {"type": "abort"}
        else:
            LOG.error("Run %s failed: %s: %s", event.run, event.error, event.message)
            yield {"type": "error", "errorText": self._error_text(event)}


def _transient(kind: str, data: Chunk) -> Chunk:
    return {"type": f"data-{kind}", "data": data, "transient": True}


def _output(text: str) -> Json:
    """An object or a list unchanged, so that a page can show it; anything else as the text that the model read."""
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
