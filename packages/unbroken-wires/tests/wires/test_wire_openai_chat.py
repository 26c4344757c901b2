"""openai-chat: deviations of servers, and what must be sent back. Requests are in `test_wire_openai_chat_requests`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from streams import calls_chunk, chat, chunk, piece, sse

from unbroken import Assistant, Request, User, decode
from unbroken_wires.messages import Native
from unbroken_wires.wires.openai_chat import WIRE


def encoded(*messages: Any, **settings: Any) -> dict[str, Any]:
    return WIRE.encode_request(Request(messages, model="m", **settings))


def sent_back(message: Assistant) -> dict[str, Any]:
    """The assistant message as it goes out with the next request."""
    return encoded(User.of("x"), message)["messages"][1]


# Reading


def test_a_complete_message_at_the_end_of_a_stream_is_not_read_twice() -> None:
    last = {"choices": [{"index": 0, "finish_reason": "stop", "message": {"content": "Hello there"}}]}
    response = decode(sse(chunk({"content": "Hello "}), chunk({"content": "there"}), last))
    assert (response.text, response.finish) == ("Hello there", "stop")


def test_a_complete_message_after_an_empty_delta_is_read() -> None:
    last = {"choices": [{"index": 0, "finish_reason": "stop", "message": {"content": "Hello"}}]}
    assert decode(sse(chunk({"role": "assistant", "content": ""}), last)).text == "Hello"


@pytest.mark.parametrize("indexes", [[1, 1, 1], [None, 0, "0"], ["0", None, 0], [0, 0, 0]])
def test_the_first_choice_is_the_one_that_arrives_first(indexes: list[Any]) -> None:
    events = [chunk({"content": "a"}), chunk({"content": "b"}), chunk({}, "stop")]
    for event, index in zip(events, indexes, strict=True):
        event["choices"][0]["index"] = index
    assert (decode(sse(*events)).text, decode(sse(*events)).finish) == ("ab", "stop")


def test_a_message_next_to_every_delta_is_ignored() -> None:
    both = [
        {"choices": [{"index": 0, "delta": {"content": "Hel"}, "message": {"content": "Hel"}, "finish_reason": None}]},
        {
            "choices": [
                {"index": 0, "delta": {"content": "lo"}, "message": {"content": "Hello"}, "finish_reason": "stop"}
            ]
        },
    ]
    assert decode(sse(*both)).text == "Hello"


@pytest.mark.parametrize("reason", ["error", "network_error", "insufficient_system_resource", "abort"])
def test_a_finish_reason_for_a_server_failure_is_an_error(reason: str) -> None:
    response = decode(sse(chunk({"content": "Hel"}), chunk({}, reason)))
    assert (response.verdict.kind, response.finish) == ("error", reason)


def test_the_error_object_has_priority_over_the_finish_reason() -> None:
    response = decode(sse(chunk({"content": "Hel"}), {**chunk({}, "error"), "error": {"code": 502, "message": "dead"}}))
    assert response.error == {"code": 502, "message": "dead"}


def test_minimax_errors_next_to_empty_choices_are_read() -> None:
    body = {"choices": None, "base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}}
    response = decode(json.dumps(body).encode())
    assert response.error == {"code": 1008, "message": "insufficient balance"}
    fine = {**chunk({"content": "hi"}, "stop"), "base_resp": {"status_code": 0, "status_msg": ""}}
    assert decode(sse(fine)).verdict.whole


def test_text_next_to_a_call_comes_before_it() -> None:
    body = sse(chunk({"content": "Look: ", "tool_calls": [piece(0, "a", "f", "{}")]}), chunk({}, "tool_calls"))
    response = decode(body)
    assert (response.text, len(response.calls)) == ("Look: ", 1)


def test_the_same_reasoning_under_two_names_is_reported_once() -> None:
    response = decode(sse(chunk({"reasoning_content": "Hm.", "reasoning": "Hm."}), chunk({"content": "x"}, "stop")))
    assert response.reasoning == "Hm."


def test_usage_is_reported_with_our_names_and_raw() -> None:
    raw = {
        "prompt_tokens": 10,
        "completion_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    usage = decode(sse(chunk({"content": "x"}, "stop"), {"choices": [], "usage": raw})).usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.reasoning_tokens) == (10, 7, 4, 3)
    assert usage.raw == raw


def test_a_refusal_is_text_and_marks_the_response() -> None:
    message = {"role": "assistant", "content": None, "refusal": "I cannot."}
    whole = {"object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    streamed = sse(chunk({"refusal": "I can"}), chunk({"refusal": "not."}), chunk({}, "stop"))
    for body in (json.dumps(whole).encode(), streamed):
        response = decode(body, "openai-chat")
        assert (response.text, response.finish, response.verdict.meaning) == ("I cannot.", "stop", "refused")


def test_an_answer_that_is_an_image_is_not_empty() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    assert decode(sse(chunk({"images": [image]}), chunk({}, "stop"))).verdict.whole
    assert decode(sse(chunk({}, "stop"))).verdict.kind == "empty"


def test_the_finish_reason_null_as_a_string_means_none() -> None:
    response = decode(sse(chunk({"content": "par"}, "null"), done=False))
    assert (response.finish, response.complete, response.verdict.kind) == (None, False, "unfinished")


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("function_call_filter: MALFORMED_FUNCTION_CALL", "error"),
        ("content_filter: PROHIBITED_CONTENT", "cut_call"),
        ("MAX_TOKENS", "cut_call"),
        ("model_context_window_exceeded", "cut_call"),
    ],
)
def test_a_bad_end_in_any_spelling_runs_no_call_without_arguments(reason: str, kind: str) -> None:
    response = decode(chat(piece(0, "a", "f", ""), finish=reason))
    assert not response.calls[0].complete
    assert (response.verdict.kind, response.finish) == (kind, reason)


def test_usage_is_found_where_kimi_and_groq_put_it() -> None:
    usage = {"prompt_tokens": 12, "completion_tokens": 5, "cached_tokens": 4}
    kimi = chunk({}, "stop")
    kimi["choices"][0]["usage"] = usage
    groq = {**chunk({}, "stop"), "x_groq": {"id": "req", "usage": usage}}
    for last in (kimi, groq):
        found = decode(sse(chunk({"content": "x"}), last)).usage
        assert found is not None
        assert (found.input_tokens, found.output_tokens, found.cached_tokens) == (12, 5, 4)


def test_xai_counts_reasoning_next_to_the_completion() -> None:
    raw = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 35}
    usage = decode(
        sse(
            chunk({"content": "x"}, "stop"),
            {"choices": [], "usage": {**raw, "completion_tokens_details": {"reasoning_tokens": 20}}},
        )
    ).usage
    assert usage is not None
    assert (usage.output_tokens, usage.total_tokens) == (25, 35)


def test_a_search_that_the_provider_runs_is_not_our_call() -> None:
    search = piece(0, "c", "get_search_result", '{"q": "x"}', type="web_search")
    result = {"role": "tool", "tool_call_id": "c", "content": '[{"no": 1}]'}
    response = decode(
        sse(calls_chunk(search, finish="tool_calls"), chunk(result), chunk({"content": "Sunny."}, "stop"))
    )
    assert (response.calls, response.text) == ((), "Sunny.")
    assert [(call.type, call.id, call.arguments) for call in response.server_calls] == [("web_search", "c", {"q": "x"})]


@pytest.mark.parametrize(
    "message",
    [
        {"reasoning_text": "Hm."},
        {"reasoning_details": [{"type": "reasoning.text", "text": "Hm."}]},
        {"reasoning_details": [{"type": "reasoning.summary", "summary": "Hm."}], "reasoning": "Hm."},
        {"content": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}]},
    ],
)
def test_reasoning_is_read_under_all_its_names(message: dict[str, Any]) -> None:
    assert decode(sse(chunk(message), chunk({"content": "x"}, "stop"))).reasoning == "Hm."


@pytest.mark.parametrize(
    "body",
    [
        {"error_code": 336003, "error_msg": "bad"},
        {"success": False, "errors": [{"message": "bad"}]},
        {"message": "bad"},
        {"x_groq": {"error": "bad"}},
    ],
)
def test_errors_of_unusual_form_are_errors(body: dict[str, Any]) -> None:
    response = decode(json.dumps(body).encode())
    assert response.verdict.kind == "error"
    assert "bad" in response.verdict.reason


def test_success_is_not_an_error() -> None:
    done = {"code": 0, "message": "Success", "sid": "c", "usage": {"prompt_tokens": 1, "completion_tokens": 2}}
    assert decode(sse(chunk({"content": "x"}, "stop"), done)).verdict.whole


def test_a_non_streaming_body_without_choices_yields_nothing() -> None:
    assert decode(b'{"object": "chat.completion", "choices": []}').verdict.kind == "empty"


def test_a_tool_that_zhipu_runs_is_not_our_call() -> None:
    run = {"id": "call_1", "index": 0, "type": "code_interpreter", "code_interpreter": {"input": "1+1"}}
    shown = {**run, "code_interpreter": {"outputs": [{"logs": "2"}]}}
    response = decode(sse(calls_chunk(run), calls_chunk(shown), chunk({"content": "2"}, "stop")))
    assert (response.calls, response.text, response.verdict.kind) == ((), "2", "whole")
    assert [(c.type, c.id, c.arguments) for c in response.server_calls] == [
        ("code_interpreter", "call_1", {"input": "1+1"})
    ]


def test_the_choice_with_index_0_is_preferred_if_several_arrive_at_once() -> None:
    choices = [
        {"index": 1, "message": {"content": "B"}, "finish_reason": "stop"},
        {"index": 0, "message": {"content": "A"}, "finish_reason": "length"},
    ]
    response = decode(json.dumps({"object": "chat.completion", "choices": choices}).encode())
    assert (response.text, response.finish) == ("A", "length")


def test_content_that_is_neither_text_nor_parts_is_damage() -> None:
    assert decode(sse(chunk({"content": 123}), chunk({}, "stop"))).verdict.kind == "damaged"


# What must be sent back


def test_an_empty_reasoning_content_is_sent_back_too() -> None:
    message = {"content": "", "reasoning_content": "", "tool_calls": [piece(None, "a", "f", "{}")]}
    whole = json.dumps({"choices": [{"message": message, "finish_reason": "tool_calls"}]}).encode()
    assert sent_back(decode(whole).message)["reasoning_content"] == ""


def test_hidden_fields_of_copilot_are_sent_back() -> None:
    body = sse(chunk({"reasoning_text": "Hm.", "reasoning_opaque": "b3A="}), chunk({"content": "x"}, "stop"))
    sent = sent_back(decode(body).message)
    assert (sent["reasoning_text"], sent["reasoning_opaque"]) == ("Hm.", "b3A=")


def test_signatures_stay_with_their_calls_in_any_order() -> None:
    signed = {"google": {"thought_signature": "c2ln"}}
    late = chat(piece(0, "a", "f", '{"x"'), piece(0, arguments=": 1}", extra_content=signed), piece(1, "b", "g", "{}"))
    repeated = chat(
        piece(0, "a", "f", '{"x"'), piece(0, "a", "f", ": 1}"), piece(1, "b", "g", "{}", extra_content=signed)
    )
    for body, expected in ((late, [signed, None]), (repeated, [None, signed])):
        calls = sent_back(decode(body).message)["tool_calls"]
        assert [call.get("extra_content") for call in calls] == expected


def test_reasoning_details_with_different_ids_stay_apart() -> None:
    details = [
        {"type": "reasoning.encrypted", "data": "AAA", "id": "t1", "index": 0},
        {"type": "reasoning.encrypted", "data": "BBB", "id": "t2", "index": 0},
    ]
    streamed = sse(*(chunk({"reasoning_details": [item]}) for item in details), chunk({"content": "x"}, "stop"))
    message = {"content": "x", "reasoning_details": details}
    whole = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()
    for body in (streamed, whole):
        assert sent_back(decode(body).message)["reasoning_details"] == details


def test_reasoning_content_is_sent_back_unchanged() -> None:
    body = sse(
        chunk({"reasoning_content": "Let me "}),
        chunk({"reasoning_content": "think."}),
        calls_chunk(piece(0, "a", "f", "{}")),
        chunk({}, "tool_calls"),
    )
    assert sent_back(decode(body).message)["reasoning_content"] == "Let me think."


def test_reasoning_details_are_joined_block_by_block() -> None:
    def details(*items: dict[str, Any]) -> dict[str, Any]:
        return chunk({"reasoning": "x", "reasoning_details": list(items)})

    body = sse(
        details({"type": "reasoning.text", "index": 0, "text": "Let ", "format": "anthropic-claude-v1"}),
        details({"type": "reasoning.text", "index": 0, "text": "me.", "signature": None}),
        details({"type": "reasoning.text", "index": 0, "signature": "c2ln"}),
        details({"type": "reasoning.encrypted", "index": 1, "data": "gAAA", "id": "rs_1"}),
        chunk({"content": "ok"}, "stop"),
    )
    assert sent_back(decode(body).message)["reasoning_details"] == [
        {"type": "reasoning.text", "index": 0, "text": "Let me.", "format": "anthropic-claude-v1", "signature": "c2ln"},
        {"type": "reasoning.encrypted", "index": 1, "data": "gAAA", "id": "rs_1"},
    ]


def test_mistrals_thinking_is_sent_back_as_a_part_of_the_content() -> None:
    def thinking(text: str) -> dict[str, Any]:
        return chunk({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": text}]}]})

    response = decode(sse(thinking("Let me "), thinking("think."), chunk({"content": "Hi"}, "stop")))
    assert (response.text, response.reasoning) == ("Hi", "Let me think.")
    assert sent_back(response.message)["content"] == [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Let me think."}]},
        {"type": "text", "text": "Hi"},
    ]


def test_a_thought_signature_is_sent_back_with_its_own_call() -> None:
    signed = piece(1, "b", "g", "{}", extra_content={"google": {"thought_signature": "c2ln"}})
    message = decode(chat(piece(0, "a", "f", "{}"), signed)).message
    calls = sent_back(message)["tool_calls"]
    assert [call.get("extra_content") for call in calls] == [None, {"google": {"thought_signature": "c2ln"}}]
    only_second = replace(message, calls=message.calls[1:])
    assert sent_back(only_second)["tool_calls"][0]["extra_content"] == {"google": {"thought_signature": "c2ln"}}


def test_native_data_of_another_wire_is_not_sent() -> None:
    message = Assistant("hi", reasoning="secret", native=Native("anthropic-messages", [{"type": "thinking"}]))
    assert sent_back(message) == {"role": "assistant", "content": "hi"}


def test_streamed_and_unstreamed_responses_keep_the_same() -> None:
    streamed = sse(
        chunk({"reasoning_content": "Hm"}),
        chunk({"reasoning_content": "."}),
        chunk({"content": "Hi"}),
        chunk({}, "stop"),
    )
    message = {"role": "assistant", "content": "Hi", "reasoning_content": "Hm."}
    whole = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()
    assert decode(streamed).message == decode(whole, stream=False).message
