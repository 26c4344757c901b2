"""Questions that an MCP server asks while it runs a call: forms and pages for the user (elicitation), and requests to a
model (sampling).

A question belongs to one call, and only the run of that call may see it. Newer servers ask in the answer to the call,
and over HTTP a question arrives in the stream of its call; both times the package runs our code in the context of the
caller. Over pipes an older server gives no hint: then the calls that run at the moment must all be of one run, or the
question is declined.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar, cast

import mcp_types as types
from mcp.client import ClientRequestContext
from pydantic import ValidationError

from unbroken.errors import UnbrokenError
from unbroken.mcp.client.forms import defaults_of, why_not
from unbroken.mcp.content import sampling_request, sampling_result, well_formed_inside
from unbroken.tools.approval import Allow, Approval, Edit, Question, Wait, ask_within
from unbroken.tools.context import CallContext
from unbroken.tools.results import ToolFailed
from unbroken_wires.messages import Json, User

T = TypeVar("T")

LOG = logging.getLogger("unbroken.tools")

REPORTED = 200
"""Maximum characters of a question in a progress event."""

FIRST_REPORTS, BETWEEN_REPORTS = 200, 0.1
"""How many reports of progress of a call are passed on in any case, and the seconds between later ones."""

LONGEST_REPORT = 1000
"""Maximum characters of one."""

SAMPLINGS = 20
"""How often one call may ask the model: a server could ask without end."""

_REJECTED = -1
"""The error code of a sampling request that was not allowed, as the specification has it."""


RELATED = "io.modelcontextprotocol/related-task"


class RunningCall:
    """A call that runs now: what it reports, and the questions about it that are open."""

    __slots__ = ("_next_report", "_reports_left", "context", "name", "open", "outage", "samplings", "task", "variables")

    def __init__(self, name: str, context: CallContext[Any], outage: float) -> None:
        self.name = name
        self.context = context
        self.outage = outage
        """Seconds for which its server may be away if it is a task."""
        self.variables = copy_context()
        """An approver may find in them whose run this is."""
        self.open: set[asyncio.Task[Any]] = set()
        self.samplings = 0
        self.task = ""
        """Its id, if the server runs the call as a task."""
        self._reports_left = FIRST_REPORTS
        self._next_report = 0.0

    def report(self, message: str, done: float | None = None) -> None:
        """Passes on what the server reports, within bounds: it could report without end."""
        self._reports_left -= 1
        now = time.monotonic()
        if self._reports_left >= 0 or now >= self._next_report:
            self._next_report = now + BETWEEN_REPORTS
            self.context.report(message[:LONGEST_REPORT], done)


class Questions:
    """Those of one server. `label` returns its name for people; `sampling` is False, True for the model of the run, or
    another model."""

    def __init__(self, label: Callable[[], str], sampling: Any, outage: float) -> None:
        self._label = label
        self._outage = outage
        self._sampling = sampling
        self._running: list[RunningCall] = []
        self._caller: ContextVar[RunningCall | None] = ContextVar("unbroken_mcp_caller", default=None)
        self._turns: dict[str, asyncio.Lock] = {}
        """By run: one question at a time."""

    @contextmanager
    def during(self, name: str, context: CallContext[Any]) -> Generator[RunningCall]:
        """Inside the block this call runs. When it ends, its questions are closed."""
        call = RunningCall(name, context, self._outage)
        self._running.append(call)
        token = self._caller.set(call)
        try:
            yield call
        finally:
            self._caller.reset(token)
            self._running.remove(call)
            for task in call.open:
                task.cancel()
            if not any(each.context.run == context.run for each in self._running):
                self._turns.pop(context.run, None)

    async def elicit(self, context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
        """Asks the approver of the run. Without one it declines."""
        call = self._asking(context)
        if call is None:
            return types.ElicitResult(action="decline")
        schema = {} if isinstance(params, types.ElicitRequestURLParams) else dict(params.requested_schema)
        defaults = defaults_of(schema)
        question = Question(
            id=call.context.call_id,
            name="elicitation/create",
            arguments=defaults,
            kind=params.mode,
            message=params.message,
            schema=schema,
            url=params.url if isinstance(params, types.ElicitRequestURLParams) else "",
            server=self._label(),
            tool=call.context.name or call.name,
        )
        answer = await self._within(call, self._ask(call, question))
        match answer:
            case Allow() | Edit() if question.kind == "url":
                return types.ElicitResult(action="accept")
            case Allow():
                return self._filled_in(schema, defaults)
            case Edit(values):
                return self._filled_in(schema, {**defaults, **values})
            case Wait():
                return types.ElicitResult(action="cancel")
            case _:
                return types.ElicitResult(action="decline")

    async def sample(
        self, context: ClientRequestContext, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.ErrorData:
        """Asks the model, if the approver of the run allows it or there is none."""
        call = self._asking(context)
        if call is None or call.context.ask_model is None:
            return types.ErrorData(code=_REJECTED, message="there is no run whose model could be asked")
        call.samplings += 1
        if call.samplings > SAMPLINGS:
            return types.ErrorData(code=_REJECTED, message=f"one call may ask the model {SAMPLINGS} times")
        answer = await self._within(call, self._sample(call, params))
        return answer or types.ErrorData(code=_REJECTED, message="the call has ended")

    async def _sample(
        self, call: RunningCall, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.ErrorData:
        context = call.context
        assert context.ask_model is not None
        try:
            if params.tools:
                raise ToolFailed("a request with tools, which this client does not offer to servers")
            request = sampling_request(params)
            asked = [message.text for message in request.messages if isinstance(message, User)]
            question = Question(
                id=context.call_id,
                name="sampling/createMessage",
                arguments={"max_tokens": params.max_tokens, "system_prompt": params.system_prompt or ""},
                kind="sampling",
                message="\n\n".join(asked),
                server=self._label(),
                tool=context.name or call.name,
            )
            if not isinstance(await self._ask(call, question), Allow | None):
                return types.ErrorData(code=_REJECTED, message="the user rejected the request to the model")
            model = None if self._sampling is True else self._sampling
            return sampling_result(*await context.ask_model(request, model, context.spend))
        except (ToolFailed, UnbrokenError) as error:
            return types.ErrorData(code=types.INTERNAL_ERROR, message=f"the model was not asked: {error}")

    async def _ask(self, call: RunningCall, question: Question) -> Approval | None:
        context = call.context
        if context.approver is None:
            return None
        async with self._turns.setdefault(context.run, asyncio.Lock()):
            context.report(f"asks: {question.message[:REPORTED]}")
            return await ask_within(context, question)

    async def _within(self, call: RunningCall, asking: Coroutine[Any, Any, T]) -> T | None:
        """None if the call ended before there was an answer."""
        task = asyncio.create_task(asking, context=call.variables)
        call.open.add(task)
        try:
            await asyncio.wait({task})
        finally:
            call.open.discard(task)
            task.cancel()
        return None if task.cancelled() else task.result()

    def running(self) -> RunningCall:
        """The call that the current task runs."""
        call = self._caller.get()
        assert call is not None
        return call

    def _asking(self, context: ClientRequestContext) -> RunningCall | None:
        """The call that a question belongs to."""
        call = self._caller.get()
        if call is not None and call in self._running:
            return call
        if (task := _related_task(context)) and (own := [each for each in self._running if each.task == task]):
            return own[0]
        if len({each.context.run for each in self._running}) > 1:
            LOG.warning(
                "%s asked a question while calls of several runs were active. It does not say which of them it asks "
                "about, so the question was declined; give each run an MCPServer of its own",
                self._label(),
            )
            return None
        return self._running[-1] if self._running else None

    def _filled_in(self, schema: Mapping[str, Json], values: dict[str, Json]) -> types.ElicitResult:
        """The answer to a form. Values that do not fit are not sent: the server would take them as checked."""
        why = why_not(schema, values)
        try:
            if not why:
                return types.ElicitResult(action="accept", content=well_formed_inside(values))
        except ValidationError:
            why = "a form takes texts, numbers, booleans and lists of texts"
        LOG.warning("The answer to a form of %s does not fit, and was not sent: %s", self._label(), why)
        return types.ElicitResult(action="cancel")


def _related_task(context: ClientRequestContext) -> str:
    """The task that a question of a server of 2025-11-25 names; empty if it names none."""
    related = cast("dict[str, Any]", context.meta or {}).get(RELATED)
    return str(cast("dict[str, Any]", related).get("taskId", "")) if isinstance(related, dict) else ""
