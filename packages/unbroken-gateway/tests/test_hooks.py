"""A hook file: what its functions see and change, that it is read again, and that a mistake in it lets nothing pass."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from gateway_client import QUESTION, THREE_CALLS, run, stage

from unbroken.errors import UserError
from unbroken_gateway.guards.hook_file import read_hooks
from unbroken_gateway.settings import GatewaySettings, GuardrailSettings, UpstreamSettings
from unbroken_testing import Call
from unbroken_wires.messages import User

HEADER = "x-unbroken-guardrails"
HOOKS = """
import asyncio
from dataclasses import dataclass, replace
from unbroken.guardrails import Veto
from unbroken_wires.messages import System

seen = []

@dataclass
class Seen:
    alias: str
    key: str
    client: str
    id: str

async def on_request(request, info):
    await asyncio.sleep(0)
    seen.append(Seen(info.alias, info.key, info.client, info.request_id))
    if "forbidden" in str(request.messages[-1]):
        raise Veto("Not here.")
    return replace(request, messages=(System.of(f"For {info.alias}."), *request.messages))

def on_call(call, info):
    if call.arguments["city"] == "Beijing":
        raise Veto("not this one")
    if call.arguments["city"] == "Rome":
        return {"city": "Roma"}

def on_answer(message, info):
    return message.text.replace("Bad", "Good") if message.text else None
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "hooks.py"
    path.write_text(HOOKS)
    return path


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("serial", [False, True])
def test_hooks_see_and_change_requests_calls_and_answers(file: Path, stream: bool, serial: bool) -> None:
    async def story() -> None:
        calls = [Call("get_weather", city="Rome"), Call("get_weather", city="Oslo")]
        said: Any = (THREE_CALLS, calls, "Bad weather.")
        async with stage("gemini", *said, serial=serial, alias={"hooks": str(file)}) as on:
            client = on.client("anthropic-messages", stream)
            replies = await client.converse(QUESTION)
            given = [arguments["city"] for reply in replies for _, arguments in reply.calls]
            assert given == ["Roma", "Oslo"]
            assert replies[-1].response.text == "Good weather."
            assert replies[0].headers[HEADER].startswith("hooks changed, hooks vetoed")
            assert all("For m." in str(asked) for asked in on.asked)
            refused = await client.ask(User.of("forbidden"))
            assert refused.response.text == "Not here."
            assert len(on.asked) == 3

    run(story)


def test_a_file_is_read_again_when_it_changes_and_the_old_one_stays_while_it_is_wrong(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with stage("openai-chat", *["Bad."] * 5, alias={"hooks": str(file)}) as on:

            async def said() -> str:
                return (await on.client("openai-chat").ask(User.of("Hi"))).response.text

            assert await said() == "Good."
            file.write_text(HOOKS.replace("Good", "Better"))
            assert await said() == "Better."
            file.write_text("def on_answer(message, info:")
            assert await said() == "Better."
            assert await said() == "Better."
            file.write_text("def on_answer(message, info): return 'New.'")
            assert await said() == "New."

    with caplog.at_level(logging.INFO, "unbroken.gateway"):
        run(story)
    assert caplog.text.count("hooks_kept file=hooks.py") == 1
    assert "SyntaxError" in caplog.text
    assert "hooks_read file=hooks.py functions=on_answer" in caplog.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("def on_request(request, info): raise ValueError(str(request))", "ValueError"),
        ("def on_request(request, info): return 'no request'", "TypeError"),
        ("def on_answer(message, info): return 5", "TypeError"),
        ("async def on_answer(message, info): raise RuntimeError(message.text)", "RuntimeError"),
        ("import asyncio\nasync def on_request(request, info): await asyncio.sleep(9)", "TimeoutError"),
        ("import time\ndef on_answer(message, info): time.sleep(0.3)", "TimeoutError"),
        ("def on_answer(message, info): raise SystemExit", "SystemExit"),
        ("def on_answer(message, info): raise BaseException(message.text)", "BaseException"),
        ("async def on_answer(message, info): raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("import asyncio\ndef on_answer(message, info): raise asyncio.CancelledError", "CancelledError"),
    ],
)
def test_a_hook_that_fails_refuses_the_request_without_content(
    file: Path, source: str, kind: str, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        file.write_text(source)
        seconds = 0.1 if kind == "TimeoutError" else 10.0
        async with stage("openai-chat", "secret-b", alias={"hooks": str(file), "hook_timeout": seconds}) as on:
            reply = await on.client("openai-chat", stream).ask(User.of("secret-a"))
            assert reply.status == 500
            assert f"`hooks` of this model failed ({kind})" in reply.body["error"]["message"]
            assert b"secret" not in reply.data

    with caplog.at_level(logging.DEBUG, "unbroken.gateway"):
        run(story)
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("", "has none of the functions on_request, on_call, on_answer"),
        ("def on_requests(request, info): pass", "did you mean `on_request`?"),
        ("def on_call(call): pass", "has to take two arguments"),
        ("1 / 0", "ZeroDivisionError"),
        ("def on_call(call, info:", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit"),
    ],
)
def test_a_file_with_a_mistake_is_an_error_at_the_start(tmp_path: Path, source: str, words: str) -> None:
    path = tmp_path / "hooks.py"
    path.write_text(source)
    with pytest.raises(UserError, match="hooks") as raised:
        read_hooks(path)
    assert words in str(raised.value)


def test_a_missing_file_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_hooks(tmp_path / "absent.py")


def test_the_file_of_a_gateway_is_for_all_models_without_one_of_their_own() -> None:
    own = UpstreamSettings("a", "demo", hooks="own.py", guardrails=(GuardrailSettings("redact", pattern="x"),))
    settings = GatewaySettings((own, UpstreamSettings("b", "demo")), hooks="all.py")
    assert [each.hooks for each in settings.upstreams] == ["own.py", "all.py"]
