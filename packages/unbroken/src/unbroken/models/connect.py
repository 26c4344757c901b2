"""`connect`: turns a name like `openai:gpt-5` and a few settings into a model. Mistakes in them are reported here, in
one line, before the first request."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast
from urllib.parse import quote

from yarl import URL

from unbroken.errors import CannotEncode, MissingKey, UserError
from unbroken.models import secrets
from unbroken.models.addresses import Endpoint, Key, Timeouts, basic, check_key, join, read_base
from unbroken.models.aws import HOSTS, AwsSigner, region_in
from unbroken.models.model import Model
from unbroken.models.providers import (
    KEY_HEADERS,
    RESPONSES,
    Provider,
    find_provider,
    with_wire,
)
from unbroken.models.raw_log import RawLog
from unbroken.models.relay import RelayRequest, relay_request
from unbroken.models.retrying import ATTEMPTS, SECONDS, RetryingModel
from unbroken_wires.messages import Effort, Json, Request, Sampling
from unbroken_wires.validation import checked, is_number
from unbroken_wires.wires import find_wire
from unbroken_wires.wires.jsontext import dumps
from unbroken_wires.wires.sse import MAX_ANSWER

if TYPE_CHECKING:
    from unbroken.models.http import HTTPModel


# The defaults of every request to a model: the settings of `connect`, checked once.


class ModelSettings(TypedDict, total=False):
    """The settings that `connect` accepts besides its own parameters; `Settings` describes them."""

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
    """`headers` and `query` are sent with each request; `extra` is merged into its body last, unchanged. All three may
    contain keys, so they are never shown."""

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
        """Whether no setting changes the body of a request."""
        return self.samples_as_asked and self.reasoning is None and not self.cache and not self.extra

    @property
    def samples_as_asked(self) -> bool:
        """Whether no sampling setting is given."""
        return self.max_tokens is self.temperature is self.top_p is self.seed is None and not self.stop


_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""The valid names of a header."""


def read_settings(given: Mapping[str, Any]) -> Settings:
    """Reads settings whose names and types were checked."""
    settings = Settings(**given)
    stop = settings.stop or ()
    settings = replace(settings, stop=(stop,) if isinstance(stop, str) else stop)
    if settings.max_tokens is not None and settings.max_tokens < 0:
        raise UserError(
            f"max_tokens={settings.max_tokens} of connect is not a number of tokens: leave it out for no limit"
        )
    for name in ("organization", "project", "location", "api_version"):
        value: str = getattr(settings, name) or ""  # also None, from a variable that is not set
        if not value.isprintable():
            raise UserError(f"{name}={value!r} has to be a string without line breaks")
    try:
        dumps(dict(settings.extra))
    except CannotEncode as error:
        raise UserError(f"setting `extra` of connect cannot be sent: {error}") from None
    headers, query = _as_texts("headers", settings.headers), _as_texts("query", settings.query)
    for name, value in headers.items():
        if not _HEADER.fullmatch(name) or not value.isprintable():
            raise UserError(
                f"header {name!r} of connect cannot be sent: it has characters that no header has, like a line end"
            )
    return replace(settings, headers=headers, query=query)


def _as_texts(setting: str, values: Mapping[Any, Any]) -> dict[str, str]:
    """Numbers become text; other types have no obvious spelling. A value is never quoted, it may be a key."""
    texts: dict[str, str] = {}
    for name, value in values.items():
        if not isinstance(name, str) or not (isinstance(value, str) or is_number(value)):
            kind = type(value if isinstance(name, str) else name).__name__
            raise UserError(f"{setting}={{{name!r}: …}} of connect has to hold texts, not {kind}: write it as one")
        texts[name] = str(value)
    return texts


def with_settings(request: Request, settings: Settings, model: str, wire: str, stream: bool) -> Request:
    """The request with the settings as defaults: its own values come first. `extra` from a client of another wire is
    dropped here, as the encoder would do, so that the settings' own `extra` is used."""
    own = request.extra if request.wire in ("", wire) else cast("Mapping[str, Json]", {})
    asked = Request(  # not `replace`: this runs for each request, and `replace` takes three times as long
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
        managed=request.managed,
        server_tools=request.server_tools,
        pieces=request.pieces,
        output=request.output,
        appended=request.appended,
    )
    if not isinstance(request, RelayRequest):
        return asked
    return relay_request(asked, request.verbatim, request.raw_wire, request.headers)


