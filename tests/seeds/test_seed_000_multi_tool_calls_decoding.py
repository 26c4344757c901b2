"""Several calls in one response are all decoded: indexes, pieces, gaps, the legacy field, and incomplete calls.

The seed's deltas are sent unchanged, as bytes of the openai-chat wire, and each test checks what ran.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from scenes import SIZES, Desk, accepted, in_pieces, only, play, play_aloud
from streams import calls_chunk, chat, chunk, piece, sse

from unbroken import Agent, Result, Schedule, ScriptedModel, ToolCallsDetected, connect, decode
from unbroken.events import CallsIgnored
from unbroken_testing import Call, Cut, Raw, ScriptedServer

WEATHER = piece(0, name="get_weather", arguments='{"city": "Beijing"}')
NEWS = piece(1, name="get_news", arguments='{"topic": "tech"}')


def run_bytes(data: bytes, desk: Desk, *names: str, size: int = 1 << 20, **settings: Any) -> tuple[Result, list[Any]]:
    model = ScriptedModel(in_pieces(data, size), "Done.")
    result, events = play_aloud(Agent(model, desk.tools(*names), **settings))
    accepted(model, result)
    assert result.text == "Done."
    return result, events


@pytest.mark.parametrize("size", SIZES)
def test_one_call_is_decoded_and_runs(size: int) -> None:
    """Seed 7.1.1: test_parse_single_tool_call."""
    desk = Desk()
    result, _ = run_bytes(chat(WEATHER), desk, "get_weather", size=size)
    assert desk.ran == [("get_weather", {"city": "Beijing"})]
    assert result.rounds == 1


@pytest.mark.parametrize("size", SIZES)
def test_several_calls_in_one_delta_are_decoded_in_order(size: int) -> None:
    """Seed 7.1.1: test_parse_multiple_tool_calls."""
    desk = Desk()
    body = sse(calls_chunk(WEATHER, NEWS), chunk({}, "tool_calls"))
    result, _ = run_bytes(body, desk, "get_weather", "get_news", size=size)
    assert desk.ran == [("get_weather", {"city": "Beijing"}), ("get_news", {"topic": "tech"})]
    assert [call.name for call in result.calls] == ["get_weather", "get_news"]


@pytest.mark.parametrize("size", SIZES)
def test_arguments_in_pieces_are_joined(size: int) -> None:
    """Seed 7.1.1: test_parse_streaming_tool_calls."""
    desk = Desk()
    body = chat(piece(0, name="search", arguments='{"qu'), piece(0, arguments='ery": "test"}'))
    run_bytes(body, desk, "search", size=size)
    assert desk.ran == [("search", {"query": "test"})]


@pytest.mark.parametrize("size", SIZES)
def test_indexes_with_a_gap_are_two_calls(size: int) -> None:
    """Seed 7.1.1: test_parse_sparse_index."""
    desk = Desk()
    first, third = piece(0, name="tool_a", arguments="{}"), piece(2, name="tool_b", arguments="{}")
    body = sse(calls_chunk(first, third), chunk({}, "tool_calls"))
    result, events = run_bytes(body, desk, "tool_a", "tool_b", size=size)
    assert desk.names == ["tool_a", "tool_b"]
    assert [call.id for call in result.calls] == ["call_0_0", "call_0_2"]
    assert only(ToolCallsDetected, events)[0].names == ["tool_a", "tool_b"]


def test_indexes_sent_as_strings_are_in_order_too() -> None:
    """Seed 3.1.2: an index is converted to a number before calls are ordered."""
    desk = Desk()
    body = chat(piece("1", name="second", arguments="{}"), piece("0", name="first", arguments="{}"))
    run_bytes(body, desk, "first", "second", schedule=Schedule.SEQUENTIAL)
    assert desk.names == ["first", "second"]


def test_an_answer_without_calls_has_none() -> None:
    """Seed 7.1.2: test_get_tool_calls_empty."""
    result = play(Agent(ScriptedModel("Hello."), Desk().tools("get_weather")))
    assert (result.text, result.calls, result.rounds, result.requests) == ("Hello.", (), 0, 1)


LEGACY_STREAM = sse(
    chunk({"role": "assistant", "content": None, "function_call": {"name": "get_weather", "arguments": ""}}),
    chunk({"function_call": {"arguments": '{"city": '}}),
    chunk({"function_call": {"arguments": '"Beijing"}'}}),
    chunk({}, "function_call"),
)
LEGACY_BODY = json.dumps(
    {
        "id": "c",
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "finish_reason": "function_call",
                "message": {
                    "role": "assistant",
                    "content": None,
                    "function_call": {"name": "get_weather", "arguments": '{"city": "Beijing"}'},
                },
            }
        ],
    }
).encode()
LEGACY = [pytest.param(LEGACY_STREAM, id="streamed"), pytest.param(LEGACY_BODY, id="whole")]


@pytest.mark.parametrize("several_calls", [True, False])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("body", LEGACY)
def test_the_legacy_function_call_field_is_a_call(body: bytes, size: int, several_calls: bool) -> None:
    """Seed 7.1.2: test_get_tool_calls_from_old_fields. Their one call (`tool_name`, `tool_args`) is `function_call`."""
    desk = Desk()
    result, _ = run_bytes(body, desk, "get_weather", size=size, several_calls=several_calls)
    assert desk.ran == [("get_weather", {"city": "Beijing"})]
    assert [(call.id, call.name) for call in result.calls] == [("call_0_0", "get_weather")]


def test_a_legacy_call_over_http_runs_once_streamed_or_not() -> None:
    """Seed 7.1.2, over real HTTP: one model that streams and one that does not."""

    async def main(stream: bool, body: bytes) -> None:
        desk = Desk()
        async with ScriptedServer(Raw(body), "Done.") as server:
            async with connect("openai:demo", base_url=server.base_url(), api_key="k", stream=stream) as model:
                result = await Agent(model, desk.tools("get_weather")).run("Go.")
            assert (result.text, desk.ran) == ("Done.", [("get_weather", {"city": "Beijing"})])
            accepted(server, result)

    asyncio.run(main(True, LEGACY_STREAM))
    asyncio.run(main(False, LEGACY_BODY))


@pytest.mark.parametrize("finish", ["tool_calls", "stop", "length"])
def test_the_finish_reason_is_recorded(finish: str) -> None:
    """Seed 3.1.2 and 3.2.2: `finish_reason`, of a response and, of its last one, of a run."""
    assert decode(chat(WEATHER, finish=finish)).finish == finish
    result, _ = run_bytes(chat(WEATHER, finish=finish), Desk(), "get_weather")
    assert result.finish == "stop"
    only_text = play(Agent(ScriptedModel(Raw(sse(chunk({"content": "Done."}), chunk({}, finish))))))
    assert (only_text.text, only_text.finish) == ("Done.", finish)


def test_all_calls_of_the_list_are_there() -> None:
    """Seed 7.1.2: test_get_tool_calls_from_new_field."""
    desk = Desk()
    weather, news = Call("get_weather", city="Beijing", id="call_1"), Call("get_news", topic="tech", id="call_2")
    model = ScriptedModel([weather, news], "Done.")
    result = play(Agent(model, desk.tools("get_weather", "get_news")))
    assert [(call.id, call.name) for call in result.calls] == [("call_1", "get_weather"), ("call_2", "get_news")]
    accepted(model, result)


def test_a_run_continues_only_if_there_are_calls() -> None:
    """Seed 7.1.2: test_has_tool_calls."""
    without, said = play_aloud(Agent(ScriptedModel("Hello."), Desk().tools("test")))
    assert (without.rounds, only(ToolCallsDetected, said)) == (0, [])
    with_one, said = play_aloud(Agent(ScriptedModel(Call("test"), "Done."), Desk().tools("test")))
    assert (with_one.rounds, only(ToolCallsDetected, said)[0].count) == (1, 1)


@pytest.mark.parametrize(("several_calls", "ran"), [(False, ["first"]), (True, ["first", "second"])])
def test_only_the_first_call_is_used_unless_several_are_requested(several_calls: bool, ran: list[str]) -> None:
    """Seed 7.1.2: test_has_tool_call_backward_compatibility. If switched off, the other calls of the list must not lead
    into the code for several calls."""
    desk = Desk()
    model = ScriptedModel([Call("first"), Call("second")], "Done.")
    result, events = play_aloud(Agent(model, desk.tools("first", "second"), several_calls=several_calls))
    assert desk.names == ran
    assert [call.name for call in result.calls] == ran
    assert [event.names for event in only(CallsIgnored, events)] == ([] if several_calls else [["second"]])
    assert ("parallel_tool_calls" in model.bodies[0]) is not several_calls
    accepted(model, result)


def test_one_complete_call_is_detected() -> None:
    """Seed 7.1.3: test_detect_tool_calls_single."""
    _, events = play_aloud(Agent(ScriptedModel(Call("get_weather"), "Done."), Desk().tools("get_weather")))
    assert [(event.count, event.names) for event in only(ToolCallsDetected, events)] == [(1, ["get_weather"])]


def test_several_complete_calls_are_detected_in_order() -> None:
    """Seed 7.1.3: test_detect_tool_calls_multiple."""
    names = ["get_weather", "get_news", "get_stock"]
    _, events = play_aloud(Agent(ScriptedModel([Call(name) for name in names], "Done."), Desk().tools(*names)))
    assert [(event.count, event.names) for event in only(ToolCallsDetected, events)] == [(3, names)]


def test_no_call_is_detected_in_an_answer() -> None:
    """Seed 7.1.3: test_detect_tool_calls_empty."""
    _, events = play_aloud(Agent(ScriptedModel("No need to look."), Desk().tools("get_weather")))
    assert only(ToolCallsDetected, events) == []


def test_an_incomplete_call_never_runs_and_its_sibling_does() -> None:
    """Seed 3.3.2: only complete and parsed calls are executed. The other gets a result, with what was received of
    it."""
    desk = Desk()
    model = ScriptedModel([Call("get_weather", city="Beijing"), Cut("get_news", '{"topic": "te')], "Done.")
    result = play(Agent(model, desk.tools("get_weather", "get_news")))
    assert desk.ran == [("get_weather", {"city": "Beijing"})]
    assert [call.error for call in result.calls] == [False, True]
    assert result.calls[1].result.text.endswith('Received: {"topic": "te')
    accepted(model, result)


def test_double_encoded_arguments_are_parsed_twice() -> None:
    """Seed 3.2.2: a JSON string inside a JSON string."""
    desk = Desk()
    body = chat(piece(0, name="search", arguments=json.dumps(json.dumps({"query": "test"}))))
    result, _ = run_bytes(body, desk, "search")
    assert desk.ran == [("search", {"query": "test"})]
    assert "double-encoded" in result.calls[0].call.notes
