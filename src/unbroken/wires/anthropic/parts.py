"""anthropic-messages, the parts of a message both ways: text, images, documents, and the cache marks on them.

Nothing here knows of roles, calls or requests: those are in `requests`.
"""

from __future__ import annotations

import base64
from dataclasses import replace

from unbroken.errors import CannotEncode
from unbroken.messages import CacheMark, Json, Media, Native, Part, Text
from unbroken.wires.jsontext import dump_arguments
from unbroken.wires.parts import (
    FOREIGN,
    cache_control,
    cache_mark,
    from_data_url,
    is_foreign,
    own_native,
    says_more,
)
from unbroken.wires.values import Object, as_dict, as_text, dicts

NAME = "anthropic-messages"

_PDF = "application/pdf"
_SOURCE = {"type", "media_type", "data", "url"}


def encode_part(part: Part) -> Object:
    if isinstance(part, Text):
        return mark({"type": "text", "text": part.text}, part.cache)
    if own := as_dict(own_native(part, NAME)):
        return {**own}
    if is_foreign(part):
        return mark({"type": "text", "text": FOREIGN}, part.cache)
    return _encode_media(part)


def _encode_media(media: Media) -> Object:
    mime, data, url = media.mime, media.data, media.url
    if url.startswith("data:"):
        inner = from_data_url(url)
        mime, data, url = inner.mime, inner.data, inner.url
    image = mime.startswith("image/") or (not mime and not url.partition("?")[0].endswith(".pdf"))
    if url:
        source = {"type": "url", "url": url}
    elif image or mime == _PDF:
        source = {"type": "base64", "media_type": mime, "data": data}
    else:
        source = {"type": "text", "media_type": "text/plain", "data": _plain_text(mime, data)}
    block: Object = {"type": "image" if image else "document", "source": source}
    if media.name and not image:
        block["title"] = media.name
    return mark(block, media.cache)


def _plain_text(mime: str, data: str) -> str:
    if not mime.startswith("text/"):
        raise CannotEncode(
            f"sending a file of type {mime} failed: {NAME} carries images, PDF and text; convert it to one"
        )
    try:
        return base64.b64decode(data, validate=True).decode()
    except ValueError as error:
        raise CannotEncode(f"sending a file of type {mime} failed: its data is not text in base64 ({error})") from None


def mark(block: Object, cache: CacheMark) -> Object:
    if cache:
        block["cache_control"] = cache_control(cache)
    return block


def decode_part(block: Object) -> Part:
    match block:
        case {"type": "text", "text": str(text)}:
            return Text(text, cache_mark(block))
        case {"type": "image" | "document", "source": dict()} if (media := _decode_media(block)) is not None:
            return replace(media, native=Native(NAME, block)) if _is_more_than(media, block) else media
        case _:
            # What only this wire has: a file by its id, search_result, tool_reference, kinds to come.
            return Media(native=Native(NAME, block))


def _is_more_than(media: Media, block: Object) -> bool:
    """Does a client's block say anything that the media does not (citations, context), or that only it can say?"""
    try:
        ours = _encode_media(media)
    except CannotEncode:
        return True
    return not block["source"].keys() <= _SOURCE or says_more({**block, "source": None}, ours)


def _decode_media(block: Object) -> Media | None:
    name, cache = as_text(block.get("title")), cache_mark(block)
    match block["source"]:
        case {"type": "base64", "media_type": str(mime), "data": str(data)} if mime and data:
            return Media(mime=mime, data=data, cache=cache, name=name)
        case {"type": "text", "data": str(text)} if text:
            data = base64.b64encode(text.encode("utf-8", "replace")).decode()
            return Media(mime="text/plain", data=data, cache=cache, name=name)
        case {"type": "url", "url": str(url)} if url:
            return Media(mime=_PDF if block["type"] == "document" else "", url=url, cache=cache, name=name)
        case _:
            return None


def decode_texts(content: Json) -> tuple[Text, ...]:
    """System text. A block of another kind there is better as its JSON than lost."""
    texts: list[Text] = []
    for block in blocks_of(content):
        part = decode_part(block)
        texts.append(part if isinstance(part, Text) else Text(dump_arguments(block) or "", cache_mark(block)))
    return tuple(texts)


def blocks_of(content: Json) -> list[Object]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return dicts(content)
