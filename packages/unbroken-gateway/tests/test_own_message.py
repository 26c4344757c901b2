"""What only a model's own wire can express (signatures, encrypted reasoning, required reasoning) is restored by the
gateway, whatever the client did with it, and is given to no other model."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from gateway_client import WEATHER, Client, result_of, run, serving, settings_for
from gateway_upstreams import FIELDS, Asked, Told, events, telling
from samples import frames

from unbroken_wires.messages import Assistant, Message, ToolCall, ToolMessage, User
from unbroken_wires.wires import WIRES

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Own:
    """An answer with two calls, and what its provider must get back."""

    wire: str
    body: Object
    stream: bytes
    comes_back: list[Object]
    """The messages, blocks, items or parts of the model in the next request."""
    secrets: tuple[str, ...]
    """What no other provider may get."""


CALLS = {"toolu_01A09q90qw90lq917835": "Beijing", "toolu_01B18r81rx81mr828946": "Oslo"}
IDS = list(CALLS)


def _anthropic() -> Own:
    blocks: list[Object] = [
        {"type": "thinking", "thinking": "Two cities.", "signature": "EqQBCgIYAhIM1gbcDa9GJwZA2b3h+sig/A=="},
        {"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3pzix/LafPsn4aDFIT2Xlxh0L5L8rLVyIwxtE3rAFBa8=="},
        {"type": "text", "text": "Let me look."},
        *({"type": "tool_use", "id": id, "name": "get_weather", "input": {"city": city}} for id, city in CALLS.items()),
    ]
    head: Object = {"id": "msg_01", "type": "message", "role": "assistant", "model": "big-model"}
    usage = {"input_tokens": 10, "output_tokens": 5}
    body = {**head, "content": blocks, "stop_reason": "tool_use", "stop_sequence": None, "usage": usage}
    said: list[Object] = [
        {"type": "message_start", "message": {**head, "content": [], "stop_reason": None, "usage": usage}}
    ]
    for index, block in enumerate(blocks):
        kind = block["type"]
        emptied: dict[str, Object] = {
            "thinking": {"thinking": "", "signature": ""},
            "text": {"text": ""},
            "tool_use": {"input": {}},
        }
        empty = {**block, **emptied.get(kind, {})}
        said.append({"type": "content_block_start", "index": index, "content_block": empty})
        deltas: list[Object] = []
        if kind == "thinking":
            deltas = [
                {"type": "thinking_delta", "thinking": block["thinking"]},
                {"type": "signature_delta", "signature": block["signature"]},
            ]
        elif kind == "text":
            deltas = [{"type": "text_delta", "text": block["text"]}]
        elif kind == "tool_use":
            deltas = [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
        said += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        said.append({"type": "content_block_stop", "index": index})
    said += [
        {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None}, "usage": usage},
        {"type": "message_stop"},
    ]
    return Own(
        "anthropic-messages", body, events(*said, named=True), blocks, (blocks[0]["signature"], blocks[1]["data"])
    )


def _responses() -> Own:
    text: Object = {"type": "output_text", "text": "Let me look.", "annotations": [], "logprobs": []}
    items: list[Object] = [
        {
            "id": "rs_68af4030baa48193b0b43b4c2a176a1a",
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "Two cities."}],
            "encrypted_content": "gAAAAABor0Aw+opaque/encrypted==",
        },
        {"id": "msg_68af40", "type": "message", "status": "completed", "role": "assistant", "content": [text]},
        *(
            {
                "id": f"fc_{id[-6:]}",
                "type": "function_call",
                "status": "completed",
                "call_id": id,
                "name": "get_weather",
                "arguments": json.dumps({"city": city}),
            }
            for id, city in CALLS.items()
        ),
    ]
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    head: Object = {"id": "resp_01", "object": "response", "created_at": 1, "model": "big-model", "error": None}
    body = {**head, "status": "completed", "output": items, "usage": usage}
    said: list[Object] = [{"type": "response.created", "response": {**head, "status": "in_progress", "output": []}}]
    for index, item in enumerate(items):
        began = {**item, "status": "in_progress"} if "status" in item else item
        at: Object = {"output_index": index, "item_id": item["id"]}
        match item["type"]:
            case "message":
                said += [
                    {"type": "response.output_item.added", "output_index": index, "item": {**began, "content": []}},
                    {"type": "response.content_part.added", **at, "content_index": 0, "part": {**text, "text": ""}},
                    {"type": "response.output_text.delta", **at, "content_index": 0, "delta": "Let me look."},
                    {"type": "response.output_text.done", **at, "content_index": 0, "text": "Let me look."},
                    {"type": "response.content_part.done", **at, "content_index": 0, "part": text},
                ]
            case "function_call":
                raw = item["arguments"]
                said += [
                    {"type": "response.output_item.added", "output_index": index, "item": {**began, "arguments": ""}},
                    {"type": "response.function_call_arguments.delta", **at, "delta": raw},
                    {"type": "response.function_call_arguments.done", **at, "arguments": raw},
                ]
            case _:
                said.append({"type": "response.output_item.added", "output_index": index, "item": began})
        said.append({"type": "response.output_item.done", "output_index": index, "item": item})
    said.append({"type": "response.completed", "response": body})
    said = [{**event, "sequence_number": number} for number, event in enumerate(said)]
    # `status` is reported by the API for items, and refused on some of them.
    back = [{key: value for key, value in item.items() if key != "status"} for item in items]
    return Own("openai-responses", body, events(*said, named=True), back, (items[0]["encrypted_content"],))


def _gemini() -> Own:
    calls: list[Object] = [{"functionCall": {"name": "get_weather", "args": {"city": city}}} for city in CALLS.values()]
    parts: list[Object] = [
        {"text": "Two cities.", "thought": True},
        {"text": "Let me look.", "thoughtSignature": "Eo4BCosB+text/sig=="},
        {**calls[0], "thoughtSignature": "CpIHAVSoXO7+call/sig=="},
        calls[1],
    ]
    head: Object = {
        "modelVersion": "big-model",
        "responseId": "g1",
        "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15},
    }

    def chunk(parts: list[Object], **more: Any) -> Object:
        return {"candidates": [{"content": {"parts": parts, "role": "model"}, "index": 0, **more}], **head}

    body = chunk(parts, finishReason="STOP")
    said = [*(chunk([part]) for part in parts), chunk([{"text": ""}], finishReason="STOP")]
    return Own("gemini", body, events(*said), parts, (parts[1]["thoughtSignature"], parts[2]["thoughtSignature"]))


def _chat(wire_fields: Object, call_fields: Object, secret: str) -> Own:
    calls: list[Object] = [
        {
            "id": id,
            "type": "function",
            "function": {"name": "get_weather", "arguments": json.dumps({"city": city})},
            **(call_fields if id == IDS[0] else {}),
        }
        for id, city in CALLS.items()
    ]
    message: Object = {"role": "assistant", "content": "Let me look.", **wire_fields, "tool_calls": calls}
    head: Object = {"id": "chatcmpl-1", "created": 1, "model": "big-model"}
    body: Object = {
        **head,
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    }

    def chunk(delta: Object, finish: str | None = None) -> Object:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return {**head, "object": "chat.completion.chunk", "choices": [choice]}

    said = [
        chunk({"role": "assistant", "content": "", **dict.fromkeys(wire_fields, "")}),
        *(chunk({name: value}) for name, value in wire_fields.items()),
        chunk({"content": "Let me look."}),
        *(chunk({"tool_calls": [{"index": at, **call}]}) for at, call in enumerate(calls)),
        chunk({}, "tool_calls"),
    ]
    return Own("openai-chat", body, events(*said, done=True), [message], (secret,))


def _ollama() -> Own:
    calls: list[Object] = [
        {"id": id, "function": {"name": "get_weather", "arguments": {"city": city}}} for id, city in CALLS.items()
    ]
    message: Object = {"role": "assistant", "content": "Let me look.", "thinking": "Two cities, says Qwen."}
    message["tool_calls"] = calls
    head: Object = {"model": "big-model", "created_at": "2026-01-01T00:00:00Z"}
    end: Object = {"done": True, "done_reason": "stop", "prompt_eval_count": 10, "eval_count": 5}

    def line(**message: Any) -> Object:
        return {**head, "message": {"role": "assistant", "content": "", **message}, "done": False}

    said = [
        line(thinking=message["thinking"]),
        line(content="Let me look."),
        *(line(tool_calls=[one]) for one in calls),
    ]
    lines = "".join(json.dumps(one) + "\n" for one in [*said, {**line(), **end}])
    return Own("ollama", {**head, "message": message, **end}, lines.encode(), [message], (message["thinking"],))


def _cohere() -> Own:
    calls: list[Object] = [
        {
            "id": id,
            "type": "function",
            "function": {"name": "get_weather", "arguments": json.dumps({"city": city})},
        }
        for id, city in CALLS.items()
    ]
    plan = "I will look up two cities."
    message: Object = {"role": "assistant", "tool_plan": plan, "content": [{"type": "text", "text": "Let me look."}]}
    message["tool_calls"] = calls
    usage = {"tokens": {"input_tokens": 10, "output_tokens": 5}}
    body: Object = {"id": "c1", "message": message, "finish_reason": "TOOL_CALL", "usage": usage}

    def delta(kind: str, message: Object, **more: Any) -> Object:
        return {"type": kind, **more, "delta": {"message": message}}

    said = [
        delta("message-start", {"role": "assistant", "content": [], "tool_calls": []}, id="c1"),
        delta("tool-plan-delta", {"tool_plan": plan}),
        delta("content-start", {"content": {"type": "text", "text": ""}}, index=0),
        delta("content-delta", {"content": {"text": "Let me look."}}, index=0),
        {"type": "content-end", "index": 0},
    ]
    for index, call in enumerate(calls):
        said += [delta("tool-call-start", {"tool_calls": call}, index=index), {"type": "tool-call-end", "index": index}]
    said.append({"type": "message-end", "delta": {"finish_reason": "TOOL_CALL", "usage": usage}})
    return Own("cohere-v2", body, events(*said, named=True), [{**message, "content": "Let me look."}], (plan,))


def _bedrock() -> Own:
    signed = {"text": "Two cities.", "signature": "EqQBCgIYAhIM+converse/sig=="}
    blocks: list[Object] = [
        {"reasoningContent": {"reasoningText": signed}},
        {"reasoningContent": {"redactedContent": "EmwKAhgBEgy3va3pzix/redacted=="}},
        {"text": "Let me look."},
        *({"toolUse": {"toolUseId": id, "name": "get_weather", "input": {"city": c}}} for id, c in CALLS.items()),
    ]
    usage = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}
    output = {"message": {"role": "assistant", "content": blocks}}
    body: Object = {"output": output, "stopReason": "tool_use", "usage": usage, "metrics": {"latencyMs": 1}}
    deltas: list[tuple[Object | None, list[Object]]] = [
        (None, [{"reasoningContent": {name: value}} for name, value in signed.items()]),
        (None, [blocks[1]]),
        (None, [blocks[2]]),
        *(
            (
                {"toolUse": {"toolUseId": id, "name": "get_weather"}},
                [{"toolUse": {"input": json.dumps({"city": city})}}],
            )
            for id, city in CALLS.items()
        ),
    ]
    said: list[Object] = [{"messageStart": {"role": "assistant"}}]
    for index, (start, grown) in enumerate(deltas):
        at = {"contentBlockIndex": index}
        said += [{"contentBlockStart": {"start": start, **at}}] if start else []
        said += [{"contentBlockDelta": {"delta": delta, **at}} for delta in grown]
        said.append({"contentBlockStop": at})
    said += [{"messageStop": {"stopReason": "tool_use"}}, {"metadata": {"usage": usage}}]
    secrets = signed["signature"], blocks[1]["reasoningContent"]["redactedContent"]
    return Own("bedrock-converse", body, frames(*said), blocks, secrets)


OWN = {
    "anthropic": _anthropic(),
    "responses": _responses(),
    "gemini": _gemini(),
    "ollama": _ollama(),
    "cohere": _cohere(),
    "bedrock": _bedrock(),
    "reasoning_content": _chat({"reasoning_content": "Two cities, says DeepSeek."}, {}, "Two cities, says DeepSeek."),
    "extra_content": _chat(
        {}, {"extra_content": {"google": {"thought_signature": "CpIHAV+chat/sig=="}}}, "CpIHAV+chat/sig=="
    ),
}


def said_by_model(wire: str, asked: Asked) -> list[Object]:
    """The parts of the request that come from the model's answers, in its wire's format."""
    match wire:
        case "anthropic-messages" | "bedrock-converse":
            turns = [message for message in asked.body["messages"] if message["role"] == "assistant"]
            return [block for turn in turns for block in turn["content"]]
        case "openai-responses":
            mine = ("reasoning", "function_call")
            return [item for item in asked.body["input"] if item["type"] in mine or item.get("role") == "assistant"]
        case "gemini":
            return [
                part for content in asked.body["contents"] if content["role"] == "model" for part in content["parts"]
            ]
        case _:
            return [message for message in asked.body["messages"] if message["role"] == "assistant"]


def results_in(wire: str, asked: Asked) -> list[tuple[str, str]]:
    """For each result in the request: the id of its call, and its text."""
    match wire:
        case "anthropic-messages":
            contents = [message["content"] for message in asked.body["messages"] if message["content"][:0] == []]
            blocks: list[Object] = [block for content in contents for block in content]
            found = [block for block in blocks if block["type"] == "tool_result"]
            return [(block["tool_use_id"], block["content"]) for block in found]
        case "openai-responses":
            items = [item for item in asked.body["input"] if item["type"] == "function_call_output"]
            return [(item["call_id"], item["output"]) for item in items]
        case "gemini":
            parts = [part for content in asked.body["contents"] for part in content["parts"]]
            found = [part["functionResponse"] for part in parts if "functionResponse" in part]
            return [(answer.get("id", ""), answer["response"]["output"]) for answer in found]
        case "bedrock-converse":
            blocks = [block for message in asked.body["messages"] for block in message["content"]]
            found = [block["toolResult"] for block in blocks if "toolResult" in block]
            return [(result["toolUseId"], result["content"][0]["text"]) for result in found]
        case _:
            found = [message for message in asked.body["messages"] if message["role"] == "tool"]
            return [(message["tool_call_id"], message["content"]) for message in found]


def plain_answer(own: Own) -> Callable[[Asked], Told]:
    """The answer with the calls once, and then a plain one, streamed or not as requested."""

    def answer(asked: Asked) -> Told:
        streamed = b"stream" in asked.path.encode() or bool(json.loads(asked.data).get("stream"))
        return Told(own.stream if streamed else json.dumps(own.body).encode())

    return answer


ANSWERS = [pytest.param(own, id=name) for name, own in OWN.items()]
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@STREAMED
@pytest.mark.parametrize("own", ANSWERS)
def test_the_models_message_comes_back_to_it_from_a_client_of_any_wire(own: Own, stream: bool) -> None:
    async def story() -> None:
        async with telling(plain_answer(own)) as upstream, serving(settings_for(upstream.settings(own.wire))) as url:
            for wire in WIRES:
                client = Client(url, wire, stream, parallel=None)
                first = await client.ask(User.of(f"Beijing and Oslo, asks {wire}."))
                assert [arguments["city"] for _, arguments in first.calls] == list(CALLS.values()), wire
                upstream.asked.clear()
                await client.answer_calls()
                asked = upstream.asked[0]
                assert said_by_model(own.wire, asked) == own.comes_back, wire
                ids = ["", ""] if own.wire == "gemini" else IDS
                texts = [f"Sunny in {city}." for city in CALLS.values()]
                assert results_in(own.wire, asked) == list(zip(ids, texts, strict=True)), wire

    run(story)


@pytest.mark.parametrize("own", ANSWERS)
def test_a_turn_of_several_requests_comes_back_as_one_message(own: Own) -> None:
    async def story() -> None:
        async with (
            telling(plain_answer(own)) as upstream,
            serving(settings_for(upstream.settings(own.wire, serial=True))) as url,
        ):
            for wire in WIRES:
                client = Client(url, wire, stream=True, parallel=None)
                first = await client.ask(User.of(f"Beijing and Oslo, one by one, asks {wire}."))
                second = await client.answer_calls()
                handed = [arguments["city"] for reply in (first, second) for _, arguments in reply.calls]
                assert handed == list(CALLS.values()), wire
                upstream.asked.clear()
                await client.answer_calls()
                assert said_by_model(own.wire, upstream.asked[0]) == own.comes_back, wire
                assert [text for _, text in results_in(own.wire, upstream.asked[0])] == [
                    f"Sunny in {city}." for city in CALLS.values()
                ], wire

    run(story)


def with_other_ids(messages: list[Message]) -> list[Message]:
    """Like a client that numbers the calls itself."""
    ids: dict[str, str] = {}
    renamed: list[Message] = []
    for message in messages:
        if isinstance(message, Assistant):
            for call in message.calls:
                ids[call.id] = f"own{len(ids)}xyz"[:9]
            calls = tuple(replace(call, id=ids[call.id]) for call in message.calls)
            message = replace(message, calls=calls)
        elif isinstance(message, ToolMessage):
            message = ToolMessage(tuple(replace(result, call_id=ids[result.call_id]) for result in message.results))
        renamed.append(message)
    return renamed


@pytest.mark.parametrize("serial", [False, True], ids=["at-once", "one-by-one"])
@pytest.mark.parametrize("own", ANSWERS)
def test_it_comes_back_from_a_client_that_rewrites_the_ids(own: Own, serial: bool) -> None:
    async def story() -> None:
        async with (
            telling(plain_answer(own)) as upstream,
            serving(settings_for(upstream.settings(own.wire, serial=serial))) as url,
        ):
            for wire in WIRES:
                client = Client(url, wire, parallel=None)
                reply = await client.ask(User.of(f"Beijing and Oslo, asks {wire}."))
                handed = len(reply.calls)
                while handed < 2:
                    call = client.messages[-1]
                    assert isinstance(call, Assistant)
                    client.messages.append(ToolMessage(tuple(map(result_of, call.calls))))
                    client.messages = with_other_ids(client.messages)
                    reply = await client.ask()
                    assert reply.headers["x-unbroken-turn"] == "handed 2/2", wire
                    handed += len(reply.calls)
                last = client.messages[-1]
                assert isinstance(last, Assistant)
                client.messages.append(ToolMessage(tuple(map(result_of, last.calls))))
                client.messages = with_other_ids(client.messages)
                upstream.asked.clear()
                await client.ask()
                asked = upstream.asked[0]
                assert said_by_model(own.wire, asked) == own.comes_back, wire
                ids = ["", ""] if own.wire == "gemini" else IDS
                assert [id for id, _ in results_in(own.wire, asked)] == ids, wire

    run(story)


def without_calls(own: Own) -> Own:
    """The same answer with only reasoning and text."""
    body = json.loads(json.dumps(own.body))
    match own.wire:
        case "anthropic-messages":
            body["content"] = body["content"][:3]
            body["stop_reason"] = "end_turn"
            back = own.comes_back[:3]
        case "openai-responses":
            body["output"] = body["output"][:2]
            back = own.comes_back[:2]
        case "gemini":
            body["candidates"][0]["content"]["parts"] = own.comes_back[:2]
            back = own.comes_back[:2]
        case "bedrock-converse":
            body["output"]["message"]["content"] = back = own.comes_back[:3]
            body["stopReason"] = "end_turn"
        case "ollama" | "cohere-v2":
            del body["message"]["tool_calls"]
            body |= {"finish_reason": "COMPLETE"} if own.wire == "cohere-v2" else {}
            back = [{name: value for name, value in own.comes_back[0].items() if name != "tool_calls"}]
        case _:
            message = body["choices"][0]["message"]
            del message["tool_calls"]
            body["choices"][0]["finish_reason"] = "stop"
            back = [message]
    return replace(own, body=body, comes_back=back)


@pytest.mark.parametrize("name", [name for name in OWN if name != "extra_content"])
def test_it_comes_back_after_an_answer_without_calls(name: str) -> None:
    own = without_calls(OWN[name])

    async def story() -> None:
        answer = Told(json.dumps(own.body).encode())
        async with telling(answer) as upstream, serving(settings_for(upstream.settings(own.wire))) as url:
            for wire in WIRES:
                client = Client(url, wire, parallel=None)
                await client.ask(User.of(f"What would you look up, asks {wire}?"))
                assert client.messages[-1] == Assistant("Let me look.")
                upstream.asked.clear()
                await client.ask(User.of("Then do it."))
                assert said_by_model(own.wire, upstream.asked[0]) == own.comes_back, wire

    run(story)


@pytest.mark.parametrize("name", OWN)
def test_signatures_of_one_provider_reach_no_other(name: str) -> None:
    own = OWN[name]

    async def story() -> None:
        async with telling(plain_answer(own)) as first, telling(plain_answer(own)) as second:
            others = [second.settings(wire, f"other-{wire}") for wire in WIRES]
            async with serving(settings_for(first.settings(own.wire, "m"), *others)) as url:
                for wire in WIRES:
                    for other in others:
                        client = Client(url, wire, parallel=None)
                        await client.ask(User.of(f"Beijing and Oslo, asks {wire} of both, then {other.alias}."))
                        second.asked.clear()
                        client.model = other.alias
                        last = client.messages[-1]
                        assert isinstance(last, Assistant)
                        results = ToolMessage(tuple(map(result_of, last.calls)))
                        await client.post(client.body([*client.messages, results]))
                        (asked,) = second.asked
                        assert not [secret for secret in own.secrets if secret in asked.data.decode()], other.alias
                        assert "Sunny in Oslo." in asked.data.decode()
                        first.asked.clear()
                        client.model = "m"
                        await client.answer_calls()
                        assert said_by_model(own.wire, first.asked[0]) == own.comes_back, "after coming back"

    run(story)


def test_a_signature_that_a_client_sends_itself_reaches_no_other_provider() -> None:
    own = OWN["anthropic"]
    question = {"role": "user", "content": "Beijing and Oslo?"}
    results = [{"type": "tool_result", "tool_use_id": id, "content": "Sunny."} for id in IDS]
    tools = [{"name": "get_weather", "input_schema": dict(WEATHER.parameters)}]

    async def story() -> None:
        async with telling(plain_answer(own)) as first, telling(plain_answer(own)) as second:
            settings = settings_for(first.settings(own.wire, "m"), second.settings(own.wire, "other"))
            async with serving(settings) as url:
                client = Client(url, own.wire, parallel=None)
                body: Object = {"model": "m", "max_tokens": 100, "tools": tools, "messages": [question]}
                answer = (await client.post(body)).body
                turn = [{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": results}]
                body["messages"] += turn
                await client.post({**body, "model": "other"})
                assert not [secret for secret in own.secrets if secret in second.asked[0].data.decode()]
                assert said_by_model(own.wire, second.asked[0]) == own.comes_back[2:]
                await client.post(body)
                assert first.asked[1].body == {**body, "model": "big-model"}

    run(story)


def test_the_answer_of_a_fallback_comes_back_only_to_the_fallback() -> None:
    own, spare = OWN["anthropic"], OWN["responses"]

    async def story() -> None:
        broken = Told(b'{"error":{"message":"overloaded"}}', 503)
        async with telling(broken) as first, telling(plain_answer(spare)) as second:
            settings = settings_for(first.settings(own.wire, fallback=("spare",)), second.settings(spare.wire, "spare"))
            async with serving(settings) as url:
                client = Client(url, "openai-chat", parallel=None)
                await client.ask(User.of("Beijing and Oslo?"))
                await client.answer_calls()
                assert said_by_model(spare.wire, second.asked[1]) == spare.comes_back
                assert spare.secrets[0] not in first.asked[1].data.decode()

    run(story)


def test_the_models_message_is_not_restored_if_the_client_changed_it() -> None:
    own = OWN["anthropic"]

    async def story() -> None:
        async with telling(plain_answer(own)) as upstream, serving(settings_for(upstream.settings(own.wire))) as url:
            client = Client(url, "openai-chat", parallel=None)
            await client.ask(User.of("Beijing and Oslo?"))
            said = client.messages[-1]
            assert isinstance(said, Assistant)
            calls = (replace(said.calls[0], arguments={"city": "Lima"}, raw='{"city":"Lima"}'), said.calls[1])
            client.messages[-1] = replace(said, calls=calls)
            await client.answer_calls()
            blocks = said_by_model(own.wire, upstream.asked[1])
            assert [block["type"] for block in blocks] == ["text", "tool_use", "tool_use"]
            assert blocks[1]["input"] == {"city": "Lima"}

    run(story)


def test_unsigned_reasoning_is_not_sent_to_a_provider_that_requires_a_signature() -> None:
    """A client of Anthropic's wire also gets the thinking of other wires, and sends it to the next model."""
    own = OWN["anthropic"]
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": ""}
    text = {"type": "text", "text": "Hello."}

    async def story() -> None:
        async with telling(plain_answer(own)) as upstream, serving(settings_for(upstream.settings(own.wire))) as url:
            messages = [
                {"role": "user", "content": "Hi."},
                {"role": "assistant", "content": [thinking, text]},
                {"role": "user", "content": "Go on."},
            ]
            client = Client(url, own.wire, parallel=None)
            reply = await client.post({"model": "m", "max_tokens": 100, "messages": messages})
            assert reply.status == 200
            assert said_by_model(own.wire, upstream.asked[0]) == [text]

    run(story)


