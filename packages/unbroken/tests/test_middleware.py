"""Middleware: its changes are in the run, the first is the outermost, each run has a start and an end."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scenes import WIRES, Desk, accepted, play

from unbroken import (
    Agent,
    Allow,
    Event,
    Request,
    RetryingModel,
    RunFinished,
    ScriptedModel,
    TextAdded,
    ToolResult,
    tool,
)
from unbroken.errors import UserError
from unbroken.middleware import Ask, Middleware, RunStart
from unbroken.tools.approval import OnApproval
from unbroken.tools.caller import Caller
from unbroken.tools.context import CallContext
from unbroken.trajectory.recording import read_recording
from unbroken_testing import Break, Call, Say, Think, run_virtual
from unbroken_wires.deltas import CallReady, Delta, ReasoningDelta, TextDelta
from unbroken_wires.messages import Assistant, ToolCall


@tool
async def act(n: int = 0) -> str:
    """Act."""
    return f"acted {n}"


class Stars(Middleware):
    """Stars in place of a word."""

    async def ask_model(self, request: Request, call_next: Ask) -> AsyncIterator[Sequence[Delta]]:
        async for deltas in call_next(request):
            yield [
                TextDelta(delta.text.replace("secret", "******")) if isinstance(delta, TextDelta) else delta
                for delta in deltas
            ]


class Named(Middleware):
    """Records what passes it, under its name."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.name = name
        self.seen = seen

    async def ask_model(self, request: Request, call_next: Ask) -> AsyncIterator[Sequence[Delta]]:
        self.seen.append(f"{self.name} asks")
        async for deltas in call_next(request):
            yield deltas
        self.seen.append(f"{self.name} was answered")

    async def call_tool(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
        self.seen.append(f"{self.name} calls {call.name}")
        result = await call_next(call, context)
        self.seen.append(f"{self.name} got {result.text}")
        return result


@pytest.mark.parametrize("wire", WIRES)
def test_its_changes_are_in_the_history_result_events_and_recording(wire: str, tmp_path: Path) -> None:
    model = ScriptedModel(
        [Think("hm"), Say("the secret is here"), Call("act", n=1)],
        [Say("the secret "), Break()],
        "the secret once more",
        wire=wire,
    )
    events: list[Event] = []
    path = tmp_path / "run.jsonl"
    agent = Agent(RetryingModel(model), [act], middleware=[Stars()], sinks=[events.append], record=path)
    result = run_virtual(agent.run("Go."))
    assert result.text == "the ****** once more"
    assert [m.text for m in result.messages if isinstance(m, Assistant)] == ["the ****** is here", result.text]
    assert "".join(event.text for event in events if isinstance(event, TextAdded)) == f"the ****** is here{result.text}"
    assert isinstance(events[-1], RunFinished)
    assert events[-1].text == result.text
    assert "secret" not in json.dumps(model.bodies)
    assert "secret" not in path.read_text("utf-8")
    assert [call.result.text for call in result.calls] == ["acted 1"]


def test_a_call_that_it_changes_runs_with_the_change() -> None:
    class Doubles(Middleware):
        async def ask_model(self, request: Request, call_next: Ask) -> AsyncIterator[Sequence[Delta]]:
            async for deltas in call_next(request):
                yield [
                    CallReady(replace(delta.call, arguments={"n": 2})) if isinstance(delta, CallReady) else delta
                    for delta in deltas
                ]

    model = ScriptedModel([Call("act", n=1)], "Done.")
    result = run_virtual(Agent(model, [act], middleware=[Doubles()]).run("Go."))
    assert [(call.arguments, call.result.text) for call in result.calls] == [({"n": 2}, "acted 2")]
    (asked, _) = (message for message in result.messages if isinstance(message, Assistant))
    assert [call.arguments for call in asked.calls] == [{"n": 2}]


def test_the_first_is_the_outermost() -> None:
    seen: list[str] = []
    middleware = [Named("outer", seen), Named("inner", seen)]
    run_virtual(Agent(ScriptedModel([Call("act")], "Done."), [act], middleware=middleware).run("Go."))
    request = ["outer asks", "inner asks", "inner was answered", "outer was answered"]
    calls = ["outer calls act", "inner calls act", "inner got acted 0", "outer got acted 0"]
    assert seen == [*request, *calls, *request]


def test_a_run_may_have_its_own_middleware_from_start_to_end() -> None:
    lives: list[list[str]] = []

    class OfOneRun(Middleware):
        def __init__(self, run: str) -> None:
            self.life = [f"start {run}"]
            lives.append(self.life)

        def on_event(self, event: Event) -> None:
            if isinstance(event, TextAdded):
                self.life.append(event.text)

        def end(self) -> None:
            self.life.append("end")

    class Factory(Middleware):
        def start(self, run: RunStart) -> Middleware:
            return OfOneRun(run.run)

    agent = Agent(ScriptedModel("One.", "Two."), middleware=[Factory()])
    for run in ("a", "b"):
        run_virtual(agent.run("Go.", run_id=run))
    assert lives == [["start a", "One.", "end"], ["start b", "Two.", "end"]]


def test_a_failing_listener_is_removed_and_the_run_continues(caplog: pytest.LogCaptureFixture) -> None:
    class Fails(Middleware):
        def on_event(self, event: Event) -> None:
            raise ValueError("no")

    events: list[Event] = []
    result = run_virtual(Agent(ScriptedModel("Done."), middleware=[Fails()], sinks=[events.append]).run("Go."))
    assert result.text == "Done."
    assert isinstance(events[-1], RunFinished)
    assert "left out from now on" in caplog.text


def test_it_can_approve_instead_of_a_person() -> None:
    class Approves(Middleware):
        def approver(self, on_approval: OnApproval | None) -> OnApproval | None:
            return lambda call: Allow()

    @tool(approve=True)
    async def pay() -> str:
        return "paid"

    model = ScriptedModel([Call("pay")], "Done.")
    result = run_virtual(Agent(model, [pay], middleware=[Approves()]).run("Go."))
    assert result.calls[0].result.text == "paid"


def test_a_replay_uses_the_recording_and_does_not_call_it_again(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    seen: list[str] = []

    def agent(**options: Any) -> Agent:
        middleware = [Stars(), Named("inner", seen)]
        return Agent(ScriptedModel([Say("a secret"), Call("act")], "Done."), [act], middleware=middleware, **options)

    first = run_virtual(agent(record=path).run("Go."))
    seen.clear()
    assert agent().replay(path).messages == first.messages
    assert seen == []
    assert [line["result"]["content"][0]["text"] for line in read_recording(path).of("result")] == ["acted 0"]


def test_a_sink_may_be_middleware_and_middleware_may_be_for_one_run() -> None:
    seen: list[str] = []
    run_virtual(Agent(ScriptedModel("Done.")).run("Go.", sinks=[Named("once", seen)]))
    assert seen == ["once asks", "once was answered"]


class Shouting:
    """A model around a model: it edits what is streamed, and leaves the message at the end as it was."""

    name = "shouting"

    def __init__(self, model: ScriptedModel) -> None:
        self.model = model

    async def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        async for deltas in self.model.stream(request):
            yield [self.edited(delta) for delta in deltas]

    def edited(self, delta: Delta) -> Delta:
        match delta:
            case TextDelta(text):
                return TextDelta(text.upper())
            case ReasoningDelta(text):
                return ReasoningDelta(text.upper())
            case CallReady(call):
                return CallReady(replace(call, arguments={"q": "OSLO"}, raw='{"q": "OSLO"}'))
            case _:
                return delta


@pytest.mark.parametrize("wire", ["openai-chat", "anthropic-messages", "openai-responses"])
def test_what_a_model_around_a_model_streams_is_what_the_history_holds(wire: str) -> None:
    desk = Desk()
    inner = ScriptedModel([Think("hm."), "let me look. ", Call("look", q="oslo")], "done.", wire=wire)
    events: list[Event] = []
    result = play(Agent(Shouting(inner), desk.tools("look"), sinks=[events.append]))
    assert "".join(event.text for event in events if isinstance(event, TextAdded)) == "LET ME LOOK. DONE."
    assert (result.text, desk.ran) == ("DONE.", [("look", {"q": "OSLO"})])
    first, last = (message for message in result.messages if isinstance(message, Assistant))
    assert (first.text, first.reasoning, last.text) == ("LET ME LOOK. ", "HM.", "DONE.")
    assert [call.arguments for call in first.calls] == [{"q": "OSLO"}]
    assert "let me look" not in str(inner.bodies[-1]) + str(result.messages)
    accepted(inner, result)


@pytest.mark.parametrize(
    ("method", "meant"),
    [
        ("async def before_reqest(self, request): pass", "before_request"),
        ("def onEvent(self, event): pass", "on_event"),
        ("async def call_tools(self, call, context, call_next): pass", "call_tool"),
        ("def aprover(self, on_approval): pass", "approver"),
    ],
)
def test_a_misspelt_method_is_an_error(method: str, meant: str) -> None:
    with pytest.raises(UserError, match=rf"class Mine\(Middleware\): .* did you mean `{meant}`\?"):
        exec(f"class Mine(Middleware):\n    {method}", {"Middleware": Middleware})


@pytest.mark.parametrize(
    "method",
    [
        "def send(self): pass",
        "def restart(self, run): pass",
        "def note_event(self, event): pass",
        "def started(self): pass",
        "def _on_evnt(self, event): pass",
        "def on_event(self, event): pass\n    def on_events(self, event): pass",  # it has the right one too
        "on_events = 3",
    ],
)
def test_methods_of_your_own_are_left_alone(method: str) -> None:
    names: dict[str, Any] = {"Middleware": Middleware}
    exec(f"class Mine(Middleware):\n    {method}", names)
    assert issubclass(names["Mine"], Middleware)
