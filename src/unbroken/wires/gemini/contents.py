"""gemini: the conversation in a request, as contents with parts, both ways.

`encode_contents` writes messages, `decode_contents` reads a client's; the settings around them are in
`requests`, which also says what is lost on the way.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from itertools import chain, count
from string import ascii_lowercase
from typing import cast

from unbroken.messages import (
    Assistant,
    Json,
    Media,
    Message,
    Native,
    Part,
    System,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    User,
)
from unbroken.wires.gemini.parts import plain
from unbroken.wires.jsontext import dump_arguments
from unbroken.wires.parts import call_from_text, from_data_url
from unbroken.wires.values import Object, as_dict, as_text, dicts

NAME = "gemini"


def encode_contents(messages: Iterable[Message]) -> list[Object]:
    return _Writer().encode(messages)


class _Writer:
    """Writes the messages. Remembers of every call its name and the id that it has on the wire, for its result."""

    def __init__(self) -> None:
        self._rounds = 0
        self._places: dict[str, tuple[int, str, str]] = {}

    def encode(self, messages: Iterable[Message]) -> list[Object]:
        contents: list[Object] = []
        for message in messages:
            match message:
                case System():
                    text = f"<system>{message.text}</system>"
                    contents.append({"role": "user", "parts": [{"text": text}]})
                case User():
                    parts = [_encode_part(part) for part in message.parts]
                    contents.append({"role": "user", "parts": parts or [{"text": ""}]})
                case Assistant():
                    contents.append({"role": "model", "parts": self._assistant(message) or [{"text": ""}]})
                case ToolMessage():
                    # Calls without ids are told apart by their order alone.
                    results = sorted(message.results, key=lambda result: self._place(result)[0])
                    contents.append({"role": "user", "parts": [self._result(result) for result in results]})
        return contents

    def _assistant(self, message: Assistant) -> list[Object]:
        native = message.native
        calls = {call.id: (index, call) for index, call in enumerate(message.calls)}
        parts: list[Object]
        if native is not None and native.wire == NAME and dicts(native.value):
            parts = self._native(native, calls)
        else:
            parts = [{"text": message.text}] if message.text else []
        for index, call in calls.values():
            id = "" if call.id == f"call_{self._rounds}_{index}" else call.id
            self._places[call.id] = (index, call.name, id)
            value: Object = {"name": call.name, "args": encode_arguments(call)}
            parts.append({"functionCall": {"id": id, **value} if id else value})
        self._rounds += bool(message.calls)
        return parts

    def _native(self, native: Native, calls: dict[str, tuple[int, ToolCall]]) -> list[Object]:
        """The parts as they were, but for calls that the message no longer has; `calls` loses those written here."""
        parts: list[Object] = []
        ids = deque(native.ids)
        for part in dicts(native.value):
            value = as_dict(part.get("functionCall"))
            if not value:
                parts.append(part)
                continue
            index, call = calls.pop(ids.popleft() if ids else "", (0, None))
            if call is not None:
                self._places[call.id] = (index, call.name, as_text(value.get("id")))
                cut = call.arguments is None and call.kind == "function"
                parts.append({**part, "functionCall": {**value, "args": {}}} if cut else part)
        return parts

    def _place(self, result: ToolResult) -> tuple[int, str, str]:
        return self._places.get(result.call_id, (len(self._places), result.name, result.call_id))

    def _result(self, result: ToolResult) -> Object:
        _, name, id = self._place(result)
        value: Object = {"name": name, "response": {"error" if result.error else "output": result.text}}
        if id:
            value = {"id": id, **value}
        media = [_encode_part(part) for part in result.content if isinstance(part, Media)]
        if media:
            value["parts"] = media
        return {"functionResponse": value}


def encode_arguments(call: ToolCall) -> Object:
    """Arguments are an object here: `{}` for a call that was cut, and a field of its own for a custom call's text."""
    if call.kind == "custom":
        return {"input": call.raw}
    return call.arguments or {}


def _encode_part(part: Part) -> Object:
    if isinstance(part, Text):
        return {"text": part.text}
    if part.url.startswith("data:"):
        inline = from_data_url(part.url)
        part = inline if inline.data else part
    if part.data:
        return {"inlineData": {"mimeType": part.mime, "data": part.data}}
    return {"fileData": {"fileUri": part.url, **({"mimeType": part.mime} if part.mime else {})}}


def decode_contents(contents: Json) -> tuple[Message, ...]:
    return tuple(_Reader().decode(listed(contents)))


