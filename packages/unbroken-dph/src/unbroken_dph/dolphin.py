"""Names of Dolphin, for code that is moving from it: `StreamItem` and `ToolCallInfo` over a response,
`detect_tool_calls`, the functions that append messages, the deduplicator, and the chunks of `chat()`. New code reads
`Response`. Docs: docs/moving/from-dolphin.md."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol, TypeAlias, cast

from unbroken_dph import flags
from unbroken_wires.decoding.arguments import DOUBLE_ENCODED, parse_arguments
from unbroken_wires.decoding.decoder import Response
from unbroken_wires.messages import Assistant, Json, ToolCall, ToolResult
from unbroken_wires.transcript import Transcript
from unbroken_wires.wires.json_access import MINTED

LOG = logging.getLogger("unbroken.tools")
SCRATCHPAD = "scratchpad"
"""The bucket that strategies write to."""
QUOTED = 200
"""Characters of arguments in a log line."""


NameAndArguments: TypeAlias = tuple[str, Mapping[str, Json] | None]


class Warns(Protocol):
    """The part of Dolphin's `Context` that is used here."""

    def warn(self, message: str) -> object: ...


@dataclass(slots=True)
class ToolCallInfo:
    """A call. `arguments` is None, and `is_complete` false, if they were not received completely."""

    id: str
    name: str
    arguments: dict[str, Json] | None = None
    index: int = 0
    raw_arguments: str = ""
    is_complete: bool = False


@dataclass(slots=True)
class StreamItem:
    """What a model answered: `StreamItem.of(response)`. `tool_name` and `tool_args` are those of the first call."""

    answer: str = ""
    think: str = ""
    tool_name: str = ""
    tool_args: dict[str, Json] | None = None
    tool_calls: list[ToolCallInfo] = field(default_factory=list[ToolCallInfo])
    output_var_value: Any = None
    finish_reason: str | None = None
    token_usage: Mapping[str, Json] = field(default_factory=dict[str, Json])

    @classmethod
    def of(cls, response: Response) -> StreamItem:
        """The old fields of a response."""
        calls = [
            ToolCallInfo(call.id, call.name, call.arguments, call.index, call.raw, call.complete)
            for call in response.calls
        ]
        item = cls(response.text, response.reasoning, tool_calls=calls, finish_reason=response.finish)
        item.token_usage = _usage(response)
        if calls:
            item.tool_name, item.tool_args = calls[0].name, calls[0].arguments
        return item

    def parse_from_chunk(self, chunk: Mapping[str, Any], session_counter: int | None = None) -> None:
        """Takes over what `chat()` returned: `chunk_of(response)`, or a chunk of an LLM layer that is still yours.
        `session_counter` is for the ids of calls that have none."""
        batch = uuid.uuid4().hex[:8] if session_counter is None else str(session_counter)
        self.answer = chunk.get("content") or ""
        self.think = chunk.get("reasoning_content") or ""
        self.token_usage = chunk.get("usage") or {}
        self.finish_reason = chunk.get("finish_reason")
        data: Mapping[Any, Mapping[str, Any]] = chunk.get("tool_calls_data") or {}
        if data:
            numbered = sorted(((_number(index), each) for index, each in data.items()), key=lambda pair: pair[0])
            self.tool_calls = [_info(index, each, batch) for index, each in numbered if each.get("name")]
        if chunk.get("func_name"):
            self.tool_name = chunk["func_name"]
            self.tool_args = _parse("".join(chunk.get("func_args") or []), f"legacy tool call '{self.tool_name}'")

    def has_tool_call(self) -> bool:
        """With the flag `ENABLE_PARALLEL_TOOL_CALLS` off, only `tool_name` counts."""
        if flags.is_enabled(flags.ENABLE_PARALLEL_TOOL_CALLS):
            return bool(self.tool_name or self.tool_calls)
        return bool(self.tool_name)

    def has_tool_calls(self) -> bool:
        """Whatever the flag is."""
        return bool(self.tool_calls)

    def get_tool_calls(self) -> list[ToolCallInfo]:
        """All calls; if only the old fields are set, the one that they describe."""
        if self.tool_calls or not self.tool_name:
            return self.tool_calls
        known = self.tool_args is not None
        return [ToolCallInfo(f"call_{self.tool_name}_0", self.tool_name, self.tool_args, is_complete=known)]


