"""Records one run: requests and deltas at the model, results at the tools, approvals where they are made, and events as
they are emitted. `recorder` chooses the file; `jsonl_writer` writes it.

What must not be lost is written at once: the start and the result of a tool that changes something. If that cannot be
written, such a tool does not start (`on_failure="stop"`), or the run continues without its recording (`"continue"`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import is_not
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from unbroken.clock import VirtualClock
from unbroken.errors import RecordingFailed
from unbroken.events import (
    CallChanged,
    CallStarted,
    Event,
    RecordingIncomplete,
    RoundFinished,
    RunFailed,
    RunFinished,
    ToolCallsDetected,
)
from unbroken.middleware import Ask, Middleware, RunStart
from unbroken.models.model import Model, closing
from unbroken.tools.approval import Approval, OnApproval, ask
from unbroken.tools.caller import Caller, failure, in_words
from unbroken.tools.context import CallContext
from unbroken.tools.results import CallWaits
from unbroken.tools.tool import Tool
from unbroken.tools.toolbox import Toolbox
from unbroken.trajectory.jsonl_writer import JsonlWriter, Target
from unbroken.trajectory.known import Known
from unbroken.trajectory.line_checks import refer
from unbroken.trajectory.lines import (
    CAUSED_BY_TOOLS,
    NAMES,
    SCHEMA,
    Line,
    approval_fields,
    delta_fields,
    ended_fields,
    error_fields,
    request_fields,
    spec_fields,
    tool_fields,
    usage_fields,
    waits_fields,
)
from unbroken.trajectory.redaction import Redactor
from unbroken_wires.deltas import (
    AttemptFailed,
    CallArguments,
    CallOpened,
    CallReady,
    Delta,
    Ended,
    PartialResponse,
    ReasoningDelta,
    Restarted,
    TextDelta,
)
from unbroken_wires.messages import Assistant, Json, Message, Request, System, ToolCall, ToolResult, ToolSpec, Usage
from unbroken_wires.transcript import to_json
from unbroken_wires.transcript.saved import write_call, write_result

OnFailure: TypeAlias = Literal["stop", "continue"]


class RunRecorder(Middleware):
    """The recording of one run."""

    records = True
    mutates = False
    sees_deltas = True
    edits_answers = False

    def __init__(
        self,
        target: Target,
        head: RunStart,
        redactor: Redactor,
        on_failure: OnFailure = "continue",
        why: str = "",
    ) -> None:
        """`target` is closed at the end; if it is not open, `why` has the reason."""
        self.turn = 0
        """The number of the current request."""
        self.writer = JsonlWriter(target, redactor)
        self.writer.on_broken, self.writer.reason = self._tell_broken, why
        self.stops = on_failure == "stop"
        """No tool that may change something starts if the recording cannot be written."""
        limits = cast("Mapping[str, Json]", head.settings.get("limits") or {})
        self.reserves = target.later and not {"cost", "tokens"}.isdisjoint(limits)
        """Each request is stored before the model is asked: what it may use counts though this process dies."""
        self._redactor = redactor
        self._head = head
        self._clock = head.clock
        self._elapsed = head.clock.elapsed
        self._began = head.clock.elapsed()
        self._looked_for: Iterable[str] = ()
        """Secrets of the model, when they were looked for last."""
        self._system: System | None = None
        self._sent: tuple[Message, ...] = head.messages
        """Without the system message, which is kept separately."""
        self._history: tuple[Message, ...] = ()
        """The history as last written, if a request differed from it."""
        self._answer: Assistant | None = None
        self._given: dict[str, ToolResult] = {}
        """What the model said and what the tools returned since the last request: it is already in the file."""
        self._toolbox: Toolbox | None = None
        self._tools: tuple[Tool, ...] = ()
        self._specs: tuple[ToolSpec, ...] = ()
        """The tools of the turn, as the model sees them."""
        self._reads: set[str] = set()
        self._several: dict[int, list[str]] = {}
        """The names of the calls of an answer with several calls that have not ended, by turn."""
        self._used: dict[int, Usage] = {}
        """What the running calls have used, by their contexts."""
        self._ended = False
        """An answer has ended, and its stream is not closed yet."""
        if head.resumed and target.has_lines():
            if target.ends_in_cut_line():
                self.writer.end_cut_line()
            self._write_resumed()
        else:
            self._write_head()
        if not target.later:
            self.writer.flush()
        if not target.is_open:
            self._tell_broken()

    @property
    def broken(self) -> bool:
        """It could not be written completely."""
        return self.writer.broken

    @property
    def reason(self) -> str:
        """Why it could not."""
        return self.writer.reason

    def _tell_broken(self) -> None:
        # Not immediately: this may be the first moment of the run, or the middle of another event.
        told = RecordingIncomplete, self.writer.path, self.writer.reason
        asyncio.get_running_loop().call_soon(self._head.emit, *told)

    @property
    def path(self) -> Path:
        return Path(self.writer.path)

    def _put(self, line: Line) -> None:
        self.writer.put(self.known.shorten(line))

    def _write_head(self) -> None:
        head, clock = self._head, self._clock
        line: Line = {"line": "run", "schema": SCHEMA, "run": head.run, "agent_name": head.agent}
        line |= {"time": clock.now(), "model": head.model, "settings": head.settings}
        if isinstance(clock, VirtualClock):
            line["virtual"] = {"start": clock.start, "elapsed": clock.elapsed()}
        line["messages"] = to_json(head.messages)
        if head.question is not None:
            line["question"] = to_json([head.question])[0]
        if head.resumed:
            line["goes_on"], line["state"] = True, head.state()
        self.known = Known(line)
        self.writer.put(line)
        self._put_decisions()

    def _write_resumed(self) -> None:
        head = self._head
        self._sent = ()
        line: Line = {"line": "resumed", "schema": SCHEMA, "time": self._clock.now(), "model": head.model}
        line["schedule"] = head.settings.get("schedule")
        self.known = Known({"run": head.run, "agent_name": head.agent, **line})
        self.writer.put(line)
        last = head.messages[-1] if head.messages else None
        if isinstance(last, Assistant) and len(last.calls) > 1:
            self._several[-1] = [call.name for call in last.calls]
        self._put_decisions()

    def _put_decisions(self) -> None:
        for id, decision in self._head.decisions.items():
            if isinstance(decision, ToolResult):
                self._put(self._line("result", call_id=id, key="", result=write_result(decision)))
            else:
                self._put(self._line("approval", call_id=id, **approval_fields(decision)))

    # What goes in

    def on_tools(self, turn: int, toolbox: Toolbox) -> None:
        self.turn = turn
        if toolbox is self._toolbox:
            return
        self._toolbox, self._specs = toolbox, toolbox.specs
        tools = tuple(toolbox)
        if not _are_same(tools, self._tools):
            self._tools = tools
            self._reads = {tool.name for tool in tools if tool.effect == "read"}
            self._put(self._line("tools", tools=[tool_fields(tool) for tool in tools]))

    async def ask_model(self, request: Request, call_next: Ask) -> AsyncIterator[Sequence[Delta]]:
        self.requested(request)
        if self.reserves:
            await self.writer.stored()
        response, fresh = PartialResponse(), True
        try:
            async with closing(call_next(request)) as batches:
                async for deltas in batches:
                    if fresh:
                        fresh = False
                        self._look_for_secrets()
                    self.received(deltas, response)
                    yield deltas
        except (Exception, SystemExit) as error:
            self._failed(error)
            raise
        except asyncio.CancelledError:
            self._closed(cancelled=True)
            raise
        else:
            self._closed()
        finally:
            self.writer.settle()

    def recorded(self, model: Model) -> Ask:
        """For requests to a model without an agent."""
        return partial(self.ask_model, call_next=model.stream)

    def requested(self, request: Request) -> None:
        try:
            self._put_request(request)
        except Exception as error:  # noqa: BLE001 - its reader reports what is wrong with it
            self._put(self._line("note", text=f"a request could not be written: {in_words(error)}"[:500]))

    def _put_request(self, request: Request) -> None:
        messages = request.messages
        system = messages[0] if messages and isinstance(messages[0], System) else None
        said = messages if system is None else messages[1:]
        keep = _alike(self._sent, said)
        history = self._head.history()
        if not _are_same(said, history):
            known = _alike(self._history, history)
            self._put(self._line("history", keep=known, messages=refer(history[known:], self._answer, self._given)))
            self._history = history
        line: Line = {"line": "request", "at": self.at(), "turn": self.turn, "keep": keep}
        line["messages"] = refer(said[keep:], self._answer, self._given)
        if system is not self._system:
            self._system, line["system"] = system, to_json([system])[0] if system is not None else None
        if not _are_same(request.tools, self._specs):
            line["tools"] = [spec_fields(spec) for spec in request.tools]
        self._sent, self._answer, self._given = said, None, {}
        line |= request_fields(request)
        line["state"] = self._head.state()
        self._put(line)

    def _look_for_secrets(self) -> None:
        """A key that a function returns is known only after the call, and may change with each request."""
        secrets = self._head.secrets()
        if secrets == self._looked_for:
            return
        self._looked_for = secrets
        self.cover(secrets)

    def cover(self, secrets: Iterable[str]) -> Redactor:
        """Masks these secrets too, from now on."""
        if not self._redactor.covers(secrets):
            self._redactor = Redactor((*self._redactor.given, *secrets))
            self.writer.hide(self._redactor)
        return self._redactor

    def received(self, deltas: Sequence[Delta], so_far: PartialResponse) -> None:
        """Deltas that arrived together have the same time."""
        at, turn = self.at(), self.turn
        texts: list[str] = []
        name = "text"
        for delta in deltas:
            kind = delta.__class__
            if isinstance(delta, _TEXTS):
                if texts and NAMES[kind] != name:
                    self._put_pieces(at, turn, name, texts, so_far)
                    texts = []
                name = NAMES[kind]
                texts.append(delta.text)
                continue
            if texts:
                self._put_pieces(at, turn, name, texts, so_far)
                texts = []
            if kind not in NAMES or (kind is CallArguments and self._redactor.secrets):
                continue  # a partial argument may be a partial secret; the complete call follows
            line: Line = {"line": "delta", "at": at, "turn": turn, "delta": NAMES[kind]}
            self._describe(delta, line, so_far)
            self._put(line)
            if isinstance(delta, CallReady):
                self.known.wrote(delta.call.id, delta.call.arguments)
        if texts:
            self._put_pieces(at, turn, name, texts, so_far)

    def _put_pieces(self, at: float, turn: int, name: str, texts: list[str], so_far: PartialResponse) -> None:
        (so_far.text if name == "text" else so_far.reasoning).extend(texts)
        self.known.turn = turn
        if self._redactor.secrets:  # what is masked may arrive in other pieces
            self.known.lose_count()
        else:
            self.known.streamed(name, texts)
        self.writer.put_pieces(at, turn, name, texts)

    def _describe(self, delta: Delta, line: Line, so_far: PartialResponse) -> None:
        """Fills in the line of a delta."""
        match delta:
            case CallOpened():
                line["index"], line["name"], line["id"] = delta.index, delta.name, delta.id
            case CallReady(call):
                if _HUGE.search(call.raw):
                    self.writer.exact = True
                so_far.calls[call.index] = call
                line["call"] = write_call(call)
            case Ended():
                self.writer.settle()
                self._answer = delta.message
                self._ended = True
                line |= ended_fields(delta, so_far)
            case _:
                if isinstance(delta, Restarted | AttemptFailed):
                    self.writer.settle()
                so_far.feed(delta)
                line |= delta_fields(delta)

    def _failed(self, error: BaseException) -> None:
        self._look_for_secrets()
        self.writer.settle()
        self._put(self._line("failed", **error_fields(error)))

    def _closed(self, cancelled: bool = False) -> None:
        """The stream of an answer was closed. This is an input of its own: what tools do in the same instant comes
        before or after it."""
        if cancelled:
            self._put(self._line("closed", cancelled=True))
        elif self._ended:
            self._put(self._line("closed"))
        self._ended = False

    async def call_tool(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
        changes = call.name not in self._reads
        self._used.pop(id(context), None)
        context.spend = partial(self._spend, id(context), context.spend)
        context.recorders += (self,)
        await self.before_run(call.name)
        try:
            result = await call_next(call, context)
        except (Exception, SystemExit) as error:
            self._keep_result(call, context, failure(call, in_words(error)))
            raise
        except asyncio.CancelledError:
            if context.began:
                self._keep_cancelled(call, call=context.number)
            raise
        except CallWaits as waits:
            inner: Line = {**waits_fields(waits), "inner_calls": context.inner_calls}
            self._put(self._line("waits", call_id=call.id, call=context.number, **inner, **self._usage_of(context)))
            raise
        self._keep_result(call, context, result)
        if changes:  # at once: whatever runs next in this turn of the loop may take long, or end the process
            self.writer.flush_soon()
        return result

    async def before_run(self, name: str) -> None:
        """The start of a call that may change something must be on record, and how middleware has changed it."""
        if name in self._reads:
            return
        if self.writer.urgent or self.writer.target.later:
            await self.writer.stored()
        if self.stops and self.writer.broken:
            raise stopped(self.writer.path, self.writer.reason, f"`{name}` did not start", RESUME)

    def _spend(self, context: int, spend: Callable[[Usage], None], usage: Usage) -> None:
        """Tokens that a call uses itself (an agent as a tool): they count for the run, and are noted on the way."""
        used = self._used.get(context)
        self._used[context] = usage if used is None else used + usage
        spend(usage)

    def _keep_result(self, call: ToolCall, context: CallContext[Any], result: ToolResult) -> None:
        try:
            saved = write_result(result)
        except Exception:  # noqa: BLE001 - a foreign `Caller` may return anything; its reader reports that
            return
        self._given[call.id] = result
        line: Line = {"line": "result", "at": self.at(), "turn": self.turn}
        line |= {"call_id": call.id, "call": context.number, "key": context.key, "result": saved}
        if context.inner_calls:
            line["inner_calls"] = context.inner_calls
        if context.host is not None and context.host.vetoed is not None:
            line["veto"] = str(context.host.vetoed)
        if self._used:
            line |= self._usage_of(context)
        self._put(line)

    def _usage_of(self, context: CallContext[Any]) -> Line:
        used = self._used.pop(id(context), None)
        if used is None:
            return {}
        known = {"cost": used.cost, "cache_saving": used.cache_saving}
        return {"usage": usage_fields(used)} | {name: value for name, value in known.items() if value is not None}

    def on_time_limit(self) -> None:
        self._put(self._line("time_up"))

    def _keep_cancelled(self, cancelled: ToolCall, **what: Any) -> None:
        """Not every tool ends at once when it is cancelled; and some raise the error although nobody cancelled them."""
        task = asyncio.current_task()
        if task is None or not task.cancelling():
            what["by_itself"] = True
        self._put(self._line("cancelled", call_id=cancelled.id, **what))

    def approver(self, on_approval: OnApproval | None) -> OnApproval | None:
        if on_approval is None:
            return None

        async def recorded(call: ToolCall) -> Approval:
            try:
                decision = await ask(on_approval, call)
            except asyncio.CancelledError:
                self._keep_cancelled(call, approval=True)
                raise
            if not call.agent:  # that of a call of an inner agent is recorded where the agent is
                self._put(self._line("approval", call_id=call.id, name=call.name, **approval_fields(decision)))
                self.writer.flush()
            return decision

        return recorded

    # What is said

    def on_event(self, event: Event) -> None:
        self.turn = event.turn
        kind, line = event.__class__, self.known.shorten_event(event)
        if kind is RunFinished:
            self._refer_to_history(line)
        elif kind in _BY_TOOLS:  # what a tool does is an input, and has its time
            line["at"] = self.at()
        self.writer.put(line)
        if kind is CallStarted or kind is CallChanged:
            self.writer.urgent = True
        elif kind in _STAGES:
            self._note_stage(event)

    def _refer_to_history(self, line: Line) -> None:
        """The history is in the requests: only what they do not have is written."""
        history = self._head.history()
        keep = _alike(self._sent, history)
        line["messages"], line["keep"] = refer(history[keep:], self._answer, self._given), keep

    def _note_stage(self, event: Event) -> None:
        match event:
            case ToolCallsDetected() if event.count > 1:
                self._several[event.turn] = event.names
                self._stage(event.names, "processing")
            case RoundFinished() if names := self._several.pop(event.turn, None) or self._several.pop(-1, None):
                self._stage(names, "failed" if event.failed == event.calls else "completed")
            case RunFailed():
                for names in self._several.values():
                    self._stage(names, "failed")
                self._several.clear()
            case _:
                pass

    def _stage(self, names: list[str], status: str) -> None:
        line: Line = {"line": "stage", "at": self.at(), "turn": self.turn, "stage": "multi_tool_call"}
        line |= {"agent_name": self._head.agent, "status": status, "tool_count": len(names), "tool_names": names}
        self._put(line)

    def end(self) -> None:
        self.writer.end()
        self.writer.on_broken = None  # breaks the reference cycle, which only the garbage collector would free

    def _line(self, kind: str, **fields: Any) -> Line:
        return {"line": kind, "at": self.at(), "turn": self.turn, **fields}

    def at(self) -> float:
        """Seconds since the beginning, in whole nanoseconds: `round` would take five times as long."""
        return int((self._elapsed() - self._began) * 1e9 + 0.5) / 1e9


WRITE_FIRST = "make the place writable and run it again"
RESUME = (
    "free disk space and resume the run, which reports results that did not reach the file as unknown; or continue "
    "with agent.run(history=error.messages), which has them"
)


def stopped(path: object, why: str, what: str, way_out: str) -> RecordingFailed:
    return RecordingFailed(
        f"recording to {path} failed ({why}), so {what}: unrecorded, a call could run twice after a crash; {way_out}; "
        f"or record with Recorder(…, on_failure='continue')"
    )


_STAGES = frozenset({ToolCallsDetected, RoundFinished, RunFailed})
_TEXTS = (TextDelta, ReasoningDelta)
_BY_TOOLS = frozenset(CAUSED_BY_TOOLS)
_HUGE = re.compile(r"\d[eE]\+?\d{3}")
"""Infinity."""


def _are_same(some: Sequence[object], others: Sequence[object]) -> bool:
    return some is others or (len(some) == len(others) and not any(map(is_not, some, others)))


def _alike(before: Sequence[Message], now: Sequence[Message]) -> int:
    """How many messages at the beginning are the same."""
    if not any(map(is_not, before, now)):
        return min(len(before), len(now))
    count = 0
    for one, other in zip(before, now, strict=False):
        if one is not other:
            break
        count += 1
    return count
