"""Citations and server tools in an answer that crosses to a client of another wire: carried, or reported."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

import pytest
from gateway_client import Client, Reply, run, serving, settings_for
from gateway_upstreams import Told, events, telling

from unbroken.logs import JsonLines
from unbroken_wires.decoding import decode
from unbroken_wires.messages import Request, User
from unbroken_wires.wires import find_wire

Object = dict[str, Any]
DROPPED = "x-unbroken-dropped"
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
PAGE: Object = {"url": "https://example.org/oslo", "title": "Oslo"}
SEARCH: Object = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "Oslo"}}
FOUND: Object = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
CITATION: Object = {"type": "web_search_result_location", "cited_text": "Sun.", "encrypted_index": "e", **PAGE}
TEXTS = ("Today: ", "it is sunny.")
HEAD: Object = {"id": "msg_1", "type": "message", "role": "assistant", "model": "big-model"}
USAGE: Object = {"input_tokens": 3, "output_tokens": 5}
PLACE: Object = {**PAGE, "start_index": len(TEXTS[0]), "end_index": len("".join(TEXTS))}


def anthropic_answer(stream: bool, *more: Object) -> bytes:
    """A search, a plain text, and a text that cites what was found."""
    cited: Object = {"type": "text", "text": TEXTS[1], "citations": [CITATION]}
    blocks: list[Object] = [SEARCH, FOUND, {"type": "text", "text": TEXTS[0]}, cited, *more]
    if not stream:
        return json.dumps({**HEAD, "content": blocks, "stop_reason": "end_turn", "usage": USAGE}).encode()
    said: list[Object] = [{"type": "message_start", "message": {**HEAD, "content": [], "usage": USAGE}}]
    for index, block in enumerate(blocks):
        begun, deltas = block, list[Object]()
        if block["type"] == "text":
            begun = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": block["text"]}]
            deltas += [{"type": "citations_delta", "citation": one} for one in block.get("citations", ())]
        said.append({"type": "content_block_start", "index": index, "content_block": begun})
        said += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        said.append({"type": "content_block_stop", "index": index})
    said += [{"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": USAGE}, {"type": "message_stop"}]
    return events(*said, named=True)


def answered(wire: str, stream: bool, upstream_wire: str, told: bytes, more: Object | None = None) -> Reply:
    async def story() -> Reply:
        async with telling(Told(told)) as upstream, serving(settings_for(upstream.settings(upstream_wire))) as url:
            client = Client(url, wire, stream, parallel=None)
            reply = await client.post({**client.body([User.of("Oslo?")]), **(more or {})})
        assert reply.status == 200, reply.data
        return reply

    return run(story)


def events_in(reply: Reply) -> list[Object]:
    lines = [line[6:] for line in reply.data.splitlines() if line.startswith(b"data: {")]
    return [json.loads(line) for line in lines]


@STREAMED
def test_pages_that_claude_cites_are_annotations_for_a_chat_client(stream: bool) -> None:
    reply = answered("openai-chat", stream, "anthropic-messages", anthropic_answer(stream))
    expected = [{"type": "url_citation", "url_citation": PLACE}]
    if stream:
        deltas = [event["choices"][0]["delta"] for event in events_in(reply) if event["choices"]]
        assert [delta["annotations"] for delta in deltas if "annotations" in delta] == [expected]
        assert "".join(delta.get("content") or "" for delta in deltas) == "".join(TEXTS)
    else:
        assert reply.body["choices"][0]["message"]["annotations"] == expected
        assert reply.headers[DROPPED] == "answer.server_tool_use, answer.web_search_tool_result"


@STREAMED
def test_pages_that_claude_cites_are_annotations_for_a_responses_client(stream: bool) -> None:
    reply = answered("openai-responses", stream, "anthropic-messages", anthropic_answer(stream))
    expected = {"type": "url_citation", **PLACE}
    response = events_in(reply)[-1]["response"] if stream else reply.body
    assert response["output"][-1]["content"][0]["annotations"] == [expected]
    if stream:
        (added,) = [one for one in events_in(reply) if one["type"] == "response.output_text.annotation.added"]
        assert (added["annotation"], added["annotation_index"]) == (expected, 0)
        assert [one["sequence_number"] for one in events_in(reply)] == list(range(len(events_in(reply))))


def test_citations_of_documents_beside_those_of_pages_are_reported() -> None:
    document: Object = {"type": "char_location", "document_index": 0, "cited_text": "Fish."}
    block: Object = {"type": "text", "text": " Fish.", "citations": [document]}
    reply = answered("openai-chat", False, "anthropic-messages", anthropic_answer(False, block))
    assert len(reply.body["choices"][0]["message"]["annotations"]) == 1
    assert "answer.text.citations" in reply.headers[DROPPED].split(", ")


def test_annotations_of_a_responses_model_reach_a_chat_client() -> None:
    part: Object = {"type": "output_text", "text": "".join(TEXTS), "annotations": [{"type": "url_citation", **PLACE}]}
    message: Object = {"type": "message", "id": "msg_1", "role": "assistant", "content": [part]}
    search: Object = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    body: Object = {"id": "resp_1", "object": "response", "status": "completed", "output": [search, message]}
    reply = answered("openai-chat", False, "openai-responses", json.dumps(body).encode())
    assert reply.body["choices"][0]["message"]["annotations"] == [{"type": "url_citation", "url_citation": PLACE}]
    assert reply.headers[DROPPED] == "answer.web_search_call"


def test_pages_that_gemini_is_grounded_in_are_annotations_for_a_chat_client() -> None:
    before, cited = "Grüße: ", "it is sunny."
    start = len(before.encode())
    grounding: Object = {
        "groundingChunks": [{"web": {"uri": PAGE["url"], "title": PAGE["title"]}}],
        "groundingSupports": [
            {
                "segment": {"startIndex": start, "endIndex": start + len(cited), "text": cited},
                "groundingChunkIndices": [0, 7],
            }
        ],
    }
    content: Object = {"role": "model", "parts": [{"text": before + cited}]}
    candidate: Object = {"content": content, "finishReason": "STOP", "groundingMetadata": grounding}
    told = json.dumps({"candidates": [candidate]}).encode()
    reply = answered("openai-chat", False, "gemini", told)
    place = {**PAGE, "start_index": len(before), "end_index": len(before + cited)}
    assert reply.body["choices"][0]["message"]["annotations"] == [{"type": "url_citation", "url_citation": place}]
    assert DROPPED not in reply.headers
    elsewhere = answered("anthropic-messages", False, "gemini", told)
    assert elsewhere.headers[DROPPED] == "answer.parts.groundingMetadata"


def test_what_an_answer_was_grounded_in_is_not_sent_back_to_gemini() -> None:
    wire = find_wire("gemini")
    candidate: Object = {
        "content": {"role": "model", "parts": [{"text": "Sun."}]},
        "finishReason": "STOP",
        "groundingMetadata": {"webSearchQueries": ["Oslo"]},
    }
    message = decode(json.dumps({"candidates": [candidate]}).encode(), "gemini").message
    assert message.native is not None
    sent = wire.encode_request(Request((User.of("Oslo?"), message, User.of("And tomorrow?"))))
    assert sent["contents"][1] == {"role": "model", "parts": [{"text": "Sun."}]}


@STREAMED
def test_annotations_of_a_chat_model_reach_a_responses_client(stream: bool) -> None:
    annotation: Object = {"type": "url_citation", "url_citation": PLACE}
    said: Object = {"role": "assistant", "content": "".join(TEXTS), "annotations": [annotation]}
    head: Object = {"id": "c1", "created": 1, "model": "big-model"}
    if stream:
        chunks: list[Object] = [{"delta": said, "index": 0}, {"delta": {"annotations": [annotation]}, "index": 0}]
        chunks.append({"delta": {}, "index": 0, "finish_reason": "stop"})
        told = events(*({**head, "object": "chat.completion.chunk", "choices": [one]} for one in chunks), done=True)
    else:
        choice: Object = {"index": 0, "message": said, "finish_reason": "stop"}
        told = json.dumps({**head, "object": "chat.completion", "choices": [choice]}).encode()
    reply = answered("openai-responses", stream, "openai-chat", told)
    response = events_in(reply)[-1]["response"] if stream else reply.body
    assert response["output"][-1]["content"][0]["annotations"] == [{"type": "url_citation", **PLACE}]
    assert DROPPED not in reply.headers


@pytest.mark.parametrize("wire", ["gemini", "ollama", "cohere-v2", "bedrock-converse"])
def test_citations_are_reported_to_a_client_whose_wire_has_no_place_for_them(wire: str) -> None:
    reply = answered(wire, False, "anthropic-messages", anthropic_answer(False))
    lost = ["answer.server_tool_use", "answer.web_search_tool_result", "answer.text.citations"]
    assert reply.headers[DROPPED].split(", ") == lost


def test_citations_after_which_a_call_follows_are_reported_to_a_responses_client() -> None:
    call: Object = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Oslo"}}
    reply = answered("openai-responses", False, "anthropic-messages", anthropic_answer(False, call))
    assert "answer.text.citations" in reply.headers[DROPPED]


@STREAMED
def test_the_header_of_a_stream_has_what_the_request_lost_and_the_log_what_the_answer_lost(stream: bool) -> None:
    logged = io.StringIO()
    handler = logging.StreamHandler(logged)
    handler.setFormatter(JsonLines())
    log = logging.getLogger("unbroken.gateway")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        reply = answered("gemini", stream, "anthropic-messages", anthropic_answer(stream), {"xOdd": 1})
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
    of_answer = ["answer.server_tool_use", "answer.web_search_tool_result", "answer.text.citations"]
    assert reply.headers[DROPPED].split(", ") == (["xOdd"] if stream else ["xOdd", *of_answer])
    [line] = [each for each in map(json.loads, logged.getvalue().splitlines()) if "not passed on" in each["message"]]
    assert line["message"] == f"not passed on to a client of gemini: {', '.join(of_answer)}"
    assert line["request"] == reply.headers["x-unbroken-request-id"]


@STREAMED
def test_a_client_of_the_same_wire_gets_the_answer_as_it_is(stream: bool) -> None:
    told = anthropic_answer(stream)
    reply = answered("anthropic-messages", stream, "anthropic-messages", told)
    assert (reply.data, reply.headers.get(DROPPED)) == (told, None)


def test_the_plan_of_cohere_reaches_other_clients_as_reasoning_and_its_citations_are_reported() -> None:
    message: Object = {
        "role": "assistant",
        "tool_plan": "Look.",
        "content": [{"type": "text", "text": "Sun."}],
        "citations": [{"start": 0, "end": 4, "text": "Sun.", "sources": []}],
    }
    body: Object = {"id": "1", "message": message, "finish_reason": "COMPLETE"}
    reply = answered("openai-chat", False, "cohere-v2", json.dumps(body).encode())
    assert reply.body["choices"][0]["message"]["reasoning_content"] == "Look."
    assert reply.headers[DROPPED] == "answer.citations"
