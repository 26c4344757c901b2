"""The numbers of the decoder: `make bench`. Ratios of CPU time, measured in pairs side by side; the median.

The load: one streamed tool call of 256 KB of arguments in deltas of 8 characters, fed in reads of 4 KB. Against it:
the same events split and parsed with orjson and nothing else (the floor), and the official `openai` package reading
the same bytes from an in-process transport. Then 256 KB of prose in the same deltas and reads, with and without the
search for calls that leaked into the text, in all dialects at once.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import httpx2 as httpx
import openai
import orjson

from unbroken import Decoder

READ = 4096
KB = 1024


def event(delta: object, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    head = {"id": "chatcmpl-9f8e7d6c5b4a39281706f5e4", "object": "chat.completion.chunk", "created": 1760000000}
    return b"data: " + orjson.dumps({**head, "model": "gpt-5", "choices": [choice], "usage": None}) + b"\n\n"


def stream(size: int, piece: int = 8) -> bytes:
    """A response as api.openai.com sends it: one call, its arguments in small deltas."""
    arguments = json.dumps({"path": "report.md", "text": "lorem ipsum " * (size // 12)})[: size - 2] + '"}'
    function = {"name": "write_file", "arguments": ""}
    first = {"index": 0, "id": "call_1", "type": "function", "function": function}
    events = [event({"role": "assistant", "content": None, "tool_calls": [first]})]
    for at in range(0, len(arguments), piece):
        part = {"index": 0, "function": {"arguments": arguments[at : at + piece]}}
        events.append(event({"tool_calls": [part]}))
    return b"".join([*events, event({}, "tool_calls"), b"data: [DONE]\n\n"])


PROSE = (
    "It rained all night, and by the morning the river had risen over the lower meadow. Three of the older boats were "
    "gone; the fourth hung on its rope, half full of leaves and water.\n\nNobody had slept much. "
)


def prose(size: int, piece: int = 8) -> bytes:
    """A response that is plain text."""
    text = (PROSE * (size // len(PROSE) + 1))[:size]
    events = [event({"content": text[at : at + piece]}) for at in range(0, size, piece)]
    return b"".join([event({"role": "assistant", "content": ""}), *events, event({}, "stop"), b"data: [DONE]\n\n"])


def read_prose(pieces: list[bytes], tools: list[str] | None) -> int:
    decoder = Decoder("openai-chat", tools)
    for piece in pieces:
        decoder.feed(piece)
    return len(decoder.response().text)


def reads(body: bytes) -> list[bytes]:
    return [body[at : at + READ] for at in range(0, len(body), READ)]


def with_unbroken(pieces: list[bytes]) -> int:
    decoder = Decoder("openai-chat")
    for piece in pieces:
        decoder.feed(piece)
    (call,) = decoder.response().calls
    assert call.complete
    return len(call.raw)


def with_orjson_alone(body: bytes) -> int:
    events = 0
    for event in body.split(b"\n\n"):
        if event.startswith(b"data: ") and event != b"data: [DONE]":
            orjson.loads(event[6:])
            events += 1
    return events


class _Reads(httpx.SyncByteStream):
    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._pieces)


def with_openai(pieces: list[bytes]) -> int:
    """A hand-written loop over the official package, as its documentation shows it."""

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=_Reads(pieces))

    http = httpx.Client(transport=httpx.MockTransport(answer))
    client = openai.OpenAI(api_key="none", base_url="http://127.0.0.1:1/v1", http_client=http)
    arguments: list[str] = []
    chunks = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}], stream=True)
    for chunk in chunks:
        for choice in chunk.choices:
            for call in choice.delta.tool_calls or []:
                if call.function and call.function.arguments:
                    arguments.append(call.function.arguments)
    return len("".join(arguments))


def cpu(work: Callable[[], int]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def ratio(rounds: int, one: Callable[[], int], other: Callable[[], int]) -> float:
    """The median of one / other, each pair measured side by side: a slow moment of the machine meets both."""
    found: list[float] = []
    for number in range(rounds):
        first, second = (one, other) if number % 2 else (other, one)
        times = {first: cpu(first), second: cpu(second)}
        found.append(times[one] / times[other])
    return statistics.median(found)


def line(what: str, value: float, bound: str) -> None:
    print(f"{what:<66} {value:>8.2f}   {bound}")


def main() -> None:
    small, large = stream(256 * KB), stream(1024 * KB)
    small_reads, large_reads = reads(small), reads(large)
    print(f"{'256 KB of arguments in 8-character deltas, reads of 4 KB, CPU time':<66} {'ratio':>8}   wanted")

    def ours() -> int:
        return with_unbroken(small_reads)

    def four_times() -> int:
        return sum(with_unbroken(small_reads) for _ in range(4))

    floor = ratio(15, ours, lambda: with_orjson_alone(small))
    line("unbroken / splitting + orjson.loads of the same events", floor, "<= 3.2")
    growth = 4 * ratio(9, lambda: with_unbroken(large_reads), four_times)
    line("unbroken, 1 MB / 256 KB", growth, "<= 4.4")
    text_reads, tools = reads(prose(256 * KB)), ["read_file", "write_file", "run_command", "search", "get_weather"]
    search = ratio(15, lambda: read_prose(text_reads, tools), lambda: read_prose(text_reads, None))
    line("plain text with the search for leaked calls / without it", search, "<= 1.10")
    line("openai package / unbroken, the same bytes", ratio(3, lambda: with_openai(small_reads), ours), ">= 15")
    events, seconds = with_orjson_alone(small), min(cpu(ours) for _ in range(5))
    print(f"\n{events:,} events of {len(small) // events} bytes, {seconds / events * 1e6:.1f} us each")
    print(f"openai {openai.__version__}, Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
