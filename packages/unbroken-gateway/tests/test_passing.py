"""Client and model with the same wire: both get each other's content unchanged, and only what no client could read is
rewritten."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

import pytest
from gateway_client import MODEL_IN_PATH, PAIRS, Client, result_of, run, serving, settings_for, stage, upstream_settings
from gateway_readers import Heard, read
from gateway_upstreams import FIELDS, Told, events, telling
from samples import frames
from test_own_message import IDS, OWN

from unbroken_testing import Call, Say, ScriptedServer, Step, Think, Uses
from unbroken_wires.messages import Assistant, ToolMessage, User
from unbroken_wires.wires import WIRES, find_wire
from unbroken_wires.wires.framing import EVENT_STREAM, JSON_LINES, SSE

Object = dict[str, Any]
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
WIRE = pytest.mark.parametrize("wire", WIRES)

BIG = 2**70 + 1

BODIES: dict[str, Object] = {
    "openai-chat": {
        "user": "u1",
        "model": "m",
        "x_unknown": {"big": BIG, "none": None, "list": [1.5, -0.0, 1e300], "text": "é\u2028\x7f"},
        "messages": [
            {"role": "developer", "content": "Be brief.", "name": "boss"},
            {"role": "user", "name": "ann", "content": [{"type": "text", "text": "Hello", "x_mark": True}]},
        ],
        "logprobs": True,
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"maximum": BIG}}},
        "modalities": ["text", "audio"],
        "audio": {"voice": "alloy", "format": "wav"},
        "metadata": {"k": "v"},
    },
    "openai-responses": {
        "x_unknown": {"big": BIG, "none": None},
        "model": "m",
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello", "x_mark": 1}]}
        ],
        "include": ["reasoning.encrypted_content", "web_search_call.action.sources"],
        "reasoning": {"effort": "low", "summary": "auto", "x_more": 1},
        "text": {"verbosity": "low"},
        "tools": [{"type": "web_search", "x_deep": {"n": BIG}}],
        "truncation": "auto",
        "prompt_cache_key": "k",
    },
    "anthropic-messages": {
        "max_tokens": 100,
        "x_unknown": {"big": BIG, "none": None},
        "model": "m",
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello", "citations": {"enabled": True}}]}],
        "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
        "tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": BIG}],
        "thinking": {"type": "adaptive"},
        "metadata": {"user_id": "u1"},
    },
    "gemini": {
        "x_unknown": {"big": BIG, "none": None},
        "contents": [{"role": "user", "parts": [{"text": "Hello", "x_mark": 1}]}],
        "generationConfig": {"thinkingConfig": {"thinkingBudget": 0, "x_more": BIG}, "responseModalities": ["TEXT"]},
        "safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
        "tools": [{"googleSearch": {}}],
        "cachedContent": "cachedContents/1",
    },
    "ollama": {
        "x_unknown": {"big": BIG, "none": None},
        "model": "m",
        "messages": [{"role": "user", "content": "Hello", "x_mark": 1}],
        "options": {"num_ctx": 9000, "x_more": BIG},
        "keep_alive": "5m",
        "think": True,
        "stream": False,
    },
    "cohere-v2": {
        "x_unknown": {"big": BIG, "none": None},
        "model": "m",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello", "x_mark": 1}]}],
        "documents": [{"id": "d1", "data": {"text": "a", "n": BIG}}],
        "citation_options": {"mode": "ACCURATE"},
        "safety_mode": "STRICT",
    },
    "bedrock-converse": {
        "x_unknown": {"big": BIG, "none": None},
        "messages": [{"role": "user", "content": [{"text": "Hello"}, {"cachePoint": {"type": "default"}}]}],
        "guardrailConfig": {"guardrailIdentifier": "g", "guardrailVersion": "1"},
        "additionalModelRequestFields": {"top_k": BIG},
        "requestMetadata": {"user": "u1"},
    },
}

_CHAT: Object = {"id": "chatcmpl-1", "created": 1, "model": "big-model-2", "x_head": {"n": BIG}}
_ANTHROPIC: Object = {"id": "msg_1", "type": "message", "role": "assistant", "model": "big-model-2"}
_SEARCH: Object = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}}
_FOUND: Object = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [{"x_opaque": "é=="}]}
_RESPONSE: Object = {"id": "resp_1", "object": "response", "created_at": 1, "model": "big-model-2", "x_head": BIG}
_SAID: Object = {
    "id": "msg_1",
    "type": "message",
    "status": "completed",
    "role": "assistant",
    "content": [
        {"type": "output_text", "text": "Hi", "annotations": [{"type": "url_citation", "url": "u"}], "logprobs": [{}]}
    ],
}
_OLLAMA: Object = {"model": "big-model-2", "created_at": "2026-01-01T00:00:00.123456Z"}
_OLLAMA_END: Object = {"done": True, "done_reason": "stop", "total_duration": BIG, "eval_count": 1}
_WEB: Object = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search"}}


def _gemini(parts: list[Object], **more: Any) -> Object:
    candidate = {"content": {"parts": parts, "role": "model"}, "index": 0, **more}
    return {"candidates": [candidate], "modelVersion": "big-model-2", "x_head": BIG}


def _lines(*said: Object) -> bytes:
    return b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in said)


def _ollama(message: Object, **more: Any) -> Object:
    return {**_OLLAMA, "message": {"role": "assistant", "content": "", **message}, **(more or {"done": False})}


def _cohere(kind: str, message: Object, **more: Any) -> Object:
    return {"type": kind, **more, "delta": {"message": message}}


_CITED: Object = {"start": 0, "end": 2, "text": "Hi", "sources": [{"type": "document", "id": "d1"}]}
_COHERE_USAGE: Object = {"billed_units": {"input_tokens": 1}, "tokens": {"input_tokens": 1, "output_tokens": 1}}
_COHERE_START = _cohere("message-start", {"role": "assistant", "content": [], "citations": []}, id="c1", x_head=BIG)


def _block(index: int, *deltas: Object, start: Object | None = None) -> list[Object]:
    at: Object = {"contentBlockIndex": index, "p": "abcdefgh"}
    begun: list[Object] = [{"contentBlockStart": {"start": start, **at}}] if start else []
    return [*begun, *({"contentBlockDelta": {"delta": delta, **at}} for delta in deltas), {"contentBlockStop": at}]


_CONVERSE_USAGE: Object = {"usage": {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2, "serverToolUsage": {}}}

WHOLE: dict[str, Object] = {
    "openai-chat": {
        **_CHAT,
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Hi",
                    "annotations": [{"type": "url_citation", "url_citation": {"url": "u"}}],
                    "audio": {"id": "audio_1", "data": "AAAA", "transcript": "Hi", "expires_at": 1},
                },
                "logprobs": {"content": [{"token": "Hi", "logprob": -0.1, "bytes": [72]}]},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2, "x_cost": 0.0001},
        "x_tail": None,
    },
    "openai-responses": {
        **_RESPONSE,
        "status": "completed",
        "output": [_WEB, _SAID],
        "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2, "x_cost": 1},
        "service_tier": "default",
    },
    "anthropic-messages": {
        **_ANTHROPIC,
        "content": [
            _SEARCH,
            _FOUND,
            {"type": "text", "text": "Hi", "citations": [{"type": "web_search_result_location", "url": "u"}]},
        ],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1, "server_tool_use": {"web_search_requests": 1}},
        "container": {"id": "c"},
    },
    "gemini": {
        **_gemini(
            [{"text": "Hi"}], finishReason="STOP", groundingMetadata={"webSearchQueries": ["q"]}, avgLogprobs=-0.1
        ),
        "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 1, "x_modality": "TEXT"},
    },
    "ollama": {**_ollama({"content": "Hi", "x_more": None}), **_OLLAMA_END},
    "cohere-v2": {
        "id": "c1",
        "message": {"role": "assistant", "content": [{"type": "text", "text": "Hi"}], "citations": [_CITED]},
        "finish_reason": "COMPLETE",
        "usage": _COHERE_USAGE,
        "logprobs": [{"text": "Hi", "token_ids": [BIG]}],
    },
    "bedrock-converse": {
        "metrics": {"latencyMs": 3},
        "output": {"message": {"role": "assistant", "content": [{"text": "Hi"}]}},
        "stopReason": "end_turn",
        "trace": {"guardrail": {"x_more": BIG}},
        **_CONVERSE_USAGE,
    },
}


def _chunk(delta: Object, **more: Any) -> Object:
    choice = {"index": 0, "delta": delta, "finish_reason": None, "logprobs": {"content": [{"token": "H"}]}, **more}
    return {**_CHAT, "object": "chat.completion.chunk", "choices": [choice], "obfuscation": "x7"}


STREAMS: dict[str, bytes] = {
    "openai-chat": events(
        _chunk({"role": "assistant", "content": "", "refusal": None}),
        _chunk({"content": "H", "annotations": [{"type": "url_citation"}]}),
        _chunk({"content": "i", "audio": {"id": "audio_1", "data": "AAAA"}}),
        _chunk({}, finish_reason="stop"),
        {**_CHAT, "object": "chat.completion.chunk", "choices": [], "usage": {"prompt_tokens": 1, "x_cost": 0.01}},
        done=True,
    ),
    "openai-responses": events(
        {"type": "response.created", "response": {**_RESPONSE, "status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**_WEB, "status": "in_progress"}},
        {"type": "response.web_search_call.searching", "output_index": 0, "item_id": "ws_1", "x_more": BIG},
        {"type": "response.output_item.done", "output_index": 0, "item": _WEB},
        {"type": "response.output_item.added", "output_index": 1, "item": {**_SAID, "content": []}},
        {
            "type": "response.output_text.delta",
            "output_index": 1,
            "item_id": "msg_1",
            "content_index": 0,
            "delta": "Hi",
        },
        {
            "type": "response.output_text.annotation.added",
            "output_index": 1,
            "content_index": 0,
            "annotation": {"x": 1},
        },
        {"type": "response.output_item.done", "output_index": 1, "item": _SAID},
        {"type": "response.completed", "response": WHOLE["openai-responses"]},
        named=True,
    ),
    "anthropic-messages": events(
        {"type": "message_start", "message": {**_ANTHROPIC, "content": [], "usage": {"input_tokens": 1}}},
        {"type": "ping"},
        {"type": "content_block_start", "index": 0, "content_block": {**_SEARCH, "input": {}}},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "input_json_delta", "partial_json": '{"query":"q"}'},
        },
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": _FOUND},
        {"type": "content_block_stop", "index": 1},
        {"type": "content_block_start", "index": 2, "content_block": {"type": "text", "text": "", "citations": []}},
        {"type": "content_block_delta", "index": 2, "delta": {"type": "citations_delta", "citation": {"url": "u"}}},
        {"type": "content_block_delta", "index": 2, "delta": {"type": "text_delta", "text": "Hi"}},
        {"type": "content_block_stop", "index": 2},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "x_why": 1}, "usage": {"output_tokens": 1}},
        {"type": "message_stop", "x_metrics": {"latency": 1}},
        named=True,
    ),
    "gemini": events(
        _gemini([{"text": "H", "thoughtSignature": "sig=="}], safetyRatings=[{"category": "c"}]),
        _gemini([{"text": "i"}]),
        _gemini([], finishReason="STOP", groundingMetadata={"webSearchQueries": ["q"]}),
    ),
    "ollama": _lines(_ollama({"content": "H"}), _ollama({"content": "i", "x_more": BIG}), _ollama({}, **_OLLAMA_END)),
    "cohere-v2": events(
        _COHERE_START,
        _cohere("content-start", {"content": {"type": "text", "text": ""}}, index=0),
        _cohere("content-delta", {"content": {"text": "H"}}, index=0, logprobs={"text": "H"}),
        _cohere("content-delta", {"content": {"text": "i"}}, index=0),
        _cohere("citation-start", {"citations": _CITED}, index=0),
        {"type": "citation-end", "index": 0},
        {"type": "content-end", "index": 0},
        {"type": "message-end", "delta": {"finish_reason": "COMPLETE", "usage": _COHERE_USAGE}},
        named=True,
    ),
    "bedrock-converse": frames(
        {"messageStart": {"role": "assistant", "p": "abc"}},
        *_block(0, {"text": "H"}, {"text": "i"}, {"citation": {"title": "a"}}),
        {"messageStop": {"stopReason": "end_turn", "additionalModelResponseFields": {"x": 1}}},
        {"metadata": {**_CONVERSE_USAGE, "metrics": {"latencyMs": 3}, "p": "abcdefghijk"}},
    ),
}


def in_order(data: bytes) -> Any:
    return json.loads(data, object_pairs_hook=list)


@STREAMED
@WIRE
def test_the_body_of_a_client_is_forwarded_unchanged_except_for_the_model(wire: str, stream: bool) -> None:
    async def story() -> None:
        answer = Told(STREAMS[wire] if stream else json.dumps(WHOLE[wire]).encode())
        async with telling(answer) as upstream, serving(settings_for(upstream.settings(wire))) as url:
            headers = {
                "anthropic-beta": "context-management-2025-06-27,x-1",
                "anthropic-version": "2023-06-01",
                "openai-beta": "responses=v1",
                "Authorization": "Bearer client-secret",
                "x-api-key": "client-secret",
                "x-goog-api-key": "client-secret",
            }
            client = Client(url, wire, stream, headers=headers)
            body = BODIES[wire] if wire in MODEL_IN_PATH or not stream else {**BODIES[wire], "stream": True}
            reply = await client.post(json.dumps(body, ensure_ascii=False).encode())
            assert reply.status == 200, reply.data
            asked = upstream.asked[0]
            expected = {**body, "model": "big-model"} if "model" in body else body
            assert in_order(asked.data) == in_order(json.dumps(expected).encode())
            assert {name: asked.headers.get(name) for name in list(headers)[:3]} == dict(list(headers.items())[:3])
            assert "client-secret" not in str(asked.headers)
            assert asked.headers["content-type"] == "application/json"

    run(story)


@STREAMED
@WIRE
def test_the_models_answer_arrives_byte_for_byte(wire: str, stream: bool) -> None:
    data = STREAMS[wire] if stream else json.dumps(WHOLE[wire], indent=1, ensure_ascii=False).encode()

    async def story() -> None:
        async with telling(Told(data)) as upstream, serving(settings_for(upstream.settings(wire))) as url:
            for size in (len(data), 64, 7):
                upstream.answers = [Told([data[at : at + size] for at in range(0, len(data), size)])]
                client = Client(url, wire, stream, parallel=None)
                reply = await client.ask(User.of("Hello."))
                assert reply.data == data, size
                assert client.messages[-1] == Assistant("Hi")
                kind = find_wire(wire).framing.content_type if stream else "application/json"
                assert reply.headers["Content-Type"].startswith(kind)

    run(story)


@pytest.mark.parametrize("wire", [name for name, wire in WIRES.items() if wire.framing is SSE])
def test_events_in_unusual_frames_arrive_unchanged(wire: str) -> None:
    odd = b": keep-alive\r\n\r\n" + STREAMS[wire].replace(b"\n", b"\r\n").replace(b"data: ", b"data:")

    async def story() -> None:
        async with telling(Told(odd)) as upstream, serving(settings_for(upstream.settings(wire))) as url:
            client = Client(url, wire, stream=True, parallel=None)
            reply = await client.ask(User.of("Hello."))
            assert reply.data == odd
            assert client.messages[-1] == Assistant("Hi")

    run(story)


CALL = {"name": "get_weather", "arguments": '{"city": "Oslo"}'}


def _chat_call(*deltas: Object, finish: str = "tool_calls") -> bytes:
    head = {"id": "chatcmpl-1", "created": 1, "model": "big-model", "object": "chat.completion.chunk"}
    said = [{"role": "assistant", "content": "I look. "}, *deltas]
    chunks = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in said]
    return events(*chunks, {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}, done=True)


def _piece(index: int | None, **fields: Any) -> Object:
    function = {key: fields.pop(key) for key in ("name", "arguments") if key in fields}
    piece = {**fields, **({"function": function} if function else {})}
    return {"tool_calls": [piece if index is None else {"index": index, **piece}]}


TIDY_CALLS: dict[str, bytes] = {
    "openai-chat": _chat_call(
        _piece(0, id="call_Zq8wLk3vTb", type="function", name="get_weather", arguments="", x_more={"sig": "a=="}),
        _piece(0, arguments='{"city": '),
        _piece(0, arguments='"Oslo"}'),
        _piece(1, id="call_Zq8wLk3vTc", type="function", **CALL),
    ),
    "anthropic-messages": events(
        {"type": "message_start", "message": {**_ANTHROPIC, "content": [], "usage": {"input_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "Hm."}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "sig=="}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "content_block_start",
            "index": 1,
            "content_block": {"type": "tool_use", "id": "toolu_Zq8wLk3vTb", "name": "get_weather", "input": {}, "x": 1},
        },
        {
            "type": "content_block_delta",
            "index": 1,
            "delta": {"type": "input_json_delta", "partial_json": '{"city": "Oslo"}'},
        },
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
        named=True,
    ),
    "openai-responses": events(
        {"type": "response.created", "response": {**_RESPONSE, "status": "in_progress", "output": []}},
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {"id": "fc_1", "type": "function_call", "call_id": "call_Zq8wLk3vTb", **CALL, "arguments": ""},
        },
        {
            "type": "response.function_call_arguments.delta",
            "output_index": 0,
            "item_id": "fc_1",
            "delta": CALL["arguments"],
        },
        {
            "type": "response.function_call_arguments.done",
            "output_index": 0,
            "item_id": "fc_1",
            "arguments": CALL["arguments"],
        },
        {
            "type": "response.output_item.done",
            "output_index": 0,
            "item": {"id": "fc_1", "type": "function_call", "call_id": "call_Zq8wLk3vTb", **CALL, "x_more": 1},
        },
        {
            "type": "response.completed",
            "response": {
                **_RESPONSE,
                "status": "completed",
                "output": [{"id": "fc_1", "type": "function_call", "call_id": "call_Zq8wLk3vTb", **CALL, "x_more": 1}],
            },
        },
        named=True,
    ),
    "gemini": events(
        _gemini([{"text": "Hm.", "thought": True, "thoughtSignature": "a=="}]),
        _gemini([{"functionCall": {"name": "get_weather", "args": {"city": "Oslo"}}, "thoughtSignature": "b=="}]),
        _gemini([{"functionCall": {"name": "get_weather", "args": {"city": "Lima"}}}], finishReason="STOP"),
    ),
    "ollama": _lines(
        _ollama({"thinking": "Hm."}),
        _ollama({"tool_calls": [{"id": "call_a", "function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}]}),
        _ollama({}, **_OLLAMA_END),
    ),
    "cohere-v2": events(
        _COHERE_START,
        _cohere("tool-plan-delta", {"tool_plan": "I look."}),
        _cohere(
            "tool-call-start",
            {"tool_calls": {"id": "w_1", "type": "function", "function": {"name": "get_weather", "arguments": ""}}},
            index=0,
        ),
        _cohere("tool-call-delta", {"tool_calls": {"function": {"arguments": CALL["arguments"]}}}, index=0),
        {"type": "tool-call-end", "index": 0},
        {"type": "message-end", "delta": {"finish_reason": "TOOL_CALL", "usage": _COHERE_USAGE}},
        named=True,
    ),
    "bedrock-converse": frames(
        {"messageStart": {"role": "assistant"}},
        *_block(0, {"reasoningContent": {"text": "Hm."}}, {"reasoningContent": {"signature": "sig=="}}),
        *_block(
            1,
            {"toolUse": {"input": ""}},
            {"toolUse": {"input": CALL["arguments"]}},
            start={"toolUse": {"toolUseId": "tooluse_1", "name": "get_weather", "type": "tool_use"}},
        ),
        {"messageStop": {"stopReason": "tool_use"}},
        {"metadata": _CONVERSE_USAGE},
    ),
}


@WIRE
def test_well_formed_calls_arrive_byte_for_byte(wire: str) -> None:
    data = TIDY_CALLS[wire]

    async def story() -> None:
        async with telling(Told(data)) as upstream, serving(settings_for(upstream.settings(wire))) as url:
            for size in (len(data), 50):
                upstream.answers = [Told([data[at : at + size] for at in range(0, len(data), size)])]
                reply = await Client(url, wire, stream=True, parallel=None).ask(User.of("Oslo?"))
                assert reply.data == data, size
                assert reply.calls[0] == ("get_weather", {"city": "Oslo"})

    run(story)


def _without_id(value: Any) -> Any:
    """The fields of a call, not of what contains it."""
    if isinstance(value, list):
        return [*map(_without_id, cast("list[Any]", value))]
    if not isinstance(value, dict):
        return value
    fields = cast("Object", value)
    called = fields.get("type") in ("function_call", "tool_use") or "function" in fields
    dropped = ("id", "call_id", "toolUseId") if called else ()
    return {name: _without_id(each) for name, each in fields.items() if name not in dropped}


def _changed(data: bytes, change: Callable[[Any], Any]) -> bytes:
    if data[:1] in (b"{", b"\x00"):
        framing = JSON_LINES if data[:1] == b"{" else EVENT_STREAM
        texts = [json.dumps(change(json.loads(text)), separators=(",", ":")) for text in framing.texts(data)]
        return b"".join(framing.write(text.encode()) for text in texts)
    lines = [
        b"data: " + json.dumps(change(json.loads(line[6:]))).encode() if line.startswith(b"data: {") else line
        for line in data.split(b"\n")
    ]
    return b"\n".join(lines)


def _nameless_at_first(event: Any) -> Any:
    if event.get("type") == "response.output_item.added":
        event["item"].pop("name", None)
    return event


def _complete_at_first(event: Any) -> Any:
    if event.get("type") == "response.output_item.added":
        event["item"]["arguments"] = CALL["arguments"]
    return event


@pytest.mark.parametrize(
    ("wire", "data"),
    [
        *((wire, _changed(data, _without_id)) for wire, data in TIDY_CALLS.items()),
        ("openai-responses", _changed(TIDY_CALLS["openai-responses"], _nameless_at_first)),
        ("openai-responses", _changed(TIDY_CALLS["openai-responses"], _complete_at_first)),
    ],
)
def test_a_call_that_is_released_alone_is_sent_once_in_any_event_format(wire: str, data: bytes) -> None:
    async def story() -> None:
        async with telling(Told(data)) as upstream, serving(settings_for(upstream.settings(wire, serial=True))) as url:
            for size in (len(data), 50):
                upstream.answers = [Told([data[at : at + size] for at in range(0, len(data), size)])]
                reply = await Client(url, wire, stream=True, parallel=False).ask(User.of("Oslo?"))
                assert reply.calls == [("get_weather", {"city": "Oslo"})]
                if wire == "openai-responses":  # its response repeats the tools; the call begins, ends, and is in it
                    assert reply.data.count(b'"call_id"') <= 3
                else:
                    assert reply.data.count(b"get_weather") == 1

    run(story)


def test_complete_calls_of_gemini_arrive_byte_for_byte() -> None:
    parts = [
        {"text": "Hm.", "thought": True},
        {"functionCall": {"name": "get_weather", "args": {"city": "Oslo"}}, "thoughtSignature": "b=="},
    ]
    data = json.dumps(_gemini(parts, finishReason="STOP")).encode()

    async def story() -> None:
        async with telling(Told(data)) as upstream, serving(settings_for(upstream.settings("gemini"))) as url:
            assert (await Client(url, "gemini", parallel=None).ask(User.of("Oslo?"))).data == data

    run(story)


# Calls that official clients cannot read: one example of each

ONE, TWO = "call_Zq8wLk3vTb", "call_Xr9mNj4uSa"
UNTIDY: dict[str, bytes] = {
    "no index": _chat_call(
        _piece(None, id=ONE, type="function", name="get_weather", arguments='{"city": "Oslo"}'),
        _piece(None, id=TWO, type="function", name="get_weather", arguments='{"city": "Lima"}'),
    ),
    "index 0 for both": _chat_call(
        _piece(0, id=ONE, type="function", name="get_weather", arguments='{"city": "Oslo"}'),
        _piece(0, id=TWO, type="function", name="get_weather", arguments='{"city": "Lima"}'),
    ),
    "an index that is a text": _chat_call(
        _piece(0, id=ONE, type="function", name="get_weather", arguments='{"city": "Oslo"}') | {"x": 1},
        {
            "tool_calls": [
                {"index": "1", "id": TWO, "function": {"name": "get_weather", "arguments": '{"city": "Lima"}'}}
            ]
        },
    ),
    "the first index is 1": _chat_call(
        _piece(1, id=ONE, type="function", name="get_weather", arguments='{"city": "Oslo"}'),
        _piece(2, id=TWO, type="function", name="get_weather", arguments='{"city": "Lima"}'),
    ),
    "no id": _chat_call(
        _piece(0, type="function", name="get_weather", arguments='{"city": "Oslo"}'),
        _piece(1, type="function", name="get_weather", arguments='{"city": "Lima"}'),
    ),
    "one id for both": _chat_call(
        _piece(0, id=ONE, type="function", name="get_weather", arguments='{"city": "Oslo"}'),
        _piece(1, id=ONE, type="function", name="get_weather", arguments='{"city": "Lima"}'),
    ),
    "id and name in every piece": _chat_call(
        _piece(0, id=ONE, type="function", name="get_weather", arguments='{"city": '),
        _piece(0, id=ONE, type="function", name="get_weather", arguments='"Oslo"}'),
        _piece(1, id=TWO, type="function", name="get_weather", arguments='{"city": '),
        _piece(1, id=TWO, type="function", name="get_weather", arguments='"Lima"}'),
    ),
    "arguments that are encoded twice": _chat_call(
        _piece(0, id=ONE, type="function", name="get_weather", arguments=json.dumps('{"city": "Oslo"}')),
        _piece(1, id=TWO, type="function", name="get_weather", arguments=json.dumps('{"city": "Lima"}')),
    ),
    "arguments that are an object": _chat_call(
        _piece(0, id=ONE, type="function", name="get_weather", arguments={"city": "Oslo"}),
        _piece(1, id=TWO, type="function", name="get_weather", arguments={"city": "Lima"}),
    ),
    "the finish says stop": _chat_call(
        _piece(0, id=ONE, type="function", name="get_weather", arguments='{"city": "Oslo"}'),
        _piece(1, id=TWO, type="function", name="get_weather", arguments='{"city": "Lima"}'),
        finish="stop",
    ),
}


def as_the_official_client_reads(data: bytes) -> tuple[list[Object], list[str]]:
    """Calls by index, with their pieces joined, as OpenAI's package does; and the finish reasons."""
    made: dict[int, Object] = {}
    finishes: list[str] = []
    for event in data.split(b"\n\n"):
        text = event.removeprefix(b"data: ")
        if not text or text == b"[DONE]":
            continue
        for choice in json.loads(text)["choices"]:
            finishes += [choice["finish_reason"]] if choice["finish_reason"] else []
            pieces: list[Object] = choice["delta"].get("tool_calls") or []
            for piece in pieces:
                call = made.setdefault(piece["index"], {"id": "", "name": "", "arguments": ""})
                call["id"] += piece.get("id") or ""
                call["name"] += piece.get("function", {}).get("name") or ""
                call["arguments"] += piece.get("function", {}).get("arguments") or ""
    return [made[index] for index in range(len(made))], finishes


