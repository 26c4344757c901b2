"""What a provider would refuse: a request in its wire's own JSON is read the way the strictest server of it does.

Written from what the providers document and answer, and independent of our encoders and repairs, so that it can judge
them. Stricter than most servers on purpose in one thing: results stand in the order of their calls everywhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, cast

from unbroken.messages import Json
from unbroken.wires import find_wire

Object: TypeAlias = dict[str, Any]

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ANTHROPIC_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_ANTHROPIC_ID = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_GEMINI_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}")


def check_request(wire: str, body: Json) -> list[str]:
    """Everything for which a provider of this wire would refuse the request, each in one line. Empty: it takes it."""
    check = CHECKS[find_wire(wire).name]
    return check(cast("Object", body)) if isinstance(body, dict) else ["the body is not a JSON object"]


class _Chain:
    """Calls and their results, in the order in which they stand. Told turn by turn; collects what is wrong."""

    def __init__(self, problems: list[str], unique: bool = False) -> None:
        self._problems = problems
        self._unique = unique
        self._seen: set[str] = set()
        self._open: list[str] = []
        self._answered: set[str] = set()

    def calls(self, where: str, ids: Iterable[str]) -> None:
        """The calls of one message."""
        self.other(where)
        self._answered.clear()
        for id in ids:
            if id in self._open:
                self._problems.append(f"{where}: two calls have the id {id!r}")
            elif self._unique and id in self._seen:
                self._problems.append(f"{where}: the id {id!r} was already used by an earlier call")
            self._seen.add(id)
            self._open.append(id)

    def result(self, where: str, id: str) -> None:
        if id in self._open:
            if self._open[0] != id:
                self._problems.append(f"{where}: the result of {id!r} stands before that of {self._open[0]!r}")
            self._open.remove(id)
            self._answered.add(id)
        elif id in self._answered:
            self._problems.append(f"{where}: a second result for the call {id!r}")
        else:
            self._problems.append(f"{where}: a result for {id!r}, which no call right before it has")

    def other(self, where: str) -> None:
        """Something else is said: whatever was called must have its result by now."""
        if self._open:
            self._problems.append(f"{where}: these calls before it have no result: {', '.join(self._open)}")
            self._open.clear()


def _check_chat(body: Object) -> list[str]:
    problems = _check_model(body)
    tools = _list(body.get("tools"))
    names = [_text(_dict(tool.get("function") or tool.get("custom")).get("name")) for tool in tools]
    problems += _check_names("tools", names, _NAME)
    if "tools" in body and not tools:
        problems.append("tools: an empty list")
    problems += [
        f"{key}: there are no tools" for key in ("tool_choice", "parallel_tool_calls") if key in body and not tools
    ]
    if (chosen := _dict(_dict(body.get("tool_choice")).get("function")).get("name")) and chosen not in names:
        problems.append(f"tool_choice: there is no tool {chosen!r}")
    if "stream_options" in body and not body.get("stream"):
        problems.append("stream_options: only for a stream")
    messages = _list(body.get("messages"))
    if not messages:
        problems.append("messages: none")
    chain, functions = _Chain(problems), False
    for n, message in enumerate(messages):
        where, role, content = f"messages[{n}]", message.get("role"), message.get("content")
        if role == "tool":
            if extra := message.keys() - {"role", "content", "tool_call_id", "name"}:
                problems.append(f"{where}: unknown fields: {', '.join(sorted(extra))}")
            problems += _check_content(where, content, {"text"})
            chain.result(where, _text(message.get("tool_call_id")))
            continue
        if role == "function":
            if not functions:
                problems.append(f"{where}: a function's result without its call")
            functions = False
            continue
        chain.other(where)
        functions = isinstance(message.get("function_call"), dict)
        if role == "assistant":
            calls = _list(message.get("tool_calls"))
            if "tool_calls" in message and not calls:
                problems.append(f"{where}.tool_calls: an empty list")
            if content is not None:
                problems += _check_content(where, content, {"text", "refusal", "thinking"})
            elif not calls and not functions and not message.get("refusal"):
                problems.append(f"{where}: neither content nor tool_calls")
            for call in calls:
                problems += _check_chat_call(f"{where}.tool_calls", call)
            if calls:
                chain.calls(where, [_text(call.get("id")) for call in calls])
        elif role in ("system", "developer", "user"):
            problems += _check_content(where, content, {"text", "image_url", "input_audio", "file", "video_url"})
        else:
            problems.append(f"{where}: there is no role {role!r}")
    chain.other("the end")
    return problems


def _check_chat_call(where: str, call: Object) -> list[str]:
    id, function = call.get("id"), _dict(call.get("function"))
    problems = _check_id(where, id, 40)
    if call.get("type") == "custom":
        return problems
    if call.get("type") != "function":
        problems.append(f"{where}: a call of no type")
    return problems + _check_call(where, function.get("name"), function.get("arguments"))


def _check_responses(body: Object) -> list[str]:
    problems = _check_model(body)
    tools = _list(body.get("tools"))
    names = [_text(tool.get("name")) for tool in tools if tool.get("type") == "function"]
    problems += _check_names("tools", names, _NAME)
    if body.get("tool_choice") not in (None, "auto", "none") and not tools:
        problems.append("tool_choice: there are no tools")
    if (chosen := _dict(body.get("tool_choice")).get("name")) and chosen not in names:
        problems.append(f"tool_choice: there is no tool {chosen!r}")
    if isinstance(body.get("input"), str):
        return problems
    items = _list(body.get("input"))
    elsewhere = bool(body.get("previous_response_id") or body.get("conversation"))
    if not items and not elsewhere and not body.get("prompt"):
        problems.append("input: nothing")
    return problems + _check_items(items, elsewhere)


_CALLS = {"function_call": "fc", "custom_tool_call": "ctc"}
_PREFIXES = {**_CALLS, "message": "msg", "reasoning": "rs"}


def _check_items(items: list[Object], elsewhere: bool) -> list[str]:
    """Neighbouring items of the model are one answer: its calls are open together, and answered after it."""
    problems: list[str] = []
    chain, batch = _Chain(problems), list[str]()
    known = {_text(item.get("call_id")) for item in items if item.get("type") in _CALLS}
    reasoning = ""
    for n, item in enumerate(items):
        where, type, id = f"input[{n}]", item.get("type") or "message", item.get("id")
        if isinstance(id, str) and type in _PREFIXES and not id.startswith(_PREFIXES[type]):
            problems.append(f"{where}.id: {id!r} does not begin with {_PREFIXES[type]!r}")
        by_model = type in ("reasoning", *_CALLS) or (type == "message" and item.get("role") == "assistant")
        if not by_model and reasoning:
            problems.append(f"{reasoning}: reasoning without the item that it led to")
        reasoning = where if type == "reasoning" else ""
        if type in _CALLS:
            problems += _check_id(where, item.get("call_id"), 64, "call_id")
            if type == "function_call":
                problems += _check_call(where, item.get("name"), item.get("arguments"))
            batch.append(_text(item.get("call_id")))
            continue
        if batch and not by_model:
            chain.calls(where, batch)
            batch = []
        if type in ("function_call_output", "custom_tool_call_output"):
            call_id = _text(item.get("call_id"))
            if call_id in known or not elsewhere:
                chain.result(where, call_id)
            output = item.get("output")
            problems += _check_content(where, output, {"input_text", "input_image", "input_file"})
        elif type == "message":
            if not by_model:
                chain.other(where)
            parts = {"output_text", "refusal"} if by_model else {"input_text", "input_image", "input_file"}
            if item.get("role") not in ("user", "assistant", "system", "developer"):
                problems.append(f"{where}: there is no role {item.get('role')!r}")
            problems += _check_content(where, item.get("content"), parts)
    if reasoning:
        problems.append(f"{reasoning}: reasoning without the item that it led to")
    if batch:
        chain.calls("the end", batch)
    chain.other("the end")
    return problems


def _check_messages(body: Object) -> list[str]:
    problems = _check_model(body)
    if not isinstance(body.get("max_tokens"), int) or body["max_tokens"] < 1:
        problems.append("max_tokens: a positive number is required")
    tools = _list(body.get("tools"))
    problems += _check_names("tools", [_text(tool.get("name")) for tool in tools], _ANTHROPIC_NAME)
    choice = _dict(body.get("tool_choice"))
    if choice and not tools:
        problems.append("tool_choice: there are no tools")
    if choice.get("type") in ("any", "tool") and _dict(body.get("thinking")).get("type") == "enabled":
        problems.append("tool_choice: a call cannot be forced while thinking is enabled")
    if (chosen := choice.get("name")) and chosen not in [tool.get("name") for tool in tools]:
        problems.append(f"tool_choice: there is no tool {chosen!r}")
    if isinstance(body.get("system"), list):
        problems += _check_blocks("system", _list(body["system"]), {"text"})
    messages = _list(body.get("messages"))
    if not messages:
        problems.append("messages: none")
    elif messages[0].get("role") != "user":
        problems.append("messages[0]: the first message must be the user's")
    chain = _Chain(problems, unique=True)
    for n, message in enumerate(messages):
        where, role = f"messages[{n}]", message.get("role")
        if role not in ("user", "assistant"):
            problems.append(f"{where}: there is no role {role!r}")
        _check_message(where, message, chain, problems, last=n == len(messages) - 1, tools=bool(tools))
    chain.other("the end")
    if json.dumps(body).count('"cache_control"') > 4:
        problems.append("cache_control: more than 4 marks")
    return problems


def _check_message(where: str, message: Object, chain: _Chain, problems: list[str], last: bool, tools: bool) -> None:
    content, by_model = message.get("content"), message.get("role") == "assistant"
    if isinstance(content, str):
        chain.other(where)
        if not content.strip():
            problems.append(f"{where}: the text is empty")
        if by_model and last and content != content.rstrip():
            problems.append(f"{where}: the last message of the assistant ends in white space")
        return
    blocks = _list(content)
    if not blocks:
        problems.append(f"{where}: no content")
    results = [block for block in blocks if block.get("type") == "tool_result"]
    calls = [block for block in blocks if block.get("type") == "tool_use"]
    if (results or calls) and not tools:
        problems.append(f"{where}: calls or results in a request without tools")
    if blocks[: len(results)] != results:
        problems.append(f"{where}: results must stand before everything else")
    for block in results:
        if by_model:
            problems.append(f"{where}: a result in a message of the assistant")
        chain.result(where, _text(block.get("tool_use_id")))
        if isinstance(block.get("content"), list):
            inner = {"text", "image", "document", "search_result", "tool_reference"}
            problems += _check_blocks(where, _list(block["content"]), inner)
    chain.other(where)
    problems += _check_blocks(where, blocks, None)
    for block in calls:
        if not by_model:
            problems.append(f"{where}: a call in a message of the user")
        if not _ANTHROPIC_ID.fullmatch(_text(block.get("id"))):
            problems.append(f"{where}: the id {block.get('id')!r} has characters that are not allowed")
        if not _ANTHROPIC_NAME.fullmatch(_text(block.get("name"))):
            problems.append(f"{where}: {block.get('name')!r} cannot be a tool's name")
        if not isinstance(block.get("input"), dict):
            problems.append(f"{where}: the input of a call is not an object")
    if calls:
        chain.calls(where, [_text(block.get("id")) for block in calls])
    if by_model and blocks and blocks[-1].get("type") in ("thinking", "redacted_thinking"):
        problems.append(f"{where}: thinking cannot be the last block")


def _check_blocks(where: str, blocks: list[Object], types: set[str] | None) -> list[str]:
    problems: list[str] = []
    for block in blocks:
        type = block.get("type")
        if types is not None and type not in types:
            problems.append(f"{where}: a block of type {type!r} is not allowed here")
        if type == "text" and not _text(block.get("text")).strip():
            problems.append(f"{where}: a text block is empty")
        if type == "thinking" and not block.get("signature"):
            problems.append(f"{where}: thinking without its signature")
    return problems


def _check_gemini(body: Object) -> list[str]:
    problems: list[str] = []
    tools = _list(body.get("tools"))
    names = [_text(function.get("name")) for tool in tools for function in _list(tool.get("functionDeclarations"))]
    problems += _check_names("tools", names, _GEMINI_NAME)
    calling = _dict(_dict(body.get("toolConfig")).get("functionCallingConfig"))
    if calling and not names:
        problems.append("toolConfig: there are no functions")
    if calling.get("allowedFunctionNames") and calling.get("mode") not in ("ANY", "VALIDATED"):
        problems.append("toolConfig.allowedFunctionNames: only in the modes ANY and VALIDATED")
    allowed = cast("list[Json]", calling.get("allowedFunctionNames") or [])
    problems += [f"toolConfig: there is no function {name!r}" for name in allowed if name not in names]
    contents = _list(body.get("contents"))
    if not contents:
        problems.append("contents: none")
    elif contents[0].get("role") not in ("user", None):
        problems.append("contents[0]: the first turn must be the user's")
    open_calls: list[Object] = []
    for n, content in enumerate(contents):
        where, role, parts = f"contents[{n}]", content.get("role"), _list(content.get("parts"))
        if role not in ("user", "model", "function", None):
            problems.append(f"{where}: there is no role {role!r}")
        if not parts:
            problems.append(f"{where}: no parts")
        for part in parts:
            if not _says(part):
                problems.append(f"{where}: an empty part")
        responses = [_dict(part["functionResponse"]) for part in parts if "functionResponse" in part]
        problems += _check_responses_of(where, open_calls, responses)
        open_calls = [_dict(part["functionCall"]) for part in parts if "functionCall" in part]
        if open_calls and n and contents[n - 1].get("role") == "model":
            problems.append(f"{where}: a call must come right after a turn of the user or a function's response")
        for call in open_calls:
            if role != "model":
                problems.append(f"{where}: a call in a turn of the user")
            if not _GEMINI_NAME.fullmatch(_text(call.get("name"))):
                problems.append(f"{where}: {call.get('name')!r} cannot be a function's name")
            if not isinstance(call.get("args", {}), dict):
                problems.append(f"{where}: the args of a call are not an object")
    return problems + _check_responses_of("the end", open_calls, [])


def _check_responses_of(where: str, calls: list[Object], responses: list[Object]) -> list[str]:
    if len(calls) != len(responses):
        return [f"{where}: {len(responses)} function responses to {len(calls)} function calls"]
    problems: list[str] = []
    for call, response in zip(calls, responses, strict=True):
        if call.get("name") != response.get("name"):
            problems.append(f"{where}: a response of {response.get('name')!r} where {call.get('name')!r} was called")
        if call.get("id") != response.get("id"):
            problems.append(f"{where}: a response with the id {response.get('id')!r} to the call {call.get('id')!r}")
        if not isinstance(response.get("response"), dict):
            problems.append(f"{where}: the response of {response.get('name')!r} is not an object")
    return problems


def _says(part: Object) -> bool:
    """Does it have one field of content? A text must not be empty, except to carry a signature."""
    if "text" in part:
        return bool(part["text"]) or "thoughtSignature" in part
    return bool(part.keys() - {"thought", "thoughtSignature", "partMetadata"})


def _check_model(body: Object) -> list[str]:
    return [] if _text(body.get("model")) else ["model: none is named"]


def _check_names(where: str, names: list[str], allowed: re.Pattern[str]) -> list[str]:
    problems = [f"{where}: {name!r} cannot be a tool's name" for name in names if not allowed.fullmatch(name)]
    return problems + [f"{where}: two are called {name!r}" for name in sorted(set(names)) if names.count(name) > 1]


def _check_id(where: str, id: Json, longest: int, field: str = "id") -> list[str]:
    if not isinstance(id, str) or not id:
        return [f"{where}.{field}: a call without one"]
    return [f"{where}.{field}: {id!r} is longer than {longest} characters"] if len(id) > longest else []


def _check_call(where: str, name: Json, arguments: Json) -> list[str]:
    problems = [] if _NAME.fullmatch(_text(name)) else [f"{where}: {name!r} cannot be a tool's name"]
    try:
        whole = isinstance(json.loads(arguments), dict)
    except (TypeError, ValueError):
        whole = False
    return problems if whole else [*problems, f"{where}: the arguments of {name!r} are not the text of a JSON object"]


def _check_content(where: str, content: Json, types: set[str]) -> list[str]:
    if isinstance(content, str):
        return []
    parts = _list(content)
    if not parts:
        return [f"{where}: no content"]
    strange = [part.get("type") for part in parts if part.get("type") not in types]
    return [f"{where}: a part of type {type!r} is not allowed here" for type in strange]


def _dict(value: Json) -> Object:
    return cast("Object", value) if isinstance(value, dict) else {}


def _list(value: Json) -> list[Object]:
    return [_dict(item) for item in cast("list[Json]", value)] if isinstance(value, list) else []


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""


CHECKS: dict[str, Callable[[Object], list[str]]] = {
    "openai-chat": _check_chat,
    "openai-responses": _check_responses,
    "anthropic-messages": _check_messages,
    "gemini": _check_gemini,
}
