"""gemini, raw contents: taken apart for repair, and a body with only its first call.

Calls and results are parts, mostly without ids; the results of one turn share one content. A streaming client keeps
each chunk as a content of its own, so neighbouring contents of the model are one turn.
"""

from __future__ import annotations

from unbroken.messages import Json
from unbroken.transcript import Piece
from unbroken.wires.raw_history import field, one_call_in_each
from unbroken.wires.values import Object, as_dict, as_list

# The provider takes both spellings of a field.
_CALL = ("functionCall", "function_call")
_RESULT = ("functionResponse", "function_response")


def _key(part: Json) -> str:
    fields = as_dict(part)
    return next((key for key in (*_CALL, *_RESULT) if isinstance(fields.get(key), dict)), "")


class GeminiHistory:
    unique = False

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

    def is_partial(self, messages: list[Json]) -> bool:
        return False

    def joined(self, messages: list[Json]) -> list[Json]:
        """A call may only follow what the user said: text and calls of the model in two contents are refused."""
        joined: list[Json] = []
        for message in messages:
            before = joined[-1] if joined else None
            if self.run(message) and self.run(before) and self._calls(message):
                parts = [*as_list(as_dict(before).get("parts")), *as_list(as_dict(message).get("parts"))]
                joined[-1] = {**as_dict(before), "parts": parts}
            else:
                joined.append(message)
        return joined if len(joined) < len(messages) else messages

    def _calls(self, message: Json) -> bool:
        return any(piece.kind == "call" for piece in self.pieces(message))


HISTORY = GeminiHistory()


def keep_first_call(body: Object, new_id: str = "") -> Object:
    """A non-streaming body with only the first call of each answer, under `new_id` if there is one; nothing else
    changes. The same object where nothing has to change."""
    return one_call_in_each(HISTORY, body, "candidates", "content", "model", new_id)
