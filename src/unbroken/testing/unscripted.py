"""`TestModel`: a model that needs no script. It calls every tool once with arguments that fit, then answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any, ClassVar, cast

from unbroken.deltas import Delta
from unbroken.messages import Assistant, Json, OneTool, Request, ToolMessage, ToolSpec, User
from unbroken.models.scripted import Answer, Call, Say, ScriptedModel

ANSWER = "final_answer"
"""The tool with which a typed answer is given."""
DEEPEST = 20
"""Levels of a schema that is nested without end."""


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
        return [Say(self._text or _returned(request) or "done")]


def _call(tool: ToolSpec) -> Call:
    return Call(tool.name, **cast("dict[str, Any]", example(tool.parameters)))


def _returned(request: Request) -> str:
    last = request.messages[-1] if request.messages else None
    if not isinstance(last, ToolMessage):
        return ""
    return "; ".join(f"{result.name}: {result.text}" for result in last.results)


def example(schema: Mapping[str, Any]) -> Json:
    """The smallest value that fits a JSON schema, as far as it can be found by reading it: a `pattern` is not."""
    return _example(schema, schema, 0)


def _example(schema: Any, root: Mapping[str, Any], depth: int) -> Json:
    if not isinstance(schema, Mapping) or depth > DEEPEST:
        return None
    schema = cast("Mapping[str, Any]", schema)
    for given in ("const", "default"):
        if given in schema:
            return schema[given]
    for given in ("enum", "examples"):
        if schema.get(given):
            return schema[given][0]
    if "$ref" in schema:
        return _example(_referred(str(schema["$ref"]), root), root, depth + 1)
    for several in ("anyOf", "oneOf"):
        if schema.get(several):
            return _example(schema[several][0], root, depth + 1)
    if schema.get("allOf"):
        parts = [_example(part, root, depth + 1) for part in schema["allOf"]]
        joined: dict[str, Json] = {}
        for part in parts:
            if not isinstance(part, dict):
                return part
            joined |= part
        return joined | _object(schema, root, depth)
    kind: Any = schema.get("type")
    return _of_type(kind[0] if isinstance(kind, list) and kind else kind, schema, root, depth)  # pyright: ignore[reportUnknownArgumentType] - a schema


def _of_type(kind: object, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Json:
    match kind:
        case "string":
            return _text(schema)
        case "integer" | "number":
            return _number(schema, whole=kind == "integer")
        case "boolean":
            return False
        case "array":
            first: list[Any] = schema.get("prefixItems") or []
            items = [_example(item, root, depth + 1) for item in first]
            while len(items) < schema.get("minItems", 0):
                items.append(_example(schema.get("items", {}), root, depth + 1))
            return items
        case "object":
            return _object(schema, root, depth)
        case None if "properties" in schema:
            return _object(schema, root, depth)
        case None if schema:
            return ""
        case _:
            return None


def _object(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> dict[str, Json]:
    properties: dict[str, Any] = schema.get("properties") or {}
    return {name: _example(properties.get(name, {}), root, depth + 1) for name in schema.get("required") or ()}


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
    step = schema.get("multipleOf") or (1 if whole else 0.5)
    least, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    most, below = schema.get("maximum"), schema.get("exclusiveMaximum")
    value: float = 0
    if least is not None and value < least:
        value = least if not schema.get("multipleOf") else -(-least // step) * step
    if above is not None and value <= above:
        value = (above // step + 1) * step
    if most is not None and value > most:
        value = most // step * step
    if below is not None and value >= below:
        value = -(-below // step) * step - step
    return int(value) if whole else value


def _referred(reference: str, root: Mapping[str, Any]) -> Any:
    place: Any = root
    for step in reference.removeprefix("#/").split("/"):
        if not isinstance(place, Mapping):
            return None
        place = cast("Mapping[str, Any]", place).get(step.replace("~1", "/").replace("~0", "~"))
    return place
