"""Names of Dolphin, for code that is moving from it: `StreamItem` and `ToolCallInfo` over a response,
`detect_tool_calls`, the functions that append messages, the deduplicator, and the chunks of `chat()`. New code reads
`Response`. Docs: docs/moving/from-dolphin.md."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, cast

from unbroken.decoding.arguments import DOUBLE_ENCODED, parse_arguments
from unbroken.decoding.decoder import Response
from unbroken.dph import flags
from unbroken.messages import Assistant, Json, ToolCall, ToolResult
from unbroken.transcript import Transcript
from unbroken.wires.values import MINTED

LOG = logging.getLogger("unbroken.tools")
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
    """Adds the result of a call; `metadata={"error": True}` marks it as failed. `InvalidStep` if no such call is
    open."""
    name = next((call.name for call in transcript.open if call.id == tool_call_id), "")
    failed = bool((metadata or {}).get("error"))
    transcript.answer(ToolResult.of(ToolCall(tool_call_id, name, None), content, error=failed))


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
