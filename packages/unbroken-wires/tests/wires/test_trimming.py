"""A non-streaming body with only the first of its calls: everything else stays, down to the last unknown field."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from samples import SAMPLES
from strategies import answers, costly

from unbroken import Assistant, CallReady, Ended, TextDelta, Verdict, decode
from unbroken.errors import UnknownWire
from unbroken_wires.wires import WIRES, find_wire
from unbroken_wires.wires.jsontext import dumps, loads_exact
from unbroken_wires.wires.writer import ResponseWriter

Object = dict[str, Any]


def chat_call(id: str) -> Object:
    return {"id": id, "type": "function", "function": {"name": "look", "arguments": "{}"}}


def test_chat_keeps_one_call_of_each_choice() -> None:
    message = {"content": None, "reasoning_content": "Hm.", "tool_calls": [chat_call("a"), chat_call("b")]}
    choice: Object = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "tool_calls"}
    body: Object = {"id": "c", "choices": [choice, {**choice, "index": 1, "message": message}], "usage": {"x": 1}}
    before = copy.deepcopy(body)
    after = find_wire("openai-chat").keep_first_call(body)
    assert body == before
    for choice in body["choices"]:
        choice["message"] = {**choice["message"], "tool_calls": [chat_call("a")]}
    assert after == body


def test_anthropic_keeps_signatures_text_and_server_calls() -> None:
    content: list[Object] = [
        {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
        {"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {}},
        {"type": "tool_use", "id": "a", "name": "look", "input": {"n": 1}},
        {"type": "text", "text": "and"},
        {"type": "tool_use", "id": "b", "name": "look", "input": {}},
        {"type": "tool_use", "id": "c", "name": "look", "input": {}},
    ]
    body: Object = {"type": "message", "role": "assistant", "content": content, "stop_reason": "tool_use"}
    assert find_wire("anthropic-messages").keep_first_call(body) == {**body, "content": content[:4]}


def test_responses_keep_reasoning_and_count_every_kind_of_call() -> None:
    output: list[Object] = [
        {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "x"},
        {"type": "web_search_call", "id": "ws", "status": "completed"},
        {"type": "custom_tool_call", "id": "ctc", "call_id": "a", "name": "patch", "input": "x"},
        {"type": "function_call", "id": "fc", "call_id": "b", "name": "look", "arguments": "{}"},
        {"type": "message", "id": "m", "role": "assistant", "content": []},
        {"type": "local_shell_call", "id": "ls", "call_id": "c", "action": {}},
    ]
    body: Object = {"object": "response", "status": "completed", "output": output, "usage": None}
    kept = find_wire("openai-responses").keep_first_call(body)
    assert kept == {**body, "output": [output[0], output[1], output[2], output[4]]}


def test_gemini_keeps_the_signature_of_its_first_call() -> None:
    parts: list[Object] = [
        {"text": "Hm.", "thought": True},
        {"functionCall": {"name": "look", "args": {}}, "thoughtSignature": "c2ln"},
        {"functionCall": {"name": "look", "args": {}}},
        {"text": "and"},
    ]
    for role in ({"role": "model"}, {}):
        body: Object = {
            "candidates": [{"content": {"parts": parts, **role}, "finishReason": "STOP"}],
            "modelVersion": "g",
        }
        content = {"parts": [parts[0], parts[1], parts[3]], **role}
        assert find_wire("gemini").keep_first_call(body) == {
            **body,
            "candidates": [{"content": content, "finishReason": "STOP"}],
        }


@pytest.mark.parametrize("wire", WIRES)
@costly
@given(message=answers())
def test_a_trimmed_body_is_equal_except_for_the_later_calls(wire: str, message: Assistant) -> None:
    writer = ResponseWriter(wire, "m", "resp_1")
    for delta in (TextDelta(message.text), *map(CallReady, message.calls), Ended(Verdict("whole"))):
        writer.feed(delta)
    body = loads_exact(writer.body())
    trimmed = find_wire(wire).keep_first_call(body)
    before, after = decode(writer.body(), wire), decode(dumps(trimmed), wire)
    assert (after.text, after.finish, after.calls) == (before.text, before.finish, before.calls[:1])
    assert (trimmed is body) == (len(message.calls) < 2)


WHOLE = [(wire, body) for wire, body in SAMPLES if body[:1] == b"{" and body.rstrip().count(b"\n{") == 0]


@pytest.mark.parametrize(("wire", "sample"), WHOLE, ids=[wire for wire, _ in WHOLE])
def test_the_bodies_of_the_samples_are_left_with_one_call(wire: str, sample: bytes) -> None:
    before, after = decode(sample, wire), decode(dumps(find_wire(wire).keep_first_call(loads_exact(sample))), wire)
    assert (after.text, after.reasoning, len(before.calls)) == (before.text, before.reasoning, 3)
    assert after.calls[0].arguments == before.calls[0].arguments
    assert len(after.calls) == 1


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("junk", [None, 7, "x", [], {}, [7], [{}], [{"message": 7, "content": 7}]], ids=repr)
def test_unknown_bodies_are_not_changed(wire: str, junk: Any) -> None:
    for field in ("choices", "content", "output", "candidates"):
        body: Object = {field: junk}
        assert find_wire(wire).keep_first_call(body) is body


def test_an_unknown_wire_is_named() -> None:
    with pytest.raises(UnknownWire, match="carrier-pigeon"):
        find_wire("carrier-pigeon").keep_first_call({})
