"""gemini, the conversation in a request in both directions: messages to contents with parts and back.

`sign` adds the signature that newer models demand on a call, for calls that have none. Gemini 3 signs the first call of
a response and refuses a history of the current turn in which a first call is unsigned (400 "Function call is missing a
thought_signature"). A call of another wire never had a signature, and a call that was dropped took its signature with
it: a signature is valid only on the part on which it came, so it is not moved to a sibling. For both cases the API
documents a placeholder (https://ai.google.dev/gemini-api/docs/thought-signatures#faqs).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, count
from string import ascii_lowercase

from unbroken_wires.messages import (
    Assistant,
    Json,
    Media,
    Message,
    Native,
    Request,
    System,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    User,
)
from unbroken_wires.wires.content_parts import call_from_text, foreign_text, outgoing_object, own_native
from unbroken_wires.wires.gemini.gemini_parts import (
    GROUNDING,
    NAME,
    NAME_RULE,
    camel,
    decode_parts,
    encode_part,
    listed,
    parts_of,
    plain,
    says_something,
)
from unbroken_wires.wires.json_access import Object, as_dict, as_text, called_name, dicts, fit_name
from unbroken_wires.wires.jsontext import dump_arguments


def encode_contents(messages: Iterable[Message], model: str = "") -> list[Object]:
    contents = _Writer().encode(messages)
    sign(contents, model)
    return contents


class _Writer:
    """Writes the messages. Remembers of every call its name and the id that it has on the wire, for its result."""

    def __init__(self) -> None:
        self._rounds = 0
        self._places: dict[str, tuple[int, str, str]] = {}

    def encode(self, messages: Iterable[Message]) -> list[Object]:
        contents: list[Object] = []
        for message in messages:
            # An empty message is left out: the API refuses a content without parts, and a made-up word
            # would be put into someone's mouth.
            if parts := [part for part in self._parts(message) if says_something(part)]:
                contents.append({"role": "model" if isinstance(message, Assistant) else "user", "parts": parts})
        return contents

    def _parts(self, message: Message) -> list[Object]:
        match message:
            case System():
                return [{"text": f"<system>{message.text}</system>"}] if message.text else []
            case User():
                return [encode_part(part) for part in message.parts]
            case Assistant():
                return self._assistant(message)
            case ToolMessage():
                # Calls without ids differ by their order alone.
                results = sorted(message.results, key=lambda result: self._place(result)[0])
                return [self._result(result) for result in results]

    def _assistant(self, message: Assistant) -> list[Object]:
        native = message.native
        calls = {call.id: (index, call) for index, call in enumerate(message.calls)}
        parts: list[Object]
        if native is not None and native.wire == NAME and dicts(native.value):
            parts = self._native(native, calls)
        else:
            parts = [{"text": message.text}]
        for index, call in calls.values():
            id = "" if call.id == f"call_{self._rounds}_{index}" else call.id
            name = called_name(call, NAME_RULE)
            self._places[call.id] = (index, name, id)
            value: Object = {"name": name, "args": encode_arguments(call)}
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
                if GROUNDING not in part and "functionCall" not in part:
                    parts.append(part)
                continue
            index, call = calls.pop(ids.popleft() if ids else "", (0, None))
            if call is not None:
                name = called_name(call, NAME_RULE)
                self._places[call.id] = (index, name, as_text(value.get("id")))
                # Some servers give the arguments as text, or null; the provider itself takes an object alone.
                odd = call.kind == "function" and (
                    call.arguments is None or not isinstance(value.get("args", {}), dict)
                )
                if odd or value.get("name") != name:
                    args: Object = {"args": encode_arguments(call)} if odd else {}
                    part = {**part, "functionCall": {**value, "name": name, **args}}
                parts.append(part)
        return parts

    def _place(self, result: ToolResult) -> tuple[int, str, str]:
        return self._places.get(result.call_id, (len(self._places), fit_name(result.name, NAME_RULE), result.call_id))

    def _result(self, result: ToolResult) -> Object:
        _, name, id = self._place(result)
        value = as_dict(own_native(result, NAME)) or _encode_result(result)
        return {"functionResponse": {**({"id": id} if id else {}), "name": name, **value}}


def _encode_result(result: ToolResult) -> Object:
    media = [part for part in result.content if isinstance(part, Media)]
    encoded = [(part, encode_part(part)) for part in media]
    parts = [value for _, value in encoded if "text" not in value]
    left = [part for part, value in encoded if "text" in value]
    # Its parts hold media only, so the word for one that cannot be passed on stands in the text.
    text = "\n".join(filter(None, [result.text, *map(foreign_text, left)]))
    value: Object = {"response": {"error" if result.error else "output": text}}
    return {**value, "parts": parts} if parts else value


def encode_arguments(call: ToolCall) -> Json:
    """Arguments are an object here: `{}` for a call that was cut, and a field of its own for a custom call's text."""
    if call.kind == "custom":
        return {"input": call.raw}
    return outgoing_object(call)


