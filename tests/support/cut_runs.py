"""Random runs with tools of every kind, and the world that these change, for tests that cut what was stored of a run.

The model answers by the history, so that every continuation takes the same course. The world notes how much was stored
when something happened in it: `World.cut` is the world of a process that died when no more was stored than that.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Literal

from hypothesis import settings
from hypothesis import strategies as st
from scenes import can_go_on

from unbroken import (
    Agent,
    Allow,
    CallContext,
    Deny,
    Edit,
    Output,
    Request,
    Result,
    RetryingModel,
    Schedule,
    ScriptedModel,
    Tool,
    ToolCall,
    ToolResult,
    Transcript,
    Wait,
    client_tool,
    tool,
)
from unbroken.events import CallFinished, CallStarted
from unbroken.tools.approval import Approval
from unbroken.trajectory.recording import Recording
from unbroken_testing import Answer, Break, Call, Say, Step
from unbroken_wires.messages import Assistant, Message, ToolMessage, User

READS = ("look", "peek", "watch")
UNSAFE = ("write", "save", "restart", "send", "ask")
"""Writes that must not run again, and that nobody can verify."""
SETTLED = ("verified", "careful")
"""Writes that a function verifies after a crash, or a person."""
INSIDE = ("look", "peek", "write", "save", "deposit", "verified", "careful", "ask", "browse")
BACKGROUND = ("watch", "send")
ANSWER = "Everything is done."
PROMPT = "Go."
FEW = settings.get_profile("ci").max_examples

Decision = Literal["allow", "deny", "edit"]


@dataclass
class Report:
    """A typed answer."""

    rounds: int


REPORT = Output(Report)


@dataclass(frozen=True, slots=True)
class Planned:
    """A call that the model makes."""

    tool: str
    number: int
    """Its own, but for a read that is made twice."""
    id: str
    seconds: float = 0.0
    """How long its tool works before it has its effect, and again afterwards."""
    fails: bool = False
    decision: Decision = "allow"
    """For `ask` alone, like the next one."""
    waits: bool = False
    """The approver has no decision at first, and the run waits."""
    inside: tuple[Planned, ...] = ()
    """The calls of the agent that it runs."""

    def step(self) -> Step:
        match self.tool:
            case "clerk":
                return Call("clerk", task=str(self.number), id=self.id)
            case "transfer_to_second":
                return Call(self.tool, id=self.id)
            case _:
                arguments = {"number": self.number, "seconds": self.seconds, "fails": self.fails}
                asked = {"decision": self.decision, "waits": self.waits} if self.tool == "ask" else {}
                return Call(self.tool, {**arguments, **asked}, id=self.id)


@dataclass(frozen=True, slots=True)
class Plan:
    rounds: tuple[tuple[Planned, ...], ...]
    breaks: tuple[tuple[int, ...], ...]
    """For each round, and for the answer: after how many steps each response broke off before a complete one came."""
    schedule: Schedule = Schedule.EAGER
    typed: bool = False

    @property
    def calls(self) -> Iterator[Planned]:
        """Those of inner agents are left out."""
        return (call for calls in self.rounds for call in calls)

    def without_answers(self, calls: Sequence[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
        """Without those that gave a typed answer."""
        planned = {call.id for call in self.calls}
        return [call for call in calls if call[0] in planned]

    @property
    def has_background(self) -> bool:
        return any(call.tool in BACKGROUND for call in self.calls)


# Drawing one

DURATIONS = st.sampled_from([0.0, 0.0, 0.1, 0.4])
DECISIONS: st.SearchStrategy[Decision] = st.sampled_from(["allow", "allow", "deny", "edit"])


@st.composite
def plans(draw: st.DrawFn, background: bool = False, rounds: int = 3, calls: int = 4) -> Plan:
    """`background`: with calls that continue in the background. `rounds`, `calls`: at most so many, and calls in each
    round."""
    numbers = iter(range(1_000))

    def planned(kinds: Sequence[str]) -> Planned:
        kind, number = draw(st.sampled_from(kinds)), next(numbers)
        asks = kind == "ask"
        inside = [planned(INSIDE) for _ in range(draw(st.integers(1, 3)))] if kind == "clerk" else []
        return Planned(
            kind,
            number,
            f"c{number}",
            draw(DURATIONS),
            kind not in SETTLED and draw(st.integers(0, 5)) == 0,
            draw(DECISIONS) if asks else "allow",
            asks and draw(st.booleans()),
            tuple(inside),
        )

    kinds = [*INSIDE, "restart", "clerk", *(BACKGROUND * 2 if background else ())]
    made: list[tuple[Planned, ...]] = []
    # A call in the background whose process died does not run for another agent: it is refused.
    hands_off = -1 if background else draw(st.integers(-3, rounds - 1))
    for place in range(draw(st.integers(1, rounds))):
        calls_made = [planned(kinds) for _ in range(draw(st.integers(1, calls)))]
        if calls_made[0].tool == "look" and draw(st.booleans()):
            first = calls_made[0]
            again = Planned("look", first.number, f"c{next(numbers)}", first.seconds, first.fails)
            calls_made.append(again)
        if place == hands_off:
            calls_made.append(Planned("transfer_to_second", number := next(numbers), f"c{number}"))
        made.append(tuple(calls_made))
    breaks = st.lists(st.integers(0, 4), max_size=2).map(tuple)
    return Plan(
        tuple(made),
        tuple(draw(breaks) if draw(st.booleans()) else () for _ in range(len(made) + 1)),
        draw(st.sampled_from(Schedule)),
        draw(st.integers(0, 3)) == 0,
    )


# What is outside of the process


@dataclass(frozen=True, slots=True)
class Happened:
    what: str
    """The name of a tool that had its effect, or `asked`: a request came."""
    number: int
    key: str
    stored: int
    """How much of the run was stored by then."""


def lines_of(path: Path) -> int:
    """How many lines a recording has."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


