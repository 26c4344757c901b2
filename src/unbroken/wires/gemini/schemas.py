"""gemini: the schemas of declared functions, which clients give in the API's own subset of OpenAPI."""

from __future__ import annotations

from typing import cast

from unbroken.messages import Json
from unbroken.wires.gemini.parts import camel
from unbroken.wires.values import Object, as_dict

_NAMED = frozenset(("properties", "patternProperties", "$defs", "defs", "definitions", "dependentSchemas"))
"""Keywords that hold schemas by name; the names are the tool's own, whatever they look like."""

_INNER = frozenset(
    (
        *("items", "prefixItems", "anyOf", "oneOf", "allOf", "not", "additionalProperties"),
        *("contains", "propertyNames", "if", "then", "else"),
    )
)
"""Keywords that hold a schema or a list of them."""

_COUNTS = frozenset(("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"))
"""int64 in the API, which JSON clients may write as text."""

_TYPES = ("", "string", "number", "integer", "boolean", "array", "object", "null")
"""By the numbers of the API's enum, which gRPC clients have been seen to send."""


def json_schema(value: Json) -> Object:
    """A schema in the API's subset of OpenAPI (`OBJECT`, `nullable`, `any_of`, `"1"`) as JSON Schema."""
    root = camel(as_dict(value))
    stack = [root]
    while stack:
        schema = stack.pop()
        for key, item in schema.items():
            if key in _NAMED and isinstance(item, dict):
                schema[key] = named = dict(cast("Object", item))
                for name, inner in named.items():
                    named[name] = _opened(inner, stack)
            elif key in _INNER:
                many = isinstance(item, list)
                schema[key] = (
                    [_opened(one, stack) for one in cast("list[Json]", item)] if many else _opened(item, stack)
                )
            elif key in _COUNTS and isinstance(item, str) and item.isdecimal() and len(item) < 20:
                schema[key] = int(item)
        _set_type(schema)
    return root


def _opened(value: Json, stack: list[Object]) -> Json:
    """A copy of a schema, to be worked on; anything else (`additionalProperties: false`) as it is."""
    if not isinstance(value, dict):
        return value
    schema = camel(cast("Object", value))
    stack.append(schema)
    return schema


def _set_type(schema: Object) -> None:
    nullable = schema.pop("nullable", None) is True
    type = schema.get("type")
    if isinstance(type, int) and 0 < type < len(_TYPES):
        type = _TYPES[type]
    if type in (0, "TYPE_UNSPECIFIED"):
        del schema["type"]
    elif isinstance(type, str):
        schema["type"] = [type.lower(), "null"] if nullable else type.lower()
    if nullable and "type" not in schema and isinstance(schema.get("anyOf"), list):
        schema["anyOf"] = [*schema["anyOf"], {"type": "null"}]
