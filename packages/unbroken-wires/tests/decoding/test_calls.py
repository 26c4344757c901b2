"""Which call a piece belongs to, when a call is complete, what its id is: what providers send, and worse."""

from __future__ import annotations

import json
from typing import Any

import pytest
from streams import calls_chunk, calls_of, chat, chunk, feed, piece, sse

from unbroken import Assistant, CallReady, Decoder, Ended, Request, Response, ToolCall, User, decode
from unbroken_wires.deltas import CallOpened, CallSpoiled, CallWithdrawn


def ready(body: bytes) -> list[tuple[int, str]]:
    """The calls that were reported ready, with the number of the event."""
    decoder = Decoder("openai-chat")
    found: list[tuple[int, str]] = []
    for number, event in enumerate(body.split(b"\n\n")):
        found += [(number, d.call.name) for d in decoder.feed(event + b"\n\n") if isinstance(d, CallReady)]
    return found + [(-1, d.call.name) for d in decoder.end() if isinstance(d, CallReady)]


# When a call is complete


def test_call_completes_at_its_closing_brace() -> None:
    body = chat(
        piece(0, "a", "f", ""), piece(0, arguments='{"x": {"y"'), piece(0, arguments=": 1}"), piece(0, arguments="}")
    )
    assert ready(body) == [(3, "f")]


def test_a_brace_inside_a_string_closes_nothing() -> None:
    body = chat(piece(0, "a", "f", '{"x": "}'), piece(0, arguments='\\"}'), piece(0, arguments='"}'))
    assert ready(body) == [(2, "f")]
    assert decode(body).calls[0].arguments == {"x": '}"}'}


def test_a_first_call_is_ready_while_the_second_is_still_written() -> None:
    body = chat(piece(0, "a", "f", "{}"), piece(1, "b", "g", '{"x"'), piece(1, arguments=": 1}"))
    assert ready(body) == [(0, "f"), (2, "g")]


@pytest.mark.parametrize("more", ["x", "}", '{"b": 2}', ', "b": 2}', "null"])
def test_a_parsable_prefix_followed_by_more_text_is_invalid(more: str) -> None:
    body = chat(piece(0, "a", "f", '{"a": 1}'), piece(0, arguments=more))
    deltas = feed(body, 10_000)
    assert [d.call.complete for d in deltas if isinstance(d, CallReady | CallSpoiled)] == [True, False]
    call = decode(body).calls[0]
    assert (call.arguments, call.complete) == (None, False)
    assert "after the arguments had closed" in call.problem


def test_white_space_after_the_close_is_harmless() -> None:
    response = decode(chat(piece(0, "a", "f", '{"a": 1}'), piece(0, arguments=" \n\t"), piece(0, arguments="")))
    assert calls_of(response) == [("a", "f", {"a": 1})]
    assert response.verdict.whole


def test_text_after_the_close_in_the_same_piece_is_invalid_too() -> None:
    assert not decode(chat(piece(0, "a", "f", '{"a": 1} and'))).calls[0].complete


def test_a_number_is_not_accepted_as_complete_arguments() -> None:
    call = decode(chat(piece(0, "a", "f", "12"))).calls[0]
    assert (call.complete, call.arguments) == (False, None)
    assert "not a JSON object but a number" in call.problem


def test_empty_arguments_mean_no_arguments_at_a_good_end() -> None:
    for arguments in ("", None):
        response = decode(chat(piece(0, "a", "f", arguments)))
        assert calls_of(response) == [("a", "f", {})]
        assert response.calls[0].raw == ""


@pytest.mark.parametrize(
    "body",
    [
        chat(piece(0, "a", "f", ""), finish="length"),
        chat(piece(0, "a", "f", ""), finish="content_filter"),
        chat(piece(0, "a", "f", ""), finish=None, done=False),
        sse(calls_chunk(piece(0, "a", "f", "")), {"error": {"message": "overloaded"}}, done=False),
    ],
)
def test_empty_arguments_mean_an_incomplete_call_at_a_bad_end(body: bytes) -> None:
    response = decode(body)
    assert response.calls[0].arguments is None
    assert not response.calls[0].complete
    assert not response.verdict.whole


