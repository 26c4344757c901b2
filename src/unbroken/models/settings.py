"""What a model is asked with every time, unless a request says otherwise: the settings of `connect`, checked once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict, cast

from unbroken.errors import CannotEncode, UserError
from unbroken.messages import Effort, Json, Request, Sampling
from unbroken.models.endpoint import is_number
from unbroken.models.relay_request import RelayRequest, relay_request
from unbroken.wires.jsontext import dumps


class ModelSettings(TypedDict, total=False):
    """The settings that `connect` accepts beside its own parameters; `Settings` describes them."""

    temperature: float | None
    top_p: float | None
    max_tokens: int | None
    stop: str | Sequence[str] | None
    seed: int | None
    reasoning: Effort | None
    cache: bool | None
    headers: Mapping[str, Any]
    query: Mapping[str, Any]
    extra: Mapping[str, Any]
    organization: str | None
    project: str | None
    location: str | None
    api_version: str | None


@dataclass(frozen=True, slots=True)
class Settings:
    """`headers` and `query` go with each request, `extra` is merged into its body last, as it is. Keys may stand in all
    three: they are not shown."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: str | Sequence[str] = ()
    seed: int | None = None
    reasoning: Effort | None = None
    cache: bool | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    query: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    extra: Mapping[str, Json] = field(default_factory=dict[str, Json], repr=False)
    organization: str = ""
    """OpenAI: the organization that pays."""
    project: str = ""
    """OpenAI: its project. Vertex AI: the project of the model."""
    location: str = ""
    """Vertex AI: the region."""
    api_version: str = ""
    """Azure: the dated version of its older interface, by deployment."""

    @property
    def leave_bodies_alone(self) -> bool:
        """Nothing is said here that would change the body of a request."""
        return self.samples_as_asked and self.reasoning is None and not self.cache and not self.extra

    @property
    def samples_as_asked(self) -> bool:
        """Nothing is said here about sampling."""
        return self.max_tokens is self.temperature is self.top_p is self.seed is None and not self.stop


_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""What the name of a header may be."""


def read_settings(given: Mapping[str, Any]) -> Settings:
    """Settings whose names and types were checked."""
    settings = Settings(**given)
    stop = settings.stop or ()
    settings = replace(settings, stop=(stop,) if isinstance(stop, str) else stop)
    if settings.max_tokens is not None and settings.max_tokens < 0:
        raise UserError(
            f"max_tokens={settings.max_tokens} of connect is no number of tokens: leave it out for no limit"
        )
    for name in ("organization", "project", "location", "api_version"):
        value: str = getattr(settings, name) or ""  # also None, as a variable that is not set gives it
        if not value.isprintable():
            raise UserError(f"{name}={value!r} has to be a text of one line")
    try:
        dumps(dict(settings.extra))
    except CannotEncode as error:
        raise UserError(f"setting `extra` of connect cannot be sent: {error}") from None
    headers, query = _as_texts("headers", settings.headers), _as_texts("query", settings.query)
    for name, value in headers.items():
        if not _HEADER.fullmatch(name) or not value.isprintable():
            raise UserError(f"header {name!r} of connect cannot be sent: it holds what no header has, like a line end")
    return replace(settings, headers=headers, query=query)


def _as_texts(setting: str, values: Mapping[Any, Any]) -> dict[str, str]:
    """Numbers as they are written; what else is no text has no one spelling. A value is not quoted, it may be a key."""
    texts: dict[str, str] = {}
    for name, value in values.items():
        if not isinstance(name, str) or not (isinstance(value, str) or is_number(value)):
            kind = type(value if isinstance(name, str) else name).__name__
            raise UserError(f"{setting}={{{name!r}: …}} of connect has to hold texts, not {kind}: write it as one")
        texts[name] = str(value)
    return texts


def with_settings(request: Request, settings: Settings, model: str, wire: str, stream: bool) -> Request:
    """The request as this model is asked: what the request says itself comes first. `extra` of a client of another wire
    is left behind here, as the encoder would, so that the settings' own is not."""
    own = request.extra if request.wire in ("", wire) else cast("Mapping[str, Json]", {})
    asked = Request(  # not `replace`: it is asked for each request, and that takes three times as long
        request.messages,
        request.tools,
        request.choice,
        request.parallel,
        request.final,
        stream=request.stream and stream,
        reasoning=request.reasoning if request.reasoning is not None else settings.reasoning,
        cache=request.cache or bool(settings.cache),
        sampling=request.sampling if settings.samples_as_asked else _sampling(request.sampling, settings),
        extra={**settings.extra, **own} if settings.extra else own,
        model=model,
        wire=request.wire if request.wire == wire else "",
        taken=request.taken,
        pieces=request.pieces,
    )
    return relay_request(asked, request.verbatim, request.raw_wire) if isinstance(request, RelayRequest) else asked


def _sampling(asked: Sampling, settings: Settings) -> Sampling:
    return Sampling(
        max_tokens=asked.max_tokens if asked.max_tokens is not None else settings.max_tokens,
        temperature=asked.temperature if asked.temperature is not None else settings.temperature,
        top_p=asked.top_p if asked.top_p is not None else settings.top_p,
        stop=asked.stop or tuple(settings.stop),
        seed=asked.seed if asked.seed is not None else settings.seed,
    )
