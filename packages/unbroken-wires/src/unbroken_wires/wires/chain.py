"""The chain of calls in a history: `repair_raw` for a wire's raw messages, `chain_status` for a history in any form.

The history may be our own messages, a `Transcript`, raw messages of a wire, or what pydantic-ai stores. If the wire of
raw messages is ambiguous, the call is refused: nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeAlias, TypedDict, cast

from unbroken_wires.errors import InvalidRequest, UserError
from unbroken_wires.messages import Assistant, Json, Message, System, ToolMessage, User
from unbroken_wires.transcript import ChainStatus, HistoryEdit, Transcript, links, own_status, repair_with, status_of
from unbroken_wires.wires import WIRES, find_wire
from unbroken_wires.wires.json_access import as_list, dicts


def repair_raw(
    wire: str, raw: list[Json], *, answer_open: bool = True, whole: bool = True
) -> tuple[list[Json], list[HistoryEdit]]:
    """The messages (`messages`, `input`, `contents`) as their wire accepts them, and what was changed for that.

    Pass `whole=False` when the provider holds an earlier part of the history (`previous_response_id`,
    `conversation`): a result may then answer a call that is not among these messages.
    """
    history = find_wire(wire).history
    if not isinstance(raw, list):  # pyright: ignore[reportUnnecessaryIsInstance] - it is a client's JSON
        raise InvalidRequest(f"repairing a history of {wire} failed: it is not a list of messages")
    return repair_with(history, raw, answer_open=answer_open, whole=whole and not history.is_partial(raw))


class StoredMessage(Protocol):
    """A message that pydantic-ai stores, as an object: its `ModelRequest` or `ModelResponse`."""

    @property
    def kind(self) -> str: ...
    @property
    def parts(self) -> Sequence[Any]: ...


class StoredJson(TypedDict):
    """The same as JSON, with more keys; messages of a provider have others."""

    kind: str
    parts: list[Any]


StoredHistory: TypeAlias = Sequence[StoredMessage] | Sequence[StoredJson]
"""What pydantic-ai stores: its objects, or its JSON."""
AnyHistory: TypeAlias = Transcript | Iterable[Message] | Iterable[dict[str, Any]] | Iterable[StoredMessage]
"""What `chain_status` reads."""

_ASKED = "reading the status of a chain failed"


def chain_status(messages: AnyHistory, wire: str | None = None, *, whole: bool = True) -> ChainStatus:
    """The status of the chain of calls. Raw messages are those of a request (`messages`, `input`, `contents`); their
    `wire` is only needed where their shape is ambiguous. Stored messages of pydantic-ai are its objects or its JSON.

    Pass `whole=False` when the provider holds an earlier part of the history: a result may then answer a call that is
    not among these messages.
    """
    if wire is not None:
        find_wire(wire)
    if isinstance(messages, Transcript):
        return own_status(messages)
    found = _listed(messages)
    if wire is None and all(isinstance(message, System | User | Assistant | ToolMessage) for message in found):
        return own_status(cast("list[Message]", found))
    if wire is None and may_be_stored(found[0]):
        from unbroken_wires.wires.pydantic_ai import is_stored, stored_links  # noqa: PLC0415 - few histories are of that kind

        if is_stored(found):
            return status_of(stored_links(found), whole=whole)
    for position, message in enumerate(found):
        if not isinstance(message, dict):
            raise UserError(f"{_ASKED}: message {position} is {_called(message)}, not {_expected(wire, found)}")
    history = find_wire(wire or _wire_of(found)).history
    return status_of(links(history, found), whole=whole and not history.is_partial(found))


def validate_tool_chain(messages: AnyHistory, wire: str | None = None, *, whole: bool = True) -> bool:
    """No call is open. (A result that answers nothing is not asked about: see `chain_status`.)"""
    return chain_status(messages, wire, whole=whole).complete


def may_be_stored(message: object) -> bool:
    """Whether pydantic-ai may have stored this message: a quick look, before the module that reads them is imported."""
    if isinstance(message, dict):
        return "parts" in message and "role" not in message
    return hasattr(message, "parts") and not isinstance(message, System | User)


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
    """The one wire whose calls or results are in these messages. Without any, all wires give the same status."""
    signs: dict[str, int] = {}
    for position, message in enumerate(raw):
        if problem := _foreign(message):
            raise UserError(f"{_ASKED}: message {position} {problem}")
        for wire in WIRES.values():
            if wire.history.has_links(message):
                signs.setdefault(wire.name, position)
    for wire in list(signs):
        signs.pop(WIRES[wire].imitates, None)
    if len(signs) > 1:
        places = ", ".join(f"{wire} (message {position})" for wire, position in signs.items())
        raise UserError(f"{_ASKED}: the messages look like several wires: {places}; name one with wire=")
    return next(iter(signs), next(iter(WIRES)))


def _foreign(message: dict[str, Any]) -> str:
    """Spellings whose calls no wire would see, so that the chain would seem complete."""
    if as_list(message.get("results")) or as_list(message.get("calls")):
        return "is in the saved form; read it with `from_json` first"
    if any("part_kind" in part for part in dicts(message.get("parts"))):
        return "has parts as pydantic-ai stores them, and other messages do not"
    if any("type" in part for part in dicts(message.get("parts"))):
        return "has parts that are of no wire"
    if not {"role", "type", "parts"} & message.keys():
        return "has neither `role` nor `type` nor `parts`; name its wire with wire="
    return ""
