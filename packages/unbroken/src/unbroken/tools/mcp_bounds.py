"""Bounds on what an MCP server can make us do: how often its tools are listed, how much of its progress is passed on,
which characters its names bring into errors and logs."""

from __future__ import annotations

import asyncio
import time

FIRST_REPORTS, BETWEEN_REPORTS = 200, 0.1
"""How many reports of progress of a call are passed on in any case, and the seconds between later ones."""

LONGEST_REPORT = 1000
"""Maximum characters of one."""

FIRST_CHANGES, SHORT_PAUSE, LONG_PAUSE = 10, 0.1, 10.0
"""How often in a row a list is fetched at once when it changes, and the seconds between later requests."""
QUIET = 1.0
"""Seconds without a change after which the next one is fetched at once again; at least."""


class Reports:
    """Decides which reports of progress of one call are passed on."""

    def __init__(self) -> None:
        self._left = FIRST_REPORTS
        self._next = 0.0

    def allowed(self) -> bool:
        self._left -= 1
        now = time.monotonic()
        if self._left < 0 and now < self._next:
            return False
        self._next = now + BETWEEN_REPORTS
        return True


class Changed:
    """A server has reported a change. One that always does is heard less and less often."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._often = 0
        self._pause = SHORT_PAUSE

    def set(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        try:
            async with asyncio.timeout(max(2 * self._pause, QUIET)):
                await self._event.wait()
        except TimeoutError:
            self._often, self._pause = 0, SHORT_PAUSE  # it was quiet for a while
            await self._event.wait()
        self._often += 1
        if self._often > FIRST_CHANGES:
            await asyncio.sleep(self._pause)
            self._pause = min(2 * self._pause, LONG_PAUSE)
        self._event.clear()


def printable(text: str) -> str:
    """A name that a server gave, without the characters that control a terminal."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text[:200])
