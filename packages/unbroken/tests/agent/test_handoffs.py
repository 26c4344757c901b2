"""Hand-offs: another agent takes over a run with its history, and it stays one run: recorded, replayed, resumed and
limited as such."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from scenes import PROVIDERS, WIRES, Desk, accepted, can_go_on, only, play, play_aloud, roles, texts

from unbroken import (
    Agent,
    Allow,
    CallContext,
    Event,
    Limits,
    Model,
    Policy,
    Request,
    Result,
    RunFinished,
    RunView,
    Schedule,
    ScriptedModel,
    ToolCall,
    UserError,
    Wait,
    connect,
    tool,
)
from unbroken.agent.recorded_agent import agent_of, output_of
from unbroken.events import AgentChanged
from unbroken.guardrails import Veto
from unbroken.models.scripted import Answer
from unbroken.trajectory.recording import read_recording
from unbroken_testing import Call, ScriptedServer, Think, Uses, run_virtual
from unbroken_wires.messages import Assistant, Message, Sampling, System, ToolMessage


def in_turn(*answers: Answer) -> ScriptedModel:
    """A model whose answer depends on how many answers the history has: any process continues with it."""

    def answer(request: Request) -> Answer:
        return answers[sum(isinstance(message, Assistant) for message in request.messages)]

    return ScriptedModel(answer)


def team(desk: Desk, **settings: Any) -> Agent:
    """Triage looks and hands off to billing, which refunds."""
    billing = Agent(
        in_turn("", "", [Call("refund", what="x", id="f"), Uses(10, 1)], ["Refunded.", Uses(20, 2)]),
        [desk.tool("refund", approve=settings.pop("approve", False))],
        "You are billing.",
        name="billing",
        sampling=Sampling(temperature=0.5),
    )
    return Agent(
        in_turn([Call("look", id="l"), Uses(1, 0)], [Call("transfer_to_billing", id="t"), Uses(2, 0)]),
        [desk.tool("look", effect="read")],
        "You are triage.",
        handoffs=[billing],
        **settings,
    )


def wait(call: ToolCall) -> Wait:
    return Wait()


def test_another_agent_takes_over_with_the_history() -> None:
    desk = Desk()
    agent = team(desk)
    result, events = play_aloud(agent)
    assert (result.text, result.agent, desk.names) == ("Refunded.", "billing", ["look", "refund"])
    billing = agent.settings.handoffs["transfer_to_billing"].agent.model
    assert isinstance(billing, ScriptedModel)
    asked = billing.requests
    assert str(getattr(asked[0].messages[0], "text", "")).startswith("You are billing.")
    assert roles(asked[0].messages) == ["System", "User", "Assistant", "ToolMessage", "Assistant", "ToolMessage"]
    assert [spec.name for spec in asked[0].tools] == ["refund"]
    assert asked[0].sampling.temperature == 0.5
    [changed] = only(AgentChanged, events)
    assert (changed.agent, changed.tool, changed.turn) == ("billing", "transfer_to_billing", 1)
    assert RunView.of(events).agent == "billing"
    assert result.usage.input_tokens == 33
    accepted(billing, result)
    can_go_on(result.messages)


def test_a_run_without_a_hand_off_names_its_own_agent() -> None:
    assert play(Agent(ScriptedModel("Hi."), handoffs=[Agent(ScriptedModel(), name="other")])).agent == "main"


def test_a_hand_off_has_a_name_and_a_description_of_its_own() -> None:
    other = Agent(ScriptedModel("Over to me."), name="billing")
    model = ScriptedModel(Call("ask_billing"))
    agent = Agent(model, handoffs=[other.as_handoff("ask_billing", "For everything about money.")])
    assert (play(agent).text, model.requests[0].tools[0].description) == ("Over to me.", "For everything about money.")


def test_an_agent_without_a_name_cannot_take_over() -> None:
    with pytest.raises(UserError, match="needs a name"):
        Agent(ScriptedModel(), handoffs=[Agent(ScriptedModel())])


def test_two_hand_offs_need_different_names() -> None:
    one, two = Agent(ScriptedModel(), name="a"), Agent(ScriptedModel(), name="a")
    with pytest.raises(UserError, match="two hand-offs with the name `transfer_to_a`"):
        Agent(ScriptedModel(), handoffs=[one, two])


def test_a_filter_chooses_what_the_other_agent_sees_of_the_history() -> None:
    def only_the_prompt(messages: tuple[Message, ...]) -> tuple[Message, ...]:
        return messages[:1]

    desk = Desk()
    model = ScriptedModel(Call("refund"), "Refunded.")
    other = Agent(model, desk.tools("refund"), name="billing", guidance=False)
    first = ScriptedModel(Call("look"), Call("transfer_to_billing"))
    agent = Agent(first, desk.tools("look"), handoffs=[other.as_handoff(filter=only_the_prompt)])
    result = play(agent)
    assert [roles(request.messages) for request in model.requests] == [["User"], ["User", "Assistant", "ToolMessage"]]
    assert roles(result.messages) == ["User", *["Assistant", "ToolMessage"] * 3, "Assistant"]
    accepted(model, None)


def test_a_broken_filter_ends_the_run_with_its_error() -> None:
    def broken(messages: tuple[Message, ...]) -> tuple[Message, ...]:
        raise ValueError("no")

    other = Agent(ScriptedModel("Me."), name="billing")
    agent = Agent(ScriptedModel(Call("transfer_to_billing")), handoffs=[other.as_handoff(filter=broken)])
    with pytest.raises(UserError, match=r"given as as_handoff\(filter=…\) failed: no"):
        play(agent)


class Refund(BaseModel):
    amount: int


def test_the_output_type_of_the_other_agent_applies(tmp_path: Path) -> None:
    def make(**settings: Any) -> Agent:
        other = Agent(in_turn("", [Call("final_answer", amount=5)]), name="billing", output=Refund)
        return Agent(in_turn(Call("transfer_to_billing")), handoffs=[other], **settings)

    record = tmp_path / "run.jsonl"
    result = run_virtual(lambda: make(record=record).run("Go."))
    assert result.output == Refund(amount=5)
    assert make().replay(record).output == Refund(amount=5)
    recording = read_recording(record)
    assert agent_of(recording).replay(recording, output=output_of(recording)).text == result.text


def test_an_output_type_that_was_given_for_the_run_stays() -> None:
    other = Agent(ScriptedModel(Call("final_answer", amount=5)), name="billing", output=str)
    agent = Agent(ScriptedModel(Call("transfer_to_billing")), handoffs=[other])
    assert run_virtual(agent.run("Go.", output=Refund)).output == Refund(amount=5)


def test_the_run_keeps_its_deps_its_approver_and_its_checks() -> None:
    found: list[Any] = []

    @tool(approve=True)
    async def refund(context: CallContext[Any], amount: int) -> str:
        """Refund."""
        found.append((context.deps, amount))
        return "done"

    asked: list[str] = []

    def approve(call: ToolCall) -> Allow:
        asked.append(call.name)
        return Allow()

    other = Agent(
        ScriptedModel([Call("refund", amount=5), Call("refund", amount=50)], "Done."), [refund], name="billing"
    )
    agent = Agent(ScriptedModel(Call("transfer_to_billing")), handoffs=[other], on_approval=approve, deps="the run's")

    @agent.check_calls
    def not_fifty(call: ToolCall) -> None:
        if (call.arguments or {}).get("amount") == 50:
            raise Veto("too much")

    result = play(agent)
    assert (found, asked) == ([("the run's", 5)], ["refund", "refund"])
    assert texts(result)[-1] == "Error: not executed: too much"


def test_checks_of_the_agent_that_takes_over_apply_too() -> None:
    desk = Desk()
    other = Agent(ScriptedModel(Call("refund"), "Done."), desk.tools("refund"), name="billing")
    ended: list[str] = []

    @other.check_calls
    def never(call: ToolCall) -> None:
        raise Veto("never")

    @other.check_output
    def polite(text: str) -> str:
        ended.append(text)
        return f"{text} Bye."

    result = play(Agent(ScriptedModel(Call("transfer_to_billing")), handoffs=[other]))
    assert (desk.names, result.text, ended) == ([], "Done. Bye.", ["Done."])


def test_an_agent_that_takes_over_brings_its_own_background_policy_and_schedule() -> None:
    desk = Desk()
    report = desk.tool("report", "42 pages", seconds=10.0, effect="read", background=0)
    build = desk.tool("build", "built", seconds=10.0)

    def run(script: tuple[Any, ...], first: Policy | None = None, **options: Any) -> Result:
        other = Agent(ScriptedModel(*script), [build], name="other", **options)
        model = ScriptedModel([Call("report"), Call("transfer_to_other")])
        return play(Agent(model, [report], handoffs=[other], policy=first or Policy()))

    both = run(([Call("build")], "Waiting.", "Waiting.", "Done."), policy=Policy(background=1.0))
    assert [call.handle for call in both.background] == ["$call_1", "$call_3"]
    one = run(([Call("build")], "Done."), first=Policy(background=1.0))
    assert [call.handle for call in one.background] == ["$call_1"]
    in_turn = run(([Call("build")], "Done."), schedule=Schedule.SEQUENTIAL)
    assert in_turn.seconds == 20.0


def test_of_two_hand_offs_in_one_message_the_first_counts() -> None:
    agents = [Agent(ScriptedModel(f"I am {name}."), name=name) for name in ("a", "b")]
    result = play(Agent(ScriptedModel([Call("transfer_to_a"), Call("transfer_to_b")]), handoffs=agents))
    assert result.text == "I am a."
    assert texts(result)[1] == "Error: not executed: `transfer_to_a` hands the conversation over already"


def test_hand_offs_in_a_circle_end() -> None:
    def circle(request: Request) -> Answer:
        last, mine = request.messages[-1], request.messages[0]
        if isinstance(last, ToolMessage) and "Policy(most_handoffs=3)" in last.results[0].text:
            return "Then I answer."
        return Call("transfer_to_b" if isinstance(mine, System) and "You are a." in mine.text else "transfer_to_a")

    one = Agent(ScriptedModel(circle), instructions="You are a.", name="a", policy=Policy(most_handoffs=3))
    two = Agent(ScriptedModel(circle), instructions="You are b.", name="b", handoffs=[one])
    one.hand_off_to(two)
    result = play(one, limits=Limits(rounds=50))
    assert (result.text, result.agent, len(result.handoffs)) == ("Then I answer.", "b", 3)


def test_a_limit_holds_across_hand_offs() -> None:
    desk = Desk()
    result = play(team(desk), limits=Limits(rounds=2))
    assert (result.stop_reason, result.agent) == ("round_limit", "billing")


def test_a_run_that_was_handed_off_waits_and_is_resumed_by_the_other_agent() -> None:
    desk = Desk()
    waiting = play(team(desk, approve=True, on_approval=wait))
    assert (waiting.stop_reason, waiting.agent, [call.id for call in waiting.pending]) == ("waiting", "billing", ["f"])
    saved = json.dumps(waiting.to_json())
    result = run_virtual(team(desk, approve=True).resume(saved, {"f": Allow()}))
    assert (result.text, result.agent, desk.names) == ("Refunded.", "billing", ["look", "refund"])


def test_a_call_that_waits_beside_a_hand_off_is_resumed_and_the_other_agent_takes_over(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"

    def triage(desk: Desk) -> Agent[Any, Any]:
        billing = Agent(ScriptedModel("Refunded."), name="billing")
        model = ScriptedModel([Call("refund", id="r"), Call("transfer_to_billing", id="t")])
        return Agent(model, [desk.tool("refund", approve=True)], handoffs=[billing], on_approval=wait, record=path)

    for from_path in (False, True):
        desk = Desk()
        agent = triage(desk)
        waiting = play(agent)
        assert ([call.id for call in waiting.pending], desk.names) == (["r"], [])
        saved = path if from_path else waiting.to_json()
        result = run_virtual(agent.resume(saved, {"r": Allow()}))
        assert (result.text, result.agent, desk.names) == ("Refunded.", "billing", ["refund"])
        path.unlink()


def test_without_the_hand_off_such_a_run_is_not_resumed() -> None:
    waiting = play(team(Desk(), approve=True, on_approval=wait))
    with pytest.raises(UserError, match="handed off with `transfer_to_billing`, and agent `main` has no such hand-off"):
        run_virtual(Agent(ScriptedModel(), Desk().tools("look", "refund")).resume(waiting, {"f": Allow()}))


def test_a_recorded_hand_off_is_replayed(tmp_path: Path) -> None:
    record, told, again = tmp_path / "run.jsonl", list[Event](), list[Event]()
    desk = Desk()
    result = run_virtual(lambda: team(desk, record=record, sinks=[told.append]).run("Go."))
    replayed = team(desk).replay(record, sinks=[again.append])
    assert again == told == read_recording(record).events
    assert (replayed.messages, replayed.agent, desk.names) == (result.messages, "billing", ["look", "refund"])


def test_a_recorded_hand_off_is_replayed_without_its_code(tmp_path: Path) -> None:
    record, again = tmp_path / "run.jsonl", list[Event]()
    result = run_virtual(lambda: team(Desk(), record=record).run("Go."))
    recording = read_recording(record)
    replayed = agent_of(recording).replay(recording, sinks=[again.append])
    assert (replayed.messages, replayed.agent) == (result.messages, "billing")
    assert again == recording.events


def test_after_a_crash_at_any_line_the_run_is_resumed_with_the_agent_that_had_taken_over(tmp_path: Path) -> None:
    record = tmp_path / "run.jsonl"
    whole = run_virtual(lambda: team(Desk(), record=record).run("Go."))
    lines = record.read_bytes().splitlines(keepends=True)
    for count in range(1, len(lines)):
        record.write_bytes(b"".join(lines[:count]))
        desk, recording = Desk(), read_recording(record)
        done = {line["result"].get("name") for line in recording.of("result")}
        started = {line["name"] for line in recording.of("event") if line["event"] == "call_started"}
        if isinstance(recording.ending, RunFinished):
            continue
        agent = team(desk)
        result = run_virtual(lambda agent=agent: agent.resume(record))
        assert (result.text, result.agent) == ("Refunded.", "billing"), count
        assert not done & set(desk.names), count
        assert ("refund" in desk.names) == ("refund" not in started), count
        assert result.usage.total_tokens >= whole.usage.total_tokens, count  # an answer that never came is estimated


def test_an_agent_that_works_as_a_tool_may_hand_off_inside() -> None:
    desk = Desk()
    inner = team(desk, approve=True)
    model = in_turn(Call("support", task="Refund it.", id="s"), "Done.")
    agent = Agent(model, [inner.as_tool("support", "Helps.")], on_approval=wait)
    waiting = play(agent)
    assert [(call.id, call.agent) for call in waiting.pending] == [("s/f", "main/support")]
    result = run_virtual(agent.resume(json.dumps(waiting.to_json()), {"s/f": Allow()}))
    assert (result.text, texts(result), desk.names) == ("Done.", ["Refunded."], ["look", "refund"])


def model_on(server: ScriptedServer, wire: str) -> Model:
    return connect(PROVIDERS[wire], base_url=server.base_url(wire), wire=wire, api_key="k")


@pytest.mark.parametrize("second", [wire for wire in WIRES if wire != "openai-chat"])
def test_an_agent_on_another_wire_takes_over_through_real_servers(second: str) -> None:
    """The reasoning of the first model cannot travel to another wire: the second server accepts what it gets."""
    desk = Desk()

    async def main() -> None:
        async with (
            ScriptedServer([Think("Money."), Call("transfer_to_billing")], [Call("look")]) as first,
            ScriptedServer(Call("refund", what="x"), "Refunded.") as other,
        ):
            billing = Agent(model_on(other, second), desk.tools("refund"), name="billing")
            agent = Agent(model_on(first, "openai-chat"), desk.tools("look"), handoffs=[billing])
            result = await agent.run("Go.")
            assert (result.text, result.agent, desk.names) == ("Refunded.", "billing", ["refund"])
            assert (len(first.bodies), other.wires) == (1, [second, second])
            accepted(first, result)
            accepted(other)

    asyncio.run(main())
