"""The outcome of a test: one of four judgements, a text, and the quirks that handle a difference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from unbroken.messages import Assistant, Message, ToolCall, ToolMessage, ToolResult, ToolSpec, User

Judgement: TypeAlias = Literal["works", "differs", "broken", "unclear"]
"""`differs`: the endpoint differs from the wire, and Unbroken handles it, perhaps with a quirk in the profile.
`unclear`: the model did not cooperate, which shows nothing about its server."""


@dataclass(frozen=True, slots=True)
class Finding:
    judgement: Judgement
    words: str = ""
    quirks: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields of `Quirks` that the profile needs."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A test that was run, and its finding."""

    name: str
    title: str
    finding: Finding
    requests: int = 0
    seconds: float = 0.0


def works(words: str = "") -> Finding:
    return Finding("works", words)


def differs(words: str, **quirks: Any) -> Finding:
    return Finding("differs", words, quirks)


def broken(words: str) -> Finding:
    return Finding("broken", words)


def unclear(words: str) -> Finding:
    return Finding("unclear", words)


# The requests: prompts, tools and a history, small enough for any model.


PONG = "Reply with one word: pong"
COUNT = "Write the numbers from 1 to 100, separated by spaces, and nothing else."
WEATHER = "What is the weather in Paris? Call the tool get_weather."
HELLO = "Say hello."
SEVERAL = (
    "What is the weather in Paris, Berlin and Madrid? Call get_weather three times in this one reply, "
    "once for each city, before anything else."
)
PING = "Call the tool ping now."

WORDS = "Grüße, 日本語, 中文, 🎉👩‍💻"
LONG = " ".join(f"item-{number:04}" for number in range(1, 411))
"""4 KB."""


def _spec(name: str, description: str, *parameters: str, strict: bool | None = None) -> ToolSpec:
    schema = {
        "type": "object",
        "properties": {parameter: {"type": "string"} for parameter in parameters},
        "required": list(parameters),
        "additionalProperties": False,
    }
    return ToolSpec(name, description, schema, strict)


GET_WEATHER = _spec("get_weather", "The weather of a city.", "city")
GET_TIME = _spec("get_time", "The time of day in a city.", "city")
STRICT_WEATHER = _spec("get_weather", "The weather of a city.", "city", strict=True)
PING_TOOL = ToolSpec("ping", "Checks that tools work. Takes no arguments.")
ECHO = _spec("echo", "Prints a text.", "text")


def echo(text: str) -> str:
    return f"Call the tool echo with exactly this text, without changing a character:\n{text}"


CODE = "7342"


def answered(message: Assistant) -> tuple[Message, ...]:
    """A history in which the calls of this message have results."""
    results = tuple(ToolResult.of(call, f"21 degrees, report number {CODE}") for call in message.calls)
    question = "What is the weather? End your answer with the report number."
    return User.of(question), message, ToolMessage(results)


TWO_CALLS = Assistant(
    "Let me look.",
    tuple(
        ToolCall(f"call_0_{index}", "get_weather", {"city": city}, f'{{"city": "{city}"}}', index)
        for index, city in enumerate(("Paris", "Berlin"))
    ),
)
"""Calls in the form that Unbroken uses for a history that did not come from this provider."""
