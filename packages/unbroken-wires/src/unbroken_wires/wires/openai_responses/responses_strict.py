"""openai-responses: what servers of the Responses API refuse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from unbroken_wires.messages import Request
from unbroken_wires.wires.event_shapes import Event, Events, EventShapes, ForTests, TooLong
from unbroken_wires.wires.json_access import Object, as_dict, as_text, dicts
from unbroken_wires.wires.openai_responses.responses_encoder import ResponsesProviderWriter
from unbroken_wires.wires.openai_responses.responses_items import run_by_provider
from unbroken_wires.wires.strict import (
    FLAG,
    LIST,
    NUMBER,
    OBJECT,
    SAMPLING,
    TEXT,
    TEXT_OR_LIST,
    TEXT_OR_OBJECT,
    Chain,
    Fields,
    check_call,
    check_content,
    check_id,
    check_model,
    check_names,
    check_types,
)

_ID_LENGTH = 64
_CALLS = ("function_call", "custom_tool_call")
_RESULTS = ("function_call_output", "custom_tool_call_output")
_PREFIXES = {"function_call": "fc", "custom_tool_call": "ctc", "message": "msg", "reasoning": "rs"}
_ASKED = {"input_text", "input_image", "input_file", "input_audio"}
_ANSWERED = {"output_text", "refusal"}

_FIELDS: Fields = {
    "model": TEXT,
    "input": TEXT_OR_LIST,
    "instructions": TEXT_OR_LIST,
    "tools": LIST,
    "tool_choice": TEXT_OR_OBJECT,
    "parallel_tool_calls": FLAG,
    "stream": FLAG,
    "reasoning": OBJECT,
    "text": OBJECT,
    "max_output_tokens": NUMBER,
    "previous_response_id": TEXT,
    **SAMPLING,
}
_ITEMS: Fields = {"type": TEXT, "role": TEXT, "content": TEXT_OR_LIST, "call_id": TEXT}
_QUESTIONS = ("input", "previous_response_id", "conversation", "prompt")


def check_shape(body: Object) -> list[str]:
    problems = check_types(body, _FIELDS, {"input": _ITEMS, "tools": {}})
    return problems or ([] if any(body.get(field) for field in _QUESTIONS) else ["input: nothing"])


def check_request(body: Object) -> list[str]:
    problems = check_model(body)
    tools = dicts(body.get("tools"))
    names = [as_text(tool.get("name")) for tool in tools if tool.get("type") == "function"]
    problems += check_names("tools", names)
    if body.get("tool_choice") not in (None, "auto", "none") and not tools:
        problems.append("tool_choice: there are no tools")
    elif (chosen := as_dict(body.get("tool_choice")).get("name")) and chosen not in names:
        problems.append(f"tool_choice: there is no tool {chosen!r}")
    if as_text(body.get("input")):
        return problems
    items = dicts(body.get("input"))
    stored = bool(body.get("previous_response_id") or body.get("conversation"))
    for n, item in enumerate(items):
        problems += _check_item(f"input[{n}]", item)
    return problems + _check_reasoning(items) + _check_chain(items, stored)


def _type(item: Object) -> str:
    return as_text(item.get("type")) or "message"


def _by_model(item: Object) -> bool:
    type = _type(item)
    speaks = type == "message" and item.get("role") == "assistant"
    return type in ("reasoning", *_CALLS) or speaks or (type not in _RESULTS and run_by_provider(item))


def _check_item(where: str, item: Object) -> list[str]:
    problems: list[str] = []
    type, prefix = _type(item), _PREFIXES.get(_type(item), "")
    if not as_text(item.get("id") or prefix).startswith(prefix):
        problems.append(f"{where}.id: {item['id']!r} does not begin with {prefix!r}")
    if type in _CALLS:
        problems += check_id(where, item.get("call_id"), _ID_LENGTH)
        if type == "function_call":
            problems += check_call(where, item.get("name"), item.get("arguments"))
    elif type in _RESULTS:
        problems += check_content(where, item.get("output"), _ASKED)
    elif type == "message":
        if item.get("role") not in ("user", "assistant", "system", "developer"):
            problems.append(f"{where}: there is no role {item.get('role')!r}")
        problems += check_content(where, item.get("content"), _ANSWERED if _by_model(item) else _ASKED)
    return problems


def _check_reasoning(items: list[Object]) -> list[str]:
    lonely = [
        n
        for n, item in enumerate(items)
        if _type(item) == "reasoning" and not any(_by_model(following) for following in items[n + 1 : n + 2])
    ]
    return [f"input[{n}]: reasoning without the item that it led to" for n in lonely]


def _check_chain(items: list[Object], stored: bool) -> list[str]:
    """Neighbouring items of the model are one answer: its calls are open together, and answered after it. A call that
    is not among the items may be one that the provider has `stored`."""
    problems: list[str] = []
    chain, calls = Chain(problems), list[str]()
    here = {as_text(item.get("call_id")) for item in items if _type(item) in _CALLS}
    for n, item in enumerate(items):
        where, id = f"input[{n}]", as_text(item.get("call_id"))
        if _type(item) in _CALLS:
            calls.append(id)
        elif not _by_model(item):
            if calls:
                chain.calls(where, calls)
                calls = []
            if _type(item) not in _RESULTS:
                chain.other(where)
            elif id in here or not stored:
                chain.result(where, id)
    if calls:
        chain.calls("the end", calls)
    chain.other("the end")
    return problems


# openai-responses, its events as faults change them: items with an `output_index`, repeated by the last event.


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
        return ResponsesProviderWriter(Request(()), "failed").fail(500, message)


FOR_TESTS = ForTests(check_shape, check_request, ResponsesEvents())
