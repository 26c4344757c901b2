"""`runs_app` in a FastAPI application, and the program of docs/recipes/fastapi.md. `make test-durable` runs them."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from checkout import DOCS
from watched_runs import ask, journal_url, read_events, until, working

from unbroken_durable.web import runs_app
from unbroken_gateway import GatewaySettings, running
from unbroken_testing import Call, serve

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


def test_the_program_of_the_recipe_streams_a_run_as_events(monkeypatch: pytest.MonkeyPatch) -> None:
    page = DOCS / "recipes" / "fastapi.md"
    (program,) = re.findall(r"^```py\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {"__name__": "app"}

    def make(settings: GatewaySettings) -> Any:
        return names["app"]

    async def main(url: str) -> list[dict[str, Any]]:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{url}/ask", json={"prompt": "How is Rome?"}) as answer,
        ):
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = (await answer.text()).splitlines()
            return [json.loads(line.removeprefix("data: ")) for line in lines if line]

    with serve([Call("get_weather", city="Rome")], "It is sunny in Rome.") as server:
        monkeypatch.setenv("OPENAI_API_KEY", "of-the-recipe")
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url())
        exec(compile(program, str(page), "exec", dont_inherit=True), names)
        with running(GatewaySettings((), port=0, stop_timeout=2), app=make) as url:
            events = asyncio.run(main(url))
    kinds = [event["event"] for event in events]
    assert (kinds[0], kinds[-1]) == ("run_started", "run_finished")
    assert {"call_started", "call_finished", "text_added"} <= set(kinds)
    assert events[-1]["text"] == "It is sunny in Rome."
