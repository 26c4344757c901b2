"""What every wire needs to read and write requests: media as data URLs, names and formats of files, cache marks,
arguments as text, settings and things of one's own.

Not a place for anything that only one wire does.
"""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from math import isfinite
from typing import Any, cast

import orjson

from unbroken_wires.messages import (
    Assistant,
    CacheMark,
    Json,
    Media,
    Message,
    Native,
    Request,
    ToolCall,
    ToolMessage,
    ToolResult,
    ToolSpec,
)
from unbroken_wires.wires.json_access import NAMESPACE, IdRule, Object, as_dict, fit_name, full_name, is_name
from unbroken_wires.wires.jsontext import dump_arguments, shallow, strict, without_halves


def own_extra(request: Request, wire: str) -> Mapping[str, Json]:
    """The request's `extra`, unless it came from a client of another wire."""
    return request.extra if request.wire in ("", wire) else {}


def with_extra(body: Object, extra: Mapping[str, Json]) -> Object:
    """`extra` last, as it is; only its `tools` (those that the provider runs, which have no field of ours) are added
    to ours instead of replacing them."""
    if not extra:
        return body
    merged = {**body, **extra}
    if "tools" in body and isinstance(extra.get("tools"), list):
        merged["tools"] = [*body["tools"], *extra["tools"]]
    return merged


FREE_TEXT: Object = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The input of the tool, as plain text."}},
    "required": ["input"],
    "additionalProperties": False,
}
"""The parameters of a tool that takes free text, on wires where tools take JSON alone."""


def free_text_tool(name: str, description: str, syntax: str, grammar: str, native: Native) -> ToolSpec:
    """A tool that takes free text, as a client declared it. A grammar becomes part of the description, because other
    wires cannot enforce it."""
    if grammar:
        written = f" ({syntax})" if syntax else ""
        description = f"{description}\n\nThe input has to follow this grammar{written}:\n{grammar}".strip()
    return ToolSpec(name, description, FREE_TEXT, native=native, kind="custom")


def custom_as_functions(tools: Iterable[ToolSpec], wire: str) -> frozenset[str]:
    """The names of tools for free text that this wire offers as functions, because they came from another wire."""
    return frozenset([tool.name for tool in tools if tool.kind == "custom" and own_native(tool, wire) is None])


def as_function(call: ToolCall) -> ToolCall:
    """A call with free text as the call of a function."""
    arguments = {"input": call.raw}
    return replace(call, arguments=arguments, raw=dump_arguments(arguments) or "", complete=True, kind="function")


def with_functions(message: Assistant, functions: Collection[str]) -> Assistant:
    """The message with calls of these tools as calls of functions."""
    if not any(call.kind == "custom" and full_name(call) in functions for call in message.calls):
        return message
    calls = tuple(as_function(call) if full_name(call) in functions else call for call in message.calls)
    return replace(message, calls=calls)


def free_text_of(arguments: Object, raw: str) -> str:
    """The text that a model wrote for such a function; whatever it called the argument."""
    values = [arguments["input"]] if "input" in arguments else list(arguments.values())
    return values[0] if len(values) == 1 and isinstance(values[0], str) else raw


def as_declared(call: ToolCall, custom: Collection[str]) -> ToolCall:
    """A call of a model that was offered tools by their full names, as the client declared its tool. `custom`: the
    names of tools for free text."""
    full = full_name(call)
    namespace, _, name = full.rpartition(NAMESPACE)
    if call.kind == "function" and call.arguments is not None and full in custom:
        text = free_text_of(call.arguments, call.raw)
        call = replace(call, arguments=None, raw=text, complete=False, kind="custom")
    return replace(call, name=name, namespace=namespace) if name != call.name else call


def own_native(thing: Media | ToolSpec | ToolResult, wire: str) -> Json:
    """What a client of the same wire sent, to be given back as it was; None if there is none."""
    return thing.native.value if thing.native is not None and thing.native.wire == wire else None


