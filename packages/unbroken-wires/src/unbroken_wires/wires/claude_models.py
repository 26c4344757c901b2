"""Claude models by version, and what the families differ in."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from unbroken_wires.messages import Effort, Json
from unbroken_wires.wires.rules import Models, model_name

BUDGETS: dict[Effort, int] = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 24576, "xhigh": 32768}
"""Tokens of thinking for an effort, for models that do not know efforts."""
SMALLEST_BUDGET = 1024


def budget_within(budget: int, limit: int) -> int:
    """The budget, lowered so that the limit of the answer leaves room for it; 0 if there is none."""
    if budget < limit:
        return budget
    return max(SMALLEST_BUDGET, limit - SMALLEST_BUDGET) if limit > SMALLEST_BUDGET else 0


_VERSION = re.compile(r"claude-(?:(?P<tier>[a-z]+)-)?(?P<major>\d{1,2})(?:[-.](?P<minor>\d{1,2})(?!\d))?(?!\d)")


@lru_cache(256)
def _version(model: str) -> tuple[tuple[int, int] | None, str]:
    """The version and the tier in a name."""
    name = model_name(model)
    found = _VERSION.match(name)
    if found is None:
        return None, ""
    tier = next((each for each in ("opus", "sonnet", "haiku") if each in name), found["tier"] or "")
    return (int(found["major"]), int(found["minor"] or 0)), tier


@dataclass(frozen=True)
class Claude:
    """Claude models from one version to below another; `tiers` such as `opus`."""

    since: tuple[int, int] = (0, 0)
    before: tuple[int, int] = (99, 0)
    tiers: tuple[str, ...] = ()
    but: tuple[str, ...] = ()

    def __contains__(self, model: str) -> bool:
        version, tier = _version(model)
        if version is None:
            return model_name(model).startswith("claude-") and self == CLAUDE
        if (self.tiers and tier not in self.tiers) or tier in self.but:
            return False
        return self.since <= version < self.before

    def __str__(self) -> str:
        tiers = "/".join(self.tiers) or "claude"
        since = f" since {self.since[0]}.{self.since[1]}" if self.since > (0, 0) else ""
        before = f" before {self.before[0]}.{self.before[1]}" if self.before < (99, 0) else ""
        return f"{tiers}{since}{before}"


@dataclass(frozen=True)
class Either:
    """The models of several."""

    each: tuple[Models, ...]

    def __contains__(self, model: str) -> bool:
        return any(model in models for models in self.each)

    def __str__(self) -> str:
        return ", ".join(map(str, self.each))


CLAUDE = Claude()
SINCE_4_7 = Claude(since=(4, 7))
"""No sampling settings, and thinking is adaptive only."""
SINCE_4_6 = Claude(since=(4, 6))
"""Adaptive thinking is known, and no prefill is accepted."""
BEFORE_4_6 = Claude(before=(4, 6))
FABLE = ("fable", "mythos")
ALWAYS_THINKS = Either((Claude(since=(5, 0), tiers=FABLE), Claude(since=(5, 5), tiers=("opus",))))
"""Thinking cannot be turned off."""
BETWEEN_TOOLS = Claude(since=(5, 5), tiers=("sonnet",))
"""The least thinking is `between_tools`."""
NO_FORCED_CALL = Either((Claude(since=(5, 1), tiers=FABLE), Claude(since=(5, 5), tiers=("opus", "sonnet"))))
"""The choice of a tool is auto or none."""
WITHOUT_EFFORT = Either((Claude(before=(4, 5)), Claude((4, 5), (4, 6), but=("opus",))))
"""`output_config.effort` is not known."""

PREFIX_CHECKED = Either((Claude((5, 1), tiers=("fable", "mythos")), Claude(since=(5, 5))))
"""Thinking is valid only behind the instructions, tools and messages that it was written behind, since August 2026:
platform.claude.com/docs/en/build-with-claude/preserved-thinking/prefix-checks. Later models check it too."""
BINDING = "block_binding"
"""In `thinking`: what to do with thinking that is not valid any more."""
BINDING_BETA = "thinking-binding-controls-2026-08-01"
"""Without this beta the API does not know the field."""
_CUT = re.compile(
    r"invalid.{0,10}\b(?:signature|data)\b.{0,20}thinking|thinking\.signature: field required", re.IGNORECASE
)
_MOVED = "bound to a different"
"""Nothing was cut: the request differs from the one that the thinking was done for."""


def says_cut(words: str) -> bool:
    """Is this a refusal of thinking whose signature was cut, or is not there?"""
    return _MOVED not in words and _CUT.search(words) is not None


LATER_SYSTEM = Either(
    (Claude((4, 8), tiers=("opus",)), Claude((5, 0), tiers=("fable", "mythos")), Claude(since=(5, 5)))
)
"""System text may stand between the messages:
platform.claude.com/docs/en/build-with-claude/mid-conversation-system-messages."""

OUTPUT_LIMITS: tuple[tuple[Models, int], ...] = (
    (Claude(before=(3, 5)), 4096),
    (Claude((3, 5), (3, 7)), 8192),
    (Claude((4, 0), (4, 5), tiers=("opus",)), 32_000),
    (Either((Claude((3, 7), (4, 0)), Claude((4, 0), (4, 6), but=("opus",)), Claude((4, 5), (4, 6)))), 64_000),
    (Claude((4, 6), (5, 0), tiers=("sonnet", "haiku")), 64_000),
    (Either((Claude((4, 6), (5, 0), but=("sonnet", "haiku")), Claude(since=(5, 0)))), 128_000),
)
"""The most tokens that a model writes in one answer."""


@lru_cache(256)
def output_limit(model: str) -> int | None:
    """None for a model that is not known, for instance of another vendor with this wire."""
    return next((limit for models, limit in OUTPUT_LIMITS if model in models), None)


def adaptive_effort(effort: str, model: str) -> str:
    """Our effort in the words of `output_config.effort`."""
    if effort == "xhigh":
        return "xhigh" if model in SINCE_4_7 else "max"
    return "low" if effort == "minimal" else effort


_EFFORTS: dict[Json, Effort] = {"low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "xhigh"}


def effort_of(adaptive: Json) -> Effort:
    """The same the other way; what is missing or not known is what the model does by itself."""
    return _EFFORTS.get(adaptive, "high") if isinstance(adaptive, str) else "high"