@pytest.mark.parametrize("raw", ['{"a": "he', '{"a": 1', "{", '{"a": [1, 2', '{"a": "x"'])
@pytest.mark.parametrize("finish", ["tool_calls", "stop", "length", None])
def test_incomplete_arguments_are_never_complete(raw: str, finish: str | None) -> None:
    response = decode(chat(piece(0, "a", "f", raw), finish=finish, done=finish is not None))
    call = response.calls[0]
    assert (call.complete, call.arguments, call.raw) == (False, None, raw)
    assert response.verdict.kind == ("cut_call" if finish else "unfinished")
    assert response.verdict.open_calls == ("f",)


def test_a_call_that_closed_before_the_stream_broke_is_complete() -> None:
    response = decode(chat(piece(0, "a", "f", '{"a": 1}'), piece(1, "b", "g", '{"b"'), finish=None, done=False))
    assert [call.complete for call in response.calls] == [True, False]
    assert response.verdict.kind == "unfinished"


@pytest.mark.parametrize(
    "raw", ['{"a": NaN}', '{"a": Infinity}', '{"a": -Infinity}', "{'a': 1}", '{"a": 1,}', '{"a": 01}']
)
def test_invalid_json_is_refused(raw: str) -> None:
    call = decode(chat(piece(0, "a", "f", raw))).calls[0]
    assert (call.complete, call.arguments) == (False, None)


def test_nan_in_object_arguments_is_refused() -> None:
    body = sse(calls_chunk(piece(0, "a", "f", {"a": float("nan")})), chunk({}, "tool_calls"))
    assert not decode(body).calls[0].complete


def test_an_integer_of_thirty_digits_stays_exact() -> None:
    big = 123456789012345678901234567890
    as_text = chat(piece(0, "a", "f", json.dumps({"n": big})))
    as_object = chat(piece(0, "a", "f", {"n": big, "deep": [{"m": -big}]}))
    assert decode(as_text).calls[0].arguments == {"n": big}
    assert decode(as_object).calls[0].arguments == {"n": big, "deep": [{"m": -big}]}
    whole = json.dumps(
        {"choices": [{"message": {"tool_calls": [piece(0, "a", "f", {"n": big})]}, "finish_reason": "stop"}]}
    )
    assert decode(whole.encode(), stream=False).calls[0].arguments == {"n": big}


def test_double_encoded_arguments_are_parsed_again_and_noted() -> None:
    call = decode(chat(piece(0, "a", "f", json.dumps(json.dumps({"a": "é"}))))).calls[0]
    assert (call.arguments, call.complete, call.notes) == ({"a": "é"}, True, ("double-encoded",))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_double_encoded_arguments_that_are_complete_run_although_the_response_broke_off(size: int) -> None:
    def ended_early(arguments: str) -> Response:
        pieces = [piece(0, arguments=arguments[at : at + size]) for at in range(0, len(arguments), size)]
        return decode(chat(piece(0, "a", "f", ""), *pieces, finish="length"))

    once = json.dumps({"city": "Oslo", "note": 'a "quoted" word'})
    plain, double, cut = ended_early(once), ended_early(json.dumps(once)), ended_early(json.dumps(once)[:-1])
    assert plain.calls[0].arguments == double.calls[0].arguments == json.loads(once)
    assert (double.calls[0].complete, double.verdict.kind) == (True, plain.verdict.kind)
    assert not cut.calls[0].complete


def test_arguments_encoded_three_times_are_refused() -> None:
    assert not decode(chat(piece(0, "a", "f", json.dumps(json.dumps(json.dumps({})))))).calls[0].complete


def test_object_arguments_are_accepted() -> None:
    call = decode(chat(piece(0, "a", "f", {"a": [1, {"b": None}]}))).calls[0]
    assert call.arguments == json.loads(call.raw) == {"a": [1, {"b": None}]}


@pytest.mark.parametrize("arguments", [[1, 2], 5, True])
def test_arguments_of_another_type_are_refused(arguments: object) -> None:
    call = decode(chat(piece(0, "a", "f", arguments))).calls[0]
    assert not call.complete


