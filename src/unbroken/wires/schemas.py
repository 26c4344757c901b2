"""JSON Schemas of tools and of structured output, in the forms that providers accept."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import cast

from unbroken.messages import Json
from unbroken.wires.values import Object, as_dict, as_list, as_text, dicts

COMBINED = ("oneOf", "anyOf", "allOf")
_ROOT_REFUSED = frozenset((*COMBINED, "enum", "not", "const", "if", "then", "else", "$ref"))


def is_object(schema: Json) -> bool:
    """Whether the top of a schema is an object, without alternatives."""
    fields = as_dict(schema)
    return fields.get("type") == "object" and _ROOT_REFUSED.isdisjoint(fields)


def as_object(schema: Json) -> Object:
    """The schema with one object at its top, because providers accept no alternatives there. It allows all that the
    schema allows, and perhaps more: properties of all alternatives, of which only those are required that each of them
    requires."""
    fields = as_dict(schema)
    if is_object(fields):
        return fields
    properties, required = _fields(fields, fields, depth=0)
    replaced = {*_ROOT_REFUSED, "properties", "required", "type"}
    rest = {key: value for key, value in fields.items() if key not in replaced}
    merged: Object = {**rest, "type": "object", "properties": properties}
    return {**merged, "required": required} if required else merged


def _fields(schema: Object, root: Object, depth: int) -> tuple[Object, list[str]]:
    """The properties of a schema and of what it is combined from, and which of them are always required."""
    properties = dict(as_dict(schema.get("properties")))
    required = [name for name in as_list(schema.get("required")) if isinstance(name, str)]
    if depth > 8:
        return properties, required
    if target := _target(schema, root):
        more, needed = _fields(target, root, depth + 1)
        properties, required = {**more, **properties}, [*required, *needed]
    for part in dicts(schema.get("allOf")):
        more, needed = _fields(part, root, depth + 1)
        properties, required = {**more, **properties}, [*required, *needed]
    for key in ("oneOf", "anyOf"):
        each = [_fields(part, root, depth + 1) for part in dicts(schema.get(key))]
        for more, _ in each:
            properties = {**more, **properties}
        if each:
            required += [name for name in each[0][1] if all(name in needed for _, needed in each)]
    return properties, list(dict.fromkeys(required))


def _target(schema: Object, root: Object) -> Object:
    """What a `$ref` within the same schema leads to."""
    path = as_text(schema.get("$ref"))
    if not path.startswith("#/"):
        return {}
    found: Json = root
    for name in path[2:].split("/"):
        found = cast("Object", found).get(name) if isinstance(found, dict) else None
    return as_dict(found)


# Structured output

_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_INNER = (*COMBINED, "items", "prefixItems", "additionalProperties", "not", "contains", "if", "then", "else")


def each_schema(schema: Json, change: Callable[[Object], Object]) -> Json:
    """The schema with `change` applied to it and to every schema in it, from the inside out. Values that are not
    schemas (of `enum`, `default`, `const`) stay as they are."""
    if isinstance(schema, list):
        return [each_schema(one, change) for one in cast("list[Json]", schema)]
    if not isinstance(schema, dict):
        return schema
    copy: Object = dict(cast("Object", schema))
    for key, value in copy.items():
        if key in _NAMED and isinstance(value, dict):
            copy[key] = {name: each_schema(one, change) for name, one in cast("Object", value).items()}
        elif key in _INNER:
            copy[key] = each_schema(value, change)
    return change(copy)


def _is_closed_object(schema: Object) -> bool:
    return "properties" in schema or schema.get("type") == "object"


def closed(schema: Mapping[str, Json]) -> Object:
    """The schema with every object closed, unless the schema says what else may be in it."""

    def close(fields: Object) -> Object:
        opens = isinstance(fields.get("additionalProperties"), dict) or not _is_closed_object(fields)
        return fields if opens else {**fields, "additionalProperties": False}

    return as_dict(each_schema(dict(schema), close))


def is_strict(schema: Mapping[str, Json]) -> bool:
    """Whether OpenAI accepts it as strict: one object at the top, every object closed, every property required, and
    none of the keywords that need more than one look at the answer."""
    fits = is_object(dict(schema))

    def look(fields: Object) -> Object:
        nonlocal fits
        if fields.keys() & _NOT_STRICT:
            fits = False
        if _is_closed_object(fields):
            missing = as_dict(fields.get("properties")).keys() - set(as_list(fields.get("required")))
            fits = fits and fields.get("additionalProperties") is False and not missing
        return fields

    each_schema(dict(schema), look)
    return fits


_NOT_STRICT = frozenset(
    (
        *("oneOf", "allOf", "not", "if", "then", "else", "patternProperties", "dependentRequired", "dependentSchemas"),
        *("prefixItems", "contains", "propertyNames", "unevaluatedProperties", "minProperties", "maxProperties"),
    )
)


def limited(schema: Mapping[str, Json], keywords: Collection[str]) -> Object:
    """The schema with these keywords only. What others say is written into the description, so that the model still
    knows it."""

    def limit(fields: Object) -> Object:
        others = {key: value for key, value in fields.items() if key not in keywords}
        if not others:
            return fields
        kept = {key: value for key, value in fields.items() if key in keywords}
        told = ", ".join(f"{key}: {value}" for key, value in others.items() if key not in _SILENT)
        if told and "description" in keywords:
            before = as_text(kept.get("description"))
            kept["description"] = f"{before} ({told})" if before else told
        return kept

    return as_dict(each_schema(dict(schema), limit))


_SILENT = ("$schema", "$id", "$comment", "title", "default", "examples", "propertyOrdering")
"""Keywords that limit nothing."""
