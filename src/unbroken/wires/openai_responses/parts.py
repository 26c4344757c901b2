"""openai-responses, the parts of messages and results: words, pictures, sounds, files, both ways.

A part is kept as its client wrote it (`Media.native`) where our fields would not say all of it: a file by its id, the
`detail` of a picture, a kind that is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from unbroken.messages import Json, Media, Native, Part, Text
from unbroken.wires.openai_responses.items import NAME
from unbroken.wires.parts import (
    FOREIGN,
    audio_format,
    audio_mime,
    data_url,
    file_name,
    from_data_url,
    is_foreign,
    mime_of,
    own_native,
    says_more,
)
from unbroken.wires.values import Object, as_text, dicts


def encode_parts(parts: Sequence[Part]) -> Json:
    if not parts:
        return ""
    if len(parts) == 1 and isinstance(parts[0], Text) and parts[0].text:
        return parts[0].text
    return [encode_part(part) for part in parts]


def encode_part(part: Part) -> Object:
    if isinstance(part, Text):
        return {"type": "input_text", "text": part.text}
    own = own_native(part, NAME)
    if isinstance(own, dict):
        return cast("Object", own)
    if is_foreign(part):
        return {"type": "input_text", "text": FOREIGN}
    if not part.mime or part.mime.startswith("image/"):
        return {"type": "input_image", "image_url": data_url(part), "detail": "auto"}
    if part.url:
        return {"type": "input_file", "file_url": part.url}
    if part.mime.startswith("audio/"):
        return {"type": "input_audio", "input_audio": {"data": part.data, "format": audio_format(part.mime)}}
    return {"type": "input_file", "filename": file_name(part), "file_data": data_url(part)}


def decode_parts(content: Json) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (Text(content),) if content else ()
    return tuple(_decode_part(part) for part in dicts(content))


def _decode_part(part: Object) -> Part:
    match part:
        case {"type": "input_text" | "output_text" | "text", "text": str(text)}:
            return Text(text)
        case {"type": "refusal", "refusal": str(text)}:
            return Text(text)
        case _:
            pass
    media = _decode_media(part)
    if media is None:
        return Media(native=Native(NAME, part))
    return replace(media, native=Native(NAME, part)) if says_more(part, encode_part(media)) else media


def _decode_media(part: Object) -> Media | None:
    match part:
        case {"type": "input_file", "file_data": str(data)} if data and not data.startswith("data:"):
            return _named(Media(mime=mime_of(as_text(part.get("filename"))), data=data), part)
        case {"type": "input_image", "image_url": str(url)} if url:
            return from_data_url(url)
        case {"type": "input_file", "file_data": str(url)} if url:
            return _named(from_data_url(url), part)
        case {"type": "input_file", "file_url": str(url)} if url:
            return _named(Media(mime=mime_of(url), url=url), part)
        case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(form)}} if data:
            return Media(mime=audio_mime(form), data=data)
        case _:
            return None


def _named(media: Media, part: Object) -> Media:
    name = as_text(part.get("filename"))
    return media if name == file_name(media) else replace(media, name=name)


def text_of(item: Object) -> str:
    """The text of a message item, refusals included."""
    return "".join(part.text for part in decode_parts(item.get("content")) if isinstance(part, Text))