def test_arguments_nested_deeper_than_the_limit_are_refused() -> None:
    deep = '{"a": ' * 513 + "1" + "}" * 513
    call = decode(chat(piece(0, "a", "f", deep))).calls[0]
    assert not call.complete
    fine = '{"a": ' * 512 + "1" + "}" * 512
    assert decode(chat(piece(0, "a", "f", fine))).calls[0].complete


# Which call a piece belongs to


def test_interleaved_arguments_of_two_calls_are_kept_apart() -> None:
    body = chat(
        piece(0, "a", "f", '{"x"'),
        piece(1, "b", "g", '{"y"'),
        piece(0, arguments=": 1"),
        piece(1, arguments=": 2}"),
        piece(0, arguments="}"),
    )
    assert calls_of(decode(body)) == [("a", "f", {"x": 1}), ("b", "g", {"y": 2})]


def test_interleaved_calls_are_distinguished_by_id_alone() -> None:
    body = chat(
        piece(None, "a", "f", '{"x"'),
        piece(None, "b", "g", '{"y"'),
        piece(None, "a", arguments=": 1}"),
        piece(None, "b", arguments=": 2}"),
    )
    assert calls_of(decode(body)) == [("a", "f", {"x": 1}), ("b", "g", {"y": 2})]


def test_one_index_with_several_ids_is_several_calls() -> None:
    body = chat(
        piece(0, "a", "f", '{"x": 1}'), piece(0, "b", "f", '{"x"'), piece(0, arguments=": 2}"), piece(0, "c", "g", "{}")
    )
    assert calls_of(decode(body)) == [("a", "f", {"x": 1}), ("b", "f", {"x": 2}), ("c", "g", {})]


def test_without_ids_a_name_after_a_closed_object_starts_a_new_call() -> None:
    body = chat(
        piece(0, name="f", arguments='{"x": 1}'),
        piece(0, name="f", arguments='{"x": 2}'),
        piece(0, name="g", arguments="{}"),
    )
    assert [(c.name, c.arguments) for c in decode(body).calls] == [("f", {"x": 1}), ("f", {"x": 2}), ("g", {})]


def test_neither_index_nor_id_is_needed() -> None:
    body = chat(piece(name="f", arguments='{"x"'), piece(arguments=": 1}"), piece(name="g", arguments="{}"))
    assert calls_of(decode(body)) == [("call_0_0", "f", {"x": 1}), ("call_0_1", "g", {})]


def test_two_calls_without_index_and_id_in_one_event() -> None:
    body = sse(calls_chunk(piece(name="f", arguments="{}"), piece(name="f", arguments="{}")), chunk({}, "tool_calls"))
    assert calls_of(decode(body)) == [("call_0_0", "f", {}), ("call_0_1", "f", {})]


def test_id_and_name_repeated_in_every_piece_count_once() -> None:
    body = chat(piece(0, "a", "f", '{"x"'), piece(0, "a", "f", ": 1"), piece(0, "a", "f", "}"), piece(0, "a", "f", ""))
    assert calls_of(decode(body)) == [("a", "f", {"x": 1})]


def test_empty_id_and_name_in_later_pieces_change_nothing() -> None:
    body = chat(piece(0, "a", "f", '{"x"'), piece(0, "", "", ": 1}"), piece(0, "", "", ""))
    assert calls_of(decode(body)) == [("a", "f", {"x": 1})]


def test_a_complete_call_repeated_with_the_finish_is_an_echo() -> None:
    body = chat(piece(0, "a", "f", '{"x"'), piece(0, arguments=": 1}"), piece(0, "a", "f", '{"x": 1}'))
    assert calls_of(decode(body)) == [("a", "f", {"x": 1})]


def test_one_id_for_several_indexes_means_several_calls_with_new_ids() -> None:
    body = chat(piece(0, "a", "f", '{"x": 1}'), piece(1, "a", "f", '{"x": 2}'), piece(2, "a", "g", "{}"))
    response = decode(body)
    assert calls_of(response) == [("a", "f", {"x": 1}), ("call_0_1", "f", {"x": 2}), ("call_0_2", "g", {})]
    assert "id a was used before" in response.calls[1].notes


