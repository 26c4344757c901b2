"""The ids of calls: which of them prove whose a turn is, and which a client may have rewritten. Pure."""

from __future__ import annotations

import re
import secrets
from base64 import b64encode
from collections.abc import Sequence
from functools import lru_cache

from unbroken.gateway.turns.turn import Turn
from unbroken.messages import Assistant, Message, ToolCall

_DECODED = re.compile(r"call_\d+_\d+")
"""What our decoders call a call that came without an id."""
_RUNS = re.compile(r"[A-Za-z0-9]+")
_SHOWN = 200
"""Characters of an id that are looked at."""
_PROVIDERS = ("call_", "chatcmpl-tool-", "fc_", "functions.", "toolu_")
"""How providers begin an id. Clients that make their own do not."""
_OURS = "call_U"
_KINDS = re.compile(r"[A-Z]+|[a-z]+|[0-9]+")
_WORDS = re.compile(r"[a-z]*(?:[A-Z][a-z]+)*\d*")
_UUID4 = re.compile(
    r"(?<![0-9a-f])[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}(?:-?[0-9a-f]{12})?(?![0-9a-f])"
)
_RANDOM = 18
"""Bytes of an id that are made by chance."""


def new_call_id() -> str:
    """An id that no other call has, in a form that no provider uses."""
    return _OURS + b64encode(secrets.token_bytes(_RANDOM), b"Zz").decode()


def is_ours(id: str) -> bool:
    """Was this id made by a gateway?"""
    return len(id) == len(_OURS) + _RANDOM * 4 // 3 and id.startswith(_OURS)


def is_random(id: str, name: str) -> bool:
    """Was this id surely made by chance? Only such an id proves whose a turn is: one that counts, or is the digest of a
    call's arguments, is the same in two conversations."""
    return is_ours(id) or _looks_random(id[:_SHOWN], name)


@lru_cache(4096)
def _looks_random(id: str, name: str) -> bool:
    """A UUID of the fourth kind does; so does a run of letters and digits in no order (`q7Zp2mX91aKd`). Words do not
    (`toolCall0`), nor do hexadecimal digits, which may be a digest."""
    longest = max(_RUNS.findall(id.replace(name, "") if name else id), key=len, default="")
    mixed = (
        len(longest) >= 9
        and not (longest.islower() or longest.isupper() or longest.isalpha() or longest.isdigit())
        and 5 * (len(_KINDS.findall(longest)) - 1) >= 2 * len(longest)
        and not _WORDS.fullmatch(longest)
    )
    return mixed or _UUID4.search(id) is not None


def agrees(turn: Turn, calls: Sequence[ToolCall]) -> bool:
    """Can a client that was given this turn show these ids? They are its own, or there are none, or the client has
    rewritten them: then they look like nobody's. Those that look unique, or like the ids of this turn (the model's own
    among them, which the client was not given), belong to another turn."""
    if all(call.id in turn.ids for call in calls):
        return True
    shapes = {*map(_shape, turn.ids), *(_shape(call.id) for call in turn.message.calls)}
    return all(call.id in turn.ids or _is_nobodys(call, shapes) for call in calls)


def may_be_rewritten(turn: Turn, call: ToolCall) -> bool:
    """Can this be a call of the turn, under an id of the client's own? One whose id looks like those that the turn was
    given with, and is none of them, is another's."""
    if call.id in turn.ids or is_ours(call.id):
        return False
    return _shape(call.id) not in {*map(_shape, turn.ids)}


def _is_nobodys(call: ToolCall, shapes: set[tuple[str, bool, bool]]) -> bool:
    if _DECODED.fullmatch(call.id):
        return True
    if call.id.startswith(_PROVIDERS) or _looks_unique(call.id[:_SHOWN], call.name):
        return False
    return _shape(call.id) not in shapes


@lru_cache(4096)
def _looks_unique(id: str, name: str) -> bool:
    """`toolu_01AbCdEf…` does; `call_0`, `functions.search:0`, `get_weather_1` do not."""
    runs = _RUNS.findall(id.replace(name, "") if name else id)
    longest = max(runs, key=len, default="")
    return (len(longest) >= 9 and not longest.isalpha() and not longest.isdigit()) or sum(map(len, runs)) >= 24


def _shape(id: str) -> tuple[str, bool, bool]:
    """How ids begin that are made in the same way, and what their last part is made of."""
    runs = _RUNS.findall(id[-_SHOWN:])
    last = runs[-1] if runs and id.endswith(runs[-1]) else ""
    return id[: len(id) - len(last)], last.isdigit(), last.isalpha()


def is_named(turn: Turn, message: Message) -> bool:
    """Does this message name a call of the turn by an id that the gateway made?"""
    calls = message.calls if isinstance(message, Assistant) else ()
    return any(call.id in turn.ids and is_ours(call.id) for call in calls)