@dataclass(slots=True)
class World:
    """`stored` is called with the `path` of what is stored of the run."""

    path: Path
    stored: Callable[[Path], int] = lines_of
    happened: list[Happened] = field(default_factory=list[Happened])

    def note(self, what: str, number: int, key: str = "") -> None:
        self.happened.append(Happened(what, number, key, self.stored(self.path)))

    def cut(self, stored: int, path: Path, *, with_last: bool = True) -> World:
        """What had happened when no more than this was stored. `with_last`: also what happened after the last of it,
        of which nothing shows whether it did."""
        most = stored if with_last else stored - 1
        return World(path, self.stored, [each for each in self.happened if each.stored <= most])

    def effects(self, number: int) -> list[Happened]:
        return [each for each in self.happened if each.number == number and each.what != "asked"]

    def times_asked(self, place: int) -> int:
        return sum(each.what == "asked" and each.number == place for each in self.happened)


def text_of(name: str, number: int) -> str:
    return f"{name} {number} done"


async def act(number: int, seconds: float, fails: bool, context: CallContext[World]) -> str:
    world = context.deps
    if seconds:
        await asyncio.sleep(seconds)
    if context.name not in READS and not (context.name == "deposit" and world.effects(number)):
        world.note(context.name, number, context.key)
    if seconds:
        await asyncio.sleep(seconds)
    if fails:
        raise ValueError(f"{context.name} {number} failed")
    return text_of(context.name, number)


@tool
async def work(number: int, seconds: float, fails: bool, context: CallContext[World]) -> str:
    """Works."""
    return await act(number, seconds, fails, context)


@tool(approve=True)
async def ask(number: int, seconds: float, fails: bool, decision: str, waits: bool, context: CallContext[World]) -> str:
    """Works if it is allowed to."""
    return await act(number, seconds, fails, context)


BROWSE = client_tool("browse", "Shows a page.", {"type": "object", "properties": {"number": {"type": "integer"}}})


