"""What things of ours are called in OpenTelemetry: times, providers, addresses, kinds of failures. Pure.

The names are those of the semantic conventions for generative AI; what those do not know is called `unbroken.…`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from unbroken import errors
from unbroken.errors import ProviderError, StreamError
from unbroken.messages import Outcome

OTHER = "_OTHER"
"""The conventions' word for what has no name of its own."""
CANCELLED = "cancelled"

PROVIDERS = {
    "azure": "azure.ai.openai",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "vertex": "gcp.vertex_ai",
    "xai": "x_ai",
}
"""Our rows that the conventions call something else."""


def nanoseconds(seconds: float) -> int:
    """A time of ours. To the microsecond: a float of today's seconds has no more."""
    return round(seconds * 1e6) * 1000


@dataclass(frozen=True, slots=True)
class Asked:
    """Who is asked, as far as its name and its address say."""

    provider: str
    model: str
    address: str = ""
    port: int = 0

    @classmethod
    def named(cls, name: str) -> Asked:
        """`openai:gpt-5`; a model of one's own may be called anything."""
        provider, colon, model = name.partition(":")
        return cls(PROVIDERS.get(provider, provider), model) if colon else cls(OTHER, name)

    @classmethod
    def of(cls, model: Any) -> Asked:
        named = cls.named(model.name)
        inner = getattr(model, "model", model)  # of a `RetryingModel`
        url = getattr(getattr(inner, "endpoint", None), "stream_url", None)
        return named if url is None else cls(named.provider, named.model, url.host or "", url.port or 0)

    def attributes(self) -> dict[str, str | int]:
        found: dict[str, str | int] = {"gen_ai.provider.name": self.provider, "gen_ai.request.model": self.model}
        if self.address:
            found |= {"server.address": self.address, "server.port": self.port}
        return found


ERROR_TYPES: dict[Outcome, str] = {
    "done": "",
    "failed": "tool_error",
    "timed_out": "timeout",
    "cancelled": CANCELLED,
    "not_executed": "not_executed",
    "unknown": "outcome_unknown",
}
"""What each outcome of a call is called as the type of an error."""


def is_foreign(error: str) -> bool:
    """Is it an error that a provider or the way to it made? Its words then tell nothing of what was said in the run."""
    kind = getattr(errors, error, None)
    return isinstance(kind, type) and issubclass(kind, (ProviderError, StreamError))
