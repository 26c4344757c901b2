"""Random runs with broken responses: scripts, schedules, wires, and tools that note when they ran."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from hypothesis import strategies as st
from scenes import WIRES

from unbroken import (
    Agent,
    Allow,
    CallContext,
    Deny,
    Event,
    Limits,
    Result,
    RetryingModel,
    Schedule,
    ScriptedModel,
    Tool,
    ToolCall,
    UnbrokenError,
    tool,
)
from unbroken.errors import RateLimited, Unavailable
from unbroken.tools.approval import Approval
from unbroken_testing import Answer, Break, Call, Cut, End, ErrorInside, Fail, Say, Step, Think
from unbroken_wires.messages import Message

READS = ("look", "read_file", "ask_first")
KEYED = ("read_file", "write_file")


@dataclass(slots=True)
class Execution:
    name: str
    path: str
    turn: int
    started: int
    ended: int | None = None
    """None while it runs. Both are positions in the order of events: many things happen at one time."""


@dataclass(slots=True)
class World:
    """Tools that write down when they ran."""

    executions: list[Execution] = field(default_factory=list[Execution])
    order: Iterator[int] = field(default_factory=count)

    def tools(self) -> list[Tool]:
        async def act(context: CallContext[Any], path: str, seconds: float, fails: bool) -> str:
            execution = Execution(context.name, path, context.turn, next(self.order))
            self.executions.append(execution)
            try:
                await asyncio.sleep(seconds)
            finally:
                execution.ended = next(self.order)
            if fails:
                raise ValueError(f"{context.name} failed on {path}")
            return f"{context.name} {path}"

        @tool(effect="read", timeout=0.5)
        async def look(context: CallContext[Any], path: str, seconds: float = 0.0, fails: bool = False) -> str:
            return await act(context, path, seconds, fails)

        @tool(effect="read", key=lambda arguments: arguments["path"])
        async def read_file(context: CallContext[Any], path: str, seconds: float = 0.0, fails: bool = False) -> str:
            return await act(context, path, seconds, fails)

        @tool(key=lambda arguments: arguments["path"])
        async def write_file(context: CallContext[Any], path: str, seconds: float = 0.0, fails: bool = False) -> str:
            return await act(context, path, seconds, fails)

        @tool
        async def act_once(context: CallContext[Any], path: str, seconds: float = 0.0, fails: bool = False) -> str:
            return await act(context, path, seconds, fails)

        @tool(effect="exclusive")
        async def restart(context: CallContext[Any], path: str, seconds: float = 0.0, fails: bool = False) -> str:
            return await act(context, path, seconds, fails)

        @tool(effect="read", approve=True)
        async def ask_first(context: CallContext[Any], path: str, seconds: float = 0.0, fails: bool = False) -> str:
            return await act(context, path, seconds, fails)

        return [look, read_file, write_file, act_once, restart, ask_first]


def decide(call: ToolCall) -> Approval:
    return Deny("not that one") if (call.arguments or {})["path"] == "c" else Allow()


@dataclass(slots=True)
class Played:
    events: list[Event]
    world: World
    model: ScriptedModel
    messages: tuple[Message, ...]
    result: Result | None


DURATIONS = st.sampled_from([0.0, 0.05, 0.3, 1.0])
WORDS = st.sampled_from(["Let me see. ", "Let me ", "Let me see. I look at it. ", "Something else. ", "好的。"])


@st.composite
def one_call(draw: st.DrawFn) -> Step:
    name = draw(st.sampled_from(["look", "look", "read_file", "write_file", "act_once", "restart", "ask_first", "odd"]))
    arguments: dict[str, Any] = {"path": draw(st.sampled_from("abc")), "seconds": draw(DURATIONS)}
    if draw(st.integers(0, 4)) == 0:
        arguments["fails"] = True
    return Call(name, arguments, after=draw(DURATIONS), id=draw(st.sampled_from([None, None, "", "call_same"])))


@st.composite
def one_answer(draw: st.DrawFn) -> list[Step]:
    said: list[Step] = [Think("Hm. ")] if draw(st.booleans()) else []
    if draw(st.booleans()):
        said.append(Say(draw(WORDS)))
    return [*said, *draw(st.lists(one_call(), min_size=1, max_size=5))]


@st.composite
def one_break(draw: st.DrawFn, answer: list[Step]) -> Answer:
    """This answer, broken somewhere; or no answer."""
    ends: list[Step] = [
        Break(),
        ErrorInside("overloaded"),
        Fail(Unavailable("busy", status=503)),
        Fail(RateLimited("slow down", status=429, retry_after=0.2)),
    ]
    end = draw(st.sampled_from(ends))
    if isinstance(end, Fail):
        return [end]
    if draw(st.integers(0, 5)) == 0:
        return ""
    kept = answer[: draw(st.integers(0, len(answer)))]
    if draw(st.integers(0, 4)) == 0:
        return [*kept, Cut("look", '{"path": "a'), End("done")]
    return [*kept, end]


@st.composite
def one_turn(draw: st.DrawFn) -> list[Answer]:
    """Broken answers, then a complete one: the same, in another order, or a different one."""
    answer = draw(one_answer())
    told: list[Answer] = []
    for _ in range(draw(st.sampled_from([0, 1, 1, 1, 2, 3]))):
        told.append(draw(one_break(answer)))
        match draw(st.sampled_from(["same", "order", "other", "more"])):
            case "order":
                answer = draw(st.permutations(answer))
            case "other":
                answer = draw(one_answer())
            case "more":
                answer = [*answer, draw(one_call())]
            case _:
                pass
    return [*told, answer]


@st.composite
def some_turns(draw: st.DrawFn) -> list[Answer]:
    turns = draw(st.lists(one_turn(), min_size=1, max_size=3))
    end: list[Answer] = draw(st.sampled_from([["Done."], [[Say("Don"), Break()], "Done."], ["", "", "Done."]]))
    return [*(answer for turn in turns for answer in turn), *end]


scripts = some_turns()
schedules = st.sampled_from([Schedule.EAGER, Schedule.EAGER, *Schedule])
wires = st.sampled_from([wire for wire in WIRES if wire != "gemini"])
"""Gemini's wire has no half calls: there an incomplete call is the provider's own error."""


async def play(script: list[Answer], schedule: Schedule, wire: str, **settings: Any) -> Played:
    world, events = World(), list[Event]()
    model = ScriptedModel(*script, wire=wire, loop_last=True)
    agent = Agent(
        RetryingModel(model, jitter=lambda: 0.5),
        world.tools(),
        schedule=schedule,
        on_approval=decide,
        limits=settings.pop("limits", None) or Limits(rounds=8),
        sinks=[events.append],
        **settings,
    )
    result: Result | None = None
    try:
        result = await agent.run("Go.", run_id="r")
        messages = result.messages
    except UnbrokenError as error:
        messages = error.messages
    return Played(events, world, model, messages, result)
