"""Whatever a model writes, the next request is accepted: on its own wire and on every other, by our strict checkers, by
the rules of the providers and by the shared rules where they are present; also after saving and loading."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shared_rules import PRESENT, broken_rules
from strategies import costly

from unbroken import Agent, Conversation, connect, tool
from unbroken.errors import UnbrokenError
from unbroken.models.http import HTTPModel
from unbroken.models.scripted import Call, Raw, Say, Step, Think, play_bytes
from unbroken_testing import ScriptedModel
from unbroken_testing.server import find_refusals
from unbroken_wires.messages import Request
from unbroken_wires.wires import WIRES, find_wire

Object = dict[str, Any]

MODELS = {
    "openai-chat": ("openai-chat:gpt-4.1", "mistral:mistral-large-latest", "deepseek:deepseek-chat"),
    "openai-responses": ("openai:gpt-5",),
    "anthropic-messages": ("anthropic:claude-sonnet-4-5",),
    "gemini": ("gemini:gemini-2.5-flash", "gemini:gemini-3-pro-preview"),
    "ollama": ("ollama:qwen3:4b",),
    "cohere-v2": ("cohere:command-a-03-2025",),
    "bedrock-converse": ("bedrock:us.anthropic.claude-sonnet-4-5-20250929-v1:0", "bedrock:amazon.nova-pro-v1:0"),
}
CONNECTED: list[HTTPModel] = [
    connect(name, api_key="key", wire=wire, **({"location": "us-east-1"} if name.startswith("bedrock") else {})).model
    for wire, names in MODELS.items()
    for name in names
]
HOSTILE = st.sampled_from(
    [
        "",
        " ",
        "\n",
        "\x00",
        "\x1b[31m",
        "look",
        "LOOK",
        "a b",
        "a.b",
        "-",
        "_",
        "9",
        "?",
        "天气",
        "🌧",
        "\u2237",
        "\ud800",
        "\udc00x",
        "a\u2237b",
        "x" * 65,
        "x" * 3000,
        "call_0_0",
        "../..",
        '"',
        "{}",
        "null",
    ]
)
IDS = st.none() | HOSTILE.filter(lambda id: len(id) <= 40)
"""A server whose ids are longer than its wire allows takes them back: they hold its signatures."""
ARGUMENTS = st.sampled_from(
    [
        "{}",
        "",
        " ",
        "null",
        "[]",
        "3",
        '"x"',
        '"{}"',
        "{",
        '{"a": NaN}',
        '{"a": 1e400}',
        '{"a": -0}',
        "{}{}",
        '{"a": "\\ud800"}',
        '{"a": "\ud800"}',
        '{"": {"": []}}',
        '{"a": 1, "a": 2}',
        '{"a": "\x00"}',
        "\x00",
        '{"city": "Oslo"}',
        '{"a": 99999999999999999999999}',
        '{"a": ' * 600,
        '{"a":' + "[" * 400 + "]" * 400 + "}",
    ]
)
VALUES = IDS | ARGUMENTS | st.sampled_from([None, 0, -1, 2**70, 0.5, True, [], {}, [None], {"a": 1}, {"type": "x"}])


@tool(effect="read")
def look(city: str = "") -> str:
    """Look at a city."""
    return f"{city}: rain"


steps = st.lists(
    st.builds(Say, HOSTILE)
    | st.builds(Think, HOSTILE)
    | st.builds(Call, HOSTILE, ARGUMENTS, id=IDS, pieces=st.integers(1, 3)),
    min_size=1,
    max_size=4,
)


def leaves(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict | list):
        inside = cast("Any", value)
        for key in list(inside) if isinstance(value, dict) else range(len(inside)):
            yield inside, key
            yield from leaves(inside[key])


@st.composite
def answers(draw: st.DrawFn, wire: str) -> bytes:
    """An answer of a hostile model: every part of a call may be anything, and then some values of its events."""
    said: Sequence[Step] = draw(steps)
    framing = find_wire(wire).framing
    request = Request((), model="demo", stream=draw(st.booleans()))
    body = b"".join(data for _, data in play_bytes(said, wire, request))
    changes = draw(st.integers(0, 3))
    if not changes or not request.stream:
        return body
    events = [json.loads(text) for text in framing.texts(body) if text.strip() != b"[DONE]"]
    places = [place for event in events for key in event for place in leaves(event[key])]
    for _ in range(changes if places else 0):
        inside, key = draw(st.sampled_from(places))
        inside[key] = draw(VALUES)
    return b"".join(framing.write(json.dumps(event).encode()) for event in events)


def refusals(request: Request) -> list[str]:
    """Why a provider would refuse this request, on any wire."""
    found: list[str] = []
    for model in CONNECTED:
        endpoint, written = model.endpoint, model.prepare(request)
        body = json.loads(model.write(request)[1])
        headers = {key.lower(): value for key, value in (*endpoint.headers, *written.headers.items())}
        refused = [
            each.message for each in find_refusals(endpoint.wire, body, endpoint.vendor, endpoint.model, headers)
        ]
        if PRESENT:
            refused += broken_rules(endpoint.wire, endpoint.vendor, endpoint.model, body, headers, request.stream)
        found += [f"{endpoint.vendor}:{endpoint.model} {each} in {body}" for each in refused]
    return found


async def requests_after(wire: str, answer: bytes, folder: str) -> list[Request]:
    """The requests that follow this answer, in the same turn, the next one, and the one after saving and loading."""
    model = ScriptedModel([Raw(answer)], "Done.", wire=wire, loop_last=True)
    agent = Agent(model, [look])
    chat = Conversation(agent)
    for prompt in ("Look.", "And now?"):
        with suppress(UnbrokenError):  # an answer that is broken may fail its turn
            await chat.say(prompt)
    path = Path(folder) / "chat.json"
    chat.save(path)
    chat = Conversation.load(agent, path)
    await chat.say("And then?")
    return model.requests[1:]


@pytest.mark.parametrize("wire", WIRES)
@settings(costly, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_whatever_a_model_writes_the_next_request_is_accepted_on_every_wire(wire: str, data: st.DataObject) -> None:
    answer = data.draw(answers(wire))
    with tempfile.TemporaryDirectory() as folder:
        for request in asyncio.run(requests_after(wire, answer, folder)):
            assert refusals(request) == []
