"""openai-chat: what servers of Chat Completions refuse."""

from __future__ import annotations

from unbroken.wires.strict import (
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
from unbroken.wires.values import Object, as_dict, as_text, dicts

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
    problems = check_types(body, _FIELDS, {"messages": MESSAGES, "tools": {}})
    if problems:
        return problems
    return [] if body.get("messages") else ["messages: none"]


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
    names = [as_text(as_dict(tool.get("function") or tool.get("custom")).get("name")) for tool in tools]
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
