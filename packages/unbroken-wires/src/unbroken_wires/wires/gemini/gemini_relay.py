"""gemini in a gateway: relaying responses unchanged, raw contents and their repair, HTTP.

Every event is complete in itself: only the head, the calls and the end matter to what follows.
"""

from __future__ import annotations

import re
from collections import deque
from itertools import groupby

from unbroken_wires.messages import Json, ToolCall
from unbroken_wires.transcript import Piece
from unbroken_wires.wires.http_api import HttpApi, Operation, Wanted
from unbroken_wires.wires.json_access import Object, as_dict, as_list, as_text, dicts
from unbroken_wires.wires.jsontext import loads_exact
from unbroken_wires.wires.raw_history import RawHistory, Relay, RelayedStream, StreamCheck, field, one_call_in_each

_HEAD = ("modelVersion", "responseId", "createTime")


class RelayedGemini(RelayedStream):
    marks = (b'"functionCall"', b'"finishReason"')

    def __init__(self) -> None:
        super().__init__()
        self.head: Object = {}
        self.half = False
        """A call is being streamed in pieces, and its last one has not passed."""
        self.finished = False
        self._calls: list[Object] = []

    def find(self, call: ToolCall) -> Object | None:
        """The call that the client has begun to receive. Most have no id: then by name and place."""
        for place, one in enumerate(self._calls):
            id = as_text(one.get("id"))
            if id == call.id if id else (one.get("name"), place) == (call.name, call.index):
                return one
        return None

    def read(self, data: bytes) -> None:
        event = as_dict(loads_exact(data))
        if not self.head:
            self.head = {key: event[key] for key in _HEAD if event.get(key)}
            self.begun = bool(self.head)
        for candidate in dicts(event.get("candidates"))[:1]:
            self.finished = self.finished or bool(candidate.get("finishReason"))
            for part in dicts(as_dict(candidate.get("content")).get("parts")):
                if "functionCall" in part:
                    self._call(as_dict(part["functionCall"]))

    def _call(self, call: Object) -> None:
        if not self.half:
            self._calls.append(call)
        self.half = call.get("willContinue") is True


class GeminiCheck(StreamCheck):
    marks = (b"unctionCall", b"unction_call")

    def conforms(self, event: Object) -> bool:
        return _body_conforms(event)


def _body_conforms(body: Object) -> bool:
    contents = [as_dict(candidate.get("content")) for candidate in dicts(body.get("candidates"))]
    calls = [as_dict(part.get("functionCall")) for content in contents for part in dicts(content.get("parts"))]
    return all(isinstance(call.get("args", {}), dict) for call in calls)


RELAY = Relay(GeminiCheck, _body_conforms, end=re.compile(rb"finish_?[rR]eason"), ids_optional=True)


# gemini, raw contents: taken apart for repair, and a body with only its first call.
#
# Calls and results are parts, mostly without ids; the results of one turn share one content. A streaming client keeps
# each chunk as a content of its own, so neighbouring contents of the model are one turn.


# The provider takes both spellings of a field.
_CALL = ("functionCall", "function_call")
_RESULT = ("functionResponse", "function_response")


def _key(part: Json) -> str:
    fields = as_dict(part)
    return next((key for key in (*_CALL, *_RESULT) if isinstance(fields.get(key), dict)), "")


class GeminiHistory(RawHistory):
    def run(self, message: Json) -> str:
        return "model" if field(as_dict(message), "role") == "model" else ""

    def pieces(self, message: Json) -> list[Piece]:
        content = as_dict(message).get("parts")
        parts = [self._piece(part, self.run(message)) for part in as_list(content)]
        return parts or [Piece("speech", content or None)]

    def _piece(self, part: Json, run: str) -> Piece:
        key = _key(part)
        inner = as_dict(as_dict(part).get(key))
        if key in _RESULT:
            return Piece("result", part, field(inner, "id") or None, field(inner, "name"))
        if key and run:
            return Piece("call", part, field(inner, "id") or None, field(inner, "name"))
        return Piece("speech", part)

    def build(self, message: Json, values: list[Json]) -> Json:
        return {**message, "parts": [value for value in values if value is not None]}

    def holds(self, message: Json) -> bool:
        return any(piece.kind == "result" for piece in self.pieces(message))

    def wrap(self, results: list[Json]) -> list[Json]:
        return [{"role": "user", "parts": results}]

    def error(self, call: Object, text: str) -> Json:
        inner = as_dict(call.get(_key(call)))
        id: Object = {"id": inner["id"]} if field(inner, "id") else {}
        return {"functionResponse": {**id, "name": field(inner, "name"), "response": {"error": text}}}

    def renamed(self, piece: Piece, id: str) -> Json:
        key = _key(piece.value)
        return {**piece.value, key: {**piece.value[key], "id": id}}

    def has_links(self, message: Object) -> bool:
        return "parts" in message and any(piece.kind != "speech" for piece in self.pieces(message))

    def joined(self, messages: list[Json]) -> list[Json]:
        """A call may only follow what the user said: text and calls of the model in two contents are refused. So are
        empty parts, and results without the id of their call. google-genai sends all of that back after a stream."""
        said = [kept for message in messages if (kept := _without_empty(message))]
        joined: list[Json] = []
        for is_model, group in groupby(said, key=lambda message: bool(self.run(message))):
            run = list(group)
            if is_model and len(run) > 1 and any(map(self._calls, run)):
                run = [
                    {**as_dict(run[0]), "parts": [part for one in run for part in as_list(as_dict(one).get("parts"))]}
                ]
            joined += run
        joined = [_with_ids(message, before) for message, before in zip(joined, [None, *joined], strict=False)]
        return messages if joined == messages else joined

    def _calls(self, message: Json) -> bool:
        return any(piece.kind == "call" for piece in self.pieces(message))


