"""Records runs: one file of JSON Lines for each, written as it happens, readable to its last whole line after a kill.

What goes into a run is recorded where it goes in: requests and deltas at the model, starts and results at the tools,
decisions where they are made; what it says is recorded as its events. `lines` has the schema. A recorder never breaks a
run: what it cannot write it says once in the log, and the run goes on without it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from unbroken.clock import VirtualClock
from unbroken.deltas import Delta, Ended, ReasoningDelta, TextDelta
from unbroken.errors import UserError
from unbroken.events import (
    CallFinished,
    CallStarted,
    Event,
    ReasoningAdded,
    RoundFinished,
    RunFailed,
    RunFinished,
    TextAdded,
    ToolCallsDetected,
    event_to_json,
)
from unbroken.messages import Message, Request, System, ToolCall, ToolResult, ToolSpec
from unbroken.models.masking import Masker, Passage
from unbroken.models.model import Model, closing
from unbroken.tools.approval import Approval, OnApproval, ask
from unbroken.tools.calling import Caller, failure, in_words
from unbroken.tools.context import CallContext
from unbroken.tools.tool import Tool
from unbroken.tools.toolbox import Toolbox
from unbroken.trajectory.companion import Companion, RunHead
from unbroken.trajectory.lines import (
    NAMES,
    SCHEMA,
    Hearing,
    Line,
    approval_fields,
    delta_fields,
    encode,
    error_fields,
    request_fields,
    spec_fields,
    tool_fields,
)
from unbroken.transcript import to_json
from unbroken.transcript.saved import write_result

LOG = logging.getLogger("unbroken.trajectory")

SUFFIX = ".jsonl"
_SECRET_NAME = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$")
_SHORTEST_SECRET = 8


class Recorder:
    """`path` is a folder, where each run gets a file of its own, or the name of a file (`….jsonl`), for one run.

    Give it to an agent as one of its `sinks`, or say `record=` there. Keys that models were connected with, and the
    values of variables that are named like one (`…_KEY`, `…_TOKEN`, `…_SECRET`, `…_PASSWORD`), are masked, and so is
    all that `secrets` lists.
    """

    def __init__(self, path: str | os.PathLike[str], *, secrets: Iterable[str] = ()) -> None:
        self.path = _path(path)
        self._one_file = self.path.suffix == SUFFIX and not self.path.is_dir()
        self._secrets = tuple(secrets)
        folder = self.path.parent if self._one_file else self.path
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"recording to {self.path} failed: {error.strerror or error}; name another folder"
            ) from None

    def __repr__(self) -> str:
        return f"Recorder({str(self.path)!r})"

    def __call__(self, event: Event) -> None:
        """Events alone make no recording: an agent asks for a companion at the start of each run (`accompany`)."""

    def accompany(self, head: RunHead) -> RunRecorder:
        return RunRecorder(self._file(head), head, self._secrets)

    def _file(self, head: RunHead) -> Path:
        if self._one_file:
            if self.path.exists() and not head.goes_on:
                raise UserError(f"{self.path} is a recording already: name another file, or a folder for many")
            return self.path
        name = re.sub(r"[^\w.-]", "_", head.run)[:80] or "run"
        if head.goes_on and (before := sorted(self.path.glob(f"*-{name}{SUFFIX}"))):
            return before[-1]
        at = datetime.fromtimestamp(head.clock.now(), UTC).strftime("%Y%m%d-%H%M%S")
        return _unused(self.path / f"{at}-{name}{SUFFIX}")


class RunRecorder(Companion):
    """The recording of one run."""

    def __init__(self, path: Path, head: RunHead, secrets: Iterable[str] = ()) -> None:
        self.path = path
        self._head = head
        self._clock = head.clock
        self._began = head.clock.elapsed()
        self._turn = 0
        self._secrets = {*secrets, *_in_environment()}
        self._masker = Masker(self._secrets)
        self._passages: dict[type[Any], Passage] = {}
        self._shown = ""
        """What was written of the last text: an event that says the same is written the same."""
        self._lines: list[bytes] = []
        self._flushing = False
        self._broken = False
        self._sent: tuple[Message, ...] = ()
        self._sent_json: list[Line] = []
        self._specs: tuple[ToolSpec, ...] = ()
        self._offered: tuple[Tool, ...] = ()
        self._several: dict[int, ToolCallsDetected] = {}
        """Answers with several calls that have not ended, by their turn."""
        self._loop = asyncio.get_running_loop()
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
        except OSError as error:
            raise UserError(f"recording to {path} failed: {error.strerror or error}; name another place") from None
        self._write_head()

    def _write_head(self) -> None:
        head, clock = self._head, self._clock
        size = os.fstat(self._fd).st_size
        if head.goes_on and size:
            last = _last_byte(self.path)
            self._put({"line": "resumed", "time": clock.now(), "model": head.model}, b"" if last == b"\n" else b"\n")
        else:
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
        self._flush()

    # What goes in

    def offered(self, turn: int, toolbox: Toolbox) -> None:
        self._turn = turn
        tools = tuple(toolbox)
        if tools != self._offered:
            self._offered = tools
            self._put(self._line("tools", tools=[tool_fields(tool) for tool in tools]))

    def model(self, model: Model) -> Model:
        known: Iterable[str] = getattr(model, "secrets", ())
        if not self._secrets.issuperset(known):
            self._secrets.update(known)
            self._masker = Masker(self._secrets)
        return _Recorded(model, self)

    def requested(self, request: Request) -> None:
        messages, keep = request.messages, 0
        for before, now in zip(self._sent, messages, strict=False):
            if before is not now:
                break
            keep += 1
        new = to_json(messages[keep:])
        self._sent, self._sent_json = messages, [*self._sent_json[:keep], *new]
        self._passages = {kind: Passage(self._masker) for kind in (TextDelta, ReasoningDelta)}
        line = self._line("request", keep=keep, messages=new)
        if request.tools != self._specs:
            self._specs = request.tools
            line["tools"] = [spec_fields(spec) for spec in request.tools]
        self._put(line | request_fields(request))
        self._flush()

    def received(self, delta: Delta, hearing: Hearing) -> None:
        kind = delta.__class__
        if kind is TextDelta or kind is ReasoningDelta:
            text = self._shown = self._masked(kind, cast("TextDelta", delta).text)
            fields: Line | None = {"text": text}
        else:
            fields = delta_fields(delta, hearing.message if kind is Ended else None)
            if fields is None:
                return
        at = round(self._clock.elapsed() - self._began, 9)
        self._put({"line": "delta", "at": at, "turn": self._turn, "delta": NAMES[kind], **fields})

    def _masked(self, kind: type[Any], text: str) -> str:
        """What may be shown of it. A secret that comes in pieces is held back until it is whole, and masked."""
        if not self._masker.secrets:
            return text
        return self._passages[kind].feed(text.encode("utf-8", "surrogatepass")).decode("utf-8", "replace")

    def failed(self, error: BaseException) -> None:
        self._put(self._line("failed", **error_fields(error)))
        self._flush()

    def caller(self, caller: Caller) -> Caller:
        async def recorded(call: ToolCall, context: CallContext[Any]) -> ToolResult:
            key = context.key
            self._put(self._line("started", call_id=call.id, name=call.name, key=key, attempt=context.attempt))
            self._flush()
            try:
                result = await caller(call, context)
            except Exception as error:
                self._keep_result(call, key, failure(call, in_words(error)))
                raise
            self._keep_result(call, key, result)
            return result

        return recorded

    def _keep_result(self, call: ToolCall, key: str, result: ToolResult) -> None:
        try:
            saved = write_result(result)
        except Exception:  # noqa: BLE001 - a foreign `Caller` may give anything; whoever gets it will say so
            return
        self._put(self._line("result", call_id=call.id, key=key, result=saved))
        self._flush()

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
        kind = type(event)
        self._turn = event.turn
        if kind is RunFinished:
            self._put(self._finished_line(cast("RunFinished", event)))
        else:
            line: Line = {"line": "event", **event_to_json(event)}
            if self._masker.secrets and (kind is TextAdded or kind is ReasoningAdded):
                line["text"] = self._shown
            self._put(line)
        self._note_stage(event)
        if kind in _URGENT:
            self._flush()

    def _finished_line(self, event: RunFinished) -> Line:
        """The history stands in the requests: only what they had not is written once more."""
        saved = event_to_json(event)
        messages = event.messages
        sent = self._sent_json[1:] if self._sent and isinstance(self._sent[0], System) else self._sent_json
        keep = 0
        for before, now in zip(sent, messages, strict=False):
            if before != now:
                break
            keep += 1
        return {"line": "event", **saved, "messages": messages[keep:], "keep": keep}

    def _note_stage(self, event: Event) -> None:
        match event:
            case ToolCallsDetected() if event.count > 1:
                self._several[event.turn] = event
                self._stage(event, "processing")
            case RoundFinished() if (calls := self._several.pop(event.turn, None)) is not None:
                self._stage(calls, "failed" if event.failed == event.calls else "completed")
            case RunFinished() | RunFailed():
                for calls in self._several.values():
                    self._stage(calls, "processing" if isinstance(event, RunFinished) else "failed")
                self._several.clear()
            case _:
                pass

    def _stage(self, calls: ToolCallsDetected, status: str) -> None:
        names = {"stage": "multi_tool_call", "agent_name": self._head.agent, "status": status}
        self._put(self._line("stage", **names, tool_count=calls.count, tool_names=calls.names) | {"turn": calls.turn})

    # Writing

    def end(self) -> None:
        self._flush()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._broken = True

    def _line(self, kind: str, **fields: Any) -> Line:
        return {"line": kind, "at": round(self._clock.elapsed() - self._began, 9), "turn": self._turn, **fields}

    def _put(self, line: Line, before: bytes = b"") -> None:
        try:
            data = encode(line)
        except Exception as error:  # noqa: BLE001 - a user's value that is no JSON
            what = f"a line `{line['line']}` could not be written: {error}"
            data = encode({"line": "note", "text": what[:500]})
        self._lines.append(before + self._masker.mask(data))
        self._flush_soon()

    def _flush_soon(self) -> None:
        """All that comes in one go is written in one go."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if not self._lines:
            return
        data = b"\n".join(self._lines) + b"\n"
        self._lines.clear()
        if self._broken:
            return
        try:
            while data:  # at once, unless the disk is full
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            self._broken = True
            LOG.warning("the recording %s is not written any more: %s", self.path, error.strerror or error)


_URGENT = (CallStarted, CallFinished, RunFinished, RunFailed)


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
        received, feed = recorder.received, hearing.feed
        try:
            async with closing(self._model.stream(request)) as deltas:
                async for delta in deltas:
                    received(delta, hearing)
                    feed(delta)
                    yield delta
        except Exception as error:
            recorder.failed(error)
            raise


def _path(path: object) -> Path:
    if not path or not isinstance(path, str | os.PathLike):
        raise UserError(f"record={path!r} is no path: give the name of a folder, or of a file that ends in {SUFFIX}")
    return Path(path).expanduser()  # pyright: ignore[reportUnknownArgumentType]


def _unused(path: Path) -> Path:
    number = 2
    unused = path
    while unused.exists():
        unused = path.with_stem(f"{path.stem}-{number}")
        number += 1
    return unused


def _last_byte(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1)


def _in_environment() -> Iterable[str]:
    for name, value in os.environ.items():
        if _SECRET_NAME.search(name.upper()) and len(value) >= _SHORTEST_SECRET:
            yield value
