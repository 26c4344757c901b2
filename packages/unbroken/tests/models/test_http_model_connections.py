"""Connections of a model: kept and shared, replaced when dead, through proxies; and nothing is left behind."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import textwrap
from typing import cast

import pytest
from aiohttp import web
from model_servers import (
    CHAT,
    KEY,
    at,
    collect,
    serve,
    streams,
    text,
    verdict,
)

from unbroken.errors import (
    Unreachable,
)
from unbroken.models.connect import connect
from unbroken.models.sessions import close_session

# Connections


def test_connections_are_shared_by_models_and_runs() -> None:
    async def run() -> int:
        async with serve(streams(CHAT)) as server:
            for _ in range(3):
                await collect(at(server))
            return len(set(server.peers))

    assert asyncio.run(run()) == 1


def test_a_kept_connection_that_died_is_silently_replaced_once() -> None:
    async def run() -> list[int]:
        answered: list[int] = []

        class Closes(asyncio.Protocol):
            """Answers the first request of a connection and hangs up at the second."""

            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                assert isinstance(transport, asyncio.Transport)
                self.transport, self.count = transport, 0

            def data_received(self, data: bytes) -> None:
                if not data.startswith(b"POST"):
                    return
                self.count += 1
                answered.append(self.count)
                if self.count > 1:
                    self.transport.abort()
                    return
                body = b"".join(CHAT)
                self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

        server = await asyncio.get_running_loop().create_server(Closes, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        model = connect("openai:m", base_url=f"http://127.0.0.1:{port}/v1")
        for _ in range(2):
            assert verdict(await collect(model)).whole
        server.close()
        await close_session()
        return answered

    assert asyncio.run(run()) == [1, 2, 1]


def test_one_dead_connection_is_enough_to_open_a_new_one() -> None:
    async def run() -> None:
        together = asyncio.Barrier(5)
        answering: set[asyncio.Task[None]] = set()

        class Closes(asyncio.Protocol):
            """Answers the first request of a connection, when five are there, and hangs up at the second."""

            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                assert isinstance(transport, asyncio.Transport)
                self.transport, self.count = transport, 0

            def data_received(self, data: bytes) -> None:
                if not data.startswith(b"POST"):
                    return
                self.count += 1
                if self.count > 1:
                    self.transport.abort()
                    return
                answering.add(asyncio.ensure_future(self.answer()))

            async def answer(self) -> None:
                if not kept:
                    await together.wait()
                body = b"".join(CHAT)
                self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

        kept = False
        server = await asyncio.get_running_loop().create_server(Closes, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        model = connect("openai:m", base_url=f"http://127.0.0.1:{port}/v1")
        await asyncio.gather(*(collect(model) for _ in range(5)))
        kept = True
        assert verdict(await collect(model)).whole
        await asyncio.gather(*answering)
        server.close()
        await close_session()

    asyncio.run(run())


def test_a_fresh_connection_that_dies_is_not_retried() -> None:
    async def run() -> int:
        tries = 0

        class HangsUp(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                nonlocal tries
                tries += 1
                transport.close()

        server = await asyncio.get_running_loop().create_server(HangsUp, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Unreachable):
            await collect(connect("openai:m", base_url=f"http://127.0.0.1:{port}/v1").model)
        server.close()
        await close_session()
        return tries

    assert asyncio.run(run()) == 1


def test_parallel_runs_have_separate_connections() -> None:
    async def run() -> None:
        together = asyncio.Barrier(60)

        async def handler(request: web.Request) -> web.StreamResponse:
            await together.wait()
            return await streams(CHAT)(request)

        async with serve(handler) as server:
            model = at(server)
            async with asyncio.TaskGroup() as group:
                runs = [group.create_task(collect(model)) for _ in range(60)]
            assert all(text(task.result()) == "Hello there" for task in runs)

    asyncio.run(run())


def test_a_proxy_from_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with serve(streams(CHAT)) as proxy:
            monkeypatch.setenv("http_proxy", proxy.url.replace("http://", "http://me:pass@"))
            monkeypatch.delenv("no_proxy", raising=False)
            monkeypatch.delenv("NO_PROXY", raising=False)
            model = connect("openai:m", base_url="http://models.example/v1", api_key=KEY)
            assert text(await collect(model)) == "Hello there"
            (sent,) = proxy.requests
            assert sent.headers["Host"] == "models.example"
            assert sent.headers["Proxy-Authorization"].startswith("Basic ")
            assert sent.headers["Authorization"] == f"Bearer {KEY}"

    asyncio.run(run())


def test_a_proxy_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://me:secret@127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)

    async def run() -> None:
        with pytest.raises(Unreachable, match=r"the proxy http://127\.0\.0\.1:9 does not answer") as caught:
            await collect(connect("openai:m", api_key=KEY, wire="openai-chat"))
        assert "secret" not in str(caught.value)
        await close_session()

    asyncio.run(run())


# Nothing is left behind

SERVER = """
import asyncio, gc, threading
from aiohttp import web
from unbroken_wires.messages import Request, User
from unbroken.models.sessions import close_session
from unbroken.models.connect import connect

