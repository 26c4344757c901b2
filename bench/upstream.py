"""The upstream of the benches: a bare server in a process of its own, so that its CPU time is not counted.

It answers any POST on a kept connection: if the request holds no tool result yet with three calls in 20 deltas, else
with text. `--pause` seconds are slept between two chunks.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HEAD = {"id": "chatcmpl-9f8e7d6c5b4a39281706f5e4", "object": "chat.completion.chunk", "created": 1760000000}
CITIES = ("Reykjavik", "Montevideo", "Ulaanbaatar")


def event(delta: object, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({**HEAD, "model": "gpt-5", "choices": [choice]}).encode() + b"\n\n"


def calls() -> list[bytes]:
    """Three calls in 20 deltas: each has one that opens it and five or six with its arguments."""
    events: list[bytes] = []
    for index, city in enumerate(CITIES):
        function = {"name": "get_weather", "arguments": ""}
        opening = {"index": index, "id": f"call_{index}", "type": "function", "function": function}
        events.append(event({"tool_calls": [opening]}))
        arguments = json.dumps({"city": city, "days": index + 1})
        count = 6 if index < 2 else 5
        size = -(-len(arguments) // count)
        for at in range(0, len(arguments), size):
            part = {"index": index, "function": {"arguments": arguments[at : at + size]}}
            events.append(event({"tool_calls": [part]}))
    assert len(events) == 20, len(events)
    return [*events, event({}, "tool_calls"), b"data: [DONE]\n\n"]


def text() -> list[bytes]:
    words = ["It", "is", "sunny", "in", "all", "three", "of", "them", "and", "will", "stay", "so."]
    return [*(event({"content": f"{word} "}) for word in words), event({}, "stop"), b"data: [DONE]\n\n"]


def chunked(events: list[bytes]) -> list[bytes]:
    return [f"{len(each):x}\r\n".encode() + each + b"\r\n" for each in events] + [b"0\r\n\r\n"]


CALLS, TEXT = chunked(calls()), chunked(text())
START = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


async def serve(pause: float) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")
                )
                body = await reader.readexactly(length)
                chunks = TEXT if b'"tool_call_id"' in body else CALLS
                writer.write(START)
                if not pause:
                    writer.write(b"".join(chunks))
                    continue
                for chunk in chunks:
                    writer.write(chunk)
                    await asyncio.sleep(pause)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


@contextmanager
def upstream(pause: float = 0.0) -> Iterator[str]:
    """The address of a server that lives as long as the context."""
    command = [sys.executable, str(Path(__file__)), "--pause", str(pause)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}/v1"
        finally:
            process.terminate()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--pause", type=float, default=0.0)
    asyncio.run(serve(parser.parse_args().pause))