class _Reader:
    """Reads the contents. Gives ids to calls that have none, and finds for every result the call that it answers."""

    def __init__(self) -> None:
        self._rounds = 0
        self._used: set[str] = set()
        self._unanswered: dict[str, ToolCall] = {}
        self._by_wire_id: dict[str, deque[str]] = {}
        self._by_name: dict[str, deque[str]] = {}

    def decode(self, contents: list[Json]) -> Iterable[Message]:
        results: list[ToolResult] = []
        for content in dicts(contents):
            parts = parts_of(content)
            if content.get("role") == "model":
                message: Message = self._assistant(parts)
            else:
                answers = [as_dict(part["functionResponse"]) for part in parts if "functionResponse" in part]
                results += [self._result(answer) for answer in answers]
                if answers and len(answers) == len(parts):
                    continue
                message = _decode_user(content.get("role"), parts)
            if results:
                yield ToolMessage(tuple(results))
                results.clear()
            yield message
        if results:
            yield ToolMessage(tuple(results))

    def _assistant(self, parts: list[Object]) -> Assistant:
        text: list[str] = []
        reasoning: list[str] = []
        calls: list[ToolCall] = []
        self._unanswered, self._by_wire_id, self._by_name = {}, {}, {}
        for part in parts:
            if isinstance(part.get("text"), str):
                (reasoning if part.get("thought") is True else text).append(part["text"])
            elif isinstance(part.get("functionCall"), dict):
                value = as_dict(part["functionCall"])
                wire_id, name, index = as_text(value.get("id")), as_text(value.get("name")), len(calls)
                call = call_from_text(self._id(wire_id, index), name, value.get("args"), index)
                calls.append(call)
                self._unanswered[call.id] = call
                self._by_wire_id.setdefault(wire_id, deque()).append(call.id)
                self._by_name.setdefault(name, deque()).append(call.id)
        self._rounds += bool(calls)
        kept = [part for part in parts if part.keys() != {"text"} or part["text"] != ""]
        native = None if plain(kept) else Native(NAME, kept, tuple(call.id for call in calls))
        return Assistant("".join(text), tuple(calls), "".join(reasoning), native)

    def _id(self, wire_id: str, index: int) -> str:
        id = wire_id
        if not id or id in self._used:
            endings = chain(("",), ascii_lowercase, (f"z{n}" for n in count()))
            id = next(id for end in endings if (id := f"call_{self._rounds}_{index}{end}") not in self._used)
        self._used.add(id)
        return id

    def _result(self, answer: Object) -> ToolResult:
        answer = camel(answer)
        wire_id, name = as_text(answer.get("id")), as_text(answer.get("name"))
        call = self._answered(wire_id, name)
        response = as_dict(answer.get("response"))
        key = next(iter(response)) if len(response) == 1 else ""
        value: Json = response[key] if key in ("output", "result", "error") else response
        text = value if isinstance(value, str) else "" if value in (None, {}) else dump_arguments(value) or ""
        media = [media for part in parts_of(answer) if (media := _decode_media(part)) is not None]
        return ToolResult(
            call.id if call else wire_id or f"unknown_{name}",
            (*((Text(text),) if text else ()), *media),
            error=key == "error",
            name=call.name if call else name,
        )

    def _answered(self, wire_id: str, name: str) -> ToolCall | None:
        if wire_id in self._unanswered:
            return self._unanswered.pop(wire_id)
        # Without an id: the first call of that name that has no result yet.
        if not wire_id and not name:
            name = next((call.name for call in self._unanswered.values()), "")
        queue = self._by_wire_id.get(wire_id) if wire_id else self._by_name.get(name)
        while queue:
            id = queue.popleft()
            if id in self._unanswered:
                return self._unanswered.pop(id)
        return None


def _decode_user(role: Json, parts: list[Object]) -> Message:
    decoded: list[Part] = []
    for part in parts:
        media = _decode_media(part)
        if media is not None:
            decoded.append(media)
        elif isinstance(part.get("text"), str):
            decoded.append(Text(part["text"]))
    if role == "system":
        return System(tuple(part for part in decoded if isinstance(part, Text)))
    return User(() if decoded == [Text("")] else tuple(decoded))


def _decode_media(part: Object) -> Media | None:
    inline, file = as_dict(part.get("inlineData")), as_dict(part.get("fileData"))
    mime, data, url = (
        as_text((inline or file).get("mimeType")),
        as_text(inline.get("data")),
        as_text(file.get("fileUri")),
    )
    if data and mime:
        return Media(mime=mime, data=data)
    return Media(mime=mime, url=url) if url else None


def parts_of(content: Json) -> list[Object]:
    """The parts of a content, with their names in camelCase. One part may stand alone, a text without its part."""
    if isinstance(content, str):
        return [{"text": content}]
    parts = as_dict(content).get("parts")
    parts = [{"text": parts}] if isinstance(parts, str) else listed(parts)
    return [
        {key: camel(cast("Object", item)) if isinstance(item, dict) else item for key, item in camel(part).items()}
        for part in dicts(parts)
    ]


def listed(value: Json) -> list[Json]:
    return cast("list[Json]", value) if isinstance(value, list) else [value] if isinstance(value, dict) else []


def camel(value: Object) -> Object:
    """The names of one level in camelCase: the API takes both spellings."""
    return {_HUMP.sub(lambda found: found.group(1).upper(), key): item for key, item in value.items()}


_HUMP = re.compile(r"_([a-z])")
