"""anthropic-messages: thinking is bound to what was before it when it was written.

Newer models refuse a request if the instructions, the tools or a message before a block of thinking have changed,
unless it asks them to drop such blocks. A run knows when nothing has changed (`Request.appended`); every other request
asks.
The source: platform.claude.com/docs/en/build-with-claude/preserved-thinking.
"""

from __future__ import annotations

from collections.abc import Mapping

from unbroken_wires.messages import Json, Request
from unbroken_wires.wires.anthropic.messages_content import THINKING
from unbroken_wires.wires.claude_models import BINDING, BINDING_BETA, PREFIX_CHECKED
from unbroken_wires.wires.json_access import Object, as_dict, dicts


def drop_moved_thinking(body: Object, request: Request) -> None:
    """Asks the model to drop thinking that is not valid any more. Where the request turns thinking off the field may
    not be sent: all earlier thinking is left out."""
    if request.appended is request.messages or request.model not in PREFIX_CHECKED:
        return
    if not any(map(_thoughts, body["messages"])):
        return
    thinking = as_dict(body.get("thinking"))
    if thinking.get("type") == "disabled" or as_dict(body.get("tool_choice")).get("type") in ("any", "tool"):
        body["messages"] = [_without_thoughts(turn) if _thoughts(turn) else turn for turn in body["messages"]]
    elif BINDING not in thinking:
        # These models think by default: saying so changes nothing.
        body["thinking"] = {"type": "adaptive", **thinking, BINDING: {"prefix_mismatch_behavior": "drop_block"}}


def _thoughts(turn: Object) -> bool:
    return any(block.get("type") in THINKING for block in dicts(turn["content"]))


def _without_thoughts(turn: Object) -> Object:
    return {**turn, "content": [block for block in dicts(turn["content"]) if block.get("type") not in THINKING]}


def drops_moved_thinking(body: Mapping[str, Json]) -> bool:
    binding = as_dict(as_dict(body.get("thinking")).get(BINDING))
    return binding.get("prefix_mismatch_behavior") == "drop_block"


def binding_betas(body: Object) -> list[str]:
    return [BINDING_BETA] if BINDING in as_dict(body.get("thinking")) else []
