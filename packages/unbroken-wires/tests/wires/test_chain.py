"""The same edits repair the raw messages of each wire, and lose no unknown field."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stories import JUDGES, Answer, Calls, Raw, Say, Story, broken, marks_of, stories, tell, with_ids_used_once
from strategies import costly

from unbroken.errors import UnknownWire, UserError
from unbroken_wires.transcript import NO_RESULT, Drop, HistoryEdit, Insert, Move, Place, Rename, apply, links, repairs
from unbroken_wires.wires import WIRES
from unbroken_wires.wires.chain import repair_raw

every_wire = pytest.mark.parametrize("wire", list(WIRES))


@every_wire
@given(story=stories())
def test_valid_raw_messages_are_returned_as_the_same_objects(wire: str, story: Story) -> None:
    raw = tell(wire, with_ids_used_once(story) if WIRES[wire].history.unique else story)
    JUDGES[wire](raw)
    repaired, edits = repair_raw(wire, raw)
    assert edits == []
    assert all(a is b for a, b in zip(repaired, raw, strict=True))


@every_wire
@given(story=stories(), random=st.randoms(use_true_random=False))
def test_broken_raw_messages_are_repaired_and_keep_every_unknown_field(wire: str, story: Story, random: Random) -> None:
    raw = tell(wire, broken(story, random), random)
    before = copy.deepcopy(raw)
    repaired, edits = repair_raw(wire, raw)
    JUDGES[wire](repaired)
    assert raw == before
    assert repair_raw(wire, repaired) == (repaired, [])
    history = WIRES[wire].history
    dropped = [history.pieces(raw[at.message])[at.part].value for at in (e.place for e in edits if isinstance(e, Drop))]
    assert marks_of([repaired, dropped]) == marks_of(raw)
    touched = {place.message for edit in edits for place in _places(edit)}
    touched |= {_next_speaker(raw, position) for position in touched}  # it may hold a result that was added
    for position, message in enumerate(raw):
        if position not in touched and not _holds_results(wire, message):
            assert any(message is other for other in repaired)


def _places(edit: HistoryEdit) -> list[Place]:
    return [edit.place, edit.call] if isinstance(edit, Move) else [edit.place]


def _next_speaker(raw: Sequence[Any], position: int) -> int:
    """The place of the next message of another role: messages of one role that follow each other are one turn."""
    role = raw[position].get("role") if isinstance(raw[position], dict) else None
    others = (at for at in range(position + 1, len(raw)) if role is None or raw[at].get("role") != role)
    return next(others, len(raw))


def _holds_results(wire: str, message: Any) -> bool:
    return any(piece.kind == "result" for piece in WIRES[wire].history.pieces(message))


@every_wire
@given(story=stories(), random=st.randoms(use_true_random=False))
def test_open_calls_at_the_end_may_be_left_open(wire: str, story: Story, random: Random) -> None:
    raw = tell(wire, [*broken(story, random), Say("user"), Calls(("p", "q", "r")), Answer("q")], random)
    repaired, edits = repair_raw(wire, raw, answer_open=False)
    assert repair_raw(wire, repaired, answer_open=False) == (repaired, [])
    assert not any(edit.id in "pqr" for edit in edits)
    closed, more = repair_raw(wire, repaired)
    assert [type(edit) for edit in more] == [Insert, Insert]
    assert [edit.index for edit in more if isinstance(edit, Insert)] == [0, 2]
    JUDGES[wire](closed)


@every_wire
def test_open_calls_are_answered_once_somebody_has_written_after_them(wire: str) -> None:
    raw = tell(wire, [Say("user"), Calls(("a",)), Say("user")])
    repaired, edits = repair_raw(wire, raw, answer_open=False)
    assert [type(edit) for edit in edits] == [Insert]
    JUDGES[wire](repaired)


_words = st.sampled_from(
    [
        "role",
        "type",
        "content",
        "parts",
        "tool_calls",
        "function_call",
        "functionCall",
        "functionResponse",
        "id",
        "call_id",
        "tool_call_id",
        "tool_use_id",
        "name",
        "assistant",
        "user",
        "model",
        "tool",
        "function",
        "a",
        "b",
        "tool_use",
        "tool_result",
        "function_call_output",
        "shell_call",
        "local_shell_call_output",
        "item_reference",
    ]
)
_noise: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers(0, 1) | _words | st.just(""),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_words, inner, max_size=5),
    max_leaves=12,
)
_near = st.fixed_dictionaries(
    {}, optional={"role": _words | _noise, "type": _words, "content": _noise, "parts": _noise, "tool_calls": _noise}
)


@every_wire
@costly
@given(raw=st.lists(_noise | _near, max_size=6), open=st.booleans())
def test_repairing_any_json_twice_changes_nothing(wire: str, raw: Raw, open: bool) -> None:
    repaired, _ = repair_raw(wire, raw, answer_open=open)
    assert repair_raw(wire, repaired, answer_open=open)[1] == []


def test_time_is_linear_in_the_history() -> None:
    n = 20_000
    ids = tuple(f"c{i}" for i in range(n))
    story: Story = [Calls(ids), Say("user"), *(Answer(id) for id in reversed(ids[::2]))]
    raw = tell("openai-chat", story)
    repaired, edits = repair_raw("openai-chat", raw)
    assert len(edits) == n
    JUDGES["openai-chat"](repaired)


def test_anthropic_results_come_first_in_the_user_message_and_an_empty_one_disappears() -> None:
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "a"}, {"type": "tool_use", "id": "b"}]}
    late = {"type": "tool_result", "tool_use_id": "b", "content": "ok", "cache_control": {"type": "ephemeral"}}
    said = {"role": "user", "content": "go on", "id": 7}
    repaired, _ = repair_raw("anthropic-messages", [use, said, {"role": "user", "content": [late]}])
    error = {"type": "tool_result", "tool_use_id": "a", "content": NO_RESULT, "is_error": True}
    assert repaired == [use, {"role": "user", "content": [error, late, {"type": "text", "text": "go on"}], "id": 7}]
    assert repaired[1]["content"][1] is late


def test_an_empty_user_message_takes_the_results_and_nothing_else() -> None:
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}
    repaired, _ = repair_raw("anthropic-messages", [use, {"role": "user", "content": ""}])
    assert [block["type"] for block in repaired[1]["content"]] == ["tool_result"]


def test_repeated_anthropic_ids_in_a_later_turn_are_renamed() -> None:
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]}
    repaired, edits = repair_raw("anthropic-messages", [use, result, use, result])
    assert [type(edit) for edit in edits] == [Rename, Rename]
    assert repaired[2]["content"][0]["id"] == repaired[3]["content"][0]["tool_use_id"] == "call_1_0"


def test_gemini_matches_by_name_in_order_and_uses_an_id_only_if_there_is_one() -> None:
    def called(name: str, **id: str) -> Any:
        return {"functionCall": {"name": name, **id}}

    def told(name: str, value: int) -> Any:
        return {"function_response": {"name": name, "response": {"v": value}}}

    model = {"role": "model", "parts": [called("f"), called("g"), called("f"), called("h", id="h1"), called("k")]}
    user = {"role": "user", "parts": [told("g", 1), told("f", 2), told("f", 3)]}
    repaired, edits = repair_raw("gemini", [model, user])
    assert [type(edit).__name__ for edit in edits] == ["Insert", "Insert", "Move"]
    h = {"functionResponse": {"id": "h1", "name": "h", "response": {"error": NO_RESULT}}}
    k = {"functionResponse": {"name": "k", "response": {"error": NO_RESULT}}}
    assert repaired[1]["parts"] == [told("f", 2), told("g", 1), told("f", 3), h, k]


def test_a_result_without_an_id_does_not_answer_a_call_that_was_answered_by_its_id() -> None:
    model = {"role": "model", "parts": [{"functionCall": {"name": "f", "id": id}} for id in ("1", "2")]}
    by_id: Any = {"functionResponse": {"name": "f", "id": "1", "response": {}}}
    by_name: Any = {"functionResponse": {"name": "f", "response": {}}}
    raw: Raw = [model, {"role": "user", "parts": [by_id, by_name]}]
    assert repair_raw("gemini", raw) == (raw, [])


def test_the_old_single_call_of_chat_is_answered_by_name() -> None:
    asks = {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}
    repaired, _ = repair_raw("openai-chat", [asks, {"role": "user", "content": "hi"}])
    assert repaired[1] == {"role": "function", "name": "f", "content": NO_RESULT}
    assert repair_raw("openai-chat", repaired)[1] == []


@pytest.mark.parametrize(
    ("call", "fields"),
    [
        ("function_call", {"type": "function_call_output", "output": NO_RESULT}),
        ("custom_tool_call", {"type": "custom_tool_call_output", "output": NO_RESULT}),
        ("local_shell_call", {"type": "local_shell_call_output", "output": NO_RESULT}),
        ("apply_patch_call", {"type": "apply_patch_call_output", "status": "failed", "output": NO_RESULT}),
    ],
)
def test_each_kind_of_responses_call_gets_its_own_kind_of_answer(call: str, fields: dict[str, str]) -> None:
    repaired, _ = repair_raw("openai-responses", [{"type": call, "call_id": "a"}])
    assert repaired[1:] == [{"call_id": "a", **fields}]


def test_calls_that_the_provider_ran_itself_are_not_changed() -> None:
    raw: Raw = [
        {"type": "web_search_call", "id": "ws_1"},
        {"type": "shell_call", "call_id": None},
        {"type": "shell_call", "call_id": "c", "environment": {"type": "container_reference"}},
        {"type": "custom_tool_call", "call_id": "xs_call-1", "name": "x_keyword_search", "input": "{}"},
        {"role": "user"},
    ]
    assert repair_raw("openai-responses", raw) == (raw, [])


def test_a_result_whose_call_only_the_provider_sees_is_not_changed() -> None:
    output = {"type": "function_call_output", "call_id": "a", "output": "ok"}
    assert repair_raw("openai-responses", [output])[0] == []
    assert repair_raw("openai-responses", [output], whole=False) == ([output], [])
    referred: Raw = [{"type": "item_reference", "id": "fc_1"}, output]
    assert repair_raw("openai-responses", referred) == (referred, [])


def test_an_unknown_wire_and_foreign_edits_are_refused() -> None:
    with pytest.raises(UnknownWire, match="there is no wire 'telex'"):
        repair_raw("telex", [])
    with pytest.raises(UserError, match="this history does not have"):
        apply(WIRES["gemini"].history, [], [Insert("a", Place(3, 0), 0)])


def test_links_give_the_position_of_each_part() -> None:
    raw = tell("anthropic-messages", [Say("user"), Calls(("a",)), Answer("a")])
    seen = links(WIRES["anthropic-messages"].history, raw)
    assert [(link.kind, link.place) for link in seen] == [
        ("speech", Place(0, 0)),
        ("speech", Place(1, 0)),
        ("call", Place(1, 1)),
        ("result", Place(2, 0)),
    ]
    assert repairs(seen) == []
