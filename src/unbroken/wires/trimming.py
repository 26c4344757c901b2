"""A whole response body with only the first of its calls, for a client that takes one at a time.

Nothing else is touched, so that what only its wire knows (signatures, reasoning, ids, the finish) reaches the client as
the provider said it. (Parse a body that is to be written again with `loads_exact`: arguments may hold integers that
the fast parser bends.)
"""

from __future__ import annotations

from unbroken.errors import UnknownWire
from unbroken.messages import Json
from unbroken.wires.chain import HISTORIES
from unbroken.wires.values import Object, as_dict, as_list


def keep_first_call(wire: str, body: Object) -> Object:
    """Of each answer, where there are several to choose from. The same object where there is nothing to take away."""
    match wire:
        case "openai-chat":
            return _in_each(wire, body, "choices", "message", "assistant")
        case "gemini":
            return _in_each(wire, body, "candidates", "content", "model")
        case "anthropic-messages":
            return _one_call(wire, body, "assistant")
        case "openai-responses":
            calls = [item for item in as_list(body.get("output")) if _is_call(wire, item)]
            if len(calls) < 2:
                return body
            dropped = {id(item) for item in calls[1:]}
            return {**body, "output": [item for item in body["output"] if id(item) not in dropped]}
        case _:
            raise UnknownWire(f"there is no wire {wire!r} whose responses could be trimmed")


def _in_each(wire: str, body: Object, answers: str, field: str, role: str) -> Object:
    before = as_list(body.get(answers))
    after: list[Json] = []
    for answer in before:
        message = as_dict(as_dict(answer).get(field))
        trimmed = _one_call(wire, message, role)
        after.append(answer if trimmed is message else {**answer, field: trimmed})
    return {**body, answers: after} if any(a is not b for a, b in zip(before, after, strict=True)) else body


def _one_call(wire: str, message: Object, role: str) -> Object:
    history = HISTORIES[wire]
    message_of_model = {**message, "role": role}  # some servers leave it out, and a user's message has no calls
    pieces = history.pieces(message_of_model)
    calls = [piece for piece in pieces if piece.kind == "call"]
    if len(calls) < 2:
        return message
    first = calls[0]
    built = history.build(message_of_model, [p.value for p in pieces if p.kind != "call" or p is first])
    return {key: value for key, value in built.items() if key in message}


def _is_call(wire: str, item: Json) -> bool:
    return any(piece.kind == "call" for piece in HISTORIES[wire].pieces(item))
