"""What every wire needs to read and write requests: media as data URLs, arguments as text, settings of one's own.

Not a place for anything that only one wire does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from unbroken.messages import Json, Media, Request, ToolCall, ToolResult, ToolSpec
from unbroken.wires.jsontext import dump_arguments, shallow, strict
from unbroken.wires.values import Object


def own_extra(request: Request, wire: str) -> Mapping[str, Json]:
    """The request's `extra`, unless it came from a client of another wire."""
    return request.extra if request.wire in ("", wire) else {}


def with_extra(body: Object, extra: Mapping[str, Json]) -> Object:
    """`extra` last, as it is; only its `tools` (those that the provider runs, which no field of ours can say) are added
    to ours instead of replacing them."""
    merged = {**body, **extra}
    if "tools" in body and isinstance(extra.get("tools"), list):
        merged["tools"] = [*body["tools"], *extra["tools"]]
    return merged


def own_native(thing: Media | ToolSpec | ToolResult, wire: str) -> Json:
    """What a client of the same wire sent, to be given back as it was; None if there is none."""
    return thing.native.value if thing.native is not None and thing.native.wire == wire else None


def is_foreign(media: Media) -> bool:
    """A part that only another wire understands; say `FOREIGN` in its place, so that its absence shows."""
    return not (media.data or media.url)


FOREIGN = "[an attachment that cannot be passed on to this provider]"


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
