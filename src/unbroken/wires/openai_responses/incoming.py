"""openai-responses, a history as it comes in: the items of a client's request to messages.

Neighbours of one side form one message. A result that says more than our fields is kept as it was written.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from unbroken.messages import (
    Assistant,
    Json,
    Media,
    Message,
    Native,
    System,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    User,
)
from unbroken.wires.jsontext import dump_arguments
from unbroken.wires.openai_responses.items import NAME, as_input, call_kind, payload, says_more
from unbroken.wires.openai_responses.outgoing import encode_result
from unbroken.wires.openai_responses.parts import decode_parts, text_of
from unbroken.wires.parts import call_from_text, from_data_url
from unbroken.wires.parts import says_more as has_more
from unbroken.wires.values import Object, as_dict, as_text, dicts

_KINDS = {
    "function_call_output": "function",
    "custom_tool_call_output": "custom",
    "apply_patch_call_output": "apply_patch_call",
    "local_shell_call_output": "local_shell_call",
}
_RESULTS = {*_KINDS, "shell_call_output", "computer_call_output", "tool_search_output"}
_NOT_MORE = ("id", "call_id", "status", "max_output_length")
"""Of a result: what says nothing of its own. The length is a setting of the call."""


def decode_messages(input: Json) -> Iterable[Message]:
    """What is neither a role nor a result stands with what the model said."""
    if isinstance(input, str):
        yield User.of(input)
        return
    said: list[Object] = []
    results: list[ToolResult] = []
    hosted: set[str] = set()
    rounds = 0
    for item in dicts(input):
        role = item.get("role")
        result = as_text(item.get("type")) in _RESULTS and not _run_by_the_server(item, hosted)
        if said and (result or role in ("user", "system", "developer")):
            assistant = _decode_assistant(said, rounds)
            rounds += bool(assistant.calls)
            yield assistant
            said = []
        if results and not result:
            yield ToolMessage(tuple(results))
            results = []
        if result:
            results.append(_decode_result(item, f"call_{rounds - 1}_{len(results)}"))
        elif role in ("system", "developer"):
            yield System(tuple(part for part in decode_parts(item.get("content")) if isinstance(part, Text)))
        elif role == "user":
            yield User(decode_parts(item.get("content")))
        else:
            said.append(item)
            if item.get("type") == "shell_call" and not call_kind(item):
                hosted.add(as_text(item.get("call_id")))
    if said:
        yield _decode_assistant(said, rounds)
    if results:
        yield ToolMessage(tuple(results))


def _run_by_the_server(item: Object, hosted: set[str]) -> bool:
    if item.get("type") == "tool_search_output":
        return item.get("execution") != "client"
    return as_text(item.get("call_id")) in hosted


def _decode_assistant(said: list[Object], rounds: int) -> Assistant:
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    for item in said:
        kind = call_kind(item)
        if kind:
            id = as_text(item.get("call_id")) or f"call_{rounds}_{len(calls)}"
            calls.append(_decode_call(item, kind, id, len(calls)))
        elif item.get("role") == "assistant":
            texts.append(text_of(item))
        elif item.get("type") == "reasoning":
            parts = dicts(item.get("summary")) + dicts(item.get("content"))
            reasoning += [as_text(part.get("text")) for part in parts]
    items = [as_input(item) for item in said]
    native = Native(NAME, items, tuple(call.id for call in calls)) if says_more(items) else None
    return Assistant("".join(texts), tuple(calls), "".join(reasoning), native)


def _decode_call(item: Object, kind: str, id: str, index: int) -> ToolCall:
    name = as_text(item.get("name"))
    if kind == "function":
        return call_from_text(id, name, item.get("arguments"), index)
    if kind == "custom":
        return ToolCall(id, name, None, as_text(item.get("input")), index, complete=False, kind=kind)
    arguments = as_dict(payload(item))
    return ToolCall(id, kind, arguments, dump_arguments(arguments) or "", index, kind=kind)


def _decode_result(item: Object, otherwise: str) -> ToolResult:
    id = as_text(item.get("call_id")) or as_text(item.get("id")) or otherwise
    result, kind = _read_result(item, id)
    ours = encode_result(result, kind)[0]
    told = {key: value for key, value in item.items() if value is not None and key not in _NOT_MORE}
    if kind in ("function", "custom") and isinstance(item.get("output"), str | list):
        del told["output"]  # one text has two spellings, and parts keep what is more in them by themselves
    return replace(result, native=Native(NAME, item)) if has_more(told, ours) else result


def _read_result(item: Object, id: str) -> tuple[ToolResult, str]:
    """The result, and the kind of the call that it answers."""
    output = item.get("output")
    match item.get("type"):
        case "shell_call_output":
            pieces = dicts(output)
            text = "".join(as_text(piece.get("stdout")) + as_text(piece.get("stderr")) for piece in pieces)
            failed = any(as_dict(piece.get("outcome")).get("exit_code") != 0 for piece in pieces)
            return ToolResult(id, (Text(text),) if text else (), error=failed), "shell_call"
        case "computer_call_output":
            url = as_text(as_dict(output).get("image_url"))
            shot = from_data_url(url) if url else Media(native=Native(NAME, output))
            return ToolResult(id, (shot,)), "computer_call"
        case "tool_search_output":
            return ToolResult(id, (Text(dump_arguments(item.get("tools")) or "[]"),)), "tool_search_call"
        case type:
            kind = _KINDS.get(as_text(type), "function")
            return ToolResult(id, decode_parts(output), error=item.get("status") == "failed"), kind
