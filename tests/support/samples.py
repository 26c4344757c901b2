"""One rich stream for each wire and framing, written for the tests: text, reasoning, three calls, usage."""

from __future__ import annotations

import json
from typing import Any

from streams import chunk, piece, sse

from unbroken_wires.wires.event_stream import write_frame

ARGUMENTS = [
    {"city": "Zürich 😀", "days": 3},
    {},
    {"path": "a/b.txt", "text": 'He said: "}{" \\ \n end', "nested": {"list": [1, [2, {"x": None}]], "n": 1.5e3}},
]
NAMES = ["get_weather", "list_files", "write_file"]


def _split(text: str, size: int = 5) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def _chat() -> bytes:
    events: list[Any] = [chunk({"role": "assistant", "content": ""}), chunk({"reasoning_content": "Hm, "})]
    events += [chunk({"reasoning_content": "three."}), chunk({"content": "Let me "}), chunk({"content": "look."})]
    for index, (name, arguments) in enumerate(zip(NAMES, ARGUMENTS, strict=True)):
        events.append(chunk({"tool_calls": [piece(index, f"call_{name}", name, "", type="function")]}))
        pieces = _split(json.dumps(arguments, ensure_ascii=False))
        events += [chunk({"tool_calls": [piece(index, arguments=text)]}) for text in pieces]
    events.append(chunk({}, "tool_calls"))
    events.append({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 30}})
    return sse(*events)


def _chat_whole() -> bytes:
    calls = [
        {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for name, arguments in zip(NAMES, ARGUMENTS, strict=True)
    ]
    message = {"role": "assistant", "content": "Let me look.", "tool_calls": calls}
    return json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}, indent=1).encode()


def _events(*events: dict[str, Any]) -> bytes:
    return b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)


def _anthropic() -> bytes:
    events: list[dict[str, Any]] = [
        {
            "type": "message_start",
            "message": {"id": "m", "role": "assistant", "content": [], "usage": {"input_tokens": 9}},
        },
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "Hm."}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "c2ln"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Let me look."}},
        {"type": "content_block_stop", "index": 1},
    ]
    for index, (name, arguments) in enumerate(zip(NAMES, ARGUMENTS, strict=True), start=2):
        block: dict[str, Any] = {"type": "tool_use", "id": f"toolu_{name}", "name": name, "input": {}}
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        for text in ["", *_split(json.dumps(arguments))] if arguments else [""]:
            delta = {"type": "input_json_delta", "partial_json": text}
            events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    events.append({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 20}})
    return _events(*events, {"type": "message_stop"})


def _responses() -> bytes:
    output: list[dict[str, Any]] = [
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "Hm."}],
            "encrypted_content": "gA==",
        }
    ]
    events: list[dict[str, Any]] = [
        {
            "type": "response.created",
            "response": {"id": "resp_1", "object": "response", "status": "in_progress", "output": []},
        },
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {"type": "reasoning", "id": "rs_1", "summary": []},
        },
        {
            "type": "response.reasoning_summary_text.delta",
            "item_id": "rs_1",
            "output_index": 0,
            "summary_index": 0,
            "delta": "Hm.",
        },
        {"type": "response.output_item.done", "output_index": 0, "item": output[0]},
    ]
    for index, (name, arguments) in enumerate(zip(NAMES, ARGUMENTS, strict=True), start=1):
        item = {"type": "function_call", "id": f"fc_{name}", "call_id": f"call_{name}", "name": name, "arguments": ""}
        events.append({"type": "response.output_item.added", "output_index": index, "item": item})
        text = json.dumps(arguments)
        head = {"item_id": item["id"], "output_index": index}
        for part in _split(text):
            events.append({"type": "response.function_call_arguments.delta", **head, "delta": part})
        events.append({"type": "response.function_call_arguments.done", **head, "arguments": text})
        output.append({**item, "arguments": text, "status": "completed"})
        events.append({"type": "response.output_item.done", "output_index": index, "item": output[-1]})
    usage = {"input_tokens": 10, "output_tokens": 20, "total_tokens": 30}
    response = {"id": "resp_1", "object": "response", "status": "completed", "output": output, "usage": usage}
    return _events(*events, {"type": "response.completed", "response": response})


