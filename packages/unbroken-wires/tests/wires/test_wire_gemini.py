"""The wire gemini: its streams in every framing, arguments in pieces, signatures that are sent back, round trips."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import costly
from streams import calls_of, feed, sse

from unbroken import CallReady, Decoder, Response, decode
from unbroken_wires.deltas import CallArguments, UsageReported
from unbroken_wires.messages import (
    Request,
    Usage,
    User,
)
from unbroken_wires.wires.gemini import WIRE
from unbroken_wires.wires.gemini.gemini_parts import PartialArguments, parse_path

SIZES = (1, 7, 64, 100_000)


def chunk(*parts: Any, finish: Any = None, **more: Any) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"parts": list(parts), "role": "model"}, "index": 0}
    if finish is not None:
        candidate["finishReason"] = finish
    return {"candidates": [candidate], "modelVersion": "gemini-x", **more}


def call(name: str, args: Any = None, **more: Any) -> dict[str, Any]:
    return {"functionCall": {"name": name, **({} if args is None else {"args": args})}, **more}


def partial(*values: dict[str, Any], goes_on: bool = True, **more: Any) -> dict[str, Any]:
    function: dict[str, Any] = {**more, **({"partialArgs": list(values)} if values else {})}
    return {"functionCall": {**function, "willContinue": True} if goes_on else function}


def string(path: str, text: str, goes_on: bool = False) -> dict[str, Any]:
    return {"jsonPath": path, "stringValue": text, **({"willContinue": True} if goes_on else {})}


def gemini(*events: Any, tools: Any = None) -> Response:
    return decode(sse(*events, done=False), "gemini", tools=tools)


def sent_back(response: Response) -> list[dict[str, Any]]:
    """The parts of the answer, as they are in the next request."""
    return WIRE.encode_request(Request((User.of("?"), response.message)))["contents"][1]["parts"]


# Responses


@pytest.mark.parametrize("size", SIZES)
def test_every_framing_gives_the_same_result(size: int) -> None:
    events = [
        chunk({"text": "Let me th", "thought": True}),
        chunk({"text": "ink.", "thought": True}, {"text": "Zürich"}),
        chunk({"text": " 😀"}, call("look", {"a": [1, {"b": None}]}), usageMetadata={"promptTokenCount": 3}),
        chunk(call("look"), finish="STOP", usageMetadata={"promptTokenCount": 3, "candidatesTokenCount": 4}),
    ]
    for body in (
        sse(*events, done=False),
        sse(*events, done=False).replace(b"\n", b"\r\n"),
        json.dumps(events, indent=2, ensure_ascii=False).encode(),
        b"\n".join(json.dumps(event).encode() for event in events),
    ):
        decoder = Decoder("gemini")
        for at in range(0, len(body), size):
            decoder.feed(body[at : at + size])
        r = decoder.response()
        assert r.verdict.whole
        assert (r.text, r.reasoning, r.finish) == ("Zürich 😀", "Let me think.", "STOP")
        assert calls_of(r) == [("call_0_0", "look", {"a": [1, {"b": None}]}), ("call_0_1", "look", {})]
        assert r.usage == Usage(3, 4, raw={"promptTokenCount": 3, "candidatesTokenCount": 4})


def test_a_non_streaming_body_is_one_chunk() -> None:
    body = json.dumps(chunk({"text": "Hi"}, call("f", {"x": 1}, thoughtSignature="c2ln"), finish="STOP"), indent=2)
    r = decode(body.encode(), "gemini", stream=False)
    assert (r.text, calls_of(r), r.verdict.whole) == ("Hi", [("call_0_0", "f", {"x": 1})], True)


def test_a_call_is_ready_as_soon_as_its_chunk_has_arrived() -> None:
    decoder = Decoder("gemini")
    deltas = decoder.feed(sse(chunk(call("f", {}), {"functionCall": {"name": "g", "id": "own"}}), done=False))
    assert [(d.call.id, d.call.name, d.call.arguments) for d in deltas if isinstance(d, CallReady)] == [
        ("call_0_0", "f", {}),
        ("own", "g", {}),
    ]


def test_only_the_first_candidate_is_read() -> None:
    second = {"content": {"parts": [call("g", {})]}, "index": 1, "finishReason": "MAX_TOKENS"}
    event = chunk({"text": "one"}, finish="STOP")
    event["candidates"].append(second)
    r = gemini(event)
    assert (r.text, r.calls, r.finish) == ("one", (), "STOP")


def test_numbers_are_exact() -> None:
    number = 123456789012345678901234567890
    body = sse(chunk(call("f", {"n": number}), finish="STOP"), done=False)
    assert decode(body, "gemini").calls[0].arguments == {"n": number}
    in_a_list = b"data: [" + body.removeprefix(b"data: ").strip() + b"]\n\n"
    assert decode(in_a_list, "gemini").calls[0].arguments == {"n": number}


@pytest.mark.parametrize("args", ['{"a": 1', [1], 5, "text", True])
def test_arguments_that_are_not_an_object_are_refused(args: Any) -> None:
    r = gemini(chunk(call("f", args), finish="STOP"))
    assert not r.calls[0].complete
    assert r.verdict.kind == "cut_call"


def test_arguments_as_a_string_are_read() -> None:
    assert gemini(chunk(call("f", '{"a": 1}'), finish="STOP")).calls[0].arguments == {"a": 1}


def test_a_call_without_a_name_never_runs() -> None:
    r = gemini(chunk({"functionCall": {"args": {"a": 1}}}, finish="STOP"))
    assert [call.complete for call in r.calls] == [False]


def test_provider_tools_are_reported_and_not_called() -> None:
    r = gemini(
        chunk({"executableCode": {"language": "PYTHON", "code": "1+1", "id": "x"}}),
        chunk({"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2"}}),
        chunk({"toolCall": {"toolType": "GOOGLE_SEARCH_WEB", "args": {"queries": ["a"]}, "id": "s1"}}),
        chunk({"toolResponse": {"toolType": "GOOGLE_SEARCH_WEB", "id": "s1"}}, {"text": "2"}, finish="STOP"),
    )
    assert r.calls == ()
    seen = [(c.type, c.id, c.arguments, c.status) for c in r.server_calls]
    assert seen == [
        ("executableCode", None, None, None),
        ("codeExecutionResult", None, None, "OUTCOME_OK"),
        ("toolCall", "s1", {"queries": ["a"]}, None),
    ]
    assert [next(iter(part)) for part in sent_back(r)] == [
        "executableCode",
        "codeExecutionResult",
        "toolCall",
        "toolResponse",
        "text",
    ]


@pytest.mark.parametrize(
    ("finish", "meaning"),
    [
        ("STOP", "done"),
        (1, "done"),
        ("MAX_TOKENS", "length"),
        (2, "length"),
        ("SAFETY", "refused"),
        ("SPII", "refused"),
    ],
)
def test_finish_reasons_keep_their_names_and_get_a_meaning(finish: Any, meaning: str) -> None:
    r = gemini(chunk({"text": "a"}, finish=finish), chunk(finish="OTHER"))
    assert (r.finish, r.verdict.meaning, r.complete) == (str(finish), meaning, True)


@pytest.mark.parametrize("finish", [None, "", 0, "FINISH_REASON_UNSPECIFIED", ["STOP"], {"a": 1}])
def test_without_a_finish_reason_the_response_is_unfinished(finish: Any) -> None:
    r = gemini(chunk({"text": "a"}, finish=finish))
    assert (r.finish, r.complete, r.verdict.kind) == (None, False, "unfinished")


def test_an_unreadable_answer_is_an_error() -> None:
    event = chunk(finish="MALFORMED_FUNCTION_CALL")
    event["candidates"][0]["finishMessage"] = "print(f())"
    r = gemini(event)
    assert r.error == {"status": "MALFORMED_FUNCTION_CALL", "message": "MALFORMED_FUNCTION_CALL: print(f())"}
    assert (r.finish, r.verdict.kind) == ("MALFORMED_FUNCTION_CALL", "error")


def test_a_blocked_prompt_is_a_refusal() -> None:
    r = gemini({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": {"promptTokenCount": 3}})
    assert (r.finish, r.verdict.meaning, r.complete) == ("PROHIBITED_CONTENT", "refused", True)


@pytest.mark.parametrize("candidates", [{}, {"candidates": []}])
def test_a_prompt_that_is_blocked_only_in_text_is_a_refusal(candidates: dict[str, Any]) -> None:
    r = gemini({**candidates, "promptFeedback": {"blockReasonMessage": "No."}})
    assert (r.finish, r.verdict.meaning, r.complete) == (None, "refused", True)
    answered = gemini(chunk({"text": "a"}, finish="STOP", promptFeedback={"blockReasonMessage": "No."}))
    assert (answered.finish, answered.verdict.meaning) == ("STOP", "done")


def in_snake_case(event: Any) -> Any:
    return json.loads(re.sub(r'(?<=[a-z])[A-Z](?=\w*": )', lambda hump: f"_{hump.group().lower()}", json.dumps(event)))


def in_an_envelope(event: Any) -> Any:
    return {"response": event, "traceId": "t"}


@pytest.mark.parametrize("spell", [in_snake_case, in_an_envelope])
def test_other_spellings_of_the_same_response_are_read(spell: Any) -> None:
    number = 123456789012345678901234567890
    usage = {"promptTokenCount": 3, "candidatesTokenCount": 4, "thoughtsTokenCount": 2, "cachedContentTokenCount": 1}
    events = [
        chunk({"text": "Hm", "thought": True}, {"text": "I look.", "thoughtSignature": "czE="}),
        chunk(
            {"executableCode": {"language": "PYTHON", "code": "1"}}, {"inlineData": {"mimeType": "a/b", "data": "eA=="}}
        ),
        chunk(call("f", {"n": number, "snake_key": 1}, thoughtSignature="czI=")),
        chunk(partial(string("$.a_b", "x", True), name="g")),
        chunk(partial(string("$.a_b", "y"), goes_on=False)),
        chunk(finish="STOP", usageMetadata=usage),
    ]
    usual, r = gemini(*events), gemini(*map(spell, events))
    assert r.verdict.whole
    assert (r.text, r.reasoning, r.finish) == ("I look.", "Hm", "STOP")
    assert calls_of(r) == calls_of(usual)
    assert r.calls[0].arguments == {"n": number, "snake_key": 1}
    assert r.message.native == usual.message.native
    assert [c.type for c in r.server_calls] == ["executableCode"]
    assert r.usage is not None
    assert r.usage == replace(Usage(3, 6, 1, 0, 2), raw=r.usage.raw)
    blocked = gemini(spell({"promptFeedback": {"blockReason": "SAFETY"}}))
    assert (blocked.finish, blocked.verdict.meaning) == ("SAFETY", "refused")
    failed = chunk(finish="MALFORMED_FUNCTION_CALL")
    failed["candidates"][0]["finishMessage"] = "f("
    assert gemini(spell(failed)).error == gemini(failed).error


@pytest.mark.parametrize("wrap", ["%s", "[%s]", "data: %s\n\n", "data: [%s]\n\n"])
def test_an_error_is_found_in_every_framing(wrap: str) -> None:
    error = {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}
    r = decode((wrap % json.dumps({"error": error})).encode(), "gemini")
    assert (r.error, r.verdict.kind) == (error, "error")


def test_usage_is_reported_when_it_changes_and_the_last_one_is_used() -> None:
    last = {
        "promptTokenCount": 10,
        "toolUsePromptTokenCount": 5,
        "candidatesTokenCount": 7,
        "thoughtsTokenCount": 3,
        "cachedContentTokenCount": 4,
    }
    events = [chunk({"text": "a"}, usageMetadata={"trafficType": "X"}) for _ in range(3)]
    body = sse(*events, chunk(finish="STOP", usageMetadata=last), chunk(finish="STOP", usageMetadata=last), done=False)
    told = [d.usage for d in feed(body, 64, "gemini") if isinstance(d, UsageReported)]
    assert told == [Usage(raw={"trafficType": "X"}), Usage(15, 10, 4, 0, 3, raw=last)]


# Arguments in pieces


STREAMED = [
    chunk({**partial(name="write"), "thoughtSignature": "c2lnbmF0dXJl"}),
    chunk(partial(string("$.files[0].path", "a", True), string("$.files[0].path", "/b"))),
    chunk(partial(string("$.files[0].text", 'He said "', True))),
    chunk(partial(string("$.files[0].text", 'hi"\n', True))),
    chunk(partial(string("$.files[0].text", ""))),
    chunk(partial({"jsonPath": "$.files[1]['odd \\'key\\'']", "numberValue": 1.5})),
    chunk(partial({"jsonPath": "$.files[1].deep[0][0]", "boolValue": False})),
    chunk(partial({"jsonPath": "$.files[1].deep[0][1]", "nullValue": "NULL_VALUE"})),
    chunk(partial({"jsonPath": '$["n"]', "numberValue": 12345678901234567890123}, goes_on=False)),
    chunk({"text": ""}, finish="STOP"),
]
WRITTEN: dict[str, Any] = {
    "files": [{"path": "a/b", "text": 'He said "hi"\n'}, {"odd 'key'": 1.5, "deep": [[False, None]]}],
    "n": 12345678901234567890123,
}


@pytest.mark.parametrize("size", SIZES)
def test_arguments_in_pieces_become_one_call(size: int) -> None:
    deltas = feed(sse(*STREAMED, done=False), size, "gemini")
    calls = [d.call for d in deltas if isinstance(d, CallReady)]
    assert [(c.name, c.arguments) for c in calls] == [("write", WRITTEN)]
    assert "".join(d.text for d in deltas if isinstance(d, CallArguments)) == calls[0].raw


def test_a_streamed_call_is_sent_back_as_one_part_with_its_signature() -> None:
    r = gemini(*STREAMED)
    assert r.verdict.whole
    assert sent_back(r) == [call("write", WRITTEN, thoughtSignature="c2lnbmF0dXJl")]


def test_a_streamed_call_may_end_with_an_empty_part() -> None:
    again = [chunk(partial(name="f")), chunk(partial(string("$.a", "x"))), chunk({"functionCall": {}})]
    r = gemini(*again, chunk(partial(name="f")), chunk({"functionCall": {}}), chunk(finish="STOP"))
    assert calls_of(r) == [("call_0_0", "f", {"a": "x"}), ("call_0_1", "f", {})]
    assert r.verdict.whole


@pytest.mark.parametrize("end", ["finish", "done", "nothing"])
def test_an_incomplete_streamed_call_is_never_complete(end: str) -> None:
    for count in range(1, len(STREAMED) - 1):
        events = STREAMED[:count] + ([chunk(finish="STOP")] if end == "finish" else [])
        r = decode(sse(*events, done=end == "done"), "gemini")
        assert [(c.name, c.complete) for c in r.calls] == [("write", False)]
        assert not r.verdict.whole
        assert sent_back(r) == [call("write", {}, thoughtSignature="c2lnbmF0dXJl")]


def test_the_known_part_of_an_incomplete_call_can_be_quoted() -> None:
    assert gemini(*STREAMED[:4]).calls[0].raw == '{"files":[{"path":"a/b","text":"He said \\"hi\\"\\n'


def test_surrogate_halves_in_two_pieces_are_joined() -> None:
    events = [chunk(partial(string("$.a", half, True), name="f")) for half in ("\ud83d", "\ude00")]
    r = gemini(*events, chunk(partial(string("$.a", ""), goes_on=False)), chunk(finish="STOP"))
    assert r.calls[0].arguments == {"a": "😀"}


def test_a_call_that_another_call_interrupts_is_never_complete() -> None:
    r = gemini(chunk(partial(string("$.a", "x"), name="f")), chunk(call("g", {})), chunk(finish="STOP"))
    assert [(c.name, c.complete) for c in r.calls] == [("f", False), ("g", True)]


def test_a_string_that_should_continue_is_not_complete_when_the_call_ends() -> None:
    r = gemini(chunk(partial(name="f")), chunk(partial(string("$.a", "x", True), goes_on=False)), chunk(finish="STOP"))
    assert [c.complete for c in r.calls] == [False]


@pytest.mark.parametrize(
    "values",
    [
        [string("$", "x")],
        [string("$..a", "x")],
        [string("$.a[*]", "x")],
        [string("$[0]", "x")],
        [string("$.a[1]", "x")],
        [string("$.a", "x"), string("$.a", "y")],
        [string("$.a", "x"), string("$.a.b", "y")],
        [string("$.a[0]", "x"), string("$.a.b", "y")],
        [{"jsonPath": "$.a"}],
        [{"jsonPath": "$.a", "stringValue": "x", "numberValue": 1}],
        [{"jsonPath": "$.a", "numberValue": "NaN"}],
        [{"jsonPath": "$.a", "numberValue": 1, "willContinue": True}],
        [string("$.a", "x", True), {"jsonPath": "$.a", "numberValue": 1}],
        [None],
        [string("$" + ".a" * 600, "x")],
    ],
)
def test_invalid_pieces_are_refused(values: list[Any]) -> None:
    r = gemini(chunk(partial(name="f")), chunk(partial(*values)), chunk(partial(goes_on=False)), chunk(finish="STOP"))
    assert [(c.name, c.complete) for c in r.calls] == [("f", False)]
    assert r.verdict.kind == "damaged"


def test_pieces_out_of_order_are_put_in_place() -> None:
    values = [string("$.a.x", "1"), string("$.b", "2"), string("$.a.y", "3")]
    r = gemini(chunk(partial(*values, name="f", goes_on=False)), chunk(finish="STOP"))
    assert r.calls[0].arguments == {"a": {"x": "1", "y": "3"}, "b": "2"}


def leaves(value: Any, path: str = "$") -> list[tuple[str, Any]]:
    items: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        for key, item in value.items():  # pyright: ignore[reportUnknownVariableType] - any JSON
            items += leaves(item, f"{path}[{json.dumps(key)}]")
    elif isinstance(value, list):
        for index, item in enumerate(value):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - any JSON
            items += leaves(item, f"{path}[{index}]")
    else:
        items.append((path, value))
    return items


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
full = st.recursive(
    scalars, lambda inner: st.lists(inner, min_size=1, max_size=3) | st.dictionaries(st.text(), inner, min_size=1)
)


@costly
@given(st.dictionaries(st.text(), full, max_size=4), st.integers(1, 5))
def test_any_object_can_be_rebuilt_from_its_leaves(value: dict[str, Any], size: int) -> None:
    collected = PartialArguments()
    text = "{"
    for path, leaf in leaves(value):
        if isinstance(leaf, str):
            for at in range(0, len(leaf), size):
                text += collected.feed(string(path, leaf[at : at + size], True))
            text += collected.feed(string(path, ""))
        else:
            kind = "boolValue" if isinstance(leaf, bool) else "nullValue" if leaf is None else "numberValue"
            text += collected.feed({"jsonPath": path, kind: leaf})
    closing = collected.end()
    assert closing is not None
    assert collected.value == value
    assert json.loads(text + closing) == value
    assert collected.text() is None


def test_paths_are_read_in_both_forms() -> None:
    assert parse_path("$.a-b.c[10]['d.e']") == ("a-b", "c", 10, "d.e")
    assert parse_path('$[\'it\\\'s "x"\']["\\u00e4"]') == ('it\'s "x"', "ä")