async def handler(request):
    response = web.StreamResponse()
    try:
        await response.prepare(request)
        await response.write(b'data: {"choices": [{"delta": {"content": "Hi"}, "finish_reason": "stop"}]}\\n\\n')
        await response.write(b"data: [DONE]\\n\\n")
    except ConnectionError:
        pass
    return response

ready, port = threading.Event(), 0

async def serve():
    global port
    app = web.Application()
    app.router.add_post("/{path:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    ready.set()
    await done.wait()
    await runner.cleanup()

def serving():
    global done, serving_loop
    async def main():
        global done, serving_loop
        done, serving_loop = asyncio.Event(), asyncio.get_running_loop()
        await serve()
    asyncio.run(main())

thread = threading.Thread(target=serving)
thread.start()
ready.wait()
model = connect("openai:m", base_url=f"http://127.0.0.1:{port}/v1")

async def ask():
    return [delta async for deltas in model.stream(Request((User.of("Hi"),))) for delta in deltas]

def stop():
    serving_loop.call_soon_threadsafe(done.set)
    thread.join()
"""

LIVES = {
    "two runs": "asyncio.run(ask()); asyncio.run(ask()); stop()",
    "a runner": """
        with asyncio.Runner() as runner:
            runner.run(ask())
            runner.run(ask())
        stop()
    """,
    "a broken off stream": """
        async def leave():
            async for _ in model.stream(Request((User.of("Hi"),))):
                break
        asyncio.run(leave())
        stop()
    """,
    "a loop in a thread, closed by hand": """
        loop = asyncio.new_event_loop()
        runs = threading.Thread(target=loop.run_forever)
        runs.start()
        asyncio.run_coroutine_threadsafe(ask(), loop).result()
        asyncio.run_coroutine_threadsafe(close_session(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        runs.join()
        loop.close()
        stop()
    """,
    "a loop that is left open": """
        loop = asyncio.new_event_loop()
        loop.run_until_complete(ask())
        stop()
        import atexit
        atexit._run_exitfuncs()
        loop.close()
    """,
    "two loops at once": """
        async def both():
            await asyncio.gather(ask(), asyncio.to_thread(lambda: asyncio.run(ask())))
        asyncio.run(both())
        stop()
    """,
    "an error": """
        async def refused():
            late = connect("openai:m", base_url=f"http://127.0.0.1:{port}", first_byte=0.000001).model
            try:
                async for _ in late.stream(Request((User.of("Hi"),))):
                    pass
            except Exception as error:
                assert type(error).__name__ == "TimedOut", error
            await asyncio.sleep(0.1)  # the server takes note of who went away
        asyncio.run(refused())
        stop()
    """,
}


@pytest.mark.parametrize("life", LIVES)
def test_no_session_is_left_open(life: str) -> None:
    assert run_script(LIVES[life], "-X", "dev", "-W", "error") == ""


def test_a_loop_closed_without_shutdown_causes_no_warnings_from_us() -> None:
    """In development mode Python itself warns about the sockets; nobody warns about a session."""
    life = """
        loop = asyncio.new_event_loop()
        loop.run_until_complete(ask())
        loop.close()
        asyncio.run(ask())
        stop()
    """
    assert run_script(life) == ""


def run_script(life: str, *options: str) -> str:
    script = f"{SERVER}\n{textwrap.dedent(life)}\ngc.collect()\n"
    done = subprocess.run([sys.executable, *options, "-c", script], capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    # In development mode asyncio also logs slow callbacks on a busy machine.
    return re.sub(r"(?m)^Executing <.* took \d+\.\d+ seconds\n", "", done.stderr.decode())


def test_data_that_arrives_between_requests_is_not_mistaken_for_the_next_response() -> None:
    async def run() -> list[str]:
        def response(text: str) -> bytes:
            body = (
                b'data: {"choices": [{"index": 0, "delta": {"content": "%s"}, "finish_reason": "stop"}]}\n\n'
                b"data: [DONE]\n\n" % text.encode()
            )
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n"
            return head % len(body) + body

        unasked = asyncio.Event()

        class Server(asyncio.Protocol):
            number = 0

            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                self.transport = cast("asyncio.Transport", transport)

            def data_received(self, data: bytes) -> None:
                if not data.rstrip().endswith(b"}"):
                    return  # the head of a request, or half of its body
                Server.number += 1
                self.transport.write(response(f"answer {Server.number}"))
                if Server.number == 1:
                    asyncio.get_running_loop().call_later(0.02, self.write_unasked)

            def write_unasked(self) -> None:
                self.transport.write(response("stale"))
                asyncio.get_running_loop().call_later(0.02, unasked.set)

        server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0)
        model = connect("openai:m", base_url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
        answers = [text(await collect(model))]
        await unasked.wait()
        answers += [text(await collect(model)) for _ in range(2)]
        server.close()
        await close_session()
        return answers

    assert asyncio.run(run()) == ["answer 1", "answer 2", "answer 3"]
