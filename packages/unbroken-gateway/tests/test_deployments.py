"""Several deployments behind one alias: which of them answers, and what happens when they fail."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from gateway_client import Client, run, serving, settings_for

from unbroken.errors import MissingKey, ProviderError, RateLimited, Unauthorized, Unavailable, Unreachable, UserError
from unbroken_gateway.config import read_config
from unbroken_gateway.settings import DeploymentSettings, GatewaySettings, UpstreamSettings
from unbroken_gateway.upstreams.pool import Deployment, Pool, conversation_of
from unbroken_gateway.upstreams.upstream import open_upstreams
from unbroken_testing import Answer, Call, ErrorInside, Fail, Pause, Say, ScriptedServer
from unbroken_wires.messages import Request, User
from unbroken_wires.wires import WIRES

WIRE = "openai-chat"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def pool_of(*weights: float, priorities: tuple[int, ...] = (), **more: Any) -> tuple[Pool, Clock]:
    """A pool without servers, whose clock is moved by hand."""
    clock = Clock()
    deployments = tuple(
        DeploymentSettings(
            "openai-chat:m",
            name=f"d{at}",
            base_url="http://127.0.0.1:1",
            weight=weight,
            priority=priorities[at] if priorities else 1,
        )
        for at, weight in enumerate(weights)
    )
    upstream = open_upstreams([UpstreamSettings("m", "openai-chat:m", deployments=deployments, **more)])["m"]
    assert upstream.pool is not None
    for each in upstream.pool.deployments:
        each._now = clock  # pyright: ignore[reportPrivateUsage] - the clock of the test
    return upstream.pool, clock


def first_of(pool: Pool, conversation: bytes = b"") -> str:
    return pool.order(conversation)[0].name


def test_deployments_are_asked_in_proportion_to_their_weights() -> None:
    pool, _ = pool_of(3, 1)
    asked = Counter(first_of(pool) for _ in range(4000))
    assert 2800 < asked["d0"] < 3200


def test_the_least_busy_deployment_is_asked_by_weight() -> None:
    pool, _ = pool_of(2, 1, choose="least-busy")
    for _ in range(30):
        pool.order(b"")[0].asked()
    assert [each.busy for each in pool.deployments] == [20, 10]
    for _ in range(15):
        pool.deployments[0].ended()
    assert first_of(pool) == "d0"


def test_the_fastest_deployment_is_asked_and_a_slow_one_is_tried_again_later() -> None:
    pool, clock = pool_of(1, 1, choose="fastest")
    quick, slow = pool.deployments
    quick.answered(0.2)
    assert first_of(pool) == "d1", "one that was never measured is tried"
    slow.answered(3.0)
    assert {first_of(pool) for _ in range(20)} == {"d0"}
    clock.now += 200
    quick.answered(0.2)
    assert first_of(pool) == "d1"


def test_a_higher_priority_number_is_asked_only_if_the_others_cannot_answer() -> None:
    pool, clock = pool_of(1, 1, 1, priorities=(1, 1, 2))
    assert {first_of(pool) for _ in range(50)} == {"d0", "d1"}
    for each in pool.deployments[:2]:
        each.failed(Unreachable("no connection"))
    assert first_of(pool) == "d2"
    clock.now += 31
    assert "d2" not in {first_of(pool) for _ in range(50)}


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (RateLimited("slow down", status=429, retry_after=12.0), 12),
        (RateLimited("slow down", status=429), 30),
        (Unreachable("no connection"), 30),
        (Unauthorized("a wrong key", status=401), 30),
        (ProviderError("a bad request", status=400), 0),
        (Unavailable("busy", status=503), 0),
        (None, 0),
    ],
    ids=["429 with a wait", "429", "no connection", "401", "400", "503", "broken off"],
)
def test_a_failure_makes_a_deployment_cool_if_it_will_go_on(error: ProviderError | None, seconds: float) -> None:
    pool, _ = pool_of(1, 1)
    pool.deployments[0].failed(error)
    assert pool.deployments[0].cooling == seconds


def test_a_deployment_that_fails_three_times_in_a_row_cools_and_one_success_counts_again_from_zero() -> None:
    pool, clock = pool_of(1, 1)
    one, other = pool.deployments
    for _ in range(2):
        one.failed(Unavailable("busy", status=503))
        other.failed(None)
    one.succeeded()
    for each in (one, other):
        each.failed(Unavailable("busy", status=500))
    assert (one.cooling, other.cooling) == (0, 30)
    assert {first_of(pool) for _ in range(50)} == {"d0"}
    clock.now += 31
    assert {first_of(pool) for _ in range(50)} == {"d0", "d1"}


def test_if_all_are_cooling_the_one_that_is_ready_first_is_asked() -> None:
    pool, _ = pool_of(1, 1)
    pool.deployments[0].failed(RateLimited("slow down", status=429, retry_after=20.0))
    pool.deployments[1].failed(RateLimited("slow down", status=429, retry_after=5.0))
    assert [each.name for each in pool.order(b"")] == ["d1", "d0"]


def test_a_conversation_stays_at_its_deployment_and_moves_only_while_that_one_cools() -> None:
    pool, clock = pool_of(3, 1, 1, sticky=True)
    bodies = [{"messages": [{"role": "user", "content": f"question {at}"}]} for at in range(2000)]
    keys = [conversation_of("", "m", body, "messages") for body in bodies]
    before = [first_of(pool, key) for key in keys]
    assert 1050 < Counter(before)["d0"] < 1350
    assert before == [first_of(pool, key) for key in keys]
    pool.deployments[1].failed(Unreachable("no connection"))
    during = [first_of(pool, key) for key in keys]
    assert all(now == then for now, then in zip(during, before, strict=True) if then != "d1")
    assert "d1" not in during
    clock.now += 31
    assert before == [first_of(pool, key) for key in keys]


def test_all_requests_of_a_conversation_have_the_same_key_and_those_of_another_client_have_not() -> None:
    question: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello."}]
    later = [*question, {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "And?"}]
    first = conversation_of("key", "m", {"messages": question}, "messages")
    assert first == conversation_of("key", "m", {"messages": later}, "messages")
    assert first != conversation_of("other", "m", {"messages": question}, "messages")
    assert first != conversation_of("key", "m", {"messages": [question[0]]}, "messages")
    named: Any = {"prompt_cache_key": "chat-7", "input": "Hello."}
    assert conversation_of("", "m", named, "input") == conversation_of("", "m", {**named, "input": "And?"}, "input")


def deployed(*servers: ScriptedServer, alias: str = "m", wire: str = WIRE, **more: Any) -> GatewaySettings:
    deployments = tuple(
        DeploymentSettings(
            "openai-chat:big-model", name=f"d{at}", base_url=server.base_url(wire), wire=wire, options={"attempts": 2}
        )
        for at, server in enumerate(servers)
    )
    return settings_for(UpstreamSettings(alias, "openai-chat:big-model", deployments=deployments, **more))


async def ask(url: str, text: str = "Hello?", stream: bool = False, wire: str = WIRE) -> str:
    reply = await Client(url, wire, stream, parallel=None).ask(User.of(text))
    assert reply.status == 200, reply.data
    return reply.response.text


@pytest.mark.parametrize("wire", [WIRE, "anthropic-messages"], ids=["same wire", "other wire"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_requests_are_spread_and_a_dead_deployment_costs_no_answer(stream: bool, wire: str) -> None:
    async def story() -> None:
        async with (
            ScriptedServer("one", loop_last=True) as one,
            ScriptedServer("two", loop_last=True) as two,
            serving(deployed(one, two)) as url,
        ):
            said = Counter([await ask(url, f"{at}?", stream, wire) for at in range(24)])
            assert set(said) == {"one", "two"}
            await two.stop()
            before = len(one.requests)
            assert [await ask(url, f"again {at}?", stream, wire) for at in range(12)] == ["one"] * 12
            assert len(one.requests) == before + 12

    run(story)


def test_a_limited_deployment_is_left_alone_and_the_client_gets_its_answer_at_once() -> None:
    async def story() -> None:
        limited = Fail(RateLimited("slow down", status=429, retry_after=40.0))
        async with (
            ScriptedServer(limited, loop_last=True) as one,
            ScriptedServer("two", loop_last=True) as two,
            serving(deployed(one, two)) as url,
            asyncio.timeout(20),
        ):
            assert [await ask(url, f"{at}?") for at in range(20)] == ["two"] * 20
            assert len(one.requests) == 1

    run(story)


def test_a_stream_that_breaks_off_is_completed_by_a_deployment() -> None:
    broken: Answer = [Say("Let me "), Pause(0.02), Fail(Unavailable("gone", status=503))]

    async def story() -> None:
        async with (
            ScriptedServer(broken, loop_last=True) as one,
            ScriptedServer("Let me see.", loop_last=True) as two,
            serving(deployed(one, two)) as url,
        ):
            assert [await ask(url, f"{at}?", stream=True) for at in range(6)] == ["Let me see."] * 6

    run(story)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("wire", [*WIRES])
def test_a_deployment_that_answers_200_with_an_error_in_it_fails_and_cools(wire: str, stream: bool) -> None:
    overloaded: Answer = [ErrorInside("Overloaded")]

    async def story() -> None:
        async with (
            ScriptedServer(overloaded, loop_last=True) as one,
            ScriptedServer("two", loop_last=True) as two,
            serving(deployed(one, two, wire=wire)) as url,
            aiohttp.ClientSession(url) as session,
        ):
            assert [await ask(url, f"{at}?", stream, wire) for at in range(20)] == ["two"] * 20
            assert len(one.requests) == 3  # each request asked it once, and after the third it was left alone
            async with session.get("/status.json") as answer:
                (row,) = (await answer.json())["status"]["upstreams"]
            assert (row["deployments"][0]["failures"], row["deployments"][0]["cooling"] > 0) == (3, True)
            async with session.get("/metrics") as answer:
                assert 'failures_total{alias="m",deployment="d0",kind="unavailable"} 3.0' in await answer.text()

    run(story)


def test_answers_in_between_start_the_count_of_errors_inside_again() -> None:
    def one_in_three(request: Request) -> Answer:
        asked.append(request)
        return "one" if len(asked) % 3 == 0 else [ErrorInside("Overloaded")]

    asked: list[Request] = []

    async def story() -> None:
        async with (
            ScriptedServer(one_in_three) as one,
            ScriptedServer("two", loop_last=True) as two,
            serving(deployed(one, two)) as url,
        ):
            for at in range(40):
                await ask(url, f"{at}?")
        assert len(asked) > 10

    run(story)


def test_busy_counts_return_to_zero_also_when_clients_leave_or_answers_fail() -> None:
    async def story() -> None:
        slow: Answer = [Say("Wait"), Pause(0.3), Say(" for it.")]
        async with AsyncExitStack() as running:
            one = await running.enter_async_context(ScriptedServer(slow, loop_last=True))
            url = await running.enter_async_context(serving(deployed(one, choose="least-busy")))
            asking = [asyncio.create_task(ask(url, f"{at}?", stream=bool(at % 2))) for at in range(6)]
            await asyncio.sleep(0.15)
            for each in asking[:3]:
                each.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
            session = await running.enter_async_context(aiohttp.ClientSession())
            answer = await running.enter_async_context(session.get(f"{url}/status.json"))
            (row,) = (await answer.json())["status"]["upstreams"]
            assert [each["busy"] for each in row["deployments"]] == [0]
            assert row["deployments"][0]["requests"] >= 3

    run(story)


@pytest.mark.parametrize("alias", ["m", "*"])
def test_a_deployment_that_is_back_is_found_by_a_probe(alias: str) -> None:
    async def story() -> None:
        async with (
            ScriptedServer("one", loop_last=True) as one,
            ScriptedServer("two", loop_last=True) as two,
            serving(deployed(one, two, probe=0.05, cooldown=600.0, alias=alias)) as url,
        ):
            port = int(two.url.rpartition(":")[2])
            await two.stop()
            assert {await ask(url, f"{at}?") for at in range(8)} == {"one"}
            async with ScriptedServer("back", loop_last=True, port=port), asyncio.timeout(10):
                while await ask(url) != "back":
                    await asyncio.sleep(0.05)

    run(story)


def test_what_a_provider_holds_is_asked_for_at_the_first_deployment() -> None:
    async def story() -> None:
        async with (
            ScriptedServer("one", loop_last=True) as one,
            ScriptedServer("two", loop_last=True) as two,
            serving(deployed(one, two)) as url,
        ):
            client = Client(url, WIRE, parallel=None)
            part = {"type": "file", "file": {"file_id": "file-abc123"}}
            for _ in range(8):
                body = {"model": "m", "messages": [{"role": "user", "content": [part]}]}
                assert (await client.post(body)).response.text == "one"
            assert two.requests == []

    run(story)


FILE = """
[[models]]
alias = "big"
model = "openai:gpt-5"
choose = "fastest"
cooldown = "1 min"
probe = "10s"
attempts = 2

