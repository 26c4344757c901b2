"""The ids of calls: which of them identify a turn, and which a client may have rewritten. Pure."""

from __future__ import annotations

import re
import secrets
from base64 import b64encode
from collections.abc import Sequence
from functools import lru_cache

from unbroken_gateway.turns.turn import Turn
from unbroken_wires.messages import Assistant, Message, ToolCall

_DECODED = re.compile(r"call_\d+_\d+")
"""The id that our decoders give a call without one."""
_RUNS = re.compile(r"[A-Za-z0-9]+")
_SHOWN = 200
"""Characters of an id that are examined."""
_PROVIDERS = ("call_", "chatcmpl-tool-", "fc_", "functions.", "toolu_")
"""Prefixes of providers' ids. Clients that make their own ids do not use them."""
_OURS = "call_U"
_KINDS = re.compile(r"[A-Z]+|[a-z]+|[0-9]+")
_WORDS = re.compile(r"[a-z]*(?:[A-Z][a-z]+)*\d*")
_UUID4 = re.compile(
    r"(?<![0-9a-f])[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}(?:-?[0-9a-f]{12})?(?![0-9a-f])"
)
_RANDOM = 18
"""Random bytes of an id."""


def new_call_id() -> str:
    """A unique id, in a form that no provider uses."""
    return _OURS + b64encode(secrets.token_bytes(_RANDOM), b"Zz").decode()


def is_ours(id: str) -> bool:
    """Was this id made by a gateway?"""
    return len(id) == len(_OURS) + _RANDOM * 4 // 3 and id.startswith(_OURS)


def is_random(id: str, name: str) -> bool:
    """Is this id certainly random? Only a random id identifies a turn: a counter, or a digest of a call's arguments,
    can be the same in two conversations."""
    return is_ours(id) or _looks_random(id[:_SHOWN], name)


@lru_cache(4096)
def _looks_random(id: str, name: str) -> bool:
    """True for a UUID of version 4 and for mixed letters and digits (`q7Zp2mX91aKd`). False for words (`toolCall0`) and
    for hexadecimal digits, which may be a digest."""
    longest = max(_RUNS.findall(id.replace(name, "") if name else id), key=len, default="")
    mixed = (
        len(longest) >= 9
        and not (longest.islower() or longest.isupper() or longest.isalpha() or longest.isdigit())
        and 5 * (len(_KINDS.findall(longest)) - 1) >= 2 * len(longest)
        and not _WORDS.fullmatch(longest)
    )
    return mixed or _UUID4.search(id) is not None


def agrees(turn: Turn, calls: Sequence[ToolCall]) -> bool:
    """Can a client that received this turn send these ids? Yes if they are the turn's ids, if there are none, or if the
    client has rewritten them. Ids that look unique, or that look like the ids of this turn (including the model's own,
    which the client did not receive), belong to another turn."""
    if all(call.id in turn.ids for call in calls):
        return True
    shapes = {*map(_shape, turn.ids), *(_shape(call.id) for call in turn.message.calls)}
    return all(call.id in turn.ids or _looks_rewritten(call, shapes) for call in calls)


def may_be_rewritten(turn: Turn, call: ToolCall) -> bool:
    """Can this be a call of the turn with an id that the client chose? Not if the id looks like those of the turn but
    is none of them."""
    if call.id in turn.ids or is_ours(call.id):
        return False
    return _shape(call.id) not in {*map(_shape, turn.ids)}


def _looks_rewritten(call: ToolCall, shapes: set[tuple[str, bool, bool]]) -> bool:
    if _DECODED.fullmatch(call.id):
        return True
    if call.id.startswith(_PROVIDERS) or _looks_unique(call.id[:_SHOWN], call.name):
        return False
    return _shape(call.id) not in shapes


@lru_cache(4096)
def _looks_unique(id: str, name: str) -> bool:
    """True for `toolu_01AbCdEf…`; false for `call_0`, `functions.search:0`, `get_weather_1`."""
    runs = _RUNS.findall(id.replace(name, "") if name else id)
    longest = max(runs, key=len, default="")
    return (len(longest) >= 9 and not longest.isalpha() and not longest.isdigit()) or sum(map(len, runs)) >= 24


def _shape(id: str) -> tuple[str, bool, bool]:
    """The prefix of an id and the kind of characters after it: equal for ids that are made in the same way."""
    runs = _RUNS.findall(id[-_SHOWN:])
    last = runs[-1] if runs and id.endswith(runs[-1]) else ""
    return id[: len(id) - len(last)], last.isdigit(), last.isalpha()


def is_named(turn: Turn, message: Message) -> bool:
    """Does this message contain a call of the turn by an id that the gateway made?"""
    calls = message.calls if isinstance(message, Assistant) else ()
    return any(call.id in turn.ids and is_ours(call.id) for call in calls)
