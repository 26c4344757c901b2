"""Rows 8 to 10, 14 and 15 of the fault list: is the call complete, is that the answer? Cut off, invalid or empty, with
any finish reason, through a complete run."""

from __future__ import annotations

from typing import Any

import pytest
import wire_bytes
from scenes import (
    IN_FRAGMENTS,
    SIZES,
    WIRES,
    Desk,
    accepted,
    can_go_on,
    on,
    only,
    play,
    play_aloud,
    results_in,
    run_bytes,
)
from streams import calls_chunk, chat, chunk, piece, sse
from wire_bytes import function_call, tool_use

from unbroken import Agent, CallFinished, CallStarted, ChainBroken, Event, RunFailed, Schedule, ScriptedModel
from unbroken.events import TextFinished
from unbroken_testing import Break, Call, Cut, Raw, Say, Think

A = '{"n": 1}'


def gemini_call(**fields: Any) -> bytes:
    return wire_bytes.gemini({"functionCall": {"name": "a", **fields}})


@pytest.mark.parametrize("schedule", Schedule)
@pytest.mark.parametrize("raw", ["", '{"path": "/et', '{"path": "/", "deep": {"x": [1, 2'])
@pytest.mark.parametrize("wire", IN_FRAGMENTS)
def test_a_call_that_the_token_limit_cut_off_is_reported_and_never_runs(
    wire: str, raw: str, schedule: Schedule
) -> None:
    """Row 8, what needs no restart: it goes back to the model as `{}` and its text only in the result."""
    desk = Desk()
    model = ScriptedModel([Call("look", id="1"), Cut("delete", raw, id="2")], "Done.", wire=wire)
    result = play(Agent(model, desk.tools("look", "delete"), schedule=schedule))
    assert desk.ran == [("look", {})]
    (_, good), (_, told) = results_in(result.messages)
    assert good == "look done"
    assert told.startswith("Error: not executed: ")
    assert told.endswith(f"Received: {raw}")
    assert result.text == "Done."
    accepted(model, result)


@pytest.mark.parametrize(("wire", "words"), [("gemini", "MALFORMED_FUNCTION_CALL"), ("ollama", "error parsing tool")])
def test_a_call_that_gemini_could_not_write_never_runs_and_the_error_explains_it(wire: str, words: str) -> None:
    """Row 8 on wires that have no half calls: the provider itself says that there was one."""
    desk = Desk()
    model = ScriptedModel(Call("look"), Cut("delete", '{"path": "/et'), wire=wire)
    with pytest.raises(ChainBroken, match=words) as caught:
        play(Agent(model, desk.tools("look", "delete")))
    assert desk.ran == [("look", {})]
    assert results_in(caught.value.messages) == [("call_r0c0", "look done")]
    accepted(model)
    can_go_on(caught.value.messages)


@pytest.mark.parametrize("schedule", Schedule)
@pytest.mark.parametrize("wire", WIRES)
def test_a_call_that_a_lost_connection_cut_off_never_runs_and_the_error_explains_it(
    wire: str, schedule: Schedule
) -> None:
    """Row 8, without a restart: one typed error, with a history that can be continued."""
    desk = Desk()
    model = ScriptedModel([Say("Let me see."), Cut("delete", '{"path": "/et'), Break()], wire=wire)
    with pytest.raises(ChainBroken, match="the connection was lost") as caught:
        play(Agent(model, desk.tools("delete"), schedule=schedule))
    assert desk.ran == []
    assert [verdict.kind for verdict in caught.value.verdicts] == ["lost"]
    can_go_on(caught.value.messages)


