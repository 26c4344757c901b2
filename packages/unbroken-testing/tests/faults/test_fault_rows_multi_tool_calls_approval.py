"""Calls that need an approval, and calls that run in the client: next to others, in call order, and after a break, also
from a saved state."""

from __future__ import annotations

import json
from operator import itemgetter
from typing import Any

import pytest
from scenes import (
    Desk,
    accepted,
    can_go_on,
    on_every_wire,
    only,
    play,
    play_aloud,
    results_in,
    texts,
    under_every_schedule,
)

from unbroken import (
    Agent,
    Allow,
    CallContext,
    CallStarted,
    Conversation,
    Deny,
    Edit,
    Result,
    Schedule,
    ScriptedModel,
    Tool,
    ToolCall,
    UserError,
    Wait,
    client_tool,
    tool,
)
from unbroken.events import ApprovalAsked
from unbroken.tools.approval import Approval
from unbroken_testing import Call, Pause, run_virtual

PLACE: dict[str, Any] = {"type": "object", "properties": {"accuracy": {"type": "integer"}}}


def sent(to: str) -> str:
    return f"sent to {to}"


def office(desk: Desk) -> list[Tool]:
    return [desk.tool("look", "seen", effect="read"), desk.tool("send", sent, approve=True)]


LOOK_AND_SEND = [Call("look", id="1"), Call("send", to="Ann", id="2"), Call("look", at=2, id="3")]


@under_every_schedule
@on_every_wire
def test_an_allowed_call_runs(wire: str, schedule: Schedule) -> None:
    desk = Desk()
    asked: list[ToolCall] = []

    async def on_approval(call: ToolCall) -> Approval:
        asked.append(call)
        return Allow()

    model = ScriptedModel(LOOK_AND_SEND, "Done.", wire=wire)
    result, events = play_aloud(Agent(model, office(desk), on_approval=on_approval, schedule=schedule))
    assert [(call.name, call.arguments) for call in asked] == [("send", {"to": "Ann"})]
    assert [event.call_id for event in only(ApprovalAsked, events)] == ["2"]
    assert texts(result) == ["seen", "sent to Ann", "seen"]
    assert result.text == "Done."
    accepted(model, result)


@under_every_schedule
@on_every_wire
def test_a_denied_call_is_reported_to_the_model_and_the_others_run(wire: str, schedule: Schedule) -> None:
    desk = Desk()
    model = ScriptedModel(LOOK_AND_SEND, "Done.", wire=wire)
    result = play(Agent(model, office(desk), on_approval=lambda call: Deny("not today"), schedule=schedule))
    assert desk.names == ["look", "look"]
    assert texts(result) == ["seen", "Error: not executed: denied: not today", "seen"]
    assert result.text == "Done."
    accepted(model, result)


def test_without_an_approver_a_call_is_denied_and_reported() -> None:
    desk = Desk()
    result = play(Agent(ScriptedModel(LOOK_AND_SEND, "Done."), office(desk)))
    assert desk.names == ["look", "look"]
    assert "needs an approval" in texts(result)[1]


def test_a_failing_approver_does_not_allow() -> None:
    desk = Desk()

    def on_approval(call: ToolCall) -> Approval:
        raise RuntimeError("the window is closed")

    result = play(Agent(ScriptedModel(LOOK_AND_SEND, "Done."), office(desk), on_approval=on_approval))
    assert desk.names == ["look", "look"]
    assert "denied: the approval failed" in texts(result)[1]
    assert "the window is closed" not in texts(result)[1]  # it may hold a secret: it is in the log
    assert str(result.calls[1].result.exception) == "the window is closed"


@under_every_schedule
@on_every_wire
def test_an_edited_call_runs_with_the_new_arguments_and_the_model_is_told(wire: str, schedule: Schedule) -> None:
    desk = Desk()
    model = ScriptedModel(LOOK_AND_SEND, "Done.", wire=wire)
    result = play(Agent(model, office(desk), on_approval=lambda call: Edit({"to": "Bob"}), schedule=schedule))
    assert ("send", {"to": "Bob"}) in desk.ran
    assert texts(result)[1].startswith("sent to Bob")
    assert "Its arguments were changed" in texts(result)[1]
    accepted(model, result)


def saved_to(path: str) -> str:
    return f"saved to {path}"


def is_a(arguments: dict[str, Any]) -> bool:
    return arguments["path"] == "a"


def is_deep(arguments: dict[str, Any]) -> bool:
    return bool(arguments.get("deep"))


def test_a_call_that_needs_an_approval_never_starts_early() -> None:
    desk = Desk()
    look = desk.tool("look", effect="read", approve=is_deep)
    model = ScriptedModel([Call("look"), Call("look", deep=True), Pause(1.0)], "Done.")
    result, events = play_aloud(Agent(model, [look], on_approval=lambda call: Allow()))
    assert [(event.arguments, event.early) for event in only(CallStarted, events)] == [
        ({}, True),
        ({"deep": True}, False),
    ]
    assert [execution.started for execution in desk.executions] == [0.0, 1.0]
    assert result.text == "Done."


