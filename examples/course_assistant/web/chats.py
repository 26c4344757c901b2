"""The chats of the page: the questions of each session are answered in tasks of their own, and their events are kept in
a log. So a browser may leave, reload or lose its connection in the middle of an answer, and continue after the last
event that it has. An answer that nobody watches for a while is stopped. With a `ChatStore` a chat is saved when a
question begins and when it ends, and loaded when its id is used again."""

from __future__ import annotations

import asyncio
import json
import logging
from bisect import bisect_right
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Self

import orjson

from course_assistant.assistant import CourseAssistant
from course_assistant.sessions import Session
from course_assistant.sources import Source
from course_assistant.web.chat_store import ChatStore
from course_assistant.web.page_events import STOPPED_BY_SERVER, STOPPED_BY_USER, encode, page_events
from unbroken import UserError
from unbroken_wires.messages import Message
from unbroken_wires.transcript import from_json, to_json

LOG = logging.getLogger("course_assistant.web")

UNWATCHED = 300.0
"""Seconds that an answer continues after its last reader has left."""
MOST_TURNS = 50
"""Older ones are not shown any more."""
PIECES = (b'{"event":"text_added"', b'{"event":"reasoning_added"')
ENDS = (b'{"event":"answered"', b'{"event":"failed"', b'{"event":"stopped"')


@dataclass(frozen=True, slots=True)
class Entry:
    """An event in the log. When a turn has ended, its pieces of text are joined: then `first` and `last` are the
    numbers of the first and the last piece."""

    first: int
    last: int
    turn: int
    body: bytes


class Chat:
    """One session on the page. Events are numbered from 1, turns (a question and its answer) from 0."""

    def __init__(
        self,
        assistant: CourseAssistant,
        session: Session,
        store: ChatStore | None = None,
        *,
        unwatched: float = UNWATCHED,
    ) -> None:
        self.session = session
        self._unwatched = unwatched
        self._store = store
        self._assistant = assistant
        self._log: list[Entry] = []
        self._events = 0
        self._turns = 0
        self._before: tuple[Message, ...] = ()
        """The history before the last question."""
        self._question = ""
        self._running: dict[int, asyncio.Task[None]] = {}
        self._in_turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self._watchers = 0
        self._timer: asyncio.TimerHandle | None = None
        self._end_of_stopped = STOPPED_BY_USER

    @property
    def busy(self) -> bool:
        return bool(self._running)

    def ask(self, question: str) -> int:
        """Begins to answer, after the questions before it, and returns the number of the turn."""
        number, self._turns = self._turns, self._turns + 1
        self._begin(number, question)
        return number

    def ask_again(self) -> int | None:
        """Answers the last question again, in place of its answer. None if there is none, or one is being answered."""
        if self.busy or not self._turns:
            return None
        number = self._turns - 1
        self._log = [entry for entry in self._log if entry.turn < number]
        self.session.rewind(self._before)
        self._begin(number, self._question)
        return number

    def _begin(self, number: int, question: str) -> None:
        self._end_of_stopped = STOPPED_BY_USER
        task = self._running[number] = asyncio.create_task(self._answer(number, question))
        task.add_done_callback(partial(self._ended, number))
        self._set_timer()

    async def _answer(self, number: int, question: str) -> None:
        async with self._in_turn:
            self._question, self._before = question, self.session.conversation.messages
            self._add(number, encode({"event": "asked", "number": number, "question": question}))
            self._save()
            steps = self._assistant.stream(question, self.session)
            async for body in page_events(steps, self._assistant.library):
                self._add(number, body)

    def _ended(self, number: int, task: asyncio.Task[None]) -> None:
        """Also called for a task that was cancelled before it began."""
        del self._running[number]
        mine = [entry for entry in self._log if entry.turn == number]
        if not mine or not mine[-1].body.startswith(ENDS):
            self._add(number, encode(self._end_of_stopped))
        self._changed.set()
        self._set_timer()
        self._save()

    def _save(self) -> None:
        if self._store is None:
            return
        self._store.save(
            self.session.id,
            encode(
                {
                    "events": self._events,
                    "turns": self._turns,
                    "question": self._question,
                    "log": [[entry.first, entry.last, entry.turn, entry.body.decode()] for entry in self._log],
                    "before": to_json(self._before),
                    "messages": to_json(self.session.conversation.messages),
                    "found": [[one.number, one.title, one.file] for one in self.session.found.values()],
                }
            ),
        )

    @classmethod
    def restore(cls, assistant: CourseAssistant, id: str, body: bytes, store: ChatStore, *, unwatched: float) -> Self:
        """A chat that was saved. If its server died in the middle of an answer, that one has failed."""
        saved: dict[str, Any] = json.loads(body)  # arguments of a model may have numbers beyond 64 bits
        chat = cls(assistant, assistant.sessions.restore(id, from_json(saved["messages"])), store, unwatched=unwatched)
        chat.session.found = {number: Source(number, title, file) for number, title, file in saved["found"]}
        chat._events, chat._turns, chat._question = saved["events"], saved["turns"], saved["question"]
        chat._before = from_json(saved["before"])
        chat._log = [Entry(first, last, turn, text.encode()) for first, last, turn, text in saved["log"]]
        if chat._log and not chat._log[-1].body.startswith(ENDS):
            chat._add(chat._log[-1].turn, encode(STOPPED_BY_SERVER))
        chat._join_pieces()
        return chat

    def _add(self, turn: int, body: bytes) -> None:
        self._events += 1
        self._log.append(Entry(self._events, self._events, turn, body))
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _join_pieces(self) -> None:
        """Of the turns that have ended, while nobody is in the middle of reading them: a long answer has thousands of
        pieces."""
        joined: list[Entry] = []
        for (turn, piece), group in groupby(self._log, key=lambda entry: (entry.turn, _piece(entry))):
            entries = list(group)
            if piece and len(entries) > 1 and turn not in self._running:
                event: dict[str, Any] = orjson.loads(entries[0].body)
                event["text"] = "".join(orjson.loads(entry.body)["text"] for entry in entries)
                entries = [Entry(entries[0].first, entries[-1].last, turn, encode(event))]
            joined += entries
        self._log = [entry for entry in joined if entry.turn >= self._turns - MOST_TURNS]

    def stop(self) -> None:
        for task in self._running.values():
            task.cancel()

    def forget(self) -> None:
        """Ends the answer, and saves nothing more."""
        self._store = None
        self.stop()

    def stop_with_server(self) -> None:
        self._end_of_stopped = STOPPED_BY_SERVER
        self.stop()

    def has_news(self, after: int) -> bool:
        return self.busy or (bool(self._log) and self._log[-1].last > after)

    async def follow(self, after: int = 0, turn: int | None = None) -> AsyncGenerator[bytes, None]:
        """Server-sent events: what is there after this number, then what comes, until no question is being answered; or
        only those of one turn. If the number is inside of a text that was joined, its turn comes again from the
        beginning: `asked` has its number."""
        self._watchers += 1
        self._set_timer()
        try:
            yield b"data: %b\n\n" % encode({"event": "session", "id": self.session.id})
            while True:
                changed = self._changed
                for entry in self._since(after):
                    if turn is None or entry.turn == turn:
                        yield b"id: %d\ndata: %b\n\n" % (entry.last, entry.body)
                    after = entry.last
                if not (self.busy if turn is None else turn in self._running):
                    if not self.has_news(after) or turn is not None:
                        return
                    continue
                await changed.wait()
        finally:
            self._watchers -= 1
            self._set_timer()

    def _since(self, after: int) -> list[Entry]:
        at = bisect_right(self._log, after, key=lambda entry: entry.last)
        if at < len(self._log) and self._log[at].first <= after:
            turn = self._log[at].turn
            at = next(place for place, entry in enumerate(self._log) if entry.turn == turn)
        return self._log[at:]

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        unwatched = self.busy and not self._watchers
        self._timer = asyncio.get_running_loop().call_later(self._unwatched, self.stop) if unwatched else None
        if not self._watchers:
            self._join_pieces()


