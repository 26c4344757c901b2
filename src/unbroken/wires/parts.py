"""What every wire needs to read and write requests: values of an unsure type, media as data URLs, arguments as text.

Not a place for anything that only one wire does.
"""

from __future__ import annotations

from typing import Any, cast

from unbroken.messages import Json, Media, ToolCall
from unbroken.wires.jsontext import dump_arguments, shallow, strict


def as_dict(value: Json) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def dicts(value: Json) -> list[dict[str, Any]]:
    """The objects in a list of anybody's making; everything else in it is left out."""
    if not isinstance(value, list):
        return []
    return [cast("dict[str, Any]", item) for item in cast("list[Json]", value) if isinstance(item, dict)]


def as_int(value: Json) -> int:
    return int(value) if isinstance(value, int | float) and value == value and abs(value) < 2**63 else 0


def data_url(media: Media) -> str:
    return media.url or f"data:{media.mime};base64,{media.data}"


def from_data_url(url: str) -> Media:
    if url.startswith("data:") and ";base64," in url:
        mime, data = url[5:].split(";base64,", 1)
        if mime and data:
            return Media(mime=mime, data=data)
    return Media(url=url or "about:blank")


def outgoing_arguments(call: ToolCall) -> str:
    """What goes back to the model: the text as it was, if it is an object; `{}` for a call that was cut."""
    if call.arguments is None:
        return "{}"
    raw = call.raw.strip()
    return call.raw if raw.startswith("{") else (dump_arguments(call.arguments) or "{}")


def call_from_text(id: str, name: str, arguments: Json, index: int) -> ToolCall:
    """A call in a history that a client sends: text or an object, refused (not repaired) when it is neither."""
    if isinstance(arguments, dict):
        return ToolCall(id, name, cast("dict[str, Any]", arguments), dump_arguments(arguments) or "", index)
    raw = arguments if isinstance(arguments, str) else ""
    if not raw.strip():
        return ToolCall(id, name, {}, raw, index)
    try:
        value = strict.decode(raw) if shallow(raw.encode("utf-8", "replace")) else None
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        return ToolCall(id, name, cast("dict[str, Any]", value), raw, index)
    return ToolCall(id, name, None, raw, index, complete=False, problem="the arguments are not a JSON object")
