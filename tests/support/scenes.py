"""Scenes of complete runs: tools that record what they did, and checks of what was sent to the model.

The model is scripted and the clock is virtual unless a test states otherwise; nothing else is fake.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from call_lives import assert_lives

from unbroken import Agent, Event, Request, Result, Schedule, ScriptedModel, Tool, Transcript, User, tool
from unbroken.agent.result import OutputT
from unbroken.clock import current_clock
from unbroken.tools.schema import Signature
from unbroken_testing import Raw, ScriptedServer, check_request, run_virtual
from unbroken_wires.messages import Assistant, Json, Message, ToolCall, ToolMessage, ToolSpec
from unbroken_wires.wires import WIRES as _WIRES
from unbroken_wires.wires import find_wire
from unbroken_wires.wires.jsontext import dumps

WIRES = tuple(_WIRES)
IN_FRAGMENTS = tuple(name for name, wire in _WIRES.items() if wire.for_tests().events.in_fragments)
"""Wires on which a call arrives piece by piece, and may be cut. On the others the provider itself reports it."""
PROVIDERS = {
    "openai-chat": "openai:demo",
    "openai-responses": "openai:demo",
    "anthropic-messages": "anthropic:demo",
    "gemini": "gemini:demo",
    "ollama": "ollama:demo",
    "cohere-v2": "cohere:demo",
    "bedrock-converse": "bedrock:demo",
}
"""A model by name for each wire, for `connect`."""

on_every_wire = pytest.mark.parametrize("wire", WIRES)
under_every_schedule = pytest.mark.parametrize("schedule", Schedule)
SIZES = [pytest.param(1, id="byte by byte"), pytest.param(7, id="7 bytes"), pytest.param(1 << 20, id="at once")]
"""How the network may split a body."""

ANYTHING: dict[str, Any] = {"type": "object", "properties": {"note": {"type": "string"}}}

E = TypeVar("E", bound=Event)


@dataclass(slots=True)
class Execution:
    name: str
    arguments: dict[str, Any]
    started: float
    ended: float | None = None
    """None while it runs, and forever if it was cancelled."""


@dataclass(slots=True)
class Desk:
    """Creates tools that accept any arguments, and records what they did in the order of their starts."""

    executions: list[Execution] = field(default_factory=list[Execution])

    def tool(self, name: str, gives: Any = "ok", *, seconds: float = 0.0, fails: str = "", **promises: Any) -> Tool:
        """`gives` is the result, or a function of the arguments that returns it; with `fails` it raises that
        instead."""

        async def function(**arguments: Any) -> Any:
            execution = Execution(name, arguments, current_clock().elapsed())
            self.executions.append(execution)
            if seconds:
                await asyncio.sleep(seconds)
            execution.ended = current_clock().elapsed()
            if fails:
                raise RuntimeError(fails)
            return gives(**arguments) if callable(gives) else gives

        description = f"The tool {name}."
        signature = Signature(name, description, ANYTHING, dict, is_async=True)
        return Tool(ToolSpec(name, description, ANYTHING), function, signature, **promises)

    def tools(self, *names: str, **promises: Any) -> list[Tool]:
        return [self.tool(name, f"{name} done", **promises) for name in names]

    @property
    def ran(self) -> list[tuple[str, dict[str, Any]]]:
        return [(execution.name, execution.arguments) for execution in self.executions]

    @property
    def names(self) -> list[str]:
        return [execution.name for execution in self.executions]

    @property
    def spans(self) -> list[tuple[str, float, float | None]]:
        return [(execution.name, execution.started, execution.ended) for execution in self.executions]


def play(agent: Agent[Any, OutputT], prompt: str = "Go.", **options: Any) -> Result[OutputT]:
    return run_virtual(agent.run(prompt, **options))


def play_aloud(agent: Agent[Any, OutputT], prompt: str = "Go.", **options: Any) -> tuple[Result[OutputT], list[Event]]:
    """The result, and all events."""
    events: list[Event] = []
    result = play(agent, prompt, sinks=[events.append], **options)
    assert_lives(events)
    return result, events


def only(kind: type[E], events: Sequence[Event]) -> list[E]:
    return [event for event in events if isinstance(event, kind)]


def accepted(asked: ScriptedModel | ScriptedServer, result: Result | None = None) -> None:
    """A provider accepts every request that was sent, and would accept the history of the result."""
    wires = asked.wires if isinstance(asked, ScriptedServer) else [asked.wire] * len(asked.bodies)
    for wire, body in zip(wires, asked.bodies, strict=True):
        taken(wire, body)
    if result is not None:
        can_go_on(result.messages)


def can_go_on(messages: Sequence[Message]) -> None:
    """Every call has its result, in call order, and every wire can send it with the next user message."""
    assert Transcript(messages).closed
    names = {call.name for call in calls_in(messages)} or {"a_tool"}
    tools = tuple(ToolSpec(name) for name in sorted(names))
    request = Request((*messages, User.of("And now?")), tools=tools, model="demo")
    for wire in WIRES:
        taken(wire, find_wire(wire).encode_request(request))


def taken(wire: str, body: Json) -> None:
    problems = check_request(wire, json.loads(dumps(body)))
    assert not problems, f"{wire} refuses the request: {'; '.join(problems)}"


def calls_in(messages: Sequence[Message]) -> list[ToolCall]:
    return [call for message in messages if isinstance(message, Assistant) for call in message.calls]


def results_in(messages: Sequence[Message]) -> list[tuple[str, str]]:
    """The id and the text of each result, in order."""
    return [
        (result.call_id, result.text)
        for message in messages
        if isinstance(message, ToolMessage)
        for result in message.results
    ]


def roles(messages: Sequence[Message]) -> list[str]:
    return [type(message).__name__ for message in messages]


def in_pieces(data: bytes, size: int) -> list[Raw]:
    """A body as the network may split it."""
    return [Raw(data[at : at + size]) for at in range(0, len(data), size)]


def texts(result: Result) -> list[str]:
    """The result of each call, in order."""
    return [text for _, text in results_in(result.messages)]


def on(wire: str, body: bytes, *more: str) -> Any:
    return pytest.param(wire, body, id=" ".join([wire, *more]))


def run_bytes(wire: str, body: bytes, desk: Desk, *names: str, size: int = 1 << 20, **settings: Any) -> Result:
    """These bytes, then the answer "Done."."""
    model = ScriptedModel(in_pieces(body, size), "Done.", wire=wire)
    result = play(Agent(model, desk.tools(*names), **settings))
    assert (result.text, result.stop_reason) == ("Done.", "answered")
    accepted(model, result)
    return result


class Bank:
    """Tools that change something, and a ledger of what they did: amounts that were looked at are negative."""

    def __init__(self) -> None:
        self.paid: list[int] = []

    def tools(self) -> list[Any]:
        @tool
        async def pay(amount: int) -> str:
            """Pays."""
            self.paid.append(amount)
            return f"paid {amount}"

        @tool(effect="read")
        async def look(amount: int) -> str:
            """Looks."""
            self.paid.append(-amount)
            return "seen"

        return [pay, look]
