"""openai-responses, raw items: taken apart for repair, and a body with only its first call.

The history is a flat list of items; neighbouring items of the model are one turn.
"""

from __future__ import annotations

from collections.abc import Callable

from unbroken.messages import Json
from unbroken.transcript import Piece
from unbroken.wires.openai_responses.responses_items import call_kind
from unbroken.wires.raw_history import field
from unbroken.wires.values import Object, as_dict, as_list

# A call to be executed by the client, its answer's type, and how an error is written there.
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
    unique = False

    def run(self, message: Json) -> str:
        fields = as_dict(message)
        type = field(fields, "type") or "message"
        if type in _OUTPUTS:
            return "results"
        if not fields or type == "mcp_approval_response":
            return ""
        return "assistant" if type != "message" or fields.get("role") == "assistant" else ""

    def pieces(self, message: Json) -> list[Piece]:
        fields = as_dict(message)
        type, id = field(fields, "type"), field(fields, "call_id")
        # Without a call_id, the built-in calls are those that the provider runs itself.
        kind = call_kind({"execution": "client", **fields}) if type in _PAIRS else ""
        if kind and (id or kind in ("function", "custom")):
            return [Piece("call", message, id, field(fields, "name"))]
        if type in _OUTPUTS and (id or type != "tool_search_output"):
            return [Piece("result", message, id or field(fields, "id"), field(fields, "name"))]
        return [Piece("speech", message)]

    def build(self, message: Json, values: list[Json]) -> Json:
        return values[0]

    def holds(self, message: Json) -> bool:
        return False

    def wrap(self, results: list[Json]) -> list[Json]:
        return results

    def error(self, call: Object, text: str) -> Json:
        type, fields = _PAIRS[call["type"]]
        return {"type": type, "call_id": field(call, "call_id"), **fields(text)}

    def renamed(self, piece: Piece, id: str) -> Json:
        return {**piece.value, "call_id": id}

    def has_links(self, message: Object) -> bool:
        return not field(message, "role") and any(piece.kind != "speech" for piece in self.pieces(message))

    def is_partial(self, messages: list[Json]) -> bool:
        """A reference stands for an item that only the provider has, perhaps a call."""
        return any(field(as_dict(item), "type") == "item_reference" for item in messages)

    def joined(self, messages: list[Json]) -> list[Json]:
        return messages


HISTORY = ResponsesHistory()


def keep_first_call(body: Object, new_id: str = "") -> Object:
    """A non-streaming body with only the first of its calls, under `new_id` if there is one; nothing else changes. The
    same object where nothing has to change."""
    items = as_list(body.get("output"))
    calls = [piece for item in items for piece in HISTORY.pieces(item) if piece.kind == "call"]
    if len(calls) < (1 if new_id else 2):
        return body
    first, dropped = calls[0], {id(piece.value) for piece in calls[1:]}
    kept = [item for item in items if id(item) not in dropped]
    renamed = HISTORY.renamed(first, new_id) if new_id else first.value
    return {**body, "output": [renamed if item is first.value else item for item in kept]}
