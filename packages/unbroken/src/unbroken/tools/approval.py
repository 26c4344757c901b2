"""Approver decisions about a call: `Allow`, `Deny`, `Edit`, `Wait`; questions that a call asks while it runs; and what
to do with a call whose outcome is unknown after a crash."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from unbroken.errors import UserError
from unbroken.tools.caller import (
    NOT_EXECUTED,
    Attempt,
    Prepared,
    bare,
    failure,
    in_words,
    log_bug,
    not_executed,
    safe_words,
)
from unbroken.tools.context import CallContext
from unbroken.tools.entry import Entry
from unbroken.tools.threads import call_anywhere
from unbroken.tools.tool import Tool, Verify
from unbroken.tools.value_checks import problem_of_arguments
from unbroken_wires.messages import Json, ToolCall, ToolResult, own, own_call
from unbroken_wires.validation import checked

LOG = logging.getLogger("unbroken.tools")


@dataclass(frozen=True, slots=True)
class Allow:
    pass


@checked
@dataclass(frozen=True, slots=True)
class Deny:
    """The call is answered with the reason."""

    reason: str = ""
    exception: BaseException | None = field(default=None, compare=False, repr=False)
    """What the approver raised, if it failed instead of deciding."""


@checked
@dataclass(frozen=True, slots=True)
class Edit:
    """The call runs with these arguments in place of the model's, and its result tells the model."""

    arguments: dict[str, Json]


@dataclass(frozen=True, slots=True)
class Wait:
    """There is no decision yet: the run ends with stop reason `waiting`, and `agent.resume` continues with the
    answer."""


@dataclass(frozen=True, slots=True)
class Question(ToolCall):
    """What an approver gets when the server of a tool asks something while a call of `tool` runs. `id` is that of the
    call; `name` is the request of the server (`elicitation/create`, `sampling/createMessage`), so that an approver that
    allows calls by their names does not answer it by accident. `kind` is one of these:

    - `"form"`: it asks for values that fit `schema`, a JSON Schema. `Edit(values)` answers. `Allow()` answers with the
      defaults of the form, which are in `arguments`.
    - `"url"`: it asks the user to open `url`. `Allow()` means that the user agreed; nothing is opened for you.
    - `"sampling"`: it asks for an answer of the model to `message`. `Allow()` lets it.

    `Deny()` declines. `Wait()` dismisses the question, because a call that is running cannot wait for another process.
    """

    message: str = ""
    schema: Mapping[str, Json] = field(default_factory=dict[str, Json])
    url: str = ""
    server: str = ""
    """The server that asks."""
    tool: str = ""
    """The tool that was called."""


Approval: TypeAlias = Allow | Deny | Edit | Wait
OnApproval: TypeAlias = Callable[[ToolCall], Approval | Awaitable[Approval]]

NOBODY_APPROVES = f"{NOT_EXECUTED}: it needs an approval, and nobody is there to give it"


FAILED = "the approval failed: {}"


async def ask(on_approval: OnApproval, call: ToolCall) -> Approval:
    """Asks the approver. A plain function runs in a thread, because it may wait for a person while other calls
    continue."""
    try:
        decision: Any = await call_anywhere(on_approval, own_call(call))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's handler runs here; if it fails, the call is denied
        log_bug(logging.WARNING, error, "The approver failed, so tool call %s (id=%s) is denied", call.name, call.id)
        return Deny(FAILED.format(safe_words(error)), bare(error))
    if isinstance(decision, Allow | Deny | Wait):
        return decision
    if not isinstance(decision, Edit):
        what = f"on_approval returned {type(decision).__name__}, and not Allow(), Deny(), Edit(…) or Wait()"
    elif problem := problem_of_arguments(decision.arguments):
        what = f"on_approval returned Edit(…) with arguments that are not JSON: {problem}"
    else:
        return Edit(own(decision.arguments))
    LOG.warning("Tool call %s (id=%s) is denied: %s", call.name, call.id, what)
    return Deny(FAILED.format(what), UserError(what))


