"""The chain of calls in a wire's own raw messages, mended without losing a field that we do not know.

For each wire one small adaptor says how its messages come apart into calls, results and the rest; what is wrong and
how it is put right is decided by `transcript`, the same for all. Raw messages come from clients: anything may stand
anywhere.
"""

from __future__ import annotations

from collections.abc import Callable

from unbroken.errors import InvalidRequest, UnknownWire
from unbroken.messages import Json
from unbroken.transcript import History, HistoryEdit, Piece, repair_with
from unbroken.wires.openai_responses.items import call_kind
from unbroken.wires.values import Object, as_dict, as_list, as_text


def repair_raw(
    wire: str, raw: list[Json], *, answer_open: bool = True, whole: bool = True
) -> tuple[list[Json], list[HistoryEdit]]:
    """The messages (`messages`, `input`, `contents`) as their wire takes them, and what had to be changed for that.

    Pass `whole=False` when the provider holds an earlier part of the history (`previous_response_id`,
    `conversation`): a result may then answer a call that is not among these messages.
    """
    history = HISTORIES.get(wire)
    if history is None:
        raise UnknownWire(f"there is no wire {wire!r}; there are: {', '.join(HISTORIES)}")
    if not isinstance(raw, list):  # pyright: ignore[reportUnnecessaryIsInstance] - it is a client's JSON
        raise InvalidRequest(f"repairing a history of {wire} failed: it is not a list of messages")
    # A reference of openai-responses stands for an item that only the provider sees, perhaps a call.
    whole = whole and not any(_text(as_dict(item), "type") == "item_reference" for item in raw)
    return repair_with(history, raw, answer_open=answer_open, whole=whole)


class ChatHistory:
    """openai-chat: calls stand in `tool_calls`; each result is a message of its own, and neighbours are one turn."""

    unique = False

    def run(self, message: Json) -> str:
        return "results" if _text(as_dict(message), "role") in ("tool", "function") else ""

    def pieces(self, message: Json) -> list[Piece]:
        fields = as_dict(message)
        match fields.get("role"):
            case "tool":
                return [Piece("result", message, _text(fields, "tool_call_id"), _text(fields, "name"))]
            case "function":
                return [Piece("result", message, None, _text(fields, "name"))]
            case "assistant":
                legacy = as_dict(fields.get("function_call"))
                calls = [self._call(call) for call in as_list(fields.get("tool_calls"))]
                if not calls and _text(legacy, "name"):
                    return [Piece("call", message, None, _text(legacy, "name"))]
                return calls or [Piece("speech", message)]
            case _:
                return [Piece("speech", message)]

    def _call(self, call: Json) -> Piece:
        fields = as_dict(call)
        if not fields:
            return Piece("speech", call)
        function = as_dict(fields.get("function")) or as_dict(fields.get("custom"))
        return Piece("call", call, _text(fields, "id"), _text(function, "name"))

    def build(self, message: Json, values: list[Json]) -> Json:
        if as_list(message.get("tool_calls")) and message.get("role") == "assistant":
            return {**message, "tool_calls": values}
        return values[0]

    def holds(self, message: Json) -> bool:
        return False

    def wrap(self, results: list[Json]) -> list[Json]:
        return results

    def error(self, call: Object, text: str) -> Json:
        if _text(call, "role") == "assistant":  # the old single call: its value is the whole message
            return {"role": "function", "name": _text(as_dict(call.get("function_call")), "name"), "content": text}
        return {"role": "tool", "tool_call_id": _text(call, "id"), "content": text}

    def renamed(self, piece: Piece, id: str) -> Json:
        return {**piece.value, "id" if piece.kind == "call" else "tool_call_id": id}


# A call to be executed by the client, its answer's type, and how an error is said there.
_BLANK = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAsTj2FAAAAABJRU5ErkJggg=="
)
_PAIRS: dict[str, tuple[str, Callable[[str], Object]]] = {
    "function_call": ("function_call_output", lambda text: {"output": text}),
    "custom_tool_call": ("custom_tool_call_output", lambda text: {"output": text}),
    "local_shell_call": ("local_shell_call_output", lambda text: {"output": text}),
    "shell_call": (
        "shell_call_output",
        lambda text: {"output": [{"stdout": "", "stderr": text, "outcome": {"type": "exit", "exit_code": 1}}]},
    ),
    "apply_patch_call": ("apply_patch_call_output", lambda text: {"status": "failed", "output": text}),
    # A screenshot is the only answer that this call can have: a blank one.
    "computer_call": (
        "computer_call_output",
        lambda text: {"output": {"type": "computer_screenshot", "image_url": _BLANK}},
    ),
    "tool_search_call": ("tool_search_output", lambda text: {"execution": "client", "tools": []}),
}
_OUTPUTS = {output for output, _ in _PAIRS.values()}