@pytest.mark.parametrize("wire", WIRES)
def test_a_read_that_is_running_when_the_stream_breaks_is_reported_as_ended(wire: str) -> None:
    """Row 8: a listener gets the end of whatever started, before the run is over."""
    desk = Desk()
    events: list[Event] = []
    model = ScriptedModel([Call("look"), Say("And", after=2.0), Break()], wire=wire)
    agent = Agent(model, desk.tools("look", seconds=5.0, effect="read"), sinks=[events.append])
    with pytest.raises(ChainBroken):
        play(agent)
    assert desk.spans == [("look", 0.0, None)]
    assert [type(event) for event in events if isinstance(event, CallStarted | CallFinished | RunFailed)] == [
        CallStarted,
        CallFinished,
        RunFailed,
    ]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("wire", "body"),
    [
        on("openai-chat", chat(piece(0, "1", "a", '{"n": 1'), piece(0, arguments="2}"))),
        on("openai-responses", wire_bytes.responses(*function_call(0, "1", "a", '{"n": 1', "2}"))),
        on("anthropic-messages", wire_bytes.messages(*tool_use(0, "1", "a", '{"n": 1', "2}"))),
        on("gemini", gemini_call(args={"n": 12})),
    ],
)
def test_a_number_may_still_continue(wire: str, body: bytes, size: int) -> None:
    """Row 9: parsable does not mean complete."""
    desk = Desk()
    run_bytes(wire, body, desk, "a", size=size)
    assert desk.ran == [("a", {"n": 12})]


AFTER = ['{"n": 1}', ', "m": 2}']
SPOILED = [
    on("openai-chat", chat(piece(0, "1", "a", AFTER[0]), piece(0, arguments=AFTER[1]))),
    on("openai-responses", wire_bytes.responses(*function_call(0, "1", "a", *AFTER))),
    on("anthropic-messages", wire_bytes.messages(*tool_use(0, "1", "a", *AFTER))),
]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("wire", "body"), SPOILED)
def test_text_after_the_closed_object_stops_a_write_before_it_ran(wire: str, body: bytes, size: int) -> None:
    """Row 9: closed, and then more arrived."""
    desk = Desk()
    result = run_bytes(wire, body, desk, "a", size=size)
    assert desk.ran == []
    assert [call.error for call in result.calls] == [True]


def test_a_read_that_started_and_becomes_invalid_is_cancelled_and_gets_an_error() -> None:
    """Row 9, if the wire has no end of a call and the read was already running."""
    desk = Desk()
    first, rest = chat(piece(0, "1", "a", AFTER[0]), done=False, finish=None), chat(piece(0, arguments=AFTER[1]))
    model = ScriptedModel([Raw(first), Raw(rest, after=1.0)], "Done.")
    result, events = play_aloud(Agent(model, desk.tools("a", seconds=5.0, effect="read")))
    assert desk.spans == [("a", 0.0, None)]
    assert [(event.call_id, event.early) for event in only(CallStarted, events)] == [("1", True)]
    assert [(event.call_id, event.error) for event in only(CallFinished, events)] == [("1", True)]
    assert "more text came after" in result.calls[0].result.text
    assert (result.text, result.seconds) == ("Done.", 1.0)
    accepted(model, result)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("wire", "body"),
    [
        on("openai-chat", chat(piece(0, "1", "a", A), finish="stop"), "stop"),
        on("openai-chat", chat(piece(0, "1", "a", A), finish="length"), "length"),
        on("openai-chat", sse(calls_chunk(piece(0, "1", "a", A)), chunk({}, "tool_calls"), chunk({}, "stop")), "twice"),
        on(
            "openai-chat",
            sse(
                calls_chunk(piece(0, "1", "a", A)),
                chunk({}, "tool_calls"),
                {"id": "c", "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}},
            ),
            "usage after the finish",
        ),
        on("openai-chat", chat(piece(0, "1", "a", A), done=False), "no [DONE]"),
        on("openai-chat", chat(piece(0, "1", "a", A), finish=None), "only [DONE]"),
        on("anthropic-messages", wire_bytes.messages(*tool_use(0, "1", "a", A), stop="end_turn"), "end_turn"),
        on("anthropic-messages", wire_bytes.messages(*tool_use(0, "1", "a", A), stop="max_tokens"), "max_tokens"),
        on("gemini", wire_bytes.gemini({"functionCall": {"name": "a", "args": {"n": 1}}}, finish="STOP"), "STOP"),
        on("gemini", wire_bytes.gemini({"functionCall": {"name": "a", "args": {"n": 1}}}, finish="OTHER"), "OTHER"),
        on("openai-responses", wire_bytes.responses(*function_call(0, "1", "a", A), output=[]), "no output at the end"),
    ],
)
def test_a_complete_call_runs_whatever_the_finish_reason_is(wire: str, body: bytes, size: int) -> None:
    """Row 10: the finish reason is one of three signals."""
    desk = Desk()
    run_bytes(wire, body, desk, "a", size=size)
    assert desk.ran == [("a", {"n": 1})]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("wire", "body"),
    [
        on("openai-chat", chat(piece(0, "1", "a", '{"n": '), finish="tool_calls")),
        on("openai-responses", wire_bytes.responses(*function_call(0, "1", "a", '{"n": '))),
        on("anthropic-messages", wire_bytes.messages(*tool_use(0, "1", "a", '{"n": '))),
    ],
)
def test_an_incomplete_call_never_runs_whatever_the_finish_reason_is(wire: str, body: bytes, size: int) -> None:
    """Row 10: `tool_calls` on incomplete JSON."""
    desk = Desk()
    result = run_bytes(wire, body, desk, "a", size=size)
    assert desk.ran == []
    assert [call.error for call in result.calls] == [True]