def decode_contents(contents: Json) -> tuple[Message, ...]:
    return tuple(_Reader().decode(listed(contents)))


def _joined(contents: list[Object]) -> list[Object]:
    """A client that streams keeps each chunk as a content of its own: neighbours of the model are one message."""
    joined: list[Object] = []
    for content in contents:
        last = joined[-1] if joined else {}
        if content.get("role") == "model" and last.get("role") == "model":
            joined[-1] = {**last, "parts": [*parts_of(last), *parts_of(content)]}
        else:
            joined.append(content)
    return joined


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
        for content in _joined(dicts(contents)):
            parts = parts_of(content)
            if content.get("role") == "model":
                message: Message = self._assistant(parts)
            else:
                answers = [as_dict(part["functionResponse"]) for part in parts if "functionResponse" in part]
                results += [self._result(answer) for answer in answers]
                said = decode_parts([part for part in parts if "functionResponse" not in part])
                if answers and not said:
                    continue
                message = User(said)
                if content.get("role") == "system":
                    message = System(tuple(part for part in said if isinstance(part, Text)))
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
        kept = [part for part in parts if says_something(part)]
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
        parts = parts_of(answer)
        content = decode_parts(parts)
        rest = {key: item for key, item in answer.items() if key not in ("id", "name", "parts") and item is not None}
        ours = not rest or (rest.keys() == {"response"} and key in ("output", "error") and isinstance(value, str))
        if not ours or any(isinstance(part, Text) or part.native for part in content):
            native = Native(NAME, {**rest, "parts": parts} if parts else rest)
        else:
            native = None
        return ToolResult(
            call.id if call else wire_id or f"unknown_{name}",
            (*((Text(text),) if text else ()), *content),
            error=key == "error",
            name=call.name if call else name,
            native=native,
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


PLACEHOLDER = "skip_thought_signature_validator"
"""Of the two documented ones the one that Vertex AI documents too."""

_STRICT = {
    "gemini-3": "documented: strict validation, at every thinking level",
    "gemini-flash-latest": "an alias that has moved on to Gemini 3 and was seen to refuse",
}
"""What a model's name contains, and how we know that the model refuses. Others take unsigned calls as they are."""


def sign(contents: list[Object], model: str) -> None:
    """Put the placeholder on the first call of each content of the current turn, where it has no signature."""
    if not any(name in model for name in _STRICT):
        return
    for content in reversed(contents):
        parts: list[Object] = content["parts"]
        if content["role"] == "model":
            at = next((at for at, part in enumerate(parts) if "functionCall" in part), None)
            if at is not None and not parts[at].get("thoughtSignature"):
                parts[at] = {**parts[at], "thoughtSignature": PLACEHOLDER}
        elif not any("functionResponse" in part for part in parts):
            break  # the turn began here; the API does not look further back


def sign_with_placeholder(body: Object, request: Request) -> tuple[Object, str]:
    """Gemini 3 refuses a first call without its signature. Our own contents are signed by the encoder already."""
    contents = [{**content, "parts": dicts(content.get("parts"))} for content in dicts(body.get("contents"))]
    for content in contents:
        content.setdefault("role", "user")
    sign(contents, request.model)
    signed = any(part.get("thoughtSignature") == PLACEHOLDER for content in contents for part in content["parts"])
    return ({**body, "contents": contents}, "signed with a placeholder") if signed else (body, "")


_UNVERIFIED = re.compile(r"thought.?signature", re.IGNORECASE)


def mend_refused(body: Object, words: str) -> tuple[Object, list[str]] | None:
    """The body without the signatures, if one of them was cut: the API refuses it, and does not say which."""
    contents = dicts(body.get("contents"))
    if not _UNVERIFIED.search(words) or not any("thoughtSignature" in part for part in _parts(contents)):
        return None
    for content in (contents := [{**content, "parts": dicts(content.get("parts"))} for content in contents]):
        bare = [{key: part[key] for key in part if key != "thoughtSignature"} for part in content["parts"]]
        content["parts"] = [part for part in bare if part]
        if any("functionCall" in part for part in bare):
            first = next(part for part in bare if "functionCall" in part)
            first["thoughtSignature"] = PLACEHOLDER
    return {**body, "contents": contents}, ["contents.parts.thoughtSignature"]


def _parts(contents: list[Object]) -> Iterator[Object]:
    return (part for content in contents for part in dicts(content.get("parts")))
