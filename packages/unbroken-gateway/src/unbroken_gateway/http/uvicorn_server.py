"""The gateway as a process: uvicorn with limits, one worker or several. A signal stops it after its streams have ended.

Each worker creates its own application. It receives its settings through a pipe, never through a file or the
environment.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, TypeAlias, runtime_checkable

import uvicorn
from prometheus_client import multiprocess
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors.multiprocess import SIGNALS, Multiprocess, Process

from unbroken.asgi import Receive, Scope, Send
from unbroken.errors import UnbrokenError, UserError
from unbroken_gateway.admin.gateway_metrics import COUNTS_DIR, count_dead_worker
from unbroken_gateway.app import Gateway
from unbroken_gateway.http.protocol import BoundedConfig, BoundedProtocol, websocket_options
from unbroken_gateway.reloading import ConfigSource, changed_at_run_time
from unbroken_gateway.settings import GatewaySettings

log = logging.getLogger("unbroken.gateway")
uvicorns_log = logging.getLogger("uvicorn.error")
"""uvicorn's log, which has the reason if it does not start; visible even if logging is not set up."""


class App(Protocol):
    """An ASGI application."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


@runtime_checkable
class EndsStreams(Protocol):
    """An application with streams that would not end by themselves when the server stops."""

    def end_streams(self) -> None: ...


@runtime_checkable
class Reloads(Protocol):
    """An application that can read its configuration again."""

    @property
    def can_reload(self) -> bool: ...

    def reload(self) -> None:
        """Begins to."""
        ...


@runtime_checkable
class HasReadiness(Protocol):
    """An application that balancers ask whether it is ready."""

    def fail_readiness(self) -> None: ...


MakeApp: TypeAlias = Callable[..., App]
"""Called with the settings, and with `source=…` if the gateway can read its configuration again."""
OnStarted: TypeAlias = Callable[[str], None]
"""Called with the address once the gateway accepts requests."""
SetUpLogs: TypeAlias = Callable[[], None]
"""Called in each process that serves. It is pickled for workers, so it cannot be a lambda."""

KEPT_ALIVE = 75
"""Seconds that an idle connection is kept. More than the 60 of common load balancers: the side that sends requests must
be the one that closes first."""
COUNTS = "unbroken-metrics-"
"""Prefix of the folder in which workers count; the id of the process that made it follows."""
_SIGHUP = getattr(signal, "SIGHUP", None)
"""Windows has none."""
_NOT_READY = getattr(signal, "SIGUSR1", None)
"""Tells a worker that it will be stopped: its readiness fails."""
STARTING = 60.0
"""Seconds in which workers have to start."""


def serve(
    settings: GatewaySettings,
    on_started: OnStarted | None = None,
    *,
    app: MakeApp = Gateway,
    logs: SetUpLogs | None = None,
    source: ConfigSource | None = None,
) -> None:
    """Runs until SIGTERM or SIGINT: then it waits for `stop_delay`, in which it is not ready but answers requests,
    accepts no more, lets those in flight end within `stop_timeout`, and returns. A second signal ends them at once
    and exits with 128 + its number. Exits with 3 if the application does not start; the log has the reason.
    `source`: SIGHUP reads the configuration again from there."""
    make = app if source is None else partial(app, source=source)
    listening = listen(settings)
    if logs is not None:
        logs()
    on_started = partial(_log_started, settings, on_started)
    if settings.workers > 1:
        _serve_with_workers(settings, listening, on_started, make, logs, source)
        return
    server = _Server(_config(settings, partial(_settled_app, make, settings)), on_started)
    with closing(listening):
        server.run([listening])
    if server.forced:
        raise SystemExit(128 + server.forced)


def _log_started(settings: GatewaySettings, on_started: OnStarted | None, at: str) -> None:
    # The user and password of the store's address are left out.
    scheme, _, place = settings.store.rpartition("@")
    store = f"{scheme.partition(':')[0]}://{place}" if scheme else place
    models = ",".join(upstream.alias for upstream in settings.upstreams)
    log.info("started at=%s workers=%d store=%s models=%s", at, settings.workers, store, models)
    if on_started is not None:
        on_started(at)


@contextmanager
def running(settings: GatewaySettings, *, app: MakeApp = Gateway) -> Generator[str]:
    """Runs the gateway in a thread of this process, for tests and examples, and yields its address. `port=0` takes any
    free port."""
    listening = listen(settings)
    url = address(listening)
    started = threading.Event()
    ended: list[BaseException] = []
    server = _Server(_config(settings, partial(app, settings)), lambda _: started.set())

    def run() -> None:
        try:
            with closing(listening):
                server.run([listening])
        except BaseException as error:  # noqa: BLE001 - SystemExit too, which uvicorn raises where the start fails
            ended.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=run, name="gateway", daemon=True)
    thread.start()
    started.wait()
    try:
        if ended:
            raise UserError("starting the gateway failed; the log has the reason") from ended[0]
        yield url
    finally:
        server.stop()
        thread.join()


def listen(settings: GatewaySettings) -> socket.socket:
    """Binds the socket here instead of in uvicorn, so that the port is known and a failure is a `UserError`."""
    where = f"{settings.host}:{settings.port}"
    try:
        family, kind, proto, _, place = socket.getaddrinfo(
            settings.host or None, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, proto)
    except OSError as error:
        raise UserError(f"listening on {where} failed: {error.strerror or error}; choose another host") from None
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(place)
        listening.listen(2048)  # two sockets may be bound to one port until one of them listens
    except OSError as error:
        listening.close()
        what = f"listening on {where} failed: {error.strerror or error}"
        raise UserError(f"{what}; choose another port, or 0 for any free port") from None
    return listening


def address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _config(settings: GatewaySettings, app: Callable[[], App], **more: Any) -> BoundedConfig:
    config = BoundedConfig(
        app,
        factory=True,
        interface="asgi3",
        http=BoundedProtocol,
        **websocket_options(settings),
        lifespan="on",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEPT_ALIVE,
        **more,
    )
    uvicorns_log.addFilter(_was_not_cut)
    config.settings = settings
    config.timeout_graceful_shutdown = settings.stop_timeout  # pyright: ignore[reportAttributeAccessIssue] - uvicorn waits this many seconds, fractions included
    return config


def _was_not_cut(record: logging.LogRecord) -> bool:
    """Filters the traceback of each stream that is cut at the end; their number is logged once."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


