"""Records runs: one file of JSON Lines for each, written as it happens, readable to its last whole line after a kill.

What goes into a run is recorded where it goes in: requests and deltas at the model, starts and results at the tools,
decisions where they are made; what it says is recorded as its events. `lines` has the schema. A recorder never breaks a
run: what it cannot write it says once in the log, and the run goes on without it.

Lines are written a few at a time, at the latest after a twentieth of a second. What must not be lost is written at
once: that a tool begins which changes something, and what it gave.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Iterable
from itertools import count
from operator import is_not
from pathlib import Path
from typing import Any, ClassVar, cast

from unbroken.clock import VirtualClock
from unbroken.deadlines import deadline
from unbroken.deltas import AttemptFailed, Delta, Ended, ReasoningDelta, Received, Restarted, TextDelta
from unbroken.errors import UserError
from unbroken.events import NAMES as EVENT_NAMES
from unbroken.events import (
    Event,
    RoundFinished,
    RunFailed,
    RunFinished,
    ToolCallsDetected,
    event_to_json,
)
from unbroken.messages import Assistant, Message, Request, System, ToolCall, ToolResult
from unbroken.models.model import Model, closing
from unbroken.tools.approval import Approval, OnApproval, ask
from unbroken.tools.calling import Caller, failure, in_words
from unbroken.tools.context import CallContext
from unbroken.tools.tool import Tool
from unbroken.tools.toolbox import Toolbox
from unbroken.trajectory.companion import Companion, RunHead
from unbroken.trajectory.hiding import Hiding, Stream, secrets_in_environment
from unbroken.trajectory.lines import (
    CAUSED_BY_TOOLS,
    NAMES,
    SCHEMA,
    Hearing,
    Line,
    approval_fields,
    encode,
    ended_fields,
    error_fields,
    plain,
    request_fields,
    spec_fields,
    tool_fields,
)
from unbroken.trajectory.recording import SUFFIX, run_of
from unbroken.transcript import to_json
from unbroken.transcript.saved import write_result

LOG = logging.getLogger("unbroken.trajectory")

DELAY = 0.05
"""Seconds after which a line is in the file at the latest."""


class Recorder:
    """`path` is a folder, where each run gets a file of its own, or the name of a file (`….jsonl`), for one run.

    Give it to an agent as one of its `sinks`, or say `record=` there. Keys that models were connected with, and the
    values of variables that are named like one (`…_KEY`, `…_TOKEN`, `…_SECRET`, `…_PASSWORD`), are masked, and so is
    all that `secrets` lists.
    """

    def __init__(self, path: str | os.PathLike[str], *, secrets: Iterable[str] = ()) -> None:
        self.path = _path(path)
        given = (secrets,) if isinstance(secrets, str) else tuple(secrets)
        self._secrets = frozenset((*given, *secrets_in_environment()))
        self._hiding = Hiding(self._secrets)
        try:
            self._one_file = self.path.suffix == SUFFIX and not self.path.is_dir()
            self._folder = self.path.parent if self._one_file else self.path
            self._folder.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            raise _unwritable(self.path, error) from None

    def __repr__(self) -> str:
        return f"Recorder({str(self.path)!r})"

    def __call__(self, event: Event) -> None:
        """Events alone make no recording: an agent asks for a companion at the start of each run (`accompany`)."""

    def accompany(self, head: RunHead) -> RunRecorder:
        if not self._hiding.covers(head.secrets()):
            self._hiding = Hiding((*self._hiding.given, *head.secrets()))
        try:
            path, file = self._open(head)
        except OSError as error:
            raise _unwritable(self.path, error) from None
        return RunRecorder(path, file, head, self._hiding)

    def _open(self, head: RunHead) -> tuple[str, int]:
        """The file of the run: one that goes on, or a new one."""
        if self._one_file:
            path = str(self.path)
            if not self.path.exists():
                return path, self._create(path)
            if not (head.goes_on and run_of(self.path) == head.run):
                raise UserError(f"{path} is there already, and is of another run: name another file, or a folder")
            return path, os.open(path, _FLAGS)
        name = _ODD.sub("_", head.run)[:80] or "run"
        if head.goes_on:
            begun = [file for file in self.path.glob(f"*{name}*{SUFFIX}") if run_of(file) == head.run]
            if begun:
                path = str(max(begun, key=lambda file: file.name))
                return path, os.open(path, _FLAGS)
        at = time.strftime("%Y%m%d-%H%M%S", time.gmtime(head.clock.now()))
        stem = f"{self._folder}{os.sep}{at}-{name}"
        for number in count(2):
            path = f"{stem}{SUFFIX}"
            try:
                return path, self._create(path)
            except FileExistsError:
                stem = f"{self._folder}{os.sep}{at}-{name}-{number}"
        raise AssertionError("there is no end of numbers")

    def _create(self, path: str) -> int:
        try:
            return os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
        except FileNotFoundError:  # the folder was there when the recorder was made
            self._folder.mkdir(parents=True, exist_ok=True)
            return os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)


class RunRecorder(Companion):
    """The recording of one run."""

    hears_deltas: ClassVar[bool] = True

    def __init__(self, path: str, file: int, head: RunHead, hiding: Hiding) -> None:
        """`file` is open, and is closed at the end."""
        self._path = path
        self.broken = False
        """It could not be written to its end."""
        self._head = head
        self._clock = head.clock
        self._elapsed = head.clock.elapsed
        self._began = head.clock.elapsed()
        self.turn = 0
        """The number of the request that is asked now."""
        self._hiding = hiding
        self._streams: dict[type[Any], Stream] = {}
        self._lines: list[bytes] = []
        self._flushing = False
        self._system: System | None = None
        self._sent: tuple[Message, ...] = head.messages
        """Without the system's message, which stands beside them."""
        self._tools: tuple[Tool, ...] = ()
        self._reads: set[str] = set()
        self._several: dict[int, list[str]] = {}
        """The names of several calls in one answer that have not ended, by their turn."""
        self._fd = file
        if head.goes_on and os.fstat(self._fd).st_size:
            self._write_resumed()
        else:
            self._write_head()
        self._flush()

    @property
    def path(self) -> Path:
        return Path(self._path)

    def _write_head(self) -> None:
        head, clock = self._head, self._clock
        line: Line = {"line": "run", "schema": SCHEMA, "run": head.run, "agent_name": head.agent}
        line |= {"time": clock.now(), "model": head.model, "settings": head.settings}
        if isinstance(clock, VirtualClock):
            line["virtual"] = {"start": clock.start, "elapsed": clock.elapsed()}
        line["messages"] = to_json(head.messages)
        if head.question is not None:
            line["question"] = to_json([head.question])[0]
        if head.goes_on:
            line["goes_on"] = True
        self._put(line)

    def _write_resumed(self) -> None:
        head = self._head
        self._sent = ()
        size = os.fstat(self._fd).st_size
        if os.pread(self._fd, 1, size - 1) != b"\n":  # whoever wrote it was killed
            self._lines.append(b"")
        self._put({"line": "resumed", "time": self._clock.now(), "model": head.model})
        last = head.messages[-1] if head.messages else None
        if isinstance(last, Assistant) and len(last.calls) > 1:
            self._several[-1] = [call.name for call in last.calls]
        for id, decision in head.decisions.items():
            if isinstance(decision, ToolResult):
                self._put(self._line("result", call_id=id, key="", result=write_result(decision)))
            else:
                self._put(self._line("approval", call_id=id, **approval_fields(decision)))

    # What goes in

    def offered(self, turn: int, toolbox: Toolbox) -> None:
        self.turn = turn
        tools = tuple(toolbox)
        if len(tools) != len(self._tools) or any(map(is_not, tools, self._tools)):
            self._tools = tools
            self._reads = {tool.name for tool in tools if tool.effect == "read"}
            self._put(self._line("tools", tools=[tool_fields(tool) for tool in tools]))

    def model(self, model: Model) -> Model:
        return _Recorded(model, self)

    def requested(self, request: Request) -> None:
        try:
            self._put_request(request)
        except Exception as error:  # noqa: BLE001 - whatever stands in it, whoever is asked will say what is wrong
            self._put(self._line("note", text=f"a request could not be written: {in_words(error)}"[:500]))

    def _put_request(self, request: Request) -> None:
        if not self._hiding.covers(self._head.secrets()):  # a key that a function gives may change
            self._hiding = Hiding((*self._hiding.given, *self._head.secrets()))
        messages = request.messages
        system = messages[0] if messages and isinstance(messages[0], System) else None
        said = messages if system is None else messages[1:]
        keep = 0
        for before, now in zip(self._sent, said, strict=False):
            if before is not now:
                break
            keep += 1
        history = self._head.history()
        if len(said) != len(history) or any(map(is_not, said, history)):
            self._put(self._line("history", messages=to_json(history)))
        line = self._line("request", keep=keep, messages=to_json(said[keep:]))
        if system is not self._system:
            self._system, line["system"] = system, to_json([system])[0] if system is not None else None
        if len(request.tools) != len(self._tools) or any(
            spec is not tool.spec for spec, tool in zip(request.tools, self._tools, strict=True)
        ):
            line["tools"] = [spec_fields(spec) for spec in request.tools]
        self._sent = said
        self._streams = {}
        self._put(line | request_fields(request) | {"state": self._head.state()})

    def received(self, delta: Delta, hearing: Hearing) -> None:
        kind = delta.__class__
        if kind is TextDelta or kind is ReasoningDelta:
            text = cast("TextDelta", delta).text
            (hearing.text if kind is TextDelta else hearing.reasoning).append(text)
            if self._hiding.secrets:
                text = self._shown(kind, text)
                delta = TextDelta(text)
        elif kind is Received:
            return
        else:
            if self._streams and kind in _BREAKS:
                self._show_the_rest()
            hearing.feed(delta)
            if kind is Ended:
                ended = cast("Ended", delta)
                self._put({**self._line("delta", delta="ended"), **ended_fields(ended, hearing.message)})
                return
        self._put_delta(kind, delta)

    def _put_delta(self, kind: type[Any], delta: Delta, more: bytes = b"") -> None:
        """Deltas are as they stand in the file: nothing has to be made of them first."""
        at = round(self._elapsed() - self._began, 9)
        self._lines.append(
            b'{"line":"delta","at":%r,"turn":%d,%b%b' % (at, self.turn, _DELTAS[kind] + more, plain(delta)[1:])
        )
        if not self._flushing:
            self._flush_soon()

    def _shown(self, kind: type[Any], text: str) -> str:
        stream = self._streams.get(kind)
        if stream is None:
            stream = self._streams[kind] = Stream(self._hiding)
        return stream.feed(text)

    def _show_the_rest(self) -> None:
        """What was held back of a stream because it might have become a secret."""
        for kind, stream in self._streams.items():
            if rest := stream.end():
                self._put_delta(kind, TextDelta(rest), b'"held":true,')

    def failed(self, error: BaseException) -> None:
        self._show_the_rest()
        self._put(self._line("failed", **error_fields(error)))

    def left(self) -> None:
        """Nobody reads the answer any more."""
        self._show_the_rest()

    def caller(self, caller: Caller) -> Caller:
        async def recorded(call: ToolCall, context: CallContext[Any]) -> ToolResult:
            changes = call.name not in self._reads
            if changes:  # by now it is said that it starts: that must be known, if it is never heard of again
                self._flush()
            try:
                result = await caller(call, context)
            except Exception as error:
                self._keep_result(call, context, failure(call, in_words(error)))
                raise
            self._keep_result(call, context, result)
            if changes:
                self._flush()
            return result

        return recorded

    def _keep_result(self, call: ToolCall, context: CallContext[Any], result: ToolResult) -> None:
        try:
            saved = write_result(result)
        except Exception:  # noqa: BLE001 - a foreign `Caller` may give anything; whoever gets it will say so
            return
        self._put(self._line("result", call_id=call.id, key=context.key, result=saved))

    def approval(self, on_approval: OnApproval | None) -> OnApproval | None:
        if on_approval is None:
            return None

        async def recorded(call: ToolCall) -> Approval:
            decision = await ask(on_approval, call)
            self._put(self._line("approval", call_id=call.id, name=call.name, **approval_fields(decision)))
            self._flush()
            return decision

        return recorded

    # What is said

    def __call__(self, event: Event) -> None:
        self.turn = event.turn
        kind = event.__class__
        if kind is RunFinished:
            self._put(self._finished_line(cast("RunFinished", event)))
        elif kind in CAUSED_BY_TOOLS:  # what a tool does has its time in the count of what goes in
            self._put({**self._line("event"), **event_to_json(event)})
        else:
            self._put_event(event)
        if kind in _STAGES:
            self._note_stage(event)

    def _put_event(self, event: Event) -> None:
        self._lines.append(_EVENTS[event.__class__] + plain(event)[1:])
        if not self._flushing:
            self._flush_soon()

    def _finished_line(self, event: RunFinished) -> Line:
        """The history stands in the requests: only what they had not is written once more."""
        history, keep = self._head.history(), 0
        for before, now in zip(self._sent, history, strict=False):
            if before is not now:
                break
            keep += 1
        return {"line": "event", **event_to_json(event), "messages": to_json(history[keep:]), "keep": keep}

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
        what = {"stage": "multi_tool_call", "agent_name": self._head.agent, "status": status}
        self._put(self._line("stage", **what, tool_count=len(names), tool_names=names))

    # Writing

    def end(self) -> None:
        self._flush()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _line(self, kind: str, **fields: Any) -> Line:
        return {"line": kind, "at": round(self._elapsed() - self._began, 9), "turn": self.turn, **fields}

    def _put(self, line: Line) -> None:
        try:
            data = encode(line)
        except Exception as error:  # noqa: BLE001 - a user's value that is no JSON
            what = f"a line `{line['line']}` could not be written: {error}"
            data = encode({"line": "note", "text": what[:500]})
        self._lines.append(data)
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            deadline(asyncio.get_running_loop(), DELAY, self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if not self._lines:
            return
        lines, self._lines = self._lines, []
        if self.broken or self._fd < 0:
            return
        data = self._hiding.lines(lines)
        try:
            while data:  # at once, unless the disk is full
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            self.broken = True
            LOG.warning("the recording %s is not written any more: %s", self._path, error.strerror or error)


_STAGES = (ToolCallsDetected, RoundFinished, RunFailed)
_BREAKS = (Ended, Restarted, AttemptFailed)
_EVENTS = {kind: b'{"line":"event","event":"%s",' % name.encode() for kind, name in EVENT_NAMES.items()}
_DELTAS = {kind: b'"delta":"%s",' % name.encode() for kind, name in NAMES.items()}
_FLAGS = os.O_RDWR | os.O_APPEND | getattr(os, "O_BINARY", 0)
_ODD = re.compile(r"[^\w.-]")


class _Recorded:
    """A model whose requests and answers are recorded."""

    def __init__(self, model: Model, recorder: RunRecorder) -> None:
        self._model = model
        self._recorder = recorder

    @property
    def name(self) -> str:
        return self._model.name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        recorder, hearing = self._recorder, Hearing()
        recorder.requested(request)
        received = recorder.received
        try:
            async with closing(self._model.stream(request)) as deltas:
                async for delta in deltas:
                    received(delta, hearing)
                    yield delta
        except Exception as error:
            recorder.failed(error)
            raise
        finally:
            recorder.left()


def _path(path: object) -> Path:
    if not path or not isinstance(path, str | os.PathLike):
        raise UserError(f"record={path!r} is no path: give the name of a folder, or of a file that ends in {SUFFIX}")
    return Path(cast("str", path)).expanduser()


def _unwritable(path: Path, error: Exception) -> UserError:
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return UserError(f"recording to {path} failed: {why}; name another place")
