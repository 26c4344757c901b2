"""Agents as tools: what an inner agent asks, shows and costs is part of the outer run, which waits, stops and is
resumed together with it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scenes import Desk, accepted, can_go_on, only, play, play_aloud, texts

from unbroken import (
    Agent,
    Allow,
    CallContext,
    CallStarted,
    Deny,
    Edit,
    Event,
    Limits,
    Policy,
    Request,
    Result,
    RunFailed,
    RunFinished,
    RunView,
    ScriptedModel,
    TextAdded,
    ToolCall,
    UserError,
    Wait,
    client_tool,
    tool,
)
from unbroken.events import InnerEvent, LimitReached, TextFinished
from unbroken.models.scripted import Answer
from unbroken.tools.selection import select
from unbroken.trajectory.recorded_run import RecordedRun
from unbroken.trajectory.recording import read_recording
from unbroken_testing import Call, Say, Uses, run_virtual
from unbroken_wires.messages import Assistant, User


def in_turn(*answers: Answer) -> ScriptedModel:
    """A model whose answer depends on how often it has answered in this history: any process continues with it."""

    def answer(request: Request) -> Answer:
        return answers[sum(isinstance(message, Assistant) for message in request.messages)]

    return ScriptedModel(answer)


def researcher_of(desk: Desk, **settings: Any) -> Agent:
    """Looks, then puts something down, which needs an approval."""
    model = in_turn(
        [Call("look", what="x"), Uses(10, 1)], [Call("put", what="y", id="p"), Uses(20, 2)], ["Put.", Uses(30, 3)]
    )
    tools = [desk.tool("look", effect="read"), desk.tool("put", approve=True)]
    return Agent(model, tools, "Research.", **settings)


def outer_of(inner: Agent, *answers: Answer, **settings: Any) -> Agent:
    said = answers or ([Call("researcher", task="Do it.", id="r"), Uses(100, 10)], ["Done.", Uses(200, 20)])
    return Agent(in_turn(*said), [inner.as_tool("researcher", "Does things.")], **settings)


def wait(call: ToolCall) -> Wait:
    return Wait()


def allow(call: ToolCall) -> Allow:
    return Allow()


# Approvals


def test_an_inner_approval_reaches_the_approver_of_the_outer_run() -> None:
    asked: list[ToolCall] = []
    desk = Desk()

    def approve(call: ToolCall) -> Allow:
        asked.append(call)
        return Allow()

    result = play(outer_of(researcher_of(desk), on_approval=approve))
    assert [(call.agent, call.id, call.name, call.arguments) for call in asked] == [
        ("main/researcher", "r/p", "put", {"what": "y"})
    ]
    assert (result.text, texts(result), desk.names) == ("Done.", ["Put."], ["look", "put"])


def test_an_approver_of_its_own_decides_for_an_agent() -> None:
    desk = Desk()
    asked: list[ToolCall] = []

    def deny(call: ToolCall) -> Deny:
        asked.append(call)
        return Deny("not here")

    play(outer_of(researcher_of(desk, on_approval=deny), on_approval=allow))
    assert ([call.id for call in asked], desk.names) == (["p"], ["look"])


def test_agents_side_by_side_ask_one_after_another() -> None:
    asked: list[str] = []
    desk = Desk()

    async def approve(call: ToolCall) -> Allow:
        asked.append(f"{call.id} asked")
        await asyncio.sleep(1)
        asked.append(f"{call.id} answered")
        return Allow()

    calls = [Call("researcher", task=task, id=task) for task in "ab"]
    tools = [researcher_of(desk).as_tool("researcher", "Does things.", overlap=True)]
    result = play(Agent(in_turn(calls, "Done."), tools, on_approval=approve))
    assert asked == ["a/p asked", "a/p answered", "b/p asked", "b/p answered"]
    assert result.seconds == 2.0


def test_the_time_out_of_an_agent_does_not_count_while_a_person_decides() -> None:
    async def approve(call: ToolCall) -> Allow:
        await asyncio.sleep(100)
        return Allow()

    desk = Desk()
    tools = [researcher_of(desk).as_tool("researcher", "Does things.", timeout=5.0)]
    model = in_turn(Call("researcher", task="x"), "Done.")
    assert texts(play(Agent(model, tools, on_approval=approve))) == ["Put."]


# Waiting and resuming


def saved(result: Result[Any]) -> Any:
    return json.dumps(result.to_json())


def unsaved(result: Result[Any]) -> Any:
    return result


@pytest.mark.parametrize("form", [unsaved, saved])
def test_the_outer_run_waits_for_a_call_of_the_inner_one_and_continues_there(form: Callable[[Any], Any]) -> None:
    desk = Desk()
    agent = outer_of(researcher_of(desk), on_approval=wait)
    waiting = play(agent)
    assert waiting.stop_reason == "waiting"
    assert [(call.id, call.name, call.agent) for call in waiting.pending] == [("r/p", "put", "main/researcher")]
    assert desk.names == ["look"]
    result = run_virtual(agent.resume(form(waiting), {"r/p": Allow()}))
    assert (result.text, texts(result), desk.names) == ("Done.", ["Put."], ["look", "put"])
    assert result.usage.input_tokens == 100 + 10 + 20 + 30 + 200
    assert result.call_count == 3
    can_go_on(result.messages)


def test_a_decision_about_an_inner_call_may_deny_it_or_edit_it() -> None:
    desk = Desk()
    agent = outer_of(researcher_of(desk), on_approval=wait)
    waiting = play(agent)
    run_virtual(agent.resume(waiting, {"r/p": Edit({"what": "z"})}))
    run_virtual(agent.resume(waiting, {"r/p": Deny("no")}))
    assert desk.ran == [("look", {"what": "x"}), ("put", {"what": "z"})]


@pytest.mark.parametrize(
    ("decision", "what"), [(Deny("stop"), "denied"), (Allow(), "allowed"), (Edit({"task": "Stop."}), "edited")]
)
def test_a_call_whose_agent_has_begun_cannot_be_decided_about_as_if_nothing_had_run(decision: Any, what: str) -> None:
    desk = Desk()
    agent = outer_of(researcher_of(desk), on_approval=wait)
    waiting = play(agent)
    for answer in (True, "allow", "deny: no"):
        with pytest.raises(UserError, match=rf"{answer!r} for call `r/p` \(put\) is ambiguous; use Allow\(\)"):
            run_virtual(agent.resume(waiting, {"r/p": answer}))
    words = rf"call `r` cannot be {what} any more: .* decide about `r/p`, or give `r` a result"
    for answers in ({"r": decision}, {"r": decision, "r/p": Allow()}):
        with pytest.raises(UserError, match=words):
            run_virtual(agent.resume(waiting, answers))
    result = run_virtual(agent.resume(waiting, {"r": "It was stopped halfway."}))
    assert (texts(result), desk.names) == (["It was stopped halfway."], ["look"])


def test_a_decision_about_the_agent_that_was_recorded_earlier_is_no_new_one(tmp_path: Path) -> None:
    desk, record = Desk(), tmp_path / "run.jsonl"
    asked: list[str] = []

    def first_the_agent(call: ToolCall) -> Allow | Wait:
        asked.append(call.id)
        return Allow() if call.id == "r" else Wait()

    tools = [select(researcher_of(desk).as_tool("researcher", "Does things."), approve=True)]
    agent = Agent(in_turn(Call("researcher", task="x", id="r"), "Done."), tools, on_approval=first_the_agent)
    run_virtual(lambda: Agent(agent.model, tools, on_approval=first_the_agent, record=record).run("Go."))
    assert asked == ["r", "r/p"]
    with pytest.raises(UserError, match="call `r` cannot be allowed any more"):
        run_virtual(lambda: agent.resume(record, {"r": Allow()}))
    result = run_virtual(lambda: agent.resume(record, {"r/p": Allow()}))
    assert (result.text, texts(result), desk.names, asked) == ("Done.", ["Put."], ["look", "put"], ["r", "r/p"])


@pytest.mark.parametrize("form", [unsaved, saved])
def test_ids_of_providers_may_have_slashes(form: Callable[[Any], Any]) -> None:
    """The agent that runs in `call` waits for `call/1/p`, and so would a call `1/p` of one that runs in `call`."""
    desk = Desk()
    calls = [Call("researcher", task=id, id=id) for id in ("call", "call/1")]
    tools = [researcher_of(desk).as_tool("researcher", "Does things.", overlap=True)]
    agent = Agent(in_turn(calls, "Done."), tools, on_approval=wait)
    waiting = play(agent)
    assert [call.id for call in waiting.pending] == ["call/p", "call/1/p"]
    again = run_virtual(agent.resume(form(waiting), {"call/1/p": Deny()}))
    assert ([call.id for call in again.pending], desk.names) == (["call/p"], ["look", "look"])
    result = run_virtual(agent.resume(form(again), {"call/p": Allow()}))
    assert (result.text, texts(result), desk.names) == ("Done.", ["Put.", "Put."], ["look", "look", "put"])
    with pytest.raises(UserError, match=r"call `call/1` cannot be allowed any more: .* decide about `call/1/p`, or"):
        run_virtual(agent.resume(form(waiting), {"call/1": Allow()}))


@pytest.mark.parametrize("form", [unsaved, saved])
def test_an_id_that_two_waiting_calls_have_is_refused(form: Callable[[Any], Any]) -> None:
    desk = Desk()
    calls = [Call("researcher", task="x", id="a"), Call("put", id="a/p")]
    tools = [researcher_of(desk).as_tool("researcher", "Does things."), desk.tool("put", approve=True)]
    agent = Agent(in_turn(calls, "Done."), tools, on_approval=wait)
    waiting = play(agent)
    assert [call.id for call in waiting.pending] == ["a/p", "a/p"]
    with pytest.raises(UserError, match=r"several waiting calls have the id `a/p`; .* a result instead: `a`"):
        run_virtual(agent.resume(form(waiting), {"a/p": Allow()}))
    again = run_virtual(agent.resume(form(waiting), {"a": "It was stopped."}))
    result = run_virtual(agent.resume(form(again), {"a/p": Allow()}))
    assert (texts(result), desk.names) == (["It was stopped.", "ok"], ["look", "put"])


def test_a_run_may_wait_for_a_result_of_an_inner_client() -> None:
    inner = Agent(in_turn(Call("ask_user", id="u"), "They said: 7."), [client_tool("ask_user", "Asks.", {})])
    agent = outer_of(inner)
    waiting, events = play_aloud(agent)
    assert [call["needs"] for call in only(RunFinished, events)[0].pending] == ["result"]
    result = run_virtual(agent.resume(saved(waiting), {"r/u": "seven"}))
    assert texts(result) == ["They said: 7."]


def test_two_agents_that_wait_side_by_side_are_told_apart_though_their_ids_are_the_same() -> None:
    desk = Desk()
    calls = [Call("researcher", task=task, id=task) for task in "ab"]
    tools = [researcher_of(desk).as_tool("researcher", "Does things.", overlap=True)]
    agent = Agent(in_turn(calls, "Done."), tools, on_approval=wait)
    waiting = play(agent)
    assert [call.id for call in waiting.pending] == ["a/p", "b/p"]
    again = run_virtual(agent.resume(saved(waiting), {"b/p": Allow()}))
    assert [call.id for call in again.pending] == ["a/p"]
    result = run_virtual(agent.resume(saved(again), {"a/p": Deny()}))
    assert (result.text, desk.names) == ("Done.", ["look", "look", "put"])


def test_an_agent_inside_of_an_agent_inside_of_an_agent_can_wait() -> None:
    desk = Desk()
    middle = outer_of(researcher_of(desk))
    agent = Agent(
        in_turn(Call("middle", task="x", id="m"), "Done."), [middle.as_tool("middle", "Asks.")], on_approval=wait
    )
    waiting = play(agent)
    assert [(call.id, call.agent) for call in waiting.pending] == [("m/r/p", "main/middle/researcher")]
    result = run_virtual(agent.resume(saved(waiting), {"m/r/p": Allow()}))
    assert (result.text, texts(result), desk.names) == ("Done.", ["Done."], ["look", "put"])


def test_an_answer_to_a_call_that_does_not_wait_names_those_that_do() -> None:
    agent = outer_of(researcher_of(Desk()), on_approval=wait)
    waiting = play(agent)
    with pytest.raises(UserError, match=r"no call with the id `p` is waiting; waiting: `r/p` \(put\)"):
        run_virtual(agent.resume(waiting, {"p": Allow()}))


def test_a_recorded_run_that_waits_inside_is_resumed_from_its_file(tmp_path: Path) -> None:
    desk, record = Desk(), tmp_path / "run.jsonl"
    agent = outer_of(researcher_of(desk), on_approval=wait)
    run_virtual(lambda: outer_of(researcher_of(desk), on_approval=wait, record=record).run("Go."))
    result = run_virtual(lambda: agent.resume(record, {"r/p": Allow()}))
    assert (result.text, texts(result), desk.names) == ("Done.", ["Put."], ["look", "put"])
    assert result.usage.input_tokens == 100 + 10 + 20 + 30 + 200
    assert result.call_count == 3


# Crashes


@pytest.mark.parametrize("waits", [False, True], ids=["approved", "waited"])
def test_after_a_crash_at_any_line_nothing_that_was_recorded_runs_again(tmp_path: Path, waits: bool) -> None:
    record = tmp_path / "run.jsonl"

    def team(desk: Desk, **settings: Any) -> Agent:
        return outer_of(researcher_of(desk), on_approval=wait if waits else allow, **settings)

    def resume(desk: Desk) -> Result[Any]:
        answers = {"r/p": Allow()} if _is_waiting(record) else {}
        return run_virtual(lambda: team(desk).resume(record, answers))

    whole = run_virtual(lambda: team(Desk(), record=record).run("Go."))
    if waits:
        whole = resume(Desk())
    lines = record.read_bytes().splitlines(keepends=True)
    for count in range(1, len(lines)):
        record.write_bytes(b"".join(lines[:count]))
        inner = _inner(record)
        started = [name for name in ("look", "put") if _started(inner, name)]
        done = [name for name in ("look", "put") if _has_result(inner, name)]
        desk = Desk()
        result = resume(desk)
        if result.stop_reason == "waiting":
            result = resume(desk)
        assert result.text == "Done."
        assert not set(done) & set(desk.names), count
        assert ("put" in desk.names) == ("put" not in started), count
        if "put" in done or "put" not in started:  # otherwise its outcome is unknown, and the inner agent reads that
            assert (texts(result), result.call_count) == (["Put."], 3), count
            assert result.usage.total_tokens >= whole.usage.total_tokens, (
                count
            )  # an answer that was cut off is paid, too


def _is_waiting(record: Path) -> bool:
    recording = read_recording(record)
    return isinstance(recording.ending, RunFinished) and recording.ending.stop_reason == "waiting"


def _inner(record: Path) -> list[dict[str, Any]]:
    """The lines of the inner run."""
    inner = RecordedRun.of(read_recording(record)).inner
    runs = [inner.recording(record, key, 0, "") for key in inner.by_key]
    return [line for run in runs if run is not None for line in run.lines]


def _started(lines: list[dict[str, Any]], name: str) -> bool:
    return any(line.get("event") == "call_started" and line["name"] == name for line in lines)


def _has_result(lines: list[dict[str, Any]], name: str) -> bool:
    return any(line["line"] == "result" and line["result"].get("name") == name for line in lines)


# Events


def test_events_of_an_agent_are_part_of_the_outer_run_and_nested_in_its_view() -> None:
    _, events = play_aloud(outer_of(researcher_of(Desk()), on_approval=allow))
    inner = only(InnerEvent, events)
    assert {(event.agent, event.call_id, event.name) for event in inner} == {("main/researcher", "r", "researcher")}
    assert [event.event.name for event in inner if isinstance(event.event, CallStarted)] == ["look", "put"]
    assert [event.seq for event in events] == list(range(len(events)))
    call = RunView.of(events).calls[0]
    assert call.inner is not None
    assert (call.agent, [each.name for each in call.inner.calls]) == ("main/researcher", ["look", "put"])
    assert (call.inner.text, call.inner.stop_reason) == ("Put.", "answered")


def test_events_of_an_agent_inside_of_an_agent_are_nested_twice() -> None:
    middle = outer_of(researcher_of(Desk()))
    model = in_turn(Call("middle", task="x", id="m"), "Done.")
    agent = Agent(model, [middle.as_tool("middle", "Asks.")], on_approval=allow)
    view = RunView.of(play_aloud(agent)[1])
    between = view.calls[0].inner
    assert between is not None
    innermost = between.calls[0].inner
    assert innermost is not None
    assert (between.calls[0].agent, [call.name for call in innermost.calls]) == (
        "main/middle/researcher",
        ["look", "put"],
    )


@pytest.mark.parametrize("stream_text", [False, True])
def test_the_text_of_an_agent_is_streamed_if_that_is_wanted_and_never_mixed_with_the_outer_text(
    stream_text: bool,
) -> None:
    inner = Agent(ScriptedModel([Say("It is forty-two.", chunks=4)]))
    tools = [inner.as_tool("researcher", "Knows.", stream_text=stream_text)]
    _, events = play_aloud(Agent(in_turn(Call("researcher", task="x"), "Done."), tools))
    told = [event.event for event in only(InnerEvent, events)]
    assert "".join(event.text for event in told if isinstance(event, TextAdded)) == (
        "It is forty-two." if stream_text else ""
    )
    assert [event.text for event in told if isinstance(event, TextFinished)] == ["It is forty-two."]
    assert "".join(event.text for event in only(TextAdded, events)) == "Done."


def test_a_recorded_team_is_replayed_with_its_inner_events_and_without_its_tools(tmp_path: Path) -> None:
    desk, record, told = Desk(), tmp_path / "run.jsonl", list[Event]()
    inner = researcher_of(desk).as_tool("researcher", "Does things.", stream_text=True)
    model = in_turn([Call("researcher", task="Do it."), Uses(1, 1)], "Done.")
    agent = Agent(model, [inner], on_approval=allow)
    recorded = Agent(model, [inner], on_approval=allow, record=record, sinks=[told.append])
    result = run_virtual(lambda: recorded.run("Go."))
    again: list[Event] = []
    replayed = agent.replay(record, sinks=[again.append])
    assert again == told
    assert read_recording(record).events == told
    assert (replayed.messages, replayed.usage, replayed.call_count) == (result.messages, result.usage, 3)
    assert desk.names == ["look", "put"]


def test_a_recorded_run_that_waits_inside_is_replayed_up_to_there(tmp_path: Path) -> None:
    record = tmp_path / "run.jsonl"
    agent = outer_of(researcher_of(Desk()), on_approval=wait)
    waiting = run_virtual(lambda: outer_of(researcher_of(Desk()), on_approval=wait, record=record).run("Go."))
    replayed = agent.replay(record)
    assert (replayed.stop_reason, replayed.pending, replayed.usage) == ("waiting", waiting.pending, waiting.usage)


# Usage, limits, cancellation, deps


def test_a_token_limit_of_the_outer_run_stops_the_inner_one_with_an_answer() -> None:
    desk = Desk()
    inner = Agent(
        ScriptedModel([Call("look"), Uses(400, 0)], [Call("look", what=1), Uses(400, 0)], ["So far: 2.", Uses(1, 0)]),
        desk.tools("look"),
    )
    result, events = play_aloud(outer_of(inner, limits=Limits(tokens=600)))
    assert texts(result) == ["So far: 2."]
    assert (result.stop_reason, desk.names) == ("token_limit", ["look", "look"])
    inside = [event.event for event in only(InnerEvent, events)]
    assert [(event.kind, event.limit) for event in inside if isinstance(event, LimitReached)] == [("token_limit", 600)]


def test_the_calls_of_an_agent_count_for_the_limit_of_the_outer_run() -> None:
    desk = Desk()
    inner = Agent(ScriptedModel([Call("look", what=n) for n in range(4)], "Enough."), desk.tools("look"))
    result = play(outer_of(inner, limits=Limits(calls=3)))
    assert (desk.names, result.call_count, result.stop_reason) == (["look", "look"], 3, "call_limit")
    assert texts(result) == ["Enough."]


def test_limits_of_its_own_hold_for_an_agent_too() -> None:
    desk = Desk()
    inner = Agent(ScriptedModel(Call("look"), "Enough."), desk.tools("look"), limits=Limits(rounds=1))
    result = play(outer_of(inner, limits=Limits(calls=30)))
    assert (texts(result), result.stop_reason) == (["Enough."], "answered")


def test_the_time_limit_of_the_outer_run_ends_the_inner_one_at_once() -> None:
    desk = Desk()
    inner = Agent(ScriptedModel(Call("look")), [desk.tool("look", seconds=99.0, timeout=None)])
    result, events = play_aloud(outer_of(inner, limits=Limits(seconds=3.0)))
    assert (result.stop_reason, result.seconds, result.text) == ("time_limit", 3.0, "Done.")
    assert desk.spans == [("look", 0.0, None)]
    inside = [event.event for event in only(InnerEvent, events)]
    assert [event.error for event in inside if isinstance(event, RunFailed)] == ["CancelledError"]
    can_go_on(result.messages)


def test_an_agent_can_be_given_deps_of_its_own() -> None:
    found: list[Any] = []

    @tool
    async def look(context: CallContext[Any]) -> str:
        """Look."""
        found.append(context.deps)
        return "seen"

    options: tuple[dict[str, Any], ...] = ({}, {"deps": "theirs"}, {"deps": None})
    for given in options:
        inner = Agent(ScriptedModel(Call("look"), "Seen."), [look], deps="its own")
        tools = [inner.as_tool("researcher", "Looks.", **given)]
        play(Agent(in_turn(Call("researcher", task="x"), "Done."), tools), deps="the run's")
    assert found == ["the run's", "theirs", "its own"]


# Recursion


def test_an_agent_that_contains_itself_stops_at_the_depth_limit() -> None:
    asked: list[str] = []

    def answer(request: Request) -> Answer:
        last = request.messages[-1]
        if isinstance(last, User):
            asked.append(last.text)
            return Call("again", task=f"{last.text}!")
        return last.results[0].text  # type: ignore[union-attr] - a message with results

    def tools(context: Any) -> list[Any]:
        return [agent.as_tool("again", "Does it.")]

    agent = Agent(ScriptedModel(answer), tools, policy=Policy(agent_depth=2))
    result = play(agent)
    assert asked == ["Go.", "Go.!", "Go.!!"]
    assert result.text == (
        "Error: not executed: `main/again/again/again` would be an agent inside of too many others, and "
        "Policy(agent_depth=2) allows no more: do this yourself, or answer with what you have"
    )
    accepted(agent.model, result)  # type: ignore[arg-type] - it is scripted


def test_the_depth_limit_of_the_outermost_agent_holds_for_all() -> None:
    inner = researcher_of(Desk(), policy=Policy(agent_depth=9))
    result = play(outer_of(inner, policy=Policy(agent_depth=0)))
    assert [call.outcome for call in result.calls] == ["not_executed"]
