"""The demo model, with which any client can be tried. It calls the offered tools with valid arguments."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest

from unbroken import Assistant, Request, ToolCall, ToolMessage, ToolResult, User
from unbroken.models.demo_model import DemoModel, demo_arguments
from unbroken_wires.deltas import CallReady, Ended, TextDelta, UsageReported
from unbroken_wires.messages import Choice, Message, OneTool, ToolSpec


def tool(name: str, **properties: Any) -> ToolSpec:
    return ToolSpec(name, "", {"type": "object", "properties": properties, "required": list(properties)})


WEATHER = tool("get_weather", city={"type": "string"}, days={"type": "integer", "minimum": 1, "maximum": 3})
NOW = tool("now")
ASKED = User.of("What is the weather like?")


def ask(
    *messages: Message, tools: tuple[ToolSpec, ...] = (), choice: Choice | None = None, stream: bool = True, **more: Any
) -> tuple[list[str], list[ToolCall]]:
    """The pieces of its text, and its calls."""
    request = Request(messages or (ASKED,), tools, choice, stream=stream, **more)

    async def listen() -> tuple[list[str], list[ToolCall]]:
        deltas = [delta async for deltas in DemoModel(chunk_delay=0).stream(request) for delta in deltas]
        assert isinstance(deltas[-1], Ended)
        assert deltas[-1].verdict.whole
        assert any(isinstance(delta, UsageReported) and delta.usage.output_tokens > 0 for delta in deltas)
        calls = [delta.call for delta in deltas if isinstance(delta, CallReady)]
        return [delta.text for delta in deltas if isinstance(delta, TextDelta)], calls

    return asyncio.run(listen())


def names(calls: list[ToolCall]) -> list[str]:
    return [call.name for call in calls]


def test_without_tools_it_introduces_itself_word_by_word() -> None:
    pieces, calls = ask(User.of("Hello there"))
    assert "".join(pieces) == (
        'You said "Hello there". I am the demo model of Unbroken: a script, and no language model. '
        "Offer me tools, and I call three times at once."
    )
    assert len(pieces) > 20
    assert calls == []


def test_with_tools_it_makes_three_calls_in_one_answer() -> None:
    _, calls = ask(tools=(WEATHER, NOW))
    assert names(calls) == ["get_weather", "now", "get_weather"]
    assert [call.arguments for call in calls] == [{"city": "Beijing", "days": 3}, {}, {"city": "Shanghai", "days": 3}]
    assert len({call.id for call in calls}) == 3
    _, calls = ask(tools=(WEATHER,))
    assert [(call.arguments or {})["city"] for call in calls] == ["Beijing", "Shanghai", "Shenzhen"]
    _, calls = ask(tools=(NOW,))
    assert names(calls) == ["now"]
    _, calls = ask(tools=tuple(tool(f"look_{n}") for n in range(9)))
    assert names(calls) == ["look_0", "look_1", "look_2"]


@pytest.mark.parametrize("stream", [True, False])
def test_it_makes_three_calls_even_if_one_call_is_requested(stream: bool) -> None:
    _, calls = ask(tools=(WEATHER,), parallel=False, stream=stream)
    assert len(calls) == 3


def test_the_same_question_has_the_same_ids_and_another_has_different_ones() -> None:
    _, calls = ask(tools=(WEATHER,))
    _, again = ask(tools=(WEATHER,))
    _, others = ask(User.of("And tomorrow?"), tools=(WEATHER,))
    assert calls == again
    assert not {call.id for call in calls} & {call.id for call in others}
    assert all(len(call.id) <= 40 for call in calls)


def test_with_the_results_it_names_them() -> None:
    _, calls = ask(tools=(WEATHER, NOW))
    results = (
        ToolResult.of(calls[0], "Rain,\n  18 °C"),
        ToolResult.of(calls[1]),
        ToolResult.of(calls[2], "no such city", error=True),
    )
    pieces, more = ask(ASKED, Assistant("", tuple(calls)), ToolMessage(results), tools=(WEATHER, NOW))
    assert more == []
    assert "".join(pieces).startswith(
        'I have all the results: get_weather gave "Rain, 18 °C"; now gave nothing; get_weather failed with "no such'
    )


def test_a_new_question_after_the_results_is_a_new_round() -> None:
    _, calls = ask(tools=(WEATHER,))
    done = ToolMessage(tuple(ToolResult.of(call, "x" * 1000) for call in calls))
    pieces, more = ask(ASKED, Assistant("", tuple(calls)), done, tools=(WEATHER,))
    assert more == []
    assert len("".join(pieces)) < 1000
    _, more = ask(ASKED, Assistant("", tuple(calls)), done, Assistant("Rain."), User.of("And there?"), tools=(WEATHER,))
    assert len(more) == 3
    assert not {call.id for call in calls} & {call.id for call in more}


def test_results_one_by_one_belong_to_one_round() -> None:
    """In the form that a client with one call at a time has in its history."""
    _, calls = ask(tools=(WEATHER,))
    history: list[Message] = [ASKED]
    for call in calls:
        history += [Assistant("", (call,)), ToolMessage((ToolResult.of(call, "fine"),))]
    pieces, more = ask(*history, tools=(WEATHER,))
    assert more == []
    assert "".join(pieces).count('get_weather gave "fine"') == 3


def test_tool_choices_are_honoured() -> None:
    assert ask(tools=(WEATHER, NOW), choice="none")[1] == []
    assert ask(tools=(WEATHER, NOW), final=True)[1] == []
    assert names(ask(tools=(WEATHER, NOW), choice=OneTool("now"))[1]) == ["now"]
    assert names(ask(tools=(WEATHER, NOW), choice=OneTool("get_weather"))[1]) == ["get_weather"]
    assert names(ask(tools=(WEATHER,), choice="required")[1]) == ["get_weather"] * 3
    assert ask(tools=(WEATHER,), choice=OneTool("nothing"))[1] == []


def test_tools_with_effects_are_avoided_if_others_are_offered() -> None:
    offered = [
        tool(name) for name in ("Bash", "write_file", "Read", "deleteUser", "Grep", "apply_patch", "Glob", "now")
    ]
    assert names(ask(tools=tuple(offered))[1]) == ["Read", "Grep", "Glob"]
    shell = tool("shell", command={"type": "array", "items": {"type": "string"}})
    _, calls = ask(tools=(shell,))
    assert [call.arguments for call in calls] == [{"command": ["pwd"]}]


def test_a_picture_alone_and_a_request_without_a_user_are_answered() -> None:
    assert "".join(ask(Assistant("Hello"))[0]).startswith("I am the demo model")
    half = User.of("half \ud83d of a pair")
    assert len(ask(half, tools=(WEATHER,))[1]) == 3


SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "nested": {
        "type": "object",
        "properties": {
            "trip": {
                "type": "object",
                "properties": {
                    "from": {"$ref": "#/$defs/Place"},
                    "to": {"$ref": "#/$defs/Place"},
                    "note": {"type": "string"},
                },
                "required": ["from", "to"],
            },
            "who": {"type": "array", "items": {"type": "object", "properties": {"email": {"format": "email"}}}},
        },
        "required": ["trip", "who"],
        "$defs": {
            "Place": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    },
    "numbers": {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "minimum": 10, "maximum": 20},
            "b": {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 5},
            "c": {"type": "number", "minimum": 0, "maximum": 1},
            "d": {"type": "number", "exclusiveMinimum": 10, "multipleOf": 5},
            "e": {"type": "integer", "multipleOf": 4, "maximum": 7},
            "f": {"type": "integer", "maximum": -5},
        },
        "required": ["a", "b", "c", "d", "e", "f"],
    },
    "texts": {
        "type": "object",
        "properties": {
            "unit": {"enum": ["C", "F"]},
            "kind": {"const": "daily"},
            "at": {"type": "string", "format": "date-time"},
            "day": {"type": "string", "pattern": r"^\d{4}-\d\d-\d\d$"},
            "short": {"type": "string", "maxLength": 2},
            "long": {"type": "string", "minLength": 30},
            "file_path": {"type": "string"},
            "any": {},
            "yes": True,
        },
        "required": ["unit", "kind", "at", "day", "short", "long", "file_path", "any", "yes"],
        "additionalProperties": False,
    },
    "alternatives": {
        "type": "object",
        "properties": {
            "a": {"anyOf": [{"type": "null"}, {"type": "integer"}]},
            "b": {"type": ["null", "string"]},
            "c": {"oneOf": [{"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]}]},
            "d": {"allOf": [{"type": "object", "required": ["p"]}, {"properties": {"p": {"type": "integer"}}}]},
            "e": {"type": "array", "items": {"type": "integer"}, "minItems": 3, "uniqueItems": True},
            "f": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "minItems": 2},
            "g": {"type": "array", "maxItems": 0},
            "h": {"type": "null"},
            "i": {"type": "string", "default": "as it is"},
            "j": {"type": "object", "additionalProperties": {"type": "string"}},
        },
        "required": list("abcdefghij"),
    },
    "without types": {"properties": {"list": {"items": {"type": "number"}}, "thing": {"properties": {"a": {}}}}},
    "empty": {},
    "broken": {"type": "object", "properties": {"a": {"$ref": "#/$defs/Nothing"}}, "required": ["a", 3]},
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_arguments_match_the_schema(name: str) -> None:
    for variant in range(4):
        made = demo_arguments(SCHEMAS[name], variant)
        if name != "broken":
            jsonschema.Draft202012Validator(SCHEMAS[name]).validate(made)  # pyright: ignore[reportUnknownMemberType] - untyped
        assert isinstance(made, dict)


def test_a_recursive_schema_ends() -> None:
    schema = {
        "type": "object",
        "properties": {"child": {"$ref": "#"}, "loop": {"$ref": "#/properties/loop"}},
        "required": ["child", "loop"],
    }
    depth, made = 0, demo_arguments(schema)
    while isinstance(made.get("child"), dict):
        depth, made = depth + 1, made["child"]
    assert 2 < depth < 20


def test_without_required_fields_something_is_filled_in_anyway() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 3}}}
    assert demo_arguments(schema) == {"city": "Beijing"}
    assert demo_arguments({**schema, "required": []}) == {}
