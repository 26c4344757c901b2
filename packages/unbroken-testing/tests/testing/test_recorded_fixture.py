"""The fixture `recorded`: record once, replay in CI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from unbroken import Agent
from unbroken.models.http import HTTPModel
from unbroken.models.scripted import Call
from unbroken.trajectory.recording import read_recording
from unbroken_testing import serve
from unbroken_testing.recorded import RecordedModel

pytest_plugins = ["pytester"]

TEST = """
from unbroken import Agent, connect, tool

@tool
async def weather(city: str) -> str:
    "The weather of a city."
    return f"{{city}}: 4 degrees"

def test_it_is_reported(recorded):
    def model():
        return connect("openai:m", base_url={url!r}, api_key="sk-a-secret-key-of-mine")
    agent = Agent(recorded(model), [weather], {instructions!r})
    assert agent.run_sync("How is Oslo?").text == "Four degrees."
"""


def write(pytester: pytest.Pytester, url: str, instructions: str = "") -> None:
    pytester.makepyfile(test_weather=TEST.format(url=url, instructions=instructions))


OPTIONS = ("-q", "-p", "no:cacheprovider")
LOADED = (Agent, HTTPModel, RecordedModel)
"""After a run in this process pytester forgets all modules that came with it, and they would be loaded twice."""


def play(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess(*OPTIONS, *options)


@pytest.fixture
def upstream() -> Any:
    with serve(
        [Call("weather", city="Oslo")], "Four degrees.", [Call("weather", city="Oslo")], "Four degrees."
    ) as server:
        yield server


def file_of(pytester: pytest.Pytester) -> Path:
    return pytester.path / "recordings" / "test_weather" / "test_it_is_reported.jsonl"


def test_the_first_run_records_and_later_ones_replay_without_the_model(
    pytester: pytest.Pytester, upstream: Any
) -> None:
    write(pytester, upstream.base_url())
    pytester.runpytest_subprocess(*OPTIONS).assert_outcomes(passed=1)
    assert len(upstream.bodies) == 2
    recording = read_recording(file_of(pytester))
    assert len(recording.requests) == 2
    assert b"sk-a-secret-key-of-mine" not in file_of(pytester).read_bytes()
    write(pytester, "http://127.0.0.1:9/v1")  # nobody is there
    pytester.runpytest_subprocess(*OPTIONS).assert_outcomes(passed=1)
    assert len(upstream.bodies) == 2


def test_rerecord_asks_the_model_again(pytester: pytest.Pytester, upstream: Any) -> None:
    write(pytester, upstream.base_url())
    play(pytester).assert_outcomes(passed=1)
    before = file_of(pytester).read_bytes()
    play(pytester, "--rerecord").assert_outcomes(passed=1)
    assert len(upstream.bodies) == 4
    assert file_of(pytester).read_bytes() != before
    assert [path.name for path in file_of(pytester).parent.iterdir()] == ["test_it_is_reported.jsonl"]


def test_a_changed_request_fails_with_the_difference(pytester: pytest.Pytester, upstream: Any) -> None:
    write(pytester, upstream.base_url())
    play(pytester).assert_outcomes(passed=1)
    write(pytester, upstream.base_url(), instructions="Be short.")
    result = play(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*request 0, message 0 (system) is different now*", "*--rerecord to record new answers*"]
    )


def test_a_test_that_sends_fewer_requests_fails_at_its_end(pytester: pytest.Pytester, upstream: Any) -> None:
    write(pytester, upstream.base_url())
    play(pytester).assert_outcomes(passed=1)
    pytester.makepyfile(test_weather="def test_it_is_reported(recorded):\n    recorded('openai:m')\n")
    result = play(pytester)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*has 2 requests more than the test made*"])


def test_a_failed_recording_is_not_kept(pytester: pytest.Pytester) -> None:
    write(pytester, "http://127.0.0.1:9/v1")
    play(pytester).assert_outcomes(failed=1)
    assert not list(pytester.path.rglob("*.jsonl"))


def test_without_a_recording_and_a_key_the_error_explains_what_to_do(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "from unbroken import Agent\n\ndef test_x(recorded):\n    Agent(recorded('openai:gpt-5')).run_sync('Hello?')\n"
    )
    result = play(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*there is no recording *test_x.jsonl yet, and the model cannot be used*"])
