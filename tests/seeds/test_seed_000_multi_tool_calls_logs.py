"""The log lines of a run, in the seed's words, under the logger `unbroken.tools`."""

from __future__ import annotations

import json
import logging

import pytest
from scenes import Desk, play
from streams import chat, piece

from unbroken import Agent, Schedule, ScriptedModel
from unbroken.models.scripted import Line
from unbroken.tools.tool import Tool
from unbroken_testing import Call, Cut, Raw

Lines = list[tuple[str, str]]


def logged(caplog: pytest.LogCaptureFixture, answer: Line, tools: list[Tool], schedule: Schedule) -> Lines:
    with caplog.at_level(logging.DEBUG, logger="unbroken.tools"):
        play(Agent(ScriptedModel(answer, "Done."), tools, schedule=schedule))
    return [(each.levelname, each.getMessage()) for each in caplog.records if each.name == "unbroken.tools"]


def test_a_sequential_round_is_logged_from_its_first_line_to_its_last(caplog: pytest.LogCaptureFixture) -> None:
    """Seed 13.2, the complete example."""
    desk = Desk()
    names = {"get_weather": 0.5, "get_news": 0.8, "get_stock": 0.3}
    tools = [desk.tool(name, seconds=seconds) for name, seconds in names.items()]
    calls = [Call("get_weather", city="Beijing"), Call("get_news", topic="tech"), Call("get_stock", symbol="AAPL")]
    assert logged(caplog, calls, tools, Schedule.SEQUENTIAL) == [
        ("INFO", "Detected 3 tool calls in single response"),
        ("DEBUG", 'Executing tool 1/3: get_weather(city="Beijing")'),
        ("DEBUG", "Tool get_weather completed in 0.5s"),
        ("DEBUG", 'Executing tool 2/3: get_news(topic="tech")'),
        ("DEBUG", "Tool get_news completed in 0.8s"),
        ("DEBUG", 'Executing tool 3/3: get_stock(symbol="AAPL")'),
        ("DEBUG", "Tool get_stock completed in 0.3s"),
        ("INFO", "All 3 tool calls completed in 1.6s (sequential)"),
    ]


def test_in_parallel_all_starts_are_logged_before_the_first_end(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    tools = [desk.tool("slow", seconds=0.5), desk.tool("quick", seconds=0.2)]
    assert logged(caplog, [Call("slow"), Call("quick")], tools, Schedule.PARALLEL) == [
        ("INFO", "Detected 2 tool calls in single response"),
        ("DEBUG", "Executing tool 1/2: slow()"),
        ("DEBUG", "Executing tool 2/2: quick()"),
        ("DEBUG", "Tool quick completed in 0.2s"),
        ("DEBUG", "Tool slow completed in 0.5s"),
        ("INFO", "All 2 tool calls completed in 0.5s (parallel)"),
    ]


def test_one_call_is_logged_in_the_singular(caplog: pytest.LogCaptureFixture) -> None:
    lines = logged(caplog, [Call("look")], [Desk().tool("look", seconds=0.5)], Schedule.SEQUENTIAL)
    assert [line for level, line in lines if level == "INFO"] == [
        "Detected 1 tool call in single response",
        "All 1 tool call completed in 0.5s (sequential)",
    ]


def test_a_failure_is_logged_with_what_the_tool_raised(caplog: pytest.LogCaptureFixture) -> None:
    """Seed 9.1."""
    desk = Desk()
    tools = [desk.tool("broken", fails="no connection"), desk.tool("good")]
    lines = logged(caplog, [Call("broken"), Call("good")], tools, Schedule.SEQUENTIAL)
    assert ("ERROR", "Tool call broken failed: no connection, continuing with next tool") in lines
    assert ("DEBUG", "Tool good completed in 0s") in lines


def test_an_incomplete_call_is_logged_with_what_was_received(caplog: pytest.LogCaptureFixture) -> None:
    """Seed 3.3.2."""
    desk = Desk()
    lines = logged(caplog, Cut("search", '{"q": "te', id="c1"), desk.tools("search"), Schedule.EAGER)
    assert (
        "WARNING",
        "Tool call search (id=c1) skipped: Stream ended but JSON arguments incomplete or invalid. "
        'Raw arguments: \'{"q": "te\'',
    ) in lines
    assert desk.ran == []


def test_of_long_incomplete_arguments_only_the_beginning_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Seed 3.3.2: the first 200 characters, then dots."""
    raw = '{"q": "' + "x" * 5000
    lines = logged(caplog, Cut("search", raw), Desk().tools("search"), Schedule.EAGER)
    warning = next(text for level, text in lines if level == "WARNING")
    assert warning.endswith(f"Raw arguments: '{raw[:200]}...'")


def test_double_encoded_arguments_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Seed 3.2.2."""
    desk = Desk()
    body = chat(piece(0, name="search", arguments=json.dumps(json.dumps({"q": "test"}))))
    lines = logged(caplog, Raw(body), desk.tools("search"), Schedule.EAGER)
    text = "Double JSON encoding detected for tool call 'search', performing second parse. Original: "
    assert ("DEBUG", f'{text}"{{\\"q\\": \\"test\\"}}"') in lines
    assert desk.ran == [("search", {"q": "test"})]


def test_of_long_double_encoded_arguments_only_the_beginning_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Seed 3.2.2: the first 200 characters, then dots."""
    raw = json.dumps(json.dumps({"q": "x" * 500}))
    lines = logged(caplog, Raw(chat(piece(0, name="search", arguments=raw))), Desk().tools("search"), Schedule.EAGER)
    assert any(text.endswith(f"performing second parse. Original: {raw[:200]}...") for _, text in lines)


def test_a_duplicate_is_logged_as_not_executed(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    calls = [Call("search", id="a", q="x"), Call("search", id="b", q="x")]
    lines = logged(caplog, calls, [desk.tool("search", effect="read", fails="no")], Schedule.SEQUENTIAL)
    assert [text for _, text in lines if "Traceback" not in text] == [
        "Detected 2 tool calls in single response",
        'Executing tool 1/2: search(q="x")',
        "Tool call search failed: no, continuing with next tool",
        "Tool call search (id=b) not executed: duplicate of a",
        "All 2 tool calls completed in 0s (sequential)",
    ]


def test_a_call_that_starts_is_logged_with_its_place_among_all_calls(caplog: pytest.LogCaptureFixture) -> None:
    """Seed 10.1 and 13.2: calls that do not start, such as the second and the third here, are counted too."""
    desk = Desk()
    tools = [desk.tool("search", effect="read"), desk.tool("get_news")]
    twice = Call("search", q="x"), Call("search", q="x")
    for schedule in Schedule:
        caplog.clear()
        lines = logged(caplog, [*twice, Call("unknown"), Call("get_news")], tools, schedule)
        assert [text for _, text in lines if text.startswith("Executing")][-1] == "Executing tool 4/4: get_news()"


def test_an_answer_without_calls_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert logged(caplog, "Hello.", Desk().tools("search"), Schedule.EAGER) == []