HISTORY = GeminiHistory()


def keep_first_call(body: Object, new_id: str = "") -> Object:
    """A non-streaming body with only the first call of each answer, under `new_id` if there is one; nothing else
    changes. The same object where nothing has to change."""
    return one_call_in_each(HISTORY, body, "candidates", "content", "model", new_id)


# gemini over HTTP: the model and the choice of a stream are part of the path.


_METHODS: dict[str, tuple[Wanted, bool]] = {
    "generateContent": ("answer", False),
    "streamGenerateContent": ("answer", True),
    "countTokens": ("count", False),
}
_PATH = re.compile(rf"/(?:v1|v1beta|v1alpha)/models/(?P<model>[^:]+(?::[^:]+)*?):(?P<method>{'|'.join(_METHODS)})")


class GeminiHttp(HttpApi):
    short_name = "gemini"
    provider = "gemini"
    base_url_variable = "GOOGLE_GEMINI_BASE_URL"
    path = "/v1beta/models/{model}:{method}"
    methods = ("generateContent", "streamGenerateContent")
    stream_field = ""
    stream_query = {"alt": "sse"}  # noqa: RUF012 - annotated in the base class
    key_header = "x-goog-api-key"
    endings = (":generateContent", ":streamGenerateContent")
    error_paths = ("/v1beta/", "/v1alpha/")
    messages_field = "contents"
    count_field = "totalTokens"
    error_name = "GeminiError"
    roles = "user or model"
    fields = {  # noqa: RUF012 - annotated in the base class
        **HttpApi.fields,
        **dict.fromkeys(("systemInstruction", "system_instruction"), (str, dict)),
        **dict.fromkeys(("generationConfig", "generation_config", "toolConfig", "tool_config"), (dict,)),
    }
    message_fields = {"role": (str,), "parts": (str, list, dict)}  # noqa: RUF012 - annotated in the base class
    parts_field = "parts"
    part_fields = {"text": (str,)}  # noqa: RUF012 - annotated in the base class

    def find(self, path: str) -> Operation | None:
        if (found := _PATH.fullmatch(path)) is None:
            return None
        wanted, stream = _METHODS[found["method"]]
        return Operation(wanted, found["model"], stream)

    def body_to_count(self, body: Object) -> Object:
        """Its clients wrap a request that has a configuration."""
        return as_dict(body.get("generateContentRequest")) or body

    def wants_array(self, query: str) -> bool:
        return "alt=sse" not in query


def _without_empty(message: Json) -> Json:
    """The content without texts that say nothing and sign nothing; empty if nothing is left. The user's are left to the
    provider to judge."""
    content = as_dict(message)
    parts = dicts(content.get("parts"))
    kept = [part for part in parts if part != {"text": ""}]
    if content.get("role") != "model" or len(kept) == len(parts):
        return message
    return {**content, "parts": kept} if kept else {}


def _with_ids(message: Json, before: Json) -> Json:
    """The content with the ids of the calls before it in results that have none, by name and order."""
    results = dicts(as_dict(message).get("parts"))
    if not any("functionResponse" in part and not as_dict(part["functionResponse"]).get("id") for part in results):
        return message
    ids: dict[str, deque[str]] = {}
    for part in dicts(as_dict(before).get("parts")):
        call = as_dict(part.get("functionCall"))
        if id := as_text(call.get("id")):
            ids.setdefault(as_text(call.get("name")), deque()).append(id)
    known = {as_text(as_dict(part.get("functionResponse")).get("id")) for part in results}
    parts: list[Json] = []
    for part in results:
        result = as_dict(part.get("functionResponse"))
        left = ids.get(as_text(result.get("name")), deque())
        while left and left[0] in known:
            left.popleft()
        if result and not result.get("id") and left:
            part = {**part, "functionResponse": {"id": left.popleft(), **result}}
        parts.append(part)
    return {**as_dict(message), "parts": parts}
