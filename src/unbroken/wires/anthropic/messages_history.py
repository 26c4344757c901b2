"""anthropic-messages, raw messages: taken apart for repair, and a body with only its first call.

Results come first in the user message directly after their calls. The provider reads neighbouring messages of the
assistant as one, and refuses an id that occurs twice in a request.
"""

from __future__ import annotations

from unbroken.messages import Json
from unbroken.transcript import Piece
from unbroken.wires.raw_history import field, one_call_in
from unbroken.wires.values import Object, as_dict, as_list, dicts


class MessagesHistory:
    unique = True

    def run(self, message: Json) -> str:
        return "assistant" if field(as_dict(message), "role") == "assistant" else ""

    def pieces(self, message: Json) -> list[Piece]:
        content = as_dict(message).get("content")
        if isinstance(content, str) and content:
            return [Piece("speech", {"type": "text", "text": content})]
        blocks = as_list(content)
        return [self._piece(block, self.run(message)) for block in blocks] or [Piece("speech", content or None)]

    def _piece(self, block: Json, run: str) -> Piece:
        fields = as_dict(block)
        match field(fields, "type"):
            case "tool_use" if run:
                return Piece("call", block, field(fields, "id"), field(fields, "name"))
            case "tool_result":
                return Piece("result", block, field(fields, "tool_use_id"))
            case _:
                return Piece("speech", block)

    def build(self, message: Json, values: list[Json]) -> Json:
        return {**message, "content": [value for value in values if value is not None]}

    def holds(self, message: Json) -> bool:
        return field(as_dict(message), "role") == "user"

    def wrap(self, results: list[Json]) -> list[Json]:
        return [{"role": "user", "content": results}]

    def error(self, call: Object, text: str) -> Json:
        return {"type": "tool_result", "tool_use_id": field(call, "id"), "content": text, "is_error": True}

    def renamed(self, piece: Piece, id: str) -> Json:
        return {**piece.value, "id" if piece.kind == "call" else "tool_use_id": id}

    def has_links(self, message: Object) -> bool:
        return any(field(block, "type") in ("tool_use", "tool_result") for block in dicts(message.get("content")))

    def is_partial(self, messages: list[Json]) -> bool:
        return False

    def joined(self, messages: list[Json]) -> list[Json]:
        return messages


HISTORY = MessagesHistory()


def keep_first_call(body: Object, new_id: str = "") -> Object:
    """A non-streaming body with only the first of its calls, under `new_id` if there is one; nothing else changes. The
    same object where nothing has to change."""
    return one_call_in(HISTORY, body, "assistant", new_id)
