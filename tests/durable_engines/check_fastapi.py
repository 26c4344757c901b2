"""`runs_app` mounted in a FastAPI application. `make test-durable` installs FastAPI and runs it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from watched_runs import ask, journal_url, read_events, until, working

from unbroken.durable.web import runs_app
from unbroken.gateway import GatewaySettings, running

fastapi: Any = pytest.importorskip("fastapi", reason="FastAPI is not installed here")


def test_it_is_mounted_in_fastapi(tmp_path: Path) -> None:
    def make(settings: GatewaySettings) -> Any:
        app = fastapi.FastAPI()
        app.mount("/agents", runs_app(journal_url(tmp_path)))
        return app

    async def main() -> None:
        with running(GatewaySettings((), port=0, stop_timeout=2), app=make) as url:
            async with working(tmp_path), aiohttp.ClientSession() as session:
                new = {"agent": "support", "prompt": "refund", "run_id": "a/b"}
                assert (await ask(session, "POST", f"{url}/agents/runs", new))[0] == 201
                run = f"{url}/agents/runs/a%2Fb"

                async def waits() -> bool:
                    return (await ask(session, "GET", run))[1]["state"] == "waiting"

                await until(waits)
                answers = {"refund-0": {"decision": "allow"}}
                assert (await ask(session, "POST", f"{run}/answers", answers))[0] == 200
                assert (await read_events(session, f"{run}/events"))[-1].event == "run_finished"
                assert (await ask(session, "GET", f"{url}/agents/nothing"))[0] == 404

    asyncio.run(main())
