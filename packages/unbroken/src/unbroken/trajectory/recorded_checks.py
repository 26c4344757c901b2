"""What the checks of a recorded run decided: about its prompt, its calls and its outputs. A replay repeats it."""

from __future__ import annotations

from unbroken.errors import PromptVetoed, UnbrokenError, UserError, Vetoed, named
from unbroken.events import Checked, RequestSent, RunFailed
from unbroken.tools.caller import NOT_EXECUTED
from unbroken.tools.entry import EARLIER_FAILED
from unbroken.tools.results import Retry
from unbroken.trajectory.recording import Recording
from unbroken_wires.messages import ToolCall


class RecordedChecks:
    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._decided: dict[tuple[str, int], list[Checked]] = {}
        """By what was checked and by turn."""
        asked = False
        for event in recording.events:
            asked = asked or isinstance(event, RequestSent)
            if isinstance(event, Checked):
                late = asked and event.value == "input"  # decided by a check beside the model
                self._decided.setdefault(("late input" if late else event.value, event.turn), []).append(event)

    def next(self, value: str, turn: int) -> Checked | None:
        """How the prompt, or an output of this turn, was replaced. Raises what its check raised."""
        checks = self._decided.get((value, turn))
        event = checks.pop(0) if checks else None
        if event is None or event.outcome == "replaced":
            return event
        if event.outcome == "failed":
            raise self._error(event.text)
        raise Retry(event.text) if event.outcome == "retry" else Vetoed(event.text)

    def raise_late(self, turn: int) -> None:
        """Raises what a check of the prompt decided beside the model."""
        if late := self._decided.get(("late input", turn)):
            raise PromptVetoed(late[0].text)

    def vetoes(self, turn: int) -> list[Checked]:
        """What checks of calls decided in this turn. It is returned once."""
        return self._decided.pop(("call", turn), [])

    def refusal(self, call: ToolCall, turn: int) -> str:
        """Why a check did not let this call be given to the client; empty if it did."""
        for line in self._recording.lines:
            match line:
                case {"line": "time_up", "turn": at} if at == turn:
                    return ""  # what was not executed after that was not refused by a check
                case {"event": "call_finished", "turn": at, "call_id": id} if (at, id) == (turn, call.id):
                    reason = line["text"].removeprefix(f"Error: {NOT_EXECUTED}: ")
                    return reason if line["outcome"] == "not_executed" and reason != EARLIER_FAILED else ""
                case _:
                    pass
        return ""

    def _error(self, text: str) -> UnbrokenError:
        """The error that ended the run."""
        ending = self._recording.ending
        kind = named(ending.error) if isinstance(ending, RunFailed) else None
        return (kind or UserError)(text)
