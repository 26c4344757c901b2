"""One wish as a stream of events: what is said, sentence by sentence, and which commands were called and came back.

    async for event in stream_chat("give me a diamond", chat):
        ...

The last event is `content` with an empty text; its metadata says how it ended. What a broken stream needs (asking
again, adopting calls, a text in other words) is done by the library; here its events become those of the chat.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import suppress
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
from unbroken.agent.sentences import Sentences
from unbroken.decoding import Shown
from unbroken.events import ReasoningAdded, ReasoningReplaced, RequestRetried, TextFinished
from unbroken.transcript import to_json
from unbroken.wires.chain import chain_status

EventType: TypeAlias = Literal["content", "reasoning", "tool_call", "tool_return", "retried", "replaced", "error"]


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """`sequence` counts from 0, without gaps, for each wish anew.

    | event_type | content | metadata |
    |---|---|---|
    | `content` | a sentence, or all that an answer of the model says | `turn` |
    | `reasoning` | a piece of what the model thinks | `turn` |
    | `tool_call` | the name of the command | `turn`, `call_id`, `arguments` (null if they were cut) |
    | `tool_return` | its result, as the model reads it | `turn`, `call_id`, `name`, `error`, `seconds` |
    | `retried` | why an answer of the model is asked for again | `turn`, `attempt`, `kind`, `wait` |
    | `replaced` | empty: what this turn has said (or thought) is void; what follows stands for it | `turn`, `of` |
    | `error` | why the wish failed | `error`: the name of its type |
    | `content`, empty | the end | see `ending` |
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
    """Who stops reading (`aclose`) ends the run; every call is answered, and `chat` can go on. A task that is cancelled
    while it waits for the next event still gets the returns of the calls that it was told of, and the end. `run_id` is
    the name of the run in the log."""
    teller = _Teller(stream_sentence_mode)
    async with chat.stream(_whole(prompt), run_id=run_id) as run:
        try:
            async for heard in run:
                for event in teller.tell(heard):
                    yield event
        except UnbrokenError as error:
            yield teller.event("error", str(error), error=type(error).__name__)
        except asyncio.CancelledError:
            with suppress(UnbrokenError):
                async for heard in run:
                    if isinstance(heard, RunFailed):
                        teller.failed = heard  # and no more: nobody wants to hear the half sentence any more
                        continue
                    for event in teller.tell(heard):
                        yield event
            yield ending(chat, teller, "cancelled")
            raise
    yield ending(chat, teller)


def _whole(text: str) -> str:
    """No wire carries half a character, so what comes back would differ from what was said."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def ending(chat: Conversation, teller: _Teller, stopped: str = "failed") -> StreamEvent:
    """The last event. `is_complete` says that the wish was answered and that every call of the history has its result;
    `tool_fallback_used` that an answer broke off and was asked for again, whole. `stopped` is the reason if it was not
    answered."""
    finished, status = teller.finished, chain_status(chat.messages)
    over = finished or teller.failed
    metadata: dict[str, Any] = {
        "is_complete": finished is not None and finished.stop_reason == "answered" and status.complete,
        "usage": over.usage if over else None,
        "all_messages": to_json(chat.messages),
        "tool_calls": status.tool_calls,
        "tool_returns": status.tool_returns,
        "tool_fallback_used": finished is not None and finished.fallback_used,
        "stop_reason": finished.stop_reason if finished else stopped,
        "attempts": teller.attempts,
        "broken": [verdict["kind"] for verdict in finished.verdicts] if finished else teller.broken,
    }
    return teller.event("content", "", **metadata)


class _Teller:
    """Events of a run in, events of the chat out: each call once, before its return, and no text twice."""

    def __init__(self, by_sentence: bool) -> None:
        self.sequence = 0
        self.finished: RunFinished | None = None
        self.failed: RunFailed | None = None
        self.attempts = 0
        self.broken: list[str] = []
        """What was wrong with each try that broke; a run that finished says it itself."""
        self._sentences = Sentences() if by_sentence else None
        self._turn = 0
        self._said = ""
        """By this turn."""
        self._early: dict[int, CallFinished] = {}
        """Reads that ended while the answer was being written: it may still break off, and then they count for
        nothing, or are told again."""
        self._open: set[int] = set()
        """Calls that were told, and not yet their returns."""

    def event(self, event_type: EventType, content: str, /, **metadata: Any) -> StreamEvent:
        self.sequence += 1
        return StreamEvent(event_type, content, self.sequence - 1, metadata)

    def tell(self, heard: Event) -> Iterator[StreamEvent]:
        yield from self._void(heard)
        for words in self._said_by(heard):
            self._said += words
            yield self._of_turn("content", words)
        match heard:
            case RequestSent():
                self._turn, self._said = heard.turn, ""
                self._early.clear()
                self.attempts += 1
            case ReasoningAdded():
                yield self._of_turn("reasoning", heard.text)
            case ReasoningReplaced():
                yield self._of_turn("replaced", "", of="reasoning")
                yield self._of_turn("reasoning", heard.text)
            case RequestRetried():
                self._early.clear()
                self.attempts += 1
                self.broken.append(heard.kind)
                yield self._of_turn("retried", heard.reason, attempt=heard.attempt, kind=heard.kind, wait=heard.wait)
            case ToolCallsDetected():
                yield from self._calls(heard)
            case CallFinished():
                yield from self._call_finished(heard)
            case RunFinished():
                self.finished = heard
            case RunFailed():
                self.failed = heard
                self.broken += [str(verdict["kind"]) for verdict in heard.verdicts[-1:]]
            case _:
                pass

    def _void(self, heard: Event) -> Iterator[StreamEvent]:
        """Who speaks sentences cannot take them back, but who shows them can."""
        if isinstance(heard, TextReplaced) and Shown(self._said.lstrip()).compare(heard.text.lstrip()).replaced:
            self._said = ""
            yield self._of_turn("replaced", "", of="content")

    def _said_by(self, heard: Event) -> Sequence[str]:
        if self._sentences is not None:
            return self._sentences.take(heard)
        return [heard.text] if isinstance(heard, TextFinished) and heard.text else []

    def _calls(self, detected: ToolCallsDetected) -> Iterator[StreamEvent]:
        for call in detected.calls:
            yield self._of_turn("tool_call", str(call["name"]), call_id=call["id"], arguments=call["arguments"])
        early, self._early = self._early, {}
        self._open = {int(call["call"]) for call in detected.calls}
        for finished in early.values():
            yield from self._call_finished(finished)

    def _call_finished(self, call: CallFinished) -> Iterator[StreamEvent]:
        if call.call not in self._open:
            self._early[call.call] = call  # a call of a response that broke off is in no message, and stays there
            return
        self._open.discard(call.call)
        told = {"call_id": call.call_id, "name": call.name, "error": call.error, "seconds": round(call.seconds, 3)}
        yield self._of_turn("tool_return", call.text, **told)

    def _of_turn(self, event_type: EventType, content: str, /, **metadata: Any) -> StreamEvent:
        return self.event(event_type, content, turn=self._turn, **metadata)