class _Server(uvicorn.Server):
    """uvicorn's server, except that a handled signal is not raised again, and that a second signal is handled too."""

    def __init__(self, config: BoundedConfig, on_started: OnStarted | None) -> None:
        super().__init__(config)
        self._limits = config
        self._delay = config.settings.stop_delay
        self._ends_at_once = asyncio.Event()
        self.forced = 0
        """The second signal, which ended it at once."""
        self._on_started = on_started
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._terminal = _Terminal()

    def stop(self) -> None:
        """May be called from any thread or signal handler."""
        self.should_exit = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stopping.set)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self._on_started is not None and sockets:
            self._on_started(address(sockets[0]))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        log.info("stopping in_work=%d", len(self.server_state.tasks))
        app: object = self.config.loaded_app  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - whatever `MakeApp` has made
        if self._delay and isinstance(app, HasReadiness):
            app.fail_readiness()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._delay):
                    await self._ends_at_once.wait()
        if isinstance(app, EndsStreams):
            app.end_streams()
        self._limits.is_stopping = True
        await super().shutdown(sockets)
        log.info("stopped")

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            try:
                async with asyncio.timeout(1.0):  # updates the `date` header
                    await self._stopping.wait()
            except TimeoutError:
                pass

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        signals = (signal.SIGINT, signal.SIGTERM, *(() if _SIGHUP is None else (_SIGHUP,)))
        before = {number: signal.signal(number, self.handle_exit) for number in signals}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if sig == _SIGHUP and not self.should_exit and not self._terminal.is_gone() and self._reload():
            return
        if not self.should_exit:
            self.stop()
        elif self._loop is not None:
            self.forced = sig
            self.force_exit = True
            self._loop.call_soon_threadsafe(self._cut)

    def _reload(self) -> bool:
        app: object = self.config.loaded_app  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - whatever `MakeApp` has made
        if self._loop is None or not isinstance(app, Reloads) or not app.can_reload:
            return False
        self._loop.call_soon_threadsafe(app.reload)
        return True

    def _cut(self) -> None:
        self._ends_at_once.set()
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        for task in list(self.server_state.tasks):
            task.cancel()