def detect_tool_calls(item: StreamItem, context: Warns | None = None) -> list[ToolCall]:
    """The calls that may run, in the order of their index. One that was cut is skipped with a warning, in `context` or
    in the log."""
    found: list[ToolCall] = []
    for info in item.get_tool_calls():
        if info.is_complete and info.arguments is not None:
            found.append(ToolCall(info.id, info.name, info.arguments, info.raw_arguments, info.index))
        elif item.finish_reason is not None:
            line = (
                f"Tool call {info.name} (id={info.id}) skipped: Stream ended but JSON arguments incomplete or invalid. "
                f"Raw arguments: '{_first(info.raw_arguments)}'"
            )
            (LOG.warning if context is None else context.warn)(line)
    return found


def detect_tool_call(item: StreamItem, context: Warns | None = None) -> ToolCall | None:
    """The first call that may run."""
    return next(iter(detect_tool_calls(item, context)), None)


def append_tool_calls_message(transcript: Transcript, item: StreamItem, calls: Sequence[ToolCall]) -> None:
    """Adds the message with these calls to the history: each of them needs a result before the next message."""
    transcript.add(Assistant(item.answer, tuple(calls), item.think))


def append_tool_call_message(transcript: Transcript, item: StreamItem, call: ToolCall) -> None:
    """The same for one call."""
    append_tool_calls_message(transcript, item, [call])


def append_tool_response_message(
    transcript: Transcript, tool_call_id: str, content: str, metadata: Mapping[str, Any] | None = None
) -> None:
    """Adds the result of a call. `metadata={"error": True}` marks it as failed; all of it is the result's `data`.
    `InvalidStep` if no such call is open."""
    name = next((call.name for call in transcript.open if call.id == tool_call_id), "")
    failed = bool((metadata or {}).get("error"))
    result = ToolResult.of(ToolCall(tool_call_id, name, None), content, error=failed)
    transcript.answer(replace(result, data=None if metadata is None else dict(metadata)))


class MessageRole(StrEnum):
    """Whose message it is."""

    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(slots=True)
class Message:
    """A message of `Messages`: one with calls, or a result."""

    role: MessageRole
    content: str
    tool_calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    tool_call_id: str = ""
    user_id: str = ""
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])


class Messages:
    """Messages in OpenAI's form, for a context that is still yours. A `Transcript` checks them, this does not."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def add_tool_call_message(self, content: str, tool_calls: list[dict[str, Any]]) -> None:
        """Adds one message with all calls."""
        self.messages.append(Message(MessageRole.ASSISTANT, content, tool_calls))

    def add_tool_response_message(
        self, content: str, tool_call_id: str, user_id: str = "", metadata: Mapping[str, Any] | None = None
    ) -> None:
        """Adds the result of one call."""
        result = Message(MessageRole.TOOL, content, tool_call_id=tool_call_id, user_id=user_id)
        result.metadata = dict(metadata or {})
        self.messages.append(result)

    def last(self) -> Message:
        """The newest message."""
        return self.messages[-1]

    def get_tool_response_messages(self) -> list[Message]:
        """The results, in the order in which they were added."""
        return [message for message in self.messages if message.role == MessageRole.TOOL]


class Buckets(Protocol):
    """The part of Dolphin's `Context` that strategies write to."""

    def add_bucket(self, name: str, messages: Messages) -> object: ...


class ExploreStrategy:
    """Reads one call of each response: a subclass that finds calls elsewhere overrides `detect_tool_call`. What it
    appends goes to the scratchpad of your context; the functions of this module append to a `Transcript`."""

    def __init__(self) -> None:
        self._deduplicator = DefaultSkillCallDeduplicator()

    def get_deduplicator(self) -> DefaultSkillCallDeduplicator:
        """Which calls were made before."""
        return self._deduplicator

    def detect_tool_call(self, stream_item: StreamItem, context: Warns | None = None) -> ToolCall | None:
        """The first call that may run."""
        return detect_tool_call(stream_item, context)

    def detect_tool_calls(self, stream_item: StreamItem, context: Warns | None = None) -> list[ToolCall]:
        """The same as a list."""
        single = self.detect_tool_call(stream_item, context)
        return [single] if single else []

    def append_tool_calls_message(
        self, context: Buckets, stream_item: StreamItem, tool_calls: Sequence[ToolCall]
    ) -> None:
        """Adds one message with these calls."""
        calls: list[dict[str, Any]] = []
        for call in tool_calls:
            arguments = json.dumps(call.arguments or {}, ensure_ascii=False)
            function = {"name": call.name, "arguments": arguments}
            calls.append({"id": call.id, "type": "function", "function": function})
        messages = Messages()
        messages.add_tool_call_message(content=stream_item.answer, tool_calls=calls)
        context.add_bucket(SCRATCHPAD, messages)

    def append_tool_call_message(self, context: Buckets, stream_item: StreamItem, tool_call: ToolCall) -> None:
        """The same for one call."""
        self.append_tool_calls_message(context, stream_item, [tool_call])

    def append_tool_response_message(
        self, context: Buckets, tool_call_id: str, content: str, metadata: Mapping[str, Any] | None = None
    ) -> None:
        """Adds the result of a call, with all of its metadata."""
        messages = Messages()
        messages.add_tool_response_message(content=content, tool_call_id=tool_call_id, metadata=metadata or {})
        context.add_bucket(SCRATCHPAD, messages)


