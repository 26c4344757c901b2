"""The sessions of this process: a bounded number of CLI processes, each used by one request at a time.

Between requests a session either waits for the results of its calls, found by the ids of the calls, or is idle after an
answer, found by everything that was said in it. Both expire, and both give way if another conversation needs the
process: a session that is gone is rebuilt from the client's history.
"""

# pyright: basic, reportMissingImports=false
# Sessions need claude-agent-sdk, which is not in the environment in which the types are checked.

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from claude_agent_upstream.conversation import Conversation
from claude_agent_upstream.session import Session
from unbroken.errors import Unavailable, UserError
from unbroken_wires.messages import Assistant


@dataclass(frozen=True, slots=True)
class Settings:
    model: str = ""
    """Claude's name for the model, such as `claude-sonnet-4-5`. Empty: the CLI's default."""
    processes: int = 8
    """How many processes of the CLI may run at once."""
    wait: float = 600.0
    """Seconds that a session waits for the results of its calls."""
    idle: float = 60.0
    """Seconds that a session stays after an answer without calls."""
    silence: float = 300.0
    """Seconds without an event, after which an answer has failed."""
    queue: float = 30.0
    """Seconds that a request waits for a process."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables for the CLI, beside those of this process."""
    cli_path: str | None = None
    """Another CLI than the one in the package."""

    @classmethod
    def from_environment(cls) -> Settings:
        """`CLAUDE_AGENT_MODEL`, `CLAUDE_AGENT_PROCESSES`, `CLAUDE_AGENT_WAIT`, `CLAUDE_AGENT_IDLE`,
        `CLAUDE_AGENT_SILENCE`, `CLAUDE_AGENT_QUEUE`; a default for each that is not set."""
        default = cls()
        return cls(
            os.environ.get("CLAUDE_AGENT_MODEL", ""),
            int(_number("CLAUDE_AGENT_PROCESSES", default.processes)),
            _number("CLAUDE_AGENT_WAIT", default.wait),
            _number("CLAUDE_AGENT_IDLE", default.idle),
            _number("CLAUDE_AGENT_SILENCE", default.silence),
            _number("CLAUDE_AGENT_QUEUE", default.queue),
        )


def _number(variable: str, default: float) -> float:
    written = os.environ.get(variable, "")
    try:
        number = float(written) if written else default
    except ValueError:
        number = -1.0
    if number <= 0:
        raise UserError(f"{variable} is {written!r}, and has to be a number above 0")
    return number


@dataclass(eq=False)
class Waiting:
    """A session between two requests."""

    session: Session
    settings: str
    history: str
    said: Assistant
    calls: Mapping[str, str]
    """The SDK's ids of the calls that it waits for, by the client's. Empty: it is idle."""
    key: str
    """Of an idle session: what was said in it."""
    expiry: asyncio.TimerHandle | None = None


class Pool:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._live: set[Session] = set()
        self._waiting: dict[Session, Waiting] = {}
        """The one that was kept first is first."""
        self._by_call: dict[str, Waiting] = {}
        self._idle: dict[str, list[Waiting]] = {}
        self._changed: asyncio.Condition | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, conversation: Conversation) -> Session:
        """A new session, as soon as there may be another process. `Unavailable` if there may not be one in time."""
        changed = self._condition()
        try:
            async with asyncio.timeout(self.settings.queue), changed:
                while len(self._live) >= self.settings.processes:
                    self._make_room()
                    await changed.wait()
                settings = self.settings
                session = Session(
                    conversation, settings.model, settings.environment, settings.cli_path, on_gone=self._gone
                )
                self._live.add(session)
                session.start()
                return session
        except TimeoutError:
            most = self.settings.processes
            words = f"all {most} processes of the Claude Agent SDK are in use"
            raise Unavailable(words, status=503, retry_after=5.0) from None

    def take_by_calls(self, ids: Iterable[str]) -> Waiting | None:
        """The session that waits for one of these calls, which is then this request's alone."""
        found = next((self._by_call[id] for id in ids if id in self._by_call), None)
        if found is not None:
            self._forget(found)
        return found

    def take_idle(self, key: str) -> Waiting | None:
        """An idle session in which exactly this was said."""
        found = self._idle.get(key)
        if not found:
            return None
        waiting = found[-1]
        self._forget(waiting)
        return waiting

    def keep(self, waiting: Waiting) -> None:
        """Keeps the session for the next request, for a while."""
        if waiting.session.closing:
            return
        self._waiting[waiting.session] = waiting
        for id in waiting.calls:
            self._by_call[id] = waiting
        if not waiting.calls:
            self._idle.setdefault(waiting.key, []).append(waiting)
        seconds = self.settings.wait if waiting.calls else self.settings.idle
        waiting.expiry = asyncio.get_running_loop().call_later(seconds, self.close, waiting.session)
        self._notify()  # a request may have waited for a session that can give way

    def close(self, session: Session) -> None:
        """Ends the session. Its process counts until it has ended."""
        if waiting := self._waiting.get(session):
            self._forget(waiting)
        session.close()

    def _make_room(self) -> None:
        """Ends a session that no request uses: an idle one, or the one that has waited longest."""
        if any(session.closing for session in self._live):
            return  # one will soon be gone
        idle = next((waiting for waiting in self._waiting.values() if not waiting.calls), None)
        if oldest := idle or next(iter(self._waiting.values()), None):
            self.close(oldest.session)

    def _forget(self, waiting: Waiting) -> None:
        if waiting.expiry is not None:
            waiting.expiry.cancel()
        del self._waiting[waiting.session]
        for id in waiting.calls:
            del self._by_call[id]
        if waiting.key in self._idle:
            self._idle[waiting.key].remove(waiting)
            if not self._idle[waiting.key]:
                del self._idle[waiting.key]

    def _gone(self, session: Session) -> None:
        if waiting := self._waiting.get(session):
            self._forget(waiting)
        self._live.discard(session)
        self._notify()

    def _condition(self) -> asyncio.Condition:
        if self._changed is None:
            self._changed = asyncio.Condition()
        return self._changed

    def _notify(self) -> None:
        async def notify() -> None:
            changed = self._condition()
            async with changed:
                changed.notify_all()

        task = asyncio.get_running_loop().create_task(notify())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
