"""Runs an agent on an event loop in a separate thread, while the main thread keeps the terminal.

So a person can take their time to answer a question while calls continue and servers stay connected. An interrupt is a
message like any other: it ends the run and nothing else. A `Screen` shows what happens.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from types import FrameType
from typing import Any, Protocol, TypeAlias

from unbroken.agent import Agent, Result
from unbroken.events import Event, Sink
from unbroken.tools.approval import Approval
from unbroken_wires.messages import ToolCall

Work: TypeAlias = Callable[[Sink], Coroutine[Any, Any, Result]]
"""Starts a run that sends its events to the sink."""

RESEND_AFTER = 0.1
"""Seconds after which an interrupt that nothing has handled is sent again."""
CLOSING = 10.0
"""Seconds that MCP servers have to close."""


@dataclass(frozen=True, slots=True)
class _Question:
    call: ToolCall
    answer: asyncio.Future[Approval]


@dataclass(frozen=True, slots=True)
class _Interrupt:
    pass


class Screen(Protocol):
    """Where a run is shown: live on a terminal, as plain lines, or as JSON."""

    @property
    def can_ask(self) -> bool:
        """Whether it can ask a person."""
        ...

    def show(self, event: Event) -> None: ...

    def ask(self, call: ToolCall) -> Approval:
        """Asks a person whether this call may run."""
        ...

    def line(self, text: str) -> None:
        """Prints a line that is not part of an answer."""
        ...

    def close(self) -> None:
        """Leaves the terminal so that others can print."""
        ...


class AgentThread:
    """`with thread.open(agent): result = thread.play(lambda sink: agent.run("…", sinks=[sink]))`"""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self._inbox: SimpleQueue[Event | _Question | _Interrupt | asyncio.Task[Result]] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._asking = False
        self._interrupts = 0

    @contextmanager
    def open(self, agent: Agent) -> Generator[None]:
        """Inside the `with` block the loop runs and the agent's servers are open."""
        ready: Future[None] = Future()
        thread = threading.Thread(target=lambda: asyncio.run(self._keep(agent, ready)), name="unbroken", daemon=True)
        thread.start()
        try:
            ready.result()
            yield
        finally:
            if self._loop is not None and self._keeper is not None and thread.is_alive():
                self._loop.call_soon_threadsafe(self._keeper.cancel)
            thread.join(CLOSING if self._interrupts < 2 else 0.1)

    def play(self, work: Work) -> Result:
        """Runs once to the end, shown on the screen. An interrupt ends the run, with every call answered, and is raised
        when that is done; after a second interrupt nothing is waited for."""
        loop = self._loop
        assert loop is not None
        tasks: list[asyncio.Task[Result]] = []

        def begin() -> None:
            tasks.append(loop.create_task(work(self._inbox.put)))
            tasks[0].add_done_callback(self._inbox.put)

        def end() -> None:
            tasks[0].cancel()

        self._interrupts = 0
        with self._interrupts_are_messages():
            loop.call_soon_threadsafe(begin)
            while True:
                match self._inbox.get():
                    case _Question() as question:
                        self._ask_person(loop, question)
                    case _Interrupt():
                        loop.call_soon_threadsafe(end)
                    case Event() as event:
                        self.screen.show(event)
                    case asyncio.Task() as task:
                        if task.cancelled():
                            raise KeyboardInterrupt
                        return task.result()

    async def approve(self, call: ToolCall) -> Approval:
        """The agent calls this, on its loop."""
        question = _Question(call, asyncio.get_running_loop().create_future())
        self._inbox.put(question)
        return await question.answer

    async def _keep(self, agent: Agent, ready: Future[None]) -> None:
        self._loop, self._keeper = asyncio.get_running_loop(), asyncio.current_task()
        try:
            async with agent:
                ready.set_result(None)
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    def _ask_person(self, loop: asyncio.AbstractEventLoop, question: _Question) -> None:
        self._asking = True
        try:
            answer = self.screen.ask(question.call)
        except KeyboardInterrupt:
            self._inbox.put(_Interrupt())
            return
        finally:
            self._asking = False
        loop.call_soon_threadsafe(lambda: question.answer.done() or question.answer.set_result(answer))

    @contextmanager
    def _interrupts_are_messages(self) -> Generator[None]:
        def interrupted(number: int, frame: FrameType | None) -> None:
            self._interrupts += 1
            if self._asking or self._interrupts > 1:
                raise KeyboardInterrupt
            self._inbox.put(_Interrupt())

        before = signal.signal(signal.SIGINT, interrupted)
        try:
            with self._interrupting_prompts():
                yield
        finally:
            signal.signal(signal.SIGINT, before)

    @contextmanager
    def _interrupting_prompts(self) -> Generator[None]:
        """`input` only wakes up for keys: an interrupt that arrives after the prompt is shown and just before the wait
        is not handled until a key is pressed. So it is sent again if nothing has handled it."""
        if not hasattr(signal, "pthread_kill"):  # Windows
            yield
            return
        main, (reader, writer) = threading.get_ident(), os.pipe()
        os.set_blocking(writer, False)

        def listen() -> None:
            while os.read(reader, 1):
                seen = self._interrupts
                time.sleep(RESEND_AFTER)
                if self._asking and self._interrupts == seen:
                    signal.pthread_kill(main, signal.SIGINT)

        listener = threading.Thread(target=listen, name="unbroken-interrupts", daemon=True)
        listener.start()
        before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            os.close(writer)
            listener.join()
            os.close(reader)
