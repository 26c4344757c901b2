"""gemini: what a user says or a tool gives, part by part, both ways: texts, media, and parts that only this wire knows.

The conversation around them is in `contents`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from unbroken.messages import Json, Media, Native, Part, Text
from unbroken.wires.gemini.parts import camel_part, says_something
from unbroken.wires.parts import FOREIGN, from_data_url, is_foreign, own_native
from unbroken.wires.values import Object, as_dict, as_text, dicts

NAME = "gemini"


def encode_part(part: Part) -> Object:
    if isinstance(part, Text):
        return {"text": part.text}
    if native := as_dict(own_native(part, NAME)):
        return native
    if is_foreign(part):
        return {"text": FOREIGN}
    if part.url.startswith("data:"):
        inline = from_data_url(part.url)
        part = inline if inline.data else part
    # A file's name is left out: Vertex takes `displayName`, the Gemini API refuses it.
    if part.data:
        return {"inlineData": {"mimeType": part.mime, "data": part.data}}
    return {"fileData": {"fileUri": part.url, **({"mimeType": part.mime} if part.mime else {})}}


def decode_parts(parts: Sequence[Object]) -> tuple[Part, ...]:
    return tuple(_decode_part(part) for part in parts if says_something(part))


def _decode_part(part: Object) -> Part:
    inline, file = as_dict(part.get("inlineData")), as_dict(part.get("fileData"))
    data, url = as_text(inline.get("data")), as_text(file.get("fileUri"))
    mime = as_text((inline or file).get("mimeType"))
    blob = inline if data and mime else file
    if not (data and mime) and not url:
        text = part.get("text")
        return Text(text) if isinstance(text, str) else Media(native=Native(NAME, part))
    said_all = len(part) == 1 and blob.keys() <= {"mimeType", "data" if blob is inline else "fileUri"}
    return Media(
        mime=mime,
        data=data if blob is inline else "",
        url=url if blob is file else "",
        name=as_text(blob.get("displayName")),
        native=None if said_all else Native(NAME, part),
    )


def parts_of(content: Json) -> list[Object]:
    """The parts of a content, with their names in camelCase. One part may stand alone, a text without its part."""
    if isinstance(content, str):
        return [{"text": content}]
    parts = as_dict(content).get("parts")
    parts = [{"text": parts}] if isinstance(parts, str) else listed(parts)
    return [camel_part(part) for part in dicts(parts)]


def listed(value: Json) -> list[Json]:
    return cast("list[Json]", value) if isinstance(value, list) else [value] if isinstance(value, dict) else []
