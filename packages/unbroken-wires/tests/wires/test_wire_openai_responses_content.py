"""openai-responses, what a client sent survives: parts, tools, results, instructions and settings on the same wire."""

from __future__ import annotations

from typing import Any

import pytest
from responses_events import REASONING, Object, call_item, completed, message_item, read

from unbroken import Assistant, Request, Sampling, System, Text, ToolMessage, ToolResult, User
from unbroken_wires.messages import Media, Native, ToolSpec
from unbroken_wires.wires.content_parts import FOREIGN
from unbroken_wires.wires.openai_responses import WIRE


def again(**body: Any) -> Object:
    return WIRE.encode_request(WIRE.decode_request(body))


def user(*content: Object) -> Object:
    return {"type": "message", "role": "user", "content": list(content)}


PNG = "data:image/png;base64,AAAA"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_image", "file_id": "file_1", "detail": "auto"},
        {"type": "input_image", "image_url": PNG, "detail": "high"},
        {"type": "input_image", "image_url": "https://x/y.png", "detail": "original"},
        {"type": "input_file", "file_id": "file_1"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "AAAA"},
        {"type": "input_file", "filename": "a.pdf", "file_url": "https://x/a.pdf"},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}},
        {"type": "input_video", "video_url": "https://x/y.mp4"},
        {"type": "input_text", "text": 5},
    ],
)
def test_a_part_of_a_client_is_sent_unchanged(part: Object) -> None:
    assert again(input=[user(part)])["input"] == [user(part)]
    output: Object = {"type": "function_call_output", "call_id": "call_1", "output": [part]}
    assert again(input=[output])["input"] == [output]


def test_a_part_is_kept_verbatim_only_if_it_has_additional_fields() -> None:
    plain: list[Object] = [
        {"type": "input_image", "image_url": PNG},
        {"type": "input_image", "image_url": PNG, "detail": "auto", "file_id": None},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}},
    ]
    assert WIRE.decode_request({"input": [user(*plain)]}).messages == (
        User.of(
            Media(mime="image/png", data="AAAA"),
            Media(mime="image/png", data="AAAA"),
            Media(mime="application/pdf", data="AAAA", name="a.pdf"),
            Media(mime="audio/mpeg", data="AAAA"),
        ),
    )


def test_a_part_of_another_wire_is_replaced_by_a_note() -> None:
    video = Media(native=Native("gemini", {"fileData": {"fileUri": "x"}}))
    sent = WIRE.encode_request(Request((User.of(video),)))["input"]
    assert sent == [user({"type": "input_text", "text": FOREIGN})]


def test_a_tool_with_additional_fields_is_sent_unchanged() -> None:
    tool: Object = {"type": "function", "name": "look", "parameters": {"type": "object"}, "defer_loading": True}
    assert again(input="Hi", tools=[tool])["tools"] == [tool]
    plain: Object = {**tool, "strict": False, "description": "Looks.", "defer_loading": None}
    assert WIRE.decode_request({"tools": [plain]}).tools == (
        ToolSpec("look", "Looks.", {"type": "object"}, strict=False),
    )


def test_strict_that_a_client_left_out_stays_out() -> None:
    tool: Object = {"type": "function", "name": "look", "description": "", "parameters": {"type": "object"}}
    assert again(input="Hi", tools=[tool])["tools"] == [tool]
    assert WIRE.encode_request(Request((), (ToolSpec("look"),)))["tools"][0]["strict"] is False


@pytest.mark.parametrize(
    "result",
    [
        {"type": "function_call_output", "output": "one", "caller": {"type": "program", "caller_id": "p"}},
        {"type": "function_call_output", "output": {"any": "thing"}},
        {"type": "shell_call_output", "output": [{"stdout": "a", "stderr": "b", "outcome": {"type": "timeout"}}]},
        {"type": "computer_call_output", "output": {"type": "computer_screenshot", "file_id": "file_1"}},
        {
            "type": "computer_call_output",
            "output": {"type": "computer_screenshot", "image_url": PNG},
            "acknowledged_safety_checks": [{"id": "sc_1"}],
        },
    ],
)
def test_a_result_with_additional_fields_is_sent_unchanged(result: Object) -> None:
    result = {**result, "call_id": "call_1"}
    assert again(input=[result])["input"] == [result]


def test_a_result_without_additional_fields_has_no_native_form() -> None:
    item = {"type": "function_call_output", "id": "fco_1", "call_id": "call_1", "output": "one", "status": "completed"}
    assert WIRE.decode_request({"input": [item]}).messages == (ToolMessage((ToolResult("call_1", (Text("one"),)),)),)


