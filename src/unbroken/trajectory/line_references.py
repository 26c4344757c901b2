"""What a line says in one word, because other lines have said it: a message that was heard, a result that was given.

The history grows by what the model said and what the tools gave. Both stand in the recording when the next request is
written, so the request only refers to them, and whoever reads it gets them back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from unbroken.deltas import Ended
from unbroken.messages import Assistant, Message, ToolMessage, ToolResult
from unbroken.partial_response import PartialResponse
from unbroken.trajectory.lines import Line, read_delta
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


LOST = "(its line is not in the recording)"


class Expander:
    """Puts back what lines refer to, in their order."""

    def __init__(self) -> None:
        self._deltas: list[Line] = []
        self._given: dict[str, Line] = {}
        self._lost = False

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
        found = True
        for place, message in enumerate(cast("list[Line]", line.get("messages", []))):
            if message.get("as_heard"):
                heard = self._heard()
                line["messages"][place] = heard or {"role": "assistant", "content": ""}
                found = found and heard is not None
            elif isinstance(message.get("results"), list):
                line["messages"][place] = {**message, "results": [self._result(each) for each in message["results"]]}
        found, self._lost = found and not self._lost, False
        return found

    def _result(self, saved: Any) -> Any:
        if not isinstance(saved, dict) or "as_given" not in saved:
            return cast("Any", saved)
        id = cast("Line", saved)["as_given"]
        given = self._given.get(id) if isinstance(id, str) else None
        if given is None:
            self._lost = True
            return {"call_id": str(id), "content": [{"type": "text", "text": LOST}], "metadata": {"error": True}}
        return given

    def _heard(self) -> Line | None:
        hearing = PartialResponse()
        try:
            for line in self._deltas:
                delta = read_delta(line, hearing)
                if isinstance(delta, Ended):
                    return to_json([delta.message or hearing.message])[0]
                hearing.feed(delta)
        except Exception:  # noqa: BLE001 - whatever is wrong with the lines, there is no message
            pass
        return None
