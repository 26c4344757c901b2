"""One wish as a stream of events: the text, sentence by sentence, and the commands that were called with their results.

    async for event in stream_chat("give me a diamond", chat):
        ...

The last event is `content` with an empty text; its metadata describes how it ended. The library handles broken streams
(retries, adopted calls, replaced text); this module converts its events into those of the chat.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from unbroken import (
    CallFinished,
    Conversation,
    Event,
    RequestSent,
    RunFailed,
    RunFinished,
    TextReplaced,
    ToolCallsDetected,
    UnbrokenError,
)
from unbroken.agent.sentences import Sentences, with_pauses
from unbroken.events import ReasoningAdded, ReasoningReplaced, RequestRetried, TextFinished
from unbroken_wires.decoding import Shown
from unbroken_wires.transcript import to_json
from unbroken_wires.wires.chain import chain_status

EventType: TypeAlias = Literal["content", "reasoning", "tool_call", "tool_return", "retried", "replaced", "error"]


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """`sequence` counts from 0, without gaps, for each wish.

    | event_type | content | metadata | |---|---|---| | `content` | a sentence, or the complete text of an answer |
    `turn` | | `reasoning` | a piece of the model's reasoning | `turn` | | `tool_call` | the name of the command |
    `turn`, `call_id`, `arguments` (null if they were cut off) | | `tool_return` | its result, as the model reads it |
    `turn`, `call_id`, `name`, `error`, `seconds` | | `retried` | why a request to the model is retried | `turn`,
    `attempt`, `kind`, `wait` | | `replaced` | empty: discard the text (or reasoning) of this turn so far; what follows
    replaces it | `turn`, `of` | | `error` | why the wish failed | `error`: the name of its type | | `content`, empty |
    the end | see `ending` |
    """

    event_type: EventType
    content: str
    sequence: int
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


async def stream_chat(
    prompt: str,
    chat: Conversation,
    *,
    stream_sentence_mode: bool = True,
    run_id: str = "wish",
) -> AsyncGenerator[StreamEvent]:
    """If you stop reading (`aclose`), the run ends; every call is answered, and you can continue with `chat`. A task
    that is cancelled while it waits for the next event still gets the results of the calls that were reported, and the
    end. `run_id` is the name of the run in the log."""
    converter = _Converter(stream_sentence_mode)
    async with chat.stream(_valid_unicode(prompt), run_id=run_id) as run:
        try:
            async with aclosing(with_pauses(run, converter.sentences)) as run_events:
                async for run_event in run_events:
                    for event in converter.convert(run_event) if run_event else converter.pause():
                        yield event
        except UnbrokenError as error:
            yield converter.event("error", str(error), error=type(error).__name__)
        except asyncio.CancelledError:
            await run.aclose()
            with suppress(UnbrokenError):
                async for run_event in run:
                    if isinstance(run_event, RunFailed):
                        converter.failed = run_event  # the rest of the text is dropped: the user has cancelled
                        continue
                    for event in converter.convert(run_event):
                        yield event
            yield ending(chat, converter, "cancelled")
            raise
    yield ending(chat, converter)


def _valid_unicode(text: str) -> str:
    """No wire can send half a surrogate pair, so the history would differ from the prompt."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def ending(chat: Conversation, converter: _Converter, stopped: str = "failed") -> StreamEvent:
    """The last event. `is_complete`: the wish was answered, if only at a limit, and every call of the history has a
    result. `tool_fallback_used`: an answer broke off and was requested again without streaming, whether or not that
    helped. `stopped` is the stop reason if there was no answer."""
    finished, status = converter.finished, chain_status(chat.messages)
    over = finished or converter.failed
    metadata: dict[str, Any] = {
        "is_complete": finished is not None and not finished.cut_off and status.complete,
        "usage": over.usage if over else None,
        "cost": over.cost if over else None,
        "seconds": round(converter.seconds, 3),
        "all_messages": to_json(chat.messages),
        "tool_calls": status.tool_calls,
        "tool_returns": status.tool_returns,
        "tool_fallback_used": over is not None and over.fallback_used,
        "stop_reason": finished.stop_reason if finished else stopped,
        "attempts": converter.attempts,
        "broken": [verdict["kind"] for verdict in finished.verdicts] if finished else converter.broken,
    }
    return converter.event("content", "", **metadata)


