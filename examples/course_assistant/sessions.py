"""Sessions: one conversation each, found by its id, up to a limit. A session answers one question at a time; a second
question waits for its turn."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from course_assistant.sources import Source
from unbroken import Agent, Conversation, User
from unbroken_wires.messages import Message

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
    found: dict[int, Source] = field(default_factory=dict[int, Source])
    """What the tools have found so far, by number: an answer may cite what was found for an earlier question."""

    def forget_the_oldest(self) -> None:
        """Removes many questions at once, so that the beginning of the history, which providers cache, seldom
        changes."""
        chat = self.conversation
        questions = [at for at, message in enumerate(chat.messages) if isinstance(message, User)]
        if len(questions) > MOST_QUESTIONS:
            self.conversation = Conversation(chat.agent, chat.messages[questions[-KEPT_QUESTIONS] :])

    def rewind(self, messages: Sequence[Message]) -> None:
        """Continues from an earlier history."""
        self.conversation = Conversation(self.conversation.agent, messages)


class Sessions:
    """The ids cannot be guessed. If there are too many, the session that was unused for longest is removed. A question
    that is being answered in it is still answered, but the session cannot be found any more."""

    def __init__(self, agent: Agent, most: int = MOST_SESSIONS) -> None:
        self._agent = agent
        self._most = most
        self._open: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, id: str) -> bool:
        return id in self._open

    def start(self) -> Session:
        session = self.apart()
        self._keep(session)
        return session

    def restore(self, id: str, messages: Sequence[Message]) -> Session:
        """A session that was saved."""
        session = Session(id, Conversation(self._agent, messages))
        self._keep(session)
        return session

    def _keep(self, session: Session) -> None:
        self._open[session.id] = session
        while len(self._open) > self._most:
            self._open.popitem(last=False)

    def apart(self) -> Session:
        """A session for a single question, which is not kept."""
        return Session(secrets.token_urlsafe(24), Conversation(self._agent))

    def find(self, id: str) -> Session | None:
        session = self._open.get(id)
        if session is not None:
            self._open.move_to_end(id)
        return session

    def forget(self, id: str) -> bool:
        return self._open.pop(id, None) is not None
