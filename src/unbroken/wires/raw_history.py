"""Raw messages of a wire, as clients send them: what its adaptor has to provide, and a response with one call left.

A wire's adaptor takes its messages apart into calls, results and the rest. What is wrong with a history, and how it is
repaired, is decided by `transcript`, the same for all wires. Raw messages come from clients: any field may have any
value, and fields that we do not know are kept.
"""

from __future__ import annotations

from typing import Protocol

from unbroken.messages import Json
from unbroken.transcript import History
from unbroken.wires.values import Object, as_dict, as_list


class RawHistory(History[Json], Protocol):
    def has_links(self, message: Object) -> bool:
        """Does the message have calls or results in the form of this wire, which no other wire has?"""
        ...

    def is_partial(self, messages: list[Json]) -> bool:
        """Do the messages refer to others that only the provider has?"""
        ...

    def joined(self, messages: list[Json]) -> list[Json]:
        """With those as one that the provider refuses as neighbours; the same list if there are none."""
        ...


def field(fields: Object, name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def one_call_in_each(
    history: RawHistory, body: Object, answers: str, message_field: str, role: str, new_id: str
) -> Object:
    """A body whose list `answers` offers several messages to choose from, with one call left in each of them."""
    before = as_list(body.get(answers))
    after: list[Json] = []
    for answer in before:
        message = as_dict(as_dict(answer).get(message_field))
        trimmed = one_call_in(history, message, role, new_id)
        after.append(answer if trimmed is message else {**answer, message_field: trimmed})
    return {**body, answers: after} if any(a is not b for a, b in zip(before, after, strict=True)) else body


def one_call_in(history: RawHistory, message: Object, role: str, new_id: str) -> Object:
    """The message with only the first of its calls, under `new_id` if there is one. The same object where nothing has
    to change."""
    message_of_model = {**message, "role": role}  # some servers leave it out, and a user's message has no calls
    pieces = history.pieces(message_of_model)
    calls = [piece for piece in pieces if piece.kind == "call"]
    if len(calls) < (1 if new_id else 2):
        return message
    first = calls[0]
    kept = [piece for piece in pieces if piece.kind != "call" or piece is first]
    values = [history.renamed(piece, new_id) if new_id and piece is first else piece.value for piece in kept]
    built = history.build(message_of_model, values)
    return {key: value for key, value in built.items() if key in message}
