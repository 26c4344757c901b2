"""JSON Schemas of tools, in the forms that providers accept."""

from __future__ import annotations

from typing import cast

from unbroken.messages import Json
from unbroken.wires.values import Object, as_dict, as_list, as_text, dicts

COMBINED = ("oneOf", "anyOf", "allOf")
_ROOT_REFUSED = frozenset((*COMBINED, "enum", "not", "const", "if", "then", "else", "$ref"))


def is_object(schema: Json) -> bool:
    """Whether the top of a schema is an object, without alternatives."""
    fields = as_dict(schema)
    return fields.get("type") == "object" and not (fields.keys() & _ROOT_REFUSED)


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
