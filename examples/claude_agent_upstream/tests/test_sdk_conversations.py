"""What a request asks of an SDK session, and which session it continues; without the SDK."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec

import pytest

from claude_agent_upstream import model
from claude_agent_upstream.conversation import (
    Continued,
    Returned,
    continued,
    history_key,
    idle_key,
    latest_calls,
    read,
    says_the_same,
    transcript,
)
from unbroken.errors import RequestRefused, UserError
from unbroken_wires.messages import (
    Assistant,
    OneTool,
    OutputSchema,
    Request,
    Sampling,
    System,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    ToolSpec,
    User,
)
from unbroken_wires.server_tools import WebSearch

TOOLS = (ToolSpec("weather", "The weather.", {"type": "object", "properties": {"city": {"type": "string"}}}),)
CALL = ToolCall("toolu_1", "weather", {"city": "Rome"}, '{"city": "Rome"}')
ASKED = (System.of("Be brief.", "And kind."), User.of("What is the weather?"))
CALLED = Assistant("Let me look.", (CALL,))
RESULTS = ToolMessage((ToolResult.of(CALL, "sunny"),))


def test_a_request_in_the_form_of_a_session() -> None:
    conversation = read(Request((*ASKED, CALLED, RESULTS, User.of("Hurry.")), TOOLS))
    assert conversation.system == "Be brief.\n\nAnd kind."
    assert conversation.tool_names == {"mcp__client__weather"}
    asked, called, returned = conversation.messages
    assert asked == {"role": "user", "content": [{"type": "text", "text": "What is the weather?"}]}
    assert [block.get("name") for block in called["content"]] == [None, "mcp__client__weather"]
    assert [block["type"] for block in returned["content"]] == ["tool_result", "text"], "one message of the user"
    assert list(conversation.results) == ["toolu_1"]
    lines = [json.loads(line) for line in transcript(conversation.messages, "session", "/work").splitlines()]
    assert [line["type"] for line in lines] == ["user", "assistant", "user"]
    assert [line["parentUuid"] for line in lines] == [None, lines[0]["uuid"], lines[1]["uuid"]]
    assert [line["message"]["content"] for line in lines] == [each["content"] for each in conversation.messages]


@pytest.mark.parametrize(
    "request_",
    [
        Request(ASKED, TOOLS, choice="required"),
        Request(ASKED, TOOLS, choice=OneTool("weather")),
        Request(ASKED, sampling=Sampling(stop=("END",))),
        Request(ASKED, output=OutputSchema({"type": "object"})),
        Request(ASKED, server_tools=(WebSearch(),)),
        Request((*ASKED, Assistant("The weather is"))),
    ],
)
def test_what_the_sdk_cannot_promise_is_refused(request_: Request) -> None:
    with pytest.raises(RequestRefused):
        read(request_)


def test_what_the_sdk_has_no_option_for_is_named() -> None:
    assert read(Request(ASKED, sampling=Sampling(temperature=0.0, seed=1))).left_out == ("temperature", "seed")


def test_no_tools_are_offered_to_a_client_that_accepts_no_calls() -> None:
    assert read(Request(ASKED, TOOLS, choice="none")).tools == ()
    assert read(Request((*ASKED, CALLED, RESULTS), TOOLS, final=True)).tools, "but a history with calls needs them"


def test_a_session_is_found_by_what_the_client_returns() -> None:
    before = history_key(ASKED)
    assert continued(Request(ASKED)) is None
    assert continued(Request((*ASKED, CALLED, RESULTS))) == Returned(before, CALLED)
    assert continued(Request((*ASKED, Assistant("Sunny."), User.of("And then?")))) == Continued(
        before, Assistant("Sunny.")
    )
    assert continued(Request((*ASKED, CALLED, RESULTS, User.of("Hurry.")))) is None, "a session takes only the results"


def test_an_edited_history_is_another_conversation() -> None:
    keys = {
        history_key(messages)
        for messages in (
            ASKED,
            (*ASKED[:1], User.of("What is the weather in Oslo?")),
            (*ASKED, CALLED, RESULTS),
            (*ASKED, CALLED, ToolMessage((ToolResult.of(CALL, "rainy"),))),
            (*ASKED, replace(CALLED, text="I look."), RESULTS),
            (*ASKED, CALLED, ToolMessage((ToolResult.of(CALL, "sunny", error=True),))),
        )
    }
    assert len(keys) == 6
    assert history_key((User((Text("Hello.", cache="5m"),)),)) == history_key((User.of("Hello."),))


def test_settings_that_a_session_cannot_change_are_part_of_it() -> None:
    requests = (
        Request(ASKED, TOOLS),
        Request(ASKED),
        Request((System.of("Be long."), *ASKED[1:]), TOOLS),
        Request(ASKED, TOOLS, sampling=Sampling(max_tokens=100)),
        Request(ASKED, (replace(TOOLS[0], description="Another."),)),
    )
    asked = [read(request) for request in requests]
    assert len({each.settings for each in asked}) == len(requests)
    assert idle_key(asked[0], "history", "text ") == idle_key(asked[0], "history", "text")
    assert idle_key(asked[0], "history", "text") != idle_key(asked[1], "history", "text")


def test_reasoning_holds_for_a_turn() -> None:
    """A client that has no signature to return asks for none in the middle of a turn."""
    plain, thinking = read(Request(ASKED, TOOLS)), read(Request(ASKED, TOOLS, reasoning="high"))
    assert plain.settings == thinking.settings
    assert idle_key(plain, "history", "text") != idle_key(thinking, "history", "text")
    assert thinking.thinking["type"] != "disabled"
    rebuilt = read(Request((*ASKED, CALLED, RESULTS, User.of("Hurry.")), TOOLS, reasoning="high"))
    assert rebuilt.thinking == {"type": "disabled"}, "the turn began without"
    assert latest_calls(Request((*ASKED, CALLED, RESULTS, User.of("Hurry.")))) == (CALL,)
    assert latest_calls(Request(ASKED)) == ()


def test_a_client_may_leave_out_the_text_beside_calls_and_change_nothing_else() -> None:
    assert says_the_same(CALLED, CALLED)
    assert says_the_same(replace(CALLED, text=""), CALLED)
    assert not says_the_same(replace(CALLED, text="Something else."), CALLED)
    assert not says_the_same(replace(CALLED, calls=(replace(CALL, arguments={"city": "Oslo"}),)), CALLED)
    assert not says_the_same(replace(CALLED, calls=(replace(CALL, id="toolu_2"),)), CALLED)
    assert not says_the_same(replace(CALLED, calls=()), CALLED)


@pytest.mark.skipif(find_spec("claude_agent_sdk") is not None, reason="claude-agent-sdk is installed")
def test_without_the_sdk_the_gateway_says_what_to_install() -> None:
    with pytest.raises(UserError, match="claude-agent"):
        model()
