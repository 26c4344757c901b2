"""The upstream of the gateway's benches: fixed bytes, so that it costs next to nothing beside what is measured.

What it answers is said by the model it is asked for. `calls`: three calls, and text once there are results; whole in
1 KB or streamed in 20 deltas. `many`: 1,000 calls. `burst`: 2,000 chunks of text at once; `drip`: the same, each in a
write of its own. `slow`: 20 deltas, 5 ms apart. `marks`: what the load wants (`gateway_load`): the mark of the request
given back, 5 % of the streams cut off. It speaks openai-chat and, for `calls`, anthropic. `GET /report` shows what it
has seen.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import uvloop

BURST = 2000
MANY = 1000
CITIES = ("Reykjavik", "Montevideo", "Ulaanbaatar")
ID = b"@@@@@@@@"
"""Where the number of the answer stands in its ids: as long as the number, so that no length changes."""
HEAD = {"id": "chatcmpl-@@@@@@@@", "created": 1760000000, "model": "bench"}
USAGE = {"prompt_tokens": 210, "completion_tokens": 48, "total_tokens": 258}

WHOLE = b"HTTP/1.1 %d OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"

_MODEL = re.compile(rb'"model": ?"([^"]*)"')
_STREAM = re.compile(rb'"stream": ?true')
_MARK = re.compile(rb"mark-[0-9a-f]{10}")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


def whole(answer: object, status: int = 200) -> bytes:
    body = orjson.dumps(answer)
    return WHOLE % (status, len(body)) + body


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(delta: object, finish: str | None = None, **more: object) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return b"data: " + orjson.dumps({**HEAD, "object": "chat.completion.chunk", "choices": [choice], **more}) + b"\n\n"


def chat_whole(text: str | None, calls: list[dict[str, Any]], padding: str = "") -> bytes:
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None, "annotations": []}
    if calls:
        message["tool_calls"] = calls
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": "tool_calls" if calls else "stop",
    }
    more = {"service_tier": "default", "system_fingerprint": f"fp_{padding}"}
    return whole({**HEAD, "object": "chat.completion", "choices": [choice], "usage": USAGE, **more})


def chat_calls(arguments: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call_@@@@@@@@_{index}",
            "type": "function",
            "function": {"name": name, "arguments": orjson.dumps(each).decode()},
        }
        for index, each in enumerate(arguments)
    ]


def chat_stream(text: str, calls: list[dict[str, Any]], deltas: int = 6) -> list[bytes]:
    """The events: the text word by word, each call in one delta that opens it and `deltas` with its arguments."""
    events = [event({"role": "assistant", "content": None if calls and not text else ""})]
    events += [event({"content": f"{word} "}) for word in text.split()]
    for index, call in enumerate(calls):
        function = {"name": call["function"]["name"], "arguments": ""}
        events.append(event({"tool_calls": [{**call, "index": index, "function": function}]}))
        arguments = call["function"]["arguments"]
        size = -(-len(arguments) // deltas)
        for at in range(0, len(arguments), size):
            events.append(
                event({"tool_calls": [{"index": index, "function": {"arguments": arguments[at : at + size]}}]})
            )
    events.append(event({}, "tool_calls" if calls else "stop"))
    return [*events, event({}, usage=USAGE, choices=[]), b"data: [DONE]\n\n"]


@cache
def weather_calls() -> list[dict[str, Any]]:
    return chat_calls([{"city": city, "days": n + 1} for n, city in enumerate(CITIES)], "get_weather")


@cache
def many_calls() -> list[dict[str, Any]]:
    return chat_calls([{"at": at} for at in range(MANY)], "read")


SUNNY = "It is sunny in all three of them and it will stay so for the next days. "


def anthropic_blocks(has_results: bool) -> list[dict[str, Any]]:
    if has_results:
        return [{"type": "text", "text": SUNNY}]
    return [
        {
            "type": "tool_use",
            "id": f"toolu_@@@@@@@@_{n}",
            "name": "get_weather",
            "input": {"city": city, "days": n + 1},
        }
        for n, city in enumerate(CITIES)
    ]


def anthropic_message(content: list[dict[str, Any]], stop: str | None, written: int) -> dict[str, Any]:
    usage = {"input_tokens": 210, "output_tokens": written}
    head = {"id": "msg_@@@@@@@@", "type": "message", "role": "assistant", "model": "bench"}
    return {**head, "content": content, "stop_reason": stop, "stop_sequence": None, "usage": usage}


def anthropic_stream(blocks: list[dict[str, Any]], stop: str) -> list[bytes]:
    def written(kind: str, **fields: object) -> bytes:
        return f"event: {kind}\ndata: ".encode() + orjson.dumps({"type": kind, **fields}) + b"\n\n"

    events = [written("message_start", message=anthropic_message([], None, 1))]
    for index, block in enumerate(blocks):
        if block["type"] == "text":
            events.append(written("content_block_start", index=index, content_block={"type": "text", "text": ""}))
            pieces = [{"type": "text_delta", "text": f"{word} "} for word in block["text"].split()]
        else:
            events.append(written("content_block_start", index=index, content_block={**block, "input": {}}))
            arguments = orjson.dumps(block["input"]).decode()
            pieces = [
                {"type": "input_json_delta", "partial_json": arguments[at : at + 8]}
                for at in range(0, len(arguments), 8)
            ]
        events += [written("content_block_delta", index=index, delta=piece) for piece in pieces]
        events.append(written("content_block_stop", index=index))
    end = {"stop_reason": stop, "stop_sequence": None}
    return [*events, written("message_delta", delta=end, usage={"output_tokens": 48}), written("message_stop")]


def streamed(events: list[bytes]) -> list[bytes]:
    """What goes out for them, one item for each write that a slow server would make."""
    chunks = [chunk(each) for each in events]
    return [STREAM + chunks[0], *chunks[1:], b"0\r\n\r\n"]


@cache
def answer(model: bytes, wire: str, stream: bool, has_results: bool) -> list[bytes]:
    """The fixed answers, with `ID` where their number stands."""
    if wire == "anthropic":
        blocks, stop = anthropic_blocks(has_results), "end_turn" if has_results else "tool_use"
        if stream:
            return streamed(anthropic_stream(blocks, stop))
        return [whole(anthropic_message(blocks, stop, 48))]
    if model in (b"burst", b"drip"):
        words = [event({"content": f"word{n} "}) for n in range(BURST - 4)]
        first, last = event({"role": "assistant", "content": ""}), event({}, "stop")
        return streamed([first, *words, last, event({}, usage=USAGE, choices=[]), b"data: [DONE]\n\n"])
    calls = [] if has_results else many_calls() if model == b"many" else weather_calls()
    if stream:
        return streamed(chat_stream(SUNNY if has_results else "", calls))
    return [chat_whole(SUNNY if has_results else None, calls, "f" * 260)]


@cache
def whole_bytes(model: bytes, wire: str, stream: bool, has_results: bool) -> bytes:
    return b"".join(answer(model, wire, stream, has_results))


def marked_text(mark: str) -> str:
    return f"This is for {mark} and for nobody else, says the model. "


def marked_arguments(mark: str, count: int) -> list[dict[str, Any]]:
    return [{"mark": mark, "part": n, "of": count} for n in range(count)]


@dataclass(slots=True)
class Stall:
    """An answer that stopped in the middle, for a client that goes away then. Times of the machine's monotonic clock:
    they mean the same in all of its processes."""

    stalled: float
    lost: float = 0.0


class Seen:
    """What all connections have seen, and how the streams are broken."""

    def __init__(self, broken: float, seed: int) -> None:
        self.number = 0
        self.open = 0
        self.counts: Counter[str] = Counter()
        self.odd: list[str] = []
        self.stalls: dict[str, Stall] = {}
        self._broken = broken
        self._random = random.Random(seed)

    def next_id(self) -> bytes:
        self.number += 1
        return b"%08x" % self.number

    def cut_of(self, size: int) -> int:
        """After how many bytes this stream ends too early; 0 if it does not."""
        return self._random.randrange(1, size) if self._random.random() < self._broken else 0

    def report(self) -> bytes:
        stalls = {mark: asdict(stall) for mark, stall in self.stalls.items()}
        return whole({"open": self.open, "counts": self.counts, "odd": self.odd, "stalls": stalls})


class Connection(asyncio.Protocol):
    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._buffer = b""
        self._stall: Stall | None = None
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._seen.open += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self._seen.open -= 1
        if self._stall is not None:
            self._stall.lost = time.monotonic()

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            length = _LENGTH.search(self._buffer, 0, end + 2)
            stop = end + 4 + (int(length[1]) if length else 0)
            if len(self._buffer) < stop:
                return
            head, body, self._buffer = self._buffer[:end], self._buffer[end + 4 : stop], self._buffer[stop:]
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"GET /report"):
            self._transport.write(self._seen.report())
            return
        if head.startswith(b"GET"):
            models = [{"id": "calls", "object": "model", "created": 1760000000, "owned_by": "bench"}]
            self._transport.write(whole({"object": "list", "data": models}))
            return
        wire = "anthropic" if b"/messages" in head[:60] else "openai-chat"
        found = _MODEL.search(body)
        model = found[1] if found else b"calls"
        stream = _STREAM.search(body) is not None
        if model == b"marks":
            self._answer_marked(body, stream)
            return
        has_results = b'"tool_call_id"' in body or b'"tool_result"' in body
        if model in (b"slow", b"drip"):
            chunks = answer(model, wire, stream, has_results)
            self._write_later(iter(chunks), 0.005 if model == b"slow" else 0.0)
            return
        self._transport.write(whole_bytes(model, wire, stream, has_results).replace(ID, self._seen.next_id()))

    def _write_later(self, chunks: Iterator[bytes], pause: float) -> None:
        if (data := next(chunks, None)) is None or self._transport.is_closing():
            return
        self._transport.write(data)
        asyncio.get_running_loop().call_later(pause, self._write_later, chunks, pause)

    def _answer_marked(self, body: bytes, stream: bool) -> None:
        seen, found = self._seen, _MARK.search(body)
        mark = found[0].decode() if found else "unmarked"
        seen.counts["streamed" if stream else "whole"] += 1
        if b"please refuse" in body:
            seen.counts["refused"] += 1
            error = {"message": f"refused for {mark}", "type": "invalid_request_error", "param": None, "code": None}
            self._transport.write(whole({"error": error}, 400))
            return
        count = 3 if b"please call three" in body else 1
        text, calls = marked_text(mark), chat_calls(marked_arguments(mark, count), "note")
        if b'"tool_call_id"' in body:
            calls = []
            if wrong := wrong_history(orjson.loads(body), mark, count):
                seen.odd.append(f"{mark}: {wrong}")
        stalls = b"please stall" in body
        if not stream:
            if stalls:
                self._begin_stall(mark)
            else:
                self._transport.write(chat_whole(text, calls).replace(ID, seen.next_id()))
            return
        data = b"".join(streamed(chat_stream(text, calls))).replace(ID, seen.next_id())
        if stalls:
            self._transport.write(data[: len(data) // 2])
            self._begin_stall(mark)
        elif cut := seen.cut_of(len(data)):
            seen.counts["broken"] += 1
            self._transport.write(data[:cut])
            self._transport.close()
        else:
            self._transport.write(data)

    def _begin_stall(self, mark: str) -> None:
        self._stall = self._seen.stalls[mark] = Stall(time.monotonic())
        self._seen.counts["stalled"] += 1


def wrong_history(body: dict[str, Any], mark: str, count: int) -> str:
    """What is wrong with the conversation: it is a question, one message with all of its calls, and all results."""
    messages = [message for message in body["messages"] if message["role"] != "system"]
    roles = [message["role"] for message in messages]
    if roles != ["user", "assistant", *["tool"] * count]:
        return f"roles {roles}"
    called = [(call["id"], call["function"]["arguments"]) for call in messages[1].get("tool_calls", ())]
    if [id for id, _ in called] != [result["tool_call_id"] for result in messages[2:]]:
        return "results are not those of the calls, in their order"
    if [orjson.loads(arguments) for _, arguments in called] != marked_arguments(mark, count):
        return f"arguments {[arguments for _, arguments in called]}"
    if any(mark not in str(result["content"]) for result in messages[2:]):
        return "a result without the mark"
    return ""


async def serve(broken: float, seed: int) -> None:
    seen = Seen(broken, seed)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(seen), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


@contextmanager
def upstream(broken: float = 0.0, seed: int = 5) -> Generator[int]:
    """The port of a server that lives as long as the context, in a process of its own."""
    command = [sys.executable, str(Path(__file__)), "--broken", str(broken), "--seed", str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--broken", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=5)
    given = parser.parse_args()
    uvloop.run(serve(given.broken, given.seed))
