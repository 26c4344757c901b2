"""What a provider would refuse: a request in its wire's own JSON is read the way the strictest server of it does.

Written from what the providers document and answer, and independent of our encoders and repairs, so that it can judge
them. Stricter than most servers on purpose in one thing: results stand in the order of their calls everywhere.
"""

from __future__ import annotations

from collections.abc import Callable

from unbroken.messages import Json
from unbroken.testing.strict import anthropic, gemini, openai_chat, openai_responses
from unbroken.testing.strict.shape import check_shape
from unbroken.wires import find_wire
from unbroken.wires.values import Object, as_dict

CHECKS: dict[str, Callable[[Object], list[str]]] = {
    "openai-chat": openai_chat.check,
    "openai-responses": openai_responses.check,
    "anthropic-messages": anthropic.check,
    "gemini": gemini.check,
}


def check_request(wire: str, body: Json) -> list[str]:
    """Everything for which a provider of this wire would refuse the request, each in one line. Empty: it takes it."""
    name = find_wire(wire).name
    if not isinstance(body, dict):
        return ["the body is not a JSON object"]
    return check_shape(name, as_dict(body)) or CHECKS[name](as_dict(body))


__all__ = ["CHECKS", "check_request", "check_shape"]
