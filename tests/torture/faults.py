"""What goes wrong in a round, and the watch on `/healthz` meanwhile. Every fault is healed before its round ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeAlias, TypeVar

import aiohttp

from torture.history import History
from torture.plan import FaultPlan, Round, aliases
from torture.processes import Gateways, SmallDisk, Upstream, Valkey
from unbroken_gateway.keys import GatewayKey, add_key, remove_key
from unbroken_gateway.spending.allowance import read_allowance
from unbroken_gateway.stored_keys import StoredKeys
from unbroken_gateway.stores import open_store

KeyState: TypeAlias = Literal["known", "spent", "revoked"]
T = TypeVar("T")

HEALTH_EVERY = 0.3
HEALTH_PATIENCE = 10.0
KEYS_EVERY = 0.25
WAITED_FOR: Sequence[tuple[KeyState, int]] = (("spent", 402), ("revoked", 401))
STARVED = 1.0
"""Seconds without CPU for this process: then the machine is too busy to judge others by the clock."""


class WatchedKeys:
    """Keys in the store: known ones, one whose budget is spent at once, and one that is revoked."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.secrets: dict[KeyState, str] = {}

    def make(self, known: int, settings: dict[str, Any]) -> list[str]:
        """The known keys, and the settings that ask for them."""
        budget = read_allowance("0.000001usd")
        keys = [GatewayKey(f"team-{at}") for at in range(known)]
        keys += [GatewayKey("spent", budgets=(budget,)), GatewayKey("revoked")]
        secrets = asyncio.run(self._change(lambda found: [add_key(found, key, 1.0, "the store") for key in keys]))
        self.secrets = {"known": secrets[0], "spent": secrets[-2], "revoked": secrets[-1]}
        settings |= {"keys": True, "keys_in_store": True, "when_emptied": "restore"}
        for row in settings["upstreams"]:
            row["price"] = {"input": 1.0, "output": 1.0}
        return secrets[:known]

    async def revoke(self) -> None:
        await self._change(lambda found: remove_key(found, "revoked", "the store"))

    async def _change(self, work: Callable[[dict[str, GatewayKey]], T]) -> T:
        store = open_store(self._url)
        try:
            return await StoredKeys(store).change(work)
        finally:
            await store.aclose()


class Faults:
    def __init__(
        self,
        gateways: Gateways,
        upstream: Upstream,
        valkey: Valkey | None,
        disk: SmallDisk | None,
        history: History,
        keys: WatchedKeys | None = None,
    ) -> None:
        self._keys = keys
        self._gateways = gateways
        self._upstream = upstream
        self._valkey = valkey
        self._disk = disk
        self._history = history
        self._troubles = [0, 0]
        """For each gateway, odd while it is killed or paused."""

    async def run(self, one: Round) -> None:
        began = time.monotonic()
        for fault in one.plan:
            await asyncio.sleep(max(0.0, began + fault.at - time.monotonic()))
            await self._do(fault)
        await asyncio.sleep(max(0.0, began + one.seconds - time.monotonic()))

    async def _do(self, fault: FaultPlan) -> None:
        break_it, heal = self._steps(fault)
        of_gateway = fault.kind in ("kill gateway", "pause gateway")
        self._history.write("fault", kind=fault.kind, target=fault.target, lasting=fault.lasting)
        if of_gateway:
            self._troubles[fault.target] += 1
        try:
            await asyncio.to_thread(break_it)
            await asyncio.sleep(fault.lasting)
        finally:
            await asyncio.to_thread(heal)
            if of_gateway:
                self._troubles[fault.target] += 1
        self._history.write("healed", kind=fault.kind, target=fault.target)

    def _steps(self, fault: FaultPlan) -> tuple[Callable[[], None], Callable[[], None]]:
        """How it is broken, and how it is healed."""
        gateways, valkey, disk, number = self._gateways, self._valkey, self._disk, fault.target
        match fault.kind:
            case "kill gateway":
                return (lambda: gateways.kill(number)), (lambda: gateways.start(number))
            case "pause gateway":
                return (lambda: gateways.pause(number)), (lambda: gateways.resume(number))
            case "pause upstream":
                return self._upstream.pause, self._upstream.resume
            case "fill disk":
                assert disk is not None
                return disk.fill, disk.free
            case "pause store" | "lose store" | "flush store":
                assert valkey is not None
                if fault.kind == "flush store":
                    return valkey.flush, lambda: None
                return (valkey.pause, valkey.resume) if fault.kind == "pause store" else (valkey.kill, valkey.start)

    async def begin(self) -> None:
        """Before the first fault: every gateway has seen that a key is revoked, and that a budget is spent."""
        if self._keys is None:
            return
        await self._keys.revoke()
        async with aiohttp.ClientSession() as session:
            for number in range(len(self._gateways.urls)):
                for state, status in WAITED_FOR:
                    while await self._ask(session, number, state) != status:
                        await asyncio.sleep(KEYS_EVERY)

    async def watch_keys(self) -> None:
        """What the gateways do with the watched keys, until it is cancelled."""
        timeout = aiohttp.ClientTimeout(total=HEALTH_PATIENCE)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while self._keys is not None:
                await asyncio.sleep(KEYS_EVERY)
                for number in range(len(self._gateways.urls)):
                    for state in self._keys.secrets:
                        with suppress(aiohttp.ClientError, TimeoutError, OSError):
                            status = await self._ask(session, number, state)
                            self._history.write("key", gateway=number, state=state, status=status)

    async def _ask(self, session: aiohttp.ClientSession, number: int, state: KeyState) -> int:
        assert self._keys is not None
        body = {"model": aliases()[0][0], "messages": [{"role": "user", "content": "What do I owe?"}]}
        headers = {"Authorization": f"Bearer {self._keys.secrets[state]}"}
        url = f"{self._gateways.urls[number]}/v1/chat/completions"
        async with session.post(url, headers=headers, json=body) as answer:
            return answer.status

    async def watch_health(self) -> None:
        """Runs until it is cancelled. Requests while the gateway was down do not count."""
        timeout = aiohttp.ClientTimeout(total=HEALTH_PATIENCE)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                slept = time.monotonic()
                await asyncio.sleep(HEALTH_EVERY)
                if (lag := time.monotonic() - slept - HEALTH_EVERY) > STARVED:
                    self._history.write("starved", seconds=round(lag, 2))
                for number, url in enumerate(self._gateways.urls):
                    await self._look(session, number, url)

    async def _look(self, session: aiohttp.ClientSession, number: int, url: str) -> None:
        troubles = self._troubles[number]
        if troubles % 2:
            return
        began, problem = time.monotonic(), ""
        try:
            async with session.get(f"{url}/healthz") as answer:
                problem = "" if answer.status == 200 else f"status {answer.status}"
                await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            problem = f"{type(error).__name__}: {error}"
        if self._troubles[number] == troubles:
            seconds = round(time.monotonic() - began, 4)
            self._history.write("health", gateway=number, seconds=seconds, problem=problem)
