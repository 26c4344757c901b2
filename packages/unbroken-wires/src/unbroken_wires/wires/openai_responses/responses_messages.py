"""openai-responses, the history of a request in both directions: messages to items and items to messages.

Output of a model goes back item by item (`Assistant.native`), because a reasoning item is valid only next to the call
or message that it led to; everything else is written from our own fields. Reading, neighbouring items of one side form
one message, and a result that contains more than our fields is kept as it was sent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import cast

from unbroken_wires.errors import StreamError
from unbroken_wires.messages import (
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
from unbroken_wires.wires.content_parts import (
    call_from_text,
    data_url,
    from_data_url,
    ids_as_kept,
    is_foreign,
    outgoing_arguments,
    own_native,
    says_more,
    with_functions,
)
from unbroken_wires.wires.json_access import TOOL_NAME, IdRule, Object, as_dict, as_text, dicts, fit, fit_name
from unbroken_wires.wires.jsontext import dump_arguments, loads
from unbroken_wires.wires.openai_responses.responses_items import (
    NAME,
    PAYLOADS,
    as_input,
    beyond_text_and_calls,
    call_kind,
    decode_parts,
    encode_parts,
    payload,
    text_of,
)

ID_RULE = IdRule(64)

_ONE_PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
)

_GONE: Object = {}
"""Stands where an item of the native message was, until the reasoning that led to it is gone too."""


def encode_messages(messages: Iterable[Message], stateless: bool, functions: Collection[str] = ()) -> list[Object]:
    """`functions`: names of tools for free text that are offered as functions."""
    items: list[Object] = []
    calls: dict[str, ToolCall] = {}
    for message in messages:
        match message:
            case System():  # both roles mean the same to OpenAI's API, but the backend of Codex refuses `system`
                items.append({"type": "message", "role": "developer", "content": encode_parts(message.parts)})
            case User():
                items.append({"type": "message", "role": "user", "content": encode_parts(message.parts)})
            case Assistant():
                if functions:
                    message = with_functions(message, functions)
                calls.update((call.id, call) for call in message.calls)
                items.extend(_encode_assistant(message, stateless))
            case ToolMessage():
                for result in message.results:
                    call = calls.get(result.call_id)
                    items += encode_result(result, call.kind, call.arguments) if call else encode_result(result)
    return items


def _encode_assistant(message: Assistant, stateless: bool) -> list[Object]:
    native = message.native
    if native is None or native.wire != NAME:
        items = [_encode_text(message.text)] if message.text else []
        return items + [encode_call(call) for call in message.calls]
    calls = {call.id: call for call in message.calls}
    left: list[Object] = []
    referenced = False
    given = _with_text(dicts(native.value), message.text)
    ids = ids_as_kept([as_text(item.get("call_id")) for item in given if call_kind(item)], native.ids)
    for item in given:
        if call_kind(item):
            call = calls.pop(id := next(ids), None)
            item = _GONE if call is None else {**item, "call_id": fit(id, ID_RULE)}
            if call is not None and call.kind in ("function", "custom"):
                item |= _named(call, TOOL_NAME)
            if call is not None and call.kind == "function":
                item["arguments"] = outgoing_arguments(call)
        elif (
            stateless and item.get("type") == "reasoning" and not (item.get("encrypted_content") or item.get("content"))
        ):
            referenced = True  # only a reference to what was never stored: "item not found"
            continue
        left.append(item)
    items = _without_orphans([*left, *(encode_call(call) for call in calls.values())])
    if referenced:  # an id would ask for the reasoning that it once stood beside
        items = [{key: value for key, value in item.items() if key != "id"} for item in items]
    return items


def _without_orphans(items: Sequence[Object]) -> list[Object]:
    """Reasoning is refused without the item it led to: it goes where all up to the next reasoning are gone."""
    kept: list[Object] = []
    leading: list[Object] = []
    gone = False
    for item in items:
        if item is _GONE:
            gone = True
        elif item.get("type") == "reasoning":
            if gone:
                leading.clear()
            leading.append(item)
            gone = False
        else:
            kept += [*leading, item]
            leading.clear()
            gone = False
    return kept


def _with_text(items: list[Object], text: str) -> list[Object]:
    """The items as they were, unless the text was changed since (a call was recovered from it): then one message."""
    places = [n for n, item in enumerate(items) if item.get("role") == "assistant"]
    if "".join(text_of(items[n]) for n in places) == text:
        return items
    changed = [_encode_text(text)] if text else []
    if not places:
        return changed + items
    items = [_GONE if item.get("role") == "assistant" else item for item in items]
    items[places[0] : places[0] + 1] = changed or [_GONE]
    return items


def _encode_text(text: str) -> Object:
    part: Object = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "role": "assistant", "content": [part]}


def _named(call: ToolCall, rule: IdRule | None) -> Object:
    name, namespace = call.name, call.namespace
    if rule is not None:
        name, namespace = fit_name(name, rule), namespace and fit_name(namespace, rule)
    return {"namespace": namespace, "name": name} if namespace else {"name": name}


def encode_call(call: ToolCall, rule: IdRule | None = TOOL_NAME) -> Object:
    id = fit(call.id, ID_RULE)
    if call.kind == "custom":
        named = {"call_id": id, **_named(call, rule)}
        return {"type": "custom_tool_call", **named, "input": call.raw}
    if call.kind not in PAYLOADS:
        return {
            "type": "function_call",
            "call_id": id,
            **_named(call, rule),
            "arguments": outgoing_arguments(call),
        }
    item: Object = {"type": call.kind, "call_id": id, PAYLOADS[call.kind]: call.arguments or {}, "status": "completed"}
    if call.kind == "tool_search_call":
        item["execution"] = "client"
    return item


def encode_result(result: ToolResult, kind: str = "function", arguments: Json = None) -> list[Object]:
    """`kind` and `arguments` are those of the call. Only some kinds have a place for the error flag: where there is
    nothing else to show it, the words do."""
    id = fit(result.call_id, ID_RULE)
    own = own_native(result, NAME)
    if isinstance(own, dict):
        return [{**cast("Object", own), "call_id": id}]
    content = result.content
    if result.error and not any(isinstance(part, Media) or part.text.strip() for part in content):
        content = (Text("Error"),)
    text = "".join(part.text for part in content if isinstance(part, Text))
    head: Object = {"type": "function_call_output", "call_id": id}
    match kind:
        case "custom":
            return [{**head, "type": "custom_tool_call_output", "output": encode_parts(content)}]
        case "apply_patch_call":
            status = "failed" if result.error else "completed"
            return [{**head, "type": f"{kind}_output", "status": status, "output": text}]
        case "shell_call":
            stdout, stderr, code = ("", text, 1) if result.error else (text, "", 0)
            output: Object = {"stdout": stdout, "stderr": stderr, "outcome": {"type": "exit", "exit_code": code}}
            longest = as_dict(arguments).get("max_output_length")
            limit = {"max_output_length": longest} if isinstance(longest, int) else {}
            return [{**head, "type": f"{kind}_output", "output": [output], **limit}]
        case "local_shell_call":  # id in the documentation, call_id in later versions of the official package
            return [{**head, "type": f"{kind}_output", "id": id, "output": text}]
        case "computer_call":  # takes a screenshot and nothing else; the words follow
            images = [part for part in content if isinstance(part, Media) and not is_foreign(part)]
            shot = data_url(images[0]) if images else _ONE_PIXEL
            items: list[Object] = [
                {**head, "type": f"{kind}_output", "output": {"type": "computer_screenshot", "image_url": shot}}
            ]
            return items + ([{"type": "message", "role": "user", "content": text}] if text else [])
        case "tool_search_call":
            rest = {"execution": "client", "status": "completed", "tools": _tools_in(text)}
            return [{**head, "type": "tool_search_output", **rest}]
        case _:
            return [{**head, "output": encode_parts(content)}]


def _tools_in(text: str) -> list[Object]:
    try:
        return dicts(loads(text.encode("utf-8", "replace")))
    except StreamError:
        return []


_KINDS = {
    "function_call_output": "function",
    "custom_tool_call_output": "custom",
    "apply_patch_call_output": "apply_patch_call",
    "local_shell_call_output": "local_shell_call",
}
_RESULTS = {*_KINDS, "shell_call_output", "computer_call_output", "tool_search_output"}
_NOT_MORE = ("id", "call_id", "status", "max_output_length")
"""Fields of a result that carry nothing of their own. The length is a setting of the call."""


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
    native = Native(NAME, items, tuple(call.id for call in calls)) if beyond_text_and_calls(items) else None
    return Assistant("".join(texts), tuple(calls), "".join(reasoning), native)


def _decode_call(item: Object, kind: str, id: str, index: int) -> ToolCall:
    name, namespace = as_text(item.get("name")), as_text(item.get("namespace"))
    if kind == "function":
        call = call_from_text(id, name, item.get("arguments"), index)
        return replace(call, namespace=namespace) if namespace else call
    if kind == "custom":
        text = as_text(item.get("input"))
        return ToolCall(id, name, None, text, index, complete=False, kind=kind, namespace=namespace)
    arguments = as_dict(payload(item))
    return ToolCall(id, kind, arguments, dump_arguments(arguments) or "", index, kind=kind)


def _decode_result(item: Object, otherwise: str) -> ToolResult:
    id = as_text(item.get("call_id")) or as_text(item.get("id")) or otherwise
    result, kind = _read_result(item, id)
    ours = encode_result(result, kind)[0]
    told = {key: value for key, value in item.items() if value is not None and key not in _NOT_MORE}
    if kind in ("function", "custom") and isinstance(item.get("output"), str | list):
        del told["output"]  # one text has two spellings, and parts keep what is more in them by themselves
    return replace(result, native=Native(NAME, item)) if says_more(told, ours) else result


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