def _gemini_chunks() -> list[dict[str, Any]]:
    parts = [{"functionCall": {"name": name, "args": args}} for name, args in zip(NAMES, ARGUMENTS, strict=True)]
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 20, "totalTokenCount": 30}
    return [
        {"candidates": [{"content": {"role": "model", "parts": [{"text": "Hm.", "thought": True}]}}]},
        {"candidates": [{"content": {"role": "model", "parts": [{"text": "Let me look."}]}}]},
        {"candidates": [{"content": {"role": "model", "parts": [{**parts[0], "thoughtSignature": "c2ln"}]}}]},
        {
            "candidates": [{"content": {"role": "model", "parts": parts[1:]}, "finishReason": "STOP"}],
            "usageMetadata": usage,
        },
    ]


def _ollama() -> bytes:
    def line(message: dict[str, Any], **more: Any) -> bytes:
        head = {"model": "m", "created_at": "2026-01-01T00:00:00Z", "message": {"role": "assistant", **message}}
        return json.dumps({**head, "done": False, **more}, ensure_ascii=False).encode() + b"\n"

    calls = [
        {"id": f"call_{name}", "function": {"index": n, "name": name, "arguments": arguments}}
        for n, (name, arguments) in enumerate(zip(NAMES, ARGUMENTS, strict=True))
    ]
    end = {"done": True, "done_reason": "stop", "prompt_eval_count": 10, "eval_count": 20}
    return b"".join(
        [
            line({"content": "", "thinking": "Hm."}),
            line({"content": "Let me "}),
            line({"content": "look."}),
            line({"content": "", "tool_calls": calls[:1]}),
            line({"content": "", "tool_calls": calls[1:]}),
            line({"content": ""}, **end),
        ]
    )


def _cohere() -> bytes:
    def delta(kind: str, message: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"type": kind, **more, "delta": {"message": message}}

    events = [
        delta("message-start", {"role": "assistant", "content": [], "tool_calls": []}, id="r"),
        delta("content-start", {"content": {"type": "text", "text": ""}}, index=0),
        delta("content-delta", {"content": {"text": "Let me look."}}, index=0),
        {"type": "content-end", "index": 0},
        delta("tool-plan-delta", {"tool_plan": "Hm."}),
    ]
    for index, (name, arguments) in enumerate(zip(NAMES, ARGUMENTS, strict=True)):
        call = {"id": f"{name}_1", "type": "function", "function": {"name": name, "arguments": ""}}
        events.append(delta("tool-call-start", {"tool_calls": call}, index=index))
        for text in _split(json.dumps(arguments)):
            events.append(delta("tool-call-delta", {"tool_calls": {"function": {"arguments": text}}}, index=index))
        events.append({"type": "tool-call-end", "index": index})
    usage = {"tokens": {"input_tokens": 10, "output_tokens": 20}}
    events.append({"type": "message-end", "delta": {"finish_reason": "TOOL_CALL", "usage": usage}})
    return _events(*events)


def _bedrock() -> bytes:
    def block(index: int, *deltas: dict[str, Any], start: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        at = {"contentBlockIndex": index}
        begun = [{"contentBlockStart": {"start": start, **at}}] if start else []
        return [*begun, *({"contentBlockDelta": {"delta": each, **at}} for each in deltas), {"contentBlockStop": at}]

    events: list[dict[str, Any]] = [{"messageStart": {"role": "assistant"}}]
    events += block(0, {"reasoningContent": {"text": "Hm."}}, {"reasoningContent": {"signature": "c2ln"}})
    events += block(1, {"text": "Let me "}, {"text": "look."})
    for index, (name, arguments) in enumerate(zip(NAMES, ARGUMENTS, strict=True), start=2):
        pieces = [{"toolUse": {"input": text}} for text in _split(json.dumps(arguments))]
        events += block(index, *pieces, start={"toolUse": {"toolUseId": f"tooluse_{name}", "name": name}})
    events.append({"messageStop": {"stopReason": "tool_use"}})
    events.append({"metadata": {"usage": {"inputTokens": 10, "outputTokens": 20, "totalTokens": 30}}})
    return frames(*events)


def frames(*events: dict[str, Any]) -> bytes:
    """Amazon's binary frames, one for each event."""
    return b"".join(write_frame(json.dumps(event, separators=(",", ":")).encode()) for event in events)


SAMPLES: list[tuple[str, bytes]] = [
    ("openai-chat", _chat()),
    ("openai-chat", _chat_whole()),
    ("anthropic-messages", _anthropic()),
    ("openai-responses", _responses()),
    ("gemini", sse(*_gemini_chunks(), done=False)),
    ("ollama", _ollama()),
    ("cohere-v2", _cohere()),
    ("bedrock-converse", _bedrock()),
    ("gemini", b"[" + b"\n,\r\n".join(json.dumps(c, indent=2).encode() for c in _gemini_chunks()) + b"\n]"),
]
