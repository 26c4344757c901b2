"""anthropic-messages, the parts of a message both ways: text, images, documents, and the cache marks on them.

Also the few guards by which values of unknown JSON are taken only if they have the right type. Nothing here knows of
roles, calls or requests: those are in `requests`.
"""

from __future__ import annotations

import base64

from unbroken.errors import CannotEncode
from unbroken.messages import CacheMark, Json, Media, Part, Text
from unbroken.wires.jsontext import dump_arguments
from unbroken.wires.parts import from_data_url
from unbroken.wires.values import Object, dicts

NAME = "anthropic-messages"

_PDF = "application/pdf"


def encode_part(part: Part) -> Object:
    block = {"type": "text", "text": part.text} if isinstance(part, Text) else _encode_media(part)
    return mark(block, part.cache)


def _encode_media(media: Media) -> Object:
    mime, data, url = media.mime, media.data, media.url
    if url.startswith("data:"):
        inner = from_data_url(url)
        mime, data, url = inner.mime, inner.data, inner.url
    image = mime.startswith("image/") or (not mime and not url.partition("?")[0].endswith(".pdf"))
    kind = "image" if image else "document"
    if url:
        return {"type": kind, "source": {"type": "url", "url": url}}
    if image or mime == _PDF:
        return {"type": kind, "source": {"type": "base64", "media_type": mime, "data": data}}
    if mime.startswith("text/"):
        try:
            text = base64.b64decode(data, validate=True).decode()
        except ValueError as error:
            raise CannotEncode(
                f"sending a file of type {mime} failed: its data is not text in base64 ({error})"
            ) from None
        return {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": text}}
    raise CannotEncode(f"sending a file of type {mime} failed: {NAME} carries images, PDF and text; convert it to one")


def mark(block: Object, cache: CacheMark) -> Object:
    if cache:
        block["cache_control"] = {"type": "ephemeral", "ttl": "1h"} if cache == "1h" else {"type": "ephemeral"}
    return block


def decode_part(block: Object) -> Part:
    cache = decode_cache(block)
    match block:
        case {"type": "text", "text": str(text)}:
            return Text(text, cache)
        case {
            "type": "image" | "document",
            "source": {"type": "base64", "media_type": str(mime), "data": str(data)},
        } if mime and data:
            return Media(mime=mime, data=data, cache=cache)
        case {"type": "document", "source": {"type": "text", "data": str(text)}} if text:
            data = base64.b64encode(text.encode("utf-8", "replace")).decode()
            return Media(mime="text/plain", data=data, cache=cache)
        case {"type": "image" | "document" as kind, "source": {"type": "url", "url": str(url)}} if url:
            return Media(mime=_PDF if kind == "document" else "", url=url, cache=cache)
        case _:
            # A block that no other wire has (search_result, a file by its id): its JSON is better than its loss.
            return Text(dump_arguments(block) or "", cache)


def decode_cache(block: Object) -> CacheMark:
    match block.get("cache_control"):
        case {"ttl": "1h"}:
            return "1h"
        case {"type": "ephemeral"}:
            return "5m"
        case _:
            return ""


def blocks_of(content: Json) -> list[Object]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return dicts(content)