@pytest.mark.parametrize("wire", WIRES)
def test_white_space_before_a_call_is_not_an_answer(wire: str) -> None:
    """Row 14: the call runs, and the white space does not make the next request invalid."""
    desk = Desk()
    model = ScriptedModel([Say("\n\n  "), Call("a", n=1)], "Done.", wire=wire)
    result, events = play_aloud(Agent(model, desk.tools("a")))
    assert (desk.ran, result.text) == ([("a", {"n": 1})], "Done.")
    assert [event.text for event in only(TextFinished, events) if event.final] == ["Done."]
    accepted(model, result)


@pytest.mark.parametrize("said", [[], [Say("\n")], [Think("Hm.")]], ids=["nothing", "white space", "only reasoning"])
@pytest.mark.parametrize("wire", WIRES)
def test_an_empty_answer_is_requested_once_more(wire: str, said: list[Any]) -> None:
    """Row 14, without a restart. The history keeps neither the empty answer nor the request for another."""
    desk = Desk()
    model = ScriptedModel(Call("a"), said, "Done.", wire=wire)
    result = play(Agent(model, desk.tools("a")))
    assert (result.text, result.stop_reason, result.requests) == ("Done.", "answered", 3)
    assert len(result.messages) == 4
    accepted(model, result)


@pytest.mark.parametrize("wire", WIRES)
def test_a_model_that_stays_silent_is_an_error(wire: str) -> None:
    """Row 14: nothing, even after two requests to continue."""
    model = ScriptedModel([], [], [], wire=wire)
    with pytest.raises(ChainBroken, match="empty answer, even after it was asked 2 times") as caught:
        play(Agent(model, Desk().tools("a")))
    assert len(caught.value.verdicts) == 3
    can_go_on(caught.value.messages)


@pytest.mark.parametrize("wire", WIRES)
def test_text_before_a_call_is_not_the_answer(wire: str) -> None:
    """Row 15: the run continues."""
    desk = Desk()
    model = ScriptedModel([Say("The answer is probably 4. Let me check."), Call("a", n=1)], "It is 5.", wire=wire)
    result, events = play_aloud(Agent(model, desk.tools("a")))
    assert (result.text, result.rounds, desk.ran) == ("It is 5.", 1, [("a", {"n": 1})])
    assert [event.final for event in only(TextFinished, events)] == [False, True]
    accepted(model, result)
