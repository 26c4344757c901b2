"""Rounds with a budget: the nine tests of seed 001 (section 4), and the three ways in which a run ends.

A round is one message with calls and their results; after `Limits(rounds=n)` of them comes one final request that
allows no calls.
"""

from __future__ import annotations

from typing import Any

import pytest
from scenes import WIRES, Desk, accepted, only, play, play_aloud, results_in, roles

from unbroken import Agent, Limits, RequestSent, ScriptedModel, tool
from unbroken.events import LimitReached
from unbroken_testing import Call

TWO_ROUNDS = Limits(rounds=2)
NONE: dict[str, Any] = {
    "openai-chat": ("tool_choice", "none"),
    "openai-responses": ("tool_choice", "none"),
    "anthropic-messages": ("tool_choice", {"type": "none"}),
    "gemini": ("toolConfig", {"functionCallingConfig": {"mode": "NONE"}}),
    "ollama": ("tools", None),
    "cohere-v2": ("tool_choice", "NONE"),
    "bedrock-converse": ("no word for it", ...),
}
"""How each wire expresses that no calls are allowed. For those that cannot, the provider's profile adds a line."""


def says_none(wire: str, body: dict[str, Any]) -> bool:
    key, value = NONE[wire]
    return body.get(key) == value


@pytest.mark.parametrize("wire", WIRES)
def test_the_model_may_stop_after_one_search(wire: str) -> None:
    """test_single_round_early_termination."""
    desk = Desk()
    model = ScriptedModel(Call("search", query="MCP"), "MCP is a protocol.", wire=wire)
    result = play(Agent(model, desk.tools("search"), limits=TWO_ROUNDS), "What is MCP?")
    assert (result.text, result.stop_reason) == ("MCP is a protocol.", "answered")
    assert (result.rounds, result.requests) == (1, 2)
    assert desk.ran == [("search", {"query": "MCP"})]
    accepted(model, result)


@pytest.mark.parametrize("wire", WIRES)
def test_two_rounds_and_a_final_answer(wire: str) -> None:
    """test_full_two_rounds."""
    desk = Desk()
    first, second = Call("search", query="MCP introduction"), Call("search", query="prerequisites")
    model = ScriptedModel(first, second, "MCP is… Prerequisites include…", wire=wire)
    result = play(Agent(model, desk.tools("search"), limits=TWO_ROUNDS))
    assert desk.ran == [("search", {"query": "MCP introduction"}), ("search", {"query": "prerequisites"})]
    assert (result.rounds, result.requests) == (2, 3)
    assert (result.text, result.stop_reason) == ("MCP is… Prerequisites include…", "round_limit")
    accepted(model, result)


@pytest.mark.parametrize("wire", WIRES)
def test_a_failure_in_the_first_round_leads_to_an_answer_that_mentions_it(wire: str) -> None:
    """test_tool_failure_round_1: with `on_error="finish"` the model gets the error and the final request follows."""
    desk = Desk()
    model = ScriptedModel(Call("search", query="MCP"), "I could not search.", wire=wire)
    result = play(Agent(model, [desk.tool("search", fails="no index")], limits=TWO_ROUNDS, on_error="finish"))
    assert (result.text, result.stop_reason) == ("I could not search.", "tool_failure")
    assert (result.rounds, result.requests) == (1, 2)
    assert "Error: no index" in str(model.bodies[1])
    assert says_none(wire, model.bodies[1]) or wire == "bedrock-converse"
    accepted(model, result)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (Call("look_up", query="MCP"), "unknown tool `look_up`"),
        (Call("search", subject="MCP"), "the arguments of `search` do not fit"),
    ],
    ids=["unknown tool", "wrong arguments"],
)
def test_a_call_that_cannot_run_ends_the_rounds_with_an_answer_that_mentions_it(call: Call, error: str) -> None:
    @tool
    def search(query: str) -> str:
        """Search."""
        return "found"

    desk = Desk()
    model = ScriptedModel([call, Call("outline", course="MCP")], "I could not search.")
    result = play(Agent(model, [search, *desk.tools("outline")], limits=TWO_ROUNDS, on_error="finish"))
    assert (result.text, result.stop_reason, result.requests) == ("I could not search.", "tool_failure", 2)
    assert error in str(model.bodies[1])
    assert says_none("openai-chat", model.bodies[1])
    assert [name for name, _ in desk.ran] == ["outline"]
    accepted(model, result)


def test_by_default_the_model_may_correct_a_call_that_cannot_run() -> None:
    desk = Desk()
    model = ScriptedModel(Call("look_up", query="MCP"), Call("search", query="MCP"), "MCP is a protocol.")
    result = play(Agent(model, desk.tools("search")))
    assert (result.text, result.stop_reason) == ("MCP is a protocol.", "answered")


def test_after_a_failure_calls_that_have_not_started_are_skipped_and_running_ones_end() -> None:
    """The same, with siblings: two run in parallel, the third has to wait and gets a result without running."""
    desk = Desk()
    fails = desk.tool("fails", fails="no", seconds=1.0, overlap=True)
    tools = [fails, desk.tool("slow", "slow", seconds=2.0, overlap=True)]
    tools.append(desk.tool("later", effect="exclusive"))
    model = ScriptedModel([Call("fails"), Call("slow"), Call("later")], "Done.")
    result = play(Agent(model, tools, on_error="finish"))
    assert desk.spans == [("fails", 0.0, 1.0), ("slow", 0.0, 2.0)]
    assert [call.result.text for call in result.calls] == [
        "Error: no",
        "slow",
        "Error: not executed: an earlier call failed",
    ]
    assert (result.stop_reason, result.text) == ("tool_failure", "Done.")
    accepted(model, result)


