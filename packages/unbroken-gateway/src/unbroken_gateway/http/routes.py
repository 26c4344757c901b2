"""The paths of the gateway, their wires, what a body must look like, and a client's request after its key is checked
and its body is read. Pure."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import cast
from urllib.parse import unquote

from unbroken.errors import InvalidRequest, TooDeep
from unbroken_gateway.settings import ClientProfile
from unbroken_gateway.turns.response_store import LastResponse
from unbroken_gateway.upstreams.upstream import Upstream
from unbroken_wires.messages import Assistant, Json, Message, Request, ToolMessage
from unbroken_wires.wires import DEFAULT_WIRE, WIRES, find_wire
from unbroken_wires.wires.content_parts import MEDIA_OF
from unbroken_wires.wires.http_api import HttpApi, StoredPath, Wanted
from unbroken_wires.wires.json_access import Object, as_dict, as_text, dicts
from unbroken_wires.wires.json_pieces import loads_in_pieces
from unbroken_wires.wires.jsontext import MAX_DEPTH, Damaged, NumberTooLong, loads_faithful, shallow, strict, too_deep

LONGEST_ID = 32 << 10
"""Maximum characters of a call's id. OpenAI allows 64; proxies that put a Gemini signature into it need thousands."""
FORWARDED_HEADERS = ("anthropic-beta", "anthropic-version", "openai-beta")
"""Client headers that are forwarded to a provider of the same wire."""


@dataclass(frozen=True, slots=True)
class Route:
    """What a path asks for. On some wires the path also names the model and whether to stream."""

    wire: str
    wanted: Wanted = "answer"
    model: str = ""
    streams: bool | None = None
    """None: the body decides."""

    @property
    def http(self) -> HttpApi:
        return find_wire(self.wire).http


@lru_cache(256)  # nearly all requests have one of a few paths
def find_route(path: str) -> Route | None:
    for name, wire in WIRES.items():
        if (operation := wire.http.find(path)) is not None:
            return Route(name, operation.wanted, unquote(operation.model), operation.stream)
    return None


def find_stored(path: str) -> tuple[str, StoredPath] | None:
    """The wire of a path that names a stored response, and that response."""
    for name, wire in WIRES.items():
        if (stored := wire.http.find_stored(path)) is not None:
            return name, stored
    return None


def error_wire(path: str) -> str:
    """The wire of the errors on this path."""
    return next((name for name, wire in WIRES.items() if path.startswith(wire.http.error_paths)), DEFAULT_WIRE)


def _is_strict(data: bytes) -> bool:
    try:
        strict.decode(data.decode("utf-8"))
    except ValueError:
        return False
    return True


def read_body(data: bytes, check: Callable[[int], None] | None = None) -> Object:
    """`check` is for a large body, which is parsed in pieces: it is called with the number of values so far."""
    try:
        if check is None and not shallow(data):
            raise too_deep()
        body: Json = loads_faithful(data) if check is None else loads_in_pieces(data, check)
    except TooDeep:
        raise InvalidRequest(f"the body is JSON nested deeper than {MAX_DEPTH} levels") from None
    except NumberTooLong as error:
        raise InvalidRequest(f"the body cannot be read: {error}; send it as a text") from None
    except Damaged:
        raise InvalidRequest("the body is not JSON") from None
    if check is None and (b"NaN" in data or b"Infinity" in data) and not _is_strict(data):
        raise InvalidRequest("the body is not JSON: NaN and Infinity are not JSON numbers")
    if not isinstance(body, dict):
        raise InvalidRequest("the body is not a JSON object")
    return cast("Object", body)


def read_request(route: Route, body: Object) -> Request:
    """The request as our own type."""
    request = find_wire(route.wire).decode_request(body)
    return request if route.streams is None else replace(request, stream=route.streams)


def check_ids(messages: Iterable[Message], size: int) -> None:
    """Raises `InvalidRequest` if the id of a call is too long. `size`: bytes of the request; most are too small to
    check."""
    if size <= LONGEST_ID:
        return
    for said in messages:
        calls = said.calls if isinstance(said, Assistant) else ()
        results = said.results if isinstance(said, ToolMessage) else ()
        longest = max([*(len(call.id) for call in calls), *(len(result.call_id) for result in results)], default=0)
        if longest > LONGEST_ID:
            raise InvalidRequest(f"the id of a call has {longest:,} characters: {LONGEST_ID:,} are allowed")


