"""openai-responses, requests: what goes back to a provider, and reading the request of a client."""

from __future__ import annotations

import json
from typing import Any

import pytest
from corpus import ABSENT, RECORDINGS
from hypothesis import given
from hypothesis import strategies as st
from responses_events import REASONING, Object, call_item, calls, completed, done, message_item, read, texts

from unbroken import Assistant, Request, Sampling, System, Text, ToolMessage, ToolResult, User, decode
from unbroken.models.quirks import rules_of
from unbroken_wires.messages import Media, Message, Native, OneTool, ToolSpec
from unbroken_wires.wires.openai_responses import WIRE
from unbroken_wires.wires.rules import obey


def items_of(*messages: Message, **fields: Any) -> list[Object]:
    return WIRE.encode_request(Request(messages, **fields))["input"]


def test_reasoning_is_sent_back_byte_for_byte_in_its_position() -> None:
    output = [REASONING, message_item("Hi", phase="commentary"), call_item('{"q": 1}', namespace="n")]
    r = read(*(done(n, item) for n, item in enumerate(output)), completed())
    sent = items_of(r.message, reasoning="low")
    assert sent == [{key: value for key, value in item.items() if key != "status"} for item in output]
    assert sent[0]["encrypted_content"] == REASONING["encrypted_content"]
    again = WIRE.decode_request({"input": sent})
    assert again.messages == (r.message,)


@pytest.mark.skipif(not RECORDINGS, reason=ABSENT)
def test_recorded_reasoning_is_sent_back_byte_for_byte() -> None:
    checked = 0
    for recording in RECORDINGS:
        r = decode(recording.body, recording.wire) if recording.wire == WIRE.name else None
        if r is None or not r.verdict.whole or r.message.native is None:
            continue
        sent = items_of(r.message)
        assert sent == r.message.native.value, recording.id
        sealed = [item["encrypted_content"] for item in sent if item.get("encrypted_content")]
        assert all(json.dumps(text).encode() in recording.body for text in sealed), recording.id
        again = WIRE.decode_request({"input": sent}).messages[0]
        assert isinstance(again, Assistant)
        assert (again.text, again.reasoning, again.native) == (r.text, r.reasoning, r.message.native), recording.id
        checked += bool(sealed)
    assert checked


def test_a_plain_message_and_calls_need_no_native_form() -> None:
    r = read(completed(message_item("Hi"), call_item("{}")))
    assert r.message.native is None
    assert [item["type"] for item in items_of(r.message)] == ["message", "function_call"]


def test_a_removed_call_removes_its_items_and_an_incomplete_one_is_sent_back_empty() -> None:
    output = [REASONING, call_item('{"n":1}'), call_item('{"n":', n=2), call_item('{"n":3}', n=3)]
    r = read(completed(*output))
    assert [call.complete for call in r.calls] == [True, False, True]
    kept = Assistant("", r.calls[:2], r.reasoning, r.message.native)
    assert [item.get("arguments") for item in items_of(kept)] == [None, '{"n":1}', "{}"]
    assert items_of(Assistant("", (), "", r.message.native)) == []


def test_a_generated_id_is_in_call_and_result() -> None:
    r = read(completed(REASONING, call_item('{"n":1}', call_id=""), call_item('{"n":2}', n=2)))
    sent = items_of(r.message, ToolMessage(tuple(ToolResult.of(call, "ok") for call in r.calls)))
    calls = [item["call_id"] for item in sent if item["type"] == "function_call"]
    assert calls == [item["call_id"] for item in sent if item["type"] == "function_call_output"]
    assert calls == ["call_0_0", "call_2"]


def test_reasoning_that_is_only_a_reference_is_left_out_of_a_stateless_request() -> None:
    bare = {key: value for key, value in REASONING.items() if key != "encrypted_content"}
    r = read(completed(bare, call_item("{}")))
    assert [item["type"] for item in items_of(r.message)] == ["reasoning", "function_call"]
    assert items_of(r.message, extra={"store": False}) == [
        {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}
    ]


def test_native_data_of_another_wire_and_its_reasoning_are_left_out() -> None:
    message = Assistant("Hi", reasoning="Hm.", native=Native("anthropic-messages", [{"type": "thinking"}]))
    assert [item["type"] for item in items_of(message)] == ["message"]


