"""May this call run? What the one who is asked can answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from unbroken.messages import Json, ToolCall


@dataclass(frozen=True, slots=True)
class Allow:
    pass


@dataclass(frozen=True, slots=True)
class Deny:
    """The call is answered with the reason."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Edit:
    """The call runs with these arguments in place of the model's, and the model is told."""

    arguments: dict[str, Json]


@dataclass(frozen=True, slots=True)
class Wait:
    """Nobody can say now: the run ends with stop reason `waiting`, and `agent.resume` goes on with the answer."""


Approval: TypeAlias = Allow | Deny | Edit | Wait
OnApproval: TypeAlias = Callable[[ToolCall], Approval | Awaitable[Approval]]