def waiting(wire: str, schedule: Schedule, desk: Desk) -> tuple[ScriptedModel, Agent, Result]:
    model = ScriptedModel(LOOK_AND_SEND, "Done.", wire=wire)
    agent = Agent(model, office(desk), on_approval=lambda call: Wait(), schedule=schedule)
    return model, agent, play(agent)


DECISIONS: list[Any] = [
    pytest.param(Allow(), "sent to Ann", id="allow"),
    pytest.param(Deny("no"), "Error: not executed: denied: no", id="deny"),
    pytest.param(Edit({"to": "Bob"}), "sent to Bob", id="edit"),
    pytest.param("sent by hand", "sent by hand", id="a value"),
]


@pytest.mark.parametrize("saved", [False, True], ids=["from the result", "from JSON"])
@pytest.mark.parametrize(("decision", "told"), DECISIONS)
@under_every_schedule
@on_every_wire
def test_a_waiting_run_continues_with_the_answer(
    wire: str, schedule: Schedule, decision: Any, told: str, saved: bool
) -> None:
    """Every call runs once, over both parts, and the results are in call order."""
    desk = Desk()
    model, agent, result = waiting(wire, schedule, desk)
    assert (result.stop_reason, [call.id for call in result.pending], result.text) == ("waiting", ["2"], "")
    assert len(model.requests) == 1
    left: Any = json.loads(json.dumps(result.to_json())) if saved else result
    if saved:
        agent = Agent(model, office(desk), schedule=schedule)
    ended = run_virtual(agent.resume(left, {"2": decision}))
    assert (ended.text, ended.stop_reason, ended.requests, ended.rounds) == ("Done.", "answered", 2, 1)
    assert texts(ended)[1].startswith(told)
    assert [texts(ended)[0], texts(ended)[2]] == ["seen", "seen"]
    assert desk.names.count("look") == 2
    assert desk.names.count("send") == (1 if isinstance(decision, Allow | Edit) else 0)
    accepted(model, ended)


@pytest.mark.parametrize("saved", [False, True], ids=["from the result", "from JSON"])
@pytest.mark.parametrize("schedule", [Schedule.PARALLEL, Schedule.EAGER])
@on_every_wire
def test_a_call_that_did_not_have_to_wait_does_not_run_again(wire: str, schedule: Schedule, saved: bool) -> None:
    """The third has another key, so it ends before the second is allowed; the results are in call order anyway."""
    desk = Desk()
    save = desk.tool("save", saved_to, key=itemgetter("path"), approve=is_a)
    model = ScriptedModel([Call("save", path=path, id=path) for path in "bac"], "Done.", wire=wire)
    agent = Agent(model, [save], on_approval=lambda call: Wait(), schedule=schedule)
    result = play(agent)
    assert [call.id for call in result.pending] == ["a"]
    assert [answer.call_id for answer in result.answered] == ["b", "c"]
    ended = run_virtual(agent.resume(result.to_json() if saved else result, {"a": Allow()}))
    assert [arguments["path"] for _, arguments in desk.ran] == ["b", "c", "a"]
    assert results_in(ended.messages) == [("b", "saved to b"), ("a", "saved to a"), ("c", "saved to c")]
    accepted(model, ended)


def test_a_run_may_wait_again_and_wrong_ids_are_refused() -> None:
    desk = Desk()
    _, agent, result = waiting("openai-chat", Schedule.EAGER, desk)
    again = run_virtual(agent.resume(result, {"2": Wait()}))
    assert (again.stop_reason, [call.id for call in again.pending]) == ("waiting", ["2"])
    with pytest.raises(UserError, match="no call with the id `9` is waiting; waiting: `2`"):
        run_virtual(agent.resume(again, {"9": Allow()}))
    assert run_virtual(agent.resume(again, {"2": Allow()})).text == "Done."
    assert desk.names.count("send") == 1


def test_a_waiting_conversation_can_be_saved_and_continued(tmp_path: Any) -> None:
    desk = Desk()
    model = ScriptedModel(LOOK_AND_SEND, "Done.", "You are welcome.")
    agent = Agent(model, office(desk), on_approval=lambda call: Wait())
    path = tmp_path / "chat.json"

    async def main() -> None:
        chat = Conversation(agent)
        await chat.say("Go.")
        chat.save(path)
        chat = Conversation.load(agent, path)
        assert [call.id for call in chat.pending] == ["2"]
        assert (await chat.resume({"2": Allow()})).text == "Done."
        assert (await chat.say("Thanks.")).text == "You are welcome."
        can_go_on(chat.messages)

    run_virtual(main())
    assert desk.names.count("send") == 1
    accepted(model)


