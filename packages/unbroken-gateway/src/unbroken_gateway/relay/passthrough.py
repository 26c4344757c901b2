"""Forwards OpenAI's other paths to a provider: embeddings, images, audio, and whatever else the operator lists.

Nothing is forwarded without a rule (`pass_rules`). The body is parsed to find the model and serialised again, so that
the provider reads exactly what was checked here. The provider is that of the alias in the body; if the body need not
name one, that of the first alias that the key may use. The address is the provider's own: only the path after its base
URL may be chosen. If the alias has several deployments and the request leaves nothing behind, another one is asked if
one does not answer; nothing is sent to the same one twice. Token counts are forwarded too, or estimated.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from sys import maxsize
from urllib.parse import parse_qsl, urlencode

from aiohttp import ClientError, ClientResponse, ClientTimeout
from yarl import URL

from unbroken.asgi import Refused, Response, Scope
from unbroken.clock import RealClock
from unbroken.errors import InvalidRequest, ProviderError, StreamError, TimedOut, Unreachable
from unbroken.models.http import HTTPModel
from unbroken.models.model import RESPONSE_HEAD, RESPONSE_LIMIT, ResponseHead, ResponseLimit
from unbroken.models.sessions import open_session
from unbroken_gateway.http.client_response import FAILED, passed_on
from unbroken_gateway.http.routes import (
    FORWARDED_HEADERS,
    read_body,
)
from unbroken_gateway.keys import GatewayKey
from unbroken_gateway.relay.forms import FormPart, read_form, write_form
from unbroken_gateway.relay.references import (
    PassRule,
    Reference,
    find_rule,
    ids_in,
    is_model_field,
    names_a_model,
    other_models,
    provider_id,
    provider_references,
    read_path,
)
from unbroken_gateway.upstreams.catalog import Catalog
from unbroken_gateway.upstreams.upstream import Upstream
from unbroken_wires.decoding.verdict import judge_failure
from unbroken_wires.wires import find_wire
from unbroken_wires.wires.json_access import Object, as_dict, as_text
from unbroken_wires.wires.json_pieces import write_json
from unbroken_wires.wires.jsontext import loads


def base_of(model: HTTPModel) -> URL:
    """The base URL that the paths of its wire are added to."""
    endpoint = model.endpoint
    path = find_wire(endpoint.wire).http.path.partition("{")[0]
    whole = endpoint.whole_url.with_query(None)
    return whole.with_path(whole.path[: whole.path.rindex(path)] or "/", encoded=False)


@asynccontextmanager
async def relayed(
    model: HTTPModel, method: str, path: str, query: str, headers: Mapping[str, str], body: bytes
) -> AsyncGenerator[ClientResponse]:
    """The provider's response, its body not read yet. Redirects are not followed: the key would go there too."""
    base = base_of(model)
    url = base.with_path(base.path.rstrip("/") + path)
    if query:
        url = URL(f"{url}?{query}", encoded=True)
    session = await open_session()
    timeouts = model.timeouts
    limits = ClientTimeout(total=timeouts.total, sock_connect=timeouts.connect, sock_read=timeouts.first_byte)
    name = model.endpoint.provider
    with _Observed(model) as observed:
        try:
            async with session.request(
                method,
                url,
                data=BytesIO(body) if body else None,
                headers={**await model.headers(), **headers, **observed.carried},
                allow_redirects=False,
                timeout=limits,
                proxy=model.proxy,  # otherwise the provider would receive the credentials for the proxy
                proxy_headers=model.proxy_headers,
            ) as response:
                observed.answered(response)
                yield response
        except TimeoutError:
            raise TimedOut(f"provider `{name}` did not answer {method} {path} in time") from None
        except (ClientError, OSError) as error:
            kind = type(error).__name__
            raise Unreachable(f"provider `{name}` cannot be reached for {method} {path}: {kind}") from None


