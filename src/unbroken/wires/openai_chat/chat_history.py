"""openai-chat, raw messages: taken apart for repair, and a body with only its first call.

Calls are in `tool_calls`; each result is a message of its own, and neighbouring results are one turn.
"""

from __future__ import annotations

from unbroken.messages import Json
from unbroken.transcript import Piece
from unbroken.wires.raw_history import field, one_call_in_each
from unbroken.wires.values import Object, as_dict, as_list


class ChatHistory:
    unique = False

    def run(self, message: Json) -> str:
        return "results" if field(as_dict(message), "role") in ("tool", "function") else ""

    def pieces(self, message: Json) -> list[Piece]:
        fields = as_dict(message)
        match fields.get("role"):
            case "tool":
                return [Piece("result", message, field(fields, "tool_call_id"), field(fields, "name"))]
            case "function":
                return [Piece("result", message, None, field(fields, "name"))]
            case "assistant":
                legacy = as_dict(fields.get("function_call"))
                calls = [self._call(call) for call in as_list(fields.get("tool_calls"))]
                if not calls and field(legacy, "name"):
                    return [Piece("call", message, None, field(legacy, "name"))]
                return calls or [Piece("speech", message)]
            case _:
                return [Piece("speech", message)]

    def _call(self, call: Json) -> Piece:
        fields = as_dict(call)
        if not fields:
            return Piece("speech", call)
        function = as_dict(fields.get("function")) or as_dict(fields.get("custom"))
        return Piece("call", call, field(fields, "id"), field(function, "name"))

    def build(self, message: Json, values: list[Json]) -> Json:
        if as_list(message.get("tool_calls")) and message.get("role") == "assistant":
            return {**message, "tool_calls": values}
        return values[0]

    def holds(self, message: Json) -> bool:
        return False

    def wrap(self, results: list[Json]) -> list[Json]:
        return results

    def error(self, call: Object, text: str) -> Json:
        if field(call, "role") == "assistant":  # the old single call: its value is the message
            return {"role": "function", "name": field(as_dict(call.get("function_call")), "name"), "content": text}
        return {"role": "tool", "tool_call_id": field(call, "id"), "content": text}

    def renamed(self, piece: Piece, id: str) -> Json:
        return {**piece.value, "id" if piece.kind == "call" else "tool_call_id": id}

    def has_links(self, message: Object) -> bool:
        role = field(message, "role")
        calls = as_list(message.get("tool_calls")) or as_dict(message.get("function_call"))
        return role in ("tool", "function") or bool(calls)

    def is_partial(self, messages: list[Json]) -> bool:
        return False

    def joined(self, messages: list[Json]) -> list[Json]:
        return messages


HISTORY = ChatHistory()


def keep_first_call(body: Object, new_id: str = "") -> Object:
    """A non-streaming body with only the first call of each answer, under `new_id` if there is one; nothing else
    changes. The same object where nothing has to change."""
    return one_call_in_each(HISTORY, body, "choices", "message", "assistant", new_id)