def with_first_call_only(own: Own, answer: Object) -> list[Object]:
    """What a correct client of the wire adds to its history: all of the answer, unchanged."""
    match own.wire:
        case "anthropic-messages":
            return [{"role": "assistant", "content": answer["content"]}]
        case "openai-responses":
            return list(answer["output"])
        case "gemini":
            return [answer["candidates"][0]["content"]]
        case "ollama" | "cohere-v2":
            return [answer["message"]]
        case "bedrock-converse":
            return [answer["output"]["message"]]
        case _:
            return [answer["choices"][0]["message"]]


def result_for(own: Own, answer: Object) -> Object:
    """The result of the one call in the answer."""
    match own.wire:
        case "anthropic-messages":
            (call,) = (block for block in answer["content"] if block["type"] == "tool_use")
            result = {"type": "tool_result", "tool_use_id": call["id"], "content": f"Sunny in {call['input']['city']}."}
            return {"role": "user", "content": [result]}
        case "openai-responses":
            (call,) = (item for item in answer["output"] if item["type"] == "function_call")
            city = json.loads(call["arguments"])["city"]
            return {"type": "function_call_output", "call_id": call["call_id"], "output": f"Sunny in {city}."}
        case "gemini":
            parts = answer["candidates"][0]["content"]["parts"]
            (call,) = (part["functionCall"] for part in parts if "functionCall" in part)
            response = {"name": call["name"], "response": {"output": f"Sunny in {call['args']['city']}."}}
            id = {"id": call["id"]} if "id" in call else {}
            return {"role": "user", "parts": [{"functionResponse": {**id, **response}}]}
        case "ollama":
            (call,) = answer["message"]["tool_calls"]
            told = f"Sunny in {call['function']['arguments']['city']}."
            return {"role": "tool", "tool_name": "get_weather", "tool_call_id": call["id"], "content": told}
        case "cohere-v2":
            (call,) = answer["message"]["tool_calls"]
            city = json.loads(call["function"]["arguments"])["city"]
            return {"role": "tool", "tool_call_id": call["id"], "content": f"Sunny in {city}."}
        case "bedrock-converse":
            content = answer["output"]["message"]["content"]
            (call,) = (block["toolUse"] for block in content if "toolUse" in block)
            told = [{"text": f"Sunny in {call['input']['city']}."}]
            return {"role": "user", "content": [{"toolResult": {"toolUseId": call["toolUseId"], "content": told}}]}
        case _:
            (call,) = answer["choices"][0]["message"]["tool_calls"]
            city = json.loads(call["function"]["arguments"])["city"]
            return {"role": "tool", "tool_call_id": call["id"], "content": f"Sunny in {city}."}


