"""ollama: what the server refuses, by model family."""

from __future__ import annotations

from unbroken_wires.wires.body_paths import places
from unbroken_wires.wires.rules import ANY_MODEL, Function, Named, Refused, Rule

OLLAMA = ("ollama",)

RULES = (
    Rule(
        "ollama.no-thinking",
        "`think` is refused for a model without a capability to think",
        Refused("think", but=(False,)),
        Named("llama*", "gemma:*", "gemma2*", "gemma3*", "mistral*", "phi3*", "tinyllama*", "smollm*", "qwen2*"),
        OLLAMA,
        "the model does not support thinking",
        source="github.com/taketwo/llm-ollama/pull/54",
    ),
    Rule(
        "ollama.format",
        "`format` is `json` or a schema",
        Function(
            lambda asked: places(asked.body, "format", lambda value: not isinstance(value, dict) and value != "json"),
            field="format",
            alone=True,
        ),
        ANY_MODEL,
        OLLAMA,
        'invalid format: expected "json" or a JSON schema',
        source="github.com/ollama/ollama: api/types.go, llm/server.go",
        obeyed="by the encoder",
    ),
)