def _sampling(asked: Sampling, settings: Settings) -> Sampling:
    return Sampling(
        max_tokens=asked.max_tokens if asked.max_tokens is not None else settings.max_tokens,
        temperature=asked.temperature if asked.temperature is not None else settings.temperature,
        top_p=asked.top_p if asked.top_p is not None else settings.top_p,
        stop=asked.stop or tuple(settings.stop),
        seed=asked.seed if asked.seed is not None else settings.seed,
    )


@checked(unknown="put a field of the provider's own into extra={…}")
def connect(
    model: str,
    *,
    base_url: str | None = None,
    api_key: Key = None,
    wire: str | None = None,
    stream: bool = True,
    connect_timeout: float | None = 10,
    first_byte: float | None = 120,
    idle: float | None = 60,
    total: float | None = None,
    attempts: int = ATTEMPTS,
    seconds: float | None = SECONDS,
    fallback: Sequence[Model | str] = (),
    stream_with_tools: bool | None = None,
    recover: bool | None = None,
    raw_log: str | os.PathLike[str] | None = None,
    max_answer: int = MAX_ANSWER,
    **settings: Unpack[ModelSettings],
) -> RetryingModel[HTTPModel]:
    """A model by provider and name: `connect("openai:gpt-5")`, `connect("ollama:qwen3:4b")`.

    `base_url` is another server that speaks the provider's wire; `openai:` and `compatible:` then speak openai-chat,
    which such servers do. `wire` picks another of the provider's wires. `api_key` is a key, or a function (plain or
    async) that returns one for each request; without it the provider's variable is read. Time-outs are in seconds; None
    waits for ever. A response that fails or breaks is retried: `attempts`, `seconds` and `fallback` (models, or their
    names) are those of `RetryingModel`; `attempts=1` asks once. `stream_with_tools=False` does not stream requests with
    tools; `recover` chooses whether calls that leaked into the text are found (on openai-chat), in place of the
    provider profile. `raw_log` is a file to which requests and responses are appended unchanged, without secrets;
    `unbroken decode` reads it. An answer with more than `max_answer` characters of text, reasoning and calls, over all
    its attempts, is a `TooLarge` error. `settings` are temperature, top_p, max_tokens, stop, seed, reasoning (an
    effort), cache, headers, query, extra (merged into each body), organization, project, location, api_version; a
    request's own values come first.
    """
    from unbroken.models.http import HTTPModel  # noqa: PLC0415 - start-up time: it loads aiohttp

    name, _, model_name = str(model).partition(":")
    if not model_name or name in ("http", "https"):
        raise UserError(
            f"`{model}` does not name a model: write provider:model, for example openai:gpt-5, "
            f"or compatible:MODEL with base_url= for any OpenAI-compatible server"
        )
    if base_url == "":
        raise UserError("base_url is empty: give an address, or leave it out for the provider's own")
    known = read_settings(settings)
    provider = find_provider(name)
    given = base_url or _from_environment(provider.base_url_variables)
    own_server = bool(given and provider.base_url)
    if given and provider.elsewhere:
        provider = replace(find_provider(provider.elsewhere), name=provider.name, keys=provider.keys)
    if wire is not None:
        provider = _on_wire(provider, find_wire(wire).name, bool(given))
    elif provider.needs_responses(model_name) and not _version(provider, known):
        provider = with_wire(provider, RESPONSES)
    provider = replace(provider, base_url=given or _filled(provider, known))
    base = read_base(provider.base_url, provider.name, provider.port)
    header, prefix = KEY_HEADERS[provider.key_header or find_wire(provider.wire).http.key_header]
    if header == "Authorization" and base.raw_user:
        key = _no_key(provider, api_key)
    else:
        key = api_key if callable(api_key) else _find_key(provider, api_key, optional=own_server)
    timeouts = Timeouts(connect_timeout, first_byte, idle, total)
    endpoint = replace(_endpoint(provider, base, name, model_name, known), key_header=header, key_prefix=prefix)
    if provider.signing and key is None and (not own_server or (base.host or "").endswith(HOSTS)):
        endpoint = replace(endpoint, signer=AwsSigner(provider.name, _region(provider, base, known)))
    if stream_with_tools is not None:
        endpoint = replace(endpoint, quirks=replace(endpoint.quirks, stream_with_tools=stream_with_tools))
    if recover is not None:
        endpoint = replace(endpoint, quirks=replace(endpoint.quirks, prose=recover))
    log = None if raw_log is None else RawLog(raw_log)
    if max_answer < 1:
        raise UserError(f"max_answer={max_answer} of connect: it is a number of characters, from 1")
    http = HTTPModel(
        endpoint, key, stream=stream, timeouts=timeouts, settings=known, raw_log=log, max_answer=max_answer
    )
    others = [
        connect(other, raw_log=raw_log, max_answer=max_answer) if isinstance(other, str) else other
        for other in fallback
    ]
    return RetryingModel(http, attempts, seconds, fallback=others)


