"""anthropic-messages, its events as faults change them: blocks with an `index`, each with its start and stop."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import ClassVar

from unbroken.wires.event_shapes import Event, Events, EventShapes, PartOfCall, TooLong
from unbroken.wires.values import Object, as_dict, dicts


class MessagesEvents(EventShapes):
    named = True
    text_arguments = ("streamed",)
    done_reason = "end_turn"
    interleaves = True
    too_long: ClassVar[Mapping[str, TooLong]] = {
        "anthropic": TooLong(400, "prompt is too long: 214315 tokens > 200000 maximum"),
        "anthropic_with_output": TooLong(
            400,
            "input length and `max_tokens` exceed context limit: 195012 + 8192 > 200000, decrease input length or "
            "`max_tokens` and try again",
        ),
        "anthropic_413": TooLong(413, "Request exceeds the maximum size"),
    }

    def arguments_in(self, event: Event) -> Iterator[tuple[Object, str]]:
        fields = as_dict(event)
        for block in (as_dict(fields.get("content_block")), *dicts(fields.get("content"))):
            if block.get("type") == "tool_use":
                yield block, "input"

    def text_in(self, event: Event) -> tuple[Object, str] | None:
        delta = as_dict(as_dict(event).get("delta"))
        keys = ("text", "thinking", "partial_json")
        return next(((delta, key) for key in keys if isinstance(delta.get(key), str)), None)

    def is_finish(self, event: Event) -> bool:
        return as_dict(event).get("type") == "message_delta"

    def is_after_finish(self, event: Event) -> bool:
        return as_dict(event).get("type") == "message_stop"

    def set_finish(self, event: Event, reason: str | None) -> None:
        fields = as_dict(event)
        for holder in (fields, as_dict(fields.get("delta"))):
            if holder.get("stop_reason"):
                holder["stop_reason"] = reason

    def provider_run(self, events: Events, stream: bool) -> Events:
        query = {"query": "weather"}
        call: Object = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": query}
        found: Object = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
        for event in events:
            fields = as_dict(event)
            if fields.get("type") == "message":
                fields["content"] = [call, found, *fields["content"]]
            if "index" in fields:
                fields["index"] += 2
            yield event
            if fields.get("type") == "message_start":
                for index, block in enumerate((call, found)):
                    yield {"type": "content_block_start", "index": index, "content_block": block}
                    yield {"type": "content_block_stop", "index": index}

    def part_of_call(self, event: Event) -> PartOfCall:
        fields = as_dict(event)
        if as_dict(fields.get("content_block")).get("type") == "tool_use":
            return "first"
        is_input = as_dict(fields.get("delta")).get("type") == "input_json_delta"
        return "later" if is_input or fields.get("type") == "content_block_stop" else ""

    def object_arguments(self, events: Events) -> Events:
        """In the start of the block."""
        held: list[Object] = []
        for event in events:
            if self.part_of_call(event) and as_dict(event).get("type") != "content_block_stop":
                held.append(as_dict(event))
                continue
            if held:
                start, *deltas = held
                held = []
                text = "".join(delta["delta"]["partial_json"] for delta in deltas)
                start["content_block"]["input"] = json.loads(text or "{}")
                yield start
            yield event
