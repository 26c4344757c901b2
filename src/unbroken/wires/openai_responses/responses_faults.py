"""openai-responses, its events as faults change them: items with an `output_index`, repeated by the last event."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from unbroken.wires.event_shapes import Event, Events, EventShapes, TooLong
from unbroken.wires.openai_responses.responses_encoder import ResponsesProviderWriter
from unbroken.wires.values import Object, as_dict, dicts


class ResponsesEvents(EventShapes):
    named = True
    calls_have_status = True
    index = "output_index"
    too_long: ClassVar[Mapping[str, TooLong]] = {
        "openai": TooLong(
            400,
            "This model's maximum context length is 8192 tokens. However, your messages resulted in 9731 tokens. "
            "Please reduce the length of the messages.",
            {"param": "messages", "code": "context_length_exceeded"},
        ),
        "responses": TooLong(
            400,
            "Your input exceeds the context window of this model. Please adjust your input and try again.",
            {"param": "input", "code": "context_length_exceeded"},
        ),
    }

    def arguments_in(self, event: Event) -> Iterator[tuple[Object, str]]:
        fields = as_dict(event)
        items = [as_dict(fields.get("item")), *dicts(fields.get("output"))]
        items += dicts(as_dict(fields.get("response")).get("output"))
        for item in items:
            if item.get("type") == "function_call":
                yield item, "arguments"
        if fields.get("type") == "response.function_call_arguments.done":
            yield fields, "arguments"

    def text_in(self, event: Event) -> tuple[Object, str] | None:
        fields = as_dict(event)
        is_delta = str(fields.get("type")).endswith(".delta") and isinstance(fields.get("delta"), str)
        return (fields, "delta") if is_delta else None

    def is_finish(self, event: Event) -> bool:
        return as_dict(event).get("type") in ("response.completed", "response.incomplete")

    def provider_run(self, events: Events, stream: bool) -> Events:
        search: Object = {"type": "search", "query": "weather"}
        item: Object = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": search}
        opened = False
        for event in events:
            fields = as_dict(event)
            if "output_index" in fields:
                fields["output_index"] += 1
                if not opened:
                    opened = True
                    yield {"type": "response.output_item.added", "output_index": 0, "item": item}
                    yield {"type": "response.output_item.done", "output_index": 0, "item": item}
            for response in (fields, as_dict(fields.get("response"))):
                if response.get("output"):
                    response["output"] = [item, *response["output"]]
            yield event

    def object_arguments(self, events: Events) -> Events:
        whole = (e for e in events if as_dict(e).get("type") != "response.function_call_arguments.delta")
        return super().object_arguments(whole)

    def error_event(self, error: Object, message: str) -> bytes:
        return ResponsesProviderWriter("", "failed").fail(500, message)