def tools_of(world: World) -> list[Tool]:
    """New tools. Their signatures are read once, which takes longer than the rest of a run."""

    def made(name: str, **promises: Any) -> Tool:
        return replace(work, spec=replace(work.spec, name=name), **promises)

    def verify(arguments: dict[str, Any], key: str) -> str | None:
        found = [each for each in world.effects(arguments["number"]) if each.key == key]
        return text_of("verified", arguments["number"]) if found else None

    def place(arguments: dict[str, Any]) -> int:
        return arguments["number"] % 2

    return [
        made("look", effect="read"),
        made("peek", effect="read", key=place),
        made("watch", effect="read", background=0.1),
        made("write"),
        made("save", key=place),
        made("restart", effect="exclusive"),
        made("send", background=0.1, overlap=True),
        made("deposit", after_crash="rerun"),
        made("verified", after_crash=verify),
        made("careful", after_crash="wait"),
        replace(ask),
        replace(BROWSE),
    ]


# The agents, and the people around them


def model_of(plan: Plan, world: World) -> RetryingModel[ScriptedModel]:
    def answer(request: Request) -> Answer:
        said = sum(isinstance(message, Assistant) for message in request.messages)
        task = next(message.text for message in request.messages if isinstance(message, User))
        if task != PROMPT:
            inside = next(call.inside for call in plan.calls if call.number == int(task))
            return f"Task {task} is done." if said else [call.step() for call in inside]
        steps: list[Step] = [Say(f"Step {said}. ")]
        if said < len(plan.rounds):
            steps += [call.step() for call in plan.rounds[said]]
        else:
            steps = [Call("final_answer", rounds=len(plan.rounds), id="f")] if plan.typed else [Say(ANSWER)]
        breaks = plan.breaks[said] if said < len(plan.breaks) else ()
        times = world.times_asked(said)
        world.note("asked", said)
        return [*steps[: breaks[times]], Break()] if times < len(breaks) else steps

    return RetryingModel(ScriptedModel(answer), jitter=lambda: 0.5)


def decided(arguments: dict[str, Any]) -> Approval:
    match arguments["decision"]:
        case "deny":
            return Deny("not that one")
        case "edit":
            return Edit({**arguments, "seconds": 0.0})
        case _:
            return Allow()


def agent_of(plan: Plan, world: World, **options: Any) -> Agent[Any, Any]:
    """A new agent with new tools, over the same world."""

    def decide(call: ToolCall) -> Approval:
        arguments = call.arguments or {}
        return Wait() if arguments["waits"] else decided(arguments)

    def agent(name: str, tools: Sequence[Tool], **more: Any) -> Agent[Any, Any]:
        return Agent(
            model_of(plan, world),
            tools,
            name=name,
            on_approval=decide,
            schedule=plan.schedule,
            deps=world,
            output=REPORT if plan.typed and name != "clerk" else None,
            **more,
        )

    tools, kinds = tools_of(world), {call.tool for call in plan.calls}
    if "clerk" in kinds:
        tools.append(agent("clerk", tools_of(world)).as_tool("clerk", "Does things."))
    handoffs = [agent("second", tools)] if "transfer_to_second" in kinds else []
    return agent("main", tools, handoffs=handoffs, **options)


def answers_to(pending: Sequence[Any], uncertain: Sequence[str], world: World) -> dict[str, Any]:
    """What people answer to the calls that the run waits for: whoever is asked about a call that may have run looks
    whether it has."""

    def answer(call: Any) -> Any:
        number = call.arguments["number"]
        if call.name == "browse":
            return text_of("browse", number)
        if call.id in uncertain:
            return ToolResult.of(call, text_of(call.name, number)) if world.effects(number) else Allow()
        return decided(call.arguments)

    return {call.id: answer(call) for call in pending}