@pytest.mark.parametrize("content", [(), ("",), (" \n",)])
def test_a_failure_without_text_still_informs_the_model(content: tuple[str, ...]) -> None:
    r = read(completed(call_item("{}"), {**call_item(n=2), "type": "custom_tool_call", "input": "x"}))
    results = tuple(ToolResult.of(call, *content, error=True) for call in r.calls)
    sent = WIRE.encode_request(Request((r.message, ToolMessage(results))))["input"]
    assert [item["output"] for item in sent[-2:]] == ["Error", "Error"]


# System messages


def test_instructions_stay_instructions_next_to_a_developer_message() -> None:
    """Codex sends both."""
    rules = {"type": "message", "role": "developer", "content": "Rules."}
    body = again(instructions="Be brief.", input=[rules, user({"type": "input_image", "file_id": "f"})])
    assert (body["instructions"], body["input"][0]) == ("Be brief.", rules)
    request = Request((System.of("Be brief."), System.of("Rules.")))
    assert WIRE.decode_request(WIRE.encode_request(request)).messages == request.messages


@pytest.mark.parametrize("instructions", [{}, {"instructions": None}, {"instructions": ""}])
def test_a_developer_message_stays_a_message_without_instructions(instructions: Object) -> None:
    rules = {"type": "message", "role": "developer", "content": "Rules."}
    body = again(input=[rules], **instructions)
    assert body["input"] == [rules]
    assert "instructions" not in body


def test_a_later_system_message_is_a_developer_message() -> None:
    sent = WIRE.encode_request(Request((User.of("Hi"), System.of("Rules."))))["input"]
    assert sent[1]["role"] == "developer"


# Settings


def test_choice_and_parallel_are_sent_with_provider_tools_alone() -> None:
    body = again(
        input="Hi", tools=[{"type": "web_search"}], tool_choice="required", parallel_tool_calls=False, stream=True
    )
    assert (body["tools"], body["tool_choice"]) == ([{"type": "web_search"}], "required")
    assert body["parallel_tool_calls"] is False
    assert "tool_choice" not in again(input="Hi", tool_choice="auto", parallel_tool_calls=True)


def test_a_token_limit_below_the_minimum_of_the_api_is_raised() -> None:
    for asked, sent in ((1, 16), (16, 16), (17, 17)):
        request = Request((User.of("Hi"),), sampling=Sampling(max_tokens=asked))
        assert WIRE.encode_request(request)["max_output_tokens"] == sent


@pytest.mark.parametrize(("mime", "format"), [("audio/mpeg", "mp3"), ("audio/x-wav", "wav"), ("audio/wav", "wav")])
def test_audio_has_the_name_of_the_api(mime: str, format: str) -> None:
    sent = WIRE.encode_request(Request((User.of(Media(mime=mime, data="AAAA")),)))["input"]
    assert sent[0]["content"][0]["input_audio"]["format"] == format


# Reasoning


def test_reasoning_is_removed_with_the_call_that_it_led_to() -> None:
    second = {**REASONING, "id": "rs_2"}
    r = read(completed(REASONING, call_item('{"n":1}'), second, call_item('{"n":2}', n=2)))
    for kept, ids in ((r.calls[1:], ["rs_2", "fc_2"]), (r.calls[:1], ["rs_1", "fc_1"]), ((), [])):
        sent = WIRE.encode_request(Request((Assistant("", kept, "", r.message.native),)))["input"]
        assert [item["id"] for item in sent] == ids


def test_reasoning_stays_while_anything_that_it_led_to_stays() -> None:
    second = {**REASONING, "id": "rs_2"}
    r = read(completed(REASONING, second, call_item('{"n":1}'), call_item('{"n":2}', n=2)))
    sent = WIRE.encode_request(Request((Assistant("", r.calls[1:], "", r.message.native),)))["input"]
    assert [item["id"] for item in sent] == ["rs_1", "rs_2", "fc_2"]


def test_reasoning_is_removed_with_the_message_whose_text_is_gone() -> None:
    second = {**REASONING, "id": "rs_2"}
    r = read(completed(REASONING, message_item("<leak>"), second, call_item("{}")))
    sent = WIRE.encode_request(Request((Assistant("", r.calls, "", r.message.native),)))["input"]
    assert [item["id"] for item in sent] == ["rs_2", "fc_1"]
