"""For the tests of the gateway: reads answers like the official clients, strictly by their wire. Our own decoder
tolerates what they reject."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from unbroken_wires.wires.framing import EVENT_STREAM

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Heard:
    text: str
    calls: list[tuple[str, str, Object]]
    """Id, name and arguments of each."""
    finish: str


def read(wire: str, data: bytes, stream: bool) -> Heard:
    """Raises `AssertionError` if the official client of the wire would fail."""
    heard = _READERS[wire](data, stream)
    ids = [id for id, _, _ in heard.calls]
    if wire not in ("gemini", "ollama"):
        assert all(ids), f"a call has no id: {heard.calls}"
        assert len(set(ids)) == len(ids), f"two calls share an id: {ids}"
    return heard


def events_in(data: bytes) -> list[tuple[str, str]]:
    """Server-sent events: the name of each, and its data."""
    data = data.replace(b"\r\n", b"\n")
    assert data.endswith(b"\n\n"), f"the last event has no end: {data[-80:]!r}"
    events: list[tuple[str, str]] = []
    for event in data.decode().split("\n\n"):
        lines = [line.partition(":") for line in event.split("\n") if line and not line.startswith(":")]
        name = "".join(value.strip() for field, _, value in lines if field == "event")
        texts = [value.lstrip(" ") for field, _, value in lines if field == "data"]
        if texts:
            events.append((name, "\n".join(texts)))
    return events


def _arguments(text: Any) -> Object:
    assert isinstance(text, str), f"arguments are no text: {text!r}"
    value: Any = json.loads(text or "{}")
    assert isinstance(value, dict), f"arguments are no object: {text!r}"
    return cast("Object", value)


def _read_chat(data: bytes, stream: bool) -> Heard:
    if not stream:
        choice = json.loads(data)["choices"][0]
        message = choice["message"]
        made: list[Object] = message.get("tool_calls") or []
        calls = [(c["id"], c["function"]["name"], _arguments(c["function"]["arguments"])) for c in made]
        return Heard(message.get("content") or "", calls, choice["finish_reason"])
    *events, last = [text for _, text in events_in(data)]
    assert last == "[DONE]", f"the stream ends with {last[:100]}"
    text, finish = "", ""
    pieces: dict[int, list[str]] = {}
    for event in map(json.loads, events):
        assert not event.get("error"), event
        for choice in event["choices"]:
            delta = choice["delta"]
            text += delta.get("content") or ""
            new: list[Object] = delta.get("tool_calls") or []
            for piece in new:
                assert isinstance(piece["index"], int), piece
                call = pieces.setdefault(piece["index"], ["", "", ""])
                function: Object = piece.get("function") or {}
                said = (piece.get("id"), function.get("name"), function.get("arguments"))
                for at, value in enumerate(said):
                    assert value is None or isinstance(value, str), piece
                    call[at] += value or ""
            finish = choice.get("finish_reason") or finish
    assert finish, "no finish_reason"
    assert sorted(pieces) == list(range(len(pieces))), f"the indexes are {sorted(pieces)}"
    return Heard(text, [(id, name, _arguments(raw)) for _, (id, name, raw) in sorted(pieces.items())], finish)


def _read_messages(data: bytes, stream: bool) -> Heard:
    if not stream:
        body = json.loads(data)
        assert body["type"] == "message", body
        blocks: list[Object] = body["content"]
        return Heard(_texts(blocks), _tool_uses(blocks), body["stop_reason"])
    blocks, raws, stop, is_open = list[Object](), list[str](), "", False
    # The SDKs skip a ping wherever it is.
    events = [(name, json.loads(text)) for name, text in events_in(data) if name != "ping"]
    assert [event["type"] for _, event in events].count("message_start") == 1
    assert events[0][1]["type"] == "message_start"
    assert events[-1][1]["type"] == "message_stop", events[-1]
    for name, event in events:
        assert name == event["type"], f"an event of type {event['type']} is named {name!r}"
        match event["type"]:
            case "error":
                raise AssertionError(event)
            case "content_block_start":
                assert not is_open, "two blocks are open"
                assert event["index"] == len(blocks), f"block {len(blocks)} has the index {event['index']}"
                is_open = True
                blocks.append({**event["content_block"]})
                raws.append("")
            case "content_block_delta":
                assert is_open, "a delta of no block"
                assert event["index"] == len(blocks) - 1, event
                delta = event["delta"]
                if delta["type"] == "text_delta":
                    blocks[-1]["text"] += delta["text"]
                elif delta["type"] == "input_json_delta":
                    raws[-1] += delta["partial_json"]
            case "content_block_stop":
                assert is_open, "the end of no block"
                assert event["index"] == len(blocks) - 1, event
                is_open = False
            case "message_delta":
                stop = event["delta"].get("stop_reason") or stop
            case _:
                pass
    assert not is_open, "a block has no end"
    assert stop, "no stop_reason"
    for block, raw in zip(blocks, raws, strict=True):
        if raw:
            block["input"] = _arguments(raw)
    return Heard(_texts(blocks), _tool_uses(blocks), stop)


def _texts(blocks: list[Object]) -> str:
    return "".join(block["text"] for block in blocks if block["type"] == "text")


def _tool_uses(blocks: list[Object]) -> list[tuple[str, str, Object]]:
    calls = [block for block in blocks if block["type"] == "tool_use"]
    assert all(isinstance(call["input"], dict) for call in calls), calls
    return [(call["id"], call["name"], call["input"]) for call in calls]


def _read_responses(data: bytes, stream: bool) -> Heard:
    if not stream:
        return _response(json.loads(data))
    items: dict[int, Object] = {}
    said = ""
    events = [(name, json.loads(text)) for name, text in events_in(data)]
    for name, event in events:
        assert name == event["type"], f"an event of type {event['type']} is named {name!r}"
        assert event["type"] not in ("error", "response.failed"), event
        match event["type"]:
            case "response.output_item.added":
                assert event["output_index"] not in items, f"two items at {event['output_index']}"
                items[event["output_index"]] = {}
            case "response.output_item.done":
                assert items.get(event["output_index"]) == {}, f"the end of no item at {event['output_index']}"
                items[event["output_index"]] = event["item"]
            case "response.output_text.delta":
                said += event["delta"]
            case _:
                pass
    assert all(items.values()), "an item has no end"
    last = events[-1][1]
    assert last["type"] in ("response.completed", "response.incomplete"), last["type"]
    heard = _response(last["response"])
    assert said == heard.text, "the last event says something else than those before"
    ids = [item["call_id"] for _, item in sorted(items.items()) if item["type"] == "function_call"]
    assert ids == [id for id, _, _ in heard.calls], "the last event has other calls than those before"
    return heard


def _response(body: Object) -> Heard:
    assert not body.get("error"), body
    output: list[Object] = body["output"]
    text = "".join(part["text"] for item in output if item["type"] == "message" for part in item["content"])
    calls = [item for item in output if item["type"] == "function_call"]
    return Heard(
        text, [(call["call_id"], call["name"], _arguments(call["arguments"])) for call in calls], body["status"]
    )


def _read_gemini(data: bytes, stream: bool) -> Heard:
    bodies = [json.loads(text) for _, text in events_in(data)] if stream else [json.loads(data)]
    text, finish = "", ""
    calls: list[tuple[str, str, Object]] = []
    for body in bodies:
        assert "error" not in body, body
        for candidate in body.get("candidates", [])[:1]:
            for part in candidate.get("content", {}).get("parts", []):
                if "text" in part and not part.get("thought"):
                    text += part["text"]
                if call := part.get("functionCall"):
                    arguments: Any = call.get("args", {})
                    assert isinstance(arguments, dict), f"args are no object: {arguments!r}"
                    calls.append((call.get("id", ""), call["name"], cast("Object", arguments)))
            finish = candidate.get("finishReason") or finish
    assert finish, "no finishReason"
    return Heard(text, calls, finish)


def _read_ollama(data: bytes, stream: bool) -> Heard:
    assert not stream or data.endswith(b"\n"), f"the last line has no end: {data[-80:]!r}"
    lines = [json.loads(line) for line in data.splitlines()] if stream else [json.loads(data)]
    *_, last = lines
    assert [line["done"] for line in lines] == sorted(line["done"] for line in lines), "something follows the end"
    assert last["done"], "no end"
    text, calls = "", list[tuple[str, str, Object]]()
    for line in lines:
        assert "error" not in line, line
        text += line["message"]["content"]
        made: list[Object] = line["message"].get("tool_calls") or []
        for call in made:
            assert isinstance(call["function"]["arguments"], dict), call
            calls.append((call.get("id", ""), call["function"]["name"], call["function"]["arguments"]))
    return Heard(text, calls, last["done_reason"])


def _read_cohere(data: bytes, stream: bool) -> Heard:
    if not stream:
        body = json.loads(data)
        message = body["message"]
        blocks: list[Object] = message.get("content") or []
        made: list[Object] = message.get("tool_calls") or []
        calls = [(c["id"], c["function"]["name"], _arguments(c["function"]["arguments"])) for c in made]
        return Heard(_texts(blocks), calls, body["finish_reason"])
    events = [(name, json.loads(text)) for name, text in events_in(data) if text != "[DONE]"]
    assert all(name == event["type"] for name, event in events), events
    assert (events[0][0], events[-1][0]) == ("message-start", "message-end")
    text, begun, is_open = "", list[list[str]](), ""
    for name, event in events[1:-1]:
        message = event.get("delta", {}).get("message", {})
        match name:
            case "content-start" | "tool-call-start":
                assert not is_open, f"{name} while something is open"
                is_open = name.removesuffix("-start")
                if name == "tool-call-start":
                    assert event["index"] == len(begun), event
                    begun.append([message["tool_calls"]["id"], message["tool_calls"]["function"]["name"], ""])
            case "content-delta":
                assert is_open == "content", event
                text += message["content"].get("text", "")
            case "tool-call-delta":
                assert (is_open, event["index"]) == ("tool-call", len(begun) - 1), event
                begun[-1][2] += message["tool_calls"]["function"]["arguments"]
            case "content-end" | "tool-call-end":
                assert is_open == name.removesuffix("-end"), event
                is_open = ""
            case _:
                pass
    assert not is_open, f"{is_open} has no end"
    finish = events[-1][1]["delta"]["finish_reason"]
    assert finish != "ERROR", events[-1]
    return Heard(text, [(id, name, _arguments(raw)) for id, name, raw in begun], finish)


def _read_bedrock(data: bytes, stream: bool) -> Heard:
    if not stream:
        body = json.loads(data)
        blocks: list[Object] = body["output"]["message"]["content"]
        uses = [use for block in blocks if (use := block.get("toolUse")) and use.get("type") != "server_tool_use"]
        assert all(isinstance(use["input"], dict) for use in uses), uses
        text = "".join(block.get("text", "") for block in blocks)
        return Heard(text, [(use["toolUseId"], use["name"], use["input"]) for use in uses], body["stopReason"])
    assert EVENT_STREAM.complete(data, len(data)) == len(data), "the last frame is cut"
    events = [next(iter(json.loads(text).items())) for text in EVENT_STREAM.texts(data)]
    events = [(name, event) for name, event in events if name != "keepAlive"]  # botocore does not know it, and skips it
    names = [name for name, _ in events]
    assert (names[0], names[-2:]) == ("messageStart", ["messageStop", "metadata"]), names
    text, begun, last, is_open = "", dict[int, list[str]](), -1, False
    for name, event in events[1:-1]:
        if name == "messageStop":
            continue
        index = event["contentBlockIndex"]
        match name:
            case "contentBlockStart":
                assert not is_open, "two blocks are open"
                assert index > last, f"block {index} comes after block {last}"
                last, is_open = index, True
                use = event["start"].get("toolUse", {"type": "server_tool_use"})
                if use.get("type") != "server_tool_use":
                    begun[index] = [use["toolUseId"], use["name"], ""]
            case "contentBlockDelta":
                assert index == last if is_open else index > last, event
                last, is_open = index, True
                text += event["delta"].get("text", "")
                if index in begun:
                    begun[index][2] += event["delta"]["toolUse"]["input"]
            case "contentBlockStop":
                assert (index, is_open) == (last, True), event
                is_open = False
            case _:
                raise AssertionError(event)
    assert not is_open, "a block has no end"
    calls = [(id, name, _arguments(raw)) for id, name, raw in begun.values()]
    return Heard(text, calls, events[-2][1]["stopReason"])


_READERS: dict[str, Callable[[bytes, bool], Heard]] = {
    "openai-chat": _read_chat,
    "openai-responses": _read_responses,
    "anthropic-messages": _read_messages,
    "gemini": _read_gemini,
    "ollama": _read_ollama,
    "cohere-v2": _read_cohere,
    "bedrock-converse": _read_bedrock,
}