def _serve_with_workers(
    settings: GatewaySettings,
    listening: socket.socket,
    on_started: OnStarted | None,
    app: MakeApp,
    logs: SetUpLogs | None,
    source: ConfigSource | None,
) -> None:
    _remove_left_counts()
    counts = tempfile.mkdtemp(prefix=f"{COUNTS}{os.getpid()}-")
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    config = _config(settings, partial(_worker_app, app, settings, logs), workers=settings.workers)

    def read_again() -> None:
        """Workers that start later get the new settings too."""
        assert source is not None
        config.settings = changed_at_run_time(config.settings, source.read({}))
        config.app = partial(_worker_app, app, config.settings, logs)

    supervisor = _Supervisor(config, listening, counts, on_started, None if source is None else read_again)
    os.environ[COUNTS_DIR] = counts
    try:
        supervisor.run()
    finally:
        del os.environ[COUNTS_DIR]
        shutil.rmtree(counts, ignore_errors=True)
        listening.close()
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if supervisor.failed:
        raise SystemExit(STARTUP_FAILURE)
    if supervisor.forced:
        raise SystemExit(128 + supervisor.forced)


def _remove_left_counts() -> None:
    """Removes the counter folders of gateways that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{COUNTS}*-*"):
        pid = folder.name.removeprefix(COUNTS).partition("-")[0]
        if pid.isdecimal() and not _is_alive(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _worker_app(app: MakeApp, settings: GatewaySettings, logs: SetUpLogs | None) -> App:
    if logs is not None:
        logs()
    uvicorns_log.addFilter(_was_not_cut)
    threading.Thread(target=_follow_parent, name="parent", daemon=True).start()
    try:
        made = _settled_app(app, settings)
        if isinstance(made, Reloads) and _SIGHUP is not None:
            begin = partial(asyncio.get_running_loop().call_soon_threadsafe, made.reload)
            signal.signal(_SIGHUP, lambda number, frame: begin() and None)
        if isinstance(made, EndsStreams):
            _end_streams_on(signal.SIGTERM, made)
            _end_streams_on(signal.SIGINT, made)
        if isinstance(made, HasReadiness) and _NOT_READY is not None:
            signal.signal(_NOT_READY, lambda number, frame: made.fail_readiness())
        return made
    except Exception as error:  # noqa: BLE001 - any error here would hit every restarted worker too
        uvicorns_log.error("starting a worker failed: %s", error)
        raise SystemExit(STARTUP_FAILURE) from None


def _end_streams_on(number: signal.Signals, app: EndsStreams) -> None:
    """A worker has uvicorn's own server: before its handler of the signal, streams are ended that would last."""
    stop = signal.getsignal(number)
    end = partial(asyncio.get_running_loop().call_soon_threadsafe, app.end_streams)

    def handle(number: int, frame: FrameType | None) -> None:
        end()
        if callable(stop):
            stop(number, frame)

    signal.signal(number, handle)


def _settled_app(app: MakeApp, settings: GatewaySettings) -> App:
    """For a process that does nothing else: objects that exist by now are excluded from garbage collection, which would
    otherwise cost a tenth of the requests per second."""
    made = app(settings)
    gc.collect()
    gc.freeze()
    gc.set_threshold(2_000, 10, 10)
    return made


