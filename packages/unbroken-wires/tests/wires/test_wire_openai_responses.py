"""openai-responses, responses: every way in which an item can arrive, and writing one for a client.

The streams are written here, after the shapes that providers send; recordings are checked elsewhere.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from responses_events import (
    REASONING,
    Object,
    about,
    added,
    call_item,
    calls,
    completed,
    done,
    message_item,
    read,
    sse,
    texts,
)

from unbroken import CallReady, Decoder, Ended, TextDelta, ToolCall, Usage, Verdict, decode
from unbroken_wires.deltas import Delta, ReasoningDelta, UsageReported
from unbroken_wires.wires.openai_responses import WIRE

# Calls


def test_a_call_is_ready_when_its_arguments_are_done_and_is_reported_once() -> None:
    item = call_item('{"q":"a"}')
    events = [
        added(0, call_item()),
        about("function_call_arguments.delta", "fc_1", 0, delta='{"q":'),
        about("function_call_arguments.delta", "fc_1", 0, delta='"a"}'),
        about("function_call_arguments.done", "fc_1", 0, arguments='{"q":"a"}'),
    ]
    early = Decoder("openai-responses").feed(sse(*events))
    assert [delta.call.arguments for delta in early if isinstance(delta, CallReady)] == [{"q": "a"}]
    r = read(*events, done(0, item), completed(item))
    assert [(call.id, call.name, call.arguments) for call in r.calls] == [("call_1", "look", {"q": "a"})]
    assert (r.verdict.kind, r.finish) == ("whole", "completed")


def test_the_text_of_the_item_wins_over_different_deltas() -> None:
    r = read(
        added(0, call_item()),
        about("function_call_arguments.delta", "fc_1", 0, delta='{"q":"wro'),
        about("function_call_arguments.done", "fc_1", 0, arguments='{"q":"other"}'),
        done(0, call_item('{"q":"right"}')),
        completed(),
    )
    assert [call.arguments for call in r.calls] == [{"q": "right"}]


@pytest.mark.parametrize(
    "events",
    [
        [completed(call_item('{"q":1}'))],
        [done(0, call_item('{"q":1}')), completed()],
        [added(0, call_item()), done(0, call_item('{"q":1}')), completed(call_item('{"q":1}'))],
        [added(0, call_item('{"q":1}')), completed()],
        [
            added(0, call_item()),
            about("function_call_arguments.done", "fc_1", 0, arguments='{"q":1}'),
            completed(),
        ],
        [
            about("function_call_arguments.delta", "fc_1", 0, delta='{"q":1}'),
            done(0, call_item('{"q":1}')),
            completed(call_item('{"q":1}')),
        ],
        [
            added(0, call_item(name="")),
            about("function_call_arguments.delta", "fc_1", 0, delta='{"q":1}'),
            done(0, call_item('{"q":1}')),
            completed(call_item('{"q":1}')),
        ],
    ],
)
def test_a_call_is_reported_once_in_any_form(events: list[Object]) -> None:
    r = read(*events)
    assert [(call.id, call.name, call.arguments) for call in r.calls] == [("call_1", "look", {"q": 1})]


def test_a_non_streaming_body_is_read_like_a_stream() -> None:
    body = {"object": "response", "status": "completed", "output": [REASONING, message_item("Hi"), call_item("{}")]}
    r = decode(json.dumps(body).encode(), "openai-responses")
    assert (r.reasoning, r.text, [call.arguments for call in r.calls]) == ("Think.", "Hi", [{}])
    assert (r.complete, r.verdict.kind) == (True, "whole")


@pytest.mark.parametrize("status", ["in_progress", "queued"])
def test_a_body_that_is_still_running_is_not_an_end(status: str) -> None:
    body: Object = {"object": "response", "status": status, "output": []}
    assert decode(json.dumps(body).encode(), "openai-responses").verdict.kind == "unfinished"


def test_interleaved_calls_stay_apart() -> None:
    two = call_item(n=2)
    r = read(
        added(0, call_item()),
        added(1, two),
        about("function_call_arguments.delta", "fc_2", 1, delta='{"n":'),
        about("function_call_arguments.delta", "fc_1", 0, delta='{"n":'),
        about("function_call_arguments.delta", "fc_2", 1, delta="2}"),
        about("function_call_arguments.delta", "fc_1", 0, delta="1}"),
        done(1, {**two, "arguments": '{"n":2}'}),
        done(0, call_item('{"n":1}')),
        completed(),
    )
    assert [(call.id, call.arguments) for call in r.calls] == [("call_1", {"n": 1}), ("call_2", {"n": 2})]


def test_ids_that_change_with_every_event_are_joined_by_output_index() -> None:
    """GitHub Copilot."""
    r = read(
        added(0, message_item("", id="a")),
        about("output_text.delta", "b", 0, content_index=0, delta="Hi"),
        about("output_text.done", "c", 0, content_index=0, text="Hi"),
        done(0, message_item("Hi", id="d")),
        added(1, call_item(id="e")),
        about("function_call_arguments.delta", "f", 1, delta='{"q":1}'),
        done(1, call_item('{"q":1}', id="g")),
        completed(message_item("Hi", id="h"), call_item('{"q":1}', id="i")),
    )
    assert (r.text, [call.arguments for call in r.calls]) == ("Hi", [{"q": 1}])


def test_items_that_all_have_index_0_are_distinguished_by_id() -> None:
    one, two = call_item('{"n":1}'), call_item('{"n":2}', n=2)
    r = read(
        added(0, message_item("")),
        about("output_text.delta", "msg_1", 0, content_index=0, delta="Hi"),
        added(0, {**one, "arguments": ""}),
        added(0, {**two, "arguments": ""}),
        about("function_call_arguments.delta", "fc_1", 0, delta='{"n":1}'),
        about("function_call_arguments.delta", "fc_2", 0, delta='{"n":2}'),
        done(0, one),
        done(0, two),
        done(0, message_item("Hi")),
        completed(message_item("Hi"), one, two),
    )
    assert (r.text, [call.arguments for call in r.calls]) == ("Hi", [{"n": 1}, {"n": 2}])


def test_one_call_id_for_two_calls_is_two_calls() -> None:
    r = read(completed(call_item('{"n":1}'), call_item('{"n":2}', id="fc_2")))
    assert [call.arguments for call in r.calls] == [{"n": 1}, {"n": 2}]
    assert len({call.id for call in r.calls}) == 2


@pytest.mark.parametrize("text", ["", '{"q":', '{"q":"a'])
def test_a_call_cut_off_by_the_token_limit_is_never_complete(text: str) -> None:
    item = call_item(text, status="incomplete")
    limit = {"incomplete_details": {"reason": "max_output_tokens"}}
    r = read(
        added(0, call_item()),
        about("function_call_arguments.done", "fc_1", 0, arguments=text),
        done(0, item),
        completed(item, status="incomplete", **limit),
    )
    assert [(call.complete, call.arguments) for call in r.calls] == [(False, None)]
    assert (r.verdict.kind, r.verdict.meaning, r.finish) == ("cut_call", "length", "incomplete")


def test_a_placeholder_in_the_first_event_of_an_incomplete_call_is_not_its_arguments() -> None:
    item = call_item("", status="incomplete")
    for end in ([done(0, item)], []):
        r = read(added(0, call_item("{}")), *end, completed(status="incomplete"))
        assert [call.complete for call in r.calls] == [False]


def test_an_empty_call_that_its_item_marks_incomplete_ignores_a_good_end() -> None:
    r = read(done(0, call_item("", status="incomplete")), completed())
    assert not r.calls[0].complete


def test_an_incomplete_custom_call_is_not_accepted_as_complete() -> None:
    item = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_1", "name": "run", "input": "print("}
    r = read(done(0, {**item, "status": "incomplete"}), completed(status="incomplete"))
    assert r.calls[0].problem
    assert r.calls[0].raw == "print("


def test_empty_arguments_are_an_empty_object_after_a_good_end() -> None:
    assert read(done(0, call_item("")), completed()).calls[0].arguments == {}


def test_a_custom_call_keeps_its_raw_input() -> None:
    item = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_1", "name": "run"}
    r = read(
        added(0, {**item, "input": ""}),
        about("custom_tool_call_input.delta", "ctc_1", 0, delta="print("),
        about("custom_tool_call_input.delta", "ctc_1", 0, delta="1)"),
        about("custom_tool_call_input.done", "ctc_1", 0, input="print(1)"),
        done(0, {**item, "input": "print(1)", "status": "completed"}),
        completed(),
    )
    assert [(call.kind, call.name, call.raw, call.problem) for call in r.calls] == [("custom", "run", "print(1)", "")]


@pytest.mark.parametrize(
    ("item", "arguments"),
    [
        ({"type": "apply_patch_call", "operation": {"type": "delete_file", "path": "a"}}, None),
        ({"type": "shell_call", "action": {"commands": ["ls"]}}, None),
        ({"type": "local_shell_call", "action": {"type": "exec", "command": ["ls"]}}, None),
        ({"type": "computer_call", "action": {"type": "screenshot"}}, None),
        ({"type": "computer_call", "actions": [{"type": "wait"}]}, {"actions": [{"type": "wait"}]}),
        ({"type": "tool_search_call", "execution": "client", "arguments": {"queries": ["x"]}}, None),
    ],
)
def test_a_built_in_client_call_has_its_object_as_arguments(item: Object, arguments: Object | None) -> None:
    item = {"id": "x_1", "call_id": "call_1", "status": "completed", **item}
    expected = arguments or item.get("action") or item.get("operation") or item["arguments"]
    r = read(added(0, item), done(0, item), completed(item))
    assert [(call.id, call.name, call.kind, call.arguments) for call in r.calls] == [
        ("call_1", item["type"], item["type"], expected)
    ]
    assert not r.server_calls


def test_integers_in_an_object_stay_exact() -> None:
    big = 123456789012345678901234567890
    item: Object = {"type": "shell_call", "call_id": "call_1", "action": {"commands": [], "timeout_ms": big}}
    for events in ([done(0, item), completed()], [completed(item)]):
        assert read(*events).calls[0].arguments == item["action"]


def test_provider_tools_are_reported_once_and_are_never_a_call() -> None:
    hosted = {"type": "container_reference", "container_id": "cntr_1"}
    items: list[Object] = [
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}},
        {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "s", "tools": []},
        {"type": "mcp_call", "id": "mcp_1", "name": "find", "arguments": '{"q":1}', "status": "completed"},
        {"type": "tool_search_call", "id": "ts_1", "call_id": None, "execution": "server", "arguments": {}},
        {"type": "tool_search_output", "id": "to_1", "call_id": None, "execution": "server", "tools": []},
        {"type": "shell_call", "id": "sh_1", "call_id": "c", "action": {"commands": ["ls"]}, "environment": hosted},
        {"type": "shell_call_output", "id": "so_1", "call_id": "c", "output": []},
        {"type": "custom_tool_call", "id": "ct_1", "call_id": "d", "name": "x_keyword_search", "input": "{}"},
    ]
    events = [event for n, item in enumerate(items) for event in (added(n, item), done(n, item))]
    r = read(*events, completed(*items))
    assert [(call.type, call.id) for call in r.server_calls] == [(item["type"], item["id"]) for item in items]
    assert (r.server_calls[2].name, r.server_calls[2].arguments) == ("find", {"q": 1})
    assert r.calls == ()


# Text, reasoning, ends


@pytest.mark.parametrize(
    "events",
    [
        [about("output_text.delta", "msg_1", 0, content_index=0, delta="Hello")],
        [about("output_text.done", "msg_1", 0, content_index=0, text="Hello")],
        [about("content_part.done", "msg_1", 0, content_index=0, part={"type": "output_text", "text": "Hello"})],
        [],
    ],
)
@pytest.mark.parametrize("end", [[done(0, message_item("Hello"))], []])
def test_text_is_yielded_once(events: list[Object], end: list[Object]) -> None:
    r = read(added(0, message_item("")), *events, *end, completed(message_item("Hello")))
    assert r.text == "Hello"


@pytest.mark.parametrize("place", [{}, {"content_index": 0}])
def test_unnumbered_parts_are_yielded_once(place: Object) -> None:
    content = [{"type": "output_text", "text": "One. "}, {"type": "output_text", "text": "Two."}]
    item = {**message_item(""), "content": content}
    r = read(
        added(0, message_item("")),
        about("output_text.delta", "msg_1", 0, **place, delta="One. "),
        about("output_text.delta", "msg_1", 0, **place, delta="Two."),
        about("output_text.done", "msg_1", 0, **place, text="Two."),
        done(0, item),
        completed(item),
    )
    assert r.text == "One. Two."


def test_text_without_deltas_is_yielded_at_the_end_of_its_item() -> None:
    r = read(
        about("output_text.delta", "msg_1", 0, content_index=0, delta="Hel"),
        done(0, message_item("Hello")),
        completed(),
    )
    assert r.text == "Hello"


def test_a_refusal_is_text() -> None:
    item = {**message_item(""), "content": [{"type": "refusal", "refusal": "No."}]}
    r = read(added(0, item), about("refusal.delta", "msg_1", 0, content_index=0, delta="No."), completed(item))
    assert r.text == "No."


def test_summary_parts_follow_each_other_without_a_separator() -> None:
    summary = [{"type": "summary_text", "text": "One."}, {"type": "summary_text", "text": "Two."}]
    item = {**REASONING, "summary": summary}
    streamed = [
        about("reasoning_summary_text.delta", "rs_1", 0, summary_index=0, delta="One."),
        about("reasoning_summary_text.delta", "rs_1", 0, summary_index=1, delta="Two."),
    ]
    for events in (streamed, [], streamed[:1]):
        r = read(added(0, REASONING), *events, done(0, item), completed(item, message_item("Hi")))
        assert r.reasoning == "One.Two."


def test_reasoning_text_in_the_form_of_vllm_is_not_text() -> None:
    content = {"type": "reasoning_text", "text": "Hm."}
    item: Object = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [content]}
    r = read(
        added(0, {**item, "content": None}),
        about("reasoning_text.delta", "rs_1", 0, content_index=0, delta="Hm."),
        about("content_part.done", "rs_1", 0, content_index=0, part=content),
        done(0, item),
        completed(message_item("Hi")),
    )
    assert (r.reasoning, r.text) == ("Hm.", "Hi")


def test_a_failed_response_and_an_error_event_are_errors() -> None:
    r = read(completed(status="failed", error={"code": "server_error", "message": "broke"}))
    assert (r.error["message"], r.finish, r.verdict.kind) == ("broke", "failed", "error")
    r = read({"type": "error", "code": "rate_limit", "message": "slow down", "param": None, "sequence_number": 1})
    assert (r.error["message"], r.verdict.kind) == ("slow down", "error")
    for body in ({"error": {"message": "bad"}}, {"detail": {"message": "bad"}}, {"object": "error", "message": "bad"}):
        assert decode(json.dumps(body).encode(), "openai-responses").error["message"] == "bad"


def test_a_content_filter_is_a_refusal_and_an_unknown_reason_a_cut() -> None:
    item = message_item("Hi")
    details = {"incomplete_details": {"reason": "content_filter"}}
    assert read(completed(item, status="incomplete", **details)).verdict.meaning == "refused"
    assert read(completed(item, status="incomplete")).verdict.meaning == "length"


def test_a_refusal_is_text_and_marks_the_response() -> None:
    part = {"type": "refusal", "refusal": "I cannot."}
    item = message_item("", content=[part])
    delta = {"type": "response.refusal.delta", "output_index": 0, "item_id": "msg_1", "delta": "I cannot."}
    done = {"type": "response.refusal.done", "output_index": 0, "item_id": "msg_1", "refusal": "I cannot."}
    for response in (read(completed(item)), read(added(0, item), delta, done, completed())):
        assert (response.text, response.finish, response.verdict.meaning) == ("I cannot.", "completed", "refused")
    beside = read(completed(item, call_item("{}")))
    assert (len(beside.calls), beside.verdict.meaning) == (1, "done")


def test_a_stream_without_its_last_event_is_unfinished_and_pings_are_ignored() -> None:
    events: list[Object] = [{"type": "ping"}, {"type": "response.created", "response": {}}, done(0, message_item("Hi"))]
    for end in (b"", b"data: [DONE]\n\n"):
        r = decode(sse(*events) + end, "openai-responses")
        assert (r.text, r.verdict.kind, r.complete) == ("Hi", "unfinished", False)


def test_usage_is_read_from_the_last_event() -> None:
    usage = {"input_tokens": 5, "output_tokens": 7, "input_tokens_details": {"cached_tokens": 2}}
    usage["output_tokens_details"] = {"reasoning_tokens": 3}
    r = read(completed(message_item("Hi"), usage=usage))
    assert r.usage == Usage(5, 7, 2, 0, 3, raw=usage)


@pytest.mark.parametrize("junk", [None, 1, "x", [], [[]], {}, {"type": 1}, True])
def test_wrong_types_raise_nothing(junk: Any) -> None:
    item = {"type": "function_call", "id": junk, "call_id": junk, "name": junk, "arguments": junk}
    message = {"type": "message", "id": junk, "content": junk}
    bodies = [
        sse(added(junk, item), done(junk, item), completed(item)),
        sse(added(0, junk), done(0, junk), completed(junk)),
        sse(done(0, message), completed(message, usage=junk, error=junk, incomplete_details=junk)),
        sse(about("output_text.delta", junk, junk, content_index=junk, delta=junk), completed(status="failed")),
        sse({"type": "response.completed", "response": junk}),
        json.dumps({"object": "response", "status": junk, "output": junk}).encode(),
    ]
    for body in bodies:
        Decoder("openai-responses").feed(body)
    assert WIRE.decode_request({"input": junk, "tools": junk, "reasoning": junk, "instructions": junk})
    assert WIRE.decode_request({"input": [junk, item, message, {"role": junk, "type": junk, "content": junk}]})


# Writing responses


@given(st.lists(texts.filter(bool), max_size=3), st.lists(texts.filter(bool), max_size=3), calls(), st.integers(1, 40))
def test_a_response_survives_its_own_encoding(
    reasoning: list[str], said: list[str], made: tuple[ToolCall, ...], size: int
) -> None:
    encoder = WIRE.encoder("m", "resp_1")
    usage = Usage(5, 7, 2, 1, 3)
    deltas: list[Delta] = [*map(ReasoningDelta, reasoning), *map(TextDelta, said), *map(CallReady, made)]
    stream = b"".join(map(encoder.feed, [*deltas, UsageReported(usage), Ended(Verdict("whole"))]))
    decoder = Decoder("openai-responses")
    for start in range(0, len(stream), size):
        decoder.feed(stream[start : start + size])
    for r in (decoder.response(), decode(encoder.body(), "openai-responses")):
        assert (r.text, r.reasoning, r.calls) == ("".join(said), "".join(reasoning), made)
        assert r.finish == "completed"
        assert r.usage is not None
        assert (r.usage.input_tokens, r.usage.cached_tokens) == (5, 2)


def test_encoded_events_are_numbered_and_end_according_to_the_verdict() -> None:
    ends = [
        (Verdict("whole", meaning="length"), "incomplete"),
        (Verdict("whole", meaning="refused"), "incomplete"),
        (Verdict("error", "broke"), "failed"),
        (Verdict("whole"), "completed"),
    ]
    for verdict, status in ends:
        encoder = WIRE.encoder("m", "resp_1")
        stream = encoder.feed(TextDelta("Hi")) + encoder.feed(Ended(verdict))
        events = [json.loads(line[6:]) for line in stream.decode().splitlines() if line.startswith("data: ")]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert events[-1]["type"] == f"response.{status}"
        assert events[-1]["response"]["output"][0]["content"][0]["text"] == "Hi"
        assert json.loads(encoder.body())["status"] == status


def test_a_tool_that_is_called_like_the_joined_name_of_a_namespace_and_its_tool_stays_itself() -> None:
    plain = {"type": "function", "name": "files__read", "parameters": {"type": "object"}}
    group = {"type": "namespace", "name": "files", "tools": [{**plain, "name": "read"}]}
    request = WIRE.decode_request({"model": "m", "input": "Hi", "tools": [plain, group]})
    item = {"type": "function_call", "arguments": "{}"}
    made = [{**item, "call_id": "a", "name": "files__read"}]
    made += [{**item, "call_id": "b", "name": "read", "namespace": "files"}]
    decoder = Decoder("openai-responses", None, request)
    decoder.feed(json.dumps({"object": "response", "status": "completed", "output": made}).encode())
    assert [(call.namespace, call.name) for call in decoder.response().calls] == [
        ("", "files__read"),
        ("files", "read"),
    ]