def test_several_calls_with_one_id_in_every_piece_are_distinguished_by_index() -> None:
    body = chat(
        piece(0, "a", "f", '{"x"'),
        piece(1, "a", "g", '{"y"'),
        piece(0, "a", arguments=": 1}"),
        piece(1, "a", arguments=": 2}"),
    )
    assert [(c.name, c.arguments) for c in decode(body).calls] == [("f", {"x": 1}), ("g", {"y": 2})]


def test_one_id_for_different_calls_at_one_index_is_several_calls() -> None:
    body = chat(piece(0, "a", "f", '{"x": 1}'), piece(0, "a", "f", '{"x": 2}'))
    assert [c.arguments for c in decode(body).calls] == [{"x": 1}, {"x": 2}]


def test_an_index_as_a_string_is_a_number() -> None:
    body = chat(piece("1", "b", "g", '{"y"'), piece("0", "a", "f", "{}"), piece("1", arguments=": 2}"))
    assert calls_of(decode(body)) == [("a", "f", {}), ("b", "g", {"y": 2})]


def test_calls_are_in_the_order_of_their_own_indexes() -> None:
    body = chat(piece(2, "c", "h", "{}"), piece(1, "a", "f", "{}"))
    assert [call.id for call in decode(body).calls] == ["a", "c"]


def test_calls_are_in_the_order_of_arrival_if_indexes_are_not_their_own() -> None:
    body = chat(piece(1, "a", "f", "{}"), piece(0, "b", "f", "{}"), piece(0, "c", "f", "{}"))
    assert [call.id for call in decode(body).calls] == ["a", "b", "c"]
    assert len({call.index for call in decode(body).calls}) == 3


def test_a_name_in_pieces_is_joined() -> None:
    body = chat(piece(0, "a", "get_"), piece(0, name="weather"), piece(0, arguments='{"x": 1}'))
    assert calls_of(decode(body)) == [("a", "get_weather", {"x": 1})]


def test_offered_names_distinguish_two_names_from_a_name_in_pieces() -> None:
    body = chat(piece(0, name="get", arguments=""), piece(0, name="weather", arguments=""))
    assert [c.name for c in decode(body).calls] == ["getweather"]
    assert [c.name for c in decode(body, tools=["get", "weather"]).calls] == ["get", "weather"]


def test_a_late_id_is_kept() -> None:
    body = chat(piece(0, name="f", arguments='{"x"'), piece(0, "a"), piece(0, arguments=": 1}"))
    assert calls_of(decode(body)) == [("a", "f", {"x": 1})]


def test_a_call_without_a_name_never_runs() -> None:
    response = decode(chat(piece(0, "a", None, '{"x": 1}')))
    assert not response.calls[0].complete
    assert response.calls[0].problem == "the call has no name"


def test_only_the_first_choice_is_read() -> None:
    other = {"choices": [{"index": 1, "delta": {"content": "no", "tool_calls": [piece(0, "b", "g", "{}")]}}]}
    body = sse(chunk({"content": "y"}), other, chunk({"content": "es"}), other, chunk({}, "stop"))
    response = decode(body)
    assert (response.text, response.calls) == ("yes", ())


def test_calls_that_began_without_an_index_are_continued_by_their_position() -> None:
    begun = calls_chunk(piece(None, "a", "f", '{"x": '), piece(None, "b", "g", '{"y": '))
    by_index = calls_chunk(piece(1, arguments="2}"), piece(0, arguments="1}"))
    by_position = calls_chunk(piece(arguments="1}"), piece(arguments="2}"))
    for more in (by_index, by_position):
        assert calls_of(decode(sse(begun, more, chunk({}, "tool_calls")))) == [
            ("a", "f", {"x": 1}),
            ("b", "g", {"y": 2}),
        ]


def test_calls_in_a_second_choice_without_an_index_are_read() -> None:
    text = {"finish_reason": "tool_calls", "message": {"content": "I will read it."}}
    call = {"finish_reason": "tool_calls", "message": {"tool_calls": [piece(None, "a", "f", "{}")]}}
    response = decode(json.dumps({"choices": [text, call]}).encode())
    assert (response.text, calls_of(response)) == ("I will read it.", [("a", "f", {})])


def test_one_call_instead_of_a_list_is_accepted() -> None:
    body = {"choices": [{"message": {"tool_calls": piece(None, None, "f", "{}")}, "finish_reason": "tool_calls"}]}
    assert calls_of(decode(json.dumps(body).encode())) == [("call_0_0", "f", {})]


