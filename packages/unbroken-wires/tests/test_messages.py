"""Every message has its text; a call that may run has its arguments."""

from __future__ import annotations

import pytest

from unbroken import Agent, Assistant, Message, ScriptedModel, System, ToolCall, ToolMessage, ToolResult, User
from unbroken.agent import Result

CALL = ToolCall("call_1", "look_up", {"word": "pons"})


def test_each_message_has_a_text() -> None:
    results = ToolMessage((ToolResult.of(CALL, "a bridge"), ToolResult.of(CALL, "Error: gone", error=True)))
    messages: list[Message] = [System.of("Be brief."), User.of("pons?"), Assistant("A bridge.", (CALL,)), results]
    assert [message.text for message in messages] == ["Be brief.", "pons?", "A bridge.", "a bridge\nError: gone"]


def test_a_call_that_may_run_has_its_arguments() -> None:
    assert CALL.args is CALL.arguments


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (ToolCall("a", "pay", None, '{"amount": 1', complete=False, problem="it was cut off"), "it was cut off"),
        (ToolCall("a", "pay", None, "ten", complete=False, kind="custom"), "its input is free text"),
    ],
)
def test_the_arguments_of_another_call_are_never_read_as_empty(call: ToolCall, why: str) -> None:
    with pytest.raises(ValueError, match=f"the call of `pay` has no arguments: {why}"):
        _ = call.args


def test_the_output_of_an_agent_without_a_type_is_its_text_also_when_it_is_restored() -> None:
    result = Agent(ScriptedModel("Hello.")).run_sync("Hi.")
    assert result.output == "Hello."
    assert Result.from_json(result.to_json()).output == "Hello."


def test_a_typed_run_without_an_answer_has_no_output() -> None:
    result = Agent(ScriptedModel('{"value": 3}'), output=int).run_sync("How many?")
    assert result.output == 3
    assert Result.from_json(result.to_json()).output is None
