"""The models behind the aliases: providers, fallbacks, Python functions, agents."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from gateway_client import Client, run, serving, settings_for, upstream_settings

from unbroken.errors import MissingKey, ProviderError, UserError
from unbroken.models.retrying import RetryingModel
from unbroken_gateway.settings import UpstreamSettings
from unbroken_gateway.upstreams.upstream import open_upstreams
from unbroken_testing import Fail, ScriptedServer
from unbroken_wires.messages import User
from unbroken_wires.wires import WIRES

MODULE = '''
from unbroken import Agent, tool
from unbroken.models.scripted import ScriptedModel
from unbroken.models.scripted import Call, Say, Uses


def a_model():
    return ScriptedModel("Hello from Python.", loop_last=True)


@tool(effect="read")
def look(where: str) -> str:
    """Look there."""
    return f"{where} is empty"


def an_agent():
    answers = [[Say("I look."), Call("look", where="the box"), Uses(10, 5)], [Say("The box is empty."), Uses(20, 6)]]
    return Agent(ScriptedModel(*answers), tools=[look])


def nothing():
    return None


def broken():
    raise RuntimeError("no luck")


def leaves():
    raise SystemExit(5)


async def later():
    return a_model()


class Nameless:
    def stream(self, request):
        raise NotImplementedError


def nameless():
    return Nameless()
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"upstreams_of_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("wire", WIRES)
def test_a_python_model_works_with_any_wire(module: str, wire: str, stream: bool) -> None:
    async def story() -> None:
        async with serving(settings_for(UpstreamSettings("m", f"python:{module}:a_model"))) as url:
            reply = await Client(url, wire, stream, parallel=None).ask(User.of("Hello?"))
            assert (reply.status, reply.response.text) == (200, "Hello from Python.")
            assert reply.response.verdict.whole

    run(story)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_an_agent_runs_its_own_tools_and_answers_with_text(module: str, stream: bool) -> None:
    async def story() -> None:
        async with serving(settings_for(UpstreamSettings("m", f"python:{module}:an_agent"))) as url:
            reply = await Client(url, "openai-chat", stream, parallel=None, tools=()).ask(
                User.of("What is in the box?")
            )
            assert reply.response.text == "I look.\n\nThe box is empty."
            assert reply.response.calls == ()
            if not stream:
                assert reply.body["usage"]["total_tokens"] == 41

    run(story)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("nothing", "neither a model nor an Agent"),
        ("broken", "RuntimeError: no luck"),
        ("absent", "AttributeError"),
        ("leaves", "failed: SystemExit: 5"),
        ("later", "make it a plain function"),
        ("nameless", "has no `name`"),
    ],
)
def test_a_function_that_returns_no_model_is_reported_at_the_start(module: str, function: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        open_upstreams([UpstreamSettings("m", f"python:{module}:{function}")])


def test_a_function_has_to_be_named() -> None:
    with pytest.raises(UserError, match="write python:module:function"):
        open_upstreams([UpstreamSettings("m", "python:only_a_module")])


def test_an_alias_falls_back_to_another_across_wires() -> None:
    async def story() -> None:
        async with ScriptedServer(api_key="right") as closed, ScriptedServer("From the spare.") as spare:
            aliases = (
                upstream_settings(closed, "anthropic-messages", fallback=("spare",), options={"attempts": 1}),
                upstream_settings(spare, "gemini", alias="spare"),
            )
            async with serving(settings_for(*aliases)) as url:
                reply = await Client(url, "openai-responses", stream=True, parallel=None).ask(User.of("Hello?"))
                assert reply.response.text == "From the spare."

    run(story)


@pytest.mark.parametrize("stream", [False, True])
def test_a_fallback_does_not_wait_for_the_retry_after_of_the_first(stream: bool) -> None:
    limited = Fail(ProviderError("slow down", status=429, retry_after=40.0))

    async def story() -> None:
        async with ScriptedServer(limited, loop_last=True) as first, ScriptedServer("From the second.") as second:
            main = upstream_settings(first, "openai-chat", alias="main", fallback=("spare",))
            spare = upstream_settings(second, "anthropic-messages", alias="spare")
            async with serving(settings_for(main, spare)) as url, asyncio.timeout(20):
                reply = await Client(url, "openai-chat", stream, model="main").ask(User.of("Hello."))
                assert reply.response.text == "From the second."
                assert len(first.requests) == 1

    run(story)


def test_fallbacks_must_not_be_circular() -> None:
    rows = [
        UpstreamSettings("a", "ollama:x", fallback=("b",)),
        UpstreamSettings("b", "ollama:y", fallback=("a",)),
    ]
    with pytest.raises(UserError, match="a > b > a form a circle"):
        open_upstreams(rows)


def test_two_models_cannot_share_an_alias() -> None:
    with pytest.raises(UserError, match="two models have the alias `a`"):
        open_upstreams([UpstreamSettings("a", "ollama:x"), UpstreamSettings("a", "ollama:y")])


def test_all_mistakes_are_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    rows = [
        UpstreamSettings("a", "openai:x", api_key_env="NOT_SET"),
        UpstreamSettings("b", "nobody:y"),
    ]
    with pytest.raises(UserError) as told:
        open_upstreams(rows)
    first, second = str(told.value).splitlines()
    assert "model `a`: the variable NOT_SET should hold the key" in first
    assert "model `b`" in second
    assert "nobody" in second


def test_a_key_in_a_file_is_read_for_each_request(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("first\n")

    async def story() -> None:
        async with ScriptedServer("One.", "Two.") as server:
            alias = UpstreamSettings("m", "openai-chat:x", base_url=server.base_url(), api_key_file=str(file))
            async with serving(settings_for(alias)) as url:
                client = Client(url, "openai-chat", parallel=None)
                await client.ask(User.of("One?"))
                file.write_text("second\n")
                await client.ask(User.of("Two?"))
            assert [headers["authorization"] for headers in server.headers] == ["Bearer first", "Bearer second"]

    run(story)


def test_a_missing_key_file_is_reported_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(MissingKey, match="reading the key file"):
        open_upstreams([UpstreamSettings("m", "openai:x", api_key_file=str(tmp_path / "absent"))])


def test_a_provider_is_retried_and_a_function_is_not(module: str) -> None:
    opened = open_upstreams([UpstreamSettings("a", "ollama:x"), UpstreamSettings("b", f"python:{module}:a_model")])
    assert isinstance(opened["a"].model, RetryingModel)
    assert not isinstance(opened["b"].model, RetryingModel)
    assert (opened["a"].wire, opened["b"].wire) == ("openai-chat", "")