[[models.deployments]]
api_key_env = "FIRST_KEY"
weight = 3

[[models.deployments]]
name = "azure"
model = "openai-chat:gpt-5"
base_url = "https://example.com/v1"
priority = 2
attempts = 4
"""


def read(folder: Path, text: str) -> GatewaySettings:
    (folder / "unbroken.toml").write_text(text)
    return read_config(folder / "unbroken.toml")


def test_deployments_are_read_from_the_file_and_take_over_what_the_model_has(tmp_path: Path) -> None:
    (model,) = read(tmp_path, FILE).upstreams
    assert (model.alias, model.choose, model.cooldown, model.probe) == ("big", "fastest", 60.0, 10.0)
    assert model.deployments == (
        DeploymentSettings("openai:gpt-5", name="openai-1", api_key_env="FIRST_KEY", weight=3, options={"attempts": 2}),
        DeploymentSettings(
            "openai-chat:gpt-5",
            name="azure",
            base_url="https://example.com/v1",
            priority=2,
            options={"attempts": 4},
        ),
    )


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ('model = "openai:gpt-5"\nsticky = true', ":4: [[models]] 1: `sticky` is about deployments"),
        ('alias = "m"\ndeployments = []', "`deployments` has to be a list of tables"),
        ('alias = "m"\n[[models.deployments]]\nweight = 1', "[[models.deployments]] 1: `model` is missing"),
        ('model = "openai:gpt-5"\n[[models.deployments]]\nweight = 0', ":5: [[models.deployments]] 1: `weight` has"),
        ('model = "openai:gpt-5"\n[[models.deployments]]\nwieght = 2', "unknown key `wieght`, did you mean `weight`?"),
        ('model = "demo"\n[[models.deployments]]\nweight = 1', "a model like demo cannot be one of several"),
        ('alias = "a*b*"\nmodel = "openai:gpt-5"', "`alias` may have one `*`"),
        ('alias = "a"\nmodel = "openai:*"', "`model` has a `*`, so its `alias` needs one"),
        ('model = "openai:gpt-5"\nchoose = "random"\n[[models.deployments]]\nweight = 1', "`choose` has to be one of"),
    ],
    ids=["none", "empty", "no model", "weight", "typo", "demo", "stars", "star", "choose"],
)
def test_a_mistake_in_deployments_is_reported_with_its_line(tmp_path: Path, lines: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        read(tmp_path, f"\n[[models]]\n{lines}\n")
    assert words in str(caught.value)


def test_a_deployment_without_its_key_is_named_at_the_start() -> None:
    deployments = (DeploymentSettings("openai:gpt-5", name="east", api_key_env="NO_SUCH_KEY"),)
    with pytest.raises(MissingKey, match="deployment `east`: the variable NO_SUCH_KEY"):
        open_upstreams([UpstreamSettings("m", "openai:gpt-5", deployments=deployments)])


def test_calls_of_one_deployment_are_answered_through_another() -> None:
    async def story() -> None:
        both: list[Any] = [[Call("get_weather", city="Oslo", id="call_Zq8wLk3vTb")], "Sunny."]
        async with (
            ScriptedServer(both[0], loop_last=True) as one,
            ScriptedServer("Sunny.", loop_last=True) as two,
            serving(deployed(one, two)) as url,
        ):
            for at in range(20):
                client = Client(url, WIRE, parallel=None)
                reply = await client.ask(User.of(f"Oslo, {at}?"))
                if reply.calls:
                    await one.stop()
                    assert (await client.answer_calls()).response.text == "Sunny."
                    return
        raise AssertionError("the first deployment was never asked")

    run(story)


async def asked_of(name: str, *aliases: UpstreamSettings) -> tuple[int, str]:
    async with serving(settings_for(*aliases)) as url:
        reply = await Client(url, WIRE, parallel=None, model=name).ask(User.of("Hello?"))
        return reply.status, reply.data.decode()


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("exact-one", "exact"),
        ("team-big", "big-model"),
        ("team-big-fast", "other-fast"),
        ("anything/else:1", "default"),
    ],
)
def test_an_alias_with_a_star_serves_every_name_that_fits_and_the_longest_comes_first(name: str, asked: str) -> None:
    async def story() -> None:
        async with ScriptedServer("Hello.", loop_last=True) as server:
            base: Any = {"base_url": server.base_url(WIRE), "wire": WIRE}
            status, _ = await asked_of(
                name,
                UpstreamSettings("exact-one", "openai-chat:exact", **base),
                UpstreamSettings("*", "openai-chat:default", **base),
                UpstreamSettings("team-*", "openai-chat:*-model", **base),
                UpstreamSettings("team-big-*", "openai-chat:other-*", **base),
            )
            assert status == 200
            assert [body["model"] for body in server.bodies] == [asked]

    run(story)


@pytest.mark.parametrize(
    "name", ["team-", "other", "team-a/../../files", "team-a//b", "team-x?key=1", "team-" + "x" * 300]
)
def test_a_name_that_fits_no_alias_or_could_leave_its_address_is_refused(name: str) -> None:
    async def story() -> None:
        async with ScriptedServer("Hello.", loop_last=True) as server:
            alias = UpstreamSettings("team-*", "openai-chat:*", base_url=server.base_url(WIRE), wire=WIRE)
            status, told = await asked_of(name, alias)
            assert (status, server.requests) == (404, [])
            assert "there is no model" in told

    run(story)


def test_a_deployment_is_an_observer_of_one_model() -> None:
    pool, _ = pool_of(1, 1)
    assert [each.model.model.observer for each in pool.deployments] == list(pool.deployments)
    assert all(isinstance(each, Deployment) for each in pool.deployments)
