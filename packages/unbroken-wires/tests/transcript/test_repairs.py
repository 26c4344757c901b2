"""A broken history of our own messages is repaired by named edits, so that `Transcript` accepts it."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stories import Answer, Calls, Say, Story, broken, stories

from unbroken_wires.messages import Assistant, Message, Native, Text, ToolCall, ToolMessage, ToolResult, User
from unbroken_wires.transcript import NO_RESULT, Drop, HistoryEdit, Insert, Move, Place, Rename, Transcript, repair


def told_as_messages(story: Story, random: Random | None = None) -> list[Message]:
    messages: list[Message] = []
    for thing in story:
        match thing:
            case Say(who):
                messages.append(User.of("hi") if who == "user" else Assistant("hi"))
            case Calls(ids):
                messages.append(Assistant(calls=tuple(ToolCall(id, "f", {}, index=n) for n, id in enumerate(ids))))
            case Answer(id):
                result = ToolResult(id, (Text(f"r{len(messages)}"),))
                last = messages[-1] if messages else None
                if isinstance(last, ToolMessage) and (random is None or random.random() < 0.7):
                    messages[-1] = ToolMessage((*last.results, result))
                else:
                    messages.append(ToolMessage((result,)))
    return messages


@given(stories())
def test_a_valid_history_needs_no_edit(story: Story) -> None:
    messages = told_as_messages(story)
    repaired, edits = repair(messages)
    assert edits == []
    assert all(a is b for a, b in zip(repaired, messages, strict=True))


@given(stories(), st.randoms(use_true_random=False))
def test_any_broken_history_is_repaired_so_that_a_transcript_accepts_it(story: Story, random: Random) -> None:
    messages = told_as_messages(broken(story, random), random)
    repaired, edits = repair(messages)
    assert Transcript(repaired).closed
    assert repair(repaired) == (repaired, [])
    kept = [message for message in messages if not isinstance(message, ToolMessage)]
    assert [replace_ids(message) for message in kept] == [
        replace_ids(message) for message in repaired if not isinstance(message, ToolMessage)
    ]
    if repaired != tuple(messages):
        assert edits


def replace_ids(message: Message) -> Message:
    if isinstance(message, Assistant):
        return replace(message, calls=tuple(replace(call, id="") for call in message.calls))
    return message


def asks(*ids: str) -> Assistant:
    return Assistant(calls=tuple(ToolCall(id, "f", {}) for id in ids))


def tells(*ids: str) -> ToolMessage:
    return ToolMessage(tuple(ToolResult(id, (Text(f"{n}"),), name="f") for n, id in enumerate(ids)))


HI = User.of("hi")


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([asks("a"), HI], [Insert("a", Place(0, 0), 0)]),
        ([HI, tells("a")], [Drop("a", Place(1, 0), "orphan")]),
        ([asks("a"), tells("a", "a")], [Drop("a", Place(1, 1), "doubled")]),
        ([asks("a"), HI, tells("a")], [Move("a", Place(2, 0), Place(0, 0), 0)]),
        ([asks("a", "b"), tells("b", "a")], [Move("a", Place(1, 1), Place(0, 0), 0)]),
        ([tells("a"), asks("a")], [Move("a", Place(0, 0), Place(1, 0), 0)]),
        ([asks("a", "b"), tells("a"), tells("b")], [Move("b", Place(2, 0), Place(0, 1), 1)]),
        ([asks("a"), tells("a"), asks("a"), tells("a")], []),
        (
            [asks("a"), tells("a", "a"), asks("a"), HI],
            [Drop("a", Place(1, 1), "doubled"), Insert("a", Place(2, 0), 0)],
        ),
        ([asks("a"), asks("a"), tells("a", "a")], [Move("a", Place(2, 1), Place(0, 0), 0)]),
        (
            [asks("a", "a"), tells("a", "a")],
            [Rename("a", Place(0, 1), "call_0_1", "doubled"), Rename("a", Place(1, 1), "call_0_1", "doubled")],
        ),
        (
            [asks(""), tells("")],
            [Rename("f", Place(0, 0), "call_0_0", "nameless"), Rename("f", Place(1, 0), "call_0_0", "nameless")],
        ),
        ([HI, ToolMessage(())], [Drop("", Place(1, 0), "orphan")]),
    ],
)
def test_each_fault_has_its_edit(messages: list[Message], expected: list[HistoryEdit]) -> None:
    repaired, edits = repair(messages)
    assert edits == expected
    assert Transcript(repaired).closed


def answers(*texts: str) -> ToolMessage:
    """Results that name neither a call nor a tool."""
    return ToolMessage(tuple(ToolResult("", (Text(text),)) for text in texts))


def test_results_without_ids_answer_the_calls_without_ids_of_their_turn_in_order() -> None:
    repaired, edits = repair([asks("", ""), answers("one", "two"), HI, asks("x", ""), tells("x"), answers("three")])
    assert {type(edit) for edit in edits} <= {Rename, Move}
    told = [(r.call_id, r.text) for m in repaired if isinstance(m, ToolMessage) for r in m.results]
    assert told == [("call_0_0", "one"), ("call_0_1", "two"), ("x", "0"), ("call_1_1", "three")]


def test_results_without_ids_are_not_guessed_if_their_number_differs() -> None:
    repaired, _ = repair([asks("", ""), answers("one"), asks("a", "b"), answers("three", "four")])
    told = [r.text for m in repaired if isinstance(m, ToolMessage) for r in m.results]
    assert told == [NO_RESULT] * 4


def test_a_missing_result_becomes_an_error_and_an_early_one_is_not_lost() -> None:
    repaired, _ = repair([tells("b"), asks("a", "b", "c"), HI])
    assert repaired[1] == ToolMessage(
        (
            ToolResult("a", (Text(NO_RESULT),), error=True, name="f"),
            ToolResult("b", (Text("0"),), name="f"),
            ToolResult("c", (Text(NO_RESULT),), error=True, name="f"),
        )
    )


def test_a_new_id_is_also_used_in_the_native_message() -> None:
    native = Native("gemini", {"parts": []}, ("a", "a"))
    repaired, _ = repair([replace(asks("a", "a"), native=native), tells("a", "a")])
    assert isinstance(repaired[0], Assistant)
    assert repaired[0].native == replace(native, ids=("a", "call_0_1"))


def test_a_generated_id_avoids_every_id_of_the_history() -> None:
    _, edits = repair([asks("a", "a"), tells("a", "a"), asks("call_0_1", "call_0_1a"), tells("call_0_1", "call_0_1a")])
    assert {edit.to for edit in edits if isinstance(edit, Rename)} == {"call_0_1b"}
