"""How to go on where a provider demands its own reasoning back and it is gone: cut off by a client, or said elsewhere.

One small function for each way there is; a provider's row names its way (`Quirks.lost_reasoning`). They work on bodies,
ours and those that are passed on as they came, and say in words what they did; where nothing is missing, nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from unbroken.messages import Request
from unbroken.wires.anthropic.thinking import THINKING
from unbroken.wires.gemini.signatures import PLACEHOLDER, sign
from unbroken.wires.openai_chat.requests import OPAQUE_TEXTS
from unbroken.wires.values import Object, as_dict, dicts

LostReasoning: TypeAlias = Literal["", "blank", "off", "placeholder"]
"""Not demanded; a blank in its place; thinking is turned off for this request; a documented word instead of it."""

BLANK = " "
"""Kimi K2.5 takes an empty text for none (pi#4178, llmgateway#2093: tried there); DeepSeek takes both."""


def go_on(body: Object, request: Request, way: LostReasoning) -> tuple[Object, str]:
    """The body with which the provider can be asked, and what was done for that."""
    return WAYS[way](body, request) if way else (body, "")


def _blank(body: Object, request: Request) -> tuple[Object, str]:
    """DeepSeek and Moonshot refuse a message with calls and without `reasoning_content` while they think."""
    messages = dicts(body.get("messages"))
    bare = [message for message in messages if message.get("tool_calls") and not _has_reasoning(message)]
    if not bare:
        return body, ""
    named = {id(message) for message in bare}
    filled = [{**message, "reasoning_content": BLANK} if id(message) in named else message for message in messages]
    return {**body, "messages": filled}, "left blank"


def _has_reasoning(message: Object) -> bool:
    return any(message.get(name) for name in OPAQUE_TEXTS)


def _off(body: Object, request: Request) -> tuple[Object, str]:
    """Anthropic refuses to think on in a turn that did not begin with thinking."""
    if request.reasoning not in (None, "none") and "thinking" not in body and _calls_are_open(body):
        return body, "thinking is off"  # the wire's encoder has seen to it
    if as_dict(body.get("thinking")).get("type") not in ("enabled", "adaptive") or not _began_without(body):
        return body, ""
    return {name: value for name, value in body.items() if name != "thinking"}, "thinking is off"


def _calls_are_open(body: Object) -> bool:
    messages = dicts(body.get("messages"))
    last = dicts(messages[-1].get("content")) if messages else []
    return any(block.get("type") == "tool_result" for block in last)


def _began_without(body: Object) -> bool:
    """Calls and results that go back and forth are one turn of the assistant: its first message counts."""
    first: Object | None = None
    for message in reversed(dicts(body.get("messages"))):
        blocks = dicts(message.get("content"))
        if message.get("role") == "assistant":
            first = message
        elif not blocks or any(block.get("type") != "tool_result" for block in blocks):
            break
    if first is None:
        return False
    blocks = dicts(first.get("content"))
    return not blocks or blocks[0].get("type") not in THINKING


def _placeholder(body: Object, request: Request) -> tuple[Object, str]:
    """Gemini 3 refuses a first call without its signature. Our own contents are signed by the encoder already."""
    contents = [{**content, "parts": dicts(content.get("parts"))} for content in dicts(body.get("contents"))]
    for content in contents:
        content.setdefault("role", "user")
    sign(contents, request.model)
    signed = any(part.get("thoughtSignature") == PLACEHOLDER for content in contents for part in content["parts"])
    return ({**body, "contents": contents}, "signed with a placeholder") if signed else (body, "")


WAYS: dict[str, Callable[[Object, Request], tuple[Object, str]]] = {
    "blank": _blank,
    "off": _off,
    "placeholder": _placeholder,
}
