"""Are the calls in raw events such that any client can read them? Only openai-chat leaves room for others.

Our decoder reads calls without an index, with index 0 for all of them, with an id in each piece; official clients merge
or lose them. What stands here is asked before such events are passed on as they came.
"""

from __future__ import annotations

from unbroken.wires.jsontext import Damaged, loads
from unbroken.wires.values import Object, as_dict, as_list, as_text, dicts


def calls_are_tidy(wire: str, data: bytes, before: int = 0) -> bool:
    """`data`: whole server-sent events; `before`: the calls that came in earlier ones. Wires that number and end their
    calls themselves leave nothing to doubt."""
    return wire != "openai-chat" or _are_tidy(data, before)


def _are_tidy(data: bytes, before: int) -> bool:
    ids = dict.fromkeys(range(before), "")
    for line in data.splitlines():
        if not line.startswith(b"data:") or b"_call" not in line:
            continue
        try:
            event = as_dict(loads(line[5:]))
        except Damaged:
            return False
        for choice in dicts(event.get("choices")):
            delta = as_dict(choice.get("delta"))
            if delta.get("function_call") or as_dict(choice.get("message")):
                return False  # the old single call; a message where a delta belongs
            if not all(_fits(as_dict(piece), ids) for piece in as_list(delta.get("tool_calls"))):
                return False
    return True


def _fits(piece: Object, ids: dict[int, str]) -> bool:
    """The first piece of a call has its id and name, the others have its index and add arguments to it."""
    index, id = piece.get("index"), as_text(piece.get("id"))
    function = as_dict(piece.get("function")) or as_dict(piece.get("custom"))
    if not isinstance(index, int) or isinstance(index, bool):
        return False
    if index in ids:  # of a call that was whole before there is nothing more to say
        return bool(ids[index]) and not as_text(function.get("name")) and id in ("", ids[index])
    if index != len(ids) or not id or not as_text(function.get("name")):
        return False
    ids[index] = id
    return isinstance(function.get("arguments", ""), str)
