"""All recordings: they are decoded as expected, at every chunk size."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from corpus import ABSENT, RECORDINGS, WIRES, Recording
from streams import feed
from thorough import ALL, some

from unbroken import CallReady, Response, decode
from unbroken_wires.decoding import guess_wire

pytestmark = pytest.mark.skipif(not RECORDINGS, reason=ABSENT)

GROUPS = [RECORDINGS[at : at + 20] for at in range(0, len(RECORDINGS), 20)]
every_recording = pytest.mark.parametrize("recordings", GROUPS, ids=lambda group: f"{group[0].id} and on")
"""In groups: as 500 tests each they would take longer to be counted, started and reported than to run."""

NO_ARGUMENTS = "empty arguments at a good end mean no arguments: {}"
REPAIRED = "the limit fell into the last call of a body: its input was repaired by the server, so it is not complete"
EMPTY_LEGACY_CALL = "an empty function_call {name: '', arguments: ''} beside the real calls is no call"
DIFFERENCES: dict[tuple[str, str], str] = {
    ("bedrock-converse-aws-bedrock-j-8691beae", "calls"): REPAIRED,
    ("bedrock-converse-aws-bedrock-s-00d920c4", "calls"): NO_ARGUMENTS,
    ("bedrock-invoke-anthropic-aws-bedrock-j-fe15851e", "calls"): REPAIRED,
    ("cohere-v2-cohere-s-0d70e721", "calls"): NO_ARGUMENTS,
    ("cohere-v2-cohere-s-a6a955d5", "calls"): NO_ARGUMENTS,
    ("cohere-v2-cohere-s-fb48983f", "calls"): NO_ARGUMENTS,
    ("openai-chat-openrouter-s-d184ebe3", "calls"): "arguments null at a good end means no arguments: {}",
    ("openai-chat-snowflake-j-049cd0b8", "calls"): EMPTY_LEGACY_CALL,
    ("openai-chat-snowflake-j-049cd0b8", "reasoning"): "its only reasoning stands in reasoning_details, which we read",
    ("openai-chat-snowflake-j-a924386f", "calls"): EMPTY_LEGACY_CALL,
    ("openai-chat-snowflake-j-c152d07b", "calls"): EMPTY_LEGACY_CALL,
}
"""Recordings that we decode differently from their index, and why. Each is asserted to differ, so none is hidden
here."""


def test_the_recordings_are_complete() -> None:
    assert Counter(recording.wire for recording in RECORDINGS) == WIRES


def differences(recording: Recording, response: Response) -> dict[str, tuple[Any, Any]]:
    expected = recording.expected
    finish = expected["finish_reason"]
    calls = expected["tool_calls"]
    given = [call["id"] is not None for call in calls] + [True] * len(response.calls)
    both: dict[str, tuple[Any, Any]] = {
        "calls": (
            [(call["id"], call["name"], call["arguments"]) for call in calls],
            [(c.id if has else None, c.name, c.arguments) for c, has in zip(response.calls, given, strict=False)],
        ),
        "server_calls": (
            [(call["type"], call.get("id"), call.get("name")) for call in expected["server_tool_calls"]],
            [(call.type, call.id, call.name) for call in response.server_calls],
        ),
        "server_arguments": (
            [call["arguments"] for call in expected["server_tool_calls"] if "arguments" in call],
            [
                ours.arguments
                for ours, call in zip(response.server_calls, expected["server_tool_calls"], strict=False)
                if "arguments" in call
            ],
        ),
        "text": (expected["text"], response.text),
        "reasoning": (expected["reasoning"], response.reasoning),
        "finish": (None if finish is None else str(finish), response.finish),
        "error": (expected["error"], response.error),
        "usage": (expected["usage"] or None, dict(response.usage.raw) if response.usage else None),
    }
    return {what: pair for what, pair in both.items() if pair[0] != pair[1]}


@every_recording
def test_a_recording_is_decoded_as_expected(recordings: list[Recording]) -> None:
    for recording in recordings:
        response = decode(recording.body, wire=recording.wire, stream=recording.stream)
        explained = {what for id, what in DIFFERENCES if id == recording.id}
        found = differences(recording, response)
        unexplained = {what: pair for what, pair in found.items() if what not in explained}
        assert set(found) == explained, (recording.id, unexplained)


@every_recording
def test_a_call_that_is_not_valid_json_is_never_complete(recordings: list[Recording]) -> None:
    for recording in recordings:
        response = decode(recording.body, wire=recording.wire, stream=recording.stream)
        for ours, theirs in zip(response.calls, recording.expected["tool_calls"], strict=False):
            if theirs["arguments"] is None and theirs["arguments_raw"]:
                assert not ours.complete, recording.id
                assert ours.arguments is None, recording.id
            assert ours.complete == (ours.arguments is not None), recording.id


@every_recording
def test_the_deltas_are_the_same_at_every_chunk_size(recordings: list[Recording]) -> None:
    byte_by_byte = {recording.id for recording in some(recordings, 3)}  # takes ten times as long as pieces of 64
    for recording in recordings:
        body = recording.body
        whole = feed(body, len(body) or 1, recording.wire)
        for size in (1, 7, 64, 1000) if ALL else (1, 64) if recording.id in byte_by_byte else (64,):
            assert feed(body, size, recording.wire) == whole, (recording.id, size)


@every_recording
def test_a_call_is_reported_ready_once(recordings: list[Recording]) -> None:
    for recording in recordings:
        deltas = feed(recording.body, 4096, recording.wire)
        ready = [delta.call.id for delta in deltas if isinstance(delta, CallReady)]
        assert len(ready) == len(set(ready)), recording.id


@every_recording
def test_the_wire_of_a_recording_is_guessed(recordings: list[Recording]) -> None:
    for recording in recordings:
        assert guess_wire(recording.body) == recording.wire, recording.id


@every_recording
def test_recovering_leaked_calls_invents_none(recordings: list[Recording]) -> None:
    for recording in recordings:
        plain = decode(recording.body, wire=recording.wire)
        recovered = decode(recording.body, wire=recording.wire, tools=recording.tools or ["no_such_tool"])
        leaked = "tool-call-leaked-in-text" in recording.quirks
        assert (recovered.calls == plain.calls) or leaked, recording.id
        assert (recovered.text == plain.text) or leaked, recording.id