def test_a_name_after_a_nameless_object_is_not_appended_to_it() -> None:
    body = chat(piece(0, "a", None, '{"path": "/x"}'), piece(0, None, "delete", ""))
    assert [(c.name, c.complete) for c in decode(body).calls] == [("", False), ("delete", True)]
    assert decode(body).calls[1].arguments == {}


def test_a_name_repeated_without_an_index_continues_the_open_call() -> None:
    for pieces in (['{"x": 1}'], ['{"x"', ": 1}"]):
        body = chat(piece(None, "a", "f", ""), *(piece(None, None, "f", text) for text in pieces))
        assert calls_of(decode(body)) == [("a", "f", {"x": 1})]


def whole(*pieces: dict[str, Any]) -> bytes:
    return json.dumps({"choices": [{"message": {"tool_calls": pieces}, "finish_reason": "tool_calls"}]}).encode()


@pytest.mark.parametrize("arguments", ["{}", {}, ""])
def test_each_entry_of_a_complete_list_is_a_separate_call(arguments: Any) -> None:
    same_id = decode(whole(*[piece(None, "x", "roll", arguments)] * 3))
    assert [(c.id, c.name, c.arguments) for c in same_id.calls] == [
        ("x", "roll", {}),
        ("call_0_1", "roll", {}),
        ("call_0_2", "roll", {}),
    ]
    no_id = decode(whole(piece(0, None, "now", arguments), piece(0, None, "where", arguments)))
    assert calls_of(no_id) == [("call_0_0", "now", {}), ("call_0_1", "where", {})]
    assert len(decode(whole(piece(None, None, "g", '{"a": 1}'), piece(None, None, "g", arguments))).calls) == 2


def test_two_names_in_one_event_are_two_calls_even_at_one_index() -> None:
    body = sse(calls_chunk(piece(0, None, "now", ""), piece(0, None, "where", "")), chunk({}, "tool_calls"))
    assert [c.name for c in decode(body).calls] == ["now", "where"]


def test_an_empty_object_is_complete_and_the_next_name_is_another_call() -> None:
    body = chat(piece(0, None, "g", {}), piece(0, None, "g", {}), piece(0, None, "h", {}))
    assert [(c.name, c.arguments) for c in decode(body).calls] == [("g", {}), ("g", {}), ("h", {})]


def test_a_header_after_the_close_is_another_call_if_an_object_follows() -> None:
    body = chat(
        piece(0, None, "f", ""), piece(0, arguments='{"x": 1}'), piece(0, None, "f", ""), piece(0, arguments='{"x": 2}')
    )
    assert [c.arguments for c in decode(body).calls] == [{"x": 1}, {"x": 2}]
    assert [c.arguments for c in decode(chat(piece(0, None, "f", "{}"), piece(0, None, "f", ""))).calls] == [{}]


def test_an_id_that_changes_with_every_piece_is_one_call() -> None:
    body = chat(piece(0, "a", "f", ""), piece(0, "b", None, '{"x"'), piece(0, "c", None, ": 1}"))
    assert calls_of(decode(body)) == [("a", "f", {"x": 1})]


def test_more_text_after_the_close_is_invalid_even_if_the_name_is_repeated() -> None:
    assert not decode(chat(piece(0, "z", "f", '{"a": 1}'), piece(0, None, "f", ', "b": 2}'))).calls[0].complete


def test_exact_numbers_come_from_the_right_choice() -> None:
    def choice(index: int, n: int) -> dict[str, Any]:
        return {"index": index, "delta": {"tool_calls": [piece(0, f"id{index}", "f", {"n": n})]}}

    first = chunk({"role": "assistant", "content": ""})
    body = sse(first, {"choices": [choice(1, 10**25), choice(0, 2 * 10**25)]}, chunk({}, "tool_calls"))
    assert calls_of(decode(body)) == [("id0", "f", {"n": 2 * 10**25})]


def test_calls_whose_fields_are_one_level_too_high_are_read() -> None:
    body = sse(calls_chunk({"index": 0, "id": "a", "name": "f", "arguments": "{}"}), chunk({}, "tool_calls"))
    assert calls_of(decode(body)) == [("a", "f", {})]