class ResponsesHistory:
    """openai-responses: a flat list of items; all that the model said at one go is one turn, whatever its items."""

    unique = False

    def run(self, message: Json) -> str:
        fields = as_dict(message)
        type = _text(fields, "type") or "message"
        if type in _OUTPUTS:
            return "results"
        if not fields or type == "mcp_approval_response":
            return ""
        return "assistant" if type != "message" or fields.get("role") == "assistant" else ""

    def pieces(self, message: Json) -> list[Piece]:
        fields = as_dict(message)
        type, id = _text(fields, "type"), _text(fields, "call_id")
        # Without a call_id, the built-in calls are those that the provider runs itself.
        kind = call_kind({"execution": "client", **fields}) if type in _PAIRS else ""
        if kind and (id or kind in ("function", "custom")):
            return [Piece("call", message, id, _text(fields, "name"))]
        if type in _OUTPUTS and (id or type != "tool_search_output"):
            return [Piece("result", message, id or _text(fields, "id"), _text(fields, "name"))]
        return [Piece("speech", message)]

    def build(self, message: Json, values: list[Json]) -> Json:
        return values[0]

    def holds(self, message: Json) -> bool:
        return False

    def wrap(self, results: list[Json]) -> list[Json]:
        return results

    def error(self, call: Object, text: str) -> Json:
        type, fields = _PAIRS[call["type"]]
        return {"type": type, "call_id": _text(call, "call_id"), **fields(text)}

    def renamed(self, piece: Piece, id: str) -> Json:
        return {**piece.value, "call_id": id}


class AnthropicHistory:
    """anthropic-messages: results come first in the user message directly after; neighbours of the assistant are
    read as one message by the provider, and no id may come back in the whole request."""

    unique = True

    def run(self, message: Json) -> str:
        return "assistant" if _text(as_dict(message), "role") == "assistant" else ""

    def pieces(self, message: Json) -> list[Piece]:
        content = as_dict(message).get("content")
        if isinstance(content, str) and content:
            return [Piece("speech", {"type": "text", "text": content})]
        blocks = as_list(content)
        return [self._piece(block, self.run(message)) for block in blocks] or [Piece("speech", content or None)]

    def _piece(self, block: Json, run: str) -> Piece:
        fields = as_dict(block)
        match _text(fields, "type"):
            case "tool_use" if run:
                return Piece("call", block, _text(fields, "id"), _text(fields, "name"))
            case "tool_result":
                return Piece("result", block, _text(fields, "tool_use_id"))
            case _:
                return Piece("speech", block)

    def build(self, message: Json, values: list[Json]) -> Json:
        return {**message, "content": [value for value in values if value is not None]}

    def holds(self, message: Json) -> bool:
        return _text(as_dict(message), "role") == "user"

    def wrap(self, results: list[Json]) -> list[Json]:
        return [{"role": "user", "content": results}]

    def error(self, call: Object, text: str) -> Json:
        return {"type": "tool_result", "tool_use_id": _text(call, "id"), "content": text, "is_error": True}

    def renamed(self, piece: Piece, id: str) -> Json:
        return {**piece.value, "id" if piece.kind == "call" else "tool_use_id": id}


class GeminiHistory:
    """gemini: calls and results are parts, mostly without ids; the results of one turn stand in one content.

    A streaming client keeps each chunk as a content of its own, so neighbours of the model are one turn.
    """

    unique = False

    def run(self, message: Json) -> str:
        return "model" if _text(as_dict(message), "role") == "model" else ""

    def pieces(self, message: Json) -> list[Piece]:
        content = as_dict(message).get("parts")
        parts = [self._piece(part, self.run(message)) for part in as_list(content)]
        return parts or [Piece("speech", content or None)]

    def _piece(self, part: Json, run: str) -> Piece:
        key = _gemini_key(part)
        inner = as_dict(as_dict(part).get(key))
        if key in _GEMINI_RESULT:
            return Piece("result", part, _text(inner, "id") or None, _text(inner, "name"))
        if key and run:
            return Piece("call", part, _text(inner, "id") or None, _text(inner, "name"))
        return Piece("speech", part)

    def build(self, message: Json, values: list[Json]) -> Json:
        return {**message, "parts": [value for value in values if value is not None]}

    def holds(self, message: Json) -> bool:
        return any(piece.kind == "result" for piece in self.pieces(message))

    def wrap(self, results: list[Json]) -> list[Json]:
        return [{"role": "user", "parts": results}]

    def error(self, call: Object, text: str) -> Json:
        inner = as_dict(call.get(_gemini_key(call)))
        id: Object = {"id": inner["id"]} if _text(inner, "id") else {}
        return {"functionResponse": {**id, "name": _text(inner, "name"), "response": {"error": text}}}

    def renamed(self, piece: Piece, id: str) -> Json:
        key = _gemini_key(piece.value)
        return {**piece.value, key: {**piece.value[key], "id": id}}


# The provider takes both spellings of a field.
_GEMINI_CALL = ("functionCall", "function_call")
_GEMINI_RESULT = ("functionResponse", "function_response")


def _gemini_key(part: Json) -> str:
    fields = as_dict(part)
    return next((key for key in (*_GEMINI_CALL, *_GEMINI_RESULT) if isinstance(fields.get(key), dict)), "")


def _text(fields: Object, name: str) -> str:
    return as_text(fields.get(name))


HISTORIES: dict[str, History[Json]] = {
    "openai-chat": ChatHistory(),
    "openai-responses": ResponsesHistory(),
    "anthropic-messages": AnthropicHistory(),
    "gemini": GeminiHistory(),
}
