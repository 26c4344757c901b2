"""The schemas of the Open Responses specification, read from their folder, and what they say about responses and
events; tests are skipped with a reason if they are absent."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT

Object = dict[str, Any]

FOLDER = Path(os.environ.get("UNBROKEN_SCHEMAS", ROOT.parent / "shared" / "providers" / "schemas"))
PRESENT = (FOLDER / "open-responses.response.json").exists()
NEEDS_SCHEMAS = pytest.mark.skipif(not PRESENT, reason=f"no schemas in {FOLDER}: set UNBROKEN_SCHEMAS")

ENDS = ("response.completed", "response.incomplete", "response.failed")


@cache
def _validator(file: str, name: str) -> Any:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is in the extra `dev`")
    schema = json.loads((FOLDER / f"open-responses.{file}.json").read_text("utf-8"))
    named = {"$defs": schema["$defs"], "$ref": f"#/$defs/{name}"} if name else schema
    return jsonschema.Draft202012Validator(named)


def assert_response(response: Object) -> None:
    _validator("response", "ResponseResource").validate(response)


def assert_compaction(body: Object) -> None:
    _validator("response", "CompactResource").validate(body)


def assert_socket_error(event: Object) -> None:
    _validator("events", "WebSocketErrorEvent").validate(event)


def assert_event(event: Object) -> None:
    """Against the schema of its own type: the error then says what is wrong, and not only that none of them fits."""
    words = event["type"].removeprefix("response.").split(".")
    name = "".join(part.title() for word in words for part in word.split("_"))
    names = {
        "ReasoningSummaryTextDelta": "ReasoningSummaryDelta",
        "ReasoningSummaryTextDone": "ReasoningSummaryDone",
        "InProgress": "InProgress",
    }
    _validator("events", f"Response{names.get(name, name)}StreamingEvent").validate(event)
    _validator("events", "").validate(event)


def events_of(data: bytes) -> list[Object]:
    """The events of a stream, without the `[DONE]` after them. Checks that each is named by its type."""
    events: list[Object] = []
    for block in data.decode().strip().split("\n\n"):
        name, _, text = block.rpartition("\n")
        if text != "data: [DONE]":
            event = json.loads(text.removeprefix("data: "))
            assert name == f"event: {event['type']}"
            events.append(event)
    return events


def assert_stream(events: list[Object]) -> Object:
    """Every event conforms, they are numbered, the items are those of the final response. Returns that response."""
    for event in events:
        assert_event(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert [event["type"] for event in events if event["type"] in ENDS] == [events[-1]["type"]]
    final = events[-1]["response"]
    added = [event for event in events if event["type"] == "response.output_item.added"]
    done = [event for event in events if event["type"] == "response.output_item.done"]
    assert [event["output_index"] for event in added] == list(range(len(added)))
    assert [event["item"] for event in sorted(done, key=lambda event: event["output_index"])] == final["output"]
    ids = {event["output_index"]: event["item"]["id"] for event in added}
    assert len({*ids.values()}) == len(ids)
    for event in events:
        if "item_id" in event:
            assert event["item_id"] == ids[event["output_index"]]
    assert {event["response"]["id"] for event in events if "response" in event} == {final["id"]}
    return final
