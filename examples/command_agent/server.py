"""The server: the page, its WebSocket, and the world and the metrics as JSON, for this machine only.

A page of another site could reach a server on the loopback interface, by its address or by a domain name that resolves
to it (DNS rebinding). So a request has to use the loopback address, and its `Origin`, if it has one, has to be this
server.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiohttp import WSCloseCode, web

from command_agent.connection import TAKEN_OVER, Connection
from command_agent.seat import Seat
from command_agent.upstream import FaultLog
from command_agent.watching import Watch
from command_agent.world import World
from unbroken import Model, UserError

HOST = "127.0.0.1"
MOST = 64
"""The most connections at the same time."""
LINGER = 60.0
"""Seconds that a player who may return stays without a connection; the wish continues meanwhile."""
ACCEPTED = 4 * 1024 * 1024
"""Bytes that are read before a message is refused; beyond that the connection is closed without a message."""
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_HERE = Path(__file__).parent
_PAGE = (_HERE / "page.html").read_text("utf-8").replace("/*words.js*/", (_HERE / "words.js").read_text("utf-8"))
_SCRIPT = _PAGE.partition("<script>")[2].partition("</script>")[0]
_HASH = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
_HEADERS = {
    "content-security-policy": f"default-src 'none'; script-src 'sha256-{_HASH}'; style-src 'unsafe-inline'; "
    "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Game:
    """One world, one model, and the connections that share them. `faults` knows what was broken on purpose."""

    def __init__(
        self,
        model: Model,
        model_name: str = "",
        *,
        sentences: bool = True,
        lag: float = 0.0,
        faults: FaultLog | None = None,
        watch: Watch | None = None,
        linger: float = LINGER,
    ) -> None:
        self.world = World()
        self.model_name = model_name or model.name
        """The name that players see."""
        self.connections: set[Connection] = set()
        self._model = model
        self._numbers = count(1)
        self._watch = watch or Watch()
        self._options: dict[str, Any] = {"sentences": sentences, "lag": lag, "faults": faults or FaultLog()}
        self._options["watch"] = self._watch
        self._linger = linger
        self._seats: dict[str, Seat] = {}
        """Those of players who may return, by token."""
        self._leaving: dict[str, asyncio.Task[None]] = {}

    def application(self) -> web.Application:
        app = web.Application(middlewares=[_only_here])
        app.router.add_get("/", _show_page)
        app.router.add_get("/world", self._show_world)
        app.router.add_get("/metrics", self._show_numbers)
        app.router.add_get("/ws", self._connect)
        app.on_shutdown.append(self._stop)
        app.on_cleanup.append(self._clean_up)
        return app

    async def _show_world(self, request: web.Request) -> web.Response:
        return web.json_response(self.world.snapshot())

    async def _show_numbers(self, request: web.Request) -> web.Response:
        return web.json_response(self._watch.numbers())

    async def _connect(self, request: web.Request) -> web.StreamResponse:
        if len(self.connections) >= MOST:
            return web.Response(status=503, text=f"{MOST} players are connected already: try again later\n")
        socket = web.WebSocketResponse(max_msg_size=ACCEPTED, heartbeat=30)
        await socket.prepare(request)
        token = request.query.get("seat")
        returns, known = token is not None, self._seats.get(token or "")
        seat = await self._return_to(known) if known else self._join(returns)

        def hang_up() -> None:
            if request.transport is not None:
                request.transport.abort()

        connection = Connection(
            seat,
            socket,
            self.world,
            hang_up=hang_up,
            model_name=self.model_name,
            returns=returns,
            resumed=known is not None,
        )
        self.connections.add(connection)
        try:
            await connection.serve()
        finally:
            self.connections.discard(connection)
            if not any(other.seat is seat for other in self.connections):
                if returns:
                    self._leaving[seat.token] = asyncio.create_task(self._leave_later(seat))
                else:
                    await self._leave(seat)
        return socket

    def _join(self, returns: bool) -> Seat:
        number = next(self._numbers)
        player = f"player{number}"  # unique, so that the log shows who did what
        self.world.join(player)
        seat = Seat(f"connection{number}", player, self.world, self._model, **self._options)
        if returns:
            self._seats[seat.token] = seat
            if len(self._leaving) > MOST:  # the one that left first does not get its minute
                next(iter(self._leaving.values())).cancel()
        return seat

    async def _return_to(self, seat: Seat) -> Seat:
        """Its earlier connection, if there still is one, is closed: a player is at one place only."""
        if leaving := self._leaving.pop(seat.token, None):
            leaving.cancel()
        for connection in [one for one in self.connections if one.seat is seat]:
            self.connections.discard(connection)
            await connection.close(TAKEN_OVER, "this player continues on another page")
        return seat

    async def _leave_later(self, seat: Seat) -> None:
        """Unless the player returns, which takes the task from `_leaving`."""
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(self._linger)
        if self._leaving.pop(seat.token, None):
            await self._leave(seat)

    async def _leave(self, seat: Seat) -> None:
        self._seats.pop(seat.token, None)
        await seat.close()
        self.world.leave(seat.player)

    async def _stop(self, app: web.Application) -> None:
        for connection in tuple(self.connections):
            await connection.close(WSCloseCode.GOING_AWAY, "the server is stopping")

    async def _clean_up(self, app: web.Application) -> None:
        waiting, self._leaving = self._leaving, {}
        for leaving in waiting.values():
            leaving.cancel()
        for seat in tuple(self._seats.values()):
            await seat.close()


@asynccontextmanager
async def serving(game: Game, port: int = 0) -> AsyncGenerator[str]:
    """Serves the page inside the `with` block, and yields its address."""
    runner = web.AppRunner(game.application(), access_log=None, shutdown_timeout=2.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, HOST, port).start()
        except OSError as error:
            raise UserError(
                f"serving on port {port} failed: {error.strerror or error}; name another with --port, or 0 for any"
            ) from None
        yield f"http://{HOST}:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


async def _show_page(request: web.Request) -> web.Response:
    return web.Response(text=_PAGE, content_type="text/html", headers=_HEADERS)


@web.middleware
async def _only_here(request: web.Request, handler: Handler) -> web.StreamResponse:
    if _name(f"//{request.headers.get('host', '')}") not in _LOOPBACK:
        return web.Response(status=403, text=f"this server is for this machine only: use {HOST}\n")
    origin = request.headers.get("origin")
    if origin is not None and origin != f"http://{request.headers['host']}":
        return web.Response(status=403, text="pages of other sites are not served\n")
    return await handler(request)


def _name(address: str) -> str:
    try:
        asked = urlsplit(address)
        return "" if asked.username is not None else asked.hostname or ""
    except ValueError:
        return ""
