"""Sessions: one conversation each, found by its id, up to a limit. A session answers one question at a time; a second
question waits for its turn."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from dataclasses import dataclass, field

from unbroken import Agent, Conversation, User

MOST_SESSIONS = 500
MOST_QUESTIONS = 20
KEPT_QUESTIONS = 10
"""If there are more questions than that, so many are kept: a model's context is limited, and each question pays for the
history."""


@dataclass(slots=True, eq=False)
class Session:
    id: str
    conversation: Conversation
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a question is being answered."""

    def forget_the_oldest(self) -> None:
        """Removes many questions at once, so that the beginning of the history, which providers cache, seldom
        changes."""
        chat = self.conversation
        questions = [at for at, message in enumerate(chat.messages) if isinstance(message, User)]
        if len(questions) > MOST_QUESTIONS:
            self.conversation = Conversation(chat.agent, chat.messages[questions[-KEPT_QUESTIONS] :])


class Sessions:
    """If there are too many, the session that was unused for longest is removed. A question that is being answered in
    it is still answered, but the session cannot be found any more."""

    def __init__(self, agent: Agent, most: int = MOST_SESSIONS) -> None:
        self._agent = agent
        self._most = most
        self._open: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def start(self) -> Session:
        session = self.apart()
        self._open[session.id] = session
        while len(self._open) > self._most:
            self._open.popitem(last=False)
        return session

    def apart(self) -> Session:
        """A session for a single question, which is not kept."""
        return Session(secrets.token_hex(8), Conversation(self._agent))

    def find(self, id: str) -> Session | None:
        session = self._open.get(id)
        if session is not None:
            self._open.move_to_end(id)
        return session

    def forget(self, id: str) -> bool:
        return self._open.pop(id, None) is not None
