"""The state of a chain, from any form of a history; counting calls and results is not enough."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stories import Calls, Say, Story, broken, stories, tell

from unbroken.errors import UnknownWire, UserError
from unbroken_wires.messages import Assistant, Message, System, ToolCall, ToolMessage, ToolResult, User
from unbroken_wires.transcript import ChainStatus, Drop, Insert, Place, Transcript, repair, to_json
from unbroken_wires.wires import WIRES
from unbroken_wires.wires.chain import chain_status, repair_raw, validate_tool_chain

every_wire = pytest.mark.parametrize("wire", list(WIRES))

FIRST = ToolCall("call_a", "get_weather", {})
SECOND = ToolCall("call_b", "get_time", {}, index=1)
ASKED = (User.of("Oslo?"), Assistant("", (FIRST, SECOND)))


def test_a_chain_whose_calls_all_have_results_is_complete() -> None:
    history = (*ASKED, ToolMessage((ToolResult.of(FIRST, "rain"), ToolResult.of(SECOND, "noon"))), Assistant("Rain."))
    assert chain_status(history) == ChainStatus(2, 2)
    assert chain_status(history).complete
    assert validate_tool_chain(history)


def test_an_open_call_is_named() -> None:
    status = chain_status([*ASKED, ToolMessage((ToolResult.of(SECOND, "noon"),))])
    assert (status.tool_calls, status.tool_returns, status.complete) == (2, 1, False)
    assert [(call.id, call.name, call.place) for call in status.open] == [("call_a", "get_weather", Place(1, 0))]
    assert status.orphan == ()


def test_an_orphan_does_not_replace_a_missing_result() -> None:
    history = [*ASKED, ToolMessage((ToolResult.of(FIRST, "rain"), ToolResult("call_z", (), name="other")))]
    status = chain_status(history)
    assert status.tool_calls == status.tool_returns == 2
    assert [call.id for call in status.open] == ["call_b"]
    assert [(result.id, result.name) for result in status.orphan] == [("call_z", "other")]
    assert not validate_tool_chain(history)


def test_a_second_result_of_one_call_does_not_count() -> None:
    result = ToolResult.of(FIRST, "rain")
    status = chain_status([User.of("Oslo?"), Assistant("", (FIRST,)), ToolMessage((result, result))])
    assert status.complete
    assert [orphan.place for orphan in status.orphan] == [Place(2, 1)]


def test_a_transcript_counts_the_results_of_its_open_round() -> None:
    transcript = Transcript(ASKED)
    assert [call.id for call in chain_status(transcript).open] == ["call_a", "call_b"]
    transcript.answer(ToolResult.of(SECOND, "noon"))
    status = chain_status(transcript)
    assert (status.tool_calls, status.tool_returns) == (2, 1)
    assert [call.id for call in status.open] == ["call_a"]
    transcript.answer(ToolResult.of(FIRST, "rain"))
    assert chain_status(transcript) == ChainStatus(2, 2)


@pytest.mark.parametrize("history", [(), [], [User.of("Hi"), Assistant("Hello")], [{"role": "user", "content": "Hi"}]])
def test_a_history_without_calls_is_complete(history: list[Message]) -> None:
    assert chain_status(history) == ChainStatus(0, 0)


def test_a_generator_can_be_a_history() -> None:
    assert not validate_tool_chain(message for message in ASKED)


@every_wire
@given(story=stories())
def test_a_valid_raw_history_is_complete_and_identifies_its_wire(wire: str, story: Story) -> None:
    raw = tell(wire, story)
    calls = sum(len(thing.ids) for thing in story if isinstance(thing, Calls))
    assert chain_status(raw) == chain_status(raw, wire) == ChainStatus(calls, calls)


@every_wire
@given(story=stories(), random=st.randoms(use_true_random=False))
def test_open_calls_and_orphans_are_what_a_repair_would_change(wire: str, story: Story, random: Random) -> None:
    raw = tell(wire, broken(story, random), random)
    status = chain_status(raw, wire)
    repaired, edits = repair_raw(wire, raw)
    assert [call.place for call in status.open] == [edit.place for edit in edits if isinstance(edit, Insert)]
    assert [result.place for result in status.orphan] == [edit.place for edit in edits if isinstance(edit, Drop)]
    assert chain_status(repaired, wire).complete
    assert chain_status(repaired, wire).orphan == ()
    assert status.tool_calls - len(status.open) == status.tool_returns - len(status.orphan)


@every_wire
def test_an_open_call_at_the_end_is_found_in_raw_messages(wire: str) -> None:
    raw = tell(wire, [Say("user"), Calls(("p", "q"))])
    status = chain_status(raw)
    assert (status.tool_calls, status.tool_returns, len(status.open)) == (2, 0, 2)
    assert not validate_tool_chain(raw)


def test_our_own_messages_are_judged_like_their_repair() -> None:
    history = (User.of("Oslo?"), ToolMessage((ToolResult("call_z", ()),)), *ASKED, ToolMessage(()), Assistant("Rain."))
    status = chain_status(history)
    mended, edits = repair(history)
    assert [call.place for call in status.open] == [edit.place for edit in edits if isinstance(edit, Insert)]
    assert (status.tool_calls, status.tool_returns, len(status.orphan)) == (2, 1, 1)
    assert validate_tool_chain(mended)


def test_an_earlier_part_that_the_provider_stores_may_have_the_call() -> None:
    late: list[dict[str, Any]] = [{"type": "function_call_output", "call_id": "call_9", "output": "18 degrees"}]
    assert [result.id for result in chain_status(late).orphan] == ["call_9"]
    assert chain_status(late, whole=False) == ChainStatus(0, 1)
    assert chain_status([{"type": "item_reference", "id": "fc_1"}, *late]) == ChainStatus(0, 1)


MIXED: list[Any] = [
    {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "1"}]},
]


def test_mixed_messages_of_two_wires_are_not_guessed() -> None:
    with pytest.raises(
        UserError, match=r"openai-chat \(message 0\), anthropic-messages \(message 1\); name one with wire="
    ):
        chain_status(MIXED)
    assert [call.id for call in chain_status(MIXED, "openai-chat").open] == ["a"]


@pytest.mark.parametrize(
    ("history", "words"),
    [
        (None, "a history is a list of messages, not None"),
        ("Hello", "not a value of the type `str`"),
        ({"messages": []}, "not a value of the type `dict`"),
        (17, "not a value of the type `int`"),
        ([17], "message 0 is a value of the type `int`, not one of ours or a dict"),
        (
            [{"role": "user", "content": "Hi"}, Assistant("Hello")],
            "message 1 is a value of the type `Assistant`, not a dict",
        ),
        (to_json(ASKED), "message 1 is in the saved form; read it with `from_json` first"),
        ([{"role": "assistant", "parts": [{"type": "tool-search", "toolCallId": "a"}]}], "parts that are of no wire"),
        ([{"text": "Hi"}], "neither `role` nor `type` nor `parts`"),
    ],
)
def test_an_invalid_history_is_refused_in_one_line(history: Any, words: str) -> None:
    with pytest.raises(UserError) as caught:
        validate_tool_chain(history)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_wire_is_named() -> None:
    with pytest.raises(UnknownWire, match="there is no wire 'telex'"):
        chain_status([], "telex")


def test_our_messages_are_not_raw_messages() -> None:
    with pytest.raises(
        UserError, match=r"message 0 is a value of the type `System`, not a message of gemini \(a dict\)"
    ):
        chain_status([System.of("Be brief.")], "gemini")


def test_the_open_calls_of_a_long_history_are_counted() -> None:
    rounds = 20_000
    history: list[Message] = []
    for n in range(rounds):
        call = ToolCall(f"call_{n}", "get_weather", {})
        history += [Assistant("", (call,)), ToolMessage((ToolResult("call_z" if n % 3 else call.id, ()),))]
    status = chain_status(history)
    assert len(status.open) == len(status.orphan) == rounds - (rounds + 2) // 3
