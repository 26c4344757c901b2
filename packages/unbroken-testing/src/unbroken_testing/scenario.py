"""One run that has everything that can break: reasoning, text, three calls at once (two reads, one write), an answer.

This module has the script, the tools that count how often they ran, and the conditions that every such run must meet,
whatever its outcome. What breaks is decided elsewhere: in `matrix`, case by case.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TypeAlias

from unbroken.agent import Agent, Result
from unbroken.errors import UnbrokenError
from unbroken.events import Event, ReasoningAdded, ReasoningReplaced, TextAdded, TextFinished, TextReplaced
from unbroken.models.model import Model
from unbroken.models.scripted import Answer, Call, Say, Step, Think, Uses
from unbroken.tools.context import CallContext
from unbroken.tools.tool import tool
from unbroken_wires.decoding import Decoder
from unbroken_wires.messages import Assistant, Json, Message, Request, Text, ToolMessage
from unbroken_wires.transcript import Transcript

# What our test servers send: a head, then bytes with pauses before them, then an end of some kind. These are only
# values: a script (`server`) or a fault (`faults`) creates them, and `server` sends them.


Chunks: TypeAlias = Iterator[tuple[float, bytes]]
"""What is sent: seconds to wait, then bytes. It may raise a `ProviderError`, which is sent with its status, or a
`ConnectionResetError`, which closes the connection; a `Reset` resets it."""

FOREVER = inf
"""A pause that ends when the client disconnects or the server stops."""


class Reset(ConnectionResetError):
    """The connection is reset: what the client has not read by then may be lost."""


@dataclass(slots=True)
class Reply:
    chunks: Chunks
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Stray:
    """A request that asked no model: an unknown path or method, a body that cannot be read, a wrong key, or a request
    for the list of models. `words` is the answer it got."""

    method: str
    path: str
    status: int
    words: str


@dataclass(slots=True)
class Sent:
    """One request, and what was sent for it. `fault` is the name of its fault, empty for none; `steps` are what the
    response means, `data` the bytes of its body that were sent."""

    number: int
    wire: str
    model: str
    stream: bool
    size: int = 0
    """Bytes of the request's body."""
    fault: str = ""
    status: int = 0
    """0 until the head is sent."""
    refused: str = ""
    """The reason of an error that is not a fault."""
    steps: tuple[Step, ...] = ()
    data: bytearray = field(default_factory=bytearray)
    over: bool = False
    """Nothing more will be sent."""

    @property
    def text(self) -> str:
        """The text in these bytes."""
        decoder = Decoder(self.wire)
        decoder.feed(bytes(self.data))
        return decoder.response().text


ASKED = "What is the weather like in Oslo, what time is it, and please note both."
THOUGHT = "Two lookups, then the note."
ANNOUNCED = "Let me look 🙂 that up. "
ANSWERED = "Rain 🌧 in Oslo at noon; noted."
NOTE = "Oslo: rain, at noon"
CALLS = (
    Call("get_weather", city="Oslo 🌧", days=3, pieces=2),
    Call("now"),
    Call("save_note", text=NOTE, pieces=2),
)


def answer_scenario(request: Request) -> Answer:
    """The script, as a function of the request: calls until each has a good result, then the answer."""
    last = request.messages[-1]
    if request.final or request.choice == "none" or (isinstance(last, ToolMessage) and not _failed(last)):
        return [Say(ANSWERED, chunks=2), Uses(120, 12)]
    return [Think(THOUGHT, chunks=2), Say(ANNOUNCED, chunks=2), *CALLS, Uses(80, 40)]


def reword(steps: Sequence[Step]) -> list[Step]:
    """What a model answers to a retry: a different text, other ids, and another city; the note is the same."""
    said: list[Step] = []
    for step in steps:
        match step:
            case Say(text):
                said.append(Say(f"Well: {text}", chunks=2))
            case Call(name="get_weather"):
                said.append(Call("get_weather", city="Bergen", days=3, id="other_0", pieces=2))
            case Call():
                said.append(Call(step.name, step.raw, id=f"other_{len(said)}", pieces=2))
            case _:
                said.append(step)
    return said


