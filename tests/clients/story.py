"""The scenario for every client: the model asks for three files at once, the client writes them with its own tool, and
the model says that it is done. Also checks what was sent to the upstream meanwhile.

The script is a function of the request alone: other requests of a client (titles, summaries) get a short text.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from unbroken import Assistant, Request, System, ToolCall, ToolMessage, User
from unbroken.models.scripted import Answer
from unbroken_testing import Call, Raw, Say, Think, Uses
from unbroken_wires.messages import Media, Message
from unbroken_wires.wires.json_access import TOOL_NAME, called_name, fit_name

PROMPT = "Write the three files of the story, please."
THOUGHT = "Three files, so three calls."
WORDS = "I write all three. "
FINAL = "The three files of the story are written."
FILES = {"one.txt": "the first file", "two.txt": "the second: 'quoted', 10 %", "three.txt": "the third, ünïcode ✓"}
REPORT = f'{{"written": 3, "summary": "{FINAL}"}}'
"""The final text if the client asks for an answer of this shape."""
IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAFElEQVR4nGM8ISfHgA0wYRUdtBIA0MoBFD5jqJkAAAAASUVORK5CYII="
"""A red square, PNG in base64."""
SLOW_SECONDS = 360.0
PING = b'event: ping\ndata: {"type": "ping"}\n\n'
"""Of Anthropic."""

Slow: TypeAlias = Literal["", "first call", "second call", "pings"]
"""What an upstream writes for six minutes: fragments of a call's arguments, or pings before the first call begins."""


@dataclass(frozen=True, slots=True)
class WriteTool:
    """A client's own tool for writing a file. With `shell` its only argument is a command."""

    name: str
    path: str = ""
    content: str = ""
    shell: str = ""
    second: str = ""
    """The name of a second tool with the same arguments, for the second file."""

    @property
    def names(self) -> tuple[str, str, str]:
        """One for each file."""
        return (self.name, self.second or self.name, self.name)

    def arguments(self, path: str, content: str) -> dict[str, str]:
        if self.shell:
            # Appended, so that a command that ran twice is visible.
            return {self.shell: f"printf %s {shlex.quote(content)} >> {shlex.quote(path)}"}
        return {self.path: path, self.content: content}


@dataclass(frozen=True, slots=True)
class Story:
    """The script for one run: with this tool, in this folder, with these call ids (None: counted by the script, the
    same in every run)."""

    tool: WriteTool
    folder: str
    ids: tuple[str | None, ...] = (None, None, None)
    slow: Slow = ""
    rich: bool = False
    """The question has an image, and the answer is a `REPORT`."""

    @property
    def fields(self) -> list[str]:
        """Of the answer's schema."""
        return ["written", "summary"]

    @property
    def words(self) -> str:
        """The text before the calls. A model that has to write JSON writes none: clients parse every text."""
        return "" if self.rich else WORDS

    @property
    def wanted(self) -> list[tuple[str, dict[str, str]]]:
        """The calls: names with arguments."""
        files = zip(self.tool.names, FILES.items(), strict=True)
        return [(name, self.tool.arguments(f"{self.folder}/{path}", text)) for name, (path, text) in files]

    def is_told_in(self, request: Request) -> bool:
        """Not in the other requests of a client."""
        asked = any(isinstance(message, User) and PROMPT in message.text for message in request.messages)
        return asked and any(fit_name(tool.name, TOOL_NAME) == self.tool.name for tool in request.tools)

    def counts(self, serial: bool) -> list[int]:
        """How many calls each answer of the gateway has."""
        return [1, 1, 1, 0] if serial else [3, 0]

    def answer(self, request: Request) -> Answer:
        if not self.is_told_in(request):
            return ["Three files", Uses(20, 2)]
        if any(isinstance(message, ToolMessage) for message in request.messages):
            return [REPORT if self.rich else FINAL, Uses(520, 14)]
        paces = [
            (SLOW_SECONDS, 360) if self.slow == each else (0.0, 3)
            for each in ("first call", "second call", "third call")
        ]
        calls = [
            Call(name, wanted, id=id, over=over, pieces=pieces)
            for (name, wanted), id, (over, pieces) in zip(self.wanted, self.ids, paces, strict=True)
        ]
        pings = [Raw(PING, after=15.0)] * int(SLOW_SECONDS / 15) if self.slow == "pings" else []
        return [Think(THOUGHT), Say(self.words), *pings, *calls, Uses(310, 60)]

    def problems_with_requests(self, requests: Sequence[Request], reasoning: bool) -> list[str]:
        """The upstream must get two requests: with the prompt, then with the complete turn and its `reasoning`, whether
        or not the client keeps that."""
        told = [request for request in requests if self.is_told_in(request)]
        if len(told) != 2:
            return [f"the upstream was asked {len(told)} times and not twice"]
        first, second = told
        known = len(first.messages)
        same = _texts(second.messages[:known]) == _texts(first.messages)
        match second.messages[known:]:
            case [Assistant() as spoken, ToolMessage() as results] if same:
                lost = ["the turn has lost its reasoning"] if reasoning and spoken.reasoning != THOUGHT else []
                return lost + self.problems_with_image(told) + self._problems_with_turn(spoken, results)
            case _:
                kinds = [", ".join(type(message).__name__ for message in each.messages) for each in told]
                return [f"the second request is not the first with one turn and its results: {kinds[0]}; {kinds[1]}"]

    def problems_with_image(self, told: list[Request]) -> list[str]:
        if not self.rich:
            return []
        found = [images_in(request) for request in told]
        return [] if all(images == [IMAGE] for images in found) else [f"the images of the requests are {found}"]

    def _problems_with_turn(self, spoken: Assistant, results: ToolMessage) -> list[str]:
        problems: list[str] = []
        if (calls := named_calls(spoken.calls)) != self.wanted:
            problems.append(f"the turn has other calls: {calls}")
        if spoken.text.strip() != self.words.strip():
            problems.append(f"the turn has another text: {spoken.text!r}")
        if [result.call_id for result in results.results] != [call.id for call in spoken.calls]:
            problems.append(f"the results are those of {[result.call_id for result in results.results]}")
        problems += [f"a tool failed: {result.text[:200]}" for result in results.results if result.error]
        return problems


def images_in(request: Request) -> list[str]:
    said = [part for message in request.messages if isinstance(message, User) for part in message.parts]
    return [part.data for part in said if isinstance(part, Media)]


def named_calls(calls: Sequence[ToolCall]) -> list[tuple[str, object]]:
    """Names with arguments; a tool of a namespace is named as on a wire without namespaces."""
    return [(called_name(call, TOOL_NAME), call.arguments) for call in calls]


def _texts(messages: Sequence[Message]) -> list[tuple[str, str]]:
    """Without cache marks, which clients move along the conversation."""
    said = [message for message in messages if isinstance(message, System | User)]
    return [(type(message).__name__, message.text) for message in said]