async def ask_within(context: CallContext[Any], question: ToolCall) -> Approval | None:
    """Asks the approver of the run while a call of it runs. The time-out of the call does not count meanwhile. None if
    the run has no approver."""
    if context.approver is None:
        return None
    context.asked = True
    left = context.time.pause() if context.time is not None else None
    try:
        return await ask(context.approver, question)
    finally:
        if context.time is not None and left is not None:
            context.time.begin(left, usual=False)


def decide(entry: Entry, decision: Approval | ToolResult, prepare: Callable[[ToolCall], Prepared]) -> ToolResult | None:
    """Applies an approver's decision about a call. Returns the result of a call that does not run. `prepare` is called
    for a call whose arguments were edited."""
    call, prepared = entry.call, entry.prepared
    match decision:
        case ToolResult():
            return replace(decision, call_id=call.id, name=call.name)
        case Allow():
            entry.approved = True
        case Edit(arguments):
            entry.approved, entry.original = True, prepared
            entry.prepared = edited = prepare(replace(call, arguments=arguments))
            edited.number, edited.uncertain = prepared.number, prepared.uncertain
            if edited.refusal:
                return refused(edited)
        case Deny(reason):
            why = f"denied: {reason}" if reason else "denied"
            result = unknown(call, f"running it again was {why}") if prepared.uncertain else not_executed(call, why)
            return replace(result, exception=decision.exception)
        case Wait():
            entry.state = "pending"
    return None


def refused(prepared: Prepared) -> ToolResult:
    """The result of a call that cannot run."""
    if prepared.uncertain:
        return unknown(prepared.call, f"it cannot run now: {prepared.refusal}")
    return failure(prepared.call, prepared.refusal, "not_executed", prepared.exception)


# What to do with a call that had started when its run stopped, because its process died or it was cancelled: nobody
# knows whether it took effect. The tool declares what to do (`@tool(after_crash=…)`). A read runs again in any case; a
# write does not, unless it is declared safe.


OUTCOME_UNKNOWN = "outcome unknown: the run stopped while this call was running, and it may have taken effect"
CHECK_FIRST = "check whether it did before you call it again"


def unknown(call: ToolCall, advice: str = CHECK_FIRST) -> ToolResult:
    """The result of a call with an unknown outcome."""
    return failure(call, f"{OUTCOME_UNKNOWN}; {advice}", "unknown")


async def settle(tool: Tool, call: ToolCall, context: CallContext[Any], limit: int) -> ToolResult | None:
    """The result of a call that had started before; None if it has to run, for the first time or again."""
    policy = tool.crash_policy
    if policy == "rerun":
        LOG.warning("Tool call %s (id=%s) was running when its run stopped, and runs again", call.name, call.id)
        return None
    if callable(policy):
        return await _verified(policy, tool, call, context, limit)
    LOG.warning("Tool call %s (id=%s) was running when its run stopped: its outcome is unknown", call.name, call.id)
    return unknown(call)


async def _verified(
    verify: Verify, tool: Tool, call: ToolCall, context: CallContext[Any], limit: int
) -> ToolResult | None:
    attempt = Attempt(call, context, tool.timeout, limit)
    asks = partial(_ask, verify, tool.bind(call), context.key)
    found = await attempt.outcome(asks, inspect.iscoroutinefunction(verify))
    if isinstance(found, _DidNotHappen):
        return None
    if isinstance(found, BaseException) or attempt.time.expired:
        LOG.warning(
            "Tool call %s (id=%s) was running when its run stopped, and verifying it failed, so its outcome is "
            "unknown: %s",
            call.name,
            call.id,
            in_words(found) if isinstance(found, BaseException) else found.text,
        )
        return unknown(call)
    context.ran_before = 0.0
    return found


class _DidNotHappen(Exception):
    """The check has found that the call took no effect."""


def _ask(verify: Verify, arguments: dict[str, Any], key: str) -> Any:
    value = verify(arguments, key)
    return _ask_later(value) if inspect.isawaitable(value) else _happened(value)


async def _ask_later(value: Awaitable[Any]) -> Any:
    return _happened(await value)


def _happened(value: Any) -> Any:
    if value is None:
        raise _DidNotHappen
    return value