def test_a_finish_reason_for_calls_without_any_call_is_broken() -> None:
    assert decode(sse(chunk({"content": "Let me look."}), chunk({}, "tool_calls"))).verdict.kind == "cut_call"


@pytest.mark.parametrize("reason", ["incomplete", "cancelled", "timeout", "something_new"])
def test_empty_arguments_need_a_known_good_end(reason: str) -> None:
    assert not decode(chat(piece(0, "a", "f", ""), finish=reason)).calls[0].complete
    assert decode(chat(piece(0, "a", "f", "{}"), finish=reason)).calls[0].complete


def test_several_pieces_of_one_call_in_one_event_are_one_call() -> None:
    body = sse(
        calls_chunk(piece(0, "a", "f", '{"p'), piece(0, "a", "f", 'ath": 1, "q')),
        calls_chunk(piece(0, "a", "f", '": 2}')),
        chunk({}, "tool_calls"),
    )
    assert calls_of(decode(body)) == [("a", "f", {"path": 1, "q": 2})]


def test_a_position_means_nothing_after_its_call_has_closed() -> None:
    more = calls_chunk(piece(arguments="x"), piece(arguments='": 1}'))
    body = sse(
        calls_chunk(piece(0, "a", "f", "{}")), calls_chunk(piece(1, "b", "g", '{"')), more, chunk({}, "tool_calls")
    )
    assert decode(body).calls[0].complete


@pytest.mark.parametrize(
    "echo",
    [
        [piece(0, "a", "f", {"x": 1}), piece(0, "a", "f", {"x": 1})],
        [piece(0, "a", "f", '{"x":1}'), piece(0, "a", "f", '{"x": 1}')],
        [piece(0, "a", "f", '{"x":1}\n'), piece(0, "a", "f", '{"x":1}')],
        [piece(0, "a", "f", '{"x":1}'), piece(0, "a", "f", ""), piece(0, "a", None, '{"x":1}')],
    ],
)
def test_an_echo_is_recognised_in_any_format(echo: list[dict[str, Any]]) -> None:
    assert calls_of(decode(chat(*echo))) == [("a", "f", {"x": 1})]


def test_calls_with_their_own_indexes_are_echoed_without_ids() -> None:
    pieces = [piece(n, None, "f", json.dumps({"x": n})) for n in (0, 1)]
    assert [c.arguments for c in decode(chat(*pieces, *pieces)).calls] == [{"x": 0}, {"x": 1}]


def test_one_id_for_a_call_with_and_a_call_without_arguments() -> None:
    response = decode(chat(piece(0, "s", "f", '{"x": 1}'), piece(0, "s", "g", "")))
    assert [(c.name, c.arguments) for c in response.calls] == [("f", {"x": 1}), ("g", {})]


def test_offered_names_under_one_id_are_not_joined() -> None:
    response = decode(chat(piece(0, "s", "f", ""), piece(0, "s", "g", '{"x": 1}')), tools=["f", "g"])
    assert [(c.name, c.arguments) for c in response.calls] == [("f", {}), ("g", {"x": 1})]


def test_calls_are_opened_in_the_order_in_which_they_begin() -> None:
    deltas = feed(chat(piece(0, "a", "f", ""), piece(1, "b", "g", '{"x": 1}')), 10_000)
    assert [d.name for d in deltas if isinstance(d, CallOpened)] == ["f", "g"]


def test_a_call_that_the_server_parsed_and_left_in_the_text_is_one_call() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
    own = piece(0, "a", "f", '{"x":1}')
    before = sse(chunk({"content": text}), calls_chunk(own), chunk({}, "tool_calls"))
    after = sse(calls_chunk(own), chunk({"content": text}), chunk({}, "tool_calls"))
    for body in (before, after):
        assert calls_of(decode(body, tools=["f"])) == [("a", "f", {"x": 1})]
    assert CallWithdrawn(0) in feed(before, 10_000, tools=["f"])


