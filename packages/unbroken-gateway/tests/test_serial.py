"""Hold and release as pure functions: from a client's history and a stored turn to the action. Each case by its
name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from unbroken_gateway.turns.serial import FAILED, SPOKEN, AskModel, Decision, ReleaseCall, decide, fold_turns
from unbroken_gateway.turns.turn import (
    Hold,
    Turn,
    chain,
    chains,
    read_hold,
    read_turn,
    same_call,
    write_hold,
    write_turn,
)
from unbroken_wires.messages import Assistant, Message, Native, System, Text, ToolCall, ToolMessage, ToolResult, User
from unbroken_wires.transcript import repair

ASK = User.of("What is the weather?")
WAIT = User.of("No, wait.")
OPEN = Hold(until=100.0)
CLOSED = Hold(until=100.0, closed=True)
EXPIRED = Hold(until=-1.0)


def call(number: int, id: str = "") -> ToolCall:
    return ToolCall(id or f"toolu_0{number}AbCdEfGh", "get_weather", {"city": number})


def turn(*numbers: int, key: str = "turn:1", text: str = "Let me look.", held: bool = True) -> Turn:
    """A turn whose client uses other ids."""
    calls = tuple(call(number, f"model-{number}") for number in numbers)
    return Turn(key, Assistant(text, calls), tuple(call(number).id for number in numbers), held)


def asks(*numbers: int, text: str = "") -> Assistant:
    return Assistant(text, tuple(call(number) for number in numbers))


def first(number: int = 1) -> Assistant:
    return asks(number, text="Let me look.")


def tells(*numbers: int) -> ToolMessage:
    return ToolMessage(tuple(ToolResult.of(call(number), f"sunny {number}") for number in numbers))


def rewritten(number: int) -> ToolCall:
    return call(number, f"x{number}")


THREE = turn(1, 2, 3)


def decided(
    messages: Sequence[Message],
    turns: Mapping[int, Turn],
    hold: Hold | None = OPEN,
    *,
    ends_in_result: bool | None = None,
    stop: bool = False,
) -> Decision:
    ends = isinstance(messages[-1], ToolMessage) if ends_in_result is None else ends_in_result
    holds = {turn.key: hold for turn in turns.values()}
    folds = fold_turns(messages, turns)
    return decide(messages, turns, folds, holds, 0.0, ends_in_result=ends, on_tool_error="stop" if stop else "continue")


def handed(decision: Decision) -> str:
    assert isinstance(decision, ReleaseCall)
    return decision.call.id


def asked(decision: Decision) -> list[Message]:
    """What the model would get, after the repairs."""
    assert isinstance(decision, AskModel)
    return list(repair(decision.messages)[0])


def said(message: Message) -> list[str]:
    """The results of a message, as text."""
    assert isinstance(message, ToolMessage)
    return [result.text for result in message.results]


def numbers(message: Message) -> list[object]:
    """The calls of a message, by name and arguments."""
    assert isinstance(message, Assistant)
    return [(call.arguments or {}).get("city") for call in message.calls]


# Releasing calls


def test_the_next_call_follows_the_result_of_the_one_before() -> None:
    assert handed(decided([ASK, first(), tells(1)], {1: THREE})) == call(2).id
    history = [ASK, first(), tells(1), asks(2), tells(2)]
    assert handed(decided(history, {1: THREE, 3: THREE})) == call(3).id


def test_a_call_is_released_with_the_id_that_the_client_knows() -> None:
    decision = decided([ASK, first(), tells(1)], {1: THREE})
    assert isinstance(decision, ReleaseCall)
    assert decision.call == replace(THREE.message.calls[1], id=call(2).id)


def test_after_the_last_result_the_model_gets_its_own_turn_back() -> None:
    history = [ASK, first(), tells(1), asks(2), tells(2), asks(3), tells(3)]
    decision = decided(history, {1: THREE, 3: THREE, 5: THREE})
    assert isinstance(decision, AskModel)
    question, message, results = decision.messages
    assert (question, message) == (ASK, THREE.message)
    assert isinstance(results, ToolMessage)
    assert [result.call_id for result in results.results] == ["model-1", "model-2", "model-3"]
    assert said(results) == ["sunny 1", "sunny 2", "sunny 3"]
    assert decision.closed == ()
    assert decision.changed


def test_a_turn_that_is_found_only_at_its_first_part_is_restored_completely() -> None:
    history = [ASK, first(), tells(1), asks(2), tells(2), asks(3), tells(3)]
    assert asked(decided(history, {1: THREE}))[1] == THREE.message


def test_a_repeated_request_gets_the_same_call() -> None:
    history = [ASK, first(), tells(1), asks(2), tells(2)]
    assert decided(history, {1: THREE}) == decided(history, {1: THREE})


def test_a_history_that_goes_back_gets_the_same_next_call() -> None:
    history = [ASK, first(), tells(1), asks(2), tells(2)]
    assert handed(decided(history, {1: THREE})) == call(3).id
    assert handed(decided(history[:3], {1: THREE})) == call(2).id


def test_results_that_arrive_together_are_used_together() -> None:
    assert handed(decided([ASK, asks(1, 2, text="Let me look."), tells(1, 2)], {1: THREE})) == call(3).id
    everything = asked(decided([ASK, asks(1, 2, 3, text="Let me look."), tells(1, 2, 3)], {1: THREE}))
    assert everything[1] == THREE.message
    assert said(everything[2]) == ["sunny 1", "sunny 2", "sunny 3"]


@pytest.mark.parametrize(
    "parts",
    [
        [asks(1, 2, 3), tells(3, 1, 2)],
        [asks(1, 2, 3), tells(3), tells(2), tells(1)],
        [asks(1), asks(2), asks(3), tells(2, 3, 1)],
        [asks(1, 2), tells(2, 1), asks(3), tells(3)],
        [asks(1), asks(2), tells(2), tells(1), asks(3), tells(3)],
        [asks(3), tells(3), asks(1), tells(1), asks(2), tells(2)],
    ],
)
def test_results_are_put_in_call_order(parts: list[Message]) -> None:
    everything = asked(
        decided([ASK, *parts], {at + 1: THREE for at, p in enumerate(parts) if isinstance(p, Assistant)})
    )
    assert numbers(everything[1]) == [1, 2, 3]
    assert said(everything[2]) == ["sunny 1", "sunny 2", "sunny 3"]
    assert len(everything) == 3


def test_a_call_without_its_result_delays_the_next() -> None:
    everything = asked(decided([ASK, first(), tells(1), asks(2)], {1: THREE}))
    assert numbers(everything[1]) == [1, 2, 3]
    assert said(everything[2])[0] == "sunny 1"
    assert said(everything[2])[2] == SPOKEN


def test_a_result_without_a_call_is_ignored() -> None:
    stray = ToolMessage((ToolResult("nobody", (Text("?"),)),))
    everything = asked(decided([ASK, first(), stray], {1: THREE}))
    assert "?" not in said(everything[2])
    assert said(everything[2])[1:] == [SPOKEN, SPOKEN]


def test_a_stray_result_next_to_the_right_one_changes_nothing() -> None:
    beside = ToolMessage((*tells(1).results, ToolResult("nobody", (Text("?"),))))
    assert handed(decided([ASK, first(), beside], {1: THREE})) == call(2).id


def test_a_duplicate_result_counts_once() -> None:
    history = [ASK, first(), tells(1, 1), asks(2), tells(2), asks(3), tells(3, 1)]
    everything = asked(decided(history, {1: THREE}))
    assert said(everything[2]) == ["sunny 1", "sunny 2", "sunny 3"]


def test_identical_calls_of_one_turn_stay_apart() -> None:
    twice = turn(7, 7, 7)
    twice = replace(twice, ids=("toolu_aA1", "toolu_bB2", "toolu_cC3"))
    parts = [call(7, id) for id in twice.ids]
    history: list[Message] = [ASK]
    for position, part in enumerate(parts):
        history += [Assistant("", (part,)), ToolMessage((ToolResult.of(part, f"roll {position}"),))]
        decision = decided(history, {1: twice})
        if position < 2:
            assert handed(decision) == twice.ids[position + 1]
        else:
            assert said(asked(decision)[2]) == ["roll 0", "roll 1", "roll 2"]


# Other content of the history


def test_a_user_message_ends_the_release() -> None:
    decision = decided([ASK, first(), WAIT], {1: THREE})
    assert isinstance(decision, AskModel)
    assert decision.closed == (THREE,)
    everything = asked(decision)
    assert numbers(everything[1]) == [1, 2, 3]
    assert said(everything[2])[1:] == [SPOKEN, SPOKEN]
    assert everything[3] == WAIT


def test_the_user_may_write_after_the_result() -> None:
    everything = asked(decided([ASK, first(), tells(1), WAIT], {1: THREE}))
    assert said(everything[2]) == ["sunny 1", SPOKEN, SPOKEN]


def test_later_requests_keep_reporting_that_the_rest_was_not_run() -> None:
    history = [ASK, first(), tells(1), WAIT]
    once = asked(decided(history, {1: THREE}))
    later = asked(decided([*history, Assistant("As you like."), User.of("Thanks.")], {1: THREE}, CLOSED))
    assert later[: len(once)] == once


def test_text_next_to_a_result_does_not_interrupt() -> None:
    history: list[Message] = [ASK, first(), tells(1), User.of("Hurry.")]
    assert handed(decided(history, {1: THREE}, ends_in_result=True)) == call(2).id


def test_text_next_to_results_comes_after_all_results() -> None:
    hurry, soon = User.of("Hurry."), User.of("Soon?")
    history = [ASK, first(), tells(1), hurry, asks(2), tells(2), asks(3), tells(3), soon]
    everything = asked(decided(history, {1: THREE}, ends_in_result=True))
    assert said(everything[2]) == ["sunny 1", "sunny 2", "sunny 3"]
    assert everything[3:] == [hurry, soon]


def test_a_system_message_in_between_does_not_interrupt() -> None:
    note = System.of("It is noon.")
    history = [ASK, first(), tells(1), note, asks(2), tells(2), asks(3), tells(3)]
    everything = asked(decided(history, {1: THREE}))
    assert numbers(everything[1]) == [1, 2, 3]
    assert note in everything


def test_an_edited_call_belongs_to_the_client() -> None:
    history = [ASK, asks(9, text="Let me look."), tells(9)]
    decision = decided(history, {1: THREE})
    assert isinstance(decision, AskModel)
    assert decision.messages == tuple(history)
    assert not decision.changed


def test_after_an_edited_call_nothing_more_is_released() -> None:
    history = [ASK, asks(9, text="Let me look."), tells(9), asks(2), tells(2)]
    decision = decided(history, {1: THREE, 3: THREE})
    assert isinstance(decision, AskModel)
    assert [numbers(message) for message in asked(decision) if isinstance(message, Assistant)] == [[9], [2]]


def test_an_edited_later_call_ends_the_release() -> None:
    history = [ASK, first(), tells(1), asks(8), tells(8)]
    everything = asked(decided(history, {1: THREE}))
    assert numbers(everything[1]) == [1, 2, 3]
    assert said(everything[2]) == ["sunny 1", SPOKEN, SPOKEN]
    assert everything[3:] == history[3:]


def test_a_call_after_an_edited_one_is_sent_once_with_its_result() -> None:
    history = [ASK, first(), tells(1), asks(8), tells(8), asks(3), tells(3)]
    everything = asked(decided(history, {1: THREE, 5: THREE}))
    assert [numbers(message) for message in everything if isinstance(message, Assistant)] == [[1], [8], [3]]
    assert [text for message in everything if isinstance(message, ToolMessage) for text in said(message)] == [
        "sunny 1",
        "sunny 8",
        "sunny 3",
    ]


def test_a_call_with_a_rewritten_id_after_an_edited_one_is_sent_once_too() -> None:
    """The client keeps the id of the first call, and rewrites that of the third."""
    own = rewritten(3)
    history = [
        ASK,
        first(),
        tells(1),
        asks(8),
        tells(8),
        Assistant("", (own,)),
        ToolMessage((ToolResult.of(own, "sunny 3"),)),
    ]
    everything = asked(decided(history, {1: THREE}))
    assert [numbers(message) for message in everything if isinstance(message, Assistant)] == [[1], [8], [3]]


def test_the_same_call_of_a_later_turn_is_not_mistaken_for_a_waiting_one() -> None:
    """The client keeps ids. It removed the first turn, and changed the second, which had made the same call again."""
    again = call(3, "toolu_0ZAbCdEfGh")
    history = [ASK, first(), tells(1), WAIT, Assistant("", (again,)), ToolMessage((ToolResult.of(again, "sunny"),))]
    everything = asked(decided(history, {1: THREE}))
    assert numbers(everything[1]) == [1, 2, 3]
    assert said(everything[2]) == ["sunny 1", SPOKEN, SPOKEN]


def test_a_call_that_resembles_one_before_those_of_the_client_is_another() -> None:
    """The first call is gone from the history, and the model has made the same one again."""
    own = rewritten(1)
    history = [ASK, asks(2), tells(2), Assistant("", (own,)), ToolMessage((ToolResult.of(own, "sunny again"),))]
    everything = asked(decided(history, {1: THREE}))
    assert [numbers(message) for message in everything if isinstance(message, Assistant)] == [[2, 3], [1]]
    assert [said(message) for message in everything if isinstance(message, ToolMessage)] == [
        ["sunny 2", SPOKEN],
        ["sunny again"],
    ]


def test_edited_text_belongs_to_the_client_and_has_no_signature() -> None:
    signed = replace(THREE, message=replace(THREE.message, native=Native("anthropic-messages", [])))
    history = [ASK, asks(1, 2, 3, text="I shall look."), tells(1, 2, 3)]
    message = asked(decided(history, {1: signed}))[1]
    assert isinstance(message, Assistant)
    assert message.text == "I shall look."
    assert message.native is None
    assert [call.id for call in message.calls] == ["model-1", "model-2", "model-3"]


def test_text_that_the_client_adds_to_a_held_call_is_not_lost() -> None:
    history = [ASK, first(), tells(1), asks(2, text="Hm."), tells(2)]
    turns = {1: THREE, 3: THREE, 5: THREE}
    assert handed(decided(history, turns)) == call(3).id
    everything = asked(decided([*history, asks(3), tells(3)], turns))
    assert [message.text for message in everything if isinstance(message, Assistant)] == ["Let me look.", "Hm."]
    assert said(everything[-1]) == ["sunny 2", "sunny 3"]


@pytest.mark.parametrize("text", ["", " Let me look.\n", "Let me look."])
def test_text_that_the_client_lost_is_restored(text: str) -> None:
    history = [ASK, asks(1, 2, 3, text=text), tells(1, 2, 3)]
    assert asked(decided(history, {1: THREE}))[1] == THREE.message


def test_different_text_that_the_client_was_given_is_not_an_edit() -> None:
    again = replace(THREE, shown="Let me l\n\nLet me look.")
    history = [ASK, asks(1, 2, 3, text="Let me l\n\nLet me look."), tells(1, 2, 3)]
    assert asked(decided(history, {1: again}))[1] == THREE.message


def test_a_turn_that_was_compacted_away_is_not_restored() -> None:
    summary = User.of("The weather was asked for; it is sunny.")
    history = [summary, Assistant("Good."), User.of("And tomorrow?")]
    assert asked(decided(history, {})) == history


def test_compaction_in_the_middle_of_a_held_turn_repeats_no_call() -> None:
    summary = User.of("Beijing is sunny.")
    assert handed(decided([summary, asks(2), tells(2)], {1: THREE})) == call(3).id
    everything = asked(decided([summary, asks(2), tells(2), asks(3), tells(3)], {1: THREE, 3: THREE}))
    assert numbers(everything[1]) == [2, 3]
    assert said(everything[2]) == ["sunny 2", "sunny 3"]


def test_a_call_that_the_client_removed_is_not_released_again() -> None:
    everything = asked(decided([ASK, first(), tells(1), asks(3), tells(3)], {1: THREE, 3: THREE}))
    assert numbers(everything[1]) == [1, 3]
    assert said(everything[2]) == ["sunny 1", "sunny 3"]


def test_a_branch_that_was_not_interrupted_gets_the_next_call() -> None:
    assert handed(decided([ASK, first(), tells(1)], {1: THREE}, CLOSED)) == call(2).id


# Clients that rewrite ids


def test_a_client_that_rewrites_ids_is_identified_by_its_calls() -> None:
    history: list[Message] = [ASK]
    for number in (1, 2, 3):
        history += [
            Assistant("", (rewritten(number),)),
            ToolMessage((ToolResult.of(rewritten(number), f"sunny {number}"),)),
        ]
        decision = decided(history, {1: THREE})
        if number < 3:
            assert handed(decision) == call(number + 1).id
        else:
            assert asked(decision)[1] == THREE.message
            assert said(asked(decision)[2]) == ["sunny 1", "sunny 2", "sunny 3"]


def test_results_of_rewritten_ids_find_their_calls_over_two_parts() -> None:
    results = tuple(ToolResult.of(rewritten(number), f"sunny {number}") for number in (2, 1))
    history = [ASK, Assistant("", (rewritten(1),)), Assistant("", (rewritten(2),)), ToolMessage(results)]
    assert handed(decided(history, {1: THREE})) == call(3).id


def test_a_result_after_a_user_message_is_not_lost() -> None:
    everything = asked(decided([ASK, first(), WAIT, tells(1)], {1: THREE}))
    assert said(everything[2]) == ["sunny 1", SPOKEN, SPOKEN]
    assert everything[3:] == [WAIT]


# Time, failures


def test_a_late_result_is_ordinary_history() -> None:
    decision = decided([ASK, first(), tells(1)], {1: THREE}, EXPIRED)
    everything = asked(decision)
    assert numbers(everything[1]) == [1]
    assert said(everything[2]) == ["sunny 1"]
    assert isinstance(decision, AskModel)
    assert decision.closed == ()


def test_a_lost_hold_counts_as_expired() -> None:
    assert asked(decided([ASK, first(), tells(1)], {1: THREE}, None)) == asked(
        decided([ASK, first(), tells(1)], {1: THREE}, EXPIRED)
    )


def test_calls_that_were_abandoned_stay_abandoned_when_the_hold_has_expired() -> None:
    everything = asked(decided([ASK, first(), tells(1), WAIT], {1: THREE}, replace(CLOSED, until=-1.0)))
    assert said(everything[2]) == ["sunny 1", SPOKEN, SPOKEN]


FAILURES = [
    ToolMessage((ToolResult.of(call(1), "no such city", error=True),)),
    ToolMessage((ToolResult.of(call(1), "Error: no such city"),)),
]


@pytest.mark.parametrize("failure", FAILURES, ids=["marked", "in words"])
def test_after_a_failed_result_the_next_call_is_released(failure: ToolMessage) -> None:
    assert handed(decided([ASK, first(), failure], {1: THREE})) == call(2).id


@pytest.mark.parametrize("failure", FAILURES, ids=["marked", "in words"])
def test_after_a_failed_result_the_rest_can_be_skipped(failure: ToolMessage) -> None:
    decision = decided([ASK, first(), failure], {1: THREE}, stop=True)
    assert said(asked(decision)[2])[1:] == [FAILED, FAILED]
    assert isinstance(decision, AskModel)
    assert decision.closed == (THREE,)


def test_after_a_failed_result_later_requests_agree() -> None:
    history = [ASK, first(), FAILURES[0]]
    once = asked(decided(history, {1: THREE}, stop=True))
    later = asked(decided([*history, Assistant("Hm."), User.of("Go on.")], {1: THREE}, CLOSED, stop=True))
    assert later[: len(once)] == once


# Several turns


def test_each_turn_of_a_history_is_restored() -> None:
    second = turn(4, 5, key="turn:2", text="Two more.")
    history = [
        ASK,
        first(),
        tells(1),
        asks(2),
        tells(2),
        asks(3),
        tells(3),
        asks(4, text="Two more."),
        tells(4),
        asks(5),
        tells(5),
    ]
    turns = {1: THREE, 3: THREE, 5: THREE, 7: second, 9: second}
    everything = asked(decided(history, turns))
    assert [numbers(message) for message in everything if isinstance(message, Assistant)] == [[1, 2, 3], [4, 5]]
    assert handed(decided(history[:9], turns)) == call(5).id


def test_a_turn_with_several_calls_after_an_interrupted_one_is_released() -> None:
    second = turn(4, 5, key="turn:2", text="")
    history = [ASK, first(), WAIT, asks(4), tells(4)]
    assert handed(decided(history, {1: THREE, 3: second})) == call(5).id


def test_a_later_turn_that_repeats_ids_changes_nothing_of_an_earlier_one() -> None:
    north = replace(turn(1, 2), ids=("call_0", "call_1"))
    south = replace(turn(3, 4, key="turn:2"), ids=("call_0", "call_1"))
    history: list[Message] = [ASK]
    for number, id in ((1, "call_0"), (3, "call_0"), (4, "call_1")):
        part = call(number, id)
        history += [Assistant("", (part,)), ToolMessage((ToolResult.of(part, f"sunny {number}"),))]
        history += [WAIT] if number == 1 else []
    everything = asked(decided(history, {1: north, 4: south}, CLOSED))
    assert said(everything[2]) == ["sunny 1", SPOKEN]
    assert said(everything[5]) == ["sunny 3", "sunny 4"]


def test_a_turn_that_was_given_at_once_comes_back_at_once() -> None:
    whole = turn(1, 2, 3, held=False)
    history = [ASK, asks(1, 2, 3), tells(3, 1, 2)]
    everything = asked(decided(history, {1: whole}))
    assert everything[1] == whole.message
    assert said(everything[2]) == ["sunny 1", "sunny 2", "sunny 3"]


def test_a_call_that_the_client_dropped_from_a_complete_turn_is_not_restored() -> None:
    whole = turn(1, 2, 3, held=False)
    everything = asked(decided([ASK, asks(1, 3), tells(1, 3)], {1: whole}))
    assert numbers(everything[1]) == [1, 3]
    assert said(everything[2]) == ["sunny 1", "sunny 3"]


def test_a_turn_of_twenty_calls_comes_back_in_order() -> None:
    many = turn(*range(20))
    history: list[Message] = [ASK]
    for number in range(20):
        history += [asks(number), tells(number)]
        if number < 19:
            assert handed(decided(history, {1: many})) == call(number + 1).id
    everything = asked(decided(history, {1: many}))
    assert said(everything[2]) == [f"sunny {number}" for number in range(20)]


# Storage


def test_a_turn_is_read_as_it_was_written() -> None:
    native = Native("anthropic-messages", [{"type": "thinking", "signature": "c2ln"}], ("a",), "somewhere")
    kept = replace(THREE, message=replace(THREE.message, native=native), shown="Let me", kept_until=7.5)
    assert read_turn(kept.key, write_turn(kept)) == kept
    assert read_hold(write_hold(CLOSED)) == CLOSED


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b'{"v":0}', b'{"v":1}', b'{"v":1,"message":3,"until":1}'])
def test_an_unreadable_turn_is_ignored(data: bytes) -> None:
    assert read_turn("turn:1", data) is None


@pytest.mark.parametrize("data", [None, b"", b"{", b"[]", b'{"v":0,"until":1}'])
def test_an_unreadable_hold_is_ignored(data: bytes | None) -> None:
    assert read_hold(data) is None


def test_a_digest_ignores_what_clients_lose_or_rewrite() -> None:
    history = [ASK, first(), tells(1), tells(2)]
    same = [
        System.of("It is 12:01."),
        User.of("What is the weather?"),
        Assistant(" Let me look.", (call(1, first().calls[0].id),), reasoning="Hm."),
        ToolMessage((*tells(1).results, *tells(2).results)),
    ]
    assert chain(history) == chain(same)


def test_a_digest_distinguishes_content() -> None:
    history = [ASK, first(), tells(1)]
    others: list[list[Message]] = [
        [WAIT, first(), tells(1)],
        [ASK, asks(1), tells(1)],
        [ASK, asks(2, text="Let me look."), tells(1)],
        [ASK, first(), tells(2)],
        [ASK, first()],
        [ASK, first(), User.of("sunny 1")],
    ]
    digests = [chain(messages) for messages in [history, *others]]
    assert len(set(digests)) == len(digests)


def test_digests_grow_with_the_history() -> None:
    history = [ASK, first(), tells(1), asks(2)]
    assert chains(history) == [chain(history[: at + 1]) for at in range(len(history))]


def test_unusual_arguments_have_a_digest_too() -> None:
    strange = [{"n": 1 << 80}, {"n": "\ud83d"}, {"n": 1.5}, {"n": None}]
    digests = {chain([Assistant("", (ToolCall("", "f", arguments),))]) for arguments in strange}
    assert len(digests) == len(strange)


def test_calls_are_equal_by_name_and_arguments() -> None:
    assert same_call(call(1, "a"), call(1, "b"))
    assert not same_call(call(1), call(2))
    custom = ToolCall("a", "patch", None, raw="*** Begin", complete=False, kind="custom")
    assert same_call(custom, replace(custom, id="b"))
    assert not same_call(custom, replace(custom, raw="*** End"))


def test_text_and_calls_that_a_client_stores_as_two_messages_are_one_turn() -> None:
    text, first_call = Assistant(THREE.text), Assistant("", first().calls)
    decision = decided([ASK, text, first_call, tells(1)], {2: THREE})
    assert isinstance(decision, ReleaseCall)
    assert decision.position == 1
    history = [ASK, text, first_call, tells(1), asks(2), tells(2), asks(3), tells(3)]
    asked = decided(history, {2: THREE, 4: THREE, 6: THREE})
    assert isinstance(asked, AskModel)
    assert asked.messages[:2] == (ASK, THREE.message)
    assert len(asked.messages) == 3


def test_a_client_that_parses_and_rewrites_arguments_gets_the_rest() -> None:
    parts = first().calls
    retold = replace(parts[0], arguments={**(parts[0].arguments or {}), "limit": 10})
    decision = decided([ASK, replace(first(), calls=(retold,)), tells(1)], {1: THREE})
    assert isinstance(decision, ReleaseCall)
    assert decision.position == 1


def test_a_client_with_its_own_ids_that_edits_a_call_gets_no_warning_about_calls_that_it_has() -> None:
    changed = replace(rewritten(2), arguments={"n": 7}, raw='{"n": 7}')
    history: list[Message] = [ASK]
    for part in (replace(first(), calls=(rewritten(1),)), Assistant("", (changed,)), Assistant("", (rewritten(3),))):
        history += [part, ToolMessage(tuple(ToolResult.of(made, "sunny") for made in part.calls))]
    everything = asked(decided(history, {1: THREE}))
    assert SPOKEN not in repr(everything)
    assert [len(message.calls) for message in everything if isinstance(message, Assistant)] == [1, 1, 1]
