"""May this call run? What the one who is asked can answer, and how they are asked."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from unbroken.messages import Json, ToolCall
from unbroken.tools.calling import in_words
from unbroken.tools.threads import THREADS, Job


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


async def ask(on_approval: OnApproval, call: ToolCall) -> Approval:
    """A plain handler may well wait for a person: it has a thread of its own, so that other calls go on."""
    try:
        if inspect.iscoroutinefunction(on_approval):
            decision: Any = await on_approval(call)
        else:
            job = Job(partial(on_approval, call))
            decision, error = await asyncio.get_running_loop().run_in_executor(THREADS, job)
            if error is not None:
                raise error
            if inspect.isawaitable(decision):
                decision = await decision
    except Exception as error:  # noqa: BLE001 - a foreign handler runs here; who cannot decide does not allow
        return Deny(f"the approval failed: {in_words(error)}")
    if isinstance(decision, Allow | Deny | Edit | Wait):
        return decision
    return Deny(f"the approval failed: on_approval gave {decision!r}, and not Allow, Deny, Edit or Wait")