def _failed(message: ToolMessage) -> bool:
    """Not every wire keeps the error flag; the first word of the text is always there."""
    texts = ("".join(part.text for part in each.content if isinstance(part, Text)) for each in message.results)
    return any(each.error for each in message.results) or any(text.startswith("Error") for text in texts)


@dataclass(frozen=True, slots=True)
class Ran:
    """One execution of a tool, as the tool saw it."""

    name: str
    arguments: str
    turn: int


@dataclass(slots=True)
class ToolLog:
    """A log of what the tools of one run do. `size` is the number of characters of the weather."""

    size: int = 0
    ran: list[Ran] = field(default_factory=list[Ran])

    def note(self, context: CallContext[ToolLog], **arguments: Json) -> None:
        self.ran.append(Ran(context.name, _spelled(arguments), context.turn))


@tool(effect="read")
async def get_weather(city: str, days: int, context: CallContext[ToolLog]) -> str:
    """The weather in a city."""
    context.deps.note(context, city=city, days=days)
    await asyncio.sleep(0.004)  # longer than the other read
    return f"rain in {city} for {days} days".ljust(context.deps.size, ".")


@tool(effect="read")
async def now(context: CallContext[ToolLog]) -> str:
    """What time it is."""
    context.deps.note(context)
    return "12:00"


@tool
async def save_note(text: str, context: CallContext[ToolLog]) -> str:
    """Keep a note."""
    context.deps.note(context, text=text)
    return "saved"


TOOLS = (get_weather, now, save_note)


def _spelled(arguments: Json) -> str:
    return json.dumps(arguments, ensure_ascii=False, sort_keys=True)


class Screen:
    """What a user interface shows: one text for each turn, and its reasoning."""

    def __init__(self) -> None:
        self.text: dict[int, str] = {}
        self.reasoning: dict[int, str] = {}
        self.said: list[str] = []
        self.problems: list[str] = []

    def show(self, event: Event) -> None:
        match event:
            case TextAdded():
                self.text[event.turn] = self.text.get(event.turn, "") + event.text
            case TextReplaced():
                self.text[event.turn] = event.text
            case ReasoningAdded():
                self.reasoning[event.turn] = self.reasoning.get(event.turn, "") + event.text
            case ReasoningReplaced():
                self.reasoning[event.turn] = event.text
            case TextFinished():
                self.said.append(event.text)
                shown = self.text.get(event.turn, "")
                if shown != event.text:
                    self.problems.append(f"turn {event.turn} shows {shown!r}, but the text is {event.text!r}")
            case _:
                pass


@dataclass(slots=True)
class Evidence:
    """Everything about one run: what the server received and sent, what was shown, what the tools did, how it ended."""

    screen: Screen
    tool_log: ToolLog
    requests: list[Request] = field(default_factory=list[Request])
    sent: list[Sent] = field(default_factory=list[Sent])
    """One for each request."""
    result: Result | None = None
    error: Exception | None = None

    @property
    def messages(self) -> tuple[Message, ...]:
        if self.result is not None:
            return self.result.messages
        return self.error.messages if isinstance(self.error, UnbrokenError) else ()

    @property
    def outcome(self) -> str:
        """`answered`, `reported`, `typed:NAME`; anything else is not allowed."""
        if self.result is None:
            known = isinstance(self.error, UnbrokenError)
            return f"typed:{type(self.error).__name__}" if known else f"raised {self.error!r}"
        results = [each for m in self.messages if isinstance(m, ToolMessage) for each in m.results]
        if any(each.error for each in results):
            return "reported"
        return "answered" if self.result.stop_reason == "answered" else f"stopped: {self.result.stop_reason}"


async def run_scenario(model: Model, size: int = 0, history: Sequence[Message] = ()) -> Evidence:
    """The caller adds the server's part, `requests` and `sent`."""
    evidence = Evidence(Screen(), ToolLog(size))
    agent = Agent(model, tools=TOOLS, sinks=[evidence.screen.show])
    try:
        evidence.result = await agent.run(ASKED, deps=evidence.tool_log, history=history)
    except Exception as error:  # noqa: BLE001 - any error is a finding
        evidence.error = error
    return evidence


