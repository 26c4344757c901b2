"""A tab with the viewer's page on a folder of recordings, for the checks in this folder. `UNBROKEN_SHOTS=DIR` saves
screenshots."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import chromium

from unbroken_viewer.listing import Shelf
from unbroken_viewer.server import serving

SHOTS = os.environ.get("UNBROKEN_SHOTS")


def in_browser(path: Path, act: Callable[[chromium.Tab, str], Awaitable[None]]) -> None:
    async def main() -> None:
        async with opened(path) as (tab, address):
            await act(tab, address)
            assert tab.complaints == []

    asyncio.run(main())


@asynccontextmanager
async def opened(path: Path) -> AsyncGenerator[tuple[chromium.Tab, str]]:
    async with serving(Shelf(path)) as address, chromium.browser() as tab:
        await tab.size(1280, 720)
        await tab.theme("light")
        await tab.open(address)
        yield tab, address


async def shot(tab: chromium.Tab, name: str) -> None:
    if SHOTS:
        await tab.screenshot(Path(SHOTS) / f"{name}.png")


async def texts(tab: chromium.Tab, selector: str) -> list[str]:
    return await tab.run(f"[...document.querySelectorAll({json.dumps(selector)})].map((node) => node.innerText)")


async def text(tab: chromium.Tab, selector: str) -> str:
    return " ".join(await texts(tab, selector))
