"""What a provider refuses is described, and what our encoders write for a complete history is never refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import histories

from unbroken import Request
from unbroken_testing import check_request
from unbroken_testing.server import check_shape
from unbroken_wires.messages import Choice, Message, OneTool, ToolSpec
from unbroken_wires.wires import WIRES

Body = dict[str, Any]
CHOICES: list[Choice | None] = [None, "auto", "none", "required", OneTool("look")]


@given(histories(), st.booleans(), st.booleans(), st.sampled_from(CHOICES))
def test_no_wire_refuses_what_is_written_for_it(
    messages: tuple[Message, ...], final: bool, stream: bool, choice: Choice | None
) -> None:
    tools = (ToolSpec("look"), ToolSpec("read_file"))
    request = Request(messages, tools=tools, model="demo", final=final, stream=stream, choice=choice, parallel=False)
    for name, wire in WIRES.items():
        assert check_request(name, wire.encode_request(request)) == []


def chat_call(id: str, arguments: str = "{}") -> Body:
    return {"id": id, "type": "function", "function": {"name": "look", "arguments": arguments}}


def chat(*ids: str) -> list[Body]:
    return [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": None, "tool_calls": [chat_call(id) for id in ids]},
        *({"role": "tool", "tool_call_id": id, "content": "seen"} for id in ids),
    ]


def responses(*ids: str) -> list[Body]:
    return [
        {"role": "user", "content": "Look."},
        *({"type": "function_call", "call_id": id, "name": "look", "arguments": "{}"} for id in ids),
        *({"type": "function_call_output", "call_id": id, "output": "seen"} for id in ids),
    ]


def anthropic(*ids: str) -> list[Body]:
    return [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": "look", "input": {}} for id in ids]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": "seen"} for id in ids]},
    ]


def gemini(*ids: str) -> list[Body]:
    calls: list[Body] = [{"functionCall": {"id": id, "name": f"look_{id}", "args": {}}} for id in ids]
    seen: list[Body] = [
        {"functionResponse": {"id": id, "name": f"look_{id}", "response": {"output": "seen"}}} for id in ids
    ]
    return [
        {"role": "user", "parts": [{"text": "Look."}]},
        {"role": "model", "parts": calls},
        {"role": "user", "parts": seen},
    ]


def ollama(*ids: str) -> list[Body]:
    calls: list[Body] = [{"id": id, "function": {"name": "look", "arguments": {}}} for id in ids]
    return [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": "", "tool_calls": calls},
        *({"role": "tool", "tool_call_id": id, "tool_name": "look", "content": "seen"} for id in ids),
    ]


def cohere(*ids: str) -> list[Body]:
    asked, answered, *results = chat(*ids)
    return [asked, {"role": "assistant", "tool_plan": "I will look.", "tool_calls": answered["tool_calls"]}, *results]


def bedrock(*ids: str) -> list[Body]:
    return [
        {"role": "user", "content": [{"text": "Look."}]},
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": id, "name": "look", "input": {}}} for id in ids]},
        {"role": "user", "content": [{"toolResult": {"toolUseId": id, "content": [{"text": "seen"}]}} for id in ids]},
    ]


TELLERS: dict[str, Callable[..., list[Body]]] = {
    "openai-chat": chat,
    "openai-responses": responses,
    "anthropic-messages": anthropic,
    "gemini": gemini,
    "ollama": ollama,
    "cohere-v2": cohere,
    "bedrock-converse": bedrock,
}
TOOL: Body = {"toolSpec": {"name": "look", "inputSchema": {"json": {"type": "object"}}}}


def body_of(wire: str, messages: list[Body], **more: Any) -> Body:
    match wire:
        case "openai-chat" | "ollama" | "cohere-v2":
            return {"model": "demo", "messages": messages, **more}
        case "bedrock-converse":
            return {"messages": messages, "toolConfig": {"tools": [TOOL]}, **more}
        case "openai-responses":
            return {"model": "demo", "input": messages, **more}
        case "anthropic-messages":
            return {"model": "demo", "max_tokens": 9, "messages": messages, "tools": [{"name": "look"}], **more}
        case _:
            return {"contents": messages, **more}


def changed(wire: str, change: Callable[[list[Body]], object]) -> list[str]:
    """What is wrong with two calls and their results after this change of the results, wherever they are."""
    messages = TELLERS[wire]("a", "b")
    if wire in ("anthropic-messages", "gemini", "bedrock-converse"):
        change(messages[-1]["parts" if wire == "gemini" else "content"])
    else:
        results = messages[-2:]
        change(results)
        messages[-2:] = results
    return check_request(wire, body_of(wire, messages))


@pytest.mark.parametrize("wire", WIRES)
def test_calls_with_their_results_are_accepted(wire: str) -> None:
    for ids in ("a", "ab", "abc"):
        assert check_request(wire, body_of(wire, TELLERS[wire](*ids))) == []


@pytest.mark.parametrize("wire", WIRES)
def test_a_call_without_its_result_is_refused(wire: str) -> None:
    (problem,) = changed(wire, lambda results: results.pop())
    assert "no result: b" in problem or "1 function responses to 2 function calls" in problem


@pytest.mark.parametrize("wire", WIRES)
def test_a_result_without_its_call_is_refused(wire: str) -> None:
    messages = TELLERS[wire]("a")
    del messages[1]
    problems = check_request(wire, body_of(wire, messages))
    assert len([problem for problem in problems if "roles must alternate" not in problem]) == 1


@pytest.mark.parametrize("wire", WIRES)
def test_a_second_result_is_refused(wire: str) -> None:
    (problem,) = changed(wire, lambda results: results.append(results[-1]))
    assert "a second result for the call 'b'" in problem or "3 function responses to 2" in problem


@pytest.mark.parametrize("wire", WIRES)
def test_results_out_of_order_are_refused(wire: str) -> None:
    problems = changed(wire, lambda results: results.reverse())
    assert "the result of 'b' stands before that of 'a'" in problems[0] or "where 'look_a' was called" in problems[0]


@pytest.mark.parametrize("wire", WIRES)
def test_a_result_after_other_content_is_refused(wire: str) -> None:
    messages = TELLERS[wire]("a")
    messages.insert(-1, messages[0])
    problems = check_request(wire, body_of(wire, messages))
    assert len([problem for problem in problems if "roles must alternate" not in problem]) == 2


@pytest.mark.parametrize("wire", [wire for wire in WIRES if wire != "gemini"])
def test_two_calls_with_one_id_are_refused(wire: str) -> None:
    assert any("two calls have the id 'a'" in line for line in check_request(wire, body_of(wire, TELLERS[wire](*"aa"))))


def test_anthropic_accepts_an_id_only_once_in_a_history() -> None:
    (problem,) = check_request("anthropic-messages", body_of("anthropic-messages", anthropic("a") + anthropic("a")))
    assert problem == "messages[4]: the id 'a' was already used by an earlier call"
    assert check_request("openai-chat", body_of("openai-chat", chat("a") + chat("a"))) == []


def chat_answer(**fields: Any) -> Body:
    return body_of("openai-chat", [chat("a")[0], {"role": "assistant", **fields}])


def anthropic_answer(*blocks: Body) -> Body:
    said = [anthropic("a")[0], {"role": "assistant", "content": list(blocks)}, anthropic("a")[0]]
    return body_of("anthropic-messages", said)


REFUSED: list[tuple[str, Body, str]] = [
    ("openai-chat", body_of("openai-chat", []), "messages: none"),
    ("openai-chat", {"messages": chat("a")}, "model: none is named"),
    ("openai-chat", body_of("openai-chat", chat("a"), tools=[]), "tools: an empty list"),
    ("openai-chat", body_of("openai-chat", chat("a"), tool_choice="none"), "tool_choice: there are no tools"),
    ("openai-chat", body_of("openai-chat", chat("a"), stream_options={}), "stream_options: only for a stream"),
    ("openai-chat", body_of("openai-chat", [{"role": "robot", "content": "x"}]), "there is no role 'robot'"),
    ("openai-chat", body_of("openai-chat", [{"role": "user", "content": None}]), "messages[0]: no content"),
    ("openai-chat", chat_answer(), "neither content nor tool_calls"),
    ("openai-chat", chat_answer(content="x", tool_calls=[]), "tool_calls: an empty list"),
    ("openai-chat", body_of("openai-chat", chat("x" * 41)), "is longer than 40 characters"),
    ("openai-chat", body_of("openai-chat", chat("")), "a call without an id"),
    ("openai-chat", chat_answer(tool_calls=[chat_call("a", '{"x')]), "not the text of a JSON object"),
    ("openai-chat", chat_answer(tool_calls=[chat_call("a", "[1]")]), "not the text of a JSON object"),
    ("openai-responses", body_of("openai-responses", []), "input: nothing"),
    ("openai-responses", body_of("openai-responses", responses("x" * 65)), "is longer than 64 characters"),
    (
        "openai-responses",
        body_of("openai-responses", responses("a"), tool_choice="required"),
        "tool_choice: there are no tools",
    ),
    (
        "openai-responses",
        body_of("openai-responses", [*responses("a"), {"type": "reasoning", "id": "rs_1", "summary": []}]),
        "reasoning without the item that it led to",
    ),
    (
        "openai-responses",
        body_of("openai-responses", [{"role": "assistant", "content": [{"type": "input_text", "text": "x"}]}]),
        "a part of type 'input_text' is not allowed here",
    ),
    ("anthropic-messages", body_of("anthropic-messages", anthropic("a"), max_tokens=0), "max_tokens: a positive"),
    ("anthropic-messages", body_of("anthropic-messages", anthropic("a"), tools=[]), "in a request without tools"),
    ("anthropic-messages", body_of("anthropic-messages", anthropic("a:b")), "characters that are not allowed"),
    ("anthropic-messages", anthropic_answer({"type": "text", "text": " "}), "a text block is empty"),
    ("anthropic-messages", anthropic_answer(), "messages[1]: no content"),
    ("anthropic-messages", anthropic_answer({"type": "thinking", "thinking": "x"}), "thinking without its signature"),
    (
        "anthropic-messages",
        anthropic_answer({"type": "thinking", "thinking": "x", "signature": "s"}),
        "thinking cannot be the last block",
    ),
    (
        "anthropic-messages",
        body_of("anthropic-messages", [{"role": "assistant", "content": "Hi."}]),
        "the first message must be the user's",
    ),
    ("ollama", body_of("ollama", []), "messages: none"),
    ("ollama", body_of("ollama", [{"role": "function", "content": "x"}]), "there is no role 'function'"),
    ("ollama", body_of("ollama", ollama("a"), think="very"), "think: it has to be"),
    ("ollama", body_of("ollama", [{"role": "user", "content": "x", "images": ["?"]}]), "an image is not base64"),
    ("cohere-v2", body_of("cohere-v2", cohere("a"), tool_choice="AUTO"), "tool_choice: it has to be REQUIRED or NONE"),
    ("cohere-v2", body_of("cohere-v2", cohere("a"), tool_choice="NONE"), "tool_choice: there are no tools"),
    ("cohere-v2", body_of("cohere-v2", cohere("a"), p=1.0), "p: it has to be from 0.01 to 0.99"),
    ("cohere-v2", body_of("cohere-v2", [{"role": "assistant", "content": ""}]), "neither content nor tool_calls"),
    ("cohere-v2", body_of("cohere-v2", cohere("")), "a call without an id"),
    ("bedrock-converse", body_of("bedrock-converse", bedrock("a")[1:]), "must start with a user message"),
    ("bedrock-converse", body_of("bedrock-converse", bedrock("a")[:1] * 2), "roles must alternate"),
    ("bedrock-converse", body_of("bedrock-converse", bedrock("a b")), "characters that are not allowed"),
    ("bedrock-converse", body_of("bedrock-converse", bedrock("x" * 65)), "characters that are not allowed"),
    ("bedrock-converse", {"messages": bedrock("a")}, "toolConfig is required for toolUse"),
    ("bedrock-converse", body_of("bedrock-converse", bedrock("a"), toolConfig={"tools": []}), "an empty list"),
    (
        "bedrock-converse",
        body_of("bedrock-converse", [{"role": "user", "content": [{"text": " "}]}]),
        "messages[0]: a text is blank",
    ),
    (
        "bedrock-converse",
        body_of("bedrock-converse", bedrock("a"), toolConfig={"tools": [TOOL], "toolChoice": {"none": {}}}),
        "toolChoice: there is no 'none'",
    ),
    ("gemini", body_of("gemini", []), "contents: none"),
    ("gemini", body_of("gemini", [{"role": "user", "parts": [{"text": ""}]}]), "an empty part"),
    ("gemini", body_of("gemini", [{"role": "model", "parts": [{"text": "x"}]}]), "the first turn must be the user's"),
    (
        "gemini",
        body_of("gemini", gemini("a"), toolConfig={"functionCallingConfig": {"mode": "ANY"}}),
        "toolConfig: there are no functions",
    ),
]


@pytest.mark.parametrize(("wire", "body", "problem"), REFUSED, ids=[line[2] for line in REFUSED])
def test_an_invalid_request_is_refused(wire: str, body: Body, problem: str) -> None:
    assert any(problem in line for line in check_request(wire, body))


ASKS: dict[str, Body] = {
    "openai-chat": {"model": "demo", "messages": [{"role": "user", "content": "Hi."}]},
    "openai-responses": {"model": "demo", "input": "Hi."},
    "anthropic-messages": {"model": "demo", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi."}]},
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "Hi."}]}]},
    "ollama": {"model": "demo", "messages": [{"role": "user", "content": "Hi."}]},
    "cohere-v2": {"model": "demo", "messages": [{"role": "user", "content": "Hi."}]},
    "bedrock-converse": {"messages": [{"role": "user", "content": [{"text": "Hi."}]}]},
}


def tools_of(wire: str, tools: Any) -> Body:
    return {"toolConfig": {"tools": tools}} if wire == "bedrock-converse" else {"tools": tools}


ASKED_IN = {wire: next(field for field in ("messages", "input", "contents") if field in ASKS[wire]) for wire in ASKS}


@pytest.mark.parametrize("check", [check_request, check_shape])
@pytest.mark.parametrize("wire", WIRES)
def test_a_request_without_messages_or_with_a_field_of_a_wrong_type_is_always_refused(
    wire: str, check: Callable[[str, Any], list[str]]
) -> None:
    asks, field = ASKS[wire], ASKED_IN[wire]
    assert check(wire, asks) == []
    nothing = f"{field}: {'nothing' if wire == 'openai-responses' else 'none'}"
    assert check(wire, {**asks, field: None}) == check(wire, {**asks, field: []}) == [nothing]
    assert check(wire, {name: value for name, value in asks.items() if name != field}) == [nothing]
    for value in (3, True, {"role": "user"}):
        (problem,) = check(wire, {**asks, field: value})
        assert problem.startswith(f"{field}: it is ")
    assert check(wire, {**asks, field: ["Hi.", None]}) == [f"{field}[{n}]: it has to be an object" for n in (0, 1)]
    (problem,) = check(wire, {**asks, field: [{"role": 3}]})
    assert problem == f"{field}[0].role: it is a number, and has to be a text"
    (problem,) = check(wire, {**asks, **tools_of(wire, "x")})
    assert problem.startswith("tools: it is a text, and has to be a list")
    assert check(wire, {**asks, **tools_of(wire, ["x"])}) == ["tools[0]: it has to be an object"]
    if wire not in ("gemini", "bedrock-converse"):  # there they stand in the address
        assert check(wire, {**asks, "model": 3}) == ["model: it is a number, and has to be a text"]
        assert check(wire, {**asks, "stream": "yes"}) == ["stream: it is a text, and has to be true or false"]


def test_anthropic_requires_results_before_other_content() -> None:
    said, results = {"type": "text", "text": "Here."}, anthropic("a")[-1]["content"]
    for content, refused in (([*results, said], 0), ([said, *results], 1)):
        messages = [*anthropic("a")[:2], {"role": "user", "content": content}]
        assert len(check_request("anthropic-messages", body_of("anthropic-messages", messages))) == refused


def test_a_result_may_answer_a_call_that_the_provider_stores() -> None:
    result = responses("a")[-1:]
    assert len(check_request("openai-responses", body_of("openai-responses", result))) == 1
    assert check_request("openai-responses", body_of("openai-responses", result, previous_response_id="resp_1")) == []


def test_anything_but_an_object_is_refused() -> None:
    for wire in WIRES:
        assert check_request(wire, ["x"]) == ["the body is not a JSON object"]
        assert check_request(wire, {"messages": 3, "input": 4, "contents": "x", "tools": None}) != []
