"""A real Chromium, driven over its DevTools protocol: opens pages, presses keys, takes pictures. Nothing to install but
the browser itself (`apt-get install chromium`)."""

from __future__ import annotations

import asyncio
import base64
import itertools
import shutil
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def find() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Tab:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self.complaints: list[str] = []
        """Errors of the page's script, and what its policy refused."""

    async def listen(self) -> None:
        async for message in self._socket:
            told = message.json()
            if "id" in told:
                self._waiting.pop(told["id"]).set_result(told)
            elif told["method"] == "Runtime.exceptionThrown":
                details = told["params"]["exceptionDetails"]
                self.complaints.append(details.get("exception", {}).get("description") or details["text"])
            elif told["method"] == "Log.entryAdded" and told["params"]["entry"]["level"] == "error":
                self.complaints.append(told["params"]["entry"]["text"])

    async def ask(self, method: str, **params: Any) -> Any:
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        told = await asyncio.wait_for(answer, 60)
        assert "error" not in told, told
        return told["result"]

    async def run(self, script: str) -> Any:
        """The value of an expression, awaited if it is a promise."""
        told = await self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    async def until(self, condition: str) -> None:
        for _ in range(600):
            if await self.run(condition):
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"never true: {condition}; the page says: {await self.run('document.body.innerText')}")

    async def open(self, address: str, ready: str = "document.querySelector('.lane, .item') !== null") -> None:
        await self.ask("Page.navigate", url="about:blank")
        await self.ask("Page.navigate", url=address)
        await self.until(f"location.href !== 'about:blank' && document.readyState === 'complete' && ({ready})")

    async def size(self, width: int, height: int) -> None:
        await self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    async def theme(self, name: str) -> None:
        await self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    async def press(self, *keys: str) -> None:
        for key in keys:
            text = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
            await self.ask("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
            await self.ask("Input.dispatchKeyEvent", type="keyUp", key=key)
        await self.settle()

    async def settle(self) -> None:
        """After two frames everything that was requested is drawn."""
        await self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    async def wheel(self, x: float, y: float, delta: int, *, ctrl: bool = False) -> None:
        await self.ask(
            "Input.dispatchMouseEvent",
            type="mouseWheel", x=x, y=y, deltaX=0, deltaY=delta, modifiers=2 if ctrl else 0,
        )  # fmt: skip

    async def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            await self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        await self.settle()

    async def screenshot(self, path: Path) -> None:
        await self.settle()
        await asyncio.sleep(0.15)  # colours fade
        told = await self.ask("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(told["data"]))


@asynccontextmanager
async def browser() -> AsyncGenerator[Tab]:
    program = find()
    assert program is not None, "install Chromium"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            program,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            "--no-first-run",
            "--remote-debugging-port=0",
            f"--user-data-dir={profile}",
            "--hide-scrollbars",
            "about:blank",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            port = await _port(Path(profile))
            async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
                async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                    page = next(target for target in await answer.json() if target["type"] == "page")
                async with session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    tab = Tab(socket)
                    listening = group.create_task(tab.listen())
                    for domain in ("Page", "Runtime", "Log"):
                        await tab.ask(f"{domain}.enable")
                    yield tab
                    listening.cancel()
        finally:
            process.terminate()
            await process.wait()


async def _port(profile: Path) -> int:
    told = profile / "DevToolsActivePort"
    for _ in range(1000):
        if told.exists() and (lines := told.read_text().split()):
            return int(lines[0])
        await asyncio.sleep(0.02)
    raise AssertionError("Chromium did not start")
