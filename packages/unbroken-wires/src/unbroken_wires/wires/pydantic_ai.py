"""Reads the messages that pydantic-ai stores: its objects, and the JSON of its `ModelMessagesTypeAdapter`.

The package is not imported: its messages are recognised by `kind` and `parts`, its parts by `part_kind`. A part of an
unknown kind is refused, because it might be a call.
"""

from __future__ import annotations

import base64
import binascii
import mimetypes
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from unbroken_wires.errors import CannotEncode, UserError
from unbroken_wires.messages import (
    Assistant,
    Media,
    Message,
    Outcome,
    Part,
    System,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    User,
)
from unbroken_wires.transcript import Link, Place
from unbroken_wires.wires.content_parts import call_from_text
from unbroken_wires.wires.jsontext import dumps

Object = dict[str, Any]

_SPEECH = frozenset({"user-prompt", "system-prompt", "retry-feedback", "speech", "compaction", "instruction-delta"})
_INTERNAL = {
    "instruction-baseline": "the agent here has its own instructions",
    "tool-availability-delta": "the agent here has its own tools",
    "capability-load-delta": "the agent here has its own tools",
    "model-settings-delta": "the agent here has its own settings",
}
"""What pydantic-ai notes for itself."""
_NATIVE = frozenset({"builtin-tool-call", "builtin-tool-return"})
_IN_REQUESTS = _SPEECH | {"tool-return", "retry-prompt"} | _INTERNAL.keys()
_IN_RESPONSES = frozenset({"text", "thinking", "tool-call", "file", "speech", "compaction"}) | _NATIVE
_URLS = {
    "image-url": "",
    "audio-url": "audio/mpeg",
    "video-url": "video/mp4",
    "document-url": "application/pdf",
}
"""With the type that is assumed if neither the part nor the address has one. Without a type it is an image."""
_FILES = frozenset({*_URLS, "binary", "uploaded-file"})
_HOLDS = {
    **dict.fromkeys(_URLS, "url"),
    "binary": "data",
    "uploaded-file": "file_id",
    "text-content": "content",
    "structured-content": "content",
}
"""The kinds of content, and the field that each has in JSON."""
_ENDED: Mapping[str, tuple[bool, Outcome | None]] = {
    "success": (False, None),
    "failed": (True, None),
    "denied": (True, "not_executed"),
    "interrupted": (True, "unknown"),
    "retried": (True, "retry"),
}


def is_stored(messages: Sequence[Any]) -> bool:
    """Whether these are messages of pydantic-ai, and nothing else."""
    return bool(messages) and all(map(_is_stored, messages))


def stored_links(messages: Sequence[Any]) -> list[Link]:
    """The calls and results, for `status_of`. Places are those of the messages and parts that were given."""
    links: list[Link] = []
    turn, previous = -1, ""
    for position, message in enumerate(messages):
        kind = _kind_of(message, position)
        turn += kind != previous
        previous = kind
        for number, part in enumerate(_parts_of(message)):
            place = Place(position, number)
            part_kind = _part_kind(part, kind, place)
            id, name = _text_of(part, "tool_call_id"), _text_of(part, "tool_name")
            if part_kind == "tool-call":
                links.append(Link("call", id, place, turn, name))
            elif _is_result(part, part_kind):
                links.append(Link("result", id, place, turn, name))
            else:
                links.append(Link("speech", None, place, turn))
    return links


def read_stored(messages: Iterable[Any]) -> tuple[tuple[Message, ...], tuple[str, ...]]:
    """The history as our own messages, and what they cannot carry, one line for each part. Calls without a result stay
    open: pass the messages to `repair`, to an agent or to a `Conversation`.

    Timestamps, usage, ids of runs, the `instructions` of a request and `metadata` are not part of the history.
    """
    if isinstance(messages, str | bytes | dict) or not isinstance(messages, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] - a caller's value
        raise UserError(
            f"a stored history of pydantic-ai is a list of messages, not {type(cast('object', messages)).__name__}"
        )
    found = list(messages)
    reading = _Reading()
    for position, message in enumerate(found):
        if not _has_parts(message):
            raise UserError(f"message {position} of a history of pydantic-ai cannot be read: it has no parts")
        kind = _kind_of(message, position)
        if kind == "request":
            reading.request(position, message)
        else:
            reading.response(position, message)
    return tuple(reading.messages), tuple(reading.left_out)