class ToolCallStrategy(ExploreStrategy):
    """Reads all calls of a response."""

    def detect_tool_calls(self, stream_item: StreamItem, context: Warns | None = None) -> list[ToolCall]:
        """Those that may run, in the order of their index."""
        return detect_tool_calls(stream_item, context)


class DefaultSkillCallDeduplicator:
    """The calls that were made before, each as its name and its arguments; the order of their keys does not matter."""

    def __init__(self) -> None:
        self._made: set[str] = set()

    def is_duplicate(self, call: NameAndArguments) -> bool:
        """Whether a call with this name and these arguments was added."""
        return _key(*call) in self._made

    def add(self, call: NameAndArguments) -> None:
        """Notes a call as made."""
        self._made.add(_key(*call))

    def filter_duplicates(self, calls: Iterable[NameAndArguments]) -> list[NameAndArguments]:
        """Those that were not made before. Equal ones among them stay: see `deduplicate_within_batch`."""
        return [call for call in calls if not self.is_duplicate(call)]

    def add_batch(self, calls: Iterable[NameAndArguments]) -> None:
        """Notes all of them as made."""
        for call in calls:
            self.add(call)


def deduplicate_within_batch(calls: Iterable[ToolCall]) -> list[ToolCall]:
    """The first of each name with the same arguments. The others need a result too: `append_tool_response_message`."""
    first: dict[str, ToolCall] = {}
    for call in calls:
        first.setdefault(_key(call.name, call.arguments), call)
    return [*first.values()]


def chunk_of(response: Response) -> dict[str, Any]:
    """What `chat()` of Dolphin's LLM layer returns at the end of a response, for a `StreamItem` of your own. A call to
    which the provider gave no id has none here: `parse_from_chunk` makes it from its counter."""
    calls: dict[int, dict[str, Any]] = {
        call.index: {
            "id": None if MINTED in call.notes else call.id,
            "name": call.name,
            "arguments": [call.raw or "{}" if call.complete else call.raw],
        }
        for call in response.calls
    }
    first = next(iter(calls.values()), {"name": None, "arguments": list[str]()})
    return {
        "content": response.text,
        "reasoning_content": response.reasoning,
        "tool_calls_data": calls,
        "finish_reason": response.finish,
        "usage": _usage(response),
        "func_name": first["name"],
        "func_args": first["arguments"],
    }


def _key(name: str, arguments: Mapping[str, Json] | None) -> str:
    return json.dumps([name, arguments], sort_keys=True)


def _info(index: int, data: Mapping[str, Any], batch: str) -> ToolCallInfo:
    raw = "".join(cast("list[str]", data.get("arguments") or []))
    arguments = _parse(raw, f"tool call '{data['name']}'")
    id = data.get("id") or f"call_{batch}_{index}"
    return ToolCallInfo(id, data["name"], arguments, index, raw, arguments is not None)


def _parse(raw: str, call: str) -> dict[str, Json] | None:
    if not raw.strip():
        return None
    parsed = parse_arguments(raw)
    if DOUBLE_ENCODED in parsed.notes:
        line = "Double JSON encoding detected for %s, performing second parse. Original: %s"
        LOG.debug(line, call, _first(raw))
    return parsed.arguments


def _first(raw: str) -> str:
    return raw if len(raw) <= QUOTED else f"{raw[:QUOTED]}..."


def _usage(response: Response) -> Mapping[str, Json]:
    """In the words of the provider, if it reported any."""
    usage = response.usage
    return {} if usage is None else usage.raw or usage.to_json()


def _number(index: object) -> int:
    try:
        return int(cast("Any", index))
    except (TypeError, ValueError):
        return 0
