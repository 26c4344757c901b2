"""The id of a call: the provider's own if there is one, else `call_{n}_{index}`, unique in the history, and the same
whenever the same bytes follow the same history."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from scenes import WIRES, Desk, accepted, calls_in, play

from unbroken import (
    Agent,
    Assistant,
    Conversation,
    Result,
    Schedule,
    ScriptedModel,
    ToolCall,
    ToolMessage,
    ToolResult,
    User,
)
from unbroken.models.scripted import Line
from unbroken_testing import Call, run_virtual
from unbroken_wires.messages import Message


def nameless(*names: str) -> list[Call]:
    """Calls for which the provider gives no id."""
    return [Call(name, id="") for name in names]


def five_rounds() -> list[Message]:
    history: list[Message] = [User.of("Go.")]
    for n in range(5):
        call = ToolCall(f"theirs_{n}", "tool_a", {}, "{}")
        history += [Assistant("", (call,)), ToolMessage((ToolResult.of(call, "ok"),))]
    return [*history, Assistant("Done.")]


def run(*answers: Line, history: Sequence[Message] = (), wire: str = "openai-chat") -> Result:
    model = ScriptedModel(*answers, wire=wire)
    result = play(Agent(model, Desk().tools("tool_a", "tool_b", "search")), history=history)
    accepted(model, result)
    return result


@pytest.mark.parametrize("wire", WIRES)
def test_the_id_of_the_provider_is_kept(wire: str) -> None:
    """Seed 7.1.5: test_use_llm_provided_id."""
    result = run(Call("tool_a", id="call_abc123"), "Done.", wire=wire)
    assert [call.id for call in result.calls] == ["call_abc123"]
    assert [message.results[0].call_id for message in result.messages if isinstance(message, ToolMessage)] == [
        "call_abc123"
    ]


@pytest.mark.parametrize("wire", WIRES)
def test_a_call_without_an_id_is_numbered_by_round_and_position(wire: str) -> None:
    """Seed 7.1.5: test_fallback_id_with_session_counter. The counter comes from the history: five rounds before."""
    result = run(nameless("tool_a", "tool_b"), "Done.", history=five_rounds(), wire=wire)
    assert [call.id for call in result.calls] == ["call_5_0", "call_5_1"]


@pytest.mark.parametrize("wire", WIRES)
def test_the_same_call_in_another_round_has_another_id(wire: str) -> None:
    """Seed 7.1.5: test_id_uniqueness_across_rounds."""
    result = run(nameless("search"), nameless("search"), "Done.", wire=wire)
    assert [call.id for call in result.calls] == ["call_0_0", "call_1_0"]


@pytest.mark.parametrize("wire", WIRES)
def test_ids_continue_counting_in_the_next_turn_of_a_conversation(wire: str) -> None:
    """Seed 6.3.2: never the same id twice in a session, so the count is of the history and not of the run."""
    model = ScriptedModel(nameless("search"), "Done.", nameless("search"), "Done again.", wire=wire)
    chat = Conversation(Agent(model, Desk().tools("search")))

    async def main() -> None:
        await chat.say("Look.")
        await chat.say("Look again.")

    run_virtual(main())
    assert [call.id for call in calls_in(chat.messages)] == ["call_0_0", "call_1_0"]
    accepted(model)


@pytest.mark.parametrize("schedule", Schedule)
@pytest.mark.parametrize("wire", WIRES)
def test_the_same_bytes_after_the_same_history_give_the_same_ids(wire: str, schedule: Schedule) -> None:
    """Seed 7.1.5: test_id_reproducibility."""

    def ids() -> list[str]:
        model = ScriptedModel(nameless("tool_a", "tool_b"), nameless("search"), "Done.", wire=wire)
        agent = Agent(model, Desk().tools("tool_a", "tool_b", "search"), schedule=schedule)
        return [call.id for call in play(agent).calls]

    assert ids() == ids() == ["call_0_0", "call_0_1", "call_1_0"]


def test_the_same_script_sends_identical_requests() -> None:
    """Seed 6.3.2: what is sent can be aligned with what was recorded."""

    def bodies() -> str:
        model = ScriptedModel([*nameless("tool_a", "tool_b"), Call("search", id="x")], nameless("search"), "Done.")
        play(Agent(model, Desk().tools("tool_a", "tool_b", "search")))
        return json.dumps(model.bodies)

    assert bodies() == bodies()
