"""The recordings of a gateway in the viewer: what it shows of a client's request, and who may see it at
`/recordings/`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from gateway_client import THREE_CALLS, Client, run, serving, settings_for, stage, upstream_settings

from unbroken.trajectory.recording import read_recording
from unbroken_gateway.keys import GatewayKey, create_key
from unbroken_gateway.settings import UpstreamSettings
from unbroken_testing import Break, Say, ScriptedServer, Step, Uses
from unbroken_viewer import Shelf
from unbroken_viewer.listing import shown_end
from unbroken_viewer.picture import Picture, draw
from unbroken_viewer.request_code import request_code
from unbroken_wires.messages import User


def pictures(folder: Path) -> list[Picture]:
    return [draw(read_recording(path)) for path in sorted(folder.glob("*.jsonl"))]


async def get(url: str, path: str, **headers: str) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.get(f"{url}{path}", headers=headers) as answer:
        body = await answer.text()
        return answer.status, json.loads(body) if "json" in answer.content_type else body


def test_a_turn_shows_its_client_its_model_and_the_calls_that_it_holds(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage("openai-chat", THREE_CALLS, serial=True, record=str(tmp_path)) as there:
            client = Client(there.url, "anthropic-messages", True, headers={"User-Agent": "claude-cli/2.1 <b>"})
            await client.ask(User.of("How is the weather?"))

    run(story)
    (picture,) = pictures(tmp_path)
    turn = picture.gateway
    assert turn is not None
    assert (turn.user_agent, turn.client_wire, turn.upstream_wire) == (
        "claude-cli/2.1 <b>",
        "anthropic-messages",
        "openai-chat",
    )
    assert (turn.alias, turn.model, turn.answered_by) == ("m", "openai-chat:big-model", "openai-chat:big-model")
    assert (turn.serial, turn.stream, turn.held) == (True, True, 2)
    assert [call.state for call in picture.turns[0].calls] == ["sent", "held", "held"]
    (row,) = Shelf(tmp_path).rows()
    assert (row.calls, shown_end(row.state, row.agent)) == (3, "tool calls")
    assert picture.seconds == pytest.approx(row.seconds, abs=0.001)  # with what the client waited before
    (recording,) = map(read_recording, tmp_path.glob("*.jsonl"))
    assert "Agent('openai-chat:big-model'" in request_code(recording, 0, "python")


def test_a_fallback_that_answers_and_what_is_lost_on_the_way_are_shown(tmp_path: Path) -> None:
    broken: list[str | Step] = [Say("It is "), Break()]

    async def story() -> None:
        async with ScriptedServer(broken) as first, ScriptedServer("It is sunny.") as second:
            rows = (
                upstream_settings(first, "openai-chat", fallback=("spare",), options={"attempts": 1}),
                upstream_settings(second, "anthropic-messages", "spare"),
            )
            async with serving(settings_for(*rows, record=str(tmp_path))) as url:
                client = Client(url, "openai-responses", parallel=None)
                body = {**client.body([User.of("Hi")]), "top_logprobs": 3, "include": ["message.output_text.logprobs"]}
                assert (await client.post(json.dumps(body).encode())).status == 200

    run(story)
    (picture,) = pictures(tmp_path)
    assert picture.gateway is not None
    assert (picture.gateway.model, picture.gateway.answered_by) == ("openai-chat:big-model", "anthropic:big-model")
    attempts = picture.turns[0].attempts
    assert [(bool(attempt.broken), attempt.elsewhere, attempt.model) for attempt in attempts] == [
        (True, True, "openai-chat:big-model"),
        (False, False, "anthropic:big-model"),
    ]
    assert [kind for kind, _ in picture.gateway.changes] == ["dropped fields"]


def test_a_turn_of_a_model_with_a_known_price_has_its_cost(tmp_path: Path) -> None:
    pytest.importorskip("genai_prices")

    async def story() -> None:
        async with ScriptedServer(["Hello.", Uses(1_000_000, 0)]) as upstream:
            row = UpstreamSettings("m", "openai-chat:gpt-4o", base_url=upstream.base_url("openai-chat"))
            async with serving(settings_for(row, record=str(tmp_path))) as url:
                await Client(url, "openai-chat", parallel=None).ask(User.of("Hi"))

    run(story)
    (picture,) = pictures(tmp_path)
    assert picture.totals.cost is not None
    assert picture.totals.cost > 1
    assert picture.turns[0].cost == picture.totals.cost


def test_the_gateway_shows_its_recordings_to_operators(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    own, operator = create_key(keys, GatewayKey("ann")), create_key(keys, GatewayKey("ops", operator=True))
    folder = tmp_path / "recordings"

    async def story() -> None:
        async with stage("openai-chat", "Hello.", keys=True, keys_file=str(keys), record=str(folder)) as there:
            key = {"Authorization": f"Bearer {own}"}
            await Client(there.url, "openai-chat", parallel=None, headers=key).ask(User.of("Hi"))
            url, master = there.url, {"Authorization": f"Bearer {operator}"}
            (path,) = folder.glob("*.jsonl")
            status = (await get(url, "/status.json", **master))[1]["status"]
            assert [request["recording"] for request in status["recent"]] == [path.name]
            status = (await get(url, "/status.json", **key))[1]["status"]
            assert [request["recording"] for request in status["recent"]] == [""]  # it could not open it

            assert (await get(url, "/recordings/"))[1].startswith("<!doctype html>")  # holds no data
            assert (await get(url, "/recordings"))[1].startswith("<!doctype html>")
            for wanted in ("runs", f"runs/{path.name}", "search?text=Hello", f"runs/{path.name}/requests/0/curl"):
                assert (await get(url, f"/recordings/{wanted}"))[0] == 401
                assert (await get(url, f"/recordings/{wanted}", **key))[0] == 403
                assert (await get(url, f"/recordings/{wanted}", **master))[0] == 200
            shown = (await get(url, f"/recordings/runs/{path.name}", **master))[1]
            assert (shown["answer"]["text"], shown["gateway"]["key"]) == ("Hello.", "ann")
            for wanted in ("runs/..%2fkeys.json", "runs/../../keys.json", "none"):
                assert (await get(url, f"/recordings/{wanted}", **master))[0] == 404

    run(story)


def test_a_gateway_that_everybody_reaches_shows_no_recordings(tmp_path: Path) -> None:
    async def story(**settings: Any) -> int:
        async with ScriptedServer("Hello.") as upstream:
            row = upstream_settings(upstream, "openai-chat")
            async with serving(settings_for(row, record=str(tmp_path), **settings)) as url:
                return (await get(url, "/recordings/runs"))[0]

    assert run(story) == 200
    assert run(lambda: story(open_to_all=True)) == 403


def test_the_list_is_that_of_the_latest_recordings_and_reads_only_what_has_changed(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"2026010{number}-000000-x.jsonl").write_text(
            f'{{"line":"run","schema":3,"run":"r{number}","time":{number}.0}}\n'
        )
    shelf = Shelf(tmp_path, latest=2)
    assert [row.run for row in shelf.rows()] == ["r4", "r3"]
    with (tmp_path / "20260104-000000-x.jsonl").open("a") as file:
        file.write('{"line":"note","text":"more"}\n')
    before = {row.run: row.size for row in shelf.rows()}
    assert before["r4"] > before["r3"]
    assert shelf.draw("20260100-000000-x.jsonl").run == "r0"  # not listed, but here