@pytest.mark.parametrize("own", ANSWERS)
def test_one_call_at_a_time_on_one_wire_loses_no_signature(own: Own) -> None:
    """The client gets the signatures with the first call; whatever it does with them, the model gets its own turn."""
    field = FIELDS[own.wire]

    async def story() -> None:
        async with (
            telling(plain_answer(own)) as upstream,
            serving(settings_for(upstream.settings(own.wire, serial=True, all_calls=False))) as url,
        ):
            client = Client(url, own.wire, parallel=None)
            body = client.body([User.of("Beijing and Oslo?")])
            for _ in CALLS:
                answer = (await client.post(body)).body
                if len(body[field]) == 1:
                    assert all(secret in json.dumps(answer) for secret in own.secrets)
                body = {**body, field: [*body[field], *with_first_call_only(own, answer), result_for(own, answer)]}
            assert len(upstream.asked) == 1
            await client.post(body)
            assert said_by_model(own.wire, upstream.asked[1]) == own.comes_back
            assert [text for _, text in results_in(own.wire, upstream.asked[1])] == [
                f"Sunny in {city}." for city in CALLS.values()
            ]

    run(story)


LOST = {
    "deepseek:v4": "openai-chat",
    "gemini:gemini-3-pro": "gemini",
}


@pytest.mark.parametrize("model", LOST)
def test_a_header_reports_missing_reasoning_that_is_required(model: str) -> None:
    """A history that began elsewhere. Nothing is reported if the gateway has what is needed."""
    wire = LOST[model]
    own = OWN["gemini" if wire == "gemini" else "reasoning_content"]

    async def story() -> None:
        async with telling(plain_answer(own)) as upstream:
            alias = replace(upstream.settings(own.wire), model=model)
            async with serving(settings_for(alias)) as url:
                client = Client(url, "anthropic-messages", parallel=None)
                call = ToolCall("toolu_01A09q90qw90lq917835", "get_weather", {"city": "Oslo"})
                reply = await client.ask(User.of("Oslo?"), Assistant("", (call,)), ToolMessage((result_of(call),)))
                assert reply.headers["x-unbroken-reasoning"].startswith("lost; ")
                fresh = Client(url, "anthropic-messages", parallel=None)
                first = await fresh.ask(User.of("Oslo?"))
                second = await fresh.answer_calls()
                assert "x-unbroken-reasoning" not in {**first.headers, **second.headers}

    run(story)