class _Reading:
    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.left_out: list[str] = []
        self._place = Place(0, 0)

    def request(self, position: int, message: Any) -> None:
        for part, kind in self._each(position, message, "request"):
            if _is_result(part, kind):
                self._add_result(self._result(part, kind))
            elif kind == "system-prompt":
                self._system(part)
            elif kind == "instruction-delta":
                self._instruction(part)
            elif kind == "user-prompt":
                self._user(self._content(_get(part, "content")))
            elif kind == "speech":
                self._user(self._speech(part))
            elif kind == "compaction":
                self._summary(part)
            elif kind in ("retry-prompt", "retry-feedback"):
                self._user([Text(_as_text(part, _get(part, "content")))])
            else:
                self._leave_out(kind, _INTERNAL[kind])

    def response(self, position: int, message: Any) -> None:
        said: list[str] = []
        thought: list[str] = []
        calls: list[ToolCall] = []
        was_cut = _text_of(message, "state") in ("incomplete", "interrupted")
        was_cut = was_cut or _text_of(message, "finish_reason") == "length"
        for part, kind in self._each(position, message, "response"):
            if kind == "text":
                said.append(_text_of(part, "content"))
                self._details(part, kind, "citations", "provider_details")
            elif kind == "thinking":
                thought.append(_text_of(part, "content"))
                self._details(part, kind, "signature", "provider_details")
            elif kind == "tool-call":
                calls.append(_call(part, len(calls), was_cut))
                self._details(part, kind, "provider_details")
            elif kind == "speech":
                said.append(_text_of(part, "transcript"))
                if _get(part, "audio") or not said[-1]:
                    self._leave_out(kind, "an answer holds text only; its sound is missing")
            elif kind == "compaction":
                self._summary(part)
            elif kind == "file":
                media_type = _text_of(_get(part, "content"), "media_type")
                self._leave_out(f"file ({media_type})", "an answer holds text only")
            else:
                self._leave_out(
                    f"{kind} ({_text_of(part, 'tool_name')})",
                    "what a provider's own tool did can only go back to that provider, in its own form",
                )
        answer = Assistant("".join(said), tuple(calls), "\n\n".join(filter(None, thought)))
        if answer != Assistant():
            self.messages.append(answer)

    def _each(self, position: int, message: Any, message_kind: str) -> Iterator[tuple[Any, str]]:
        for number, part in enumerate(_parts_of(message)):
            self._place = Place(position, number)
            yield part, _part_kind(part, message_kind, self._place)

    def _leave_out(self, what: str, why: str) -> None:
        self.left_out.append(f"message {self._place.message}, part {self._place.part}: {what}: {why}")

    def _details(self, part: Any, kind: str, *fields: str) -> None:
        for field in fields:
            if _get(part, field):
                self._leave_out(f"`{field}` of {kind}", "it is in the form of its provider")

    def _system(self, part: Any) -> None:
        if _text_of(part, "scope") == "request":
            self._leave_out("system-prompt", "it was for its own request only")
        else:
            self.messages.append(System.of(_text_of(part, "content")))

    def _instruction(self, part: Any) -> None:
        if content := _text_of(part, "content"):
            self.messages.append(System.of(content))
        else:
            self._leave_out("instruction-delta", "it withdraws an instruction; the agent here has its own")

    def _summary(self, part: Any) -> None:
        """Before the rest of its message: it stands for what was before that."""
        if content := _text_of(part, "content"):
            self.messages.append(User.of(content))
        else:
            self._leave_out("compaction", "its text is encrypted; only the provider that wrote it can read it")

    def _user(self, parts: list[Part]) -> None:
        if parts:
            self.messages.append(User(tuple(parts)))

    def _speech(self, part: Any) -> list[Part]:
        transcript, audio = _text_of(part, "transcript"), _get(part, "audio")
        if transcript:
            return [Text(transcript)]
        return self._content([audio]) if audio else [self._missing("speech", "it has neither a transcript nor sound")]

    def _add_result(self, result: ToolResult) -> None:
        if self.messages and isinstance(last := self.messages[-1], ToolMessage):
            self.messages[-1] = ToolMessage((*last.results, result))
        else:
            self.messages.append(ToolMessage((result,)))

    def _result(self, part: Any, kind: str) -> ToolResult:
        content, outcome = _get(part, "content"), _text_of(part, "outcome") or "success"
        if kind == "retry-prompt":
            outcome = "retried"
        if outcome not in _ENDED:
            raise _unreadable(self._place, f"the outcome of its result is {outcome!r}")
        error, ended_as = _ENDED[outcome]
        items = cast("list[Any]", content) if isinstance(content, list) else [content]
        has_files = any(_content_kind(item) in _FILES for item in items)
        parts = self._content(items) if has_files else [Text(_as_text(part, content))]
        return ToolResult(
            _text_of(part, "tool_call_id"),
            tuple(parts),
            error,
            _text_of(part, "tool_name"),
            data=_get(part, "metadata"),
            ended_as=ended_as,
        )

    def _content(self, content: Any) -> list[Part]:
        """Of a prompt, or of a result with files. What cannot be carried leaves a note, which the model reads."""
        if isinstance(content, str):
            return [Text(content)]
        if content is not None and not isinstance(content, Sequence):
            raise _unreadable(self._place, f"its content is {type(content).__name__}, not a text or a list")
        parts: list[Part] = []
        for item in cast("Sequence[Any]", content or ()):
            kind = _content_kind(item)
            if kind == "cache-point":
                self._mark(parts, item)
            elif kind in _FILES:
                parts.append(self._file(item, kind))
            elif kind in ("text-content", "structured-content"):
                parts.append(Text(_text_of(item, "content")))
            else:
                parts.append(Text(_as_text(None, item)))
        return parts

    def _mark(self, parts: list[Part], item: Any) -> None:
        if parts:
            parts[-1] = replace(parts[-1], cache="1h" if _text_of(item, "ttl") == "1h" else "5m")
        else:
            self._leave_out("cache-point", "nothing is before it")

    def _file(self, item: Any, kind: str) -> Part:
        if kind == "uploaded-file":
            file = f"{_text_of(item, 'file_id')} of {_text_of(item, 'provider_name')}"
            return self._missing(f"uploaded-file ({file})", "the file is with its provider")
        if _get(item, "vendor_metadata"):
            self._leave_out(f"`vendor_metadata` of {kind}", "it is in the form of its provider")
        if kind == "binary":
            return self._binary(item)
        url = _text_of(item, "url")
        mime = _text_of(item, "media_type") or mimetypes.guess_type(url.partition("?")[0])[0] or _URLS[kind]
        return Media(mime, url=url) if url else self._missing(kind, "it has no address")

    def _binary(self, item: Any) -> Part:
        data, mime = _get(item, "data"), _text_of(item, "media_type")
        if isinstance(data, bytes):
            data = base64.b64encode(data).decode()
        elif isinstance(data, str):
            data = data.replace("-", "+").replace("_", "/")  # its JSON has the alphabet of URLs
            data += "=" * (-len(data) % 4)
        try:
            if not base64.b64decode(data or "", validate=True) or not mime:
                return self._missing("binary", "it has no data, or no media type")
        except (binascii.Error, TypeError, ValueError):
            return self._missing(f"binary ({mime})", "its data is not base64")
        return Media(mime, data)

    def _missing(self, what: str, why: str) -> Text:
        self._leave_out(what, why)
        return Text(f"[{what}: not available any more]")