def test_a_new_prompt_instead_of_an_answer_leaves_no_call_open() -> None:
    desk = Desk()
    model = ScriptedModel(LOOK_AND_SEND, "As you like.")
    chat = Conversation(Agent(model, office(desk), on_approval=lambda call: Wait()))

    async def main() -> None:
        await chat.say("Go.")
        assert (await chat.say("Never mind.")).text == "As you like."

    run_virtual(main())
    assert [text for _, text in results_in(chat.messages)][1].startswith("Error: not executed: the user spoke")
    accepted(model)
    can_go_on(chat.messages)


@pytest.mark.parametrize("saved", [False, True], ids=["from the result", "from JSON"])
@under_every_schedule
@on_every_wire
def test_a_call_that_runs_in_the_client_waits_for_its_result(wire: str, schedule: Schedule, saved: bool) -> None:
    desk = Desk()
    locate = client_tool("locate", "Where the user is.", PLACE)
    tools = [desk.tool("look", "seen", effect="read"), locate]
    calls = [Call("look", id="1"), Call("locate", accuracy=5, id="2"), Call("look", at=2, id="3")]
    model = ScriptedModel(calls, "You are in Oslo.", wire=wire)
    agent = Agent(model, tools, schedule=schedule)
    result = play(agent)
    assert result.stop_reason == "waiting"
    assert [(call.name, call.arguments) for call in result.pending] == [("locate", {"accuracy": 5})]
    left: Any = json.dumps(result.to_json()) if saved else result
    ended = run_virtual(agent.resume(left, {"2": {"city": "Oslo"}}))
    assert [json.loads(text) if text.startswith("{") else text for text in texts(ended)] == [
        "seen",
        {"city": "Oslo"},
        "seen",
    ]
    assert (ended.text, desk.names) == ("You are in Oslo.", ["look", "look"])
    accepted(model, ended)


@pytest.mark.parametrize("decisions", [[Allow(), Wait()], [Wait(), Wait()], [Allow(), Allow()]], ids=repr)
@under_every_schedule
def test_identical_calls_have_separate_keys_even_after_a_break(schedule: Schedule, decisions: list[Approval]) -> None:
    """A service that gets the idempotency key must not mistake the second payment for the first."""
    keys: dict[str, str] = {}

    @tool(approve=True)
    async def pay(to: str, context: CallContext[None]) -> str:
        """Pay."""
        keys[context.call_id] = context.key
        return "paid"

    def agent() -> Agent:
        model = ScriptedModel([Call("pay", to="Ann", id="1"), Call("pay", to="Ann", id="2")], "Done.")
        answers = iter(decisions)
        return Agent(model, [pay], on_approval=lambda call: next(answers), schedule=schedule)

    def paid() -> dict[str, str]:
        keys.clear()
        payer = agent()
        result = play(payer, run_id="r")
        while result.pending:
            result = run_virtual(payer.resume(result, {call.id: Allow() for call in result.pending}))
        assert sorted(keys) == ["1", "2"]
        return dict(keys)

    first = paid()
    assert first["1"] != first["2"]
    assert paid() == first


@pytest.mark.parametrize("as_text", [False, True], ids=["a dict", "text"])
@on_every_wire
def test_a_run_resumes_exactly_from_what_was_saved(wire: str, as_text: bool) -> None:
    """Rows 37 and 36: numbers beyond 64 bits, and half a surrogate pair in a result."""
    big = 123456789012345678901234567890
    desk = Desk()
    tools = [desk.tool("look", "half: \ud83d.", effect="read"), desk.tool("send", effect="exclusive", approve=True)]
    model = ScriptedModel([Call("look", n=big, id="1"), Call("send", n=big, id="2")], "Done.", wire=wire)
    agent = Agent(model, tools, on_approval=lambda call: Wait())
    result = play(agent)
    saved: Any = json.dumps(result.to_json()) if as_text else result.to_json()
    ended = run_virtual(agent.resume(saved, {"2": Allow()}))
    assert desk.ran == [("look", {"n": big}), ("send", {"n": big})]
    assert ended.messages[: len(result.messages)] == result.messages
    accepted(model, ended)


@under_every_schedule
def test_all_waiting_calls_are_reported_at_once(schedule: Schedule) -> None:
    """Two approvals and a client call, each after the other: one trip, not three. A part may be answered."""
    desk = Desk()
    tools = [desk.tool("delete", approve=True), client_tool("locate", "Where?", {"type": "object"})]

    async def main() -> None:
        model = ScriptedModel([Call("delete", n=1), Call("delete", n=2), Call("locate")], "Done.")
        result = await Agent(model, tools, schedule=schedule, on_approval=lambda call: Wait()).run("Go.")
        first, second, locate = result.pending
        part = await Agent(model, tools, schedule=schedule).resume(result.to_json(), {first.id: Allow()})
        assert (part.stop_reason, part.pending) == ("waiting", (second, locate))
        whole = await Agent(model, tools, schedule=schedule).resume(part, {second.id: Deny("no"), locate.id: "Rome"})
        assert [text for _, text in results_in(whole.messages)] == [
            "ok",
            "Error: not executed: denied: no",
            "Rome",
        ]
        accepted(model, whole)

    run_virtual(main())
    assert desk.ran == [("delete", {"n": 1})]
