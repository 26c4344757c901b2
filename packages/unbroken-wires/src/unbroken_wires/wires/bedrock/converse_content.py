"""bedrock-converse, the content of a message in both directions: text, images, documents, cache points, reasoning.

A block is an object with one field that names its kind: `{"text": …}`, `{"toolUse": …}`. A cache point is a block of
its own, after what it covers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from unbroken_wires.messages import CacheMark, Json, Media, Native, Part, Text
from unbroken_wires.wires.content_parts import (
    foreign_text,
    from_data_url,
    is_foreign,
    is_passage,
    own_native,
    says_more,
    text_file,
)
from unbroken_wires.wires.json_access import IdRule, Object, as_dict, as_text, dicts

NAME = "bedrock-converse"
ID_RULE = IdRule(64, "[A-Za-z0-9_.:-]")

_IMAGES = ("png", "jpeg", "gif", "webp")
_DOCUMENTS = {
    "application/pdf": "pdf",
    "text/csv": "csv",
    "text/html": "html",
    "text/plain": "txt",
    "text/markdown": "md",
    "application/msword": "doc",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "application/vnd.ms-excel": "xls",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
}
_MIMES = {format: mime for mime, format in _DOCUMENTS.items()}
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9 ()\[\]-]+|\s+")
_LONGEST_NAME = 200


def encode_parts(parts: Sequence[Part], marks: bool) -> list[Object]:
    """Without blank texts, which the API refuses. `marks`: the model takes cache points."""
    blocks: list[Object] = []
    for part in parts:
        block = encode_part(part)
        if says_something(block):
            blocks.append(block)
            if marks and part.cache:
                blocks.append(cache_point(part.cache))
    if any("document" in block for block in blocks) and not any("text" in block for block in blocks):
        # A document is refused without a text beside it.
        names = ", ".join(
            as_text(as_dict(block.get("document")).get("name")) for block in blocks if "document" in block
        )
        blocks.append({"text": names})
    return blocks


def encode_part(part: Part) -> Object:
    if isinstance(part, Text):
        return {"text": part.text}
    if own := as_dict(own_native(part, NAME)):
        return own
    return {"text": foreign_text(part)} if is_foreign(part) or is_passage(part) else _encode_media(part)


def _encode_media(media: Media) -> Object:
    if media.url.startswith("data:"):
        media = replace(from_data_url(media.url), name=media.name, cache=media.cache)
    kind, _, format = media.mime.partition("/")
    if media.data and kind == "image" and format in _IMAGES:
        return {"image": {"format": format, "source": {"bytes": media.data}}}
    if media.data and media.mime in _DOCUMENTS:
        name = _NOT_IN_NAMES.sub(" ", media.name.rpartition(".")[0] or media.name).strip()[:_LONGEST_NAME]
        source = {"bytes": media.data}
        return {"document": {"format": _DOCUMENTS[media.mime], "name": name or "document", "source": source}}
    return {"text": foreign_text(media)}


def says_something(block: Object) -> bool:
    return "text" not in block or bool(as_text(block["text"]).strip())


def cache_point(mark: CacheMark) -> Object:
    return {"cachePoint": {"type": "default", "ttl": "1h"} if mark == "1h" else {"type": "default"}}


def mark_of(block: Object) -> CacheMark:
    """Of a cache point; empty for any other block."""
    point = as_dict(block.get("cachePoint"))
    return "" if not point else "1h" if point.get("ttl") == "1h" else "5m"


def decode_parts(blocks: Iterable[Object]) -> tuple[Part, ...]:
    parts: list[Part] = []
    for block in blocks:
        if mark := mark_of(block):
            if parts:
                parts[-1] = replace(parts[-1], cache=mark)
        else:
            parts.append(_decode_part(block))
    return tuple(parts)


def _decode_part(block: Object) -> Part:
    match block:
        case {"text": str(text)}:
            return Text(text)
        case {"image": {"format": str(format), "source": {"bytes": str(data)}}} if data:
            return _kept(block, Media(mime=f"image/{format}", data=data))
        case {"document": {"format": str(format), "source": {"bytes": str(data)}, **rest}} if data:
            mime = _MIMES.get(format, "application/octet-stream")
            return _kept(block, Media(mime=mime, data=data, name=as_text(rest.get("name"))))
        case {"document": {"source": {"text": str(text)}, **rest}} if text:
            return text_file(text, as_text(rest.get("name")), Native(NAME, block))
        case {"document": {"source": {"content": content}, **rest}} if text := _texts(content):
            return text_file(text, as_text(rest.get("name")), Native(NAME, block))
        case {"searchResult": {"content": content, **rest}} if text := _texts(content):
            name = "\n".join(filter(None, (as_text(rest.get("title")), as_text(rest.get("source")))))
            return text_file(text, name, Native(NAME, block))
        case _:
            return Media(native=Native(NAME, block))


def _texts(content: Json) -> str:
    return "\n".join(as_text(block.get("text")) for block in dicts(content))


def _kept(block: Object, media: Media) -> Media:
    """The part in our fields, with its own form beside them where that has more."""
    return replace(media, native=Native(NAME, block)) if says_more(block, _encode_media(media)) else media


def blocks_of(content: Json) -> list[Object]:
    if isinstance(content, str):
        return [{"text": content}] if content else []
    return dicts(content)


UNSIGNED = "unbroken-not-signed"
"""The signature of reasoning that a model of another wire did: clients drop what has none."""


def is_signed(block: Object) -> bool:
    """Can this block go back to the provider? Reasoning goes back only with the provider's signature, or encrypted."""
    reasoning = block.get("reasoningContent")
    if reasoning is None:
        return True
    signature = as_dict(as_dict(reasoning).get("reasoningText")).get("signature")
    return bool(as_dict(reasoning).get("redactedContent")) or signature not in (None, "", UNSIGNED)


def is_all_signed(native: Json) -> bool:
    return all(map(is_signed, dicts(native)))


def is_claude(model: str) -> bool:
    return "anthropic" in model or "claude" in model


def is_nova(model: str) -> bool:
    return "nova" in model
