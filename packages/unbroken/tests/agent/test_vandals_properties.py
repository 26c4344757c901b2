"""Whatever code of a user gets is its own: middleware, approvers, sinks, checks, functions and tools may change it in
place, and the run stays as it is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st
from strategies import costly

from unbroken import Agent, Allow, Deny, Edit, Event, RetryingModel, Schedule, ScriptedModel, ToolCall, tool
from unbroken.events import event_to_json
from unbroken.guardrails import check_answers
from unbroken.middleware import Ask, Middleware, NextRequest
from unbroken.models.scripted import Answer, Break
from unbroken.tools.approval import Approval
from unbroken.tools.caller import Caller
from unbroken.tools.context import CallContext, RunContext
from unbroken_testing import Call, run_virtual
from unbroken_wires.deltas import CallReady, Delta
from unbroken_wires.messages import Assistant, Json, Message, Request, ToolResult
from unbroken_wires.transcript import to_json

Spoil = Callable[[Any], None]


def leave(value: Any) -> None:
    """A passive one."""


def spoil(value: Any) -> None:
    """Changes a JSON value, a call, a message or an event everywhere, in place."""
    match value:
        case dict():
            content = cast("dict[Any, Any]", value)
            for each in content.values():
                spoil(each)
            content["spoiled"] = content.pop(next(iter(content), ""), None)
        case list():
            content = cast("list[Any]", value)
            for each in content:
                spoil(each)
            content.append("spoiled")
        case tuple():
            for each in cast("tuple[Any, ...]", value):
                spoil(each)
        case ToolCall():
            spoil(value.arguments)
        case Assistant():
            spoil(value.calls)
        case Event():
            for each in vars(value).values():
                spoil(each)
            for name in vars(value):
                setattr(value, name, "spoiled")
        case _:
            pass


class Vandal(Middleware):
    """What it passes on is as it was; what it got is spoiled afterwards."""

    def __init__(self, spoil: Spoil) -> None:
        self.spoil = spoil

    async def ask_model(self, request: Request, call_next: Ask) -> AsyncIterator[Sequence[Delta]]:
        async for deltas in call_next(replace(request, messages=request.messages)):
            yield deltas
            for delta in deltas:
                self.spoil(delta.call if isinstance(delta, CallReady) else None)
        self.spoil(request.messages)

    async def before_request(self, request: NextRequest) -> None:
        self.spoil(request.messages)
        self.spoil(request.history)

    async def call_tool(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
        self.spoil(context.arguments)
        result = await call_next(call, context)
        self.spoil(call)
        self.spoil(context.arguments)
        return result

    def on_event(self, event: Event) -> None:
        self.spoil(event)


WHERE = st.fixed_dictionaries({"path": st.sampled_from("ab"), "more": st.lists(st.integers(0, 2), max_size=2)})
NAMES = st.sampled_from(["look", "write", "pay", "no_such_tool"])
CALLS = st.tuples(NAMES, WHERE).map(lambda drawn: Call(drawn[0], where=drawn[1]))
DECISIONS = st.sampled_from([Allow(), Deny("no"), Edit({"where": {"path": "c", "more": []}})])


@st.composite
def rounds(draw: st.DrawFn) -> list[Answer]:
    script: list[Answer] = []
    for calls in draw(st.lists(st.lists(CALLS, min_size=1, max_size=3), min_size=1, max_size=3)):
        if draw(st.integers(0, 3)) == 0:
            script.append([*calls, Break()])
        script.append([*calls])
    return [*script, "Done."]


def played(
    folder: Path, spoil: Spoil, script: list[Answer], decisions: list[Approval], schedule: Schedule, checks: bool
) -> tuple[list[Json], list[Any], bytes, list[Json]]:
    """The history, what ran, the recording, and what another sink heard."""
    ran: list[Any] = []
    heard: list[Json] = []
    left = iter(decisions * 9)

    def path_of(arguments: dict[str, Any]) -> str:
        path = str(arguments["where"]["path"])
        spoil(arguments)
        return path

    def asks(arguments: dict[str, Any]) -> bool:
        spoil(arguments)
        return True

    @tool(effect="read", key=path_of)
    async def look(where: dict[str, Any]) -> str:
        ran.append(("look", str(where)))
        spoil(where)
        return "looked"

    @tool(key=path_of)
    async def write(where: Any) -> str:
        ran.append(("write", str(where)))
        spoil(where)
        return "written"

    @tool(approve=asks)
    async def pay(where: dict[str, Any], context: CallContext[Any]) -> str:
        ran.append(("pay", str(where), context.key))
        spoil(where)
        spoil(context.arguments)
        return "paid"

    def approve(call: ToolCall) -> Approval:
        decision = next(left)
        ran.append(("asked", str(call.arguments)))
        spoil(call)
        return decision

    def instruct(context: RunContext[Any]) -> str:
        spoil(context.messages)
        return "Be brief."

    def trim(messages: tuple[Message, ...]) -> tuple[Message, ...]:
        spoil(messages)
        return messages

    agent = Agent(
        RetryingModel(ScriptedModel(*script)),
        [look, write, pay],
        instruct,
        schedule=schedule,
        on_approval=approve,
        trim=trim,
        middleware=[Vandal(spoil), *[check_answers(spoil)] * checks, Vandal(spoil)],
        sinks=[spoil, lambda event: heard.append(event_to_json(event))],
        record=folder / f"{spoil.__name__}.jsonl",
    )
    result = run_virtual(agent.run("Go.", run_id="r"))
    return to_json(result.messages), ran, (folder / f"{spoil.__name__}.jsonl").read_bytes(), heard


@costly
@given(
    script=rounds(),
    decisions=st.lists(DECISIONS, min_size=1, max_size=3),
    schedule=st.sampled_from(Schedule),
    checks=st.booleans(),
)
def test_a_run_is_the_same_whoever_spoils_what_he_gets(
    script: list[Answer], decisions: list[Approval], schedule: Schedule, checks: bool
) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        passive = played(folder, leave, script, decisions, schedule, checks)
        assert played(folder, spoil, script, decisions, schedule, checks) == passive
