"""The rows of the fault list that are in the stream, each through a whole run: what ran, what was answered, and that a
provider takes every request. Row numbers stand in the docstrings and ids."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import wire_bytes
from scenes import PROVIDERS, WIRES, Desk, accepted, can_go_on, in_pieces, only, play, play_aloud, results_in
from streams import calls_chunk, chat, chunk, piece, sse
from wire_bytes import block, function_call, tool_use

from unbroken import (
    Agent,
    CallFinished,
    CallStarted,
    ChainBroken,
    Event,
    Result,
    RunFailed,
    Said,
    Schedule,
    ScriptedModel,
    connect,
    find_wire,
)
from unbroken.models.script import Line
from unbroken.testing import Break, Call, Cut, Raw, Say, ScriptedServer, Think

SIZES = [pytest.param(1, id="byte by byte"), pytest.param(7, id="7 bytes"), pytest.param(1 << 20, id="at once")]
STREAMED = [pytest.param(True, id="streamed"), pytest.param(False, id="whole")]


def on(wire: str, body: bytes, *more: str) -> Any:
    return pytest.param(wire, body, id=" ".join([wire, *more]))


def run_bytes(wire: str, body: bytes, desk: Desk, *names: str, size: int = 1 << 20, **settings: Any) -> Result:
    """These bytes, then the answer "Done."."""
    model = ScriptedModel(in_pieces(body, size), "Done.", wire=wire)
    result = play(Agent(model, desk.tools(*names), **settings))
    assert (result.text, result.stop_reason) == ("Done.", "answered")
    accepted(model, result)
    return result


@pytest.mark.parametrize("stream", STREAMED)
@pytest.mark.parametrize("wire", WIRES)
def test_several_calls_of_one_response_all_run(wire: str, stream: bool) -> None:
    """Row 1, over real HTTP."""

    async def main() -> None:
        desk = Desk()
        calls = [Say("Two things."), Call("get_weather", city="Oslo"), Call("get_news", topic="tech"), Call("now")]
        async with ScriptedServer(calls, "Done.") as server:
            base_url = server.base_url(wire)
            async with connect(PROVIDERS[wire], base_url=base_url, wire=wire, api_key="k", stream=stream) as model:
                result = await Agent(model, desk.tools("get_weather", "get_news", "now")).run("Go.")
            assert desk.ran == [("get_weather", {"city": "Oslo"}), ("get_news", {"topic": "tech"}), ("now", {})]
            assert (result.text, len(server.bodies)) == ("Done.", 2)
            accepted(server, result)

    asyncio.run(main())


A, B = '{"n": 1}', '{"n": 2}'
AB = [("a", {"n": 1}), ("b", {"n": 2})]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("wire", "body"),
    [
        on("openai-chat", chat(piece(None, "1", "a", A), piece(None, "2", "b", B)), "row 2: no index, no type"),
        on(
            "openai-chat",
            sse(calls_chunk(piece(None, "1", "a", A), piece(None, "2", "b", B)), chunk({}, "tool_calls")),
            "row 2: no index, both in one delta",
        ),
        on(
            "openai-chat",
            chat(piece(None, "1", "a", '{"n": '), piece(None, arguments="1}"), piece(None, "2", "b", B)),
            "row 2: no index, in pieces",
        ),
        on(
            "openai-responses",
            wire_bytes.responses(
                *function_call(None, "1", "a", A, number=1), *function_call(None, "2", "b", B, number=2)
            ),
            "row 2: no output_index",
        ),
        on(
            "anthropic-messages",
            wire_bytes.messages(*tool_use(None, "1", "a", A), *tool_use(None, "2", "b", B)),
            "row 2: no index",
        ),
        on("openai-chat", chat(piece(0, "1", "a", A), piece(0, "2", "b", B)), "row 3: all at index 0"),
        on(
            "openai-chat",
            chat(
                piece(0, "1", "a", '{"n": '),
                piece(0, arguments="1}"),
                piece(0, "2", "b", '{"n"'),
                piece(0, arguments=": 2}"),
            ),
            "row 3: all at index 0, in pieces",
        ),
        on("openai-chat", chat(piece(0, None, "a", A), piece(0, None, "b", B)), "row 3: index 0 and no ids"),
        on(
            "openai-responses",
            wire_bytes.responses(*function_call(0, "1", "a", A, number=1), *function_call(0, "2", "b", B, number=2)),
            "row 3: all at output_index 0",
        ),
        on(
            "anthropic-messages",
            wire_bytes.messages(*tool_use(0, "1", "a", A), *tool_use(0, "2", "b", B)),
            "row 3: all at index 0",
        ),
        on("openai-chat", chat(piece(1, "1", "a", A), piece(2, "2", "b", B)), "row 4: first index is 1"),
        on("openai-chat", chat(piece(0, "1", "a", A), piece(2, "2", "b", B)), "row 4: indexes 0 and 2"),
        on("openai-chat", chat(piece("0", "1", "a", A), piece("1", "2", "b", B)), "row 4: indexes as text"),
        on("openai-chat", chat(piece(1, "2", "b", B), piece(0, "1", "a", A)), "row 4: the second comes first"),
        on(
            "openai-responses",
            wire_bytes.responses(*function_call(1, "1", "a", A), *function_call(3, "2", "b", B)),
            "row 4: output_index 1 and 3",
        ),
        on(
            "anthropic-messages",
            wire_bytes.messages(*tool_use(1, "1", "a", A), *tool_use(3, "2", "b", B)),
            "row 4: index 1 and 3",
        ),
        on(
            "openai-chat",
            chat(
                piece(0, "1", "a", '{"n"'),
                piece(0, "1", "a", ": 1}"),
                piece(1, "2", "b", '{"n"'),
                piece(1, "2", "b", ": 2}"),
            ),
            "row 5: id and name in every delta",
        ),
        on(
            "openai-chat",
            chat(
                piece(0, "1", "a", '{"n"'),
                piece(0, "", "", ": 1}"),
                piece(1, "2", "b", '{"n"'),
                piece(1, "", "", ": 2}"),
            ),
            "row 5: empty id and name later",
        ),
    ],
)
def test_two_calls_are_kept_apart_and_in_order(wire: str, body: bytes, size: int) -> None:
    """Rows 2 to 5."""
    desk = Desk()
    result = run_bytes(wire, body, desk, "a", "b", size=size, schedule=Schedule.SEQUENTIAL)
    assert desk.ran == AB
    assert [call.name for call in result.calls] == ["a", "b"]
    assert len({call.id for call in result.calls}) == 2


@pytest.mark.parametrize("wire", WIRES)
def test_calls_without_ids_get_ids_that_are_unique_in_the_run(wire: str) -> None:
    """Row 6: no id at all."""
    desk = Desk()
    model = ScriptedModel([Call("a", id=""), Call("b", id="")], [Call("a", id="", n=2)], "Done.", wire=wire)
    result = play(Agent(model, desk.tools("a", "b")))
    assert [call.id for call in result.calls] == ["call_0_0", "call_0_1", "call_1_0"]
    assert (desk.ran, result.text) == ([("a", {}), ("b", {}), ("a", {"n": 2})], "Done.")
    accepted(model, result)


@pytest.mark.parametrize("wire", WIRES)
def test_ids_that_start_again_each_turn_are_made_unique(wire: str) -> None:
    """Row 6: ids that restart each turn."""
    desk = Desk()
    answers: list[Line] = [[Call("a", n=n, id="call_0"), Call("b", n=n, id="call_1")] for n in range(3)]
    model = ScriptedModel(*answers, "Done.", wire=wire)
    result = play(Agent(model, desk.tools("a", "b")))
    assert len({call.id for call in result.calls}) == 6
    assert [call.id for call in result.calls][:2] == ["call_0", "call_1"]
    assert [arguments["n"] for _, arguments in desk.ran] == [0, 0, 1, 1, 2, 2]
    assert result.text == "Done."
    accepted(model, result)


@pytest.mark.parametrize("wire", WIRES)
def test_one_id_for_several_calls_is_made_several(wire: str) -> None:
    """Row 6: one id for several calls."""
    desk = Desk()
    model = ScriptedModel([Call("a", n=1, id="x"), Call("b", n=2, id="x"), Call("a", n=3, id="x")], "Done.", wire=wire)
    result = play(Agent(model, desk.tools("a", "b")))
    assert desk.ran == [*AB, ("a", {"n": 3})]
    assert result.calls[0].id == "x"
    assert len({call.id for call in result.calls}) == 3
    assert [text for _, text in results_in(result.messages)] == ["a done", "b done", "a done"]
    assert result.text == "Done."
    accepted(model, result)


def gemini_call(**fields: Any) -> bytes:
    return wire_bytes.gemini({"functionCall": {"name": "a", **fields}})


TWICE = json.dumps(json.dumps({"n": 1}))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("wire", "body"),
    [
        on(
            "openai-chat",
            sse(
                calls_chunk({"index": 0, "id": "1", "function": {"name": "a", "arguments": None}}),
                chunk({}, "tool_calls"),
            ),
            "null",
        ),
        on("openai-chat", chat(piece(0, "1", "a", "")), "empty text"),
        on("openai-chat", chat(piece(0, "1", "a")), "left out"),
        on("openai-chat", chat(piece(0, "1", "a", {})), "an empty object"),
        on("openai-responses", wire_bytes.responses(*function_call(0, "1", "a", "")), "empty text"),
        on("anthropic-messages", wire_bytes.messages(*tool_use(0, "1", "a")), "no piece"),
        on("anthropic-messages", wire_bytes.messages(*tool_use(0, "1", "a", "")), "an empty piece"),
        on("gemini", gemini_call(), "left out"),
        on("gemini", gemini_call(args=None), "null"),
        on("gemini", gemini_call(args={}), "an empty object"),
    ],
)
def test_no_arguments_are_an_empty_object(wire: str, body: bytes, size: int) -> None:
    """Row 7: `null`, nothing, an empty text."""
    desk = Desk()
    result = run_bytes(wire, body, desk, "a", size=size)
    assert desk.ran == [("a", {})]
    assert [call.error for call in result.calls] == [False]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("wire", "body"),
    [
        on("openai-chat", chat(piece(0, "1", "a", {"n": 1})), "an object"),
        on("openai-chat", chat(piece(0, "1", "a", TWICE)), "encoded twice"),
        on("openai-chat", chat(piece(0, "1", "a", TWICE[:4]), piece(0, arguments=TWICE[4:])), "twice, in pieces"),
        on("openai-responses", wire_bytes.responses(*function_call(0, "1", "a", TWICE)), "encoded twice"),
        on("anthropic-messages", wire_bytes.messages(*tool_use(0, "1", "a", given={"n": 1})), "an object"),
        on("anthropic-messages", wire_bytes.messages(*tool_use(0, "1", "a", TWICE)), "encoded twice"),
        on("gemini", gemini_call(args={"n": 1}), "an object"),
        on("gemini", gemini_call(args='{"n": 1}'), "text in place of an object"),
    ],
)
def test_arguments_in_another_shape_are_read(wire: str, body: bytes, size: int) -> None:
    """Row 7: as an object, as a text in a text."""
    desk = Desk()
    run_bytes(wire, body, desk, "a", size=size)
    assert desk.ran == [("a", {"n": 1})]


@pytest.mark.parametrize("schedule", Schedule)
@pytest.mark.parametrize("raw", ["", '{"path": "/et', '{"path": "/", "deep": {"x": [1, 2'])
@pytest.mark.parametrize("wire", [wire for wire in WIRES if wire != "gemini"])
def test_a_call_that_the_token_limit_cut_is_told_and_never_runs(wire: str, raw: str, schedule: Schedule) -> None:
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


def test_a_call_that_gemini_could_not_write_never_runs_and_the_error_says_so() -> None:
    """Row 8 on gemini, whose wire has no half calls: the provider itself says that there was one."""
    desk = Desk()
    model = ScriptedModel(Call("look"), Cut("delete", '{"path": "/et'), wire="gemini")
    with pytest.raises(ChainBroken, match="MALFORMED_FUNCTION_CALL") as caught:
        play(Agent(model, desk.tools("look", "delete")))
    assert desk.ran == [("look", {})]
    assert results_in(caught.value.messages) == [("call_r0c0", "look done")]
    accepted(model)
    can_go_on(caught.value.messages)


@pytest.mark.parametrize("schedule", Schedule)
@pytest.mark.parametrize("wire", WIRES)
def test_a_call_that_a_lost_connection_cut_never_runs_and_the_error_says_so(wire: str, schedule: Schedule) -> None:
    """Row 8, what needs no restart: one typed error, with a history that can be gone on with."""
    desk = Desk()
    model = ScriptedModel([Say("Let me see."), Cut("delete", '{"path": "/et'), Break()], wire=wire)
    with pytest.raises(ChainBroken, match="the connection was lost") as caught:
        play(Agent(model, desk.tools("delete"), schedule=schedule))
    assert desk.ran == []
    assert [verdict.kind for verdict in caught.value.verdicts] == ["unfinished"]
    can_go_on(caught.value.messages)


@pytest.mark.parametrize("wire", WIRES)
def test_a_read_that_runs_when_the_stream_breaks_is_told_as_ended(wire: str) -> None:
    """Row 8: who listens hears the end of whatever started, before the run is over."""
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
def test_a_number_may_still_grow(wire: str, body: bytes, size: int) -> None:
    """Row 9: what can be read is not yet complete."""
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
def test_text_after_the_closed_object_spoils_a_write_before_it_ran(wire: str, body: bytes, size: int) -> None:
    """Row 9: closed, and then more came."""
    desk = Desk()
    result = run_bytes(wire, body, desk, "a", size=size)
    assert desk.ran == []
    assert [call.error for call in result.calls] == [True]


def test_a_read_that_started_and_is_spoiled_is_cancelled_and_answered_with_an_error() -> None:
    """Row 9, where the wire has no end of its own and the read was under way already."""
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
def test_a_whole_call_runs_whatever_the_finish_reason_says(wire: str, body: bytes, size: int) -> None:
    """Row 10: the reason is one witness among three."""
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
def test_a_cut_call_never_runs_whatever_the_finish_reason_says(wire: str, body: bytes, size: int) -> None:
    """Row 10: `tool_calls` on cut JSON."""
    desk = Desk()
    result = run_bytes(wire, body, desk, "a", size=size)
    assert desk.ran == []
    assert [call.error for call in result.calls] == [True]


@pytest.mark.parametrize("wire", WIRES)
def test_white_space_before_a_call_is_no_answer(wire: str) -> None:
    """Row 14: the call runs, and the white space does not make the next request one that is refused."""
    desk = Desk()
    model = ScriptedModel([Say("\n\n  "), Call("a", n=1)], "Done.", wire=wire)
    result, events = play_aloud(Agent(model, desk.tools("a")))
    assert (desk.ran, result.text) == ([("a", {"n": 1})], "Done.")
    assert [event.text for event in only(Said, events) if event.final] == ["Done."]
    accepted(model, result)


@pytest.mark.parametrize("said", [[], [Say("\n")], [Think("Hm.")]], ids=["nothing", "white space", "only reasoning"])
@pytest.mark.parametrize("wire", WIRES)
def test_an_empty_answer_is_asked_for_once_more(wire: str, said: list[Any]) -> None:
    """Row 14, what needs no restart. The history does not keep the empty answer, nor the question for another."""
    desk = Desk()
    model = ScriptedModel(Call("a"), said, "Done.", wire=wire)
    result = play(Agent(model, desk.tools("a")))
    assert (result.text, result.stop_reason, result.requests) == ("Done.", "answered", 3)
    assert len(result.messages) == 4
    accepted(model, result)


@pytest.mark.parametrize("wire", WIRES)
def test_a_model_that_stays_silent_is_an_error(wire: str) -> None:
    """Row 14: twice nothing."""
    model = ScriptedModel([], [], wire=wire)
    with pytest.raises(ChainBroken, match="empty answer, twice") as caught:
        play(Agent(model, Desk().tools("a")))
    can_go_on(caught.value.messages)


@pytest.mark.parametrize("wire", WIRES)
def test_text_before_a_call_is_not_the_answer(wire: str) -> None:
    """Row 15: the run goes on."""
    desk = Desk()
    model = ScriptedModel([Say("The answer is probably 4. Let me check."), Call("a", n=1)], "It is 5.", wire=wire)
    result, events = play_aloud(Agent(model, desk.tools("a")))
    assert (result.text, result.rounds, desk.ran) == ("It is 5.", 1, [("a", {"n": 1})])
    assert [event.final for event in only(Said, events)] == [False, True]
    accepted(model, result)


SEARCH_CALL = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}
PROVIDER_RUN = [
    on(
        "openai-responses",
        wire_bytes.responses(
            {"type": "response.output_item.added", "output_index": 0, "item": {**SEARCH_CALL, "status": "in_progress"}},
            {"type": "response.output_item.done", "output_index": 0, "item": SEARCH_CALL},
            *function_call(1, "1", "a", A),
        ),
    ),
    on(
        "anthropic-messages",
        wire_bytes.messages(
            *block(0, {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}, '{"q": "x"}'),
            *block(1, {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}),
            *tool_use(2, "toolu_1", "a", A),
        ),
    ),
    on(
        "gemini",
        wire_bytes.gemini(
            {"executableCode": {"language": "PYTHON", "code": "print(1)"}},
            {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
            {"functionCall": {"name": "a", "args": {"n": 1}}},
        ),
    ),
    on(
        "openai-chat",
        sse(
            chunk({"executed_tools": [{"index": 0, "type": "search", "arguments": '{"query": "x"}'}]}),
            calls_chunk(piece(0, "1", "a", A)),
            chunk({}, "tool_calls"),
        ),
    ),
]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("wire", "body"), PROVIDER_RUN)
def test_what_the_provider_ran_itself_is_not_run_again(wire: str, body: bytes, size: int) -> None:
    """Row 17: though a tool of ours has its name."""
    desk = Desk()
    result = run_bytes(wire, body, desk, "a", "web_search", "search", size=size)
    assert desk.ran == [("a", {"n": 1})]
    assert [call.name for call in result.calls] == ["a"]


HALVES = ['{"text": "\ud83d', '\ude00"}']


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("wire", "body"),
    [
        on("openai-chat", chat(piece(0, "1", "a", HALVES[0]), piece(0, arguments=HALVES[1]))),
        on("openai-responses", wire_bytes.responses(*function_call(0, "1", "a", *HALVES))),
        on("anthropic-messages", wire_bytes.messages(*tool_use(0, "1", "a", *HALVES))),
        on("gemini", gemini_call(args={"text": "\ud83d\ude00"})),
    ],
)
def test_an_emoji_in_two_halves_is_joined(wire: str, body: bytes, size: int) -> None:
    """Row 36: in arguments."""
    desk = Desk()
    run_bytes(wire, body, desk, "a", size=size)
    assert desk.ran == [("a", {"text": "😀"})]


@pytest.mark.parametrize("stream", STREAMED)
@pytest.mark.parametrize("wire", WIRES)
def test_half_a_character_in_a_result_does_not_kill_the_request(wire: str, stream: bool) -> None:
    """Row 36: over real HTTP, in a result and in the text of the user."""

    async def main() -> None:
        desk = Desk()
        async with ScriptedServer(Call("a"), "Done.") as server:
            base_url = server.base_url(wire)
            async with connect(PROVIDERS[wire], base_url=base_url, wire=wire, api_key="k", stream=stream) as model:
                result = await Agent(model, [desk.tool("a", "half: \ud83d.")]).run("Go \ude00.")
            assert (desk.ran, result.text) == ([("a", {})], "Done.")
            assert "half: �." in json.dumps(server.bodies[1], ensure_ascii=False)
            assert "Go �." in json.dumps(server.bodies[1], ensure_ascii=False)
            accepted(server, result)

    asyncio.run(main())


BIG = 123456789012345678901234567890


def one_more(n: int) -> int:
    return n + 1


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("wire", "body"),
    [
        on("openai-chat", chat(piece(0, "1", "a", f'{{"n": {BIG}}}'))),
        on("openai-responses", wire_bytes.responses(*function_call(0, "1", "a", f'{{"n": {BIG}}}'))),
        on("anthropic-messages", wire_bytes.messages(*tool_use(0, "1", "a", f'{{"n": {BIG}}}'))),
        on("gemini", gemini_call(args={"n": BIG})),
    ],
)
def test_numbers_beyond_64_bits_are_exact(wire: str, body: bytes, size: int) -> None:
    """Row 37: on the way in, and on the way back to the model."""
    desk = Desk()
    model = ScriptedModel(in_pieces(body, size), "Done.", wire=wire)
    result = play(Agent(model, [desk.tool("a", one_more)]))
    assert desk.ran == [("a", {"n": BIG})]
    sent = find_wire(wire).write_request(model.requests[1]).decode()
    assert str(BIG) in sent
    assert str(BIG + 1) in sent
    accepted(model, result)
