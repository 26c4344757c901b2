"""cohere-v2: what Cohere refuses, by model family."""

from __future__ import annotations

from unbroken_wires.messages import Json
from unbroken_wires.wires.body_paths import places
from unbroken_wires.wires.json_access import Object
from unbroken_wires.wires.rules import ANY_MODEL, Asked, Between, Function, Named, NotTogether, Refused, Rule
from unbroken_wires.wires.schemas import each_schema, is_object, keywords_of

COHERE = ("cohere",)
_DOCS = "docs.cohere.com/reference/chat"

OUTPUT_KEYWORDS = frozenset(
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
        "format",
        "pattern",
    )
)
"""What `json_schema` may have (docs.cohere.com/docs/structured-outputs-json)."""


def accepts_schema(schema: Json) -> bool:
    fits = is_object(schema) and keywords_of(schema) <= OUTPUT_KEYWORDS

    def look(fields: Object) -> Object:
        nonlocal fits
        fits = fits and (fields.get("type") != "object" or bool(fields.get("required")))
        return fields

    each_schema(schema, look)
    return fits


def _odd_output_schemas(asked: Asked) -> list[str]:
    return places(asked.body, "response_format.json_schema", lambda schema: not accepts_schema(schema))


RULES = (
    Rule(
        "cohere.no-tool-choice",
        "`tool_choice` is known since Command R7B",
        Refused("tool_choice"),
        Named("command-r", "command-r-*", "command-r-plus*", "command-light*", "command-nightly*", "!command-r7b*"),
        COHERE,
        source=_DOCS,
    ),
    Rule(
        "cohere.no-thinking",
        "`thinking` is known to the reasoning models alone",
        Refused("thinking"),
        Named("command*", "c4ai*", "!*reasoning*"),
        COHERE,
        source=_DOCS,
    ),
    Rule(
        "cohere.json-without-tools",
        "`response_format` is not accepted beside `tools`",
        NotTogether("tools", "response_format"),
        ANY_MODEL,
        COHERE,
        source="docs.cohere.com/docs/structured-outputs",
    ),
    Rule(
        "cohere.json-schema",
        "a schema of the answer is an object, and every object in it requires a property",
        Function(_odd_output_schemas, field="response_format", alone=True),
        ANY_MODEL,
        COHERE,
        source="docs.cohere.com/docs/structured-outputs-json",
        obeyed="by the encoder",
    ),
    *(
        Rule(
            f"cohere.{name.replace('_', '-')}",
            f"`{name}` is between {low} and {high}",
            Between(name, low, high),
            ANY_MODEL,
            COHERE,
            source=_DOCS,
        )
        for name, low, high in (
            ("temperature", 0, 2),
            ("p", 0.01, 0.99),
            ("k", 0, 500),
            ("frequency_penalty", 0, 1),
            ("presence_penalty", 0, 1),
        )
    ),
)
