"""The gateway as a process: what is refused before any request is read, and how it stops. All over real sockets."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from uvicorn.server import ServerState

from unbroken.asgi import Receive, Scope, Send
from unbroken.errors import UserError
from unbroken_gateway.http.protocol import MOST_WAITING, BoundedConfig, BoundedProtocol
from unbroken_gateway.http.uvicorn_server import App, running, serve
from unbroken_gateway.settings import GatewaySettings, UpstreamSettings

SETTINGS = GatewaySettings(upstreams=(), port=0)


class Echo:
    """Returns the body; `/early` answers before it has read it, `/endless` streams until the client disconnects,
    `/wait` waits for that."""

    def __init__(self, settings: GatewaySettings) -> None:
        self.gone = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        status, body = 413, b"too large"
        if scope["path"] == "/wait":
            while (await receive())["type"] != "http.disconnect":
                pass
            self.gone.set()
            return
        if scope["path"] == "/endless":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while (await receive())["type"] != "http.disconnect":
                for _ in range(64):
                    await send({"type": "http.response.body", "body": bytes(1 << 16), "more_body": True})
            self.gone.set()
            return
        if scope["path"] != "/early":
            status, body = 200, await read(receive)
        length = str(len(body)).encode()
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", length)]})
        await send({"type": "http.response.body", "body": body})


def giving(app: App) -> Callable[[GatewaySettings], App]:
    """Makes always the same application."""

    def make(settings: GatewaySettings) -> App:
        return app

    return make


async def read(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


def connect(url: str) -> socket.socket:
    where = urlsplit(url)
    connection = socket.create_connection((where.hostname, where.port))
    connection.settimeout(10)
    return connection


def ask(url: str, *pieces: bytes) -> tuple[int, bytes]:
    """One response, followed by the end of the connection or nothing."""
    with connect(url) as connection:
        for piece in pieces:
            connection.sendall(piece)
        return answer(connection)


def answer(connection: socket.socket) -> tuple[int, bytes]:
    response = http.client.HTTPResponse(connection)
    response.begin()
    with closing(response):
        return response.status, response.read()


def get(path: str) -> bytes:
    return b"GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % path.encode()


def post(path: str = "/", body: bytes = b"abc", headers: bytes = b"") -> bytes:
    return b"POST %s HTTP/1.1\r\nhost: x\r\n%scontent-length: %d\r\n\r\n%s" % (path.encode(), headers, len(body), body)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running(SETTINGS, app=Echo) as url:
        yield url


def test_a_request_is_answered_and_its_connection_kept(url: str) -> None:
    with connect(url) as connection:
        for body in (b"abc", b"", b"x" * 100_000):
            connection.sendall(post(body=body))
            assert answer(connection) == (200, body)


BOMBS = {
    "one long header": b"POST / HTTP/1.1\r\nhost: x\r\nlong: " + b"a" * 5_000_000,
    "many headers": b"POST / HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 800_000,
    "a whole head that is too long": post(headers=b"a: b\r\n" * 11_000),
    "a long address": b"GET /" + b"a" * 5_000_000,
    "trailers": post(headers=b"transfer-encoding: chunked\r\n").replace(b"content-length: 3\r\n", b"")[:-3]
    + b"3\r\nabc\r\n0\r\n"
    + b"a: b\r\n" * 800_000,
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS.keys())
def test_headers_beyond_their_limit_are_refused_with_a_message(url: str, bomb: bytes) -> None:
    status, body = ask(url, bomb)
    assert status == 431
    assert json.loads(body)["error"] == {
        "message": "reading the request failed: its headers are more than 65536 bytes; send fewer, or raise"
        " `max_headers`",
        "type": "invalid_request_error",
        "param": None,
        "code": None,
    }


def test_headers_within_their_limit_are_accepted_however_large_the_body_is(url: str) -> None:
    head, body = b"a: b\r\n" * 10_000, b"x" * 1_000_000
    assert ask(url, post(body=body, headers=head)) == (200, body)


@pytest.mark.parametrize("noise", [b"\x16\x03\x01\x02\x00", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"hello\r\n\r\n"])
def test_noise_is_refused_with_a_message(url: str, noise: bytes) -> None:
    status, body = ask(url, noise)
    assert status == 400
    assert json.loads(body)["error"]["message"] == "reading the request failed: this is not a request of HTTP/1.1"


def test_a_malformed_body_is_refused_even_while_it_is_being_read(url: str) -> None:
    status, _ = ask(url, b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nnone\r\n")
    assert status == 400


def test_a_head_that_does_not_arrive_is_refused_also_on_a_kept_connection() -> None:
    with running(GatewaySettings(upstreams=(), port=0, head_timeout=0.05), app=Echo) as url:
        assert ask(url, b"POST / HTT")[0] == 408
        with connect(url) as connection:
            connection.sendall(post())
            assert answer(connection)[0] == 200
            connection.sendall(b"POST / HTTP/1.1\r\nhost:")
            status, body = answer(connection)
            assert (status, connection.recv(1)) == (408, b"")
            assert "did not arrive within 0.05 s" in json.loads(body)["error"]["message"]


def test_an_unused_connection_is_closed_silently() -> None:
    with running(GatewaySettings(upstreams=(), port=0, head_timeout=0.05), app=Echo) as url, connect(url) as connection:
        assert connection.recv(100) == b""


def test_a_slow_body_is_not_mistaken_for_a_slow_head() -> None:
    with running(GatewaySettings(upstreams=(), port=0, head_timeout=0.05), app=Echo) as url, connect(url) as connection:
        connection.sendall(post()[:-3])
        time.sleep(0.1)
        connection.sendall(b"abc")
        assert answer(connection) == (200, b"abc")


UPGRADE = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_the_body_of_an_upgrade_request_arrives(url: str, size: int) -> None:
    plain = post(headers=UPGRADE)
    chunked = plain.replace(b"content-length: 3\r\n", b"transfer-encoding: chunked\r\n")[:-3] + b"3\r\nabc\r\n0\r\n\r\n"
    with connect(url) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for request in (plain, chunked, plain):
            for at in range(0, len(request), size):
                connection.sendall(request[at : at + size])
            assert answer(connection) == (200, b"abc")


def test_proxy_requests_are_refused(url: str) -> None:
    assert ask(url, b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n")[0] == 400


def test_an_early_response_reaches_a_client_that_is_still_sending(url: str) -> None:
    with connect(url) as connection:
        connection.sendall(post("/early", b"x" * 20_000_000))
        assert answer(connection) == (413, b"too large")
        connection.sendall(post())
        assert answer(connection) == (200, b"abc")


def test_a_client_that_keeps_sending_is_cut_off() -> None:
    settings = GatewaySettings(upstreams=(), port=0, max_body=100_000)
    with running(settings, app=Echo) as url, connect(url) as connection:
        connection.sendall(b"POST /early HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        chunks = (b"10000\r\n" + bytes(1 << 16) + b"\r\n") * 1000
        with pytest.raises(ConnectionError):
            connection.sendall(chunks)


def test_pipelined_requests_are_answered_in_order(url: str) -> None:
    with connect(url) as connection:
        connection.sendall(b"".join(post(body=b"%d" % number) for number in range(4)))
        stream = connection.makefile("rb")
        with stream:
            data = b""
            while data.count(b"HTTP/1.1 200 OK") < 4 or not data.endswith(b"3"):
                data += stream.read1()
        assert [part[-1:] for part in data.split(b"HTTP/1.1 200 OK")[1:]] == [b"0", b"1", b"2", b"3"]


def test_too_many_pipelined_requests_end_the_connection(url: str) -> None:
    with connect(url) as connection:
        connection.sendall(post("/wait") * (MOST_WAITING + 2))
        assert connection.recv(100) == b""


def test_a_disconnect_is_noticed_even_after_pipelined_requests() -> None:
    app = Echo(SETTINGS)
    with running(SETTINGS, app=giving(app)) as url:
        with connect(url) as connection:
            connection.sendall(post("/wait") + post())
        assert app.gone.wait(5)


def test_a_client_that_does_not_read_counts_as_gone() -> None:
    settings = GatewaySettings(upstreams=(), port=0, write_timeout=0.05)
    app = Echo(settings)
    with running(settings, app=giving(app)) as url, connect(url) as connection:
        connection.sendall(b"GET /endless HTTP/1.1\r\nhost: x\r\n\r\n")
        assert app.gone.wait(5)


def test_a_connection_that_is_accepted_as_the_server_stops_is_closed() -> None:
    """It came too late to be among those that end after their request, and might send one after the other."""

    async def story() -> bytes:
        config = BoundedConfig(Echo(SETTINGS), http=BoundedProtocol, log_config=None)
        config.settings = SETTINGS
        config.load()
        state = ServerState()
        server = await asyncio.get_running_loop().create_server(
            lambda: BoundedProtocol(config, state, {}), "127.0.0.1", 0
        )
        config.is_stopping = True
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        try:
            writer.write(get("/"))
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()
            server.close()

    assert asyncio.run(story()) == b""


def test_a_port_in_use_is_reported_with_a_hint() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"listening on 127.0.0.1:{port} failed: .*; choose another port, or 0"):
            serve(GatewaySettings(upstreams=(), port=port), app=Echo)


def test_an_application_that_does_not_start_is_reported() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no"})

    with pytest.raises(UserError, match="starting the gateway failed"), running(SETTINGS, app=giving(broken)):
        pass


def test_the_gateway_itself_is_served(tmp_path: Path) -> None:
    settings = GatewaySettings(upstreams=(UpstreamSettings("demo", "demo"),), port=0, store="memory:")
    with running(settings) as url, connect(url) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        status, body = answer(connection)
        assert (status, json.loads(body)) == (200, {"status": "ok"})


SERVED = """
import asyncio, logging, os, sys
from unbroken_gateway.admin.gateway_metrics import GatewayMetrics
from unbroken_gateway.http.uvicorn_server import serve
from unbroken_gateway.settings import GatewaySettings

