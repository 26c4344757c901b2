"""Random messages for property tests: everything our types can express, with ids that every wire allows."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from unbroken import Assistant, System, Text, ToolCall, ToolMessage, ToolResult, User
from unbroken_wires.messages import Media, Message, Part


def fewer(examples: int) -> int:
    """So many examples in `make test`, and as many as any other property has when fuzzing."""
    now = settings().max_examples
    return min(examples, now) if now == settings.get_profile("ci").max_examples else now


costly = settings(max_examples=fewer(15))
"""For the slowest properties."""

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
SAID = TEXTS.filter(lambda text: bool(text.strip()))
NAMES = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_-]{0,20}", fullmatch=True)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(TEXTS, JSON, max_size=4)
IMAGES = st.sampled_from(
    [
        Media(mime="image/png", data="iVBORw0KGgo="),
        Media(mime="image/jpeg", data="/9j/4AA="),
        Media(url="https://example.com/a.png"),
    ]
)
PARTS = st.lists(SAID.map(Text) | IMAGES, min_size=1, max_size=3).map(tuple)


def call(id: str, name: str, arguments: dict[str, Any], index: int) -> ToolCall:
    return ToolCall(id, name, arguments, json.dumps(arguments, ensure_ascii=False), index)


@st.composite
def calls(draw: st.DrawFn, prefix: str = "call", least: int = 0) -> tuple[ToolCall, ...]:
    made = draw(st.lists(st.tuples(NAMES, ARGUMENTS), min_size=least, max_size=3))
    return tuple(call(f"{prefix}_{n}", name, arguments, n) for n, (name, arguments) in enumerate(made))


@st.composite
def answers(draw: st.DrawFn) -> Assistant:
    """One answer of a model: reasoning, text, calls, each of which may be absent, but not all of them."""
    made = draw(calls())
    text = draw(SAID if not made else SAID | st.just(""))
    return Assistant(text, made, draw(TEXTS))


@st.composite
def results(draw: st.DrawFn, made: tuple[ToolCall, ...]) -> ToolMessage:
    content: st.SearchStrategy[tuple[Part, ...]] = PARTS
    return ToolMessage(tuple(ToolResult(c.id, draw(content), draw(st.booleans()), c.name) for c in made))


@st.composite
def histories(draw: st.DrawFn) -> tuple[Message, ...]:
    """A valid conversation: a system message or none, then rounds of text, calls and their results."""
    messages: list[Message] = []
    if draw(st.booleans()):
        messages.append(System(tuple(Text(text) for text in draw(st.lists(SAID, min_size=1, max_size=2)))))
    for turn in range(draw(st.integers(1, 3))):
        messages.append(User(draw(PARTS)))
        made = draw(calls(prefix=f"call_{turn}"))
        messages.append(Assistant(draw(SAID if not made else SAID | st.just("")), made))
        if made:
            messages.append(draw(results(made)))
    return tuple(messages)
