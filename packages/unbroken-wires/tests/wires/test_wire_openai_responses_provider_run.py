"""openai-responses, who runs a call: what a provider runs itself, even if it looks like a client's call first.

Also the ends and counts that servers other than OpenAI's write in their own way.
"""

from __future__ import annotations

import pytest
from responses_events import REASONING, Object, about, added, call_item, completed, done, message_item, read, sse

from unbroken import CallReady, Decoder, decode
from unbroken_wires.deltas import CallArguments, CallOpened, CallWithdrawn

SEARCH: Object = call_item('{"queries":["q"]}', name="search_web")
FOUND: Object = {"type": "search_results", "queries": ["q"], "results": []}
FLAT: Object = {
    "type": "response.completed",
    "status": "completed",
    "usage": {"input_tokens": 4, "output_tokens": 97},
    "output": [FOUND, message_item("Found.")],
}


def test_a_call_that_ends_as_another_item_was_run_by_the_provider() -> None:
    """Perplexity."""
    body = sse(
        added(0, SEARCH),
        {"type": "response.reasoning.search_results", "results": []},
        done(0, FOUND),
        added(1, message_item("")),
        about("output_text.delta", "msg_1", 1, content_index=0, delta="Found."),
        done(1, message_item("Found.")),
        FLAT,
    )
    decoder = Decoder("openai-responses")
    deltas = decoder.feed(body) + decoder.end()
    r = decoder.response()
    assert not [delta for delta in deltas if isinstance(delta, CallOpened | CallReady)]
    assert (r.calls, [call.type for call in r.server_calls], r.text) == ((), ["search_results"], "Found.")
    assert (r.verdict.kind, r.finish) == ("whole", "completed")
    assert r.message.native is not None
    assert [item["type"] for item in r.message.native.value] == ["search_results", "message"]


@pytest.mark.parametrize("output", [[FOUND, message_item("Found.")], [message_item("Found.")], [FOUND]])
@pytest.mark.parametrize("status", ["completed", "incomplete"])
def test_a_complete_call_without_an_end_that_is_not_in_the_last_output_was_run_by_the_provider(
    output: list[Object], status: str
) -> None:
    assert read(added(0, SEARCH), completed(*output, status=status)).calls == ()


@pytest.mark.parametrize("arguments", ["", '{"q":1}'])
def test_a_last_output_that_only_omitted_the_call_does_not_lose_it(arguments: str) -> None:
    """The router of sglang: no end of the item, and an empty message instead of the output."""
    empty = {**message_item(""), "content": [{"type": "text", "text": ""}]}
    pieces = [
        about("function_call_arguments.delta", "fc_1", 0, delta='{"q":1}'),
        about("function_call_arguments.done", "fc_1", 0, arguments='{"q":1}'),
    ]
    for events in (pieces, pieces[1:], []) if arguments else (pieces, pieces[1:]):
        for output in ([empty], [REASONING], []):
            r = read(added(0, call_item(arguments)), *events, completed(*output))
            assert [call.arguments for call in r.calls] == [{"q": 1}]
    r = read(added(0, call_item(arguments)), *pieces, completed(message_item("I look.")))
    assert [call.arguments for call in r.calls] == [{"q": 1}]


def test_a_call_that_is_announced_complete_is_the_clients_once_a_piece_or_its_end_arrives() -> None:
    decoder = Decoder("openai-responses")
    assert decoder.feed(sse(added(0, call_item('{"q":1}')))) == []
    early = decoder.feed(sse(about("function_call_arguments.delta", "fc_1", 0, delta='{"q":')))
    assert early == [CallOpened(0, "look", "call_1"), CallArguments(0, '{"q":')]
    r = read(added(0, SEARCH), done(0, FOUND), added(1, call_item('{"q":1}', n=2)), done(1, call_item('{"q":1}', n=2)))
    assert [(call.id, call.complete) for call in r.calls] == [("call_2", True)]


def test_a_provider_item_at_the_same_position_does_not_cost_a_call_with_its_own_end() -> None:
    listed: Object = {"type": "mcp_list_tools", "id": "mcpl_1", "tools": []}
    for arguments in ("", '{"q":1}'):
        r = read(added(0, call_item(arguments)), done(0, listed), done(0, call_item('{"q":1}')), completed())
        assert [call.arguments for call in r.calls] == [{"q": 1}]
        assert [call.type for call in r.server_calls] == ["mcp_list_tools"]