def problems_of(run: Evidence, calls_as_text: bool = False) -> list[str]:
    """What is wrong with a run, whatever its outcome. `calls_as_text`: its answers contain calls written as text."""
    return [
        *run.screen.problems,
        *_in_the_history(run),
        *_in_the_texts(run, calls_as_text),
        *_in_the_tools(run),
        *_at_the_server(run),
    ]


def _in_the_history(run: Evidence) -> Iterator[str]:
    try:
        closed = Transcript(run.messages).closed
    except UnbrokenError as error:
        yield f"the history is not valid: {error}"
        return
    if not closed:
        yield "the history ends in calls without results"
    calls = [call.id for m in run.messages if isinstance(m, Assistant) for call in m.calls]
    results = [each.call_id for m in run.messages if isinstance(m, ToolMessage) for each in m.results]
    if calls != results:
        yield f"the calls are {calls}, but the results belong to {results}"


def _in_the_texts(run: Evidence, calls_as_text: bool) -> Iterator[str]:
    """Compares character by character: what was shown is in the history, and is what was sent."""
    answers = [message for message in run.messages if isinstance(message, Assistant)]
    if _repeats_its_last_text(run, answers):
        answers.pop()
    texts = [message.text for message in answers if message.text]
    if run.screen.said != texts:
        yield f"shown was {run.screen.said}, but the history has {texts}"
    if run.result is None:
        return
    if run.result.stop_reason == "answered" and run.result.text != texts[-1]:
        yield f"the answer is {run.result.text!r}, but the history has {texts[-1]!r}"
    for number, message in enumerate(answers):
        taken = [sent for request, sent in zip(run.requests, run.sent, strict=True) if answers_in(request) == number]
        if not taken:
            yield f"answer {number} was never requested"
            continue
        said = "".join(step.text for step in taken[-1].steps if isinstance(step, Say))
        thought = "".join(step.text for step in taken[-1].steps if isinstance(step, Think))
        if message.text != said and not (calls_as_text and said.startswith(message.text.rstrip())):
            yield f"answer {number} is {message.text!r}, but {said!r} was sent"
        if message.reasoning != thought:
            yield f"the reasoning of answer {number} is {message.reasoning!r}, but {thought!r} was sent"
        if thought and thought not in run.screen.reasoning.values():
            yield f"the reasoning of answer {number} was not shown: {run.screen.reasoning}"


def _repeats_its_last_text(run: Evidence, answers: list[Assistant]) -> bool:
    """At a limit, if the model makes calls even in the final request, what it said beside them is the answer."""
    if run.result is None or run.result.stop_reason == "answered" or len(answers) < 2:
        return False
    last, before = answers[-1], answers[-2]
    return not last.calls and bool(before.calls) and last.text == before.text.strip()


def answers_in(request: Request) -> int:
    return sum(isinstance(message, Assistant) for message in request.messages)


def _in_the_tools(run: Evidence) -> Iterator[str]:
    results = {each.call_id: each for m in run.messages if isinstance(m, ToolMessage) for each in m.results}
    wanted: Counter[tuple[str, str]] = Counter()
    for message in run.messages:
        for call in message.calls if isinstance(message, Assistant) else ():
            if call.id in results and not results[call.id].error:
                wanted[call.name, _spelled(call.arguments)] += 1
    ran = Counter((each.name, each.arguments) for each in run.tool_log.ran)
    for (name, arguments), count in wanted.items():
        if not ran[name, arguments]:
            yield f"{name}({arguments}) has a result but never ran"
        if name == "save_note" and ran[name, arguments] != count:
            yield f"{name}({arguments}) ran {ran[name, arguments]} times, but has {count} results"
    for (name, arguments), count in ran.items():
        if name == "save_note" and (name, arguments) not in wanted:
            yield f"{name}({arguments}) ran {count} times, but is not in the history"
    for each, count in Counter(run.tool_log.ran).items():
        if count > 1:
            yield f"{each.name}({each.arguments}) ran {count} times in turn {each.turn}"


def _at_the_server(run: Evidence) -> Iterator[str]:
    for sent in run.sent:
        if sent.status >= 400 and not sent.fault:
            yield f"request {sent.number} was refused: {bytes(sent.data).decode('utf-8', 'replace')}"
        if not sent.over:
            yield f"the connection of request {sent.number} was left open"