def test_changed_text_replaces_the_message_item() -> None:
    r = read(completed(REASONING, message_item("<leak>"), call_item("{}")))
    changed = Assistant("Hi", r.calls, r.reasoning, r.message.native)
    sent = items_of(changed)
    assert [item["type"] for item in sent] == ["reasoning", "message", "function_call"]
    assert sent[1]["content"][0]["text"] == "Hi"


@pytest.mark.parametrize(
    ("item", "error", "expected"),
    [
        ({"type": "apply_patch_call", "operation": {}}, True, {"status": "failed", "output": "out"}),
        ({"type": "local_shell_call", "action": {}}, False, {"id": "call_1", "output": "out"}),
        ({"type": "custom_tool_call", "name": "run", "input": "x"}, False, {"output": "out"}),
        (
            {"type": "shell_call", "action": {"commands": [], "max_output_length": 9}},
            False,
            {
                "output": [{"stdout": "out", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
                "max_output_length": 9,
            },
        ),
    ],
)
def test_a_result_has_the_form_of_its_call(item: Object, error: bool, expected: Object) -> None:
    r = read(completed({"id": "x_1", "call_id": "call_1", "status": "completed", **item}))
    answer = ToolMessage((ToolResult.of(r.calls[0], "out", error=error),))
    sent = items_of(r.message, answer)
    assert sent[-1] == {"type": f"{item['type']}_output", "call_id": "call_1", **expected}
    again = WIRE.decode_request({"input": sent}).messages
    assert again[0] == r.message
    assert isinstance(again[1], ToolMessage)
    assert (again[1].results[0].text, again[1].results[0].error) == ("out", error)


def test_client_tool_search_and_screenshot_are_answered_in_their_own_form() -> None:
    search: Object = {"type": "tool_search_call", "execution": "client", "call_id": "a", "arguments": {}}
    look = {"type": "computer_call", "call_id": "b", "action": {"type": "screenshot"}}
    r = read(completed(search, look))
    shot = Media(mime="image/png", data="AAAA")
    tools = '[{"type": "function", "name": "f"}]'
    sent = items_of(
        ToolMessage(()), r.message, ToolMessage((ToolResult.of(r.calls[0], tools), ToolResult.of(r.calls[1], shot)))
    )
    assert sent[2]["tools"] == json.loads(tools)
    assert sent[3]["output"] == {"type": "computer_screenshot", "image_url": "data:image/png;base64,AAAA"}
    again = WIRE.decode_request({"input": sent}).messages[1]
    assert again == ToolMessage((ToolResult("a", (Text(tools),)), ToolResult("b", (shot,))))


def test_a_request_has_the_format_of_the_wire() -> None:
    schema: Object = {"type": "object", "properties": {}}
    request = Request(
        messages=(System.of("Be brief."), User.of("Hi", Media(url="https://x/y.png"))),
        tools=(ToolSpec("look", "Looks.", schema), ToolSpec("sure", strict=True)),
        choice=OneTool("look"),
        parallel=False,
        reasoning="low",
        sampling=Sampling(max_tokens=90, temperature=0.5, top_p=0.9, stop=("x",), seed=1),
        extra={"reasoning": {"summary": "auto"}},
        model="m",
    )
    body = WIRE.encode_request(request)
    assert body.pop("input")[0]["content"] == [
        {"type": "input_text", "text": "Hi"},
        {"type": "input_image", "image_url": "https://x/y.png", "detail": "auto"},
    ]
    tools = body.pop("tools")
    assert tools[0] == {
        "type": "function",
        "name": "look",
        "description": "Looks.",
        "parameters": schema,
        "strict": False,
    }
    assert tools[1]["strict"] is True
    assert body == {
        "model": "m",
        "instructions": "Be brief.",
        "tool_choice": {"type": "function", "name": "look"},
        "parallel_tool_calls": False,
        "stream": True,
        "reasoning": {"effort": "low", "summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "max_output_tokens": 90,
        "temperature": 0.5,
        "top_p": 0.9,
    }


def test_the_final_request_keeps_its_tools_and_allows_no_calls() -> None:
    tool = ToolSpec("look")
    for extra in ({}, {"tool_choice": {"type": "web_search"}}):
        body = WIRE.encode_request(Request((User.of("Hi"),), (tool,), choice="required", final=True, extra=extra))
        assert (len(body["tools"]), body["tool_choice"]) == (1, "none")


def test_state_is_not_changed_if_extra_sets_it() -> None:
    for extra in ({"store": True}, {"previous_response_id": "resp_1"}):
        body = WIRE.encode_request(Request((User.of("Hi"),), reasoning="low", extra=extra))
        assert "include" not in body
        assert body.get("store") is not False


def test_a_request_of_a_client_is_read() -> None:
    body: Object = {
        "model": "m",
        "instructions": "Be brief.",
        "input": [
            {"role": "developer", "content": "Rules."},
            {"role": "user", "content": [{"type": "input_file", "filename": "a", "file_data": "data:a/b;base64,AA"}]},
            REASONING,
            {"type": "item_reference", "id": "msg_0"},
            call_item('{"q":1}'),
            call_item("nope", n=2),
            {"type": "function_call_output", "call_id": "call_1", "output": "one"},
            {"type": "function_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "two"}]},
            {"role": "assistant", "content": "Done."},
        ],
        "tools": [{"type": "function", "name": "look"}, {"type": "web_search"}],
        "tool_choice": "required",
        "reasoning": {"effort": "xhigh"},
        "max_output_tokens": 9,
        "metadata": {"a": "b"},
    }
    request = WIRE.decode_request(body)
    system, rules, user, said, results, last = request.messages
    assert (system, rules) == (System.of("Be brief."), System.of("Rules."))
    assert user == User.of(Media(mime="a/b", data="AA", name="a"))
    assert isinstance(said, Assistant)
    assert said.native is not None
    assert [(call.id, call.arguments) for call in said.calls] == [("call_1", {"q": 1}), ("call_2", None)]
    assert len(said.native.value) == 4
    assert results == ToolMessage((ToolResult("call_1", (Text("one"),)), ToolResult("call_2", (Text("two"),))))
    assert last == Assistant("Done.")
    assert (request.choice, request.sampling.max_tokens, request.stream) == ("required", 9, False)
    assert [tool.name for tool in request.tools] == ["look"]
    assert request.extra == {"metadata": {"a": "b"}, "tools": [{"type": "web_search"}]}
    assert WIRE.decode_request({"input": "Hi"}).messages == (User.of("Hi"),)


media = st.builds(
    Media, mime=st.sampled_from(["image/png", "audio/wav", "audio/mpeg", "application/pdf"]), data=st.just("AAAA")
) | st.builds(Media, mime=st.just("application/pdf"), data=st.just("AAAA"), name=texts)
parts = st.lists(st.builds(Text, texts) | media, max_size=3).map(tuple)


@st.composite
def histories(draw: st.DrawFn) -> tuple[Message, ...]:
    messages: list[Message] = [System(tuple(Text(text) for text in draw(st.lists(texts.filter(bool), max_size=2))))]
    messages = messages if isinstance(messages[0], System) and messages[0].parts else []
    for _ in range(draw(st.integers(0, 3))):
        messages.append(User(draw(parts)))
        made = draw(calls())
        text = draw(texts)
        if made or text:
            messages.append(Assistant(text, made))
        if made:
            messages.append(ToolMessage(tuple(ToolResult(call.id, draw(parts)) for call in made)))
    return tuple(messages)


@given(histories())
def test_a_history_survives_its_own_encoding(messages: tuple[Message, ...]) -> None:
    body = json.loads(json.dumps(WIRE.encode_request(Request(messages))))
    again = WIRE.decode_request(body).messages
    assert [_without_native(message) for message in again] == list(messages)
    assert WIRE.encode_request(Request(again)) == body


def _without_native(message: Message) -> Message:
    return Assistant(message.text, message.calls, message.reasoning) if isinstance(message, Assistant) else message


def test_nothing_refers_to_reasoning_that_is_not_stored() -> None:
    """A client of Chat Completions can forbid storing, and cannot ask for encrypted reasoning."""
    reasoning: dict[str, Any] = {"type": "reasoning", "id": "rs_1", "summary": []}
    call: dict[str, Any] = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": "{}"}
    kept = {**reasoning, "id": "rs_2", "encrypted_content": "x"}
    rules = rules_of("openai-responses", "openai", "gpt-5.2")
    body: dict[str, Any] = {"model": "gpt-5.2", "store": False, "input": [reasoning, call, kept]}
    sent, left_out = obey(rules, body, "gpt-5.2", {}, True)
    without_ids = [{key: value for key, value in item.items() if key != "id"} for item in (call, kept)]
    assert (sent["input"], left_out) == (without_ids, ["input.reasoning"])
    stored = {**body, "store": True}
    assert obey(rules, stored, "gpt-5.2", {}, True) == (stored, [])
