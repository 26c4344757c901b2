"""`runs_app`: durable runs over HTTP. Start, list, answer and cancel runs, and watch them live; with a small page.

An ASGI app without a framework: serve it alone (`unbroken runs serve`), or mount it in Starlette, FastAPI or the
gateway. Nothing is driven here: workers do that, and the journal is all that both share.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Collection, Generator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path as FilePath
from typing import Any
from urllib.parse import quote

from unbroken.asgi import (
    CancelOnDisconnect,
    ClientGone,
    Receive,
    Refused,
    Response,
    Scope,
    Send,
    page_headers,
    read_body,
    read_headers,
)
from unbroken.errors import UserError
from unbroken_durable.errors import AlreadyAnswered, JournalUnavailable, RunExists, UnknownRun
from unbroken_durable.event_feeds import EventFeeds
from unbroken_durable.journal import Journal, open_journal
from unbroken_durable.records import ENDED, PendingCall, RunRow
from unbroken_durable.web_keys import Caller, Guard, KeyLimits, Keys, Standing
from unbroken_durable.web_requests import (
    Path,
    is_plain,
    mount_of,
    read_after,
    read_answers,
    read_listing,
    read_new_run,
    read_object,
    read_path,
    read_query,
    read_reason,
)
from unbroken_durable.web_streams import Outgoing, ag_ui_stream, event_stream, ui_stream
from unbroken_wires.wires.jsontext import dumps

LOG = logging.getLogger("unbroken.durable")

MAX_BODY = 1 << 20
MAX_STREAMS = 1000
KEEP_ALIVE = 15.0
PATIENCE = 5.0
"""Seconds for which a journal that the app opens itself is tried again, before a client gets 503."""
BODY_TIMEOUT = 30.0

_PAGE = FilePath(__file__).with_name("runs.html").read_text("utf-8")
_PAGE_HEADERS = page_headers(_PAGE)
_DATA_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
_ANSWERS = {
    "Allow(), Deny() or Edit({…})": '{"decision": "allow"}, "deny" or "edit"',
    "the result of the call, or Deny()": '{"result": …} or {"decision": "deny"}',
}
"""The advice in an error message, and what does the same here."""


def runs_app(
    journal: Journal | str,
    *,
    keys: Keys | None = None,
    agents: Collection[str] | None = None,
    open_to_all: bool = False,
    limits: KeyLimits | None = None,
    max_body: int = MAX_BODY,
    max_streams: int = MAX_STREAMS,
    keep_alive: float | None = KEEP_ALIVE,
) -> RunsApp:
    """The ASGI app for the runs of a journal, or of the journal at a URL, which it opens with its first request.

    `keys` says who may use it: each key sees the runs of its tenant. Without keys it answers requests from this machine
    only, unless `open_to_all` confirms that everybody who reaches it may use it. `agents`: runs may be started for
    these. `limits` counts the requests of each key. `max_streams`: how many may watch at the same time. `keep_alive`:
    seconds after which a silent stream gets a sign of life; None: never.
    """
    sizes = Sizes(max_body, max_streams, keep_alive)
    return RunsApp(journal, Guard(keys, open_to_all, limits), agents, sizes)


@dataclass(frozen=True, slots=True)
class Sizes:
    max_body: int
    max_streams: int
    keep_alive: float | None


class RunsApp:
    """Made by `runs_app`."""

    def __init__(
        self,
        journal: Journal | str,
        guard: Guard,
        agents: Collection[str] | None,
        sizes: Sizes,
    ) -> None:
        self._journal = journal if isinstance(journal, Journal) else None
        self._url = journal if isinstance(journal, str) else ""
        self._opening = asyncio.Lock()
        self._guard = guard
        self._agents = agents
        self._sizes = sizes
        self._feeds: EventFeeds | None = None
        self._streams = 0
        """How many watch now."""
        self._outgoing: set[Outgoing] = set()
        self._stopping = False

    def use(self, guard: Guard) -> None:
        """From now on, this decides who may use it."""
        self._guard = guard

    async def open(self) -> Journal:
        """The journal, opened if it was not."""
        if self._journal is None:
            async with self._opening:
                if self._journal is None:
                    try:
                        self._journal = await open_journal(self._url, patience=PATIENCE)
                    except UserError as error:  # no client can do anything about it
                        raise JournalUnavailable(str(error)) from None
        return self._journal

    def end_streams(self) -> None:
        """Ends all streams, as a server does that stops. Clients connect again and miss nothing."""
        self._stopping = True
        for stream in self._outgoing:
            stream.end()

    async def aclose(self) -> None:
        """Closes the journal if the app has opened it."""
        self.end_streams()
        if self._feeds is not None:
            feeds, self._feeds = self._feeds, None
            await feeds.close()
        if self._url and self._journal is not None:
            journal, self._journal = self._journal, None
            await journal.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, Response(send))
        else:
            await receive()
            await send({"type": "websocket.close", "code": 1000})

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.aclose()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _serve(self, scope: Scope, receive: Receive, response: Response) -> None:
        try:
            await self._route(scope, receive, response)
        except ClientGone:
            pass
        except Exception as error:  # noqa: BLE001 - the client always gets an answer, and the log the details
            refused = self._refusal(error)
            if not response.status:  # otherwise a stream broke off, and no error can follow
                body = dumps({"error": {"message": str(refused), "status": refused.status}})
                await response.complete(refused.status, body, {**_DATA_HEADERS, **refused.headers})

    def _refusal(self, error: Exception) -> Refused:
        match error:
            case Refused():
                return error
            case AlreadyAnswered() | RunExists():
                return Refused(409, str(error))
            case JournalUnavailable():
                LOG.warning("a request failed: %s", error)
                where = "the journal" if self._guard.has_keys else str(error).partition(" ")[0]
                return Refused(503, f"{where} cannot be reached now; nothing is lost, try again", {"retry-after": "5"})
            case UserError():
                words = str(error)
                for spelled, here in _ANSWERS.items():
                    words = words.replace(spelled, here)
                return Refused(400, words)
            case _:
                LOG.error("answering a request failed", exc_info=error)
                return Refused(500, "answering this request failed; the log of the server has the reason")

    async def _route(self, scope: Scope, receive: Receive, response: Response) -> None:
        path = read_path(scope)
        if path is None:
            raise Refused(404, "there is no such path: there are /, /session, /runs and /runs/{id}")
        headers = read_headers(scope)
        method: str = scope["method"]
        if path.place == "page":
            _only(method, "GET", "HEAD")
            self._guard.refuse_strangers(scope, headers)
            keys = "required" if self._guard.has_keys else ""
            page = _PAGE.replace("<!--keys-->", keys, 1).replace("<!--mount-->", escape(mount_of(scope)), 1)
            await response.complete(200, page.encode(), _PAGE_HEADERS, b"text/html; charset=utf-8")
            return
        if path.place == "session":
            _only(method, "POST", "DELETE")
            sign_in = self._guard.sign_in if method == "POST" else self._guard.sign_out
            await response.complete(204, b"", sign_in(scope, headers))
            return
        caller = self._guard.admit(scope, headers)
        with self._guard.counting(caller):
            if path.place != "runs":
                await self._route_run(path, caller, scope, receive, response)
                return
            _only(method, "GET", "POST")
            if method == "GET":
                await self._list(scope, caller, response)
            else:
                await self._start(scope, headers, receive, caller, response)

    async def _route_run(self, path: Path, caller: Caller, scope: Scope, receive: Receive, response: Response) -> None:
        headers, method = read_headers(scope), scope["method"]
        _only(method, "POST" if path.what in ("answers", "cancel") else "GET")
        row = await self._find(path.run_id, caller)
        match path.what:
            case "":
                await _send(response, 200, _as_json(row))
            case "answers" | "cancel":
                body = await self._read(headers, receive, empty=path.what == "cancel")
                await self._change(row, path, body, caller, response)
            case _:
                with self._stream(), CancelOnDisconnect(scope, receive):
                    await self._watch(row, path, scope, headers, response)

    # Runs

    async def _find(self, run_id: str, caller: Caller) -> RunRow:
        """A run of another tenant is not told from one that does not exist."""
        unknown = Refused(404, f"there is no run `{run_id[:200]}`")
        if not is_plain(run_id):
            raise unknown
        try:
            row = await (await self.open()).run(run_id)
        except UnknownRun:
            raise unknown from None
        if not caller.sees(row):
            raise unknown
        return row

    async def _list(self, scope: Scope, caller: Caller, response: Response) -> None:
        wanted = read_listing(read_query(scope))
        tenant = None if caller.sees_all and wanted.tenant is None else caller.tenant_for(wanted.tenant)
        rows = await (await self.open()).runs(
            state=wanted.state, agent=wanted.agent, tenant=tenant, limit=wanted.limit + 1
        )
        listed = [_as_json(row) for row in rows[: wanted.limit]]
        await _send(response, 200, {"runs": listed, "more": len(rows) > wanted.limit})

    async def _start(
        self, scope: Scope, headers: Mapping[str, str], receive: Receive, caller: Caller, response: Response
    ) -> None:
        new = read_new_run(await self._read(headers, receive))
        tenant = caller.tenant_for(new.tenant)
        if self._agents is not None and new.agent not in self._agents:
            raise Refused(400, f"there is no agent `{new.agent}`; there are: {', '.join(self._agents)}")
        journal = await self.open()
        status = 201
        if new.run_id is not None:
            try:
                await journal.run(new.run_id)
                status = 200
            except UnknownRun:
                pass
        id = await journal.start(
            new.agent, new.prompt, run_id=new.run_id, tenant=tenant, answer_within=new.answer_within
        )
        place = f"{quote(mount_of(scope))}/runs/{quote(id, safe='')}"
        await _send(response, status, _as_json(await journal.run(id)), place)

    async def _change(self, row: RunRow, path: Path, body: dict[str, Any], caller: Caller, response: Response) -> None:
        journal = await self.open()
        if path.what == "answers":
            answers = read_answers(body)
            await journal.answer(row.run_id, answers)
            LOG.info("run %r: calls %r were answered with the key %r", row.run_id, [*answers], caller.name)
        else:
            reason = read_reason(body)
            try:
                await (journal.cancel(row.run_id, reason) if reason else journal.cancel(row.run_id))
            except UserError as error:  # it has ended
                raise Refused(409, str(error)) from None
            LOG.info("run %r was cancelled with the key %r", row.run_id, caller.name)
        await _send(response, 200, _as_json(await journal.run(row.run_id)))

    async def _read(self, headers: Mapping[str, str], receive: Receive, *, empty: bool = False) -> dict[str, Any]:
        data = await read_body(headers, receive, self._sizes.max_body, BODY_TIMEOUT, lambda size: None)
        return {} if empty and not data.strip() else read_object(data)

    # Streams

    @contextmanager
    def _stream(self) -> Generator[None]:
        if self._streams >= self._sizes.max_streams:
            LOG.warning(
                "%d streams are open, and no more are allowed: a client that wants to watch has to wait", self._streams
            )
            raise Refused(503, "too many watch now; try again", {"retry-after": "5"})
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1

    async def _watch(
        self, row: RunRow, path: Path, scope: Scope, headers: Mapping[str, str], response: Response
    ) -> None:
        journal = await self.open()
        more: dict[str, str] = {}
        if path.what == "events":
            self._feeds = self._feeds or EventFeeds(journal)
            events = self._feeds.watch(row, read_after(read_query(scope), headers))
            first = await anext(events, b"") if row.state in ENDED else b""
            if not first and row.state in ENDED:
                # To a browser's EventSource this is the end: after any other answer it would connect again.
                await response.complete(204, b"", _DATA_HEADERS)
                return
            stream = event_stream(first, events)
        elif path.what == "ui":
            approvals = read_query(scope).get("approvals") != "false"
            stream, more = ui_stream(journal, row.run_id, approvals), {"x-vercel-ai-ui-message-stream": "v1"}
        else:
            try:
                stream = ag_ui_stream(journal, row.run_id)
            except UserError as error:
                raise Refused(501, str(error)) from None
        await response.begin(
            200, b"text/event-stream; charset=utf-8", {**more, "x-content-type-options": "nosniff"}, None
        )
        standing = Standing(self._guard, scope, headers, row)
        with self._ending_with_the_server(Outgoing(stream)) as outgoing:
            async with aclosing(outgoing.pieces(self._sizes.keep_alive)) as pieces:
                async for data in pieces:
                    if not standing.is_good():
                        break
                    await response.send(data)
                    await asyncio.sleep(0)  # other requests are answered between two pieces
        await response.send(b"", more=False)

    @contextmanager
    def _ending_with_the_server(self, outgoing: Outgoing) -> Generator[Outgoing]:
        self._outgoing.add(outgoing)
        if self._stopping:
            outgoing.end()
        try:
            yield outgoing
        finally:
            self._outgoing.discard(outgoing)


def _only(method: str, *allowed: str) -> None:
    if method not in allowed:
        raise Refused(405, f"this path needs {' or '.join(allowed)}", {"allow": ", ".join(allowed)})


def _as_json(row: RunRow) -> dict[str, Any]:
    """Without its numbers in the journal, which count the runs of all tenants."""
    return {
        "run_id": row.run_id,
        "agent": row.agent,
        "tenant": row.tenant,
        "state": row.state,
        "created": row.created,
        "updated": row.updated,
        "question": row.question,
        "pending": [_call_as_json(call) for call in row.pending] if row.state == "waiting" else [],
        "expires": row.expires if row.state == "waiting" else None,
        "error": row.error,
        "drives": row.drives,
    }


def _call_as_json(call: PendingCall) -> dict[str, Any]:
    """With its arguments as text too: JavaScript changes long numbers, and somebody decides by what a page shows."""
    return {**call, "arguments_text": json.dumps(call["arguments"], ensure_ascii=False, indent=2)}


async def _send(response: Response, status: int, body: dict[str, Any], location: str = "") -> None:
    more = {"location": location} if location else {}
    await response.complete(status, dumps(body), {**_DATA_HEADERS, **more})