def test_names_in_pieces_may_be_interleaved() -> None:
    body = chat(
        piece(0, "a", "get_w"),
        piece(1, "b", "get_"),
        piece(0, None, "eather"),
        piece(1, None, "time"),
        piece(0, arguments='{"x": 1}'),
        piece(1, arguments='{"y": 1}'),
    )
    assert calls_of(decode(body)) == [("a", "get_weather", {"x": 1}), ("b", "get_time", {"y": 1})]


def test_two_calls_with_one_name_and_without_index_and_id_in_one_list_stay_apart() -> None:
    begun = calls_chunk(piece(None, None, "f", '{"x": "a'), piece(None, None, "f", "{"))
    more = calls_chunk(piece(arguments='b"}'), piece(arguments='"x": 3}'))
    response = decode(sse(begun, more, chunk({}, "tool_calls")))
    assert [c.arguments for c in response.calls] == [{"x": "ab"}, {"x": 3}]


@pytest.mark.parametrize(
    "event",
    [
        calls_chunk({"index": 0, "function": "bbb"}),
        chunk({"tool_calls": ["bbb"]}),
        {"choices": {"0": 1}},
        {"choices": ["x"]},
    ],
)
def test_a_malformed_piece_invalidates_the_open_call(event: Any) -> None:
    body = sse(
        calls_chunk(piece(0, "a", "f", '{"x": "a')), event, calls_chunk(piece(0, arguments='"}'), finish="tool_calls")
    )
    assert (decode(body).calls[0].complete, decode(body).verdict.kind) == (False, "damaged")


@pytest.mark.parametrize("own", [0, 1, 3])
@pytest.mark.parametrize("text_first", [True, False])
def test_the_same_call_three_times_in_the_text_is_three_calls(own: int, text_first: bool) -> None:
    text = chunk({"content": '<tool_call>{"name": "roll", "arguments": {}}</tool_call>' * 3})
    calls = [calls_chunk(piece(n, f"c{n}", "roll", "{}")) for n in range(own)]
    events = [text, *calls] if text_first else [*calls, text]
    response = decode(sse(*events, chunk({}, "stop")), tools=["roll"])
    assert [c.arguments for c in response.calls] == [{}] * 3
    assert {f"c{n}" for n in range(own)} <= {c.id for c in response.calls}


# Ids


def history(*ids: str) -> Request:
    calls = tuple(ToolCall(id, "f", {}) for id in ids)
    return Request((User.of("hi"), Assistant(calls=calls)))


def with_request(body: bytes, request: Request) -> Response:
    decoder = Decoder("openai-chat", request=request)
    decoder.feed(body)
    return decoder.response()


def test_a_missing_id_is_generated_from_the_position_in_the_history() -> None:
    body = chat(piece(0, None, "f", "{}"), piece(1, "", "g", "{}"))
    assert [c.id for c in decode(body).calls] == ["call_0_0", "call_0_1"]
    assert [c.id for c in with_request(body, history("x")).calls] == ["call_1_0", "call_1_1"]


def test_an_id_that_the_history_has_used_is_replaced() -> None:
    assert [c.id for c in with_request(chat(piece(0, "x", "f", "{}")), history("x")).calls] == ["call_1_0"]


def test_a_generated_id_that_is_taken_gets_a_letter() -> None:
    body = chat(piece(0, None, "f", "{}"))
    assert [c.id for c in with_request(body, history("call_1_0")).calls] == ["call_1_0a"]
    assert [c.id for c in with_request(body, history("call_1_0", "call_1_0a")).calls] == ["call_1_0b"]


def test_a_providers_id_is_kept_unchanged() -> None:
    odd = "functions.get_weather:0 ü/=" + "x" * 80
    assert decode(chat(piece(0, odd, "f", "{}"))).calls[0].id == odd


def test_the_same_bytes_yield_the_same_ids() -> None:
    body = chat(*(piece(0, None, "f", json.dumps({"n": n})) for n in range(40)))
    assert [c.id for c in decode(body).calls] == [c.id for c in decode(body).calls]
    assert len({c.id for c in decode(body).calls}) == 40


# The rest of a call's life


def test_delta_null_is_ignored() -> None:
    body = sse(
        chunk(None), chunk({"tool_calls": None}), calls_chunk(piece(0, "a", "f", "{}")), chunk(None, "tool_calls")
    )
    assert calls_of(decode(body)) == [("a", "f", {})]