def _follow_parent() -> None:
    """Ends this worker with its parent process, even if that was killed; otherwise the port would stay in use."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


class _Terminal:
    """Whether a SIGHUP means that the terminal was closed: then the gateway ends, as any program does."""

    def __init__(self) -> None:
        self._had = self._has()

    def is_gone(self) -> bool:
        return self._had and not self._has()

    def _has(self) -> bool:
        try:
            os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
        except OSError:
            return False
        return True


class _Supervisor(Multiprocess):
    """uvicorn's supervisor, which restarts workers that died. Calls `on_started` once all run, and ends on a second
    signal. On SIGHUP all workers read the configuration again; without `read_again` they are restarted one after the
    other."""

    def __init__(
        self,
        config: BoundedConfig,
        listening: socket.socket,
        counts: str,
        on_started: OnStarted | None,
        read_again: Callable[[], None] | None,
    ) -> None:
        super().__init__(config, [listening])
        self._delay = config.settings.stop_delay
        self._read_again = read_again
        self._terminal = _Terminal()
        self.failed = False
        self.forced = 0
        self._counts = counts
        self._on_started = on_started

    def init_processes(self) -> None:
        super().init_processes()
        until = time.monotonic() + STARTING
        for process in self.processes:
            while not process.is_ready(timeout=1) and time.monotonic() < until:
                self.handle_signals()
                if self.should_exit.is_set() or not process.process.is_alive():
                    return  # `keep_subprocess_alive` looks after it
        if self._on_started is not None:
            self._on_started(address(self.sockets[0]))

    def handle_hup(self) -> None:
        if self._terminal.is_gone():
            self.should_exit.set()
        elif self._read_again is None:
            super().handle_hup()
        else:
            with suppress(UnbrokenError):  # each worker logs and shows it
                self._read_again()
            for process in self.processes:
                if process.pid is not None and process.is_ready():  # one that starts has no handler yet
                    os.kill(process.pid, signal.SIGHUP)

    def keep_subprocess_alive(self) -> None:
        before = list(self.processes)
        super().keep_subprocess_alive()
        for process in before:
            if process.exitcode is not None and process.pid is not None:
                self._note_death(process.pid, process.exitcode)
                # What it counted stays; its requests in flight are gone.
                multiprocess.mark_process_dead(process.pid, self._counts)  # pyright: ignore[reportUnknownMemberType] - untyped
        self.failed = any(process.exitcode == STARTUP_FAILURE for process in before)

    def _note_death(self, pid: int, code: int) -> None:
        """A worker that cannot start has logged why."""
        if code != STARTUP_FAILURE:
            cause = signal.Signals(-code).name if code < 0 else f"exit {code}"
            log.error("worker_died pid=%d cause=%s: its requests are lost, and another worker is started", pid, cause)
            count_dead_worker(cause)

    def terminate_all(self) -> None:
        log.info("stopping workers=%d", len(self.processes))
        if self._delay and _NOT_READY is not None and not self.failed:
            self._fail_readiness(_NOT_READY)
        super().terminate_all()
        for listening in self.sockets:  # otherwise this process would accept connections that nobody answers
            listening.close()

    def _fail_readiness(self, number: int) -> None:
        for process in self.processes:
            if process.pid is not None and process.is_ready():  # one that starts has no handler yet
                os.kill(process.pid, number)
        until = time.monotonic() + self._delay
        while time.monotonic() < until and not {signal.SIGINT, signal.SIGTERM} & {*self.signal_queue}:
            time.sleep(0.05)

    def join_all(self) -> None:
        for process in self.processes:
            self._join(process)
        log.info("stopped")

    def _join(self, process: Process) -> None:
        while process.process.is_alive():
            process.process.join(0.1)
            if again := [each for each in self.signal_queue if each in (signal.SIGINT, signal.SIGTERM)]:
                self.forced = again[0]
                process.kill()
                process.process.join()