class _Observed:
    """Reports a request to its deployment, and the head of its answer to the client's response."""

    def __init__(self, model: HTTPModel) -> None:
        self._model = model
        self._clock = RealClock()
        self._began = 0.0
        self._status = 0
        self._head = RESPONSE_HEAD.get()
        self.carried: Mapping[str, str] = {}
        """Headers of its trace."""

    def __enter__(self) -> _Observed:
        if self._head is not None:
            self._head.asked = self._model.name
        if self._head is not None and self._head.attempts is not None:
            self.carried = self._head.attempts.begin(self._model) or {}
        if self._model.observer is not None:
            self._began = self._clock.elapsed()
            self._model.observer.asked()
        return self

    def answered(self, answer: ClientResponse) -> None:
        self._status = answer.status
        if self._head is not None:
            self._head.upstream, self._head.headers = self._model.label or self._model.name, answer.headers
            self._head.asked = "" if answer.status >= 300 else self._model.name
        if (observer := self._model.observer) is not None:
            observer.answered(self._clock.elapsed() - self._began)
            if answer.status >= 400:
                observer.failed(self._model.failure(answer.status, answer.headers))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object) -> None:
        if self._head is not None and isinstance(error, ProviderError):
            self._head.asked = ""
        if self._head is not None and self._head.attempts is not None:
            self._head.attempts.answered(self._status, type(error).__name__ if error is not None else "")
        if (observer := self._model.observer) is None:
            return
        if isinstance(error, ProviderError):
            observer.failed(error if not self._status else None)
        elif error is None and 0 < self._status < 400:
            observer.succeeded()
        observer.ended()


_KEPT = ("accept", *FORWARDED_HEADERS)
_MOST_OF_AN_ERROR = 64 * 1024
_MOST_OF_A_RECEIPT = 1 << 20
"""Maximum bytes of the answer to a request that creates something: the answer contains its id."""
_RETURNED = ("content-disposition", "retry-after")


@dataclass(frozen=True, slots=True)
class Permit:
    """A request that a rule allows."""

    rule: PassRule
    segments: tuple[str, ...]
    query: str
    """Without the client's key."""
    references: tuple[Reference, ...]
    """The provider's ids in its path and query."""

    @property
    def path(self) -> str:
        return "/" + "/".join(self.segments)

    @property
    def makes(self) -> bool:
        """Whether the request may create something at the provider."""
        return self.rule.method != "GET" and not names_a_model(self.rule)


@dataclass(frozen=True, slots=True)
class Passage:
    """A request as it goes to a provider."""

    alias: str
    models: tuple[HTTPModel, ...]
    """The one that is asked first, and those that may answer in its place."""
    references: tuple[Reference, ...]
    """The provider's ids in its body."""
    kind: str
    """The content type, without parameters; empty if there is no body."""
    body: Object
    form: tuple[FormPart, ...]
    names_model: bool

    def write(self, model: HTTPModel) -> tuple[str, bytes]:
        """The Content-Type and the body for this model."""
        name = model.endpoint.model
        if self.form:
            return write_form(
                tuple(replace(part, data=name.encode()) if part.name == "model" else part for part in self.form)
            )
        if not self.kind:
            return "", b""
        return self.kind, write_json({**self.body, "model": name} if self.names_model else self.body)

    def data(self) -> bytes:
        """The body for the first model."""
        return self.write(self.models[0])[1]


def rules_of(key: GatewayKey | None, rules: Sequence[PassRule]) -> Sequence[PassRule]:
    """`rules`: the list in the configuration, for everybody. A key that is limited to models gets only the rules for
    paths that name a model; it needs its own list for anything else."""
    if key is None:
        return rules
    if key.passes is not None:
        return key.passes
    return [rule for rule in rules if names_a_model(rule)] if key.aliases else rules


def permit(scope: Scope, key: GatewayKey | None, rules: Sequence[PassRule]) -> Permit:
    """Raises `Refused` if no rule allows the request, before its body is read."""
    method, path = scope["method"], scope["path"]
    raw: bytes = scope.get("raw_path") or path.encode()
    segments = read_path(raw.partition(b"?")[0])
    if segments is None or f"/{'/'.join(segments)}" != path:
        raise Refused(
            400,
            f"{path[:200]!r} cannot be passed through: write the path without empty segments, dots, escaped slashes "
            "or parameters",
        )
    rule = find_rule(rules_of(key, rules), method, segments)
    if rule is None:
        who = "this gateway does not pass" if key is None else "this key may not pass"
        if key is not None and key.passes is not None:
            way_out = "this key has its own list: its operator can revoke it and create it again with --pass"
        else:
            way_out = "its operator can list it, under `paths` in [passing] or with `unbroken keys create --pass`"
        raise Refused(403, f"{who} {method[:20]} {path[:200]} through to a provider: {way_out}")
    asked = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
    if any(is_model_field(name) for name, _ in asked):
        raise Refused(400, f"{path[:200]}: name the model in the body, not in the query")
    named = [*(("path", id) for id in rule.ids(segments)), *((n, id) for n, v in asked if (id := provider_id(v)))]
    # Some clients send their key in the query; the provider must not get it.
    query = urlencode([(name, value) for name, value in asked if name != "key"])
    return Permit(rule, segments, query, tuple(named))


