"""A request that is on its way while what it means is still being read: whoever needs its answer goes on from here."""

from __future__ import annotations

import asyncio

from aiohttp import ClientResponse

from unbroken.models.exchange_timeout import Patience


class Sent:
    """A request on its way: the head of its answer is waited for. To be dropped, once nobody needs it any more."""

    def __init__(self, posting: asyncio.Task[tuple[ClientResponse, Patience, str]]) -> None:
        self._posting = posting
        self._taken = False

    async def head(self) -> tuple[ClientResponse, Patience, str]:
        head = await self._posting
        self._taken = True
        return head

    def drop(self) -> None:
        """Hang up, unless somebody reads the answer."""
        if not self._taken:
            self._posting.cancel()
            self._posting.add_done_callback(_hang_up)


def _hang_up(posting: asyncio.Task[tuple[ClientResponse, Patience, str]]) -> None:
    if not posting.cancelled() and posting.exception() is None:
        response, patience, _ = posting.result()
        patience.end()
        response.close()