def _call(part: Any, index: int, was_cut: bool) -> ToolCall:
    arguments = _get(part, "args")
    blank = arguments is None or (isinstance(arguments, str) and not arguments.strip())
    call = call_from_text(_text_of(part, "tool_call_id"), _text_of(part, "tool_name"), arguments, index)
    if was_cut and blank:
        return replace(call, arguments=None, complete=False, problem="the response was cut before its arguments")
    return call


def _is_stored(message: Any) -> bool:
    if isinstance(message, System | User | Assistant | ToolMessage):
        return False
    parts = _get(message, "parts")
    if parts is None and _has_parts(message):
        return _text_of(message, "kind") in ("", "request", "response")  # says nothing, and is skipped
    if isinstance(parts, str | bytes) or not isinstance(parts, Sequence):
        return False
    if any(_text_of(part, "part_kind") for part in cast("Sequence[Any]", parts)):
        return True
    return not parts and _text_of(message, "kind") in ("request", "response")


def _has_parts(message: Any) -> bool:
    """Even if they are None."""
    return "parts" in cast("dict[str, Any]", message) if isinstance(message, dict) else hasattr(message, "parts")


def _kind_of(message: Any, position: int) -> str:
    kind = _text_of(message, "kind")
    if not kind:  # objects that only look like messages, as tests make them
        kinds = {_text_of(part, "part_kind") for part in _parts_of(message)}
        return "response" if kinds & (_IN_RESPONSES - _IN_REQUESTS) else "request"
    if kind not in ("request", "response"):
        raise UserError(
            f"message {position} of a history of pydantic-ai cannot be read: its kind is {kind!r}, not request or "
            f"response"
        )
    return kind