def choose(
    permit: Permit,
    headers: Mapping[str, str],
    data: bytes,
    catalog: Catalog,
    key: GatewayKey | None,
    check: Callable[[int], None] | None = None,
) -> tuple[Passage, Upstream]:
    """Reads the body, and chooses the provider. If its alias has several deployments, the request may be sent to any of
    them, unless it creates or uses something at the provider."""
    content_type = headers.get("content-type", "") if data else ""
    kind = content_type.partition(";")[0].strip().lower()
    if kind != "multipart/form-data" and data.lstrip()[:1] == b"{":
        kind = "application/json"  # whatever the Content-Type: `curl -d` always sends that of a form
    body: Object = {}
    form: tuple[FormPart, ...] = ()
    if kind == "application/json":
        body = read_body(data, check)
        asked = as_text(body.get("model"))
        references = [*(provider_references(body) if names_a_model(permit.rule) else ids_in(body))]
        chosen = [*other_models(body)]
    elif kind == "multipart/form-data":
        form = read_form(content_type, data)
        asked = _model_in(form)
        references = [(part.name, id) for part in form if (id := provider_id(_text(part)))]
        chosen = [part.name for part in form if part.name != "model" and is_model_field(part.name)]
    elif data:
        raise Refused(415, f"{permit.path[:200]}: the body has to be application/json or multipart/form-data")
    else:
        asked, references, chosen = "", list[Reference](), list[str]()
    if key is not None and key.aliases and chosen:
        raise other_model_refused(key, chosen[0])
    upstream = _upstream(permit, asked, catalog, key)
    refuse_guarded(upstream)
    spreads = names_a_model(permit.rule) and not references and not permit.references
    models = speaking(upstream, in_turn=spreads)
    passage = Passage(
        upstream.counted_as,
        models if spreads else models[:1],
        tuple(references),
        kind,
        body,
        form,
        bool(asked),
    )
    return passage, upstream


def refuse_guarded(upstream: Upstream) -> None:
    if upstream.guards is not None:
        raise Refused(
            403, f"the model `{upstream.alias}` has guardrails, which do not see what is passed through at this path"
        )


def speaking(upstream: Upstream, in_turn: bool = False) -> tuple[HTTPModel, ...]:
    """Its models that have OpenAI's paths. `in_turn`: in the order in which its deployments should be asked now."""
    if upstream.pool is None:
        models = (upstream.http,)
    else:
        deployments = upstream.pool.order(b"") if in_turn else upstream.pool.deployments
        models = tuple(each.model.model for each in deployments)
    return tuple(each for each in models if each is not None and find_wire(each.wire).http.provider == "openai")


def at_holder(passage: Passage, upstream: Upstream, holder: str) -> Passage:
    """The same request for the deployment with this name, which holds what the request uses."""
    found = [each for each in speaking(upstream) if each.label == holder]
    return replace(passage, models=(found[0],)) if found else passage


def other_model_refused(key: GatewayKey, field: str) -> Refused:
    return Refused(
        403,
        f"`{field}` can choose another model, and this key is limited to {', '.join(key.aliases)}: leave the field "
        "out, or use a key that is not limited to models",
    )


def _upstream(permit: Permit, asked: str, catalog: Catalog, key: GatewayKey | None) -> Upstream:
    if asked and (named := catalog.look_up(asked, key)) is not None and speaking(named):
        return named
    others = {
        each.alias: each
        for each in catalog.upstreams.values()
        if (key is None or key.allows(each.alias)) and speaking(each)
    }
    if not others:
        raise Refused(404, f"{permit.path[:200]} needs a provider of OpenAI's wires, and there is none here")
    aliases = ", ".join(others)
    if asked:
        raise Refused(404, f"there is no model {asked[:100]!r} here for {permit.path[:200]}; there are: {aliases}")
    if names_a_model(permit.rule):
        raise InvalidRequest(f"`model` is missing: {permit.path} needs one of {aliases}")
    return next(iter(others.values()))