class _Converter:
    """Converts the events of a run to events of the chat: each call once, before its result, and no text twice."""

    def __init__(self, by_sentence: bool) -> None:
        self.sequence = 0
        self.finished: RunFinished | None = None
        self.failed: RunFailed | None = None
        self.attempts = 0
        self.seconds = 0.0
        self._began: float | None = None
        self.broken: list[str] = []
        """What was wrong with each broken attempt, until the run has finished and reports it itself."""
        self.sentences = Sentences()
        self._by_sentence = by_sentence
        self._turn = 0
        self._text = ""
        """The text of this turn so far."""
        self._early: dict[int, CallFinished] = {}
        """Reads that ended while the answer was still being written. If it breaks off, they are dropped or reported
        again."""
        self._open: set[int] = set()
        """Calls that were reported, but whose results were not."""

    def event(self, event_type: EventType, content: str, /, **metadata: Any) -> StreamEvent:
        self.sequence += 1
        return StreamEvent(event_type, content, self.sequence - 1, metadata)

    def convert(self, event: Event) -> Iterator[StreamEvent]:
        self._began = event.time if self._began is None else self._began
        self.seconds = event.time - self._began
        yield from self._replace(event)
        yield from self._content(self._new_text(event))
        match event:
            case RequestSent():
                self._turn, self._text = event.turn, ""
                self._early.clear()
                self.attempts += 1
            case ReasoningAdded():
                yield self._of_turn("reasoning", event.text)
            case ReasoningReplaced():
                yield self._of_turn("replaced", "", of="reasoning")
                yield self._of_turn("reasoning", event.text)
            case RequestRetried():
                self._early.clear()
                self.attempts += 1
                self.broken.append(event.kind)
                yield self._of_turn("retried", event.reason, attempt=event.attempt, kind=event.kind, wait=event.wait)
            case ToolCallsDetected():
                yield from self._calls(event)
            case CallFinished():
                yield from self._call_finished(event)
            case RunFinished():
                self.finished = event
            case RunFailed():
                self.failed = event
                self.broken += [str(verdict["kind"]) for verdict in event.verdicts[-1:]]
            case _:
                pass

    def pause(self) -> Iterator[StreamEvent]:
        """Nothing has arrived for a moment: a sentence that looks complete does not wait for the next one."""
        return self._content(self.sentences.pause())

    def _content(self, texts: Sequence[str]) -> Iterator[StreamEvent]:
        for text in texts:
            self._text += text
            yield self._of_turn("content", text)

    def _replace(self, event: Event) -> Iterator[StreamEvent]:
        """A client that speaks the sentences cannot take them back, but one that displays them can."""
        if isinstance(event, TextReplaced) and Shown(self._text.lstrip()).compare(event.text.lstrip()).replaced:
            self._text = ""
            yield self._of_turn("replaced", "", of="content")

    def _new_text(self, event: Event) -> Sequence[str]:
        if self._by_sentence:
            return self.sentences.take(event)
        return [event.text] if isinstance(event, TextFinished) and event.text else []

    def _calls(self, detected: ToolCallsDetected) -> Iterator[StreamEvent]:
        for call in detected.calls:
            yield self._of_turn("tool_call", str(call["name"]), call_id=call["id"], arguments=call["arguments"])
        early, self._early = self._early, {}
        self._open = {int(call["call"]) for call in detected.calls}
        for finished in early.values():
            yield from self._call_finished(finished)

    def _call_finished(self, call: CallFinished) -> Iterator[StreamEvent]:
        if call.call not in self._open:
            self._early[call.call] = call  # calls of a broken response are in no message, and stay here
            return
        self._open.discard(call.call)
        metadata = {"call_id": call.call_id, "name": call.name, "error": call.error, "seconds": round(call.seconds, 3)}
        yield self._of_turn("tool_return", call.text, **metadata)

    def _of_turn(self, event_type: EventType, content: str, /, **metadata: Any) -> StreamEvent:
        return self.event(event_type, content, turn=self._turn, **metadata)