def own_tool(tool: ToolSpec, wire: str, rule: IdRule, group: str = "") -> Object:
    """The tool as a client of the same wire declared it, with a name that its provider accepts; empty if there is none.
    `group`: the object in it that has the name."""
    own = as_dict(own_native(tool, wire))
    if is_name(tool.name, rule):
        return own
    named = as_dict(own.get(group)) if group else own
    if named.get("name") != tool.name:
        return own
    named = {**named, "name": fit_name(tool.name, rule)}
    return {**own, group: named} if group else named


def says_more(theirs: Object, ours: Object) -> bool:
    """Does the client's object have anything that ours does not? A null counts as nothing.

    Goes only as deep as ours does, whatever a client nests.
    """
    for key, value in theirs.items():
        own = ours.get(key)
        if value is None or value is own:
            continue
        if isinstance(value, dict) and isinstance(own, dict):
            if says_more(cast("Object", value), cast("Object", own)):
                return True
        elif value != own:
            return True
    return False


def is_foreign(media: Media) -> bool:
    """A part that only another wire understands; write `FOREIGN` in its place, so that its absence shows."""
    return not (media.data or media.url)


MEDIA_OF = "Images of the result of"
"""Begins a user message with the media of a result, on wires whose results are text alone."""

FOREIGN = "[an attachment that cannot be passed on to this provider]"


def text_file(text: str, name: str = "", native: Native | None = None) -> Media:
    """A text that a client sent as a document or a search result."""
    data = base64.b64encode(text.encode("utf-8", "replace")).decode()
    return Media(mime="text/plain", data=data, name=name, native=native)


def _text_in(media: Media) -> str:
    try:
        return base64.b64decode(media.data, validate=True).decode() if media.mime.startswith("text/") else ""
    except ValueError:
        return ""


def is_passage(media: Media) -> bool:
    """A text that its client did not send as a file, so that it need not be one elsewhere."""
    return media.native is not None and media.mime.startswith("text/") and bool(media.data)


def foreign_text(media: Media) -> str:
    """The text in place of a part that a wire cannot carry: a text file's own text, else a note, with its URL if it
    has one."""
    if text := _text_in(media):
        return f"{media.name}\n\n{text}" if media.name else text
    if media.url.startswith(("http://", "https://")):
        return f"[an attachment that cannot be passed on to this provider: {media.url}]"
    return FOREIGN


def data_url(media: Media) -> str:
    return media.url or f"data:{media.mime};base64,{media.data}"


def from_data_url(url: str) -> Media:
    if url.startswith("data:") and ";base64," in url:
        mime, data = url[5:].split(";base64,", 1)
        if mime and data:
            return Media(mime=mime, data=data)
    return Media(url=url or "about:blank")


_ENDINGS = {
    "application/pdf": "pdf",
    "text/plain": "txt",
    "text/markdown": "md",
    "application/msword": "doc",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation": "pptx",
    "text/csv": "csv",
    "text/html": "html",
    "application/json": "json",
    "video/mp4": "mp4",
}
_MIMES = {ending: mime for mime, ending in _ENDINGS.items()}


def file_name(media: Media) -> str:
    """The file's name, or one that fits its type: OpenAI's wires refuse a file without one."""
    return media.name or f"file.{_ENDINGS.get(media.mime, 'bin')}"


def mime_of(name: str) -> str:
    """The type that a name or an address ends with."""
    return _MIMES.get(name.partition("?")[0].rpartition(".")[2].lower(), "application/octet-stream")


def image_detail(media: Media) -> str:
    """How closely the model is to look at an image; empty if that is not said, or left to the model."""
    value = as_dict(media.native.value) if media.native is not None else {}
    detail = value.get("detail") or as_dict(value.get("image_url")).get("detail")
    return detail if isinstance(detail, str) and detail != "auto" else ""


_FORMATS = {"mpeg": "mp3", "mpga": "mp3", "wave": "wav", "vnd.wave": "wav"}


def audio_format(mime: str) -> str:
    """The format of a sound as OpenAI's wires name it: `mp3` for `audio/mpeg`, `wav` for `audio/x-wav`."""
    kind = mime.partition(";")[0].removeprefix("audio/").removeprefix("x-")
    return _FORMATS.get(kind, kind)


