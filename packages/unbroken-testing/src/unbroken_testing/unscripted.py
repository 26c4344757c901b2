"""`TestModel`: a model that needs no script. It calls every tool once with arguments that fit, then answers."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias, cast

from unbroken.models.scripted import Answer, Call, Say, ScriptedModel
from unbroken_wires.deltas import Delta
from unbroken_wires.messages import Assistant, Json, OneTool, Request, ToolMessage, ToolSpec, User
from unbroken_wires.validation import checked

ANSWER = "final_answer"
"""The tool with which a typed answer is given."""
DEEPEST = 20
"""Levels of a schema that is nested without end."""


@checked
class TestModel:
    """Calls each tool once in its first answer, or those in `call`, then answers with `text`, or with what the tools
    returned. A typed answer has values that fit its schema. `requests` are the requests that it received."""

    __test__: ClassVar[bool] = False  # pytest does not collect it

    def __init__(self, *, call: Collection[str] | None = None, text: str = "", name: str = "test:model") -> None:
        self.name = name
        self._call = call
        self._text = text
        self._model = ScriptedModel(self._answer, name=name)

    @property
    def requests(self) -> list[Request]:
        """The requests that it received, in order."""
        return self._model.requests

    def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        """Calls tools, or answers, depending on the history."""
        return self._model.stream(request)

    def _answer(self, request: Request) -> Answer:
        tools = {tool.name: tool for tool in request.tools}
        if isinstance(request.choice, OneTool) and request.choice.name in tools:
            return [_call(tools[request.choice.name])]
        asked = max((at for at, each in enumerate(request.messages) if isinstance(each, User)), default=0)
        called = any(isinstance(message, Assistant) and message.calls for message in request.messages[asked:])
        wanted = [tool for name, tool in tools.items() if name != ANSWER and (self._call is None or name in self._call)]
        if wanted and not called and not request.final and request.choice != "none":
            return [_call(tool) for tool in (wanted if request.parallel is not False else wanted[:1])]
        if ANSWER in tools:
            return [_call(tools[ANSWER])]
        if request.output is not None and request.output.schema is not None:
            return [Say(json.dumps(example(request.output.schema)))]
        return [Say(self._text or _returned(request) or "done")]


def _call(tool: ToolSpec) -> Call:
    return Call(tool.name, cast("dict[str, Any]", example(tool.parameters)))


def _returned(request: Request) -> str:
    last = request.messages[-1] if request.messages else None
    if not isinstance(last, ToolMessage):
        return ""
    return "; ".join(f"{result.name}: {result.text}" for result in last.results)


def example(schema: Mapping[str, Any]) -> Json:
    """The smallest value that fits a JSON schema, as far as it can be found by reading it. A `pattern` is not: give its
    field `examples`."""
    return _example(schema, schema, ())


Open: TypeAlias = tuple[str, ...]
"""The references that are being followed: one of them again means that the schema is nested in itself."""


def _example(schema: Any, root: Mapping[str, Any], followed: Open) -> Json:
    if not isinstance(schema, Mapping) or len(followed) > DEEPEST:
        return None
    schema = cast("Mapping[str, Any]", schema)
    for given in ("const", "default"):
        if given in schema:
            return schema[given]
    for given in ("enum", "examples"):
        if schema.get(given):
            return schema[given][0]
    if "$ref" in schema:
        reference = str(schema["$ref"])
        if followed.count(reference) > 1:
            return None  # it is nested without end
        return _example(_referred(reference, root), root, (*followed, reference))
    for several in ("anyOf", "oneOf"):
        if choices := schema.get(several):
            ending = (each for each in choices if not _is_nested(each, followed))
            return _example(next(ending, choices[0]), root, followed)
    if parts := schema.get("allOf"):
        rest = {name: value for name, value in schema.items() if name != "allOf"}
        return _example(_joined([rest, *parts], root), root, followed)
    kind: Any = schema.get("type")
    return _of_type(kind[0] if isinstance(kind, list) and kind else kind, schema, root, followed)  # pyright: ignore[reportUnknownArgumentType] - a schema


def _is_nested(schema: Any, followed: Open) -> bool:
    """Does it lead to a schema that it is a part of?"""
    return isinstance(schema, Mapping) and cast("Mapping[str, Any]", schema).get("$ref") in followed


def _joined(parts: Sequence[Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """One schema that asks for all that several ask for."""
    joined: dict[str, Any] = {}
    for part in parts:
        found: dict[str, Any] = _referred(str(part["$ref"]), root) if "$ref" in part else part
        properties = {**joined.get("properties", {}), **found.get("properties", {})}
        required = [*joined.get("required", ()), *found.get("required", ())]
        joined |= found
        if properties:
            joined["properties"], joined["required"] = properties, list(dict.fromkeys(required))
    return joined


def _of_type(kind: object, schema: Mapping[str, Any], root: Mapping[str, Any], followed: Open) -> Json:
    match kind:
        case "string":
            return _text(schema)
        case "integer" | "number":
            return _number(schema, whole=kind == "integer")
        case "boolean":
            return False
        case "array":
            first: list[Any] = schema.get("prefixItems") or []
            items = [_example(item, root, followed) for item in first]
            missing = range(schema.get("minItems", 0) - len(items))
            item = _example(schema.get("items", {}), root, followed) if missing else None
            return items + [_another(item, number) if schema.get("uniqueItems") else item for number in missing]
        case "object":
            return _object(schema, root, followed)
        case None if "properties" in schema:
            return _object(schema, root, followed)
        case None if schema:
            return ""
        case _:
            return None


def _object(schema: Mapping[str, Any], root: Mapping[str, Any], followed: Open) -> dict[str, Json]:
    properties: dict[str, Any] = schema.get("properties") or {}
    required: list[str] = schema.get("required") or []
    found = {name: _example(properties.get(name, {}), root, followed) for name in required}
    for number in range(schema.get("minProperties", 0) - len(found)):
        found[f"key{number}"] = _example(schema.get("additionalProperties", {}), root, followed)
    return found


def _another(value: Json, number: int) -> Json:
    """Items of a list in which all are different."""
    if isinstance(value, str):
        return value + "a" * number
    return value + number if isinstance(value, int | float) and not isinstance(value, bool) else value


_FORMATS = {
    "date": "2026-01-01",
    "date-time": "2026-01-01T00:00:00Z",
    "time": "00:00:00Z",
    "duration": "PT1S",
    "email": "a@example.com",
    "uri": "https://example.com",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "ipv4": "127.0.0.1",
    "ipv6": "::1",
    "binary": "",
}


def _text(schema: Mapping[str, Any]) -> str:
    text = _FORMATS.get(str(schema.get("format")), "a")
    return text.ljust(schema.get("minLength", 0), "a")[: schema.get("maxLength")]


def _number(schema: Mapping[str, Any], *, whole: bool) -> float:
    """0 if it fits, or else the next number to it."""
    step = schema.get("multipleOf") or (1 if whole else None)
    least, above = schema.get("minimum", -math.inf), schema.get("exclusiveMinimum", -math.inf)
    most, below = schema.get("maximum", math.inf), schema.get("exclusiveMaximum", math.inf)
    low, high = max(least, above), min(most, below)
    if (low < 0 or (low == 0 and above < 0)) and (high > 0 or (high == 0 and below > 0)):
        return 0
    if step:
        up = low >= 0
        count = math.ceil(low / step) if up else math.floor(high / step)
        count += (1 if up else -1) if count * step in ((above,) if up else (below,)) else 0
        return int(count * step) if whole else count * step
    if math.isfinite(low) and math.isfinite(high):
        return low if low > above else (low + high) / 2
    return (low if low > above else low + 0.5) if math.isfinite(low) else (high if high < below else high - 0.5)


def _referred(reference: str, root: Mapping[str, Any]) -> Any:
    place: Any = root
    for step in reference.removeprefix("#/").split("/"):
        if not isinstance(place, Mapping):
            return None
        place = cast("Mapping[str, Any]", place).get(step.replace("~1", "/").replace("~0", "~"))
    return place
