"""openai-chat: what servers of Chat Completions refuse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from unbroken_wires.messages import Json
from unbroken_wires.wires.event_shapes import Event, Events, EventShapes, ForTests, PartOfCall, TooLong
from unbroken_wires.wires.json_access import Object, as_dict, as_text, dicts
from unbroken_wires.wires.strict import (
    FLAG,
    LIST,
    MESSAGES,
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

_ID_LENGTH = 40
_ASKED = {"text", "image_url", "video_url", "input_audio", "file"}
_ANSWERED = {"text", "refusal", "thinking"}
_RESULT_FIELDS = {"role", "content", "tool_call_id", "name"}

_FIELDS: Fields = {
    "model": TEXT,
    "messages": LIST,
    "tools": LIST,
    "tool_choice": TEXT_OR_OBJECT,
    "parallel_tool_calls": FLAG,
    "stream": FLAG,
    "stream_options": OBJECT,
    "response_format": OBJECT,
    "max_tokens": NUMBER,
    "max_completion_tokens": NUMBER,
    "stop": TEXT_OR_LIST,
    **SAMPLING,
}


def check_shape(body: Object) -> list[str]:
    return check_types(body, _FIELDS, {"messages": MESSAGES, "tools": {}}, "messages")


def check_request(body: Object) -> list[str]:
    problems = [*check_model(body), *_check_tools(body)]
    if "stream_options" in body and not body.get("stream"):
        problems.append("stream_options: only for a stream")
    messages = dicts(body.get("messages"))
    chain = Chain(problems)
    for n, message in enumerate(messages):
        where, role = f"messages[{n}]", message.get("role")
        if role == "tool":
            problems += _check_result(where, message)
            chain.result(where, as_text(message.get("tool_call_id")))
            continue
        chain.other(where)
        if role == "assistant":
            problems += _check_answer(where, message)
            if calls := dicts(message.get("tool_calls")):
                chain.calls(where, [as_text(call.get("id")) for call in calls])
        elif role == "function":
            if not n or not as_dict(messages[n - 1].get("function_call")):
                problems.append(f"{where}: the result of a function that was not called right before it")
        elif role in ("system", "developer", "user"):
            problems += check_content(where, message.get("content"), _ASKED)
        else:
            problems.append(f"{where}: there is no role {role!r}")
    chain.other("the end")
    return problems


def _check_tools(body: Object) -> list[str]:
    tools = dicts(body.get("tools"))
    # Others, which the provider runs, have no name: the rules of the providers know their types.
    called = [tool for tool in tools if tool.get("type") in (None, "function", "custom")]
    names = [as_text(as_dict(tool.get("function") or tool.get("custom")).get("name")) for tool in called]
    problems = check_names("tools", names)
    if "tools" in body and not tools:
        problems.append("tools: an empty list")
    for field in ("tool_choice", "parallel_tool_calls"):
        if field in body and not tools:
            problems.append(f"{field}: there are no tools")
    chosen = as_dict(as_dict(body.get("tool_choice")).get("function")).get("name")
    if chosen and chosen not in names:
        problems.append(f"tool_choice: there is no tool {chosen!r}")
    return problems


def _check_result(where: str, message: Object) -> list[str]:
    problems = check_content(where, message.get("content"), {"text"})
    if extra := message.keys() - _RESULT_FIELDS:
        problems.append(f"{where}: unknown fields: {', '.join(sorted(extra))}")
    return problems


def _check_answer(where: str, message: Object) -> list[str]:
    problems: list[str] = []
    content, calls = message.get("content"), dicts(message.get("tool_calls"))
    if content is not None:
        problems += check_content(where, content, _ANSWERED)
    elif not (calls or message.get("function_call") or message.get("refusal")):
        problems.append(f"{where}: neither content nor tool_calls")
    if "tool_calls" in message and not calls:
        problems.append(f"{where}.tool_calls: an empty list")
    for call in calls:
        function = as_dict(call.get("function"))
        problems += check_id(where, call.get("id"), _ID_LENGTH)
        if call.get("type") == "function":
            problems += check_call(where, function.get("name"), function.get("arguments"))
        elif call.get("type") != "custom":
            problems.append(f"{where}: there is no type of calls {call.get('type')!r}")
    return problems


# openai-chat, its events as faults change them: fragments of calls in `choices[].delta.tool_calls`.


class ChatEvents(EventShapes):
    loose_fragments = True
    done_reason = "stop"
    merges_calls = True
    interleaves = True
    usage_apart = True
    too_long: ClassVar[Mapping[str, TooLong]] = {
        "openai": TooLong(
            400,
            "This model's maximum context length is 8192 tokens. However, your messages resulted in 9731 tokens. "
            "Please reduce the length of the messages.",
            {"param": "messages", "code": "context_length_exceeded"},
        ),
        "vllm": TooLong(
            400,
            "This model's maximum context length is 4096 tokens. However, you requested 5012 tokens (4500 in the "
            "messages, 512 in the completion). Please reduce the length of the messages or completion.",
            {"type": "BadRequestError", "code": 400},
        ),
        "llama_cpp": TooLong(
            400,
            "the request exceeds the available context size (4096 tokens), try increasing it",
            {"type": "exceed_context_size_error", "code": 400},
        ),
        "mistral": TooLong(
            400,
            "Prompt contains 40133 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
            {"type": "invalid_request_prompt", "code": "3051"},
        ),
        "groq": TooLong(
            400,
            "Please reduce the length of the messages or completion.",
            {"param": "messages", "code": "context_length_exceeded"},
        ),
        "qwen": TooLong(
            400,
            "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]",
            {"code": "invalid_parameter_error"},
        ),
        "moonshot": TooLong(400, "Invalid request: Your request exceeded model token limit: 131072"),
    }

    def numbered(self, event: Event) -> list[Object]:
        return self.fragments(event)

    def fragments(self, event: Event) -> list[Object]:
        return [
            fragment
            for choice in _choices(event)
            for holder in (as_dict(choice.get("delta")), as_dict(choice.get("message")))
            for fragment in dicts(holder.get("tool_calls"))
        ]

    def arguments_in(self, event: Event) -> Iterator[tuple[Object, str]]:
        for fragment in self.fragments(event):
            if "arguments" in fragment["function"]:
                yield fragment["function"], "arguments"

    def text_in(self, event: Event) -> tuple[Object, str] | None:
        delta = as_dict(_delta(event))
        for key in ("content", "reasoning_content"):
            if isinstance(delta.get(key), str):
                return delta, key
        functions = [as_dict(fragment["function"]) for fragment in self.fragments(event)]
        return next(((one, "arguments") for one in functions if isinstance(one.get("arguments"), str)), None)

    def is_finish(self, event: Event) -> bool:
        return any(choice.get("finish_reason") for choice in _choices(event))

    def set_finish(self, event: Event, reason: str | None) -> None:
        for choice in _choices(event):
            if choice.get("finish_reason"):
                choice["finish_reason"] = reason

    def provider_run(self, events: Events, stream: bool) -> Events:
        function: Object = {"name": "web_search", "arguments": '{"query":"weather"}'}
        call: Object = {"id": "srv_1", "type": "web_search", "function": function}
        for event in events:
            fragments = self.fragments(event)
            if not stream and fragments:
                as_dict(event)["choices"][0]["message"]["tool_calls"] = [*fragments, call]
            yield event
            if stream and as_dict(_delta(event)).get("role"):
                yield _with_delta(event, {"tool_calls": [{"index": 9, **call}]})

    def all_calls_at_once(self, events: Events) -> Events:
        calls: dict[int, Object] = {}
        for event in events:
            if fragments := self.fragments(event):
                for fragment in fragments:
                    call = calls.setdefault(fragment["index"], fragment)
                    if call is not fragment:
                        call["function"]["arguments"] += fragment["function"]["arguments"]
                continue
            if calls and self.is_finish(event):
                yield _with_delta(event, {"tool_calls": list(calls.values())})
                calls = {}
            yield event

    def part_of_call(self, event: Event) -> PartOfCall:
        fragments = self.fragments(event)
        return "" if not fragments else "first" if "name" in fragments[0]["function"] else "later"

    def usage_last(self, events: Events) -> Events:
        usage: Object = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
        for event in events:
            fields = as_dict(event)
            if self.is_finish(event):
                yield event
                yield {**fields, "choices": [], "usage": usage}
            elif "usage" not in fields or fields.get("choices") != []:
                yield event


def _choices(event: Event) -> list[Object]:
    return dicts(as_dict(event).get("choices"))


def _delta(event: Event) -> Json:
    return next((choice.get("delta") for choice in _choices(event)), None)


def _with_delta(event: Event, delta: Object) -> Object:
    return {**as_dict(event), "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


FOR_TESTS = ForTests(check_shape, check_request, ChatEvents())
