"""bedrock-converse in a gateway: relaying responses unchanged, raw messages and their repair, HTTP.

Text and reasoning are skipped: only the block that they belong to matters.
"""

from __future__ import annotations

import re

from unbroken_wires.messages import Json
from unbroken_wires.transcript import Piece
from unbroken_wires.wires.bedrock.converse_requests import is_call
from unbroken_wires.wires.framing import EVENT_STREAM
from unbroken_wires.wires.http_api import HttpApi, Operation
from unbroken_wires.wires.json_access import Object, as_dict, as_list, as_text, dicts
from unbroken_wires.wires.raw_history import Relay, RelayedStream, StreamCheck, event_of, field, one_call_in


class RelayedBlock:
    """The block that is open at the client."""

    __slots__ = ("id", "index", "kind", "pieces")

    def __init__(self, index: int, kind: str, id: str = "") -> None:
        self.index = index
        self.kind = kind
        self.id = id
        self.pieces: list[str] = []
        """Of its input, if it is a call."""

    @property
    def input(self) -> str:
        return "".join(self.pieces)


class RelayedConverse(RelayedStream):
    framing = EVENT_STREAM

    def __init__(self) -> None:
        super().__init__()
        self.started = False
        self.blocks = 0
        self.open: RelayedBlock | None = None
        self.calls: dict[str, str] = {}
        """The input of each call that has ended, by its id."""
        self.finished = False
        self.usage = False

    def read(self, data: bytes) -> None:
        event = event_of(data)
        if inner := as_dict(event.get("contentBlockDelta")):
            self._delta(inner["contentBlockIndex"], as_dict(inner["delta"]))
        elif inner := as_dict(event.get("contentBlockStart")):
            use = as_dict(as_dict(inner.get("start")).get("toolUse"))
            self._begin(inner["contentBlockIndex"], "toolUse" if use else "", as_text(use.get("toolUseId")))
        elif "contentBlockStop" in event:
            if self.open is not None and self.open.kind == "toolUse":
                self.calls[self.open.id] = self.open.input
            self.open = None
        elif "messageStart" in event:
            self.started = True
        elif "messageStop" in event:
            self.finished = True
        elif "metadata" in event:
            self.usage = True

    def _delta(self, index: int, delta: Object) -> None:
        kind = next((kind for kind in ("text", "reasoningContent", "toolUse") if kind in delta), "")
        if self.open is None:
            self._begin(index, kind)
        if kind == "toolUse" and self.open is not None:
            self.open.pieces.append(delta["toolUse"]["input"])

    def _begin(self, index: int, kind: str, id: str = "") -> None:
        self.started = True
        self.blocks = max(self.blocks, index + 1)
        self.open = RelayedBlock(index, kind, id)


class ConverseCheck(StreamCheck):
    framing = EVENT_STREAM
    marks = (b"contentBlockStart", b"toolUse")
    start = b"contentBlockStart"

    def __init__(self) -> None:
        super().__init__()
        self._last: Json = None

    def conforms(self, event: Object) -> bool:
        start, delta = as_dict(event.get("contentBlockStart")), as_dict(event.get("contentBlockDelta"))
        if use := as_dict(as_dict(start.get("start")).get("toolUse")):
            index: Json = start.get("contentBlockIndex")
            if not isinstance(index, int) or isinstance(index, bool) or index < self._next:
                return False
            self._last, self._next = index, index + 1
            return bool(as_text(use.get("toolUseId")) and as_text(use.get("name")))
        if "toolUse" in as_dict(delta.get("delta")):
            input = as_dict(as_dict(delta["delta"])["toolUse"]).get("input")
            return isinstance(input, str) and delta.get("contentBlockIndex") == self._last
        return True


def _body_conforms(body: Object) -> bool:
    uses = [as_dict(block["toolUse"]) for block in _blocks(body) if "toolUse" in block]
    return all(isinstance(use.get("input"), dict) and as_text(use.get("toolUseId")) for use in uses)


def _blocks(body: Object) -> list[Object]:
    return dicts(as_dict(as_dict(body.get("output")).get("message")).get("content"))


RELAY = Relay(ConverseCheck, _body_conforms, end=re.compile(rb"messageStop.*metadata", re.DOTALL))


