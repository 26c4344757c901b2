"""`ag_ui_events`: a run as events of the Agent User Interaction protocol (AG-UI), for CopilotKit and other interfaces
that speak it. The package `ag-ui-protocol` defines and checks them (`pip install 'unbroken[ag-ui]'`).

The chunks of `ui_messages` are translated: what holds for them (retries, adopted and dropped calls) holds here. But
this protocol can take text back: `MESSAGES_SNAPSHOT` replaces all messages of the client, so it needs those that the
client had before.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Iterator
from functools import partial
from typing import Any

from unbroken.agent.streaming import Buffered, translate
from unbroken.agent.ui_messages import Chunk, ChunkWriter, Failed, generic_error
from unbroken.errors import needs_extra
from unbroken.events import Event, RunFinished, RunStarted
from unbroken_wires.wires.jsontext import dumps, loads_faithful

try:
    from ag_ui import core
except ModuleNotFoundError as error:  # pragma: no cover - the extra is part of the development environment
    raise needs_extra("AG-UI", "the package ag-ui-protocol", "ag-ui") from error


_PARTS: dict[str, tuple[Callable[..., core.BaseEvent], ...]] = {
    "text-start": (partial(core.TextMessageStartEvent, role="assistant"),),
    "text-delta": (core.TextMessageContentEvent,),
    "text-end": (core.TextMessageEndEvent,),
    "reasoning-start": (core.ReasoningStartEvent, core.ReasoningMessageStartEvent),
    "reasoning-delta": (core.ReasoningMessageContentEvent,),
    "reasoning-end": (core.ReasoningMessageEndEvent, core.ReasoningEndEvent),
}
"""The events for each chunk of a text."""


def ag_ui_events(
    stream: AsyncIterable[Event],
    *,
    thread_id: str = "",
    messages: Iterable[core.Message] | None = None,
    error_text: Failed = generic_error,
) -> Buffered[str]:
    """The lines of an event stream for a run (`agent.stream(…)`, or any events).

    `thread_id` names the conversation; without it, it is the run's id. `messages` are those of the client
    (`RunAgentInput.messages`): with them, text that is replaced after a broken stream leaves the client's screen.
    Without them, the custom event `replaced` is all that shows it. Calls that wait for somebody are interrupts of the
    last event. A failed run is reported in the stream, and raises nothing: `error_text` chooses what is shown.
    """
    translator = _Translator(thread_id, error_text, None if messages is None else _Screen(messages))

    def lines(event: Event) -> Iterator[str]:
        for translated in translator.take(event):
            yield f"data: {dumps(translated.model_dump(mode='json', by_alias=True)).decode()}\n\n"

    return translate(stream, lines, reports_failure=True)


class _Screen:
    """The messages that the client has: those that it had before, and those of this run, without their reasoning."""

    def __init__(self, messages: Iterable[core.Message]) -> None:
        self._messages: dict[str, core.Message] = {message.id: message for message in messages}
        self._texts: list[core.AssistantMessage] = []
        """The texts of this step."""
        self._pieces: list[str] = []
        """Of the last of them."""

    def take(self, event: core.BaseEvent) -> None:
        match event:
            case core.StepStartedEvent():
                self._texts = []
            case core.TextMessageStartEvent(message_id=id):
                self._messages[id] = message = core.AssistantMessage(id=id)
                self._texts.append(message)
                self._pieces = []
            case core.TextMessageContentEvent():
                self._pieces.append(event.delta)
            case core.TextMessageEndEvent():
                self._texts[-1].content = "".join(self._pieces)
            case core.ToolCallStartEvent(tool_call_id=id, parent_message_id=str(parent)):
                message = self._messages.setdefault(parent, core.AssistantMessage(id=parent))
                assert isinstance(message, core.AssistantMessage)
                function = core.FunctionCall(name=event.tool_call_name, arguments="")
                message.tool_calls = [*(message.tool_calls or ()), core.ToolCall(id=id, function=function)]
                self._function = function
            case core.ToolCallArgsEvent():  # all of them, right after the start
                self._function.arguments = event.delta
            case core.ToolCallResultEvent(message_id=id):
                self._messages[id] = core.ToolMessage(id=id, content=event.content, tool_call_id=event.tool_call_id)
            case _:
                pass

    def without_text(self) -> core.BaseEvent:
        """All messages, without the text of this step. Clients keep reasoning that a snapshot does not have."""
        for message in self._texts:
            message.content = None
            if not message.tool_calls:
                self._messages.pop(message.id, None)
        return core.MessagesSnapshotEvent(messages=list(self._messages.values()))


class _Translator:
    def __init__(self, thread_id: str, error_text: Failed, screen: _Screen | None) -> None:
        self._screen = screen
        self._writer = ChunkWriter(True, error_text)
        self._thread = thread_id
        self._run = ""
        self._model = ""
        self._step = 0
        self._time = 0
        self._message = ""
        """The last message of the assistant, which its calls belong to."""
        self._calls: dict[str, str] = {}
        """The ids of the calls of this step, by those of the chunks: a provider may use an id in several steps."""
        self._used: set[str] = set()
        self._asked: set[str] = set()
        """Calls that wait for an approval."""

    def take(self, event: Event) -> Iterator[core.BaseEvent]:
        self._time = int(event.time * 1000)
        if isinstance(event, RunStarted):
            self._run, self._model = event.run, event.model
            self._thread = self._thread or event.run
        for chunk in self._writer.take(event):
            for translated in self._translate(_clean(chunk), event):
                translated.timestamp = self._time
                if self._screen is not None:
                    self._screen.take(translated)
                yield translated

    def _translate(self, chunk: dict[str, Any], event: Event) -> Iterator[core.BaseEvent]:
        kind: str = chunk["type"]
        match kind:
            case "start":
                yield core.RunStartedEvent(thread_id=self._thread, run_id=self._run)
            case "start-step":
                self._step += 1
                self._calls.clear()
                self._message = f"{self._run}-step-{self._step}"
                yield core.StepStartedEvent(step_name=f"request {self._step}")
            case "finish-step":
                yield core.StepFinishedEvent(step_name=f"request {self._step}")
            case _ if kind in _PARTS:
                message = f"{self._run}-{chunk['id']}"
                if kind == "text-start":
                    self._message = message
                piece = {"delta": chunk["delta"]} if "delta" in chunk else {}
                for made in _PARTS[kind]:
                    yield made(message_id=message, **piece)
            case "tool-input-available" | "tool-input-error":
                yield from self._call(chunk)
            case "tool-output-available" | "tool-output-error":
                yield self._result(chunk)
            case "tool-approval-request":
                self._asked.add(chunk["approvalId"])
            case "finish":
                assert isinstance(event, RunFinished)
                yield self._finish(event)
            case "error":
                yield core.RunErrorEvent(message=chunk["errorText"])
            case "abort":
                yield core.RunFinishedEvent(
                    thread_id=self._thread, run_id=self._run, outcome=core.RunFinishedCancelledOutcome()
                )
            case _:  # data-retry, data-replaced, data-dropped, data-progress, data-todo
                yield core.CustomEvent(name=kind.removeprefix("data-"), value=chunk["data"])
                if self._screen is not None and kind == "data-replaced" and chunk["data"]["part"] == "text":
                    yield self._screen.without_text()

    def _call(self, chunk: dict[str, Any]) -> Iterator[core.BaseEvent]:
        id = chunk["toolCallId"]
        known_as = id if id not in self._used else f"{id}-{self._step}"
        self._used.add(known_as)
        self._calls[id] = known_as
        name, parent = chunk["toolName"], self._message
        yield core.ToolCallStartEvent(tool_call_id=known_as, tool_call_name=name, parent_message_id=parent)
        yield core.ToolCallArgsEvent(tool_call_id=known_as, delta=dumps(chunk["input"]).decode())
        yield core.ToolCallEndEvent(tool_call_id=known_as)
        if "errorText" in chunk:
            yield self._result(chunk)

    def _result(self, chunk: dict[str, Any]) -> core.BaseEvent:
        id: str = chunk["toolCallId"]
        known_as = self._calls.get(id, id)
        text = chunk.get("errorText", chunk.get("output"))
        content = text if isinstance(text, str) else dumps(text).decode()
        return core.ToolCallResultEvent(
            message_id=f"{self._run}-{known_as}-result", tool_call_id=known_as, content=content, role="tool"
        )

    def _finish(self, event: RunFinished) -> core.BaseEvent:
        interrupts = [
            core.Interrupt(
                id=str(call["id"]),
                reason="approval" if call["id"] in self._asked else "result",
                message=f"{call['name']}: {dumps(call['arguments']).decode()}",
                tool_call_id=self._calls.get(str(call["id"]), str(call["id"])),
            )
            for call in _clean({"pending": list(event.pending)})["pending"]
        ]
        waits = core.RunFinishedInterruptOutcome(interrupts=interrupts) if interrupts else None
        result = {"stopReason": event.stop_reason, "text": _clean({"text": event.text})["text"]}
        counts = {
            "input_tokens": "input_tokens",
            "output_tokens": "output_tokens",
            "cached_input_tokens": "cached_tokens",
            "cache_write_input_tokens": "cache_write_tokens",
            "reasoning_tokens": "reasoning_tokens",
        }
        usage = {field: event.usage[name] for field, name in counts.items() if isinstance(event.usage.get(name), int)}
        return core.RunFinishedEvent(
            thread_id=self._thread,
            run_id=self._run,
            result=None if interrupts else result,
            outcome=waits or core.RunFinishedSuccessOutcome(),
            usage=[core.TokenUsage.model_validate({"model": self._model, **usage})],
        )


def _clean(chunk: Chunk) -> dict[str, Any]:
    """Half a surrogate pair, which the package's models refuse, becomes U+FFFD."""
    return loads_faithful(dumps(chunk))  # pyright: ignore[reportReturnType] - an object stays one
