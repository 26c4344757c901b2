"""anthropic-messages, requests: they follow the rules of the API, and can be read back."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbroken import (
    Assistant,
    Request,
    Sampling,
    System,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    User,
    decode,
)
from unbroken.errors import CannotEncode
from unbroken_wires.messages import CacheMark, Choice, Effort, Media, Message, Native, OneTool, ToolSpec
from unbroken_wires.wires.anthropic import WIRE
from unbroken_wires.wires.jsontext import dump_arguments

TOOL = ToolSpec("find", "Finds.", {"type": "object", "properties": {"q": {"type": "string"}}})
MARK = {"type": "ephemeral"}


def encoded(*messages: Message, **fields: Any) -> dict[str, Any]:
    return WIRE.encode_request(Request(messages=messages, **fields))


def turns(*messages: Message, **fields: Any) -> list[Any]:
    """The contents of the messages as they are sent."""
    return [turn["content"] for turn in encoded(*messages, **fields)["messages"]]


def call(id: str = "a", **arguments: Any) -> ToolCall:
    return ToolCall(id, "find", arguments, dump_arguments(arguments) or "")


# Messages


def test_a_round_of_calls_is_an_assistant_turn_and_a_user_turn_of_results() -> None:
    asked, again = call("a", q="x"), call("b")
    body = encoded(
        System.of("Be brief."),
        User.of("Hi"),
        Assistant("I look.", (asked, again)),
        ToolMessage((ToolResult.of(asked, "found"), ToolResult.of(again, "Error: no", error=True))),
        stream=False,
        model="claude",
    )
    assert body == {
        "model": "claude",
        "max_tokens": 8192,
        "system": "Be brief.",
        "messages": [
            {"role": "user", "content": "Hi"},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "a", "name": "find", "input": {"q": "x"}},
                    {"type": "tool_use", "id": "b", "name": "find", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "a", "content": "found"},
                    {"type": "tool_result", "tool_use_id": "b", "content": "Error: no", "is_error": True},
                ],
            },
        ],
    }


def test_system_text_is_at_the_top_and_later_system_text_keeps_its_position() -> None:
    body = encoded(System.of("One."), System.of("Two."), User.of("Hi"), System.of("Now in verse."))
    assert body["system"] == [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]
    assert body["messages"][-1] == {"role": "user", "content": "<system>Now in verse.</system>"}


def test_text_that_the_api_refuses_is_never_sent() -> None:
    asked = call()
    contents = turns(
        System.of(" "),
        User.of("", "Hi", "\n"),
        Assistant(),
        User.of(" "),
        Assistant("\n\n", (asked,)),
        ToolMessage((ToolResult.of(asked, ""),)),
    )
    assert contents == [
        [{"type": "text", "text": "Hi"}, {"type": "text", "text": "\n"}],
        [{"type": "tool_use", "id": "a", "name": "find", "input": {}}],
        [{"type": "tool_result", "tool_use_id": "a"}],
    ]
    assert "system" not in encoded(System.of(" "), User.of("Hi"))


def test_an_incomplete_call_is_sent_back_without_arguments_and_free_text_as_an_object() -> None:
    cut = ToolCall("a", "find", None, '{"q": "sn', complete=False, problem="cut")
    free = ToolCall("b", "patch", None, "*** begin", complete=False, kind="custom")
    assert [block["input"] for block in turns(Assistant("", (cut, free)))[0]] == [{}, {"input": "*** begin"}]


def test_ids_are_adapted_in_call_and_result() -> None:
    asked = call("functions.find:0|" + "x" * 200)
    assistant, results = turns(Assistant("", (asked,)), ToolMessage((ToolResult.of(asked, "ok"),)))
    assert assistant[0]["id"] == results[0]["tool_use_id"]
    assert len(assistant[0]["id"]) <= 128
    assert assistant[0]["id"].replace("_", "").replace("-", "").isalnum()


def test_media_are_images_or_documents_also_inside_results() -> None:
    note = base64.b64encode("Grüße".encode()).decode()
    parts = (
        Media(mime="image/png", data="AAAA"),
        Media(url="https://x.test/a.png"),
        Media(url="data:image/gif;base64,BBBB"),
        Media(mime="application/pdf", data="CCCC"),
        Media(url="https://x.test/a.pdf?page=1"),
        Media(mime="text/plain", data=note),
    )
    expected = [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
        {"type": "image", "source": {"type": "url", "url": "https://x.test/a.png"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": "BBBB"}},
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "CCCC"}},
        {"type": "document", "source": {"type": "url", "url": "https://x.test/a.pdf?page=1"}},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Grüße"}},
    ]
    user, results = turns(User(parts), ToolMessage((ToolResult("a", parts),)))
    assert user == results[0]["content"] == expected


@pytest.mark.parametrize(("mime", "data"), [("audio/wav", "AAAA"), ("text/plain", "not base64 é")])
def test_unsupported_media_raise_a_typed_error(mime: str, data: str) -> None:
    with pytest.raises(CannotEncode, match=mime):
        encoded(User.of(Media(mime=mime, data=data)))


# Content of this wire is sent back unchanged

THOUGHT = {"type": "thinking", "thinking": "Hm. \u2028", "signature": "EqQB+/=="}
BLOCKS: list[dict[str, Any]] = [
    THOUGHT,
    {"type": "redacted_thinking", "data": "zzz"},
    {"type": "text", "text": "I look.", "citations": [{"type": "page_location", "cited_text": "x"}]},
    {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}},
    {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [{"encrypted_content": "abc"}]},
    {"type": "tool_use", "id": "a", "name": "find", "input": {"n": 10**30}, "caller": {"type": "direct"}},
    {"type": "text", "text": "And:"},
    {"type": "tool_use", "id": "b", "name": "find", "input": {}},
]


def whole(*blocks: dict[str, Any], reason: str = "tool_use") -> bytes:
    return json.dumps({"type": "message", "content": list(blocks), "stop_reason": reason}).encode()


def test_blocks_are_sent_back_byte_for_byte() -> None:
    message = decode(whole(*BLOCKS), wire=WIRE.name).message
    assert json.dumps(turns(message)[0]) == json.dumps(BLOCKS)
    through = WIRE.decode_request(encoded(User.of("x"), message)).messages[1]
    assert json.dumps(turns(through)[0]) == json.dumps(BLOCKS)


def test_a_removed_call_is_removed_from_the_blocks_too() -> None:
    message = decode(whole(*BLOCKS), wire=WIRE.name).message
    kept = Assistant(message.text, message.calls[1:], message.reasoning, message.native)
    assert turns(kept)[0] == [*BLOCKS[:5], *BLOCKS[6:]]


def test_a_new_call_and_an_incomplete_call_are_written_into_the_blocks() -> None:
    cut = ToolCall("call_0_0", "find", None, '{"n', complete=False, problem="cut")
    blocks: list[Any] = [THOUGHT, {"type": "tool_use", "id": "", "name": "find", "input": {"n": 1}}]
    message = Assistant("", (cut, call("new", q="x")), native=Native(WIRE.name, blocks, ("call_0_0",)))
    assert turns(message)[0] == [
        THOUGHT,
        {"type": "tool_use", "id": "call_0_0", "name": "find", "input": {}},
        {"type": "tool_use", "id": "new", "name": "find", "input": {"q": "x"}},
    ]


def test_two_calls_with_one_id_get_separate_ids() -> None:
    blocks = [{"type": "tool_use", "id": "a", "name": "find", "input": {"n": n}, "caller": {}} for n in (1, 2)]
    message = decode(whole(*blocks), wire=WIRE.name).message
    assert [block["id"] for block in turns(message)[0]] == [call.id for call in message.calls] == ["a", "call_0_1"]


def test_thinking_that_the_api_refuses_is_not_sent() -> None:
    unsigned = {"type": "thinking", "thinking": "Hm.", "signature": ""}
    message = decode(whole(unsigned, {"type": "text", "text": "Hi"}), wire=WIRE.name).message
    assert turns(message) == [[{"type": "text", "text": "Hi"}]]
    assert turns(Assistant("Hi", reasoning="Hm.")) == [[{"type": "text", "text": "Hi"}]]
    assert turns(decode(whole(THOUGHT, reason="max_tokens"), wire=WIRE.name).message) == []


def test_blocks_of_another_wire_are_not_sent() -> None:
    message = Assistant("Hi", native=Native("gemini", [{"text": "Hi"}]))
    assert turns(message) == [[{"type": "text", "text": "Hi"}]]


def test_encoding_changes_no_message() -> None:
    message = decode(whole(*BLOCKS), wire=WIRE.name).message
    encoded(User.of("x"), message, cache=True)
    assert message.native is not None
    assert message.native.value == BLOCKS


# Settings


def test_tools_carry_schema_strictness_and_mark() -> None:
    tools = (TOOL, ToolSpec("now", strict=True, cache="1h"))
    assert encoded(User.of("x"), tools=tools)["tools"] == [
        {"name": "find", "description": "Finds.", "input_schema": TOOL.parameters},
        {
            "name": "now",
            "input_schema": {"type": "object", "properties": {}},
            "strict": True,
            "cache_control": {"type": "ephemeral", "ttl": "1h"},
        },
    ]


@pytest.mark.parametrize(
    ("choice", "parallel", "final", "expected"),
    [
        (None, None, False, None),
        ("auto", None, False, {"type": "auto"}),
        ("required", None, False, {"type": "any"}),
        ("none", False, False, {"type": "none"}),
        (OneTool("find"), False, False, {"type": "tool", "name": "find", "disable_parallel_tool_use": True}),
        (None, False, False, {"type": "auto", "disable_parallel_tool_use": True}),
        ("required", True, False, {"type": "any", "disable_parallel_tool_use": False}),
        ("required", False, True, {"type": "none"}),
    ],
)
def test_choice_and_parallel_share_one_field(
    choice: Choice | None, parallel: bool | None, final: bool, expected: Any
) -> None:
    body = encoded(User.of("x"), tools=(TOOL,), choice=choice, parallel=parallel, final=final)
    assert body.get("tool_choice") == expected
    assert [tool["name"] for tool in body["tools"]] == ["find"]
    back = WIRE.decode_request(body)
    assert back.choice == ("none" if final else choice or ("auto" if parallel is not None else None))
    assert back.parallel == (None if expected in (None, {"type": "none"}) else parallel)


def test_a_choice_without_tools_is_not_sent() -> None:
    assert "tool_choice" not in encoded(User.of("x"), choice="required", parallel=False, final=True)


@pytest.mark.parametrize(
    ("effort", "given", "thinking", "limit"),
    [
        ("none", None, {"type": "disabled"}, 8192),
        ("minimal", None, {"type": "enabled", "budget_tokens": 1024}, 8192),
        ("low", 100, {"type": "enabled", "budget_tokens": 2048}, 2148),
        ("medium", None, {"type": "enabled", "budget_tokens": 8192}, 16384),
        ("high", 64000, {"type": "enabled", "budget_tokens": 24576}, 64000),
    ],
)
def test_effort_is_a_thinking_budget_below_the_limit(effort: Effort, given: Any, thinking: Any, limit: int) -> None:
    body = encoded(User.of("x"), reasoning=effort, sampling=Sampling(max_tokens=given))
    assert (body["thinking"], body["max_tokens"]) == (thinking, limit)
    assert WIRE.decode_request(body).reasoning == effort


def test_sampling_is_sent_as_far_as_thinking_allows() -> None:
    sampling = Sampling(max_tokens=10, temperature=0.5, top_p=0.9, stop=("END",), seed=1)
    body = encoded(User.of("x"), sampling=sampling, extra={"metadata": {"user_id": "u"}, "top_p": 0.8})
    assert (body["temperature"], body["top_p"], body["stop_sequences"]) == (0.5, 0.8, ["END"])
    assert body["metadata"] == {"user_id": "u"}
    assert {"temperature", "top_p"}.isdisjoint(encoded(User.of("x"), sampling=sampling, reasoning="low"))


# Cache marks


def marks(body: dict[str, Any]) -> int:
    return json.dumps(body).count('"cache_control"')


@pytest.mark.parametrize(("cache", "expected"), [("5m", MARK), ("1h", {**MARK, "ttl": "1h"})])
def test_marks_stay_where_they_were_set(cache: CacheMark, expected: Any) -> None:
    body = encoded(
        System.of(Text("Be brief.", cache)),
        User.of(Text("Hi", cache), Media(url="https://x.test/a.png", cache=cache)),
        ToolMessage((ToolResult("a", (Text("ok"),), cache=cache),)),
    )
    user, results = [turn["content"] for turn in body["messages"]]
    assert [block["cache_control"] for block in [*body["system"], *user, *results]] == [expected] * 4


def test_automatic_marks_are_on_the_last_tool_system_text_and_message() -> None:
    body = encoded(System.of("a", "b"), User.of("x"), User.of("y"), tools=(TOOL, ToolSpec("now")), cache=True)
    assert [tool.get("cache_control") for tool in body["tools"]] == [None, MARK]
    assert [block.get("cache_control") for block in body["system"]] == [None, MARK]
    assert [turn["content"] for turn in body["messages"]] == [
        "x",
        [{"type": "text", "text": "y", "cache_control": MARK}],
    ]


def test_a_fourth_mark_is_where_the_request_before_ended() -> None:
    said = [User.of("x"), Assistant("", (call("a"),)), ToolMessage((ToolResult("a", (Text("ok"),)),)), Assistant("so")]
    before = encoded(*said[:3], cache=True)
    body = encoded(*said, User.of("y"), cache=True)
    assert body["messages"][2] == before["messages"][2]
    assert [marks({"messages": [turn]}) for turn in body["messages"]] == [0, 0, 1, 0, 1]


def test_there_are_never_more_than_four_marks() -> None:
    for count in range(8):
        users = [User.of(Text(f"{n}", "5m")) for n in range(count)]
        body = encoded(System.of("a"), *users, User.of("last"), tools=(TOOL,), cache=True)
        assert marks(body) == min(4, 3 + count)
        assert marks(encoded(*users)) == min(4, count)


def test_a_mark_for_an_hour_never_follows_one_for_five_minutes() -> None:
    body = encoded(System.of("a"), User.of(Text("x", "1h")), User.of("y"), tools=(TOOL,), cache=True)
    assert body["tools"][0]["cache_control"] == body["system"][0]["cache_control"] == {**MARK, "ttl": "1h"}
    assert body["messages"][1]["content"][0]["cache_control"] == MARK


# What a client sends


def test_results_in_several_messages_and_next_to_text_are_one_tool_message() -> None:
    request = WIRE.decode_request(
        {
            "messages": [
                {"role": "assistant", "content": [{"type": "tool_use", "id": i, "name": i, "input": {}} for i in "ab"]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "1"}]},
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "go on"},
                        {"type": "tool_result", "tool_use_id": "b", "is_error": True},
                    ],
                },
            ]
        }
    )
    results = (ToolResult("a", (Text("1"),), name="a"), ToolResult("b", (), error=True, name="b"))
    assert request.messages[1:] == (ToolMessage(results), User.of("go on"))


WRONG: list[dict[str, Any]] = [
    {},
    {"messages": 5, "system": 3, "tools": "x", "tool_choice": [], "thinking": 1, "stop_sequences": {}},
    {"messages": [3, {}, {"role": [], "content": [None, {"type": []}, {"type": "image", "source": 5}]}]},
    {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": [], "name": 3, "input": "{"}, {}]}]},
    {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": {}, "content": 7}]}]},
    {"tools": [{"input_schema": 3, "name": [], "cache_control": "x"}], "temperature": "hot"},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": 4}, {"type": "document", "source": {}}]}]},
    {"thinking": {"type": "enabled", "budget_tokens": "many"}, "output_config": 3, "max_tokens": []},
    {"thinking": {"type": "adaptive"}, "output_config": {"effort": {}}, "system": [{"type": "image", "source": []}]},
]


@pytest.mark.parametrize("body", WRONG)
def test_a_body_with_wrong_types_is_read_as_far_as_possible(body: dict[str, Any]) -> None:
    WIRE.encode_request(WIRE.decode_request(body))


# There and back

SAID = st.text(min_size=1, max_size=20).filter(lambda text: bool(text.strip()))
CACHE: st.SearchStrategy[CacheMark] = st.sampled_from(["", "5m", "1h"])
PARTS = st.lists(
    st.builds(Text, SAID, CACHE)
    | st.builds(Media, mime=st.sampled_from(["image/png", "application/pdf"]), data=st.just("AAAA"), cache=CACHE)
    | st.builds(Media, url=st.just("https://x.test/a"), cache=CACHE),
    min_size=1,
    max_size=2,
).map(tuple)


@st.composite
def histories(draw: st.DrawFn) -> tuple[Message, ...]:
    """Any history within the limit of four marks, which is a rule of its own."""
    messages: list[Message] = [System.of(draw(SAID))] if draw(st.booleans()) else []
    for turn in range(draw(st.integers(0, 2))):
        messages.append(User((Text(draw(SAID)),) if turn else draw(PARTS)))
        values = draw(st.lists(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5)), max_size=2))
        calls = [
            ToolCall(f"toolu_{turn}_{n}", "find", value, dump_arguments(value) or "", n)
            for n, value in enumerate(values)
        ]
        messages.append(Assistant(draw(st.just("") | SAID if calls else SAID), tuple(calls)))
        if calls:
            results = [ToolResult.of(asked, draw(SAID), error=draw(st.booleans())) for asked in calls]
            messages.append(ToolMessage(tuple(results)))
    return tuple(messages)


@given(histories())
def test_sent_messages_can_be_read_back(messages: tuple[Message, ...]) -> None:
    assert WIRE.decode_request(json.loads(json.dumps(encoded(*messages)))).messages == messages