def test_by_default_a_failure_is_reported_and_the_rounds_continue() -> None:
    desk = Desk()
    model = ScriptedModel(Call("search"), Call("outline"), "From the outline…")
    result = play(Agent(model, [desk.tool("search", fails="no index"), desk.tool("outline")], limits=TWO_ROUNDS))
    assert desk.names == ["search", "outline"]
    assert (result.text, result.rounds, result.stop_reason) == ("From the outline…", 2, "round_limit")


@pytest.mark.parametrize("wire", WIRES)
def test_a_model_that_never_stops_calling_has_to_answer(wire: str) -> None:
    """test_max_rounds_reached_with_tool_use: calls of the last round still run."""
    desk = Desk()
    model = ScriptedModel(*[Call("search", query=str(n)) for n in range(2)], "This is what I know.", wire=wire)
    result, events = play_aloud(Agent(model, desk.tools("search"), limits=TWO_ROUNDS))
    assert [arguments["query"] for _, arguments in desk.ran] == ["0", "1"]
    assert (result.text, result.stop_reason, result.requests) == ("This is what I know.", "round_limit", 3)
    assert [(event.kind, event.limit) for event in only(LimitReached, events)] == [("round_limit", 2)]
    assert [event.final for event in only(RequestSent, events)] == [False, False, True]
    accepted(model, result)


@pytest.mark.parametrize("wire", WIRES)
def test_the_history_grows_with_each_round(wire: str) -> None:
    """test_message_history_accumulates: each round adds one message of the assistant and one with results."""
    model = ScriptedModel(Call("search", query="1"), Call("search", query="2"), "Done.", wire=wire)
    result = play(Agent(model, Desk().tools("search"), limits=TWO_ROUNDS, guidance=False))
    assert [roles(request.messages) for request in model.requests] == [
        ["User"],
        ["User", "Assistant", "ToolMessage"],
        ["User", "Assistant", "ToolMessage", "Assistant", "ToolMessage"],
    ]
    assert model.requests[2].messages[:3] == model.requests[1].messages
    assert result.messages[:5] == model.requests[2].messages
    accepted(model, result)


@pytest.mark.parametrize("wire", WIRES)
def test_tools_are_offered_in_every_round(wire: str) -> None:
    """test_tools_included_in_all_rounds."""
    model = ScriptedModel(Call("search"), Call("outline"), "Done.", wire=wire)
    play(Agent(model, Desk().tools("search", "outline"), limits=TWO_ROUNDS))
    assert [[spec.name for spec in request.tools] for request in model.requests] == [["search", "outline"]] * 3
    assert [says_none(wire, body) for body in model.bodies[:2]] == [False, False]
    accepted(model)


@pytest.mark.parametrize("wire", WIRES)
def test_the_final_request_allows_no_calls(wire: str) -> None:
    """test_no_tools_in_final_call_after_max_rounds. The tools stay in it, because providers refuse a history with calls
    and no tools; the choice says that none may be called. Only Ollama has no choice, and takes such a history."""
    model = ScriptedModel(Call("search"), Call("search", again=True), "Done.", wire=wire)
    play(Agent(model, Desk().tools("search"), limits=TWO_ROUNDS))
    field = "toolConfig" if wire == "bedrock-converse" else "tools"
    if wire != "ollama":
        assert model.bodies[2][field] == model.bodies[0][field]
    assert says_none(wire, model.bodies[2]) or wire == "bedrock-converse"
    accepted(model)


@pytest.mark.parametrize("nothing", ["", None, [], {}], ids=["empty text", "None", "empty list", "empty object"])
@pytest.mark.parametrize("wire", WIRES)
def test_an_empty_result_is_a_result(wire: str, nothing: Any) -> None:
    """test_empty_tool_results_handled."""
    desk = Desk()
    model = ScriptedModel([Call("search", id="1"), Call("search", q=2, id="2")], "Nothing was found.", wire=wire)
    result = play(Agent(model, [desk.tool("search", nothing)], limits=TWO_ROUNDS))
    assert (result.text, result.stop_reason) == ("Nothing was found.", "answered")
    assert [id for id, _ in results_in(result.messages)] == ["1", "2"]
    assert [call.error for call in result.calls] == [False, False]
    accepted(model, result)


@pytest.mark.parametrize("wire", WIRES)
def test_different_tools_can_be_used_in_successive_rounds(wire: str) -> None:
    """test_different_tools_in_sequence."""
    desk = Desk()
    tools = [desk.tool("outline", "Lesson 3 is about caching."), desk.tool("search", "Caching keeps prompts.")]
    model = ScriptedModel(Call("outline", course="MCP"), Call("search", lesson=3), "Lesson 3…", wire=wire)
    result = play(Agent(model, tools, limits=TWO_ROUNDS))
    assert desk.ran == [("outline", {"course": "MCP"}), ("search", {"lesson": 3})]
    assert [text for _, text in results_in(result.messages)] == ["Lesson 3 is about caching.", "Caching keeps prompts."]
    assert (result.text, result.rounds) == ("Lesson 3…", 2)
    accepted(model, result)


def test_the_prompt_has_the_budget_which_can_be_left_out() -> None:
    """Section 3: the guidance states how many replies may call tools."""
    told = ScriptedModel("Hello.")
    play(Agent(told, Desk().tools("search"), limits=TWO_ROUNDS))
    assert "at most 2 replies" in told.bodies[0]["messages"][0]["content"]
    untold = ScriptedModel("Hello.")
    play(Agent(untold, Desk().tools("search"), limits=TWO_ROUNDS, guidance=False))
    assert [message["role"] for message in untold.bodies[0]["messages"]] == ["user"]
