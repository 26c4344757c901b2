"""The schema that OpenAI's strict mode takes, made of an ordinary one: each object closed, each property required, what
was optional nullable, and nothing that the mode refuses. And the way back: the nulls that stand for "left out"."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from unbroken.errors import InvalidTool
from unbroken.messages import Json

Schema = dict[str, Any]

_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "$defs", "patternProperties", "dependentSchemas")
_SINGLE = ("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else")

_KEYWORDS = {
    *("type", "description", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf"),
    *("$ref", "$defs", "pattern", "format", "minItems", "maxItems"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
_FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
_NULL: Schema = {"type": "null"}


def each_schema(schema: Json, change: Callable[[Schema], Json]) -> Json:
    """A copy in which every schema inside, from the innermost out, is what `change` makes of it. Values that only look
    like schemas (defaults, examples, enum members) stay as they are."""
    if not isinstance(schema, dict):
        return schema
    copy = cast("Schema", schema).copy()
    for key in _SINGLE:
        if key in copy:
            copy[key] = each_schema(copy[key], change)
    for key in _LISTS:
        if isinstance(copy.get(key), list):
            copy[key] = [each_schema(one, change) for one in copy[key]]
    for key in _MAPS:
        if isinstance(copy.get(key), dict):
            copy[key] = {name: each_schema(one, change) for name, one in copy[key].items()}
    return change(copy)


def make_strict(tool: str, schema: Schema) -> Schema:
    for name, one in schema.get("properties", {}).items():
        each_schema({"$defs": schema.get("$defs", {}), **one}, lambda inner, name=name: _refuse(tool, name, inner))
    return each_schema(each_schema(schema, lambda inner: _without_siblings(inner, schema)), _close)


def _refuse(tool: str, parameter: str, schema: Schema) -> Json:
    way_out = "give it a type with named fields, or leave strict out"
    if schema.get("type") == "object" and schema.get("additionalProperties", False) is not False:
        raise InvalidTool(f"tool `{tool}`: parameter `{parameter}` takes any keys, which strict cannot say; {way_out}")
    if "prefixItems" in schema:
        raise InvalidTool(f"tool `{tool}`: parameter `{parameter}` is a tuple, which strict cannot say; {way_out}")
    if not schema.keys() & {"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"}:
        raise InvalidTool(f"tool `{tool}`: parameter `{parameter}` takes any value, which strict cannot say; {way_out}")
    return schema


def _without_siblings(schema: Schema, top: Schema) -> Json:
    """Strict mode wants `$ref` alone: what stands beside it goes into a copy of what it points to."""
    if "$ref" not in schema or len(schema) == 1:
        return schema
    beside = {key: value for key, value in schema.items() if key in ("description",)}
    return {**_resolve(schema, top), **beside} if beside else {"$ref": schema["$ref"]}


def _close(schema: Schema) -> Json:
    if len(one := schema.get("allOf", ())) == 1:
        schema = {**one[0], **schema}
    if "oneOf" in schema:
        schema["anyOf"] = schema["oneOf"]
    closed = {key: value for key, value in schema.items() if key in _KEYWORDS}
    if closed.get("format") not in _FORMATS:
        closed.pop("format", None)
    if closed.get("type") == "object":
        required = schema.get("required", ())
        properties: Schema = closed.get("properties", {})
        closed["properties"] = {name: one if name in required else _nullable(one) for name, one in properties.items()}
        closed["required"] = list(properties)
        closed["additionalProperties"] = False
    return closed


def _nullable(schema: Schema) -> Schema:
    if takes_null(schema):
        return schema
    if "anyOf" in schema:
        return {**schema, "anyOf": [*schema["anyOf"], _NULL]}
    beside = {"description": schema["description"]} if "description" in schema else {}
    alone = {key: value for key, value in schema.items() if key != "description"}
    return {"anyOf": [alone, _NULL], **beside}


def takes_null(schema: Mapping[str, Any]) -> bool:
    if (
        schema.get("type") == "null"
        or ("const" in schema and schema["const"] is None)
        or None in schema.get("enum", ())
    ):
        return True
    if any(takes_null(one) for key in ("anyOf", "oneOf") for one in schema.get(key, ())):
        return True
    return not schema.keys() & {"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"}


def without_omitted(value: Json, schema: Schema, top: Schema) -> Json:
    """`value` without the nulls that only say "left out": where the ordinary schema has an optional property that
    takes no null."""
    schema = _resolve(schema, top)
    if isinstance(value, list):
        items = schema.get("items") or next((one["items"] for one in schema.get("anyOf", ()) if "items" in one), None)
        return [without_omitted(one, items, top) for one in cast("list[Json]", value)] if items else cast("Json", value)
    if not isinstance(value, dict):
        return value
    given = cast("dict[str, Json]", value)
    properties = _properties_for(given, schema, top)
    if properties is None:
        return given
    required, known = properties
    return {
        name: without_omitted(one, known[name], top) if name in known else one
        for name, one in given.items()
        if not (one is None and name in known and name not in required and not takes_null(_resolve(known[name], top)))
    }


def _properties_for(given: dict[str, Json], schema: Schema, top: Schema) -> tuple[list[str], dict[str, Schema]] | None:
    if "properties" in schema:
        return schema.get("required", []), schema["properties"]
    for one in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        found = _properties_for(given, _resolve(one, top), top)
        if found is not None and given.keys() <= found[1].keys():
            return found
    return None


def _resolve(schema: Schema, top: Schema) -> Schema:
    while "$ref" in schema:
        schema = top.get("$defs", {}).get(schema["$ref"].rpartition("/")[2], {})
    return schema
