"""May this call run? What the one who is asked can answer, and how they are asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from unbroken.messages import Json, ToolCall
from unbroken.tools.caller import in_words
from unbroken.tools.threads import call_anywhere
from unbroken.validation import checked


@dataclass(frozen=True, slots=True)
class Allow:
    pass


@checked
@dataclass(frozen=True, slots=True)
class Deny:
    """The call is answered with the reason."""

    reason: str = ""


@checked
@dataclass(frozen=True, slots=True)
class Edit:
    """The call runs with these arguments in place of the model's, and the model is told."""

    arguments: dict[str, Json]


@dataclass(frozen=True, slots=True)
class Wait:
    """Nobody can say now: the run ends with stop reason `waiting`, and `agent.resume` goes on with the answer."""


Approval: TypeAlias = Allow | Deny | Edit | Wait
OnApproval: TypeAlias = Callable[[ToolCall], Approval | Awaitable[Approval]]


async def ask(on_approval: OnApproval, call: ToolCall) -> Approval:
    """A plain handler may well wait for a person: it has a thread of its own, so that other calls go on."""
    try:
        decision: Any = await call_anywhere(on_approval, call)
    except Exception as error:  # noqa: BLE001 - a foreign handler runs here; who cannot decide does not allow
        return Deny(f"the approval failed: {in_words(error)}")
    if isinstance(decision, Allow | Deny | Edit | Wait):
        return decision
    return Deny(f"the approval failed: on_approval gave {decision!r}, and not Allow, Deny, Edit or Wait")
