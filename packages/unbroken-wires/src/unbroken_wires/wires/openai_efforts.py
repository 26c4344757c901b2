"""Which reasoning efforts a family of models takes on the wires of OpenAI, as data, and the rules that follow from it:
another effort becomes the nearest that the family knows; one that knows none gets none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from unbroken_wires.messages import Json
from unbroken_wires.wires.json_access import Object
from unbroken_wires.wires.openai_models import GPT_5, NOT_REASONING, O_SERIES, OPENAI
from unbroken_wires.wires.rules import ANY_MODEL, Mended, Models, Named, Only, Refused, Rule

_LADDER = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_XAI = "docs.x.ai: reasoning"
_GUIDE = "platform.openai.com/docs/guides/reasoning"

_FAMILIES: tuple[tuple[tuple[str, ...], Models, str, str], ...] = (
    (OPENAI, NOT_REASONING, "", "github.com/mozilla-ai/any-llm/issues/270"),
    (OPENAI, O_SERIES, "low medium high", _GUIDE),
    (OPENAI, Named("gpt-5-pro*"), "high", _GUIDE),
    (OPENAI, Named("gpt-5-codex*", "gpt-5.1-codex*", "!gpt-5.1-codex-max*"), "low medium high", _GUIDE),
    (OPENAI, GPT_5, "minimal low medium high", _GUIDE),
    (OPENAI, Named("gpt-5.*-codex*"), "low medium high xhigh", "developers.openai.com/api/docs/models/gpt-5.3-codex"),
    (OPENAI, Named("gpt-5.*-pro*"), "medium high xhigh", _GUIDE),
    (OPENAI, Named("gpt-5.1*"), "none low medium high", "github.com/openai/openai-agents-python/issues/2089"),
    (OPENAI, Named("gpt-5.[2-5]*"), "none low medium high xhigh", "github.com/livekit/agents/pull/7169"),
    (
        OPENAI,
        Named("gpt-5.*", "gpt-6*"),
        "none low medium high xhigh max",
        "github.com/anomalyco/opencode/issues/36141",
    ),
    (("groq",), Named("gpt-oss*"), "low medium high", "console.groq.com/docs/reasoning"),
    (("groq",), Named("qwen3*"), "none default", "console.groq.com/docs/reasoning"),
    (("groq",), Named("llama*", "gemma*", "kimi*", "allam*", "compound*"), "", "console.groq.com/docs/reasoning"),
    (("xai",), Named("grok-4.20-multi-agent*"), "low medium high xhigh", _XAI),
    (("xai",), Named("grok-2*", "grok-3", "grok-3-fast*", "grok-4", "grok-4-*", "grok-4.20*", "grok-code*"), "", _XAI),
    (("xai",), Named("grok-3-mini*"), "low high", _XAI),
    (("xai",), Named("grok-4.3*"), "none low medium high", _XAI),
    (("xai",), Named("grok-4.5*"), "low medium high", _XAI),
    (("xai",), Named("grok-[4-9]*"), "low medium high xhigh", _XAI),
    (("cerebras",), Named("gpt-oss*"), "low medium high", "inference-docs.cerebras.ai/capabilities/reasoning"),
    (("cerebras",), Named("zai-glm*"), "none low medium high", "inference-docs.cerebras.ai/capabilities/reasoning"),
    (("cerebras",), Named("llama*", "qwen*"), "", "inference-docs.cerebras.ai/capabilities/reasoning"),
    (("mistral",), Named("mistral-small*", "mistral-medium*"), "none high", "docs.mistral.ai: reasoning"),
    (
        ("mistral",),
        Named("mistral-*", "ministral*", "magistral*", "codestral*", "devstral*", "pixtral*", "open-*"),
        "",
        "docs.mistral.ai: reasoning",
    ),
    (("zhipu",), Named("glm-5.[3-9]*", "glm-[6-9]*"), "low high max", "openrouter.ai/z-ai/glm-5.3/api"),
    (("moonshot",), Named("kimi-k[3-9]*"), "low high max", "platform.kimi.ai/docs/guide/use-thinking-effort"),
    (("zhipu",), Named("glm-5.2*"), "none minimal low medium high xhigh max", "docs.z.ai: thinking mode"),
    (("zhipu",), Named("glm-*"), "", "docs.z.ai: thinking mode"),
    (("moonshot",), Named("kimi-*", "moonshot-*"), "", "platform.kimi.ai/docs/guide/use-kimi-k2-thinking-model"),
    (("deepseek",), ANY_MODEL, "low medium high xhigh max", "api-docs.deepseek.com: thinking mode"),
)
"""Providers, models, the efforts that they take, and the source. The first row that fits counts."""


@dataclass(frozen=True, slots=True)
class _Row:
    """The models of a row that are in no row of the same providers before it."""

    models: Models
    before: tuple[Models, ...]

    def __contains__(self, model: str) -> bool:
        return model in self.models and not any(model in earlier for earlier in self.before)

    def __str__(self) -> str:
        return str(self.models)


def effort_rules(
    prefix: str, path: str, leave_out: Callable[[Object], Mended | None] | None = None
) -> tuple[Rule, ...]:
    """For the wire that has the effort at this path. `leave_out`: how, if not by removing it alone."""
    rules: list[Rule] = []
    for n, (providers, models, efforts, source) in enumerate(_FAMILIES):
        before = tuple(earlier[1] for earlier in _FAMILIES[:n] if earlier[0] == providers)
        known = tuple(efforts.split())
        supported = f" Supported values are: {', '.join(map(repr, known))}." if known else ""
        rules.append(
            Rule(
                f"{prefix}.{providers[0]}-effort-{n}",
                f"`{path}` is {', '.join(known)}" if known else f"`{path}` is not accepted",
                Only(path, known, _nearest(known)) if known else Refused(path, repair=leave_out),
                _Row(models, before),
                providers,
                f"Unsupported value: '{path}' does not support this value with this model.{supported}",
                source=source,
            )
        )
    return tuple(rules)


def _nearest(known: tuple[str, ...]) -> dict[str, Json]:
    """Of two that are equally near, the higher one: it costs more, and answers no worse."""
    if "default" in known:
        return dict.fromkeys(_LADDER, "default")
    places = {_LADDER.index(effort): effort for effort in known}
    return {
        effort: places[min(places, key=lambda place: (abs(place - at), -place))] for at, effort in enumerate(_LADDER)
    }
