"""openai-responses, a history as it goes out: messages to items.

What a model said goes back item for item (`Assistant.native`), because a reasoning item counts only beside the call or
message it led to; everything else is written from our own fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from unbroken.errors import StreamError
from unbroken.messages import Assistant, Json, Media, Message, System, Text, ToolCall, ToolMessage, ToolResult, User
from unbroken.wires.ids import RESPONSES, fit
from unbroken.wires.jsontext import loads
from unbroken.wires.openai_responses.items import NAME, PAYLOADS, call_kind
from unbroken.wires.openai_responses.parts import encode_parts, text_of
from unbroken.wires.parts import data_url, is_foreign, outgoing_arguments, own_native
from unbroken.wires.values import Object, as_dict, as_text, dicts

_ONE_PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
)

_GONE: Object = {}
"""Stands where an item of the native message was, until the reasoning that led to it is gone too."""


def encode_messages(messages: Iterable[Message], stateless: bool) -> list[Object]:
    items: list[Object] = []
    calls: dict[str, ToolCall] = {}
    for message in messages:
        match message:
            case System():  # both roles mean the same to OpenAI's API, but the backend of Codex refuses `system`
                items.append({"type": "message", "role": "developer", "content": encode_parts(message.parts)})
            case User():
                items.append({"type": "message", "role": "user", "content": encode_parts(message.parts)})
            case Assistant():
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
    for item, id in zip(given, _our_ids(given, native.ids), strict=True):
        if id is not None:
            call = calls.pop(id, None)
            item = _GONE if call is None else {**item, "call_id": fit(id, RESPONSES)}
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


def _our_ids(items: Sequence[Object], ids: Sequence[str]) -> list[str | None]:
    """For each item our id of its call, None if it is none: the provider's own, else (one was minted) by order."""
    left = dict.fromkeys(ids)
    found: list[str | None] = []
    for item in items:
        id = as_text(item.get("call_id")) if call_kind(item) else None
        found.append(id if id in left else None)
        left.pop(id or "", None)
    minted = iter(left)
    return [next(minted, "") if id is None and call_kind(item) else id for id, item in zip(found, items, strict=True)]


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


def encode_call(call: ToolCall) -> Object:
    id = fit(call.id, RESPONSES)
    if call.kind == "custom":
        return {"type": "custom_tool_call", "call_id": id, "name": call.name, "input": call.raw}
    if call.kind not in PAYLOADS:
        return {"type": "function_call", "call_id": id, "name": call.name, "arguments": outgoing_arguments(call)}
    item: Object = {"type": call.kind, "call_id": id, PAYLOADS[call.kind]: call.arguments or {}, "status": "completed"}
    if call.kind == "tool_search_call":
        item["execution"] = "client"
    return item


def encode_result(result: ToolResult, kind: str = "function", arguments: Json = None) -> list[Object]:
    """`kind` and `arguments` are those of the call. Only some kinds have a place for the error flag: where there is
    nothing else to show it, the words do."""
    id = fit(result.call_id, RESPONSES)
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
        case "local_shell_call":  # the documentation says id, later versions of the official package call_id
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
