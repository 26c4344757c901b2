"""Dolphin's strategies and `Messages`: the tests of seed 000, sections 7.1.2 to 7.1.6, with the names as there. A call
has `is_complete=True`, which section 3.3.2 requires of one that runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from unbroken import Transcript, User
from unbroken_dph import flags
from unbroken_dph.dolphin import (
    SCRATCHPAD,
    ExploreStrategy,
    MessageRole,
    Messages,
    StreamItem,
    ToolCallInfo,
    ToolCallStrategy,
    append_tool_calls_message,
    append_tool_response_message,
    detect_tool_calls,
)
from unbroken_wires.messages import ToolCall, ToolMessage

pytestmark = pytest.mark.multi_tool_call


@pytest.fixture(autouse=True)
def _flag_as_before() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction] - pytest uses it
    yield
    flags.enable(flags.ENABLE_PARALLEL_TOOL_CALLS)


class Context:
    """What strategies write to."""

    def __init__(self) -> None:
        self.buckets: list[tuple[str, Messages]] = []

    def add_bucket(self, name: str, messages: Messages) -> None:
        self.buckets.append((name, messages))


def call(id: str, name: str, index: int = 0, **arguments: Any) -> ToolCallInfo:
    return ToolCallInfo(id=id, name=name, arguments=arguments, index=index, is_complete=True)


# 7.1.2


def test_get_tool_calls_empty() -> None:
    assert StreamItem().get_tool_calls() == []


def test_get_tool_calls_from_old_fields() -> None:
    stream_item = StreamItem()
    stream_item.tool_name = "get_weather"
    stream_item.tool_args = {"city": "Beijing"}
    tool_calls = stream_item.get_tool_calls()
    assert len(tool_calls) == 1
    assert tool_calls[0].name == "get_weather"


def test_has_tool_call_backward_compatibility() -> None:
    stream_item = StreamItem()
    assert not stream_item.has_tool_calls()
    stream_item.tool_calls = [ToolCallInfo(id="call_1", name="test", arguments={}, index=0)]
    assert stream_item.has_tool_calls()
    flags.disable(flags.ENABLE_PARALLEL_TOOL_CALLS)
    assert not stream_item.has_tool_call()
    flags.enable(flags.ENABLE_PARALLEL_TOOL_CALLS)
    assert stream_item.has_tool_call()


# 7.1.3


def test_detect_tool_calls_single() -> None:
    strategy = ToolCallStrategy()
    stream_item = StreamItem()
    stream_item.tool_calls = [call("call_1", "get_weather", city="Beijing")]
    tool_calls = strategy.detect_tool_calls(stream_item, context=None)
    assert len(tool_calls) == 1
    assert tool_calls[0].name == "get_weather"


def test_detect_tool_calls_multiple() -> None:
    strategy = ToolCallStrategy()
    stream_item = StreamItem()
    stream_item.tool_calls = [
        call("call_1", "get_weather", 0),
        call("call_2", "get_news", 1),
        call("call_3", "get_stock", 2),
    ]
    tool_calls = strategy.detect_tool_calls(stream_item, context=None)
    assert [each.name for each in tool_calls] == ["get_weather", "get_news", "get_stock"]


def test_detect_tool_calls_empty() -> None:
    assert ToolCallStrategy().detect_tool_calls(StreamItem(), context=None) == []


def test_a_call_that_is_not_marked_as_complete_is_not_detected() -> None:
    """Section 3.3.2; the calls of section 7.1.3 have no mark, and would not be found by it."""
    stream_item = StreamItem()
    stream_item.tool_calls = [ToolCallInfo(id="call_1", name="get_weather", arguments={"city": "Beijing"})]
    assert ToolCallStrategy().detect_tool_calls(stream_item, context=None) == []


def test_a_strategy_that_knows_one_call_gives_a_list() -> None:
    """Section 3.3.1: subclasses override `detect_tool_call` alone."""

    class Found(ExploreStrategy):
        def detect_tool_call(self, stream_item: StreamItem, context: Any = None) -> ToolCall | None:
            return ToolCall("call_1", stream_item.answer, {}) if stream_item.answer else None

    assert [each.name for each in Found().detect_tool_calls(StreamItem("look"))] == ["look"]
    assert Found().detect_tool_calls(StreamItem()) == []
    two = StreamItem(tool_calls=[call("call_1", "a"), call("call_2", "b", 1)])
    assert [each.name for each in ExploreStrategy().detect_tool_calls(two)] == ["a"]


# 7.1.4


def test_add_tool_call_message_single() -> None:
    messages = Messages()
    messages.add_tool_call_message(
        content="I'll check the weather",
        tool_calls=[
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Beijing"}'},
            }
        ],
    )
    msg = messages.last()
    assert msg.role == MessageRole.ASSISTANT
    assert len(msg.tool_calls) == 1


def test_add_tool_call_message_multiple() -> None:
    messages = Messages()
    messages.add_tool_call_message(
        content="I'll check weather and news",
        tool_calls=[
            {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}},
            {"id": "call_2", "type": "function", "function": {"name": "get_news", "arguments": "{}"}},
        ],
    )
    assert len(messages.last().tool_calls) == 2


def test_add_tool_response_messages() -> None:
    messages = Messages()
    messages.add_tool_response_message("25°C, Sunny", tool_call_id="call_1")
    messages.add_tool_response_message("Tech news...", tool_call_id="call_2")
    tool_responses = messages.get_tool_response_messages()
    assert len(tool_responses) == 2
    assert [each.metadata for each in tool_responses] == [{}, {}]


# 7.1.6 and 3.3.1


def test_with_metadata_support() -> None:
    strategy = ExploreStrategy()
    context = Context()
    strategy.append_tool_response_message(
        context, tool_call_id="call_1", content="result", metadata={"error": True, "took": 0.5}
    )
    [(bucket, messages)] = context.buckets
    assert bucket == SCRATCHPAD
    assert messages.last().metadata == {"error": True, "took": 0.5}
    assert (messages.last().role, messages.last().tool_call_id) == (MessageRole.TOOL, "call_1")


def test_calls_go_to_the_scratchpad_in_the_form_of_openai() -> None:
    strategy, context = ToolCallStrategy(), Context()
    stream_item = StreamItem(
        "Both.", tool_calls=[call("call_1", "get_weather", city="北京"), call("call_2", "news", 1)]
    )
    strategy.append_tool_calls_message(context, stream_item, strategy.detect_tool_calls(stream_item))
    strategy.append_tool_call_message(context, StreamItem(), ToolCall("call_3", "news", {}))
    (_, both), (_, one) = context.buckets
    assert both.last().content == "Both."
    assert both.last().tool_calls == [
        {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "北京"}'}},
        {"id": "call_2", "type": "function", "function": {"name": "news", "arguments": "{}"}},
    ]
    assert [each["id"] for each in one.last().tool_calls] == ["call_3"]
    assert not strategy.get_deduplicator().is_duplicate(("news", {}))


def test_a_transcript_keeps_all_metadata_of_a_result() -> None:
    stream_item = StreamItem(tool_calls=[call("call_1", "a"), call("call_2", "b", 1)])
    history = Transcript([User.of("Go.")])
    append_tool_calls_message(history, stream_item, detect_tool_calls(stream_item))
    append_tool_response_message(history, "call_1", "Error: no", metadata={"error": True, "took": 0.5})
    append_tool_response_message(history, "call_2", "ok")
    results = history.messages[-1]
    assert isinstance(results, ToolMessage)
    assert [(each.error, each.data) for each in results.results] == [
        (True, {"error": True, "took": 0.5}),
        (False, None),
    ]


# 7.1.5


def test_use_llm_provided_id() -> None:
    stream_item = StreamItem()
    chunk = {"tool_calls_data": {0: {"id": "call_abc123", "name": "get_weather", "arguments": ["{}"]}}}
    stream_item.parse_from_chunk(chunk, session_counter=0)
    assert stream_item.tool_calls[0].id == "call_abc123"


def test_fallback_id_with_session_counter() -> None:
    chunk = {
        "tool_calls_data": {
            0: {"name": "tool_a", "arguments": ["{}"]},
            1: {"name": "tool_b", "arguments": ["{}"]},
        }
    }
    items = [StreamItem(), StreamItem(), StreamItem()]
    for item, counter in zip(items, (5, 5, 6), strict=True):
        item.parse_from_chunk(chunk, session_counter=counter)
    assert [[each.id for each in item.tool_calls] for item in items] == [
        ["call_5_0", "call_5_1"],
        ["call_5_0", "call_5_1"],
        ["call_6_0", "call_6_1"],
    ]