def _model_in(form: tuple[FormPart, ...]) -> str:
    named = [part for part in form if part.name == "model"]
    if len(named) > 1 or any(part.file for part in named):
        raise InvalidRequest("the form names its model more than once, or in a file")
    return _text(named[0]).strip() if named else ""


def _text(part: FormPart) -> str:
    return "" if part.file or len(part.data) > 1000 else part.data.decode("utf-8", "replace")


async def pass_through(
    permit: Permit,
    passage: Passage,
    headers: Mapping[str, str],
    response: Response,
    read: Callable[[bytes], Awaitable[None]] | None = None,
    seen: Callable[[bytes], None] | None = None,
) -> list[str]:
    """Returns the kinds of the attempts that failed before the one that was passed on. `read` gets the answer to a
    request that creates something, before the client does; `seen` gets all bytes of an answer."""
    kept = {name: headers[name] for name in _KEPT if name in headers}
    method, path = permit.rule.method, permit.path.removeprefix("/v1")
    failed: list[str] = []
    for model in passage.models:
        is_last = model is passage.models[-1]
        content_type, data = passage.write(model)
        if content_type:
            kept["content-type"] = content_type
        try:
            async with relayed(model, method, path, permit.query, kept, data) as answer:
                if is_last or not (kind := failed_by(answer.status)):
                    await send_on(model, answer, response, read if permit.makes else None, failed, seen)
                    return failed
        except ProviderError as error:
            if is_last or response.status:
                raise
            kind = judge_failure(error).kind
        failed.append(kind)
    return failed


async def send_on(
    model: HTTPModel,
    answer: ClientResponse,
    response: Response,
    read: Callable[[bytes], Awaitable[None]] | None = None,
    failed: Sequence[str] = (),
    seen: Callable[[bytes], None] | None = None,
) -> None:
    """Sends the provider's answer to the client. `failed`: the kinds of the attempts before it."""
    if 300 <= answer.status < 400 and answer.status != 304:
        raise Refused(502, "the provider sent a redirect, and redirects are not followed")
    if not 200 <= answer.status < 600:
        raise Refused(502, f"the provider answered {answer.status}, which is not a final status")
    limit = RESPONSE_LIMIT.get() or ResponseLimit(maxsize)
    if answer.content_length is not None and answer.content_length > limit.most:
        raise Refused(
            502, f"the provider's answer has {answer.content_length:,} bytes, an answer may have {limit.most:,}"
        )
    returned = passed_on(RESPONSE_HEAD.get() or ResponseHead())
    returned |= {name: answer.headers[name] for name in _RETURNED if name in answer.headers}
    if failed:
        returned[FAILED] = ", ".join(failed[:10])
    content_type = answer.headers.get("content-type", "application/json").encode("latin-1", "replace")
    most = _MOST_OF_AN_ERROR if read is None else _MOST_OF_A_RECEIPT
    begun = await _read_beginning(answer, most, passes_others=read is None)
    if answer.status >= 400 or _is_error(begun):  # providers quote keys in their errors
        shown = {name: model.masked(value) for name, value in returned.items()}
        await response.complete(answer.status, model.masked_body(begun), shown, content_type)
        return
    if seen is not None:
        seen(begun)
        if (head := RESPONSE_HEAD.get()) is not None:
            head.model = model.name
    limit.take(len(begun))
    if read is not None:
        await read(begun)
    await response.begin(answer.status, content_type, returned, None)
    if begun:
        await response.send(begun)
    async for chunk in answer.content.iter_any():
        limit.take(len(chunk))
        if seen is not None:
            seen(chunk)
        await response.send(chunk)
    await response.send(b"", more=False)


async def _read_beginning(answer: ClientResponse, most: int, passes_others: bool) -> bytes:
    """Reads enough of a body to know whether it is an error. `passes_others`: return at once if it is not an object,
    and so not an error."""
    begun = b""
    while len(begun) < most and (part := await answer.content.readany()):
        begun += part
        if passes_others and answer.status < 400 and begun.lstrip()[:1] not in (b"", b"{"):
            break
    return begun


def _is_error(body: bytes) -> bool:
    """Is it an error that came with a success status?"""
    if b'"error"' not in body:
        return False
    try:
        return bool(as_dict(loads(body)).get("error"))
    except StreamError:
        return False


def failed_by(status: int) -> str:
    """The kind of failure, if the provider caused it and not the client's request."""
    return "limited" if status == 429 else "refused" if status in (401, 403) else "unavailable" if status >= 500 else ""
