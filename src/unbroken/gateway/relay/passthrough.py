"""Forwards OpenAI's other paths to a provider: embeddings, images, audio, and whatever else the operator lists.

Nothing is forwarded without a rule (`pass_rules`). The body is parsed to find the model and serialised again, so that
the provider reads exactly what was checked here. The provider is that of the alias in the body; if the body need not
name one, that of the first alias that the key may use. The address is the provider's own: only the path after its base
URL may be chosen. Nothing is retried. Token counts are forwarded too, or estimated.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from sys import maxsize
from urllib.parse import parse_qsl, urlencode

from aiohttp import ClientError, ClientResponse, ClientTimeout
from yarl import URL

from unbroken.asgi import Refused, Response, Scope
from unbroken.errors import InvalidRequest, StreamError, TimedOut, Unreachable
from unbroken.gateway.http.routes import (
    FORWARDED_HEADERS,
    read_body,
)
from unbroken.gateway.keys import GatewayKey
from unbroken.gateway.relay.references import (
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
from unbroken.gateway.upstreams.upstream import Upstream
from unbroken.messages import Json
from unbroken.models.http import HTTPModel
from unbroken.models.model import RESPONSE_LIMIT, ResponseLimit
from unbroken.models.sessions import open_session
from unbroken.wires import find_wire
from unbroken.wires.json_pieces import write_json
from unbroken.wires.jsontext import loads
from unbroken.wires.values import Object, as_dict, as_text

# Bodies of `multipart/form-data` are parsed strictly and written again: the provider gets what was checked here, not
# what another parser might find in the client's bytes.


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
    try:
        async with session.request(
            method,
            url,
            data=BytesIO(body) if body else None,
            headers={**await model.headers(), **headers},
            allow_redirects=False,
            timeout=limits,
            proxy=model.proxy,  # otherwise the provider would receive the credentials for the proxy
            proxy_headers=model.proxy_headers,
        ) as response:
            yield response
    except TimeoutError:
        raise TimedOut(f"provider `{name}` did not answer {method} {path} in time") from None
    except (ClientError, OSError) as error:
        raise Unreachable(f"provider `{name}` cannot be reached for {method} {path}: {type(error).__name__}") from None


MOST_PARTS = 1000

_BOUNDARY = re.compile(r'multipart/form-data\s*;\s*boundary=(?:"([^"\r\n]{1,70})"|([^\s;,"]{1,70}))\s*', re.IGNORECASE)
_DISPOSITION = re.compile(
    r'form-data\s*;\s*name="([^"\\\r\n]{1,200})"'
    r"(?:\s*;\s*(filename=\"[^\"\\\r\n]*\"))?(?:\s*;\s*(filename\*=[A-Za-z0-9'!#$&+.^_`|~%-]+))?\s*",
    re.IGNORECASE,
)
_CONTENT_TYPE = re.compile(r"[\x20-\x7e]{1,200}")


@dataclass(frozen=True, slots=True)
class FormPart:
    name: str
    data: bytes
    file: str = ""
    """The filename parameter as written; empty for a plain field."""
    content_type: str = ""


def read_form(content_type: str, data: bytes) -> tuple[FormPart, ...]:
    """Raises `InvalidRequest` for anything but plain fields and files."""
    found = _BOUNDARY.fullmatch(content_type)
    if found is None:
        raise InvalidRequest("the body's Content-Type has to be `multipart/form-data; boundary=…`")
    mark = b"--" + (found[1] or found[2]).encode("latin-1", "replace")
    pieces = (b"\r\n" + data).split(b"\r\n" + mark)
    if len(pieces) < 2 or pieces[0] or pieces[-1] not in (b"--", b"--\r\n"):
        raise InvalidRequest("the body is not a complete multipart form with the boundary of its Content-Type")
    if len(pieces) - 2 > MOST_PARTS:
        raise InvalidRequest(f"the form has more than {MOST_PARTS} parts")
    return tuple(map(_read_part, pieces[1:-1]))


def _read_part(piece: bytes) -> FormPart:
    head, blank, data = piece.partition(b"\r\n\r\n")
    if not blank or not head.startswith(b"\r\n"):
        raise InvalidRequest("a part of the form has no complete head")
    headers: dict[str, str] = {}
    for line in head[2:].split(b"\r\n"):
        name, colon, value = line.decode("utf-8", "replace").partition(":")
        if not colon or name.lower() in headers:
            raise InvalidRequest("a part of the form has a head that cannot be read")
        headers[name.lower()] = value.strip()
    found = _DISPOSITION.fullmatch(headers.get("content-disposition", ""))
    if found is None or "content-transfer-encoding" in headers:
        raise InvalidRequest('a part of the form is not described as `form-data; name="…"`, with or without a filename')
    content_type = headers.get("content-type", "")
    if content_type and not _CONTENT_TYPE.fullmatch(content_type):
        raise InvalidRequest("a part of the form has a Content-Type that cannot be read")
    return FormPart(found[1], data, "; ".join(filter(None, (found[2], found[3]))), content_type)


def write_form(parts: tuple[FormPart, ...]) -> tuple[str, bytes]:
    """The Content-Type and the body. The boundary is new and random, so no part can contain it."""
    boundary = f"unbroken-{secrets.token_hex(16)}"
    out: list[bytes] = []
    for part in parts:
        file = f"; {part.file}" if part.file else ""
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{part.name}"{file}\r\n'
        if part.content_type:
            head += f"Content-Type: {part.content_type}\r\n"
        out += (head.encode(), b"\r\n", part.data, b"\r\n")
    out.append(f"--{boundary}--\r\n".encode())
    return f"multipart/form-data; boundary={boundary}", b"".join(out)


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
    """A request as it goes to the provider."""

    alias: str
    model: HTTPModel
    data: bytes
    content_type: str
    references: tuple[Reference, ...]
    """The provider's ids in its body."""


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
    upstreams: Iterable[Upstream],
    key: GatewayKey | None,
    check: Callable[[int], None] | None = None,
) -> Passage:
    """Chooses the provider and the body that it gets."""
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
    upstream, http = _upstream(permit, asked, upstreams, key)
    model: Json = http.endpoint.model
    if form:
        parts = tuple(replace(part, data=str(model).encode()) if part.name == "model" else part for part in form)
        content_type, data = write_form(parts)
    elif kind:
        content_type, data = kind, write_json({**body, "model": model} if asked else body)
    return Passage(upstream.alias, http, data, content_type, tuple(references))


