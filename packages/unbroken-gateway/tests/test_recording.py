"""A gateway that records: every request to a model is one recording, like a run; clients do not notice, and no key is
in it."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from call_lives import assert_lives
from gateway_client import (
    CITIES,
    QUESTION,
    THREE_CALLS,
    Client,
    Reply,
    plain,
    run,
    serving,
    settings_for,
    stage,
    upstream_settings,
)
from gateway_upstreams import Asked, Told, telling
from terminals import invoke

from unbroken.errors import ProviderError, UserError
from unbroken.events import (
    NAMES,
    Event,
    RequestRetried,
    RunFailed,
    RunFinished,
    TextAdded,
    TextFinished,
    ToolCallsDetected,
)
from unbroken.trajectory.recording import Recording, list_recordings, read_recording
from unbroken_gateway.app import Gateway
from unbroken_gateway.config import ServeOptions, read_config, settings_from_options
from unbroken_gateway.keys import GatewayKey, create_key
from unbroken_gateway.relay.request_recording import Recordings
from unbroken_gateway.settings import UpstreamSettings
from unbroken_testing import Break, Fail, Pause, Say, ScriptedServer, Step, Uses
from unbroken_wires.messages import User
from unbroken_wires.transcript import from_json

PAIRS = [
    ("openai-chat", "openai-chat"),
    ("anthropic-messages", "anthropic-messages"),
    ("gemini", "gemini"),
    ("openai-responses", "openai-responses"),
    ("openai-chat", "anthropic-messages"),
    ("gemini", "openai-chat"),
]
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
KEY = "upstream-7f3kQ9zLmN2pXw8vRt"


def recordings_in(folder: Path) -> list[Recording]:
    """In the order in which they began."""
    return sorted(map(read_recording, folder.glob("*.jsonl")), key=lambda each: each.time)


def names(events: Iterable[Event]) -> list[str]:
    return [NAMES[type(event)] for event in events]


def only(kind: type[Any], recording: Recording) -> Any:
    (event,) = (event for event in recording.events if isinstance(event, kind))
    return event


@pytest.mark.parametrize(("client_wire", "upstream_wire"), PAIRS)
@STREAMED
def test_a_conversation_is_recorded_request_by_request(
    client_wire: str, upstream_wire: str, stream: bool, tmp_path: Path
) -> None:
    async def story(**record: Any) -> tuple[list[Reply], ScriptedServer]:
        async with stage(upstream_wire, THREE_CALLS, ["It is sunny.", Uses(150, 4)], **record) as there:
            return await there.client(client_wire, stream, parallel=None).converse(), there.upstream

    unrecorded, _ = run(story)
    replies, upstream = run(lambda: story(record=str(tmp_path)))
    assert [(reply.response.text, reply.calls) for reply in replies] == [
        (reply.response.text, reply.calls) for reply in unrecorded
    ]
    first, second = recordings_in(tmp_path)
    assert (first.problems, second.problems) == ([], [])
    assert (first.agent_name, first.model) == ("gateway", "m")
    assert {name: first.settings[name] for name in ("client", "upstream", "key", "serial", "stream")} == {
        "client": client_wire,
        "upstream": upstream_wire,
        "key": "",
        "serial": False,
        "stream": stream,
    }
    for recording, asked in zip((first, second), upstream.requests, strict=True):
        (request,) = recording.requests
        assert [*map(plain, from_json(list(request.messages)))] == [*map(plain, asked.messages)]
        assert [tool["name"] for tool in request.tools] == ["get_weather"]
        assert [*recording.of("history"), *recording.of("note")] == []
        assert list(recording.of("delta"))[-1]["delta"] == "ended"
    told = names(first.events)
    assert told[:2] == ["run_started", "request_sent"]
    assert told[-3:] == ["text_finished", "tool_calls_detected", "run_finished"]
    assert set(told[2:-3]) == {"text_added", "call_written"}
    assert_lives(first.events)
    detected = only(ToolCallsDetected, first)
    assert [call["call"] for call in detected.calls] == [0, 1, 2]
    assert [call["arguments"] for call in detected.calls] == [{"city": city} for city in CITIES]
    ending = only(RunFinished, first)
    assert (ending.stop_reason, ending.rounds, ending.calls, len(ending.pending)) == ("waiting", 1, 3, 3)
    assert (ending.usage["input_tokens"], ending.usage["output_tokens"], ending.attempts) == (100, 20, 1)
    ending = only(RunFinished, second)
    assert (ending.text, ending.stop_reason, ending.complete) == ("It is sunny.", "answered", True)
    assert (ending.tool_calls, ending.tool_returns, len(ending.messages)) == (3, 3, 4)
    assert 0 < ending.seconds < 10
    assert [summary.prompt for summary in list_recordings(tmp_path)] == [QUESTION, QUESTION]


@STREAMED
def test_an_answer_that_broke_off_is_recorded_with_both_attempts(stream: bool, tmp_path: Path) -> None:
    broken: list[str | Step] = [Say("It is "), Pause(0.02), Break()]

    async def story() -> Reply:
        async with ScriptedServer(broken, ["It is sunny.", Uses(9, 3)]) as upstream:
            row = upstream_settings(upstream, "openai-chat")
            async with serving(settings_for(row, record=str(tmp_path))) as url:
                return await Client(url, "anthropic-messages", stream, parallel=None).ask(User.of("How is it?"))

    assert run(story).response.text == "It is sunny."
    (recording,) = recordings_in(tmp_path)
    retried = only(RequestRetried, recording)
    assert (retried.attempt, retried.kind, retried.elsewhere) == (1, "lost", False)
    assert "".join(event.text for event in recording.events if isinstance(event, TextAdded)) == "It is sunny."
    assert only(TextFinished, recording).text == "It is sunny."
    ending = only(RunFinished, recording)
    assert (ending.attempts, [verdict["kind"] for verdict in ending.verdicts]) == (2, ["lost"])
    kinds = [line["delta"] for line in recording.of("delta")]
    assert kinds.index("attempt_failed") < kinds.index("ended")


def test_a_refusal_of_the_provider_ends_its_recording_with_that_error(tmp_path: Path) -> None:
    async def story() -> Reply:
        refusal = ProviderError("no such thing", status=403)
        async with stage("openai-chat", [Fail(refusal)], record=str(tmp_path)) as there:
            return await there.client("openai-chat", parallel=None).ask(User.of("Hi"))

    assert run(story).status == 403
    (recording,) = recordings_in(tmp_path)
    assert names(recording.events) == ["run_started", "request_sent", "run_failed"]
    failed = recording.ending
    assert isinstance(failed, RunFailed)
    assert "no such thing" in failed.message
    assert [line["error"] for line in recording.of("failed")] == [failed.error]


def test_an_answer_that_fails_later_ends_its_recording_with_the_error_too(tmp_path: Path) -> None:
    async def story() -> Reply:
        broken: list[str | Step] = [Say("It is "), Pause(0.02), Break()]
        async with stage("openai-chat", broken, record=str(tmp_path)) as there:
            return await there.client("openai-chat", stream=True, parallel=None).ask(User.of("Hi"))

    assert not run(story).response.verdict.whole
    (recording,) = recordings_in(tmp_path)
    assert isinstance(recording.ending, RunFailed)
    assert recording.ending.error == "ChainBroken"
    assert [verdict["kind"] for verdict in recording.ending.verdicts] == ["lost"]


def test_a_client_that_disconnects_is_in_the_recording(tmp_path: Path) -> None:
    async def story() -> None:
        answer: list[str | Step] = [Say("It "), Pause(30), Say("is sunny.")]
        async with stage("openai-chat", answer, record=str(tmp_path)) as there:
            client = there.client("openai-chat", stream=True, parallel=None)
            body = client.body([User.of("Hi")])
            async with (
                aiohttp.ClientSession() as session,
                session.post(f"{there.url}/v1/chat/completions", json=body) as http,
            ):
                assert b"It" in await http.content.readany()
            while not any(each.ending for each in recordings_in(tmp_path)):
                await asyncio.sleep(0.005)

    run(story)
    (recording,) = recordings_in(tmp_path)
    assert isinstance(recording.ending, RunFailed)
    assert (recording.ending.error, recording.ending.message) == ("ClientGone", "the client went away")
    assert [line["text"] for line in recording.of("delta")] == ["It "]


def test_a_held_turn_is_one_recording_and_released_calls_are_not_recorded(tmp_path: Path) -> None:
    async def story() -> list[Reply]:
        async with stage("openai-chat", THREE_CALLS, "It is sunny.", serial=True, record=str(tmp_path)) as there:
            return await there.client("anthropic-messages", stream=True).converse()

    replies = run(story)
    assert [len(reply.calls) for reply in replies] == [1, 1, 1, 0]
    first, second = recordings_in(tmp_path)
    assert only(ToolCallsDetected, first).count == 3
    assert first.settings["serial"] is True
    roles = [message["role"] for message in second.requests[0].messages]
    assert roles == ["user", "assistant", "tool"]
    assert len(second.requests[0].messages[2]["results"]) == 3


def ask_many(times: int, **settings: Any) -> list[int]:
    """The status of each of so many responses, alternately streamed and not."""

    async def story() -> list[int]:
        async with (
            ScriptedServer(lambda _: "Hello.") as upstream,
            serving(settings_for(upstream_settings(upstream, "openai-chat"), **settings)) as url,
        ):
            clients = [Client(url, "openai-chat", bool(at % 2), parallel=None) for at in range(times)]
            return [reply.status for reply in await asyncio.gather(*(c.ask(User.of("Hi")) for c in clients))]

    return run(story)


def test_a_share_of_the_requests_is_recorded(tmp_path: Path) -> None:
    assert ask_many(64, record=str(tmp_path), record_share=0.5) == [200] * 64
    recordings = recordings_in(tmp_path)
    assert 8 < len(recordings) < 56  # anything else happens once in a thousand million times
    assert all(isinstance(each.ending, RunFinished) for each in recordings)


@pytest.mark.parametrize(("share", "recorded"), [(0, 0), (0.25, 25), (0.5, 50), (1, 100)])
def test_the_share_is_exact(share: float, recorded: int, tmp_path: Path) -> None:
    numbers = iter(number / 100 for number in range(100))
    recordings = Recordings(settings_for(record=str(tmp_path), record_share=share), chance=lambda: next(numbers))
    assert sum(recordings.sample() is not None for _ in range(100)) == recorded


def test_many_requests_of_two_gateways_do_not_clash_in_one_folder(tmp_path: Path) -> None:
    async def story() -> None:
        async with ScriptedServer(lambda request: f"You said {request.messages[-1]}") as upstream:
            settings = settings_for(upstream_settings(upstream, "openai-chat"), record=str(tmp_path))
            async with serving(settings) as one, serving(settings) as other:
                asking = [
                    Client(url, "openai-chat", parallel=None).ask(User.of(f"{place} {number}"))
                    for number in range(20)
                    for place, url in (("here", one), ("there", other))
                ]
                await asyncio.gather(*asking)

    run(story)
    summaries = list_recordings(tmp_path)
    assert sorted(each.prompt for each in summaries) == sorted(f"{p} {n}" for p in ("here", "there") for n in range(20))
    assert {each.stop_reason for each in summaries} == {"answered"}
    assert len({each.run for each in summaries}) == 40


def test_no_key_is_in_any_byte_of_a_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, file = tmp_path / "recordings", tmp_path / "provider"
    file.write_text(f"{KEY}-of-a-file\n")
    monkeypatch.setenv("WHERE_IT_IS", f"{KEY}-of-a-variable")
    secret = create_key(tmp_path / "keys.json", GatewayKey("ann"))

    def quoting(asked: Asked) -> Told:
        """Everything that it was sent is in its answer, and in its errors."""
        words = f"{dict(asked.headers)} {secret}"
        if "refuse" in json.dumps(asked.body):
            return Told(json.dumps({"error": {"message": words, "type": words}}).encode(), 400)
        message = {"role": "assistant", "content": words}
        return Told(json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode())

    async def story() -> None:
        async with telling(quoting) as upstream:
            rows = (
                upstream.settings("openai-chat", "file", api_key_file=str(file)),
                upstream.settings("openai-chat", "variable", api_key_env="WHERE_IT_IS"),
            )
            settings = settings_for(*rows, keys=True, keys_file=str(tmp_path / "keys.json"), record=str(folder))
            headers = {"Authorization": f"Bearer {secret}", "X-Mine": "not recorded either"}
            async with serving(settings) as url:
                for alias in ("file", "variable"):
                    for words in (f"My key is {secret}", "Please refuse"):
                        client = Client(url, "openai-chat", model=alias, parallel=None, headers=headers)
                        await client.ask(User.of(words))

    run(story)
    recordings = recordings_in(folder)
    assert [type(each.ending) for each in recordings] == [RunFinished, RunFailed] * 2
    assert {each.settings["key"] for each in recordings} == {"ann"}
    assert {each.settings["client"] for each in recordings} == {"openai-chat"}
    everything = b"".join(path.read_bytes() for path in folder.iterdir())
    assert b"My key is ***" in everything
    for word in (KEY, secret, secret[3:], "not recorded either"):
        assert word.encode() not in everything
    assert {path.stat().st_mode & 0o077 for path in folder.iterdir()} == {0}


def test_data_that_only_one_wire_knows_is_recorded_and_forwarded(tmp_path: Path) -> None:
    async def story() -> tuple[int, Any]:
        async with stage("openai-chat", "Hello.", record=str(tmp_path)) as there:
            client = there.client("openai-chat", parallel=None)
            body = client.body([User.of("half a pair: \ud83d, and more")])
            body["x_unknown"] = {"big": 2**70, "none": None}
            return (await client.post(json.dumps(body).encode())).status, there.upstream.bodies[0]

    status, body = run(story)
    assert (status, body["x_unknown"]["big"]) == (200, 2**70)
    (recording,) = recordings_in(tmp_path)
    assert recording.requests[0].fields["extra"]["x_unknown"]["big"] == 2**70
    assert isinstance(recording.ending, RunFinished)


# Files that cannot be written


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_missing_folder_is_reported_once_and_requests_continue(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "recordings"

    async def story() -> list[int]:
        async with ScriptedServer(lambda _: "Hello.") as upstream:
            row = upstream_settings(upstream, "openai-chat")
            async with serving(settings_for(row, record=str(folder))) as url:
                shutil.rmtree(folder)
                folder.write_text("somebody has put a file in its place")
                client = Client(url, "openai-chat", parallel=None)
                return [(await client.branch().ask(User.of("Hi"))).status for _ in range(3)]

    assert run(story) == [200, 200, 200]
    (words,) = warnings(caplog)
    assert words.startswith(f"requests are not recorded any more: {folder} is a file and no folder")


def test_a_full_disk_is_reported_once_and_requests_continue(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert ask_many(3, record=str(tmp_path), record_bytes=1024) == [200] * 3
    before = len(recordings_in(tmp_path))
    assert before >= 1
    caplog.clear()
    assert ask_many(3, record=str(tmp_path), record_bytes=1024) == [200] * 3
    assert len(recordings_in(tmp_path)) == before
    (words,) = warnings(caplog)
    assert words.startswith(f"requests are not recorded any more: {tmp_path} holds ")
    assert words.endswith(" bytes, and `max_bytes` in [record] is 1,024")


@pytest.mark.skipif(sys.platform == "win32", reason="files of a process are bounded elsewhere only")
def test_a_file_that_cannot_be_completed_is_reported_and_no_other_is_started(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    resource = importlib.import_module("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    async def story() -> list[int]:
        async with (
            ScriptedServer(lambda _: "Hello.") as upstream,
            serving(settings_for(upstream_settings(upstream, "openai-chat"), record=str(tmp_path))) as url,
        ):
            client = Client(url, "openai-chat", parallel=None)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, before[1]))
            try:
                return [(await client.branch().ask(User.of("long " * 100_000))).status for _ in range(3)]
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert run(story) == [200, 200, 200]
    assert len(list(tmp_path.iterdir())) == 1
    told = [words for words in warnings(caplog) if words.startswith("requests are not recorded any more")]
    assert len(told) == 1
    assert len(warnings(caplog)) == 2  # the other one is the file's own


def test_a_folder_that_cannot_be_created_is_an_error_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "a file"
    file.write_text("")
    settings = settings_for(UpstreamSettings("demo", "demo"), record=str(file / "recordings"))
    with pytest.raises(UserError, match=r"^recording to .*recordings failed: .*; name another folder$"):
        Gateway(settings)
    Gateway(replace(settings, record=""))


# Configuration


def test_a_configuration_file_can_enable_recording(tmp_path: Path) -> None:
    file = tmp_path / "unbroken.toml"
    file.write_text(
        '[record]\nfolder = "seen"\nshare = 0.1\nmax_bytes = "5 GB"\n[[models]]\nmodel = "demo"\n', encoding="utf-8"
    )
    settings = read_config(file)
    assert (settings.record, settings.record_share, settings.record_bytes) == (str(tmp_path / "seen"), 0.1, 5 * 10**9)
    assert read_config(file, ServeOptions(record="elsewhere")).record == "elsewhere"
    assert settings_from_options().record == ""
    file.write_text('[record]\nshare = 2\nfolders = "x"\n[[models]]\nmodel = "demo"\n', encoding="utf-8")
    with pytest.raises(UserError) as told:
        read_config(file)
    assert str(told.value).splitlines() == [
        f"{file}:2: [record]: `share` has to be a number from 0 to 1",
        f"{file}:3: [record]: unknown key `folders`, did you mean `folder`?",
    ]


def test_the_command_prints_where_it_records_or_that_it_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = invoke("serve", "--check", "--record", "seen")
    assert (shown.exit_code, "recordings         seen\n" in shown.stdout) == (0, True)
    assert not (tmp_path / "seen").exists()
    (tmp_path / "file").write_text("")
    shown = invoke("serve", "--check", "--record", "file")
    assert shown.exit_code == 2
    assert shown.stderr == "unbroken: recording to file is not possible: file is not a folder; name another\n"
    (tmp_path / "unbroken.toml").write_text('[record]\nfolder = "file"\nshare = 0.1\n[[models]]\nmodel = "demo"\n')
    assert invoke("serve", "--check").stderr.startswith("unbroken: unbroken.toml:2: recording to file is not possible")
    assert "recordings         seen, 0.1 of all requests\n" in invoke("serve", "--check", "--record", "seen").stdout


def test_a_gateway_without_recording_loads_nothing_for_it() -> None:
    program = (
        "import sys\n"
        "from unbroken_gateway import Gateway, GatewaySettings, UpstreamSettings\n"
        "Gateway(GatewaySettings((UpstreamSettings('demo', 'demo'),), store='memory:'))\n"
        "print([name for name in sys.modules if 'trajectory' in name or 'recording' in name or name == 'pydantic'])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"
