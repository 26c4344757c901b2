"""The content of the history and of the next request: one message with all calls, then each result with its id, in call
order; failures are marked only in the saved form."""

from __future__ import annotations

from typing import Any

import pytest
from scenes import WIRES, Desk, accepted, calls_in, play, results_in, roles

from unbroken import Agent, Assistant, Schedule, ScriptedModel, ToolMessage
from unbroken.models.scripted import Line
from unbroken_testing import Call, Say
from unbroken_wires.transcript import from_json, to_json

WEATHER = Call("get_weather", city="Beijing", id="call_1")
NEWS = Call("get_news", topic="tech", id="call_2")
STOCK = Call("get_stock", symbol="AAPL", id="call_3")


def chat_after(*answer: Say | Call, desk: Desk | None = None) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The messages of the second request in the format of openai-chat, and the history in its saved form."""
    desk = desk or Desk()
    tools = [
        desk.tool("get_weather", "25°C, Sunny"),
        desk.tool("get_news", "Tech news..."),
        desk.tool("get_stock", fails="Connection timeout"),
    ]
    model = ScriptedModel(list(answer), "Done.")
    result = play(Agent(model, tools, guidance=False))
    accepted(model, result)
    return model.bodies[1]["messages"], to_json(result.messages)


def test_one_call_is_one_assistant_message() -> None:
    """Seed 7.1.4: test_add_tool_call_message_single."""
    messages, _ = chat_after(Say("I'll check the weather"), WEATHER)
    assert messages[1] == {
        "role": "assistant",
        "content": "I'll check the weather",
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Beijing"}'},
            }
        ],
    }


def test_several_calls_are_one_message_too() -> None:
    """Seed 7.1.4: test_add_tool_call_message_multiple."""
    messages, saved = chat_after(Say("I'll check weather and news"), WEATHER, NEWS)
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool"]
    assert [call["function"]["name"] for call in messages[1]["tool_calls"]] == ["get_weather", "get_news"]
    assert len(saved[1]["calls"]) == 2


def test_text_that_is_not_ascii_is_sent_readable_in_arguments() -> None:
    """Seed 3.3.1: `ensure_ascii=False`."""
    messages, _ = chat_after(Call("get_weather", city="北京"), Call("get_news", '{"topic": "科\\u6280"}'))
    sent = [call["function"]["arguments"] for call in messages[1]["tool_calls"]]
    assert sent == ['{"city": "北京"}', '{"topic": "科\\u6280"}']  # escapes that the model wrote stay as they are


def test_each_result_is_a_message_with_the_id_of_its_call() -> None:
    """Seed 7.1.4: test_add_tool_response_messages; the format is that of section 5.2."""
    messages, _ = chat_after(WEATHER, NEWS)
    assert messages[2:] == [
        {"role": "tool", "tool_call_id": "call_1", "content": "25°C, Sunny"},
        {"role": "tool", "tool_call_id": "call_2", "content": "Tech news..."},
    ]


def test_a_failure_is_marked_in_the_saved_history() -> None:
    """Seed 7.1.6: test_with_metadata_support; the text is that of section 9.2."""
    _, saved = chat_after(WEATHER, STOCK)
    good, bad = saved[2]["results"]
    assert bad["metadata"] == {"error": True}
    assert bad["content"] == [{"type": "text", "text": "Error: Connection timeout"}]
    assert "metadata" not in good
    assert to_json(from_json(saved)) == saved


@pytest.mark.parametrize("wire", WIRES)
def test_a_failure_is_sent_only_if_the_wire_has_a_field_for_it(wire: str) -> None:
    """Seed 7.1.6: test_without_metadata_support."""
    desk = Desk()
    model = ScriptedModel([WEATHER, STOCK], "Done.", wire=wire)
    tools = [desk.tool("get_weather", "25°C"), desk.tool("get_stock", fails="Connection timeout")]
    result = play(Agent(model, tools))
    sent = str(model.bodies[1])
    assert "Error: Connection timeout" in sent
    assert "metadata" not in sent
    assert ("'is_error': True" in sent) is (wire == "anthropic-messages")
    accepted(model, result)


def three_calls() -> tuple[Line, list[str]]:
    return [Say("Three things."), WEATHER, NEWS, STOCK], ["get_weather", "get_news", "get_stock"]


@pytest.mark.parametrize("schedule", Schedule)
@pytest.mark.parametrize("wire", WIRES)
def test_the_assistant_message_contains_all_calls(wire: str, schedule: Schedule) -> None:
    """Seed 7.2.2: test_assistant_message_contains_all_tool_calls."""
    answer, names = three_calls()
    model = ScriptedModel(answer, "Done.", wire=wire)
    result = play(Agent(model, Desk().tools(*names), schedule=schedule))
    spoken = [message for message in result.messages if isinstance(message, Assistant)]
    assert [call.name for call in spoken[0].calls] == names
    assert [call.arguments for call in spoken[0].calls] == [{"city": "Beijing"}, {"topic": "tech"}, {"symbol": "AAPL"}]
    assert (spoken[0].text, spoken[1].text) == ("Three things.", "Done.")
    accepted(model, result)


@pytest.mark.parametrize("schedule", Schedule)
@pytest.mark.parametrize("wire", WIRES)
def test_every_result_has_the_id_of_its_own_call(wire: str, schedule: Schedule) -> None:
    """Seed 7.2.2: test_tool_response_messages_match_ids. The last call ends first."""
    answer, names = three_calls()
    desk = Desk()
    tools = [desk.tool(name, name, seconds=3.0 - n) for n, name in enumerate(names)]
    model = ScriptedModel(answer, "Done.", wire=wire)
    result = play(Agent(model, tools, schedule=schedule))
    assert [call.id for call in calls_in(result.messages)] == ["call_1", "call_2", "call_3"]
    assert results_in(result.messages) == [("call_1", names[0]), ("call_2", names[1]), ("call_3", names[2])]
    accepted(model, result)


@pytest.mark.parametrize("wire", WIRES)
def test_calls_come_first_then_their_results_then_the_answer(wire: str) -> None:
    """Seed 7.2.2: test_message_order_correct."""
    answer, names = three_calls()
    model = ScriptedModel(answer, Call("get_news"), "Done.", wire=wire)
    result = play(Agent(model, Desk().tools(*names)))
    assert roles(result.messages) == ["User", "Assistant", "ToolMessage", "Assistant", "ToolMessage", "Assistant"]
    assert [len(message.results) for message in result.messages if isinstance(message, ToolMessage)] == [3, 1]
    accepted(model, result)


def test_a_call_without_arguments_is_sent_back_as_an_empty_object() -> None:
    """Seed 3.3.1: `{}` where there are no arguments."""
    desk = Desk()
    model = ScriptedModel(Call("get_news", ""), "Done.")
    result = play(Agent(model, desk.tools("get_news")))
    assert desk.ran == [("get_news", {})]
    assert model.bodies[1]["messages"][-2]["tool_calls"][0]["function"]["arguments"] == "{}"
    accepted(model, result)
