"""The messages as the model saw them, request by request: of each only those that are new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from unbroken.trajectory.lines import Line
from unbroken.trajectory.recording import Recording
from unbroken.viewer.entries import Clip, Clipper, as_list, as_object, count, flag, inner, objects, text, words
from unbroken.viewer.folding import media


@dataclass(frozen=True, slots=True)
class Part:
    """Text, reasoning, a call, a result, or the description of a file."""

    kind: str
    body: Clip
    name: str = ""
    id: str = ""
    error: bool = False


@dataclass(frozen=True, slots=True)
class Said:
    role: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class AskedRequest:
    """The first `keep` messages are those of the request before; then come `new`."""

    turn: int
    at: float
    keep: int
    new: tuple[Said, ...]
    tools: tuple[str, ...]
    settings: Clip
    """The rest: choice, sampling and so on, without default values. JSON."""


_SAID_ELSEWHERE = frozenset({"line", "at", "turn", "keep", "messages", "system", "tools", "state", "masked"})


def requests_of(recording: Recording, clips: Clipper, times: Sequence[float]) -> tuple[AskedRequest, ...]:
    """`Recording.requests` has each of them complete; here each message is processed once. `times` are those of all
    lines."""
    found: list[AskedRequest] = []
    history = _History(objects(recording.head, "messages"))
    offered: tuple[str, ...] = ()
    for at, line in zip(times, recording.lines, strict=True):
        match line["line"]:
            case "resumed":
                history.is_written_again = True
            case "tools":
                offered = _names(line)
            case "request":
                keep, new = history.ask(line)
                said = tuple(_said(message, clips) for message in new)
                rest = {name: value for name, value in line.items() if name not in _SAID_ELSEWHERE}
                tools = _names(line) if "tools" in line else offered
                found.append(AskedRequest(count(line, "turn"), at, keep, said, tools, clips.json(rest)))
            case _:
                pass
    return tuple(found)


class _History:
    def __init__(self, messages: list[Line]) -> None:
        self.is_written_again = False
        self._said = messages
        self._system: Line | None = None
        self._asked = False

    def ask(self, line: Line) -> tuple[int, list[Line]]:
        """How many of its first messages were in the request before, and the new ones."""
        new, keep = objects(line, "messages"), min(count(line, "keep"), len(self._said))
        if self.is_written_again:
            keep, self.is_written_again = _alike(self._said, new), False
            new = new[keep:]
        del self._said[keep:]
        self._said += new
        before, asked = self._system, self._asked
        if "system" in line:
            self._system = inner(line, "system") or None
        self._asked = True
        if asked and self._system == before:
            return keep + (before is not None), new
        return 0, [*filter(None, (self._system,)), *self._said]


def _alike(before: Sequence[Line], now: Sequence[Line]) -> int:
    """How many of the first ones are the same."""
    places = enumerate(zip(before, now, strict=False))
    return next((place for place, (one, other) in places if one != other), min(len(before), len(now)))


def _names(line: Line) -> tuple[str, ...]:
    return tuple(words(tool, "name") for tool in objects(line, "tools"))


def prompt_of(recording: Recording) -> str:
    """The prompt as short text."""
    head = recording.head
    asked = [head["question"]] if isinstance(head.get("question"), dict) else as_list(head.get("messages"))
    if not asked:  # answers of a model from a test, without a run
        asked = [message for line in islice(recording.of("request"), 1) for message in as_list(line.get("messages"))]
    for message in map(as_object, reversed(asked)):
        if message.get("role") == "user":
            return "".join(text(part, "text") for part in objects(message, "content"))[:500]
    return ""


def _said(message: Line, clips: Clipper) -> Said:
    parts: list[Part] = []
    if reasoning := text(message, "reasoning"):
        parts.append(Part("reasoning", clips.text(reasoning)))
    if said := text(message, "content"):
        parts.append(Part("text", clips.text(said)))
    parts += [_part(part, clips) for part in objects(message, "content")]
    for call in objects(message, "calls"):
        arguments = call.get("arguments")
        body = clips.text(text(call, "raw")) if arguments is None else clips.json(arguments)
        parts.append(Part("call", body, words(call, "name"), words(call, "id"), bool(words(call, "problem"))))
    for result in objects(message, "results"):
        given = "".join(_words(part) for part in objects(result, "content"))
        error = flag(inner(result, "metadata"), "error")
        parts.append(Part("result", clips.text(given), words(result, "name"), words(result, "call_id"), error))
    return Said(words(message, "role"), tuple(parts))


def _part(part: Line, clips: Clipper) -> Part:
    return Part("text" if part.get("type") == "text" else "media", clips.text(_words(part)))


def _words(part: Line) -> str:
    return text(part, "text") if part.get("type") == "text" else media(part)
