"""Tools that providers ran in recorded responses: each call begins once, and what came of it belongs to it."""

from __future__ import annotations

import pytest
from corpus import ABSENT, RECORDINGS, Recording

from unbroken_wires.decoding import Decoder
from unbroken_wires.deltas import ServerCallEnded, ServerCallOpened, ServerCallSeen

SERVED = [each for each in RECORDINGS if each.expected.get("server_tool_calls")]


@pytest.mark.skipif(not RECORDINGS, reason=ABSENT)
@pytest.mark.parametrize("recording", SERVED, ids=lambda each: each.id)
def test_a_recorded_call_begins_once_and_ends_at_most_once(recording: Recording) -> None:
    if recording.file.endswith(".jsonl"):
        pytest.skip("a recording without its framing")
    decoder = Decoder(recording.wire)
    deltas = [*decoder.feed(recording.body), *decoder.end()]
    opened = [delta.call.id for delta in deltas if isinstance(delta, ServerCallOpened)]
    ended = [delta.call.id for delta in deltas if isinstance(delta, ServerCallEnded)]
    seen = [delta.call for delta in deltas if isinstance(delta, ServerCallSeen)]
    assert opened
    assert len(set(opened)) == len(opened)
    assert len(set(ended)) == len(ended)
    assert set(ended) <= set(opened)
    assert any(call.tool for call in seen)
