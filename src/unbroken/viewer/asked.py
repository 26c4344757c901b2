"""The messages as the model saw them, request by request: of each only those that the request before had not."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

from unbroken.trajectory.lines import Line
from unbroken.trajectory.recording import Recording
from unbroken.viewer.clips import Clip, Clipper
from unbroken.viewer.fields import as_list, as_object, flag, inner, objects, text
from unbroken.viewer.folding import media


@dataclass(frozen=True, slots=True)
class Part:
    """Text, reasoning, a call, a result, or a file in words."""

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
    """The rest: choice, sampling and so on, as far as it is not as usual. JSON."""


def requests_of(recording: Recording, clips: Clipper) -> tuple[AskedRequest, ...]:
    found: list[AskedRequest] = []
    before: tuple[Line, ...] = ()
    for one in recording.requests:
        # A message that was there before is the same object.
        same = (there is here for there, here in zip(before, one.messages, strict=False))
        keep = sum(1 for _ in takewhile(bool, same))
        new = tuple(_said(message, clips) for message in one.messages[keep:])
        tools = tuple(text(tool, "name") for tool in one.tools)
        found.append(AskedRequest(one.turn, round(one.at, 6), keep, new, tools, clips.json(one.fields)))
        before = one.messages
    return tuple(found)


def prompt_of(head: Line) -> str:
    """What was asked, in words, short."""
    asked = [head["question"]] if isinstance(head.get("question"), dict) else as_list(head.get("messages"))
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
        parts.append(Part("call", body, text(call, "name"), text(call, "id"), bool(text(call, "problem"))))
    for result in objects(message, "results"):
        words = "".join(_words(part) for part in objects(result, "content"))
        error = flag(inner(result, "metadata"), "error")
        parts.append(Part("result", clips.text(words), text(result, "name"), text(result, "call_id"), error))
    return Said(text(message, "role"), tuple(parts))


def _part(part: Line, clips: Clipper) -> Part:
    return Part("text" if part.get("type") == "text" else "media", clips.text(_words(part)))


def _words(part: Line) -> str:
    return text(part, "text") if part.get("type") == "text" else media(part)
