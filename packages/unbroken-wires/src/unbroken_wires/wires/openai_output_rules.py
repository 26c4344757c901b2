"""What OpenAI refuses about the schema of an answer, on both of its wires."""

from __future__ import annotations

from unbroken_wires.wires.body_paths import find, places, without
from unbroken_wires.wires.json_access import Object
from unbroken_wires.wires.openai_models import OPENAI, WITHOUT_STRUCTURED_OUTPUT
from unbroken_wires.wires.rules import ANY_MODEL, Asked, Function, Matches, Mended, Refused, Rule, StrictSchemas
from unbroken_wires.wires.schemas import is_object, keywords_of

_DOCS = "developers.openai.com/api/docs/guides/structured-outputs"
_REFUSED = ("oneOf", "allOf", "not", "if", "then", "else", "patternProperties", "dependentRequired", "default")


def output_rules(wire: str, format: str, described: str) -> tuple[Rule, ...]:
    """`format` is the field of the format, `described` where its name, its schema and `strict` are."""
    return (
        Rule(
            f"{wire}.no-json-schema",
            f"`{format}` with a schema is known since GPT-4o of August 2024",
            Refused(format, but=({"type": "text"}, {"type": "json_object"})),
            WITHOUT_STRUCTURED_OUTPUT,
            OPENAI,
            f"Invalid parameter: '{format}' of type 'json_schema' is not supported with this model.",
            source=_DOCS,
        ),
        *_name_rules(wire, format, described),
        *_schema_rules(wire, format, described),
    )


def _name_rules(wire: str, format: str, described: str) -> tuple[Rule, ...]:
    def nameless(asked: Asked) -> list[str]:
        return [f"{where}.name" for where, _ in find(asked.body, f"{described}{{schema}}{{!name}}")]

    return (
        Rule(
            f"{wire}.output-name",
            "the name of an output schema has 1 to 64 letters, digits, underscores and dashes",
            Matches(f"{described}.name", "[a-zA-Z0-9_-]{1,64}"),
            ANY_MODEL,
            OPENAI,
            "Invalid '{where}': string does not match pattern. Expected a string that matches the pattern "
            "'^[a-zA-Z0-9_-]+$'.",
            source=_DOCS,
            obeyed="by the encoder",
        ),
        Rule(
            f"{wire}.output-needs-a-name",
            "an output schema has a name",
            Function(nameless, field=format.partition(".")[0]),
            ANY_MODEL,
            OPENAI,
            "Missing required parameter: '{where}'.",
            source=_DOCS,
            obeyed="by the encoder",
        ),
    )


def _schema_rules(wire: str, format: str, described: str) -> tuple[Rule, ...]:
    strict = f"{described}{{strict=True}}.schema"

    def lenient(body: Object) -> Mended:
        return without(body, f"{described}{{strict=True}}.strict"), [f"{described}.strict"]

    def refused_keywords(asked: Asked) -> list[str]:
        return [where for where, schema in find(asked.body, strict) if not keywords_of(schema).isdisjoint(_REFUSED)]

    return (
        Rule(
            f"{wire}.output-root",
            "an output schema is an object without alternatives at its top",
            Function(
                lambda asked: places(asked.body, f"{described}.schema", lambda schema: not is_object(schema)),
                field=format.partition(".")[0],
            ),
            ANY_MODEL,
            OPENAI,
            f"Invalid schema for {format}: schema must be a JSON Schema of 'type: \"object\"'.",
            source=_DOCS,
            obeyed="by the encoder",
        ),
        Rule(
            f"{wire}.output-strict",
            "in a strict output schema every object is closed and every property is required",
            StrictSchemas(strict, repair=lenient),
            ANY_MODEL,
            OPENAI,
            f"Invalid schema for {format}: In context=(), 'additionalProperties' is required to be supplied and to be "
            "false.",
            source=_DOCS,
        ),
        Rule(
            f"{wire}.output-keywords",
            f"a strict output schema has none of {', '.join(_REFUSED)}",
            Function(refused_keywords, field=format.partition(".")[0]),
            ANY_MODEL,
            OPENAI,
            f"Invalid schema for {format}: a keyword is not permitted.",
            source=_DOCS,
            obeyed="by the encoder",
        ),
    )