def audio_mime(format: str) -> str:
    return "audio/mpeg" if format == "mp3" else f"audio/{format}"


def cache_control(mark: CacheMark) -> Object:
    return {"type": "ephemeral", "ttl": "1h"} if mark == "1h" else {"type": "ephemeral"}


def content_before_answer(turns: Sequence[Object]) -> list[Object]:
    """The content of the user's last message that the model has answered. Empty if there is none."""
    for before, after in zip(turns[-2::-1], turns[:0:-1], strict=False):
        if before["role"] == "user" and after["role"] == "assistant":
            return before["content"]
    return []


def cache_mark(block: Object) -> CacheMark:
    """The mark of a block in Anthropic's spelling, which servers of Claude on other wires have taken over."""
    match block.get("cache_control"):
        case {"ttl": "1h"}:
            return "1h"
        case {"type": "ephemeral"}:
            return "5m"
        case _:
            return ""


def outgoing_arguments(call: ToolCall) -> str:
    """What goes back to the model: the text as it was, if it is an object; `{}` for a call that was cut."""
    if call.arguments is None:
        return "{}"
    raw = call.raw.strip()
    return call.raw if raw.startswith("{") else (dump_arguments(call.arguments) or "{}")


_BEYOND_FLOATS = re.compile(r"\d[eE]\+?\d{3}|\d{309}")


def outgoing_object(call: ToolCall) -> Json:
    """The same for wires on which arguments are an object. A number that is larger than any float (`1e400`) is written
    as the model wrote it."""
    if call.arguments is not None and _BEYOND_FLOATS.search(call.raw):
        return exact_object(call.raw) or call.arguments
    return call.arguments or {}


def exact_object(text: str) -> Json:
    """The object that the text of arguments holds, to be written; None if it is no object. If there is a number in it
    that no float holds, the text itself is written: in its place stood null."""
    value = object_from_text(text)
    return value if _is_finite(value) else orjson.Fragment(without_halves(text))


def _is_finite(value: Json) -> bool:
    if isinstance(value, dict):
        return all(map(_is_finite, cast("Object", value).values()))
    if isinstance(value, list):
        return all(map(_is_finite, cast("list[Json]", value)))
    return not isinstance(value, float) or isfinite(value)


def object_from_text(text: str) -> Object | None:
    """The object that the text of arguments holds; None if the text is cut, or is no object."""
    try:
        value: Json = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return cast("Object", value) if isinstance(value, dict) else None


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


def ids_as_kept(said: Sequence[str], ids: Sequence[str]) -> Iterator[str]:
    """Our ids of the calls that a provider `said` with these ones: by their order if some had to be minted, which may
    give the id of one call to another; empty for a call that is not among ours."""
    if len(said) == len(ids) and set(said) != set(ids):
        return iter(ids)
    times, left = Counter(said), dict.fromkeys(ids)
    own = [id if times[id] == 1 and id in left else "" for id in said]
    for id in own:
        left.pop(id, None)
    minted = iter(left)
    return iter([id or next(minted, "") for id in own])


def with_unique_ids(messages: Iterable[Message]) -> Iterable[Message]:
    """For an API that refuses an id which comes back in a later round, as those of providers that count from 0 each
    time do."""
    used: set[str] = set()
    renamed: dict[str, str] = {}
    for number, message in enumerate(messages):
        if isinstance(message, Assistant) and message.calls:
            own = {call.id for call in message.calls}
            renamed = {}
            for id in sorted(own & used):
                renamed[id] = next(f"{id}_{n}" for n in count(number) if f"{id}_{n}" not in used | own)
                used.add(renamed[id])
            used |= own
            if renamed:
                calls = tuple(replace(call, id=renamed.get(call.id, call.id)) for call in message.calls)
                native = message.native
                if native is not None:
                    native = replace(native, ids=tuple(renamed.get(id, id) for id in native.ids))
                message = replace(message, calls=calls, native=native)
        elif isinstance(message, ToolMessage) and renamed:
            results = tuple(replace(r, call_id=renamed.get(r.call_id, r.call_id)) for r in message.results)
            message = ToolMessage(results)
        yield message
