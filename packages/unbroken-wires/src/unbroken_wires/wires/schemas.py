"""JSON Schemas of tools and of structured output, in the forms that providers accept."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from typing import cast

from unbroken_wires.messages import Json
from unbroken_wires.wires.json_access import Object, as_dict, as_list, as_text, dicts

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


def keywords_of(schema: Json) -> set[str]:
    """The keywords in a schema and in every schema in it."""
    found: set[str] = set()

    def look(fields: Object) -> Object:
        found.update(fields)
        return fields

    each_schema(schema, look)
    return found


def _is_closed_object(schema: Object) -> bool:
    return "properties" in schema or schema.get("type") == "object"


def closed(schema: Mapping[str, Json]) -> Object:
    """The schema with every object closed, unless the schema says what else may be in it."""

    def close(fields: Object) -> Object:
        opens = isinstance(fields.get("additionalProperties"), dict) or not _is_closed_object(fields)
        return fields if opens else {**fields, "additionalProperties": False}

    return as_dict(each_schema(dict(schema), close))


def is_strict(schema: Mapping[str, Json]) -> bool:
    """Whether OpenAI accepts it as strict: one object at the top, every object closed, every property required, every
    list with its items, and none of the keywords that need more than one look at the answer."""
    root = dict(schema)
    fits, properties, choices = is_object(root), 0, 0

    def look(fields: Object) -> Object:
        nonlocal fits, properties, choices
        if fields.keys() & _NOT_STRICT or fields.keys().isdisjoint(_TYPED):
            fits = False
        if _is_closed_object(fields):
            own = as_dict(fields.get("properties"))
            missing = own.keys() - set(as_list(fields.get("required")))
            fits = fits and fields.get("additionalProperties") is False and not missing
            properties += len(own)
        if fields.get("type") == "array":
            fits = fits and isinstance(fields.get("items"), dict)
        choices += len(as_list(fields.get("enum")))
        return fields

    each_schema(root, look)
    return fits and properties <= 5000 and choices <= 1000 and _levels(root, root) <= 10


_NOT_STRICT = frozenset(
    (
        "oneOf",
        "allOf",
        "not",
        "if",
        "then",
        "else",
        "patternProperties",
        "dependentRequired",
        "dependentSchemas",
        "prefixItems",
        "contains",
        "propertyNames",
        "unevaluatedProperties",
        "minProperties",
        "maxProperties",
        "default",
        "minLength",
        "maxLength",
        "uniqueItems",
        "discriminator",
    )
)
_TYPED = ("type", "enum", "const", "anyOf", "$ref")
_STRICT = frozenset(
    (
        "$ref",
        "$defs",
        "definitions",
        "type",
        "title",
        "description",
        "enum",
        "const",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "anyOf",
        "pattern",
        "format",
        "multipleOf",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "minItems",
        "maxItems",
    )
)
"""What a strict schema may have (developers.openai.com/api/docs/guides/structured-outputs)."""
_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"))
CLAUDE_KEYWORDS = frozenset(
    (
        "$schema",
        "$ref",
        "$defs",
        "definitions",
        "type",
        "title",
        "description",
        "default",
        "enum",
        "const",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "anyOf",
        "allOf",
        "format",
        "minItems",
        "pattern",
    )
)
"""What a schema may have for Claude (platform.claude.com/docs: structured outputs)."""


def _levels(schema: Json, root: Object, path: tuple[str, ...] = ()) -> int:
    """How deep objects are nested; a schema that contains itself is counted once."""
    deepest = 0

    def look(fields: Object) -> Object:
        nonlocal deepest
        if (name := as_text(fields.get("$ref"))) and name not in path:
            deepest = max(deepest, _levels(_target(fields, root), root, (*path, name)))
        return fields

    fields = {key: value for key, value in as_dict(schema).items() if key not in ("$defs", "definitions")}
    for inner in [*as_dict(fields.get("properties")).values(), *(fields.get(key) for key in _INNER)]:
        for each in [*as_list(inner), inner]:
            deepest = max(deepest, _levels(each, root, path)) if isinstance(each, dict) else deepest
    look(fields)
    return deepest + _is_closed_object(fields)


def _kept(
    write: Callable[[Mapping[str, Json]], Object | None],
) -> Callable[[Mapping[str, Json]], Object | None]:
    """The last forms are kept, for the same object: a run sends one schema with each request, and writing it takes as
    long as the rest of a short request (0.3 to 1 ms)."""
    forms: dict[int, tuple[Mapping[str, Json], Object | None]] = {}

    @wraps(write)
    def written(schema: Mapping[str, Json]) -> Object | None:
        known = forms.get(id(schema))
        if known is not None and known[0] is schema:
            return known[1]
        if len(forms) >= 32:
            forms.clear()
        forms[id(schema)] = schema, (form := write(schema))
        return form

    return written


@_kept
def strict_form(schema: Mapping[str, Json]) -> Object | None:
    """The schema as OpenAI accepts it as strict; None if there is no such form. Each answer that fits it fits the
    schema as well, as far as a strict schema can say: properties that have a default become required."""
    fits = True

    def look(fields: Object) -> Object:
        nonlocal fits
        required = set(as_list(fields.get("required")))
        optional = [as_dict(own) for name, own in as_dict(fields.get("properties")).items() if name not in required]
        fits = fits and all("default" in own or _takes_null(own) for own in optional)
        return fields

    def change(fields: Object) -> Object:
        if "$ref" in fields:  # nothing may stand beside it
            return {key: value for key, value in fields.items() if key in ("$ref", "$defs", "definitions")}
        if "properties" in fields:
            fields = {**fields, "required": list(as_dict(fields["properties"]))}
            if not isinstance(fields.get("additionalProperties"), dict):
                fields["additionalProperties"] = False
        return _described(fields, "default") if "default" in fields else fields

    portable = each_schema(dict(schema), lambda fields: _portable(fields, _FORMATS))
    each_schema(portable, look)
    written = limited(as_dict(each_schema(portable, change)), _STRICT)
    return written if fits and is_strict(written) else None


@_kept
def claude_form(schema: Mapping[str, Json]) -> Object | None:
    """The schema as Claude accepts it for structured output; None if there is no such form: an object that may have
    any property, a value of any type, and a schema that contains itself cannot be written."""
    fits = not is_recursive(dict(schema))

    def change(fields: Object) -> Object:
        nonlocal fits
        fields = _portable(fields, _FORMATS | {"uri"})
        least = fields.get("minItems")
        if least is not None and least not in (0, 1):
            fields = _described(fields, "minItems")
        more = fields.get("additionalProperties")
        is_open = fields.get("type") == "object" and "properties" not in fields and more is not False
        untyped = fields.keys().isdisjoint((*_TYPED, "allOf", "properties"))
        no_items = fields.get("type") == "array" and not isinstance(fields.get("items"), dict)
        fits = fits and not (is_open or untyped or no_items or isinstance(more, dict))
        return fields

    written = closed(limited(as_dict(each_schema(dict(schema), change)), CLAUDE_KEYWORDS))
    return written if fits else None


def _portable(fields: Object, formats: Collection[str]) -> Object:
    """The same schema in words that more providers know. What remains of a format that is not known is its name."""
    if "oneOf" in fields and "anyOf" not in fields:
        fields = {"anyOf" if key == "oneOf" else key: value for key, value in fields.items() if key != "discriminator"}
    if len(parts := dicts(fields.get("allOf"))) == 1:
        fields = {**parts[0], **{key: value for key, value in fields.items() if key != "allOf"}}
    if "format" in fields and fields["format"] not in formats:
        fields = _described(fields, "format")
    return fields


def _described(fields: Object, key: str) -> Object:
    """Without the keyword, which the description has instead."""
    words, before = f"{key}: {json.dumps(fields[key])}", as_text(fields.get("description"))
    rest = {name: value for name, value in fields.items() if name != key}
    return {**rest, "description": f"{before} ({words})" if before else words}


def _takes_null(schema: Object) -> bool:
    kind = schema.get("type")
    return kind == "null" or "null" in as_list(kind) or any(map(_takes_null, dicts(schema.get("anyOf"))))


def is_recursive(schema: Object, path: tuple[str, ...] = (), root: Object | None = None) -> bool:
    """Whether a `$ref` leads back to where it stands."""
    root = schema if root is None else root
    names: list[str] = []

    def look(fields: Object) -> Object:
        if name := as_text(fields.get("$ref")):
            names.append(name)
        return fields

    each_schema({key: value for key, value in schema.items() if key not in ("$defs", "definitions")}, look)
    return any(
        name in path or name == "#" or is_recursive(_target({"$ref": name}, root), (*path, name), root)
        for name in dict.fromkeys(names)
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