def check_supported(incoming: ClientRequest) -> None:
    """Refuses what no gateway can do for the client."""
    if reason := incoming.route.http.not_supported(incoming.body):
        raise InvalidRequest(reason)


def check_held(incoming: ClientRequest) -> None:
    """Refuses what another provider stores."""
    if incoming.upstream.wire != incoming.wire and (what := incoming.route.http.held_by_provider(incoming.body)):
        raise InvalidRequest(f"`{what}` is stored by a provider of {incoming.wire}, which this model does not use")


def check_body(route: Route, body: Object) -> None:
    """Raises `InvalidRequest` for a body that no provider of the wire accepts. A null in place of a list is taken out
    of the body: clients mean an empty list by it, and most providers refuse it."""
    http = route.http
    field = http.messages_field
    said = http.messages_of(body)
    if not isinstance(said, list):
        what = "is missing" if field not in body else "is not a list"
        raise InvalidRequest(f"`{field}` {what}: it holds the messages")
    items = cast("list[Object]", said)  # if the client is right
    if not items:
        raise InvalidRequest(f"`{field}` is empty: there is nothing to answer")
    _check_types(body, http.fields)
    types, parts_field = http.message_fields, http.parts_field
    for at, message in enumerate(items):
        if type(message) is not dict:
            raise InvalidRequest(f"`{field}[{at}]` is not an object")
        _check_types(message, types, field, at)
        parts = message.get(parts_field)
        if not parts and _says_nothing(http, message):
            way_out = f"write a text in its `{parts_field}`, or leave the message out"
            raise InvalidRequest(f"`{field}[{at}]` is a user message without content: {way_out}")
        if mistake := http.mistake_in(message):
            raise InvalidRequest(f"`{field}[{at}]` {mistake}")
        if isinstance(parts, list):
            _check_parts(http, cast("list[Json]", parts), f"{field}[{at}].{parts_field}")
    for at, tool in enumerate(cast("list[Json]", body.get("tools") or ())):
        if not isinstance(tool, dict):
            raise InvalidRequest(f"`tools[{at}]` is not an object")


_TYPE_NAMES = {
    bool: "true or false",
    list: "a list",
    int: "a whole number",
    float: "a number",
    dict: "an object",
    str: "a text",
}


def _check_types(fields: Object, types: Mapping[str, tuple[type, ...]], where: str = "", at: int = 0) -> None:
    """A field of another type would be dropped silently. `where` and `at` are the list that has this object, and its
    place there."""
    nulls = False
    for name, value in fields.items():
        allowed = types.get(name)
        if allowed is None or type(value) in allowed:
            continue
        if value is None:
            nulls = True
            continue
        names = [_TYPE_NAMES[each] for each in allowed if each is not int or float not in allowed]
        path = f"{where}[{at}].{name}" if where else name
        raise InvalidRequest(f"`{path}` is not {' or '.join(names)}")
    if nulls:
        for name in [name for name, value in fields.items() if value is None and list in types.get(name, ())]:
            if name != "content":  # beside calls it is null by right
                del fields[name]


def _says_nothing(http: HttpApi, message: Object) -> bool:
    return message.get("role") == "user" and message.get(http.parts_field) in http.refused_content


def _check_parts(http: HttpApi, parts: list[Json], where: str) -> None:
    for at, part in enumerate(parts):
        if isinstance(part, dict):
            _check_types(cast("Object", part), http.part_fields, where, at)
        elif not (http.takes_texts and isinstance(part, str)):
            raise InvalidRequest(f"`{where}[{at}]` is not an object")


def model_of(route: Route, body: Mapping[str, Json]) -> str:
    model = route.model or as_text(body.get("model"))
    if not model:
        raise InvalidRequest("`model` is missing: name one that GET /v1/models lists")
    return model.removeprefix("models/")


def most_tokens(body: Mapping[str, Json]) -> Json:
    """The token limit of the answer, as fields of Chat Completions."""
    return body.get("max_completion_tokens", body.get("max_tokens"))


def new_id(wire: str) -> str:
    return find_wire(wire).http.response_id + secrets.token_hex(12)