# bedrock-converse, raw messages: taken apart for repair, and a body with only its first call.
#
# Results come first in the user message directly after their calls. Neighbours of one role are refused.


class ConverseHistory:
    unique = True

    def run(self, message: Json) -> str:
        return "assistant" if field(as_dict(message), "role") == "assistant" else ""

    def pieces(self, message: Json) -> list[Piece]:
        content = as_dict(message).get("content")
        blocks = as_list(content)
        return [self._piece(block, self.run(message)) for block in blocks] or [Piece("speech", content or None)]

    def _piece(self, block: Json, run: str) -> Piece:
        fields = as_dict(block)
        use, result = as_dict(fields.get("toolUse")), as_dict(fields.get("toolResult"))
        if use and run and is_call(fields):
            return Piece("call", block, field(use, "toolUseId"), field(use, "name"))
        if result and not run:
            return Piece("result", block, field(result, "toolUseId"))
        return Piece("speech", block)

    def build(self, message: Json, values: list[Json]) -> Json:
        return {**message, "content": [value for value in values if value is not None]}

    def holds(self, message: Json) -> bool:
        return field(as_dict(message), "role") == "user"

    def wrap(self, results: list[Json]) -> list[Json]:
        return [{"role": "user", "content": results}]

    def error(self, call: Object, text: str) -> Json:
        id = field(as_dict(call.get("toolUse")), "toolUseId")
        return {"toolResult": {"toolUseId": id, "content": [{"text": text}], "status": "error"}}

    def renamed(self, piece: Piece, id: str) -> Json:
        key = "toolUse" if piece.kind == "call" else "toolResult"
        return {**piece.value, key: {**piece.value[key], "toolUseId": id}}

    def has_links(self, message: Object) -> bool:
        return any("toolUse" in block or "toolResult" in block for block in dicts(message.get("content")))

    def is_partial(self, messages: list[Json]) -> bool:
        return False

    def joined(self, messages: list[Json]) -> list[Json]:
        joined: list[Json] = []
        for message in messages:
            role, before = field(as_dict(message), "role"), as_dict(joined[-1]) if joined else {}
            if role and role == before.get("role"):
                content = [*as_list(before.get("content")), *as_list(as_dict(message).get("content"))]
                joined[-1] = {**before, "content": content}
            else:
                joined.append(message)
        return joined if len(joined) < len(messages) else messages


HISTORY = ConverseHistory()


def keep_first_call(body: Object, new_id: str = "") -> Object:
    """A non-streaming body with only the first of its calls, under `new_id` if there is one; nothing else changes. The
    same object where nothing has to change."""
    output = as_dict(body.get("output"))
    message = as_dict(output.get("message"))
    trimmed = one_call_in(HISTORY, message, "assistant", new_id)
    return body if trimmed is message else {**body, "output": {**output, "message": trimmed}}


# bedrock-converse over HTTP: the model and the choice of a stream are part of the path.


_PATH = re.compile(r"/model/(?P<model>.+)/(?P<method>converse|converse-stream)")


class ConverseHttp(HttpApi):
    short_name = "bedrock"
    provider = "bedrock"
    base_url_variable = "AWS_ENDPOINT_URL_BEDROCK_RUNTIME"
    path = "/model/{model}/{method}"
    methods = ("converse", "converse-stream")
    stream_field = ""
    safe_in_model = ".-_~"  # the id of an inference profile has colons and slashes, and is one segment
    endings = ("/converse", "/converse-stream")
    error_paths = ("/model/",)
    error_name = "BedrockError"
    roles = "user or assistant"
    fields = {  # noqa: RUF012 - annotated in the base class
        **HttpApi.fields,
        "system": (list,),
        **dict.fromkeys(("inferenceConfig", "toolConfig", "additionalModelRequestFields"), (dict,)),
    }
    message_fields = {"role": (str,), "content": (list,)}  # noqa: RUF012 - annotated in the base class
    part_fields = {"text": (str,), "toolUse": (dict,), "toolResult": (dict,)}  # noqa: RUF012 - annotated in the base

    def find(self, path: str) -> Operation | None:
        if (found := _PATH.fullmatch(path)) is None:
            return None
        return Operation(model=found["model"], stream=found["method"] == "converse-stream")