# What must hold


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended, and what it did."""

    text: str
    output: Any
    messages: tuple[Message, ...]
    calls: tuple[tuple[str, str, str], ...]
    """The id, the outcome and the text of each. Sorted: those that had ended when the run waited come first."""
    world: World

    @classmethod
    def of(cls, result: Result[Any], world: World) -> Ended:
        assert result.stop_reason == "answered"
        calls = tuple(sorted((call.id, call.outcome, call.result.text) for call in result.calls))
        return cls(result.text, result.output, result.messages, calls, world)


def in_flight(recording: Recording) -> set[str]:
    """The ids of the calls that have started there, and not ended."""
    open_calls: dict[int, str] = {}
    for event in recording.events:
        if isinstance(event, CallStarted):
            open_calls[event.call] = event.call_id
        elif isinstance(event, CallFinished):
            open_calls.pop(event.call, None)
    return {*open_calls.values()}


def some_places(last: int, many: int | None, seed: int, uncut: Ended, *, always: bool = False) -> Sequence[int]:
    """So many places from 1 to the last, at most half of them where something happened in the world: most are where
    nothing did. All places if `many` is None, and when fuzzing, unless it is `always` so many."""
    if many is None or (settings().max_examples > FEW and not always):
        return range(1, last + 1)
    dice, eventful = Random(seed), sorted({each.stored for each in uncut.world.happened if 0 < each.stored <= last})
    places = dice.sample(eventful, min(many // 2, len(eventful)))
    return sorted({*places, *dice.sample(range(1, last + 1), min(many - len(places), last))})


def check_uncut(plan: Plan, uncut: Ended) -> None:
    """Each call has its result, and nothing is unknown."""
    can_go_on(uncut.messages)
    assert (uncut.output.rounds if plan.typed else uncut.text) == (len(plan.rounds) if plan.typed else ANSWER)
    assert {call.id for call in plan.calls} <= {id for id, _, _ in uncut.calls}
    assert "unknown" not in {outcome for _, outcome, _ in uncut.calls}
    check_world(uncut.world, uncut.world)


def check_continued(plan: Plan, continued: Ended, uncut: Ended, open_calls: Collection[str]) -> None:
    """What must be true for a run that was cut and continued. `open_calls`: the ids of the calls that had started and
    had not ended when it was cut."""
    assert Transcript(continued.messages).closed
    assert (continued.text, continued.output) == (uncut.text, uncut.output)
    unknown = {id for id, outcome, _ in continued.calls if outcome == "unknown"}
    assert unknown <= {call.id for call in plan.calls if call.tool in UNSAFE} & {*open_calls}
    made, expected = continued.calls, uncut.calls
    if plan.has_background:  # a result arrives when it arrives: until then the model may have answered more than once
        made, expected = plan.without_answers(made), plan.without_answers(expected)
    differ = {*made} ^ {*expected}
    assert not (wrong := [call for call in differ if call[0] not in unknown]), wrong
    assert [id for id, _, _ in made] == [id for id, _, _ in expected]
    if not plan.has_background:
        assert without(continued.messages, unknown) == without(uncut.messages, unknown)
    check_world(continued.world, uncut.world)
    inside = {each.id for call in plan.calls for each in call.inside if each.tool in UNSAFE}  # only its agent reads it
    known = {each for each in times_of(uncut.world) if f"c{each[1]}" not in unknown | inside}
    assert known <= times_of(continued.world).keys(), "a result is there, and what it reports never happened"


def check_world(world: World, uncut: World) -> None:
    """No write had its effect twice, or one that it would not have had."""
    times = times_of(world)
    assert max(times.values(), default=1) == 1, times
    assert times.keys() <= times_of(uncut).keys()


def times_of(world: World) -> Counter[tuple[str, int, str]]:
    return Counter((each.what, each.number, each.key) for each in world.happened if each.what != "asked")


def without(messages: Sequence[Message], ids: Collection[str]) -> list[Message]:
    """The messages with empty results of these calls."""
    return [
        ToolMessage(tuple(ToolResult(each.call_id, ()) if each.call_id in ids else each for each in message.results))
        if isinstance(message, ToolMessage)
        else message
        for message in messages
    ]