class App:
    def __init__(self, settings):
        self.metrics = GatewayMetrics(["here"])
        self.ends = asyncio.Event()

    def end_streams(self):
        self.ends.set()

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        self.metrics.request("here", "openai-chat", "gemini", 200, 0.1)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        body = self.metrics.render()[0] if scope["path"] == "/metrics" else str(os.getpid()).encode()
        lasts = scope["path"] in ("/stream", "/watch")
        await send({"type": "http.response.body", "body": body, "more_body": lasts})
        if scope["path"] == "/watch":
            await self.ends.wait()
            await send({"type": "http.response.body", "body": b" and the end"})
        if scope["path"] == "/stream":
            if (await receive())["type"] == "http.request":
                await receive()  # the end of a body that is sent in two
            await send({"type": "http.response.body", "body": b" and the end"})

def started(url):
    counts = os.environ.get("PROMETHEUS_MULTIPROC_DIR", "-")
    print(url, counts, flush=True)

if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR, format="%(message)s")
    workers, stop_timeout = int(sys.argv[1]), float(sys.argv[2])
    serve(GatewaySettings(upstreams=(), port=0, workers=workers, stop_timeout=stop_timeout), started, app=App)
"""


class Served:
    """The script above as a process, from its start to its end."""

    def __init__(self, folder: Path, workers: int = 1, stop_timeout: float = 30) -> None:
        script = folder / "served.py"
        script.write_text(SERVED)
        command = [sys.executable, str(script), str(workers), str(stop_timeout)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def __enter__(self) -> Served:
        assert self.process.stdout is not None
        self.url, self.counts = self.process.stdout.readline().split()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def idle(self) -> socket.socket:
        connection = connect(self.url)
        connection.sendall(post())
        assert answer(connection)[0] == 200
        return connection

    def begin_stream(self, path: str = "/stream") -> socket.socket:
        connection = connect(self.url)
        connection.sendall(post(path)[:-1])
        head = connection.recv(1000)
        while b"\r\n\r\n" not in head or not head.endswith(b"\r\n"):
            head += connection.recv(1000)
        assert b"200 OK" in head
        return connection


def test_a_signal_lets_streams_end_and_then_the_process(tmp_path: Path) -> None:
    with Served(tmp_path) as served, served.begin_stream() as connection, served.idle() as idle:
        served.process.send_signal(signal.SIGTERM)
        assert idle.recv(1) == b""  # it does not accept connections any more
        with pytest.raises(OSError, match="refused"):
            connect(served.url)
        connection.sendall(b"c")
        assert connection.makefile("rb").read().endswith(b" and the end\r\n0\r\n\r\n")
        assert served.process.wait(10) == 0
        assert served.process.communicate()[1] == ""


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_streams_that_would_last_are_ended_in_every_worker(tmp_path: Path, workers: int) -> None:
    with Served(tmp_path, workers, stop_timeout=60) as served, served.begin_stream("/watch") as connection:
        served.process.send_signal(signal.SIGTERM)
        assert connection.makefile("rb").read().endswith(b" and the end\r\n0\r\n\r\n")
        assert served.process.wait(20) == 0


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    with Served(tmp_path) as served, served.begin_stream() as connection, served.idle() as idle:
        served.process.send_signal(signal.SIGINT)
        assert idle.recv(1) == b""
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(10) == 128 + signal.SIGTERM
        assert b"and the end" not in connection.makefile("rb").read()


def test_a_stream_that_does_not_end_in_time_is_cut(tmp_path: Path) -> None:
    with Served(tmp_path, stop_timeout=0.2) as served, served.begin_stream():
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(10) == 0
        assert served.process.communicate()[1] == "Cancel 1 running task(s), timeout graceful shutdown exceeded\n"


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_signal_fails_readiness_first_and_requests_are_still_answered(tmp_path: Path, workers: int) -> None:
    script = tmp_path / "stopped.py"
    script.write_text(
        "import sys\n"
        "from unbroken_gateway import GatewaySettings, UpstreamSettings, serve\n"
        "if __name__ == '__main__':\n"
        "    models = (UpstreamSettings('demo', 'demo'),)\n"
        "    workers = int(sys.argv[1])\n"
        "    settings = GatewaySettings(models, port=0, workers=workers, store='sqlite:held.db', stop_delay=60)\n"
        "    serve(settings, lambda url: print(url, flush=True))\n"
    )
    command = [sys.executable, str(script), str(workers)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert ask(url, get("/readyz"))[0] == 200
            process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + 20
            in_a_row = 0  # any worker may answer, and one may hear of it after another
            while in_a_row < 20 and time.monotonic() < deadline:
                in_a_row = in_a_row + 1 if ask(url, get("/readyz"))[0] == 503 else 0
                time.sleep(0.01)
            assert ask(url, get("/readyz"))[1] == b'{"status":"not ready","reason":"the gateway is stopping"}'
            assert ask(url, get("/healthz"))[0] == 200
            assert ask(url, get("/v1/models"))[0] == 200
            process.send_signal(signal.SIGTERM)  # it does not wait for the rest of the delay
            assert process.wait(20) == 128 + signal.SIGTERM
        finally:
            process.kill()


def test_workers_share_a_port_count_together_and_are_replaced(tmp_path: Path) -> None:
    def get(path: str) -> str:
        return ask(served.url, b"GET %s HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n" % path.encode())[1].decode()

    with Served(tmp_path, workers=2) as served:
        workers = set[str]()
        asked = 0
        while len(workers) < 2:
            workers.add(get("/"))
            asked += 1
        name = 'unbroken_requests_total{alias="here",client="openai-chat",status="200",upstream="gemini"}'
        assert f"{name} {asked + 1}.0" in get("/metrics")
        os.kill(int(workers.pop()), signal.SIGKILL)
        while len(workers) < 2:
            workers.add(get("/"))
        with served.begin_stream() as connection:
            served.process.send_signal(signal.SIGTERM)
            while served.process.poll() is None and connects(served.url):
                time.sleep(0.01)
            connection.sendall(b"c")
            assert connection.makefile("rb").read().endswith(b"and the end\r\n0\r\n\r\n")
        assert served.process.wait(10) == 0
        assert not os.path.exists(served.counts)


def test_a_worker_that_dies_is_logged_with_its_signal_and_counted(tmp_path: Path) -> None:
    def get(path: str) -> str:
        return ask(served.url, b"GET %s HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n" % path.encode())[1].decode()

    with Served(tmp_path, workers=2) as served:
        dead = int(get("/"))
        os.kill(dead, signal.SIGKILL)
        until = time.monotonic() + 20
        while 'unbroken_worker_deaths_total{cause="SIGKILL"} 1.0' not in get("/metrics"):
            assert time.monotonic() < until
            time.sleep(0.05)
        served.process.send_signal(signal.SIGTERM)
        _, said = served.process.communicate(timeout=20)
        assert said == (f"worker_died pid={dead} cause=SIGKILL: its requests are lost, and another worker is started\n")


@pytest.mark.slow
def test_counts_of_a_killed_gateway_are_removed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    other = tmp_path / "unbroken-metrics-notes"
    living = tmp_path / f"unbroken-metrics-{os.getpid()}-x"
    for folder in (other, living):
        folder.mkdir()
    with Served(tmp_path, workers=2) as killed:
        killed.process.kill()
        killed.process.wait(10)
    assert os.path.exists(killed.counts)
    with Served(tmp_path, workers=2) as served:
        assert not os.path.exists(killed.counts)
        assert os.path.exists(served.counts)
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(10) == 0
    assert sorted(tmp_path.glob("unbroken-metrics-*")) == sorted([other, living])


def connects(url: str) -> bool:
    try:
        connect(url).close()
    except OSError:
        return False
    return True
