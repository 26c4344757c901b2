"""How long `/healthz` takes while large requests are answered, beside how long it takes on an idle gateway: quantiles
of one run, so that a busy machine shows in both."""

from __future__ import annotations

import base64
import http.client
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import quantiles
from typing import Any

from gateway_processes import HOST, Server, gateway
from gateway_upstream import upstream

SIZE = 30_000_000
Object = dict[str, Any]


def chat(messages: list[Object], **more: Any) -> Object:
    return {"model": "calls", "messages": messages, **more}


def said(text: str) -> Object:
    return {"role": "user", "content": text}


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


def tool(number: int, fields: int) -> Object:
    properties = {f"field_{at}": {"type": "string", "description": "What it is."} for at in range(fields)}
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": f"tool_{number}", "parameters": parameters}}


def history(messages: int, size: int) -> list[Object]:
    """Calls and their results, as an agent has them."""
    turns: list[Object] = [said("Begin.")]
    for at in range(messages // 2):
        call = {"id": f"call_{at:08}", "type": "function", "function": {"name": "read", "arguments": '{"at": 1}'}}
        turns.append({"role": "assistant", "content": None, "tool_calls": [call]})
        turns.append({"role": "tool", "tool_call_id": call["id"], "content": "x" * size})
    return turns


def bodies() -> Iterator[tuple[str, str, Object]]:
    """A name, a path, a body."""
    path = "/v1/chat/completions"
    image = base64.b64encode(os.urandom(SIZE * 3 // 4)).decode()
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}}
    yield "a million small messages", path, chat([said("hi")] * 1_000_000)
    yield "80,000 small messages", path, chat([said("hi")] * 80_000)
    yield "80,000 small messages, one call at a time", path, chat([said("hi")] * 80_000, parallel_tool_calls=False)
    yield "20,000 calls and results", path, chat(history(20_000, 1000))
    yield "20,000 calls and results, another wire", path, {**chat(history(20_000, 1000)), "model": "crossed"}
    yield "one text of 30 MB", path, chat([said("x" * SIZE)])
    yield "one text of 30 MB full of escapes", path, chat([said("\n" * (SIZE // 2))])
    yield "an image of 30 MB", path, chat([{"role": "user", "content": [picture]}])
    yield (
        "an image of 30 MB, another wire",
        path,
        {**chat([{"role": "user", "content": [picture]}]), "model": "crossed"},
    )
    yield "4,000 tools", path, chat([said("hi")], tools=[tool(at, 5) for at in range(4000)])
    yield "one tool with 50,000 fields", path, chat([said("hi")], tools=[tool(0, 50_000)])
    yield "nested 500 deep, many times", path, chat([said("hi")], x=[nested(500)] * 500)
    for more in ({}, {"stream": True}):
        named = f"an answer of 1,000 calls{', streamed' if more else ''}"
        yield named, path, {**chat([said("hi")], **more), "model": "many"}
        yield (
            f"{named}, one at a time",
            path,
            {**chat([said("hi")], parallel_tool_calls=False, **more), "model": "many"},
        )
    yield "embeddings of 10 MB", "/v1/embeddings", {"model": "calls", "input": ["x" * 1000] * 10_000}


def ask(port: int, path: str, data: bytes, answer: list[str]) -> None:
    connection = http.client.HTTPConnection(HOST, port, timeout=300)
    began = time.perf_counter()
    connection.request("POST", path, data, {"Content-Type": "application/json"})
    response = connection.getresponse()
    response.read()
    answer.append(f"{response.status} after {time.perf_counter() - began:.1f} s")
    connection.close()


def pings(port: int, until: Callable[[], bool]) -> list[float]:
    """Milliseconds of each GET /healthz, one after the other."""
    connection = http.client.HTTPConnection(HOST, port, timeout=300)
    took: list[float] = []
    while not until() or len(took) < 20:
        began = time.perf_counter()
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        took.append(1000 * (time.perf_counter() - began))
        time.sleep(0.002)
    connection.close()
    return took


def show(name: str, took: list[float], answer: str, server: Server) -> None:
    tenths = quantiles(took, n=100)
    print(
        f"{name:45} {tenths[49]:7.1f} {tenths[98]:8.1f} {max(took):8.1f} {server.megabytes():7.0f}  {answer}",
        flush=True,
    )


def measure(server: Server, wanted: str) -> None:
    print(f"{'/healthz in ms':45} {'median':>7} {'99 %':>8} {'longest':>8} {'MB':>7}  the large request")
    until = time.perf_counter() + 2
    show("idle", pings(server.port, lambda: time.perf_counter() > until), "", server)
    for name, path, body in bodies():
        if wanted not in name:
            continue
        answer: list[str] = []
        data = json.dumps(body).encode()
        del body
        asking = threading.Thread(target=ask, args=(server.port, path, data, answer))
        asking.start()
        took = pings(server.port, lambda asking=asking: not asking.is_alive())
        asking.join()
        show(name, took, answer[0] if answer else "no answer", server)
    print(f"peak memory {server.peak_megabytes():.0f} MB")


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        upstream() as provider,
        gateway(provider, Path(folder)) as server,
    ):
        measure(server, sys.argv[1] if len(sys.argv) > 1 else "")


if __name__ == "__main__":
    main()
