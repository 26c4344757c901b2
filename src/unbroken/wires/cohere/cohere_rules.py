"""cohere-v2: what Cohere refuses, by model family."""

from __future__ import annotations

from unbroken.wires.rules import ANY_MODEL, Between, Named, NotTogether, Refused, Rule

COHERE = ("cohere",)
_DOCS = "docs.cohere.com/reference/chat"

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