def other_model_refused(key: GatewayKey, field: str) -> Refused:
    return Refused(
        403,
        f"`{field}` can choose another model, and this key is limited to {', '.join(key.aliases)}: leave the field "
        "out, or use a key that is not limited to models",
    )


def _upstream(
    permit: Permit, asked: str, upstreams: Iterable[Upstream], key: GatewayKey | None
) -> tuple[Upstream, HTTPModel]:
    speaking = {
        each.alias: (each, each.http)
        for each in upstreams
        if each.http is not None
        and find_wire(each.wire).http.provider == "openai"
        and (key is None or key.allows(each.alias))
    }
    if not speaking:
        raise Refused(404, f"{permit.path[:200]} needs a provider of OpenAI's wires, and there is none here")
    aliases = ", ".join(speaking)
    if asked and asked not in speaking:
        raise Refused(404, f"there is no model {asked[:100]!r} here for {permit.path[:200]}; there are: {aliases}")
    if not asked and names_a_model(permit.rule):
        raise InvalidRequest(f"`model` is missing: {permit.path} needs one of {aliases}")
    return speaking[asked] if asked else next(iter(speaking.values()))


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
) -> None:
    """`read` gets the answer to a request that creates something, before the client does."""
    kept = {name: headers[name] for name in _KEPT if name in headers}
    if passage.content_type:
        kept["content-type"] = passage.content_type
    await forward(
        passage.model,
        permit.rule.method,
        permit.path.removeprefix("/v1"),
        passage.data,
        kept,
        response,
        permit.query,
        read if permit.makes else None,
    )


async def forward(
    model: HTTPModel,
    method: str,
    path: str,
    data: bytes,
    headers: Mapping[str, str],
    response: Response,
    query: str = "",
    read: Callable[[bytes], Awaitable[None]] | None = None,
) -> None:
    async with relayed(model, method, path, query, headers, data) as answer:
        await send_on(model, answer, response, read)


async def send_on(
    model: HTTPModel,
    answer: ClientResponse,
    response: Response,
    read: Callable[[bytes], Awaitable[None]] | None = None,
) -> None:
    """Sends the provider's answer to the client."""
    if 300 <= answer.status < 400 and answer.status != 304:
        raise Refused(502, "the provider sent a redirect, and redirects are not followed")
    if not 200 <= answer.status < 600:
        raise Refused(502, f"the provider answered {answer.status}, which is not a final status")
    limit = RESPONSE_LIMIT.get() or ResponseLimit(maxsize)
    if answer.content_length is not None and answer.content_length > limit.most:
        raise Refused(
            502, f"the provider's answer has {answer.content_length:,} bytes, an answer may have {limit.most:,}"
        )
    returned = {name: answer.headers[name] for name in _RETURNED if name in answer.headers}
    content_type = answer.headers.get("content-type", "application/json").encode("latin-1", "replace")
    most = _MOST_OF_AN_ERROR if read is None else _MOST_OF_A_RECEIPT
    begun = await _read_beginning(answer, most, passes_others=read is None)
    if answer.status >= 400 or _is_error(begun):  # providers quote keys in their errors
        shown = {name: model.masked(value) for name, value in returned.items()}
        await response.complete(answer.status, model.masked_body(begun), shown, content_type)
        return
    limit.take(len(begun))
    if read is not None:
        await read(begun)
    await response.begin(answer.status, content_type, returned, None)
    if begun:
        await response.send(begun)
    async for chunk in answer.content.iter_any():
        limit.take(len(chunk))
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