@pytest.mark.parametrize("how", UNTIDY)
def test_malformed_calls_are_normalised(how: str) -> None:
    data = UNTIDY[how]

    async def story() -> None:
        async with telling(Told(data)) as upstream, serving(settings_for(upstream.settings("openai-chat"))) as url:
            for size in (len(data), 120, 1):
                upstream.answers = [Told([data[at : at + size] for at in range(0, len(data), size)])]
                client = Client(url, "openai-chat", stream=True, parallel=None)
                reply = await client.ask(User.of("Oslo and Lima?"))
                calls, finishes = as_the_official_client_reads(reply.data)
                assert [call["name"] for call in calls] == ["get_weather"] * 2
                assert [json.loads(call["arguments"]) for call in calls] == [{"city": "Oslo"}, {"city": "Lima"}]
                assert len({call["id"] for call in calls}) == 2
                assert all(0 < len(call["id"]) <= 40 for call in calls)
                assert finishes in (["tool_calls"], ["stop"])
                assert reply.response.text == "I look. "

    run(story)


@pytest.mark.parametrize(
    "bend",
    ["no id", "one id for both", "arguments that are encoded twice", "arguments that are an object"],
)
def test_malformed_calls_of_a_non_streaming_body_are_normalised(bend: str) -> None:
    calls: list[Object] = [
        {"id": id, "type": "function", "function": {"name": "get_weather", "arguments": json.dumps({"city": city})}}
        for id, city in ((ONE, "Oslo"), (TWO, "Lima"))
    ]
    for call in calls:
        function: Object = call["function"]
        match bend:
            case "no id":
                del call["id"]
            case "one id for both":
                call["id"] = ONE
            case "arguments that are encoded twice":
                function["arguments"] = json.dumps(function["arguments"])
            case _:
                function["arguments"] = json.loads(function["arguments"])
    message = {"role": "assistant", "content": "I look.", "tool_calls": calls}
    body = {
        "id": "c",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
    }

    async def story() -> None:
        told = Told(json.dumps(body).encode())
        async with telling(told) as upstream, serving(settings_for(upstream.settings("openai-chat"))) as url:
            reply = await Client(url, "openai-chat", parallel=None).ask(User.of("Oslo and Lima?"))
            made = reply.body["choices"][0]["message"]["tool_calls"]
            assert [json.loads(call["function"]["arguments"]) for call in made] == [{"city": "Oslo"}, {"city": "Lima"}]
            assert len({call["id"] for call in made}) == 2
            assert all(call["id"] for call in made)

    run(story)