def test_half_a_surrogate_pair_is_joined_with_its_other_half() -> None:
    body = sse(
        chunk({"content": "a \ud83d"}),
        chunk({"content": "\ude00 b"}),
        chunk({"reasoning_content": "\ud83d"}),
        chunk({"reasoning_content": "\ude80"}),
        calls_chunk(piece(0, "a", "f", '{"x": "\ud83d')),
        calls_chunk(piece(0, arguments='\ude00"}')),
        chunk({}, "tool_calls"),
    )
    response = decode(body)
    assert (response.text, response.reasoning) == ("a 😀 b", "🚀")
    assert response.calls[0].arguments == {"x": "😀"}


def test_half_a_surrogate_pair_without_its_other_half_becomes_the_replacement_character() -> None:
    body = sse(
        chunk({"content": "a\ud83d"}), chunk({"content": "b\ude00c"}), chunk({"content": "\ud83d"}), chunk({}, "stop")
    )
    assert decode(body).text == "a\ufffdb\ufffdc\ufffd"


def test_a_damaged_event_invalidates_only_the_open_calls() -> None:
    good = chat(piece(0, "a", "f", "{}"), piece(1, "b", "g", '{"x": 1, '), finish=None, done=False)
    body = good + b'data: {"choi\x00\n\n' + chat(piece(1, arguments='"y": 2}'), piece(2, "c", "h", "{}"))
    response = decode(body)
    assert [(call.id, call.complete) for call in response.calls] == [("a", True), ("b", False), ("c", True)]
    assert (response.complete, response.verdict.kind) == (False, "damaged")


def test_the_legacy_function_call_is_one_call() -> None:
    streamed = sse(
        chunk({"function_call": {"name": "f", "arguments": ""}}),
        chunk({"function_call": {"arguments": '{"x"'}}),
        chunk({"function_call": {"arguments": ": 1}"}}),
        chunk({}, "function_call"),
    )
    assert calls_of(decode(streamed)) == [("call_0_0", "f", {"x": 1})]
    whole = {
        "choices": [{"message": {"function_call": {"name": "f", "arguments": "{}"}}, "finish_reason": "function_call"}]
    }
    assert calls_of(decode(json.dumps(whole).encode(), stream=False)) == [("call_0_0", "f", {})]


def test_a_custom_tool_has_free_text_as_input() -> None:
    call = {"id": "a", "type": "custom", "custom": {"name": "math", "input": "4 + 4"}}
    response = decode(
        json.dumps({"choices": [{"message": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]}).encode()
    )
    assert response.calls == (ToolCall("a", "math", None, "4 + 4", 0, complete=False, kind="custom"),)
    assert response.verdict.whole


def test_every_stream_ends_with_one_verdict() -> None:
    decoder = Decoder("openai-chat")
    deltas = decoder.feed(chat(piece(0, "a", "f", "{}"))) + decoder.end() + decoder.end()
    assert [type(d) for d in deltas].count(Ended) == 1
    assert isinstance(deltas[-1], Ended)


NEVER_ENDED: list[tuple[str, list[dict[str, Any]]]] = [
    (
        "openai-responses",
        [
            {
                "type": "response.output_item.added",
                "output_index": 0,
                "item": {"type": "function_call", "id": "fc", "call_id": "a", "name": "f", "arguments": ""},
            },
            {"type": "response.completed", "response": {"status": "completed", "output": []}},
        ],
    ),
    (
        "anthropic-messages",
        [
            {"type": "message_start", "message": {"content": []}},
            {
                "type": "content_block_start",
                "index": 0,
                "content_block": {"type": "tool_use", "id": "a", "name": "f", "input": {}},
            },
            {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
            {"type": "message_stop"},
        ],
    ),
]


@pytest.mark.parametrize(("wire", "events"), NEVER_ENDED, ids=[wire for wire, _ in NEVER_ENDED])
def test_a_wire_with_its_own_end_of_a_call_waits_for_it(wire: str, events: list[dict[str, Any]]) -> None:
    response = decode(sse(*events, done=False), wire=wire)
    assert [(call.name, call.complete) for call in response.calls] == [("f", False)]
    assert response.verdict.kind == "cut_call"