def _parts_of(message: Any) -> Sequence[Any]:
    return cast("Sequence[Any]", _get(message, "parts") or ())


def _part_kind(part: Any, message_kind: str, place: Place) -> str:
    kind = _text_of(part, "part_kind")
    if kind in (_IN_REQUESTS if message_kind == "request" else _IN_RESPONSES):
        return kind
    raise _unreadable(place, f"`part_kind` is {kind!r}, which is not known in a {message_kind}")


def _unreadable(place: Place, problem: str) -> UserError:
    return UserError(
        f"message {place.message} of a history of pydantic-ai cannot be read: part {place.part}: {problem}; leave that "
        f"part out if you know that it is not needed"
    )


def _is_result(part: Any, kind: str) -> bool:
    """A prompt to retry answers a call if it names a tool; otherwise it is about the answer."""
    return kind == "tool-return" or (kind == "retry-prompt" and bool(_text_of(part, "tool_name")))


def _content_kind(item: Any) -> str:
    """Empty for anything else: the data of a tool may have a field of that name too."""
    kind = "" if isinstance(item, str) else _text_of(item, "kind")
    if isinstance(item, dict) and kind in _HOLDS and _HOLDS[kind] not in item:
        return ""
    return kind if kind in _HOLDS or kind == "cache-point" else ""


def _as_text(part: Any, value: Any) -> str:
    """A value as the model read it: its JSON, written by the part itself where it is an object of pydantic-ai. That a
    call failed is not part of the text, so that objects and JSON give the same."""
    if isinstance(value, str):
        return value
    if value is None or value == []:
        return ""
    write = getattr(part, "model_response_str", None)
    if callable(write):
        try:
            return str(write(wrap_if_error=False))
        except TypeError:  # older versions have no such argument
            return str(write())
    try:
        return dumps(value).decode()
    except CannotEncode:
        return str(value)


def _get(thing: Any, name: str) -> Any:
    if isinstance(thing, dict):
        return cast("Object", thing).get(name)
    try:
        return getattr(thing, name, None)
    except ValueError:  # `media_type` of an address that has none
        return None


def _text_of(thing: Any, name: str) -> str:
    value = _get(thing, name)
    return value if isinstance(value, str) else ""