IDEMPOTENCY = ("idempotency-key", "x-idempotency-key")
RETRIES = "x-stainless-retry-count"
"""Sent with every request by the SDKs of OpenAI and Anthropic; "0" with the first attempt."""

_RETRY = re.compile("[1-9][0-9]{0,5}")


@dataclass(frozen=True, slots=True)
class Attempt:
    """What a request reveals about being one of several attempts."""

    client: str = ""
    """The client's address, if known."""
    key: str = ""
    """Its idempotency key."""
    retry: bool = False
    """Its SDK marks it as a retry."""
    counted: bool = False
    """Its SDK counts attempts, so a retry will be marked as one."""

    @property
    def first(self) -> bool:
        """Its SDK marks it as the first attempt."""
        return self.counted and not self.retry

    @property
    def name(self) -> str:
        """The same for all attempts of one client at the same request."""
        return f"key {self.key}" if self.key else f"client {self.client}"


def read_attempt(headers: Mapping[str, str], peer: str) -> Attempt:
    key = headers.get(IDEMPOTENCY[0]) or headers.get(IDEMPOTENCY[1]) or ""
    client = f"{headers.get('x-forwarded-for', peer)}\n{headers.get('user-agent', '')}"
    if RETRIES not in headers:
        return Attempt(client, key)
    count = headers[RETRIES].strip()
    retry = _RETRY.fullmatch(count) is not None
    return Attempt(client, key, retry, retry or count == "0")


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A request that was read and admitted, for a model that exists."""

    route: Route
    body: Object
    data: bytes
    """The same as bytes."""
    upstream: Upstream
    scope: str = ""
    """The caller: one key never finds answers that were given to another."""
    key: str = ""
    """The name of its gateway key."""
    client: str = ""
    """The program that sent it, for people."""
    serial: bool = False
    """The client's profile or the alias requires one call at a time."""
    all_calls: bool | None = None
    """The model may return several calls at once even so. None: unless the client itself asks for one."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Headers that are forwarded to the provider."""
    attempt: Attempt = field(default_factory=Attempt)
    """Whether it is a retry."""
    last_response: LastResponse | None = None
    """On a WebSocket: what its connection remembers."""
    hides_usage: bool = False
    """The gateway asked for the usage of a stream; its client did not, and does not get it."""

    @property
    def wire(self) -> str:
        return self.route.wire


def ends_in_result(incoming: ClientRequest) -> bool:
    """Does the client's last message bring a result? Text beside a result is not a new question. Neither are a result's
    images, which two wires can only carry in a separate message."""
    raw = incoming.body.get(incoming.route.http.messages_field)
    history = find_wire(incoming.wire).history
    for message in reversed(cast("list[Json]", raw) if isinstance(raw, list) else []):
        if as_dict(message).get("role") in ("system", "developer") or _brings_images(as_dict(message)):
            continue
        return any(piece.kind == "result" for piece in history.pieces(message))
    return False


_MEDIA = frozenset({"image_url", "input_image", "file", "input_file", "input_audio"})


def _brings_images(message: Object) -> bool:
    """A user message with nothing but media and the text by which our encoder links them to a result."""
    parts = dicts(message.get("content"))
    media = [part for part in parts if as_text(part.get("type")) in _MEDIA]
    texts = [as_text(part.get("text")) for part in parts if part.get("type") in ("text", "input_text")]
    if message.get("role") != "user" or not media or len(media) + len(texts) < len(parts):
        return False
    return all(not text.strip() or text.startswith(MEDIA_OF) for text in texts)


def find_profile(profiles: Iterable[ClientProfile], key: str, headers: Mapping[str, str]) -> ClientProfile | None:
    """The first profile that matches. `headers` have lower-case names."""
    return next((profile for profile in profiles if _fits(profile, key, headers)), None)


def _fits(profile: ClientProfile, key: str, headers: Mapping[str, str]) -> bool:
    if not (profile.key or profile.header or profile.user_agent):
        return False
    if profile.key and profile.key != key:
        return False
    if profile.user_agent and profile.user_agent.lower() not in headers.get("user-agent", "").lower():
        return False
    if not profile.header:
        return True
    name, _, value = (part.strip() for part in profile.header.partition(":"))
    found = headers.get(name.lower())
    return found is not None and (not value or found.strip().lower() == value.lower())