def test_a_call_that_ends_as_another_item_after_its_pieces_is_never_ready() -> None:
    for pieces in ([], [about("function_call_arguments.delta", "fc_1", 0, delta='{"q":1}')]):
        body = sse(added(0, call_item()), *pieces, done(0, FOUND), completed(FOUND, message_item("Found.")))
        decoder = Decoder("openai-responses")
        deltas = decoder.feed(body) + decoder.end()
        assert not [delta for delta in deltas if isinstance(delta, CallReady)]
        assert [delta for delta in deltas if isinstance(delta, CallWithdrawn)] == [CallWithdrawn(0)]
        assert (decoder.response().calls, decoder.response().verdict.kind) == ((), "whole")


def test_one_item_id_for_two_calls_is_two_calls() -> None:
    first, second = ({**call_item("{}"), "call_id": call_id} for call_id in ("c1", "c2"))
    assert [call.id for call in read(done(0, first), done(1, second), completed()).calls] == ["c1", "c2"]


def test_damage_after_a_complete_announcement_leaves_the_call_incomplete() -> None:
    body = sse(added(0, call_item('{"q":1}'))) + b'data: {"type": "response.output_i\n\n' + sse(completed())
    assert [call.complete for call in decode(body, "openai-responses").calls] == [False]


def test_announced_arguments_may_be_an_object() -> None:
    big = 123456789012345678901234567890
    item = {**call_item(), "arguments": {"n": big}}
    assert [call.arguments for call in read(added(0, item), completed()).calls] == [{"n": big}]
    item = {**call_item(), "arguments": {"n": float("nan")}}
    assert [call.complete for call in read(added(0, item), completed()).calls] == [False]


@pytest.mark.parametrize(
    "type", ["program", "search_results", "fetch_url_results", "openrouter:web_search", "mcp_call"]
)
def test_every_item_that_is_neither_text_nor_a_client_call_is_a_server_call(type: str) -> None:
    item = {"type": type, "id": "x_1", "status": "completed"}
    r = read(added(0, item), done(0, item), completed(item, message_item("Hi")))
    assert [(call.type, call.id) for call in r.server_calls] == [(type, "x_1")]


def test_compacted_history_is_not_a_server_call() -> None:
    assert read(done(0, {"type": "compaction", "encrypted_content": "x"}), completed()).server_calls == ()


# Ends and counts


def test_a_last_event_without_a_response_is_read_itself() -> None:
    r = read(FLAT)
    assert (r.text, r.finish, r.verdict.kind) == ("Found.", "completed", "whole")
    assert r.usage is not None
    assert (r.usage.input_tokens, r.usage.output_tokens) == (4, 97)
    r = read({"type": "response.failed", "error": {"message": "broke"}})
    assert (r.error, r.finish) == ({"message": "broke"}, "failed")


def test_response_done_and_response_error_end_a_response_without_another_end() -> None:
    end: Object = {"type": "response.done", "response": {"output": [message_item("Hi")]}}
    assert (read(end).text, read(end).verdict.kind, read(end).finish) == ("Hi", "whole", "completed")
    cut: Object = {"type": "response.done", "response": {"status": "incomplete", "output": [message_item("Hi")]}}
    assert (read(cut).verdict.meaning, read(cut).finish) == ("length", "incomplete")
    for error in ({"error": {"message": "bad"}}, {"message": "bad"}, {"response": {"error": {"message": "bad"}}}):
        r = read({"type": "response.error", **error})
        assert (r.error["message"], r.verdict.kind) == ("bad", "error")


def test_response_done_and_response_error_after_the_end_are_ignored() -> None:
    first = completed(message_item("Hi"), usage={"input_tokens": 1})
    for late in ({"type": "response.done", "usage": {"input_tokens": 9}}, {"type": "response.error", "code": "x"}):
        r = read(first, late)
        assert (r.text, r.error, r.verdict.kind) == ("Hi", None, "whole")
        assert r.usage is not None
        assert r.usage.input_tokens == 1


def test_an_unknown_status_does_not_change_the_event() -> None:
    event: Object = {"type": "response.completed", "response": {"status": "requires_action", "output": []}}
    r = read(added(0, call_item('{"q":1}')), event)
    assert [call.arguments for call in r.calls] == [{"q": 1}]
    assert r.finish == "completed"


def test_usage_is_read_in_every_spelling() -> None:
    sglang = {
        "prompt_tokens": 5,
        "completion_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 2},
        "reasoning_tokens": 3,
    }
    details = {"cache_read_input_tokens": 2, "cache_creation_input_tokens": 1}
    perplexity = {"input_tokens": 5, "output_tokens": 7, "input_tokens_details": details}
    for raw, reasoning, written in ((sglang, 3, 0), (perplexity, 0, 1)):
        usage = read(completed(message_item("Hi"), usage=raw)).usage
        assert usage is not None
        assert (usage.input_tokens, usage.output_tokens, usage.cached_tokens) == (5, 7, 2)
        assert (usage.reasoning_tokens, usage.cache_write_tokens) == (reasoning, written)
        assert usage.raw == raw
