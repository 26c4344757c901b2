"""What middleware may change of a tool call: its arguments, and nothing else.

Order, duplicates, limits and approval were decided for the call as it was made. So a middleware gets a call of its own,
and what it passes on is compared with that. Other arguments have to fit the schema, leave the key as it was, and are
approved again. The tool runs with exactly these, a `CallChanged` event reports them, and the model reads them with the
result. Anything else that was changed is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from unbroken.errors import middleware_failed
from unbroken.events import CallChanged, CallStarted
from unbroken.tools.approval import NOBODY_APPROVES, ask_within, decide, refused
from unbroken.tools.caller import (
    AROUND,
    NOT_EXECUTED,
    Caller,
    Prepared,
    failure,
    fingerprint,
    not_executed,
    with_changed_arguments,
)
from unbroken.tools.context import CallContext
from unbroken.tools.entry import Entry
from unbroken.tools.value_checks import problem_of_arguments, problem_of_result
from unbroken_wires.messages import Outcome, ToolCall, ToolResult, own, own_call

LOG = logging.getLogger("unbroken.tools")


@dataclass(frozen=True, slots=True)
class PassingOn:
    """The `call_tool` of a middleware as a `Caller`. `prepare` is called for a call whose arguments were changed."""

    middleware: Any
    call_next: Caller
    prepare: Callable[[ToolCall], Prepared]

    @property
    def by(self) -> str:
        """The name of the middleware; a check has the name of its function."""
        return str(getattr(self.middleware, "name", type(self.middleware).__name__))

    async def __call__(self, call: ToolCall, context: CallContext[Any]) -> ToolResult:
        bound, context.arguments = [context.arguments], None
        given = own_call(call) if self.middleware.mutates else call
        result = await self.middleware.call_tool(given, context, partial(self._pass_on, call, bound))
        return self._blame(call, f"it returned {problem}") if (problem := problem_of_result(result)) else result

    def _blame(self, call: ToolCall, problem: str, outcome: Outcome = "failed") -> ToolResult:
        """The model reads that the program failed; the log and `exception` have what to repair."""
        error = middleware_failed(self.by, "call_tool", problem)
        LOG.warning("Tool call %s (id=%s): %s", call.name, call.id, error)
        words = AROUND.format(kind=type(error).__name__)
        return failure(call, words if outcome == "failed" else f"{NOT_EXECUTED}: {words}", outcome, error)

    async def _pass_on(
        self, made: ToolCall, bound: list[dict[str, Any] | None], call: ToolCall, context: CallContext[Any]
    ) -> ToolResult:
        # Its tool may change the arguments that it gets: if it is called again, they are bound again.
        context.arguments = bound.pop() if bound else None
        if call is made:
            return await self.call_next(made, context)
        same = (call.id, call.name) == (made.id, made.name)
        if same and call.arguments == made.arguments and fingerprint(call) == fingerprint(made):  # 1 == True == 1.0
            return await self.call_next(made, context)
        if same and (problem := problem_of_arguments(call.arguments)):
            return self._blame(made, f"the arguments that it passed on are not JSON: {problem}", "not_executed")
        changed = Entry(self.prepare(replace(made, arguments=own(call.arguments), raw="")))
        if same:
            refusal = await self._refusal(made, changed, context)
        else:
            other = f"the middleware `{self.by}` passed on another call, `{call.name}` with the id {call.id}"
            refusal = not_executed(made, f"{other}; it may change arguments only")
        if refusal is None:
            return await self._run(made, changed.prepared, context)
        LOG.warning("Tool call %s (id=%s), as %s passed it on: %s", made.name, made.id, self.by, refusal.text)
        return refusal

    async def _refusal(self, made: ToolCall, changed: Entry, context: CallContext[Any]) -> ToolResult | None:
        """The result of a changed call that may not run."""
        if changed.prepared.refusal:
            return refused(changed.prepared)
        if changed.prepared.asks:
            decision = await ask_within(context, changed.call)
            if decision is None:
                return failure(made, NOBODY_APPROVES, "not_executed")
            if (result := decide(changed, decision, self.prepare)) is not None:
                return result
            if changed.state == "pending":
                why = "and a call that has started cannot wait for an approval"
                return not_executed(made, f"the middleware `{self.by}` changed its arguments, {why}")
        if changed.prepared.key != self.prepare(made).key:
            why = "calls with equal keys run one after another, and this one is in order with the key that it had"
            return not_executed(made, f"the middleware `{self.by}` changed its arguments, and with them its key: {why}")
        return None

    async def _run(self, made: ToolCall, prepared: Prepared, context: CallContext[Any]) -> ToolResult:
        call, about = prepared.call, (context.number, context.call_id, made.name)
        if context.known is not None:  # so its start was not reported; but it is the result of other arguments
            context.known = context.ran_before = None
            context.say(CallStarted, *about, made.arguments or {})
        context.arguments, context.changed = prepared.arguments, True
        context.say(CallChanged, *about, call.arguments or {}, self.by)
        for recorder in context.recorders:
            await recorder.before_run(made.name)
        return with_changed_arguments(await self.call_next(call, context), call)