def _piece(entry: Entry) -> bytes:
    return next((kind for kind in PIECES if entry.body.startswith(kind)), b"")


class Chats:
    """The chats of all sessions, found by their ids only: they cannot be listed. A session that the assistant forgets
    takes its chat along, unless it is in the store."""

    def __init__(
        self, assistant: CourseAssistant, store: ChatStore | None = None, *, unwatched: float = UNWATCHED
    ) -> None:
        self._assistant = assistant
        self._unwatched = unwatched
        self._store = store
        self._by_id: dict[str, Chat] = {}

    def start(self) -> Chat:
        session = self._assistant.sessions.start()
        return self._keep(Chat(self._assistant, session, self._store, unwatched=self._unwatched))

    def _keep(self, chat: Chat) -> Chat:
        self._by_id[chat.session.id] = chat
        sessions = self._assistant.sessions
        self._by_id = {id: chat for id, chat in self._by_id.items() if id in sessions or chat.busy}
        return chat

    def find(self, id: str) -> Chat | None:
        if self._assistant.sessions.find(id):
            return self._by_id.get(id)
        body = self._store.load(id) if self._store is not None else None
        if body is None or self._store is None:
            return None
        try:
            return self._keep(Chat.restore(self._assistant, id, body, self._store, unwatched=self._unwatched))
        except (ValueError, KeyError, TypeError, UserError):  # of another version, or changed by somebody
            LOG.warning("a saved chat cannot be read: it is not shown", exc_info=True)
            return None

    def forget(self, id: str) -> bool:
        if chat := self._by_id.pop(id, None):
            chat.forget()
        on_disk = self._store is not None and self._store.forget(id)
        return self._assistant.sessions.forget(id) or on_disk

    def stop(self) -> None:
        """When the server stops: every reader gets an end."""
        for chat in self._by_id.values():
            chat.stop_with_server()
