"""OpenAI's model families, for the rules of both of its wires."""

from __future__ import annotations

from unbroken_wires.messages import Json
from unbroken_wires.wires.rules import Named

OPENAI = ("openai", "openai-chat", "openai-responses", "azure")

CHAT_VARIANTS = ("!gpt-5-chat*", "!gpt-5.*-chat*")
O_SERIES = Named("o1*", "o3*", "o4*")
GPT_5 = Named("gpt-5", "gpt-5-mini*", "gpt-5-nano*", "gpt-5-pro*", "gpt-5-codex*", "gpt-5-20*")
"""The first GPT-5, before versions had a point."""
FIRST_REASONING = Named(*O_SERIES.globs, *GPT_5.globs)
"""Models that always reason: no sampling settings, no effort `none`."""
LATER_GPT_5 = Named("gpt-5.*", "gpt-6*", *CHAT_VARIANTS)
"""They reason unless the effort is `none`, and take sampling settings only then."""
REASONING = Named(*O_SERIES.globs, "gpt-5*", "gpt-6*", "codex-*", *CHAT_VARIANTS)
NOT_REASONING = Named("gpt-4*", "gpt-3.5*", "chatgpt-4o*", "gpt-5-chat*", "gpt-5.*-chat*")
REASONS_BY_DEFAULT = Named("gpt-5.[6-9]*", "gpt-6*", *CHAT_VARIANTS)
"""Of the models with an effort `none`, those that reason unless it is named."""
ONLY_RESPONSES = Named(*REASONS_BY_DEFAULT.globs, "gpt-5*-codex*", "gpt-5*-pro*", "o1-pro*", "o3-pro*", "codex-*")
"""They are not on chat completions, or take tools there only without reasoning."""
TOOLS_WITHOUT_EFFORT = Named(
    "gpt-5.2*", "gpt-5.4*", "gpt-5.5*", *REASONS_BY_DEFAULT.globs, "!gpt-5*-codex*", "!gpt-5*-pro*"
)
"""On chat completions they take function tools only with the effort `none`."""
WITHOUT_STRUCTURED_OUTPUT = Named(
    "gpt-3.5*",
    "gpt-4",
    "gpt-4-*",
    "gpt-4o-2024-05-13",
    "chatgpt-4o*",
    "o1-mini*",
    "o1-preview*",
)
"""They take `json_object`, or only text, and no schema."""

OUTPUT_LIMITS = (
    (Named("gpt-3.5*", "gpt-4-turbo*", "gpt-4-0125*", "gpt-4-1106*"), 4096),
    (Named("gpt-4", "gpt-4-0613*"), 8192),
    (Named("gpt-4o*", "chatgpt-4o*", "!gpt-4o-2024-05-13"), 16_384),
    (Named("gpt-4.1*"), 32_768),
    (Named("o1*", "o3*", "o4*", "!o1-mini*", "!o1-preview*"), 100_000),
    (Named("gpt-5-chat*", "gpt-5.*-chat*"), 16_384),
    (Named("gpt-5*", *CHAT_VARIANTS), 128_000),
)
"""The most tokens that a model writes in one answer; more is refused."""


def reasons(effort: Json, model: str) -> bool:
    """Does a model that has an effort `none` reason with this one?"""
    return effort != "none" and (effort is not None or model in REASONS_BY_DEFAULT)
