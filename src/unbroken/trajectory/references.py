"""What a line says in one word, because other lines have said it: a message that was heard, a result that was given.

The history grows by what the model said and what the tools gave. Both stand in the recording when the next request is
written, so the request only refers to them, and whoever reads it gets them back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from unbroken.deltas import Ended
from unbroken.messages import Assistant, Message, ToolMessage, ToolResult
from unbroken.trajectory.lines import Hearing, Line, read_delta
from unbroken.transcript import to_json
from unbroken.transcript.saved import write_result


def refer(messages: Sequence[Message], answer: Assistant | None, given: Mapping[str, ToolResult]) -> list[Line]:
    """The messages in their saved form. `answer` and `given` are what the lines of the last turn have."""
    saved: list[Line] = []
    for message in messages:
        if message is answer:
            saved.append({"role": "assistant", "as_heard": True})
        elif isinstance(message, ToolMessage):
            results = [
                {"as_given": result.call_id} if given.get(result.call_id) is result else write_result(result)
                for result in message.results
            ]
            saved.append({"role": "tool", "results": results})
        else:
            saved += to_json([message])
    return saved


class Expander:
    """Puts back what lines refer to, in their order."""

    def __init__(self) -> None:
        self._deltas: list[Line] = []
        self._given: dict[str, Line] = {}

    def feed(self, line: Line) -> bool:
        """False if it refers to something that is not there."""
        found = True
        match line["line"]:
            case "delta":
                self._deltas.append(line)
            case "result":
                self._given[line["call_id"]] = line["result"]
            case "request" | "history":
                found = self._expand(line)
                if line["line"] == "request":
                    self._deltas, self._given = [], {}
            case "event" if line["event"] == "run_finished":
                found = self._expand(line)
            case _:
                pass
        return found

    def _expand(self, line: Line) -> bool:
        expanded = [self._message(message) for message in line.get("messages", ())]
        line["messages"] = [message for message in expanded if message is not None]
        return None not in expanded

    def _message(self, saved: Line) -> Line | None:
        if saved.get("as_heard"):
            return self._heard()
        results = saved.get("results")
        if not isinstance(results, list) or not any(
            isinstance(each, dict) and "as_given" in each for each in cast("list[Any]", results)
        ):
            return saved
        whole = [
            self._given.get(each["as_given"]) if "as_given" in each else each for each in cast("list[Line]", results)
        ]
        return None if None in whole else {**saved, "results": whole}

    def _heard(self) -> Line | None:
        hearing = Hearing()
        try:
            for line in self._deltas:
                delta = read_delta(line, hearing)
                if isinstance(delta, Ended):
                    return to_json([delta.message or hearing.message])[0]
                hearing.feed(delta)
        except Exception:  # noqa: BLE001 - whatever is wrong with the lines, there is no message
            pass
        return None
