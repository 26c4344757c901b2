"""What goes wrong in a round, and the watch on `/healthz` meanwhile. Every fault is healed before its round ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import aiohttp

from torture.history import History
from torture.plan import FaultPlan, Round
from torture.processes import Gateways, SmallDisk, Upstream, Valkey

HEALTH_EVERY = 0.3
HEALTH_PATIENCE = 10.0
STARVED = 1.0
"""Seconds without CPU for this process: then the machine is too busy to judge others by the clock."""


class Faults:
    def __init__(
        self, gateways: Gateways, upstream: Upstream, valkey: Valkey | None, disk: SmallDisk | None, history: History
    ) -> None:
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
