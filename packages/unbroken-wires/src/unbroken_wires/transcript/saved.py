"""The saved form of a history: plain JSON values, exact both ways, defaults left out.

Not a wire: no provider reads it. Reading checks the shape of what is read, not the order of the chain; give the result
to `Transcript`, or to `repair` first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar, assert_never, cast

from unbroken_wires.errors import UserError
from unbroken_wires.messages import (
    OUTCOMES,
    Assistant,
    CacheMark,
    Json,
    Media,
    Message,
    Native,
    Outcome,
    Part,
    System,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    User,
    own,
)

Object = dict[str, Any]
T = TypeVar("T")


def to_json(messages: Iterable[Message]) -> list[Object]:
    """A history as plain JSON values, to be saved. They share no object and no list with the messages."""
    return [_write_message(message) for message in messages]


def from_json(saved: Json) -> tuple[Message, ...]:
    """A history that `to_json` saved; `UserError` names the message that cannot be read."""
    if not isinstance(saved, list):
        raise UserError(f"a saved history is a list of messages, not {_kind(saved)}")
    messages: list[Message] = []
    for position, item in enumerate(cast("list[Json]", saved)):
        try:
            messages.append(_read_message(_object(item)))
        except (_Unreadable, ValueError) as error:  # ValueError: what Media itself refuses
            raise UserError(f"message {position} of the saved history cannot be read: {error}") from None
    return tuple(messages)


def read_call(saved: Json) -> ToolCall:
    """One call of a saved message."""
    try:
        return _read_call(_object(saved))
    except (_Unreadable, ValueError) as error:
        raise UserError(f"a saved call cannot be read: {error}") from None


def read_result(saved: Json) -> ToolResult:
    """One result of a saved message."""
    try:
        return _read_result(_object(saved))
    except (_Unreadable, ValueError) as error:
        raise UserError(f"a saved result cannot be read: {error}") from None


def _write_message(message: Message) -> Object:
    match message:
        case System():
            return {"role": "system", "content": [_write_part(part) for part in message.parts]}
        case User():
            said: Object = {"role": "user", "content": [_write_part(part) for part in message.parts]}
            if message.arrived:
                said["arrived"] = True
            return said if message.kept is None else {**said, "kept": message.kept}
        case Assistant():
            saved: Object = {"role": "assistant", "content": message.text}
            saved |= _given(reasoning=message.reasoning, calls=[write_call(call) for call in message.calls])
            return saved | _write_native(message.native)
        case ToolMessage():
            return {"role": "tool", "results": [write_result(result) for result in message.results]}
        case _:
            assert_never(message)


def _given(**fields: Json) -> Object:
    return {name: value for name, value in fields.items() if value}


def _write_part(part: Part) -> Object:
    if isinstance(part, Text):
        text: Object = {"type": "text", "text": part.text}
        if part.cache:
            text["cache"] = part.cache
        return text
    saved = _given(mime=part.mime, data=part.data, url=part.url, cache=part.cache, name=part.name)
    return {"type": "media"} | saved | _write_native(part.native)


def _write_native(native: Native | None) -> Object:
    if native is None:
        return {}
    saved = {"wire": native.wire, "value": own(native.value), "ids": list(native.ids)}
    return {"native": saved | ({"source": native.source} if native.source else {})}


def write_call(call: ToolCall) -> Object:
    saved: Object = {"id": call.id, "name": call.name, "arguments": own(call.arguments), "complete": call.complete}
    if call.raw:
        saved["raw"] = call.raw
    if call.index:
        saved["index"] = call.index
    if call.problem:
        saved["problem"] = call.problem
    if call.notes:
        saved["notes"] = list(call.notes)
    if call.kind != "function":
        saved["kind"] = call.kind
    if call.namespace:
        saved["namespace"] = call.namespace
    return saved


def write_result(result: ToolResult) -> Object:
    saved: Object = {"call_id": result.call_id, "content": [_write_part(part) for part in result.content]}
    if result.name:
        saved["name"] = result.name
    if result.duplicate_of:
        saved["duplicate_of"] = result.duplicate_of
    if result.cache:
        saved["cache"] = result.cache
    if result.error:
        saved["metadata"] = {"error": True}
    if result.ended_as is not None:
        saved["outcome"] = result.ended_as
    if result.native is not None:
        saved |= _write_native(result.native)
    return saved


class _Unreadable(Exception):
    pass


def _read_message(saved: Object) -> Message:
    role = saved.get("role")
    if role == "system":
        parts = _read_parts(saved)
        texts = tuple(part for part in parts if isinstance(part, Text))
        if len(texts) < len(parts):
            raise _Unreadable("a system message holds nothing but text")
        return System(texts)
    if role == "user":
        kept = _get(saved, "kept", 0) if "kept" in saved else None
        return User(_read_parts(saved), kept, _get(saved, "arrived", False))
    if role == "assistant":
        calls = tuple(_read_call(_object(call)) for call in _get(saved, "calls", list[Json]()))
        return Assistant(_get(saved, "content", ""), calls, _get(saved, "reasoning", ""), _read_native(saved))
    if role == "tool":
        return ToolMessage(tuple(_read_result(_object(result)) for result in _need(saved, "results", list[Json]())))
    raise _Unreadable(f"its role is {role!r}, not system, user, assistant or tool")


def _read_parts(saved: Object) -> tuple[Part, ...]:
    return tuple(_read_part(_object(part)) for part in _need(saved, "content", list[Json]()))


def _read_part(saved: Object) -> Part:
    kind = saved.get("type")
    if kind == "text":
        return Text(_need(saved, "text", ""), _cache(saved))
    if kind == "media":
        mime, data, url = _get(saved, "mime", ""), _get(saved, "data", ""), _get(saved, "url", "")
        return Media(mime, data, url, _cache(saved), _get(saved, "name", ""), _read_native(saved))
    raise _Unreadable(f"the type of a part is {kind!r}, not text or media")


def _read_call(saved: Object) -> ToolCall:
    arguments = saved.get("arguments")
    return ToolCall(
        id=_need(saved, "id", ""),
        name=_need(saved, "name", ""),
        arguments=None if arguments is None else _object(arguments),
        raw=_get(saved, "raw", ""),
        index=_get(saved, "index", 0),
        # A call may run if it is `complete`, so the field is required.
        complete=_need(saved, "complete", False),
        kind=_get(saved, "kind", "function"),
        problem=_get(saved, "problem", ""),
        notes=_strings(saved, "notes"),
        namespace=_get(saved, "namespace", ""),
    )


def _read_result(saved: Object) -> ToolResult:
    return ToolResult(
        call_id=_need(saved, "call_id", ""),
        content=_read_parts(saved),
        error=_get(_get(saved, "metadata", Object()), "error", False),
        name=_get(saved, "name", ""),
        duplicate_of=_get(saved, "duplicate_of", ""),
        cache=_cache(saved),
        native=_read_native(saved),
        ended_as=_ended_as(saved),
    )


def _read_native(saved: Object) -> Native | None:
    if "native" not in saved:
        return None
    native = _object(saved["native"])
    return Native(_need(native, "wire", ""), native.get("value"), _strings(native, "ids"), _get(native, "source", ""))


def _cache(saved: Object) -> CacheMark:
    cache = saved.get("cache", "")
    if cache not in ("", "5m", "1h"):
        raise _Unreadable(f"`cache` is {cache!r}, not 5m or 1h")
    return cache


def _ended_as(saved: Object) -> Outcome | None:
    if _get(saved, "uncertain", False):
        return "unknown"  # saved before there were outcomes
    outcome = saved.get("outcome")
    if outcome is not None and outcome not in OUTCOMES:
        raise _Unreadable(f"`outcome` is {outcome!r}, not one of {', '.join(OUTCOMES)}")
    return outcome


def _strings(saved: Object, name: str) -> tuple[str, ...]:
    texts = _get(saved, name, list[Json]())
    if not all(isinstance(text, str) for text in texts):
        raise _Unreadable(f"`{name}` holds something other than text")
    return tuple(cast("list[str]", texts))


def _need(saved: Object, name: str, like: T) -> T:
    if name not in saved:
        raise _Unreadable(f"`{name}` is missing")
    return _get(saved, name, like)


def _get(saved: Object, name: str, default: T) -> T:
    """A field of the same type as its default."""
    value = saved.get(name, default)
    if type(value) is not type(default):
        raise _Unreadable(f"`{name}` is {_kind(value)}, not {_kind(default)}")
    return value


def _object(value: Json) -> Object:
    if not isinstance(value, dict):
        raise _Unreadable(f"{_kind(value)} stands where an object should")
    return cast("Object", value)


def _kind(value: Json) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(cast("type[Any]", type(value)), "a number")
