"""The course assistant over HTTP: the page, and its API. For this machine only (`guard`).

- `GET /`, `GET /lessons/{number}`: the page.
- `GET /api/courses`: `model`, `courses` (title, page, lessons), `examples` (questions by language, and what each
  demonstrates), `note` and `note_zh` (about the search).
- `GET /api/lessons/{number}`: the text of a lesson, or what is known about a course.
- `POST /api/ask` with `{"question": …, "session_id": …}`: server-sent events (`page_events`). Without an id a session
  is started. `{"session_id": …, "again": true}` answers the last question again.
- `GET /api/sessions/{id}/events`: the events of a session, after `Last-Event-ID` or `?after=`.
- `POST /api/sessions/{id}/stop`: ends the answer. `DELETE /api/sessions/{id}`: the session is forgotten.

An invalid request gets a JSON error, `{"error": …}`, before anything of an answer is sent.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
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
from course_assistant.library import CourseLibrary
from course_assistant.tours import example_questions
from course_assistant.web.chat_store import ChatStore, default_folder
from course_assistant.web.chats import UNWATCHED, Chat, Chats
from course_assistant.web.guard import LOOPBACK, OnlyHere
from course_assistant.web.page import HEADERS, PAGE
from course_assistant.web.page_events import EventStream
from unbroken import UserError

HOST = "127.0.0.1"
LARGEST_BODY = 64 * 1024
"""Bytes: much more than the longest question needs."""
PATHS = "use / (the page), GET /api/courses, POST /api/ask and DELETE /api/sessions/{id}"
NO_SESSION = "this session does not exist (any more): leave out session_id to start a new one"
PRIVATE = {"cache-control": "no-store"}


def create_app(
    assistant: CourseAssistant,
    note: str = "",
    note_zh: str = "",
    store: ChatStore | None = None,
    *,
    unwatched: float = UNWATCHED,
) -> Starlette:
    """`note` is shown beside the courses, `note_zh` to readers of Chinese. Without a store the chats end with the
    server. `unwatched`: seconds that an answer continues after its last reader has left."""
    chats = Chats(assistant, store, unwatched=unwatched)
    api = _Api(assistant, chats, note, note_zh or note)
    app = Starlette(
        routes=[
            Route("/", _page),
            Route("/lessons/{number}", _page),
            Route("/api/courses", api.courses),
            Route("/api/lessons/{number}", api.lesson),
            Route("/api/ask", api.ask, methods=["POST"]),
            Route("/api/sessions/{id}/events", api.events),
            Route("/api/sessions/{id}/stop", api.stop, methods=["POST"]),
            Route("/api/sessions/{id}", api.forget, methods=["DELETE"]),
        ],
        middleware=[Middleware(OnlyHere)],
        exception_handlers={HTTPException: _refuse},
    )
    app.state.chats = chats
    return app


class _Api:
    """What each path answers."""

    def __init__(self, assistant: CourseAssistant, chats: Chats, note: str, note_zh: str) -> None:
        self._assistant = assistant
        self._chats = chats
        self._note = note
        self._note_zh = note_zh

    async def courses(self, request: Request) -> Response:
        library = self._assistant.library
        listed = {
            "model": self._assistant.agent.model.name,
            "courses": [_listed(course, library) for course in library.courses],
            "examples": example_questions(library),
            "note": self._note,
            "note_zh": self._note_zh,
            "attention": not library.shipped,
        }
        return JSONResponse(listed, headers=PRIVATE)

    async def lesson(self, request: Request) -> Response:
        found = _lesson(request.path_params["number"], self._assistant.library)
        if found is None:
            raise HTTPException(404, "this lesson does not exist: GET /api/courses lists the lessons")
        return JSONResponse(found, headers=PRIVATE)

    async def ask(self, request: Request) -> Response:
        asked = _read(await _body(request))
        if asked.get("again") is True:
            chat = _find(self._chats, asked.get("session_id"))
            turn = chat.ask_again()
            if turn is None:
                raise HTTPException(
                    409, "there is no answer to repeat: ask a question, or stop the one in progress first"
                )
        else:
            question = _question(asked)
            chat = self._chats.start() if asked.get("session_id") is None else _find(self._chats, asked["session_id"])
            turn = chat.ask(question)
        return EventStream(chat.follow(turn=turn))

    async def events(self, request: Request) -> Response:
        chat = _find(self._chats, request.path_params["id"])
        said = request.headers.get("last-event-id") or request.query_params.get("after") or "0"
        after = int(said) if said.isdecimal() and said.isascii() and len(said) < 16 else 0
        if not chat.has_news(after):
            return Response(status_code=204, headers=PRIVATE)  # an EventSource does not connect again
        return EventStream(chat.follow(after))

    async def stop(self, request: Request) -> Response:
        _find(self._chats, request.path_params["id"]).stop()
        return Response(status_code=204)

    async def forget(self, request: Request) -> Response:
        if not self._chats.forget(request.path_params["id"]):
            raise HTTPException(404, "this session does not exist (any more): nothing to do")
        return Response(status_code=204)


def open_chats(folder: str) -> ChatStore | None:
    """The store in this folder, or in that of the user; `-` keeps the chats in memory only."""
    if folder == "-":
        return None
    return ChatStore((Path(folder).expanduser() if folder else default_folder()) / "chats.db")


async def _page(request: Request) -> Response:
    return HTMLResponse(PAGE, headers=HEADERS)


def _find(chats: Chats, id: object) -> Chat:
    chat = chats.find(id) if isinstance(id, str) else None
    if chat is None:
        raise HTTPException(404, NO_SESSION)
    return chat


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
    """Ends the answers when it stops. uvicorn alone would wait, and then cut them off with a traceback; it would also
    handle signals, which `serve` does."""

    def __init__(self, app: Starlette) -> None:
        super().__init__(uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1))
        self._chats: Chats = app.state.chats

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._chats.stop()
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


def _listed(course: Course, library: CourseLibrary) -> dict[str, Any]:
    lessons = [
        {"number": lesson.number, "title": lesson.title, "page": library.source(course, lesson).link}
        for lesson in course.lessons
    ]
    return {"title": course.title, "page": library.source(course).link, "lessons": lessons}


def _lesson(said: str, library: CourseLibrary) -> dict[str, Any] | None:
    """Lessons are found by their number in the library, never by the name of a file."""
    place = library.place(int(said)) if said.isascii() and said.isdecimal() and len(said) < 10 else None
    if place is None:
        return None
    course, lesson, source = place
    return {
        **_listed(course, library),
        "lesson": lesson.number if lesson else None,
        "heading": lesson.title if lesson else course.title,
        "text": lesson.text if lesson else "\n\n".join(filter(None, (course.prerequisites, course.summary_zh))),
        "file": source.file,
        "link": lesson.link if lesson else course.link,
    }


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    words = error.detail
    if error.status_code == 405 or request.scope.get("endpoint") is None:
        words = f"{request.method} {request.url.path} does not exist: {PATHS}"
    return JSONResponse({"error": words}, error.status_code, error.headers)
