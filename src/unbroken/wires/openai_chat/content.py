"""openai-chat, the parts of a message both ways: text, images, sounds, files.

A part that our fields do not say in full is kept as the client sent it (`Media.native`); one that they do not say at
all (a file by its id, a video, a vendor's own) has nothing else. Nothing here knows of roles or calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from unbroken.messages import Json, Media, Native, Part, Text
from unbroken.wires.parts import (
    audio_format,
    audio_mime,
    cache_control,
    cache_mark,
    data_url,
    file_name,
    foreign_text,
    from_data_url,
    is_foreign,
    mime_of,
    own_native,
    says_more,
)
from unbroken.wires.values import Object, as_dict, as_list, as_text

NAME = "openai-chat"


def encode_parts(parts: Sequence[Part], marks: bool = False) -> Json:
    """`marks`: the cache marks came from a client of this wire (OpenRouter and LiteLLM have them), so they are sent."""
    return plain_text(parts, marks) or shortest([encode_part(part, marks) for part in parts])


def plain_text(parts: Sequence[Part], marks: bool) -> str:
    """Of nearly all messages: their only part, if that is all there is to say."""
    if len(parts) == 1:
        only = parts[0]
        if only.__class__ is Text and not (marks and only.cache):
            return cast("Text", only).text
    return ""


def shortest(encoded: list[Object]) -> Json:
    """The content of a message: a plain text where one says it, which every server takes."""
    if not encoded:
        return ""
    only = encoded[0]
    if len(encoded) == 1 and len(only) == 2 and only.get("type") == "text":
        text = only.get("text")
        if isinstance(text, str) and text:
            return text
    return encoded


def encode_part(part: Part, marks: bool = False) -> Object:
    if isinstance(part, Media):
        return _encode_media(part)
    encoded: Object = {"type": "text", "text": part.text}
    return {**encoded, "cache_control": cache_control(part.cache)} if part.cache and marks else encoded


def _encode_media(media: Media) -> Object:
    own = as_dict(own_native(media, NAME))
    if own:
        return own
    if is_foreign(media):
        return {"type": "text", "text": foreign_text(media)}
    if media.url.startswith("data:"):
        media = replace(from_data_url(media.url), name=media.name)
    mime, url = media.mime, media.url
    if mime.startswith("image/") or (not mime and mime_of(url) != "application/pdf"):
        return {"type": "image_url", "image_url": {"url": data_url(media)}}
    if url:  # only images may be given by their address
        return {"type": "text", "text": foreign_text(media)}
    if mime.startswith("audio/"):
        return {"type": "input_audio", "input_audio": {"data": media.data, "format": audio_format(mime)}}
    return {"type": "file", "file": {"filename": file_name(media), "file_data": data_url(media)}}


def decode_parts(content: Json) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (Text(content),) if content else ()
    parts: list[Part] = []
    for part in as_list(content):
        if isinstance(part, str):
            parts.append(Text(part))
        elif isinstance(part, dict) and part:
            parts.append(decode_part(as_dict(part)))
    return tuple(parts)


def decode_part(part: Object) -> Part:
    match part:
        case {"type": "text" | "input_text" | "output_text", "text": str(text)}:
            return Text(text, cache_mark(part))
        case {"type": "refusal", "refusal": str(text)}:
            return Text(text)
        case {"type": "text", **rest} if rest.get("text") is None:
            return Text("")
        case {"type": "image_url", "image_url": str(url)}:
            return _kept({**part, "image_url": {"url": url}}, from_data_url(url) if url else None)
        case {"type": "image_url", "image_url": {"url": str(url)}} if url:
            return _kept(part, from_data_url(url))
        case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(format)}} if data and format:
            return _kept(part, _sound(data, audio_mime(format)))
        case {"type": "file", "file": {"file_data": str(data), **rest}} if data:
            return _kept(part, _file(data, as_text(rest.get("filename"))))
        case _:
            return _kept(part, None)


def _kept(part: Object, media: Media | None) -> Media:
    """The part in our fields, with its own spelling beside them where that says more."""
    native = Native(NAME, part)
    if media is None:
        return Media(native=native)
    media = replace(media, cache=cache_mark(part))
    return replace(media, native=native) if says_more(part, _encode_media(media)) else media


def _sound(data: str, mime: str) -> Media | None:
    if data.startswith("data:"):  # DashScope wants a data URL here, mostly without its type
        data = data.partition(",")[2]
    elif data.startswith(("http://", "https://")):
        return Media(mime=mime, url=data)
    return Media(mime=mime, data=data) if data else None


def _file(data: str, name: str) -> Media | None:
    if data.startswith("data:"):
        media = from_data_url(data)
        if media.url:  # neither base64 nor of a known type
            return None
    elif data.startswith(("http://", "https://")):  # OpenRouter takes an address here
        media = Media(mime=mime_of(name or data), url=data)
    else:
        media = Media(mime=mime_of(name), data=data)
    return media if name == file_name(media) else replace(media, name=name)
