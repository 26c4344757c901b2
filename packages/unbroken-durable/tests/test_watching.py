"""Durable runs over HTTP: start, list, answer and cancel them, and watch them, however often the connection breaks."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema
import pytest
from ag_ui.core import Event as AgUiEvent
from pydantic import TypeAdapter
from starlette.applications import Starlette
from starlette.routing import Mount
from watched_runs import ANSWER, Server, Told, ask, journal_url, read_events, serving, until, working

from unbroken.events import NAMES, event_to_json
from unbroken_durable import Journal, open_journal
from unbroken_durable.web import runs_app
from unbroken_gateway import GatewaySettings, running

Session = aiohttp.ClientSession


def watch(folder: Path, act: Callable[[Session, str, Journal], Awaitable[None]], **options: Any) -> None:
    """A server, a worker and a client."""

    async def main() -> None:
        with serving(folder, **options) as url:
            async with working(folder) as journal, Session() as session:
                await act(session, url, journal)

    asyncio.run(main())


async def reach(session: Session, run: str, state: str) -> dict[str, Any]:
    async def look() -> Any:
        status, body = await ask(session, "GET", run)
        assert status == 200, body
        return body if body["state"] == state else None

    return await until(look)


async def run_to_the_end(session: Session, url: str, prompt: str = "look refund") -> str:
    """Starts a run, allows what it asks for, and returns its address."""
    status, body = await ask(session, "POST", f"{url}/runs", {"agent": "support", "prompt": prompt})
    assert status == 201, body
    run = f"{url}/runs/{body['run_id']}"
    if "refund" in prompt:
        waiting = await reach(session, run, "waiting")
        answers = {call["id"]: {"decision": "allow"} for call in waiting["pending"]}
        assert (await ask(session, "POST", f"{run}/answers", answers))[0] == 200
    await reach(session, run, "answered")
    return run


def test_a_run_is_started_answered_and_shown(tmp_path: Path) -> None:
    async def act(session: Session, url: str, journal: Journal) -> None:
        asked = {"agent": "support", "prompt": "refund order 7", "run_id": "order 7/a", "tenant": "acme"}
        async with session.post(f"{url}/runs", json=asked) as answer:
            assert answer.status == 201
            assert answer.headers["location"] == "/runs/order%207%2Fa"
        status, body = await ask(session, "POST", f"{url}/runs", asked)
        assert (status, body["run_id"]) == (200, "order 7/a")  # nothing is started twice
        status, body = await ask(session, "POST", f"{url}/runs", {**asked, "prompt": "something else"})
        assert status == 409
        assert "exists already" in body["error"]["message"]

        run = f"{url}/runs/order%207%2Fa"
        waiting = await reach(session, run, "waiting")
        assert [(call["id"], call["needs"], call["arguments"]) for call in waiting["pending"]] == [
            ("refund-0", "approval", {"order": 7})
        ]
        for query, found in (("state=waiting", 1), ("state=answered", 0), ("agent=other", 0), ("tenant=acme", 1)):
            status, body = await ask(session, "GET", f"{url}/runs?{query}")
            assert (status, len(body["runs"])) == (200, found), query

        edit = {"refund-0": {"decision": "edit", "arguments": {"order": 8, "note": "late"}}}
        status, body = await ask(session, "POST", f"{run}/answers", edit)
        assert (status, body["pending"]) == (200, [])
        status, body = await ask(session, "POST", f"{run}/answers", edit)
        assert status == 409
        assert "the first answer counts" in body["error"]["message"]
        await reach(session, run, "answered")
        events = await read_events(session, f"{run}/events")
        finished = [json.loads(told.data) for told in events if told.event == "call_finished"]
        assert "refunded 8 late" in finished[0]["text"]
        assert (await ask(session, "POST", f"{run}/cancel"))[0] == 409

    watch(tmp_path, act)


def test_calls_are_denied_with_a_reason_and_results_come_from_elsewhere(tmp_path: Path) -> None:
    async def act(session: Session, url: str, journal: Journal) -> None:
        await ask(session, "POST", f"{url}/runs", {"agent": "support", "prompt": "refund pick", "run_id": "r"})
        run = f"{url}/runs/r"
        await reach(session, run, "waiting")
        await ask(session, "POST", f"{run}/answers", {"refund-0": {"decision": "deny", "reason": "too much"}})
        await until(lambda: _pending(session, run, "pick-1"))
        status, body = await ask(session, "POST", f"{run}/answers", {"pick-1": {"decision": "allow"}})
        assert status == 400
        assert '{"result": …} or {"decision": "deny"}' in body["error"]["message"]
        await ask(session, "POST", f"{run}/answers", {"pick-1": {"result": {"chosen": 3}}})
        await reach(session, run, "answered")
        texts = [json.loads(told.data)["text"] for told in await read_events(session, f"{run}/events")
                 if told.event == "call_finished"]  # fmt: skip
        assert "too much" in texts[0]
        assert json.loads(texts[1]) == {"chosen": 3}

    watch(tmp_path, act)


async def _pending(session: Session, run: str, id: str) -> bool:
    return id in [call["id"] for call in (await ask(session, "GET", run))[1]["pending"]]


def test_a_waiting_run_is_cancelled_and_its_stream_ends(tmp_path: Path) -> None:
    async def act(session: Session, url: str, journal: Journal) -> None:
        await ask(session, "POST", f"{url}/runs", {"agent": "support", "prompt": "refund", "run_id": "r"})
        run = f"{url}/runs/r"
        await reach(session, run, "waiting")
        reading = asyncio.create_task(read_events(session, f"{run}/events"))
        status, body = await ask(session, "POST", f"{run}/cancel", {"reason": "not any more"})
        assert (status, body["state"], body["error"]) == (200, "cancelled", "not any more")
        assert (await asyncio.wait_for(reading, 10))[-1].event == "run_failed"

    watch(tmp_path, act)


def test_a_stream_that_is_cut_after_every_event_continues_without_a_gap(tmp_path: Path) -> None:
    async def act(session: Session, url: str, journal: Journal) -> None:
        run = await run_to_the_end(session, url)
        full = await read_events(session, f"{run}/events")
        stored = [event async for event in journal.events(run.rpartition("/")[2])]
        assert [(told.id, told.event, json.loads(told.data)) for told in full] == [
            (str(event.seq), NAMES[type(event)], event_to_json(event)) for event in stored
        ]
        assert len(full) > 20
        for cut in range(len(full) + 1):
            after = str(cut)
            assert full[:cut] + await read_events(session, f"{run}/events", after) == full
            assert full[:cut] + await read_events(session, f"{run}/events?after={after}") == full
        async with session.get(f"{run}/events", headers={"last-event-id": str(len(full))}) as answer:
            assert answer.status == 204  # an EventSource does not connect again
        for wrong in ("x", "-1", "1.5", "9" * 30, "²"):
            async with session.get(f"{run}/events", params={"after": wrong}) as answer:
                assert answer.status == 400

    watch(tmp_path, act)


def test_a_live_run_is_read_one_event_at_a_time_on_a_new_connection_each(tmp_path: Path) -> None:
    async def act(session: Session, url: str, journal: Journal) -> None:
        await ask(session, "POST", f"{url}/runs", {"agent": "support", "prompt": "look refund slowly", "run_id": "r"})
        run, told = f"{url}/runs/r", list[Told]()
        while not told or told[-1].event != "run_finished" or json.loads(told[-1].data)["stop_reason"] == "waiting":
            told += await read_events(session, f"{run}/events", told[-1].id if told else "", most=1)
            if told[-1].event == "run_finished":
                await ask(session, "POST", f"{run}/answers", {"refund-1": {"decision": "allow"}})
        assert told == await read_events(session, f"{run}/events")
        assert [told.id for told in told] == [str(number) for number in range(1, len(told) + 1)]

    watch(tmp_path, act)


def test_a_silent_stream_has_signs_of_life_and_a_server_that_stops_ends_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with working(tmp_path) as journal, Session() as session:
            with serving(tmp_path, keep_alive=0.05) as url:
                await journal.start("support", "refund", run_id="r")
                await reach(session, f"{url}/runs/r", "waiting")
                answer = await session.get(f"{url}/runs/r/events")
                text = ""
                while text.count(": still here\n\n") < 3:
                    text += (await answer.content.readany()).decode()
                assert text.startswith("retry: 1000\n\nid: 1\nevent: run_started\n")
                began = time.monotonic()
            assert time.monotonic() - began < 4  # the stream would have lasted as long as the run waits
            await answer.content.read()
            answer.close()

    asyncio.run(main())


def test_the_ai_sdk_gets_one_message_however_often_the_run_was_driven(tmp_path: Path) -> None:
    async def act(session: Session, url: str, journal: Journal) -> None:
        await journal.start("support", "look refund refund", run_id="r")
        run = f"{url}/runs/r"
        for waits in ("refund-1", "refund-2"):
            await until(lambda waits=waits: _pending(session, run, waits))
            chunks = await _chunks(session, f"{run}/ui")
            assert chunks[0] == {"type": "start", "messageId": "r"}
            assert [chunk["approvalId"] for chunk in chunks if chunk["type"] == "tool-approval-request"] == [waits]
            assert chunks[-1]["finishReason"] == "tool-calls"
            await ask(session, "POST", f"{run}/answers", {waits: {"decision": "allow"}})
        await reach(session, run, "answered")
        chunks = await _chunks(session, f"{run}/ui")
        kinds = [chunk["type"] for chunk in chunks]
        assert [kinds.count(kind) for kind in ("start", "finish", "start-step", "finish-step")] == [1, 1, 4, 4]
        assert kinds[-1] == "finish"
        assert kinds.count("tool-output-available") == 3
        assert "".join(chunk["delta"] for chunk in chunks if chunk["type"] == "text-delta").endswith(ANSWER)

    watch(tmp_path, act)


async def _chunks(session: Session, url: str) -> list[dict[str, Any]]:
    async with session.get(url) as answer:
        assert answer.headers["x-vercel-ai-ui-message-stream"] == "v1"
    told = await read_events(session, url)
    assert told[-1].data == "[DONE]"
    return [json.loads(each.data) for each in told[:-1]]


def test_ag_ui_events_are_those_of_its_package(tmp_path: Path) -> None:
    read = TypeAdapter[Any](AgUiEvent)

    async def act(session: Session, url: str, journal: Journal) -> None:
        await journal.start("support", "look refund", run_id="r")
        run = f"{url}/runs/r"
        await reach(session, run, "waiting")
        events = [read.validate_json(told.data) for told in await read_events(session, f"{run}/ag-ui")]
        (interrupt,) = events[-1].outcome.interrupts
        assert (interrupt.id, interrupt.reason, interrupt.tool_call_id) == ("refund-1", "approval", "refund-1")
        await ask(session, "POST", f"{run}/answers", {interrupt.id: {"decision": "allow"}})
        await reach(session, run, "answered")
        events = [read.validate_json(told.data) for told in await read_events(session, f"{run}/ag-ui")]
        kinds = [event.type.value for event in events]
        assert (kinds[0], kinds[-1]) == ("RUN_STARTED", "RUN_FINISHED")
        assert [kinds.count(kind) for kind in ("RUN_STARTED", "RUN_FINISHED", "STEP_STARTED", "STEP_FINISHED")] == [
            1,
            1,
            3,
            3,
        ]
        results = [(event.tool_call_id, event.content) for event in events if event.type == "TOOL_CALL_RESULT"]
        assert results == [("look-0", "order 7 is late"), ("refund-1", "refunded 7")]
        assert "".join(event.delta for event in events if event.type == "TEXT_MESSAGE_CONTENT").endswith(ANSWER)
        assert events[-1].outcome.type == "success"
        assert events[-1].usage[0].output_tokens > 0

    watch(tmp_path, act)


def test_a_failed_and_a_cancelled_run_end_their_streams_in_every_format(tmp_path: Path) -> None:
    async def act(session: Session, url: str, journal: Journal) -> None:
        await journal.start("support", "fail", run_id="failed")
        await journal.start("support", "refund", run_id="cancelled")
        await reach(session, f"{url}/runs/failed", "failed")
        await reach(session, f"{url}/runs/cancelled", "waiting")
        await journal.cancel("cancelled")
        last = {
            (run, what): json.loads((await read_events(session, f"{url}/runs/{run}/{what}"))[at].data)
            for run in ("failed", "cancelled")
            for what, at in (("ui", -2), ("ag-ui", -1), ("events", -1))
        }
        assert last["failed", "ui"]["type"] == "error"
        assert last["failed", "ag-ui"]["type"] == "RUN_ERROR"
        assert last["failed", "events"]["event"] == "run_failed"
        assert last["cancelled", "ui"]["type"] == "abort"
        assert last["cancelled", "ag-ui"]["outcome"]["type"] == "cancelled"
        assert last["cancelled", "events"]["error"] == "CancelledError"

    watch(tmp_path, act)


def test_it_is_mounted_in_starlette(tmp_path: Path) -> None:
    def make(settings: GatewaySettings) -> Any:
        return Starlette(routes=[Mount("/a/b", app=runs_app(journal_url(tmp_path)))])

    async def main() -> None:
        with running(GatewaySettings((), port=0, stop_timeout=2), app=make) as url:
            async with working(tmp_path), Session() as session:
                run = await run_to_the_end(session, f"{url}/a/b")
                assert (await read_events(session, f"{run}/events"))[-1].event == "run_finished"
                body = {"agent": "support", "prompt": "look", "run_id": "x/y"}
                async with session.post(f"{url}/a/b/runs", json=body) as answer:
                    assert answer.headers["location"] == "/a/b/runs/x%2Fy"
                async with session.get(f"{url}/a/b/") as page:
                    assert '<meta name="mount" content="/a/b">' in await page.text()

    asyncio.run(main())


async def matches_its_description(session: Session, url: str) -> None:
    """What the gateway answers under /runs is what its /openapi.json says."""
    described = (await ask(session, "GET", f"{url}/openapi.json"))[1]
    new = {"agent": "support", "prompt": "refund", "run_id": "described"}
    told: list[tuple[str, str, Any]] = [("post", "/runs", new), ("post", "/runs", new), ("get", "/runs", None)]
    told += [("post", "/runs", {}), ("post", "/runs", {**new, "prompt": "other"})]
    told += [("post", "/runs/{run}/answers", {"nobody": 1}), ("post", "/runs/{run}/cancel", {"reason": "enough"})]
    told += [("post", "/runs/{run}/cancel", None), ("get", "/runs/{run}", None)]
    statuses: list[int] = []
    for method, path, sent in told:
        operation = described["paths"][path][method]
        status, body = await ask(session, method.upper(), f"{url}{path}".replace("{run}", "described"), sent)
        statuses.append(status)
        schema = operation["responses"][str(status)]["content"]["application/json"]["schema"]
        jsonschema.Draft202012Validator({**described, **schema}).validate(body)  # pyright: ignore[reportUnknownMemberType] - untyped
    assert statuses == [201, 200, 200, 400, 409, 400, 200, 409, 200]
    assert {path for path in described["paths"] if path.startswith("/runs/{run}/")} == {
        f"/runs/{{run}}/{what}" for what in ("answers", "cancel", "events", "ui", "ag-ui")
    }


def test_a_gateway_serves_runs_when_it_has_a_journal(tmp_path: Path) -> None:
    def settings(**more: Any) -> GatewaySettings:
        return GatewaySettings((), port=0, store="memory:", **more)

    async def main() -> None:
        with running(settings(journal=journal_url(tmp_path))) as url:
            async with working(tmp_path), Session() as session:
                await run_to_the_end(session, url)
                async with session.get(f"{url}/runs/") as page:
                    assert "Unbroken runs" in await page.text()
                await matches_its_description(session, url)
        with running(settings()) as url:
            async with Session() as session:
                assert (await ask(session, "GET", f"{url}/runs"))[0] == 404

    asyncio.run(main())


def test_an_opened_journal_is_served_too_and_stays_open(tmp_path: Path) -> None:
    async def main() -> None:
        async with await open_journal(journal_url(tmp_path)) as journal:
            app = runs_app(journal)
            await app.aclose()
            assert await journal.runs() == []

    asyncio.run(main())


@pytest.mark.slow
def test_a_server_that_is_killed_again_and_again_loses_nothing_for_those_who_watch(tmp_path: Path) -> None:
    async def main() -> None:
        server = Server(tmp_path)
        told: list[Told] = []
        kills = 0
        try:
            async with working(tmp_path) as journal, Session() as session:
                await journal.start("support", "look look refund slowly", run_id="r")
                run = f"{server.url}/runs/r"
                while not _is_over(told):
                    with suppress(aiohttp.ClientError):  # as a browser: it connects again
                        told += await read_events(session, f"{run}/events", told[-1].id if told else "", most=3)
                        if (await journal.run("r")).state == "waiting":
                            await ask(session, "POST", f"{run}/answers", {"refund-2": {"decision": "allow"}})
                        server.restart()
                        kills += 1
                    await asyncio.sleep(0.02)
                stored = [event async for event in journal.events("r")]
        finally:
            server.kill()
        assert kills > 5
        assert [json.loads(each.data) for each in told] == [event_to_json(event) for event in stored]

    asyncio.run(main())


def _is_over(told: list[Told]) -> bool:
    return bool(told) and told[-1].event == "run_finished" and json.loads(told[-1].data)["stop_reason"] == "answered"
