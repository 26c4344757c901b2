"""Screens for output that is not a terminal: either the answer alone on standard output and progress on standard error,
or every event as a line of JSON."""

from __future__ import annotations

from typing import IO

from unbroken.events import (
    AgentChanged,
    ApprovalAsked,
    CallBackgrounded,
    CallDropped,
    CallFinished,
    CallProgress,
    CallsIgnored,
    CallStarted,
    Checked,
    Compacted,
    Event,
    InnerEvent,
    LimitReached,
    RecordingIncomplete,
    RequestRetried,
    RunChanged,
    RunFailed,
    RunFinished,
    RunStarted,
    ServerCallFinished,
    TextAdded,
    TextFinished,
    TodoUpdated,
    ToolLate,
    event_to_json,
)
from unbroken.run_view import RunView
from unbroken.tools.approval import Approval, Deny
from unbroken.trajectory.inner_runs import describe_step
from unbroken_cli.approval_prompt import NOBODY_ASKED, approval_text, call_of
from unbroken_cli.progress_line import current
from unbroken_cli.terminal_text import (
    MAY_HAVE_RUN,
    clean,
    closing,
    compacted,
    in_brackets,
    one_line,
    retrying,
    seconds,
    visible,
)
from unbroken_wires.messages import Outcome, ToolCall
from unbroken_wires.wires.jsontext import dumps

OUTCOMES: dict[Outcome, str] = {
    "done": "done",
    "cached": "cached",
    "failed": "failed",
    "retry": "retry",
    "timed_out": "failed",
    "cancelled": "cancelled",
    "not_executed": "not run",
    "unknown": "unknown",
    "running": "running",
}
MARKS = {"pending": "[ ]", "in_progress": "[>]", "completed": "[x]"}


class QuietScreen:
    """What a screen without questions does: a line for people, and no to every approval."""

    can_ask = False

    def __init__(self, out: IO[str], err: IO[str]) -> None:
        self._out = out
        self._err = err

    def ask(self, call: ToolCall) -> Approval:
        return Deny(NOBODY_ASKED)

    def line(self, text: str) -> None:
        err = current(self._err)
        err.write(f"{clean(text)}\n")
        err.flush()

    def close(self) -> None:
        pass


class PlainScreen(QuietScreen):
    def __init__(self, out: IO[str], err: IO[str]) -> None:
        super().__init__(out, err)
        self._view = RunView()

    def show(self, event: Event) -> None:
        self._view.feed(event)
        match event:
            case TextAdded():
                pass  # it is shown when the response is complete
            case RunStarted():
                self._view = RunView()
            case RequestRetried():
                self._say("retry", retrying(event))
            case TextFinished(text=text, final=False):
                self._say("thought", one_line(text))
            case CallStarted(name=name, arguments=arguments):
                self._say("call", f"{visible(name)}{in_brackets(arguments, 200)}")
            case CallProgress(name=name, message=message):
                self._say("progress", f"{visible(name)}: {one_line(message)}")
            case CallDropped(name=name, reason=reason):
                if self._view.by_number[event.call].started is not None:
                    self._say("dropped", f"{visible(name)}: {one_line(reason)}")
            case CallBackgrounded(name=name, handle=handle):
                self._say("background", f"{visible(name)} continues as {visible(handle)}")
            case CallFinished():
                self._say(
                    self._outcome(event), f"{visible(event.name)} {seconds(event.seconds)}: {one_line(event.text)}"
                )
            case ServerCallFinished(name=name, arguments=arguments):
                failed = f": {one_line(event.error)}" if event.error else ""
                self._say("provider", f"{visible(name)}{in_brackets(arguments or {}, 200)} {event.outcome}{failed}")
            case ApprovalAsked(name=name, arguments=arguments, uncertain=True):
                self._say("uncertain", f"{visible(name)}{in_brackets(arguments, 200)} {MAY_HAVE_RUN}")
            case ApprovalAsked(name=name, arguments=arguments):
                self._say("approval", f"{one_line(name)} needs an approval (--yes approves all calls)")
                self._show_call(ToolCall("", name, arguments))
            case TodoUpdated(todos=todos):
                steps = [f"{MARKS.get(str(todo.get('status')), '[ ]')} {todo.get('content', '')}" for todo in todos]
                self._say("todo", one_line("; ".join(steps), 400))
            case InnerEvent():
                if (step := describe_step(event)) is not None and isinstance(event.event, TextFinished | InnerEvent):
                    self._say("agent", f"{visible(step[0])}: {one_line(step[1])}")
            case AgentChanged(agent=agent):
                self._say("agent", f"{one_line(agent)} takes over")
            case CallsIgnored(names=names):
                self._say("ignored", visible(", ".join(names)))
            case LimitReached(kind=kind, limit=limit):
                self._say("limit", f"{kind} ({limit:g})")
            case RecordingIncomplete(path=path, reason=reason):
                self._say("recording", f"{clean(path)} is incomplete from here on: {one_line(reason)}")
            case Checked(value=value, outcome=outcome, text=text):
                self._say("check", f"{value}, {outcome}: {one_line(text, 400)}")
            case Compacted():
                self._say("compaction", compacted(event))
            case RunChanged(changes=changes):
                self._say("changed", one_line("; ".join(changes), 400))
            case ToolLate(name=name):
                self._say("late", f"{visible(name)} is still running after its time-out")
            case RunFinished():
                if event.text:
                    self._out.write(f"{clean(event.text)}\n")
                    self._out.flush()
                for call in event.pending:
                    self._say("waiting", one_line(f"{call.get('name')} (id {call.get('id')})"))
                    self._show_call(call_of(call))
                self._say("end", closing(event))
            case RunFailed():
                if text := "".join([turn.text for turn in self._view.turns[-1:]]):
                    self._say("text so far", one_line(text, 2000))
            case _:
                pass

    def _outcome(self, event: CallFinished) -> str:
        if event.duplicate_of:
            return "shared"
        reused = event.outcome == "done" and self._view.by_number[event.call].took_over
        return "reused" if reused else OUTCOMES[event.outcome]

    def _say(self, what: str, text: str) -> None:
        self.line(f"{what}: {text}")

    def _show_call(self, call: ToolCall) -> None:
        for row in approval_text(call):
            self.line(row)


class JsonScreen(QuietScreen):
    def show(self, event: Event) -> None:
        self._out.write(f"{dumps(event_to_json(event)).decode()}\n")
        self._out.flush()
