"""anthropic-messages, thinking: an effort as a budget of tokens and back, and when the API would refuse it.

What a client of this wire said exactly travels in `extra`; this is for everyone else.
"""

from __future__ import annotations

from unbroken.messages import Effort, Json
from unbroken.wires.values import Object, as_dict, as_int, as_text

THINKING = ("thinking", "redacted_thinking")
"""The kinds of blocks that hold it."""

UNSIGNED = "unbroken-not-signed"
"""The signature of thinking that a model of another wire did: clients drop, or retell, what has none."""


def is_signed(block: Object) -> bool:
    """Can this block go back to the provider? Thinking that nobody, or nobody but us, has signed cannot."""
    return block.get("type") != "thinking" or block.get("signature") not in ("", UNSIGNED)


_BUDGETS: dict[Effort, int] = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 24576, "xhigh": 32768}
_ADAPTIVE: dict[str, Effort] = {"low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "xhigh"}


def encode_thinking(body: Object, effort: Effort | None) -> Object:
    """The setting for a body that has its messages and its choice; empty if there is none to send."""
    # Two requests are refused with thinking, and the choice and the history are the harder facts: one that forces a
    # call, and one that goes on with a turn which began without thinking (or whose thinking another wire cannot give
    # back).
    forced = as_dict(body.get("tool_choice")).get("type") in ("any", "tool")
    if effort not in (None, "none") and (forced or _began_without(body["messages"])):
        return {}
    return _spelled(effort)


def _began_without(turns: list[Object]) -> bool:
    """A loop of calls and results is one turn of the assistant: only its first message has to begin with thinking, and
    without interleaved thinking only that one does."""
    first: Object | None = None
    for turn in reversed(turns):
        if turn["role"] == "assistant":
            first = turn
        elif isinstance(turn["content"], str) or any(block.get("type") != "tool_result" for block in turn["content"]):
            break
    return first is not None and first["content"][0].get("type") not in THINKING


def decode_effort(body: Object) -> Effort | None:
    """The nearest effort, for other wires."""
    match body.get("thinking"):
        case {"type": "disabled"}:
            return "none"
        case {"type": "enabled", "budget_tokens": int(budget)}:
            return min(_BUDGETS, key=lambda effort: abs(_BUDGETS[effort] - budget))
        case {"type": "adaptive"}:
            # The API's own default is high.
            return _ADAPTIVE.get(as_text(as_dict(body.get("output_config")).get("effort")), "high")
        case _:
            return None


def says_all(effort: Effort | None, body: Object) -> bool:
    """Would the effort be spelled exactly as this body spells its thinking?"""
    spelled = _spelled(effort)
    limit: Json = body.get("max_tokens")
    # With interleaved thinking a budget may exceed the limit, which we would raise.
    return body.get("thinking") == spelled and (limit is None or as_int(limit) > spelled.get("budget_tokens", 0))


def _spelled(effort: Effort | None) -> Object:
    if effort is None:
        return {}
    if effort == "none":
        return {"type": "disabled"}
    return {"type": "enabled", "budget_tokens": _BUDGETS.get(effort, _BUDGETS["high"])}
