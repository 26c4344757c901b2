"""The configuration is read again while requests are answered: no connection is closed, no request fails, nothing that
was counted or held is lost, and a mistake changes nothing."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import aiohttp
import pytest
from checkout import DOCS
from gateway_client import IDS, THREE_CALLS, Client, run, serving

from unbroken_gateway.app import Gateway
from unbroken_gateway.config import ServeOptions, read_config
from unbroken_gateway.config.changes import RESTART, Described, describe, find_changes
from unbroken_gateway.keys import GatewayKey, create_key
from unbroken_gateway.reloading import ConfigSource, Reload, Reloader
from unbroken_gateway.settings import BudgetSettings, GatewaySettings
from unbroken_gateway.spending.allowance import read_allowance
from unbroken_testing import ScriptedServer
from unbroken_wires.deltas import Delta, Ended, TextDelta, Verdict
from unbroken_wires.messages import Assistant, Request, ToolMessage, User


class Gated:
    """Sends half of its answer, waits for the gate, and sends the rest."""

    name = "gated"

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.gate = asyncio.Event()

    async def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        yield [TextDelta("one ")]
        self.begun.set()
        await self.gate.wait()
        yield [TextDelta("two"), Ended(Verdict("whole"), Assistant("one two"))]


class Running:
    """A gateway on a port, and the file that it reads."""

    def __init__(self, gateway: Gateway, reloader: Reloader, file: Path, url: str) -> None:
        self.gateway, self.file, self.url = gateway, file, url
        self._reloader = reloader

    async def reload(self, text: str) -> Reload:
        self.file.write_text(text)
        return await self._reloader.reload()


@asynccontextmanager
async def reloading(folder: Path, text: str) -> AsyncGenerator[Running]:
    file = folder / "unbroken.toml"
    file.write_text(text)
    settings = read_config(file)
    gateway = Gateway(settings, source=ConfigSource(str(file), asdict(ServeOptions())))
    reloader = gateway._reloader  # pyright: ignore[reportPrivateUsage] - a signal or the admin API would use it
    assert reloader is not None
    async with serving(settings, gateway=gateway) as url:
        yield Running(gateway, reloader, file, url)


HEAD = """[store]
url = "memory:"
"""
DEMO = """
[[models]]
model = "demo"
"""


def gated_model(name: str) -> Gated:
    made = Gated()
    module = ModuleType(name)
    module.make = lambda: made  # type: ignore[attr-defined]
    sys.modules[name] = module
    return made


def question(model: str, stream: bool = False) -> dict[str, Any]:
    return {"model": model, "stream": stream, "messages": [{"role": "user", "content": "Hi"}]}


async def models_listed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> list[str]:
    """Asks on this connection, which stays open."""
    writer.write(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
    return [each["id"] for each in json.loads(await reader.readexactly(length))["data"]]


async def text_of(answer: aiohttp.ClientResponse) -> str:
    events = [line[6:] for line in (await answer.text()).splitlines() if line.startswith("data: {")]
    return "".join(choice["delta"].get("content") or "" for event in events for choice in json.loads(event)["choices"])


def test_a_stream_in_the_middle_and_an_idle_connection_survive_reloads(tmp_path: Path) -> None:
    async def work() -> None:
        gated = gated_model("gated_for_reload")
        model = '[[models]]\nmodel = "python:gated_for_reload:make"\nalias = "gated"\n'
        async with reloading(tmp_path, HEAD + DEMO + model) as running, aiohttp.ClientSession() as other:
            kept = await asyncio.open_connection("127.0.0.1", int(running.url.rpartition(":")[2]))
            assert await models_listed(*kept) == ["demo", "gated"]
            address = f"{running.url}/v1/chat/completions"
            async with other.post(address, json=question("gated", stream=True)) as answer:
                await gated.begun.wait()
                done = await running.reload(HEAD + DEMO)  # the model that is answering is removed
                assert done.changes == ("model `gated`: removed",)
                async with other.post(address, json=question("gated")) as refused:
                    assert refused.status == 404
                gated.gate.set()
                assert await text_of(answer) == "one two"
            assert await models_listed(*kept) == ["demo"]
            kept[1].close()
            status = await (await other.get(f"{running.url}/status.json")).json()
            assert status["status"]["counts"]["answered"] == 1
            metrics = await (await other.get(f"{running.url}/metrics")).text()
            assert 'unbroken_requests_total{alias="gated",client="openai-chat",status="200"' in metrics

    run(work)


def test_fifty_reloads_under_load_fail_no_request(tmp_path: Path) -> None:
    async def work() -> None:
        async with reloading(tmp_path, HEAD + DEMO) as running, aiohttp.ClientSession() as session:
            ended = asyncio.Event()
            statuses: list[int] = []

            async def ask(at: int) -> None:
                while not ended.is_set():
                    body = question("demo", stream=at % 2 == 0)
                    async with session.post(f"{running.url}/v1/chat/completions", json=body) as answer:
                        assert await answer.read()
                        statuses.append(answer.status)

            clients = [asyncio.create_task(ask(at)) for at in range(6)]
            for at in range(50):
                serial = f"serial = {'true' if at % 2 else 'false'}\n"
                done = await running.reload(HEAD + DEMO + serial + f'[[models]]\nmodel = "demo"\nalias = "m{at}"\n')
                assert not done.problem
            ended.set()
            await asyncio.gather(*clients)
            assert set(statuses) == {200}
            assert len(statuses) > 50
            assert [*running.gateway.upstreams] == ["demo", "m49"]

    run(work)


def test_a_held_turn_is_released_after_a_reload_that_changed_its_model(tmp_path: Path) -> None:
    async def work() -> None:
        async with ScriptedServer(THREE_CALLS, "Sunny everywhere.") as upstream:
            model = (
                '\n[[models]]\nmodel = "openai-chat:big-model"\nalias = "m"\nserial = true\nwire = "openai-chat"\n'
                f'base_url = "{upstream.base_url("openai-chat")}"\n'
            )
            async with reloading(tmp_path, HEAD + model) as running:
                client = Client(running.url, "openai-chat", parallel=None)
                first = await client.ask(User.of("The weather in three cities?"))
                assert (first.ids, first.headers["x-unbroken-expires"]) == ([IDS[0]], "3600")
                done = await running.reload(HEAD + "[serial]\nhold_timeout = 60\n" + model + "attempts = 1\n")
                assert done.changes == (
                    "serial.hold_timeout: 3600 -> 60",
                    "model `m`: options.attempts: none -> 1",
                )
                second = await client.answer_calls()
                assert (second.ids, second.headers["x-unbroken-expires"]) == ([IDS[1]], "60")
                assert len(upstream.requests) == 1
                assert isinstance(client.messages[-2], ToolMessage)

    run(work)


def test_a_mistake_leaves_the_old_configuration_in_force_and_is_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    wrong = HEAD + '[[models]]\nmodel = "openai:gpt-5"\nserail = true\napi_key_env = "NOT_SET"\n'

    async def work() -> None:
        async with reloading(tmp_path, HEAD + DEMO) as running, aiohttp.ClientSession() as session:
            failed = await running.reload(wrong)
            first, second = failed.problem.splitlines()
            assert first.endswith("unbroken.toml:5: [[models]] 1: unknown key `serail`, did you mean `serial`?") or (
                "NOT_SET" in first
            )
            assert "unbroken.toml:" in second
            assert [*running.gateway.upstreams] == ["demo"]
            async with session.post(f"{running.url}/v1/chat/completions", json=question("demo")) as answer:
                assert answer.status == 200
            status = await (await session.get(f"{running.url}/status.json")).json()
            facts = {fact["name"]: fact["value"] for fact in status["view"]["facts"]}
            assert facts["Configuration"]["text"] == "not reloaded"
            assert facts["Configuration"]["state"] == "bad"
            assert "serail" in facts["Configuration"]["note"]
            metrics = await (await session.get(f"{running.url}/metrics")).text()
            assert "unbroken_config_reload_done 0.0" in metrics
            assert 'unbroken_config_reloads_total{result="refused"} 1.0' in metrics
            assert not (await running.reload(HEAD + DEMO)).problem
            metrics = await (await session.get(f"{running.url}/metrics")).text()
            assert "unbroken_config_reload_done 1.0" in metrics

    with caplog.at_level(logging.INFO, "unbroken.gateway"):
        run(work)
    assert "config_refused" in caplog.text
    assert "config_reloaded changes=0 restart=-" in caplog.text


def test_keys_can_be_turned_on_and_what_needs_a_restart_is_named(tmp_path: Path) -> None:
    secret = create_key(tmp_path / "keys.json", GatewayKey("ann", operator=True))

    async def work() -> None:
        async with reloading(tmp_path, HEAD + DEMO) as running, aiohttp.ClientSession() as session:
            done = await running.reload(
                '[server]\nport = 9999\nmax_headers = "2 KiB"\n[keys]\nrequired = true\nfile = "keys.json"\n'
                '[store]\nurl = "other.db"\n' + DEMO
            )
            assert done.needs_restart == ("server.port", "store.url")
            assert running.gateway.settings.port == 8400
            address = f"{running.url}/v1/chat/completions"
            async with session.post(address, json=question("demo")) as answer:
                assert answer.status == 401
            headers = {"authorization": f"Bearer {secret}"}
            async with session.post(address, json=question("demo"), headers=headers) as answer:
                assert answer.status == 200
            async with aiohttp.ClientSession() as new, new.get(running.url, headers={"x": "y" * 5000}) as answer:
                assert answer.status == 431  # a new connection has the new limits
            status = await (await session.get(f"{running.url}/status.json", headers=headers)).json()
            facts = {fact["name"]: fact["value"] for fact in status["view"]["facts"]}
            assert facts["Configuration"]["state"] == "warn"
            assert "a restart is needed for server.port, store.url" in facts["Configuration"]["note"]

    run(work)


def test_a_public_gateway_never_loses_its_keys_by_a_host_that_is_not_used_yet(tmp_path: Path) -> None:
    public = '[server]\nhost = "0.0.0.0"\n[keys]\nrequired = true\n'

    async def work() -> None:
        async with reloading(tmp_path, public + HEAD + DEMO) as running:
            failed = await running.reload(HEAD + DEMO)
            assert "would be open to everybody until its restart" in failed.problem
            assert running.gateway.settings.keys

    run(work)


def test_the_file_is_read_again_when_it_changes_if_that_is_wanted(tmp_path: Path) -> None:
    watched = '[server]\nwatch = true\nlook_every = "10ms"\n' + HEAD + DEMO

    async def work() -> None:
        async with reloading(tmp_path, watched) as running:
            running.file.write_text(watched + 'alias = "other"\n')
            async with asyncio.timeout(10):
                while [*running.gateway.upstreams] != ["other"]:
                    await asyncio.sleep(0.01)

    run(work)


def test_deployments_keep_their_counts_and_their_cooling(tmp_path: Path) -> None:
    def pool(weight: int) -> str:
        return (
            '\n[[models]]\nalias = "m"\nmodel = "openai-chat:big"\nbase_url = "http://127.0.0.1:9/v1"\n'
            f'[[models.deployments]]\nname = "a"\nweight = {weight}\n[[models.deployments]]\nname = "b"\n'
        )

    async def work() -> None:
        async with reloading(tmp_path, HEAD + pool(1) + DEMO) as running:
            before = running.gateway.upstreams["m"].pool
            assert before is not None
            before.deployments[0].asked()
            before.deployments[0].failed(None)
            before.deployments[0]._until = 1e12  # pyright: ignore[reportPrivateUsage]
            demo = running.gateway.upstreams["demo"]
            done = await running.reload(HEAD + pool(3) + DEMO)
            assert done.changes == ("model `m`: deployments.a.weight: 1 -> 3",)
            after = running.gateway.upstreams["m"].pool
            assert after is not None
            assert after is not before
            assert (after.deployments[0].weight, after.deployments[0].requests) == (3, 1)
            assert after.deployments[0].cooling > 0
            assert running.gateway.upstreams["demo"] is demo

    run(work)


def test_changes_name_the_key_of_a_budget() -> None:
    def described(key: str) -> Described:
        budget = BudgetSettings("a day", read_allowance("1usd/day"), key=key)
        return describe(GatewaySettings((), budgets=(budget,)))

    assert list(map(str, find_changes(described("ann"), described("bob")))) == ["budget `a day`: key: ann -> bob"]


def test_changes_never_show_a_secret() -> None:
    old = describe(GatewaySettings((), store="redis://user:hunter2@host:6379/0"))
    assert "hunter2" not in json.dumps(old)
    new = describe(GatewaySettings((), store="redis://other:hunter3@host:6380/0", keys=True))
    assert [str(change) for change in find_changes(old, new)] == [
        "store.url: redis://host:6379/0 -> redis://host:6380/0 (needs a restart)",
        "keys.required: false -> true",
    ]


def test_the_page_lists_every_setting_that_needs_a_restart() -> None:
    page = (DOCS / "administration.md").read_text("utf-8")
    listed = page.partition("These settings need a restart:")[2].partition("If one of them changed")[0]
    for name in RESTART:
        table, _, key = name.partition(".")
        assert f"[{table}]" in listed, name
        assert f"`{key}`" in listed, name
    assert listed.count("`") // 2 == len(RESTART) + len({name.partition(".")[0] for name in RESTART})


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no SIGHUP")
def test_a_gateway_that_was_made_in_python_cannot_reload() -> None:
    assert not Gateway(GatewaySettings((), store="memory:")).can_reload