def connect_later(model: str) -> RetryingModel[HTTPModel]:
    """A model by its name, for an agent that is built before its key is there, in a test for example. Each request
    looks for the key again, and raises `MissingKey` if there is none. Other mistakes are raised at once."""
    try:
        return connect(model)
    except MissingKey:
        provider = find_provider(model.partition(":")[0])
        return connect(model, api_key=lambda: _find_key(provider, None, optional=False) or "")


def _on_wire(provider: Provider, wire: str, elsewhere: bool) -> Provider:
    if wire == provider.wire:
        return provider
    if wire not in provider.other_wires and not elsewhere:
        spoken = ", ".join([provider.wire, *provider.other_wires])
        raise UserError(
            f"provider `{provider.name}` does not speak {wire}: it speaks {spoken}; "
            f"a server of your own that does needs base_url="
        )
    return with_wire(provider, wire)


def _filled(provider: Provider, settings: Settings) -> str:
    """The provider's base URL, with the parts filled in that only the user knows."""
    if not provider.base_url:
        variables = " or ".join(provider.base_url_variables)
        way_out = f"pass base_url=… or set {variables}" if variables else "pass base_url=…"
        raise UserError(f"provider `{provider.name}` has no address of its own: {way_out}")
    values: dict[str, str] = {}
    for part, variables in provider.parts.items():
        values[part] = getattr(settings, part) or _from_environment(variables)
        if not values[part]:
            raise UserError(f"provider `{provider.name}` needs its {part}: pass {part}=… or set {variables[0]}")
    # Google's global endpoint has no region in its host.
    return provider.base_url.format_map(values).replace("://global-", "://") if provider.parts else provider.base_url


def _region(provider: Provider, base: URL, settings: Settings) -> str:
    """Of the host, which may be that of a private endpoint; else the one that the user names."""
    found = region_in(base.host or "") or settings.location or _from_environment(provider.parts.get("location", ()))
    if not found:
        raise UserError(f"provider `{provider.name}` needs its region: pass location=…")
    return found


def _find_key(provider: Provider, key: str | None, optional: bool) -> str | None:
    found = check_key(_from_environment(provider.keys) if key in (None, "") else key, provider.name)
    if not found and provider.needs_key and not optional:
        variables = f"set {' or '.join(provider.keys)} or " if provider.keys else ""
        raise MissingKey(f"provider `{provider.name}` needs a key: {variables}pass api_key=…")
    return found or None


def _no_key(provider: Provider, key: Key) -> None:
    """The user and password of the base URL take the place of a key. A key from the environment is not used then."""
    if key:
        raise UserError(
            f"base_url of provider `{provider.name}` has a user, and there is an api_key: "
            f"both would be the header Authorization, give one of them"
        )


def _endpoint(provider: Provider, base: URL, name: str, model: str, settings: Settings) -> Endpoint:
    http = find_wire(provider.wire).http
    version = _version(provider, settings)
    dated = bool(version and provider.dated_path)
    path = provider.dated_path if dated else provider.path or provider.prefix + http.path
    query = {"api-version": version} if dated else {}
    headers = dict(http.headers)
    if authorization := basic(base):
        headers["Authorization"] = authorization
    if settings.organization:
        headers["OpenAI-Organization"] = settings.organization
    if settings.project and "project" not in provider.parts:
        headers["OpenAI-Project"] = settings.project

    def address(method: str, query: Mapping[str, str]) -> URL:
        spelled = quote(model.removeprefix("models/"), safe=http.safe_in_model)
        return join(base, path.format(model=spelled, method=method)).update_query({**query, **settings.query})

    stream_query = dict(http.stream_query) if "{method}" in path else dict[str, str]()
    method, stream_method = provider.methods or http.methods
    return Endpoint(
        provider=name,
        model=model,
        wire=provider.wire,
        stream_url=address(stream_method, {**stream_query, **query}),
        whole_url=address(method, query),
        key_variable=provider.keys[0] if provider.keys else "",
        headers=tuple(headers.items()),
        quirks=provider.quirks,
        vendor=provider.name,
        secrets=secrets.collect(
            [
                *secrets.in_address(base),
                *secrets.in_address(URL.build(query=settings.query)),
                *secrets.in_headers(settings.headers),
            ]
        ),
    )


def _version(provider: Provider, settings: Settings) -> str:
    return settings.api_version or _from_environment(provider.version_variables)


def _from_environment(variables: tuple[str, ...]) -> str:
    return next((value for variable in variables if (value := os.environ.get(variable, "").strip())), "")
