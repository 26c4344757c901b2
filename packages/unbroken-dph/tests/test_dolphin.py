"""What moves from Dolphin: files in its syntax run as they are, and `unbroken_dph.dolphin` has the old fields."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
from checkout import ROOT
from terminals import invoke

from unbroken import Assistant, Request, ToolMessage, Transcript, User, decode
from unbroken.errors import InvalidStep
from unbroken_dph import flags
from unbroken_dph.dolphin import (
    DefaultSkillCallDeduplicator,
    StreamItem,
    ToolCallInfo,
    append_tool_call_message,
    append_tool_calls_message,
    append_tool_response_message,
    chunk_of,
    deduplicate_within_batch,
    detect_tool_call,
    detect_tool_calls,
)
from unbroken_testing import Answer, Call, ScriptedServer, serve
from unbroken_wires.messages import ToolCall

pytestmark = pytest.mark.multi_tool_call

PROGRAMS = ROOT / "examples" / "dph"
TOOLS = str(PROGRAMS / "trip_tools.py")


def answer(request: Request) -> Answer:
    text = str(request.messages)
    if "周末" in text:
        if isinstance(request.messages[-1], ToolMessage):
            return "杭州十六度，坐八点十分的火车。"
        return [Call("get_weather", city="杭州"), Call("find_trains", to="杭州")]
    if "towns by the sea" in text:
        return "1. Brest\n2. Ostend"
    return [Call("check_stock", item="umbrella")] if "umbrella?" in text else "a towel"


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with serve(answer) as server:
        yield server


def run(server: ScriptedServer, name: str, *given: str) -> str:
    asked = ["--model", "openai:m", "--base-url", server.base_url(), "--tools", TOOLS]
    done = invoke("dph", "run", str(PROGRAMS / name), *asked, *given, env={"OPENAI_API_KEY": "of-the-tests"})
    assert done.exit_code == 0, done.stderr
    return done.stdout


def test_a_program_with_several_calls_in_one_response_runs_as_it_is(server: ScriptedServer) -> None:
    assert run(server, "trip.dph", "-v", "city=杭州") == "杭州十六度，坐八点十分的火车。\n"
    message = server.requests[-1].messages[-1]
    assert isinstance(message, ToolMessage)
    assert [result.text.split('"')[1] for result in message.results] == ["city", "first"]  # in call order


def test_a_program_with_every_statement_runs_as_it_is(server: ScriptedServer) -> None:
    before = len(server.requests)
    assert run(server, "packing.dph", "-v", "days=3") == "上海 08:10 Brest 09:05: Take umbrella. a towel\n"
    asked = server.requests[before:]
    assert len(asked) == 3
    prompt = str(asked[-1].messages[-1])
    assert "The bag has: umbrella" in prompt
    assert "| place | weather |" in prompt
    assert "the bag -> the things." in prompt
    assert "Ostend" in prompt


def stream(*events: str) -> bytes:
    return "".join(f"data: {event}\n\n" for event in (*events, "[DONE]")).encode()


THREE_CALLS = stream(
    '{"choices": [{"delta": {"content": "Both.", "reasoning_content": "Hm.", "tool_calls": ['
    '{"index": 0, "id": "c1", "function": {"name": "get_weather", "arguments": "{\\"city\\": \\"Bei"}}, '
    '{"index": 1, "function": {"name": "get_time", "arguments": ""}}]}}]}',
    '{"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "jing\\"}"}}]}}]}',
    '{"choices": [{"delta": {"tool_calls": [{"index": 2, "function": {"name": "get_news", "arguments": "{\\"t"}}]}, '
    '"finish_reason": "tool_calls"}], "usage": {"prompt_tokens": 5, "completion_tokens": 7}}',
)


class Context:
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, message: str) -> None:
        self.warnings.append(message)


def test_a_response_has_the_old_fields() -> None:
    item = StreamItem.of(decode(THREE_CALLS))
    assert (item.answer, item.think, item.finish_reason) == ("Both.", "Hm.", "tool_calls")
    assert (item.tool_name, item.tool_args) == ("get_weather", {"city": "Beijing"})
    assert item.token_usage == {"prompt_tokens": 5, "completion_tokens": 7}
    assert item.has_tool_call()
    assert item.has_tool_calls()
    assert item.get_tool_calls() == [
        ToolCallInfo("c1", "get_weather", {"city": "Beijing"}, 0, '{"city": "Beijing"}', True),
        ToolCallInfo("call_0_1", "get_time", {}, 1, "", True),
        ToolCallInfo("call_0_2", "get_news", None, 2, '{"t', False),
    ]
    assert StreamItem().get_tool_calls() == []
    assert not StreamItem.of(decode(stream('{"choices": [{"delta": {"content": "Hi"}}]}'))).has_tool_call()


def test_calls_that_may_run_are_detected_and_a_cut_one_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    item, context = StreamItem.of(decode(THREE_CALLS)), Context()
    assert [(call.id, call.arguments) for call in detect_tool_calls(item, context)] == [
        ("c1", {"city": "Beijing"}),
        ("call_0_1", {}),
    ]
    skipped = (
        "Tool call get_news (id=call_0_2) skipped: Stream ended but JSON arguments incomplete or invalid. "
        "Raw arguments: '{\"t'"
    )
    assert context.warnings == [skipped]
    with caplog.at_level(logging.WARNING, "unbroken.tools"):
        first = detect_tool_call(item)
    assert first is not None
    assert (first.name, caplog.messages) == ("get_weather", [skipped])
    item.finish_reason = None  # more may come
    assert len(detect_tool_calls(item, context)) == 2
    assert len(context.warnings) == 1
    assert detect_tool_call(StreamItem()) is None


def test_calls_and_results_are_appended_to_a_history() -> None:
    item = StreamItem.of(decode(THREE_CALLS))
    weather, time = detect_tool_calls(item, Context())
    history = Transcript([User.of("Both?")])
    append_tool_calls_message(history, item, [weather, time])
    append_tool_response_message(history, time.id, "Error: Connection timeout", metadata={"error": True})
    append_tool_response_message(history, weather.id, "25°C")
    append_tool_call_message(history, StreamItem("Again."), time)
    with pytest.raises(InvalidStep):
        append_tool_response_message(history, "call_9_9", "…")
    called, results, again = history.messages[1:]
    assert isinstance(called, Assistant)
    assert (called.text, called.calls, again) == ("Both.", (weather, time), Assistant("Again.", (time,)))
    assert isinstance(results, ToolMessage)
    assert [(result.name, result.text, result.error) for result in results.results] == [
        ("get_weather", "25°C", False),  # in call order
        ("get_time", "Error: Connection timeout", True),
    ]


def test_double_encoded_arguments_of_a_chunk_are_parsed_twice_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    short, long = json.dumps('{"q": 1}'), json.dumps(json.dumps({"q": "x" * 500}))
    item = StreamItem()
    with caplog.at_level(logging.DEBUG, "unbroken.tools"):
        item.parse_from_chunk(
            {"tool_calls_data": {0: {"name": "search", "arguments": [long]}}, "func_name": "find", "func_args": [short]}
        )
    assert (item.tool_args, item.tool_calls[0].arguments) == ({"q": 1}, {"q": "x" * 500})
    detected = "Double JSON encoding detected for"
    assert caplog.messages == [
        f"{detected} tool call 'search', performing second parse. Original: {long[:200]}...",
        f"{detected} legacy tool call 'find', performing second parse. Original: {short}",
    ]


def test_a_chunk_of_the_old_llm_layer_goes_in_and_out() -> None:
    response = decode(THREE_CALLS)
    item, theirs = StreamItem.of(response), StreamItem()
    theirs.parse_from_chunk(chunk_of(response), session_counter=0)
    item.tool_calls[1].raw_arguments = "{}"  # what a call without arguments is sent as
    assert theirs == item
    theirs.parse_from_chunk(
        {
            "tool_calls_data": {
                "2": {"name": "b", "arguments": ["{", "}"]},
                0: {"name": "a", "arguments": ['"{\\"q\\": 1}"']},
                1: {"name": None, "arguments": []},
            }
        },
        session_counter=5,
    )
    assert [(call.id, call.name, call.arguments) for call in theirs.tool_calls] == [
        ("call_5_0", "a", {"q": 1}),
        ("call_5_2", "b", {}),
    ]
    ids = [_id_without_a_counter() for _ in range(2)]
    assert ids[0] != ids[1]


def test_a_call_without_an_id_is_numbered_by_the_counter_of_each_response() -> None:
    body = (
        b'data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"a","arguments":"{}"}}]}}]}\n\n'
        b'data: {"choices":[{"delta":{},"finish_reason":"tool_calls"}]}\n\ndata: [DONE]\n\n'
    )
    items = [StreamItem(), StreamItem()]
    for counter, item in enumerate(items):
        item.parse_from_chunk(chunk_of(decode(body)), session_counter=counter)
    assert [item.tool_calls[0].id for item in items] == ["call_0_0", "call_1_0"]


def _id_without_a_counter() -> str:
    item = StreamItem()
    item.parse_from_chunk({"tool_calls_data": {0: {"name": "a", "arguments": ["{}"]}}})
    return item.tool_calls[0].id


def test_the_flag_decides_what_has_a_call_and_old_fields_alone_are_a_call() -> None:
    item = StreamItem(tool_calls=[ToolCallInfo("c", "a", {}, is_complete=True)])
    flags.disable(flags.ENABLE_PARALLEL_TOOL_CALLS)
    try:
        assert not item.has_tool_call()
        assert item.has_tool_calls()
    finally:
        flags.reset()
    assert item.has_tool_call()
    old = StreamItem(tool_name="get_weather", tool_args={"city": "Beijing"})
    assert [(call.id, call.name) for call in old.get_tool_calls()] == [("call_get_weather_0", "get_weather")]
    assert [call.arguments for call in detect_tool_calls(old)] == [{"city": "Beijing"}]


def test_calls_that_were_made_before_are_filtered_out_of_a_batch() -> None:
    made = DefaultSkillCallDeduplicator()
    first, second = ("search", {"q": "tea", "n": 1}), ("search", {"q": "salt"})
    made.add(first)
    assert made.is_duplicate(("search", {"n": 1, "q": "tea"}))
    assert not made.is_duplicate(("search", {"n": 1.5, "q": "tea"}))
    assert made.filter_duplicates([first, second, ("find", first[1]), second]) == [second, ("find", first[1]), second]
    made.add_batch([second, ("now", None)])
    assert made.filter_duplicates([first, second, ("now", None), ("now", {})]) == [("now", {})]


def test_of_equal_calls_in_one_batch_the_first_is_left() -> None:
    calls = [ToolCall(id, "search", arguments) for id, arguments in (("a", {"q": 1, "n": 2}), ("b", {"n": 2, "q": 1}))]
    other = ToolCall("c", "search", {"q": 2})
    assert deduplicate_within_batch([*calls, other, calls[0]]) == [calls[0], other]