def test_results_of_normalised_calls_reach_a_model_that_recognises_them() -> None:
    """A model that gave both calls one id gets them back with different ids: its own message would be refused."""

    async def story() -> None:
        async with (
            telling(Told(UNTIDY["one id for both"])) as upstream,
            serving(settings_for(upstream.settings("openai-chat"))) as url,
        ):
            client = Client(url, "openai-chat", stream=True, parallel=None)
            await client.ask(User.of("Oslo and Lima?"))
            await client.answer_calls()
            _, made, *answered = upstream.asked[1].body["messages"]
            ids = [call["id"] for call in made["tool_calls"]]
            assert ids[0] == ONE
            assert len(set(ids)) == 2
            assert [message["tool_call_id"] for message in answered] == ids

    run(story)


@pytest.mark.parametrize("name", OWN)
def test_a_turn_with_calls_is_forwarded_as_the_client_wrote_it(name: str) -> None:
    """If a client sends back everything unchanged, neither its request nor the answer needs fixing."""
    own = OWN[name]

    def continued(body: Object, answer: Object, ids: list[str]) -> Object:
        match own.wire:
            case "anthropic-messages":
                results = [{"type": "tool_result", "tool_use_id": id, "content": "Sunny.", "x_mine": 1} for id in ids]
                said = [{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": results}]
            case "openai-responses":
                said = list(answer["output"])
                said += [{"type": "function_call_output", "call_id": id, "output": "Sunny.", "x_mine": 1} for id in ids]
            case "ollama":
                said = [answer["message"]]
                told = {"role": "tool", "tool_name": "get_weather", "content": "Sunny.", "x_mine": 1}
                said += [{**told, "tool_call_id": id} for id in ids]
            case "cohere-v2":
                said = [answer["message"]]
                said += [{"role": "tool", "tool_call_id": id, "content": "Sunny.", "x_mine": 1} for id in ids]
            case "bedrock-converse":
                told = {"content": [{"text": "Sunny."}], "x_mine": 1}
                results = [{"toolResult": {"toolUseId": id, **told}} for id in ids]
                said = [answer["output"]["message"], {"role": "user", "content": results}]
            case "gemini":
                part = {"functionResponse": {"name": "get_weather", "response": {"result": "Sunny.", "x_mine": 1}}}
                said = [answer["candidates"][0]["content"], {"role": "user", "parts": [part, part]}]
            case _:
                said = [answer["choices"][0]["message"]]
                said += [{"role": "tool", "tool_call_id": id, "content": "Sunny.", "x_mine": 1} for id in ids]
        field = FIELDS[own.wire]
        return {**body, field: [*body[field], *said]}

    async def story() -> None:
        rounds = [[f"{id}r{round}" for id in IDS] for round in range(3)]
        answers = [json.dumps(own.body).replace(IDS[0], ids[0]).replace(IDS[1], ids[1]) for ids in rounds]
        async with (
            telling(*(Told(answer.encode()) for answer in answers)) as upstream,
            serving(settings_for(upstream.settings(own.wire))) as url,
        ):
            client = Client(url, own.wire, parallel=None)
            body = {name: value for name, value in BODIES[own.wire].items() if name not in ("x_unknown", "tools")}
            for ids, answer, number in zip(rounds, answers, range(3), strict=True):
                reply = await client.post(json.dumps(body).encode())
                assert reply.data == answer.encode(), number
                expected = {**body, "model": "big-model"} if "model" in body else body
                assert upstream.asked[number].body == expected, number
                body = continued(body, reply.body, ids)

    run(story)


# Where something has to be changed


def test_an_alias_with_its_own_settings_uses_them() -> None:
    async def story() -> None:
        answer = Told(json.dumps(WHOLE["openai-chat"]).encode())
        async with telling(answer) as upstream:
            alias = upstream.settings("openai-chat", options={"temperature": 0.25, "extra": {"x_mine": 1}})
            async with serving(settings_for(alias)) as url:
                client = Client(url, "openai-chat", parallel=None)
                await client.ask(User.of("Hello."))
                assert upstream.asked[0].body["temperature"] == 0.25
                assert upstream.asked[0].body["x_mine"] == 1
                await client.post({**client.body([User.of("Hello.")]), "temperature": 0.75, "x_theirs": {"n": 1}})
                assert upstream.asked[1].body["temperature"] == 0.75  # the client's setting has priority
                assert upstream.asked[1].body["x_theirs"] == {"n": 1}

    run(story)


@pytest.mark.parametrize("client_wire", WIRES)
@STREAMED
def test_a_call_that_leaked_into_the_text_is_recovered_for_an_alias_with_recover(
    client_wire: str, stream: bool
) -> None:
    leak = 'I look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    head: Object = {"id": "c", "created": 1, "model": "m"}
    message = {"role": "assistant", "content": leak}
    body = {**head, "object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    chunks = [
        {**head, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": leak[at : at + 5]}}]}
        for at in range(0, len(leak), 5)
    ]
    end: Object = {
        **head,
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}],
    }

    async def story() -> None:
        told = Told(events(*chunks, end, done=True) if stream else json.dumps(body).encode())
        async with telling(told) as upstream:
            aliases = [upstream.settings("openai-chat", recover=True), upstream.settings("openai-chat", "plain")]
            async with serving(settings_for(*aliases)) as url:
                client = Client(url, client_wire, stream, parallel=None)
                reply = await client.ask(User.of("Oslo?"))
                assert reply.calls == [("get_weather", {"city": "Oslo"})]
                assert reply.response.text.strip() == "I look."
                await client.answer_calls()
                back = upstream.asked[1].body["messages"]
                assert [call["function"]["name"] for call in back[1]["tool_calls"]] == ["get_weather"]
                assert back[2] == {
                    "role": "tool",
                    "tool_call_id": back[1]["tool_calls"][0]["id"],
                    "content": "Sunny in Oslo.",
                }

                reply = await Client(url, client_wire, stream, parallel=None, model="plain").ask(User.of("Oslo?"))
                assert (reply.calls, reply.response.text) == ([], leak)

    run(story)


def test_ids_that_only_this_provider_would_make_come_back_to_it() -> None:
    """vLLM's ids are longer than OpenAI allows, and it accepts them back."""
    id = f"chatcmpl-tool-{'0123456789abcdef' * 2}"
    made = {"id": id, "type": "function", "function": CALL}
    message = {"role": "assistant", "content": None, "tool_calls": [made]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    answer = {"id": "c", "object": "chat.completion", "choices": [choice]}

    async def story() -> None:
        told = Told(json.dumps(answer).encode())
        async with telling(told) as upstream, serving(settings_for(upstream.settings("openai-chat"))) as url:
            client = Client(url, "openai-chat", parallel=None)
            body: Object = {"model": "m", "messages": [{"role": "user", "name": "ann", "content": "Oslo?"}]}
            said = (await client.post(body)).body["choices"][0]["message"]
            assert said == message
            body["messages"] += [said, {"role": "tool", "tool_call_id": id, "content": "Sunny."}]
            await client.post(body)
            assert upstream.asked[1].body == {**body, "model": "big-model"}

            other = Client(url, "anthropic-messages", parallel=None)
            first = await other.ask(User.of("Oslo?"))
            assert len(first.response.calls[0].id) <= 64
            await other.answer_calls()
            back = upstream.asked[3].body["messages"]
            assert [back[1]["tool_calls"][0]["id"], back[2]["tool_call_id"]] == [id, id]

    run(story)


# Between any two wires


@STREAMED
@pytest.mark.parametrize("serial", [False, True], ids=["at-once", "one-by-one"])
@pytest.mark.parametrize(("client_wire", "upstream_wire"), PAIRS)
def test_an_answer_follows_the_clients_wire_strictly(
    client_wire: str, upstream_wire: str, serial: bool, stream: bool
) -> None:
    said: list[str | Step] = [Think("Hm, two. "), Say("I look. "), *TWO_CALLS, Uses(7, 5)]

    async def story() -> None:
        async with (
            ScriptedServer(said, [Think("So. "), Say("Fine.")]) as upstream,
            serving(settings_for(upstream_settings(upstream, upstream_wire, serial=serial))) as url,
        ):
            client = Client(url, client_wire, stream, parallel=None)
            client.messages = [User.of("Oslo and Lima?")]
            heard: list[Heard] = []
            while not heard or heard[-1].calls:
                reply = await client.post(client.body())
                heard.append(read(client_wire, reply.data, stream))
                client.messages.append(Assistant(heard[-1].text, reply.response.calls))
                client.messages.append(ToolMessage(tuple(result_of(call) for call in reply.response.calls)))
            made = [[arguments["city"] for _, _, arguments in each.calls] for each in heard]
            assert made == ([["Oslo"], ["Lima"], []] if serial else [["Oslo", "Lima"], []])
            assert [each.text for each in heard] == (["I look. ", "", "Fine."] if serial else ["I look. ", "Fine."])
            ends = {
                "openai-chat": ("tool_calls", "stop"),
                "openai-responses": ("completed", "completed"),
                "anthropic-messages": ("tool_use", "end_turn"),
                "gemini": ("STOP", "STOP"),
                "ollama": ("stop", "stop"),
                "cohere-v2": ("TOOL_CALL", "COMPLETE"),
                "bedrock-converse": ("tool_use", "end_turn"),
            }[client_wire]
            assert [each.finish for each in heard] == [ends[0]] * (len(heard) - 1) + [ends[1]]

    run(story)


TWO_CALLS = [Call("get_weather", city=city, id=id) for city, id in (("Oslo", ONE), ("Lima", TWO))]


@pytest.mark.anyio
async def test_empty_parts_that_google_genai_sends_back_from_a_stream_do_not_reach_gemini() -> None:
    value = {"id": "c1", "name": "get_weather", "args": {"city": "Oslo"}}
    call = {"functionCall": value, "thoughtSignature": "c2ln"}
    told: Object = {"functionResponse": {"name": "get_weather", "response": {"output": "Sunny."}}}
    contents: list[Object] = [
        {"role": "user", "parts": [{"text": "Hi"}]},
        {"role": "model", "parts": [{"text": "Let me "}]},
        {"role": "model", "parts": [{"text": "see."}]},
        {"role": "model", "parts": [call]},
        {"role": "model", "parts": [{"text": ""}]},
        {"role": "user", "parts": [told]},
        {"role": "model", "parts": [{"text": "Sunny."}, {"text": ""}]},
        {"role": "user", "parts": [{"text": "Thanks"}]},
    ]
    async with stage("gemini", "Welcome.") as scene:
        client = scene.client("gemini", False, parallel=None)
        reply = await client.post({**client.body([User.of("Hi")]), "contents": contents})
        sent = scene.upstream.bodies[-1]["contents"]
    assert reply.status == 200, reply.data
    assert [content["parts"] for content in sent] == [
        [{"text": "Hi"}],
        [{"text": "Let me "}, {"text": "see."}, call],
        [{"functionResponse": {"id": "c1", **told["functionResponse"]}}],
        [{"text": "Sunny."}],
        [{"text": "Thanks"}],
    ]


@pytest.mark.anyio
async def test_what_the_model_is_not_told_of_a_message_is_named_in_a_header() -> None:
    async with stage("anthropic-messages", "Hello.") as scene:
        client = scene.client("openai-chat", False, parallel=None)
        messages = [{"role": "user", "name": "ann", "content": "Hi"}]
        reply = await client.post({**client.body([User.of("Hi")]), "messages": messages})
    assert reply.headers["x-unbroken-dropped"] == "messages.name"


@pytest.mark.anyio
async def test_text_after_a_call_that_is_moved_before_it_is_reported_as_a_repair() -> None:
    use: Object = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Oslo"}}
    messages: list[Object] = [
        {"role": "user", "content": "Oslo?"},
        {"role": "assistant", "content": [use, {"type": "text", "text": "One moment."}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "Sunny."}]},
    ]
    for upstream, repairs in (("openai-chat", "move-text"), ("anthropic-messages", None)):
        async with stage(upstream, "Sunny.") as scene:
            client = scene.client("anthropic-messages", False, parallel=None)
            reply = await client.post({**client.body([User.of("Oslo?")]), "messages": messages})
        assert reply.status == 200
        assert reply.headers.get("x-unbroken-repairs") == repairs


@pytest.mark.anyio
async def test_text_after_a_call_of_a_responses_client_that_is_moved_is_reported_as_a_repair() -> None:
    call: Object = {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": "{}"}
    spoken: Object = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Wait."}]}
    result: Object = {"type": "function_call_output", "call_id": "call_1", "output": "Sunny."}
    user: Object = {"role": "user", "content": "Oslo?"}
    cases = (([call, spoken, result], "move-text"), ([spoken, call, result], None), ([call, result, spoken], None))
    for items, repairs in cases:
        for upstream in ("openai-chat", "openai-responses"):
            async with stage(upstream, "Sunny.") as scene:
                client = scene.client("openai-responses", False, parallel=None)
                reply = await client.post({**client.body([User.of("Oslo?")]), "input": [user, *items, user]})
            assert reply.status == 200
            assert reply.headers.get("x-unbroken-repairs") == (repairs if upstream == "openai-chat" else None)
