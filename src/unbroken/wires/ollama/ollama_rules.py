"""ollama: what the server refuses, by model family."""

from __future__ import annotations

from unbroken.wires.rules import Named, Refused, Rule

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
)
