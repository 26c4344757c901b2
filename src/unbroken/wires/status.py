"""Is a chain of calls complete? One question for a history in any spelling: ours, a `Transcript`, raw messages.

Nothing is mended (`repair`, `repair_raw`) and nothing is guessed: raw messages whose wire cannot be told are refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias, cast

from unbroken.errors import UnknownWire, UserError
from unbroken.messages import Assistant, Json, Message, System, ToolMessage, User
from unbroken.transcript import ChainStatus, Transcript, links, own_status, status_of
from unbroken.wires.chain import HISTORIES
from unbroken.wires.values import as_dict, as_list, as_text, dicts

AnyHistory: TypeAlias = Transcript | Iterable[Message] | Iterable[dict[str, Any]]
"""What `chain_status` reads."""

_ASKED = "telling how a chain stands failed"


def chain_status(messages: AnyHistory, wire: str | None = None, *, whole: bool = True) -> ChainStatus:
    """How the chain of calls stands. Raw messages are those of a request (`messages`, `input`, `contents`); their
    `wire` need only be named where their shape does not tell it.

    Pass `whole=False` when the provider holds an earlier part of the history: a result may then answer a call that is
    not among these messages.
    """
    if wire is not None and wire not in HISTORIES:
        raise UnknownWire(f"there is no wire {wire!r}; there are: {', '.join(HISTORIES)}")
    if isinstance(messages, Transcript):
        return own_status(messages)
    found = _listed(messages)
    if wire is None and all(isinstance(message, System | User | Assistant | ToolMessage) for message in found):
        return own_status(cast("list[Message]", found))
    for position, message in enumerate(found):
        if not isinstance(message, dict):
            raise UserError(f"{_ASKED}: message {position} is {_called(message)}, not {_expected(wire, found)}")
    wire = wire or _wire_of(found)
    # A reference of openai-responses stands for an item that only the provider sees, perhaps a call.
    whole = whole and not any(as_dict(item).get("type") == "item_reference" for item in found)
    return status_of(links(HISTORIES[wire], found), whole=whole)


def validate_tool_chain(messages: AnyHistory, wire: str | None = None, *, whole: bool = True) -> bool:
    """No call is open. (A result that answers nothing is not asked about: see `chain_status`.)"""
    return chain_status(messages, wire, whole=whole).complete


def _listed(messages: object) -> list[Any]:
    if isinstance(messages, str | bytes | dict) or not isinstance(messages, Iterable):
        raise UserError(f"{_ASKED}: a history is a list of messages, not {_called(cast('object', messages))}")
    return list(cast("Iterable[Any]", messages))


def _called(value: object) -> str:
    return "None" if value is None else f"a value of the type `{type(value).__name__}`"


def _expected(wire: str | None, found: list[Any]) -> str:
    if wire:
        return f"a message of {wire} (a dict)"
    return "a dict, as the others are" if any(isinstance(one, dict) for one in found) else "one of ours or a dict"


def _wire_of(raw: list[Json]) -> str:
    """The one wire whose calls or results are in these messages. Without any of them each wire says the same."""
    signs: dict[str, int] = {}
    for position, message in enumerate(raw):
        if problem := _foreign(message):
            raise UserError(f"{_ASKED}: message {position} {problem}")
        for wire in _signs(message):
            signs.setdefault(wire, position)
    if len(signs) > 1:
        places = ", ".join(f"{wire} (message {position})" for wire, position in signs.items())
        raise UserError(f"{_ASKED}: the messages look like several wires: {places}; name one with wire=")
    return next(iter(signs), "openai-chat")


def _signs(message: dict[str, Any]) -> Iterable[str]:
    role = as_text(message.get("role"))
    if role in ("tool", "function") or as_list(message.get("tool_calls")) or as_dict(message.get("function_call")):
        yield "openai-chat"
    if any(block.get("type") in ("tool_use", "tool_result") for block in dicts(message.get("content"))):
        yield "anthropic-messages"
    if "parts" in message and _chained("gemini", message):
        yield "gemini"
    if not role and _chained("openai-responses", message):
        yield "openai-responses"


def _chained(wire: str, message: dict[str, Any]) -> bool:
    return any(link.kind != "speech" for link in links(HISTORIES[wire], [message]))


def _foreign(message: dict[str, Any]) -> str:
    """Spellings whose calls no wire would see, so that the chain would seem complete."""
    if as_list(message.get("results")) or as_list(message.get("calls")):
        return "is in the saved form; read it with `from_json` first"
    if any("type" in part or "part_kind" in part for part in dicts(message.get("parts"))):
        return "has parts that are of no wire"
    if not {"role", "type", "parts"} & message.keys():
        return "has neither `role` nor `type` nor `parts`; name its wire with wire="
    return ""
