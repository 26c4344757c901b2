"""The course assistant over HTTP: the page, and its API. For this machine only (`guard`).

- `GET /`: the page.
- `GET /api/courses`: `courses` (title, link, lessons), `examples` (questions, and what each demonstrates), `note`.
- `POST /api/ask` with `{"question": …, "session_id": …}`: server-sent events (`event_stream`). Without an id a session
  is started.
- `DELETE /api/sessions/{id}`: the session is forgotten.

An invalid request gets a JSON error, `{"error": …}`, before anything of an answer is sent.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, cast

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from course_assistant.assistant import CourseAssistant, check_question
from course_assistant.courses import Course
from course_assistant.tours import TOURS
from course_assistant.web.event_stream import EventStream, OpenStreams, events_of
from course_assistant.web.guard import LOOPBACK, OnlyHere
from course_assistant.web.page import HEADERS, PAGE
from unbroken import UserError

HOST = "127.0.0.1"
LARGEST_BODY = 64 * 1024
"""Bytes: much more than the longest question needs."""
PATHS = "use / (the page), GET /api/courses, POST /api/ask and DELETE /api/sessions/{id}"


def create_app(assistant: CourseAssistant, note: str = "") -> Starlette:
    streams = OpenStreams()

    async def page(request: Request) -> Response:
        return HTMLResponse(PAGE, headers=HEADERS)

    async def courses(request: Request) -> Response:
        listed = [_listed(course) for course in assistant.library.courses]
        examples = [{"question": tour.question, "shows": tour.shows} for tour in TOURS]
        return JSONResponse({"courses": listed, "examples": examples, "note": note})

    async def ask(request: Request) -> Response:
        asked = _read(await _body(request))
        question, session_id = _question(asked), asked.get("session_id")
        session = assistant.sessions.start() if session_id is None else assistant.sessions.find(str(session_id))
        if session is None:
            raise HTTPException(404, "this session does not exist (any more): leave out session_id to start a new one")
        return EventStream(events_of(session.id, assistant.stream(question, session)), streams)

    async def forget(request: Request) -> Response:
        if not assistant.sessions.forget(request.path_params["id"]):
            raise HTTPException(404, "this session does not exist (any more): nothing to do")
        return Response(status_code=204)

    app = Starlette(
        routes=[
            Route("/", page),
            Route("/api/courses", courses),
            Route("/api/ask", ask, methods=["POST"]),
            Route("/api/sessions/{id}", forget, methods=["DELETE"]),
        ],
        middleware=[Middleware(OnlyHere)],
        exception_handlers={HTTPException: _refuse},
    )
    app.state.streams = streams
    return app


async def serve(app: Starlette, host: str = HOST, port: int = 8000, announce: Callable[[str], object] = print) -> None:
    """Serves until Ctrl-C or SIGTERM; `announce` is called with the address."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def end(number: int, frame: object) -> None:
        if not stop.is_set():  # after a second Ctrl-C the loop may be gone
            loop.call_soon_threadsafe(stop.set)

    async with serving(app, host, port) as address:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, end)
        announce(address)
        await stop.wait()


@asynccontextmanager
async def serving(app: Starlette, host: str = HOST, port: int = 0) -> AsyncGenerator[str]:
    """Serves inside the `with` block, and yields the address."""
    with _listen(host, port) as listening:
        server = _Server(app)
        running = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            yield _address(listening)
        finally:
            server.should_exit = True  # not cancelled, so that it closes open connections
            await running


class _Server(uvicorn.Server):
    """Ends open streams when it stops. uvicorn alone would wait, and then cut them off with a traceback; it would also
    handle signals, which `serve` does."""

    def __init__(self, app: Starlette) -> None:
        super().__init__(uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1))
        self._streams: OpenStreams = app.state.streams

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._streams.end()
        await super().shutdown(sockets)


def _listen(host: str, port: int) -> socket.socket:
    if host not in LOOPBACK:
        raise UserError(f"serving on {host!r} failed: the course assistant is for this machine only; use {HOST}")
    if not 0 <= port <= 65_535:
        raise UserError(f"serving on port {port} failed: the highest port is 65535; 0 takes any free one")
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        words = os.strerror(error.errno) if error.errno else str(error)
        raise UserError(f"serving on port {port} failed: {words}; choose another, or 0 for any free one") from None


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > LARGEST_BODY:
            raise HTTPException(413, f"the request is larger than {LARGEST_BODY // 1024} KB: shorten the question")
    return bytes(body)


def _read(body: bytes) -> Mapping[str, Any]:
    try:
        asked = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise HTTPException(400, f'the request is not JSON ({error}): send {{"question": "What is MCP?"}}') from None
    if not isinstance(asked, dict):
        raise HTTPException(400, 'the request is JSON, but not an object: send {"question": "What is MCP?"}')
    return cast("dict[str, Any]", asked)


def _question(asked: Mapping[str, Any]) -> str:
    question = asked.get("question")
    if not isinstance(question, str):
        raise HTTPException(400, 'the request has no string in `question`: send {"question": "What is MCP?"}')
    try:
        return check_question(question)
    except UserError as error:
        raise HTTPException(400, str(error)) from None


def _listed(course: Course) -> dict[str, Any]:
    lessons = [{"number": lesson.number, "title": lesson.title, "link": lesson.link} for lesson in course.lessons]
    return {"title": course.title, "link": course.link, "lessons": lessons}


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    words = error.detail
    if error.status_code == 405 or request.scope.get("endpoint") is None:
        words = f"{request.method} {request.url.path} does not exist: {PATHS}"
    return JSONResponse({"error": words}, error.status_code, error.headers)
