"""What a request refers to besides its model: further models, and things that the provider holds under an id (files,
conversations, containers, caches). `ProviderIds` keeps which gateway key may use which of these.

A gateway with keys checks both: every gateway key uses the same key of the provider, so the provider cannot tell their
users apart. An id belongs to the gateway key that got it in an answer. The gateway's store keeps this, so replicas and
restarts know it too.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast
from urllib.parse import unquote, unquote_to_bytes

from unbroken.asgi import Refused
from unbroken.errors import StreamError, UserError
from unbroken.models.model import ResponseHead
from unbroken_gateway.stores import Store, StoreUnavailable
from unbroken_gateway.turns.turn import item_key, owned_key, response_key
from unbroken_wires.messages import Json
from unbroken_wires.wires import find_wire
from unbroken_wires.wires.http_api import NOT_FOUND
from unbroken_wires.wires.json_access import Object, as_dict, as_list, as_text
from unbroken_wires.wires.jsontext import loads

log = logging.getLogger("unbroken.gateway")

Reference: TypeAlias = tuple[str, str]
"""The place in the body, and the name or id."""

_MODEL_NAMES = frozenset(
    {
        "azure_endpoint",
        "backend",
        "engine",
        "engine_id",
        "inference_profile",
        "litellm_params",
        "plugins",
        "preset",
        "route",
    }
    | {"router", "upstream"}
)
"""OpenRouter: `route`, `preset` and `plugins` (its auto router) choose among models."""
_MODEL_WORDS = frozenset({"adapter", "adapters", "agent", "agents", "lora", "loras"})
_MODEL_PARTS = ("model", "deployment", "fallback", "baseurl", "apibase", "apikey")
"""As part of any field name, in any spelling: `draft_model`, `modelId`, `api-base`, `baseURL`. With `api_base`, LiteLLM
sends the provider's key to another server."""
_MODEL_SETTINGS = frozenset({"additionalModelRequestFields", "additionalModelResponseFieldPaths"})
"""Bedrock: settings for the model that is already chosen."""
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
_SAID = frozenset(
    {"messages", "input", "contents", "system", "instructions", "systemInstruction", "system_instruction"}
)
"""Fields with conversation content: no provider reads settings from them."""
_DATA = frozenset(
    {
        "metadata",
        "parameters",
        "parametersJsonSchema",
        "input_schema",
        "json_schema",
        "schema",
        "responseSchema",
        "responseJsonSchema",
        "response_schema",
        "args",
        "arguments",
        "response",
        "json",
    }
)
"""Schemas, arguments and results: names in them are the tools'. Bedrock: `json`, of a schema or a result."""
_FREE = _DATA | {"labels", "variables", "chat_template_kwargs", "properties", "$defs", "definitions"}
"""Fields whose names the client chooses: no provider reads a model from them."""
_NOTES = frozenset({"metadata", "labels", "chat_template_kwargs"})
_SPREAD = frozenset({"extra_body", "provider"})
"""Objects whose fields become fields of the request."""
_TOOL_USE = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
_ECHOED = ("citation", "_output", "_result", "file_path")
"""Types of model output: it mentions a file without using it."""
_PROVIDER_FILE = re.compile(
    r"(?:https?://[^/]*googleapis\.com\.?(?::\d*)?/.*|/?(?:v1\w*/)?)files/.+|(?:gs|s3)://.+", re.IGNORECASE | re.DOTALL
)
_ADDRESSES = ("fileUri", "file_uri", "url", "image_url", "file_url", "video_url", "file_data", "data")
"""Of a file; the last two may have one in the place of its bytes. Between two wires one becomes another: `image_url` is
`fileUri` for a model of Gemini."""

_USES = frozenset(
    {"file_id", "file_ids", "vector_store_ids", "container", "container_id", "skill_id", "audio"}
    | {"s3Location", "guardrailIdentifier", *_ADDRESSES}
)
"""Names of fields by which a request uses something that the provider holds."""

PROVIDER_ID = re.compile(
    r"(?:asst|audio|batch|cfile|chatcmpl|cntr|container|conv|eval|evalrun|fc|file|ftckpt|ftjob|msg|msgbatch|pmpt|resp|rs|"
    r"run|skill|step|thread|upload|video|vs|vsfb)[-_][A-Za-z0-9_-]{6,200}"
)
"""How OpenAI and Anthropic spell the ids of stored things."""
_GIVEN = re.compile(rb'"(?:id|file_id|container_id)"\s*:\s*"' + PROVIDER_ID.pattern.encode())


def provider_id(text: str) -> str:
    """The id in this text, without surrounding blanks, which a provider may ignore; empty if it is not an id."""
    id = text.strip()
    return id if PROVIDER_ID.fullmatch(id) else ""


def other_models(body: Mapping[str, Json]) -> Iterator[str]:
    """The fields that could choose another model, or another server, than `model` does."""
    for where, node in objects({name: value for name, value in body.items() if name not in _SAID}, _FREE):
        for name, value in node.items():
            if not value or (not where and name == "model"):
                continue
            if is_model_field(name) or (not where and _sets_headers(name)):
                yield f"{where}{name}"
            elif not where and name in _SPREAD and isinstance(value, dict):
                yield from (f"{name}.{each}" for each in _chosen_in(cast("Object", value)))


def _chosen_in(fields: Object) -> Iterator[str]:
    for where, node in objects({"": fields}, skips=frozenset({"properties"})):
        for name, value in node.items():
            if value and name and (is_model_field(name) or _sets_headers(name)):
                yield f"{where}{name}".lstrip(".")


def is_model_field(name: str) -> bool:
    """Does the name of this field suggest that it chooses a model or a server? Servers written in Go ignore the case of
    a name, and to them `ſ` is an `s`."""
    if name in _MODEL_SETTINGS:
        return False
    words = [word.lower() for word in _WORD.findall(unicodedata.normalize("NFKC", name))]
    joined = "".join(words)
    if joined == "useragent":
        return False
    return (
        any(part in joined for part in _MODEL_PARTS)
        or not _MODEL_WORDS.isdisjoint(words)
        or "_".join(words) in _MODEL_NAMES
        or (len(words) > 1 and words[-1] == "provider")
    )


def _sets_headers(name: str) -> bool:
    """Headers inside a tool do not count: an MCP server has headers of its own."""
    return name.casefold().replace("-", "_").endswith("headers")


def provider_references(body: Mapping[str, Json]) -> Iterator[Reference]:
    """The ids in the request of things that the provider holds."""
    for at, item in enumerate(as_list(body.get("input"))):
        if isinstance(item, dict) and _is_reference(cast("Object", item)):
            yield f"input[{at}].id", as_text(cast("Object", item).get("id"))
    for name in ("conversation", "cachedContent", "cached_content"):
        if id := _id_of(body.get(name)):
            yield name, id
    if id := as_text(as_dict(body.get("prompt")).get("id")):
        yield "prompt.id", id
    for where, node in objects(body):
        if not _USES.isdisjoint(node):
            yield from ((f"{where}{name}", id) for name, id in _used_by(node))


def ids_in(body: Json) -> Iterator[Reference]:
    """Every string that looks like a provider's id: for requests whose fields we do not know."""
    for where, node in objects({"body": body}):
        for name, value in node.items():
            for one in as_list(value) if isinstance(value, list) else [value]:
                if isinstance(one, str) and (id := provider_id(one)):
                    yield f"{where}{name}".removeprefix("body."), id


def gives_ids(wire: str, body: Mapping[str, Json]) -> bool:
    """May the answer contain the id of something that a later request can use?"""
    if wire and find_wire(wire).http.stores and body.get("store") is not False:  # a Python model has no wire
        return True
    if body.get("audio") or body.get("container"):
        return True
    kinds = (as_dict(tool).get("type") for tool in as_list(body.get("tools")))
    return any(kind not in (None, "function", "custom") for kind in kinds)


def _id_of(value: Json) -> str:
    return value if isinstance(value, str) else as_text(as_dict(value).get("id"))


def _is_reference(item: Object) -> bool:
    """Is it an item reference of the Responses API? Its type may be missing."""
    kind = item.get("type")
    return kind == "item_reference" or (not kind and "role" not in item and bool(item.get("id")))


def _used_by(node: Object) -> Iterator[Reference]:
    kind = as_text(node.get("type"))
    if (id := as_text(node.get("file_id"))) and not kind.endswith(_ECHOED):
        yield "file_id", id
    for name in ("file_ids", "vector_store_ids"):
        yield from ((name, as_text(id)) for id in as_list(node.get(name)))
    if "container" in node and not kind.endswith(_ECHOED) and (id := _id_of(node["container"])):
        yield "container", id
    if kind == "container_reference":
        yield "container_id", as_text(node.get("container_id"))
    if kind == "custom" and (id := as_text(node.get("skill_id"))):
        yield "skill_id", id
    if id := as_text(as_dict(node.get("audio")).get("id")):
        yield "audio.id", id
    for name in _ADDRESSES:
        uri = as_text(node.get(name)).strip()
        if uri and not kind.endswith(_ECHOED) and _PROVIDER_FILE.fullmatch(unquote(uri) if "%" in uri else uri):
            yield name, uri
    if uri := as_text(as_dict(node.get("s3Location")).get("uri")):
        yield "s3Location.uri", uri
    if id := as_text(node.get("guardrailIdentifier")):
        yield "guardrailIdentifier", id


def objects(body: Mapping[str, Json], skips: frozenset[str] = _DATA) -> Iterator[tuple[str, Object]]:
    """Every object with its place, such as `tools[0].`, except in data. Not recursive, because a body may be deep."""
    stack: list[tuple[str, Json]] = [("", cast("Json", body))]
    while stack:
        where, value = stack.pop()
        if isinstance(value, list):
            stack += [
                (f"{where[:-1]}[{at}].", one) for at, one in enumerate(cast("list[Json]", value)) if _holds_more(one)
            ]
        elif isinstance(value, dict):
            node = cast("Object", value)
            yield where, node
            is_call = node.get("type") in _TOOL_USE or where.endswith(".toolUse.")
            skipped = skips | {"input"} if is_call else skips if where else skips & _NOTES
            stack += [
                (f"{where}{name}.", one) for name, one in node.items() if _holds_more(one) and name not in skipped
            ]


def _holds_more(value: Json) -> bool:
    return isinstance(value, dict | list)


_OWNERSHIP = (owned_key, response_key, item_key)
"""Under any of these, an id belongs to a caller."""


class ProviderIds:
    def __init__(self, store: Store, ttl: float) -> None:
        self._store = store
        self._ttl = ttl

    def with_ttl(self, ttl: float) -> ProviderIds:
        return ProviderIds(self._store, ttl)

    async def claim(self, scope: str, ids: Iterable[str], holder: str = "") -> None:
        """Assigns these ids to this caller. `holder`: the deployment whose provider holds them."""
        entries = {owned_key(scope, id): holder.encode() or b"1" for id in ids}
        try:
            if entries:
                await self._store.put(entries, self._ttl)
        except StoreUnavailable as error:
            log.warning(
                "%d ids of files or the like are lost, so requests that name them are a 404: %s", len(entries), error
            )

    async def check(self, scope: str, references: Sequence[Reference]) -> None:
        """Raises `Refused` for the first id that is not known to belong to this caller."""
        if not references:
            return
        keys = [key(scope, id) for _, id in references for key in _OWNERSHIP]
        found = await self._store.get(keys)
        for at, (where, id) in enumerate(references):
            if not any(found[at * len(_OWNERSHIP) : (at + 1) * len(_OWNERSHIP)]):
                raise Refused(
                    404,
                    f"`{where}`: this key did not get `{id[:100]}` from this gateway, or too long ago; it may "
                    "use what it created. `shared_ids = true` in [keys] lets all keys use what the provider holds",
                    kind=NOT_FOUND,
                )

    async def holder(self, scope: str, references: Sequence[Reference]) -> str:
        """The deployment that holds the first of these ids of which that is known; empty if there is none."""
        found = await self._store.get([owned_key(scope, id) for _, id in references])
        return next((value.decode("utf-8", "replace") for value in found if value and value != b"1"), "")


class Claiming:
    """Looks for ids in an answer on its way to a client, and claims them before the client can use them.

    `sent`: the body that is answered, as JSON in our own spelling. Providers repeat parts of it, and an id that the
    client sent is not claimed by being repeated. `owned` are the ids that it may use already. `head` names the
    deployment that answers."""

    def __init__(
        self, ids: ProviderIds, scope: str, sent: Callable[[], bytes], owned: Iterable[Reference], head: ResponseHead
    ) -> None:
        self._ids = ids
        self._scope = scope
        self._sent = sent
        self._body: bytes | None = None
        self._owned = {id for _, id in owned}
        self._head = head
        self._line = b""
        self._known: set[str] = set()

    async def feed(self, data: bytes) -> None:
        """A piece of a stream of events."""
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                await self.read(line[5:])

    async def read(self, data: bytes) -> None:
        """One complete JSON text."""
        fresh = given_ids(data) - self._known
        if not fresh:
            return
        self._known |= fresh
        if self._body is None:
            self._body = self._sent()
        given = [id for id in fresh if id in self._owned or id.encode() not in self._body]
        await self._ids.claim(self._scope, given, self._head.upstream)


def given_ids(data: bytes) -> set[str]:
    """The ids in this JSON text, except in the arguments of a call: a model can be asked to write any."""
    if not _GIVEN.search(data):
        return set()
    try:
        nodes = [node for _, node in objects(as_dict(loads(data)))]
    except StreamError:
        return set()
    found = {as_text(node.get(name)) for node in nodes for name in ("id", "file_id", "container_id")}
    return {id for id in found if PROVIDER_ID.fullmatch(id)}


# Which requests the gateway forwards to a provider: rules of one method and one path each. `POST /v1/embeddings` is a
# rule; in `GET /v1/files/*`, `*` stands for one segment. A request that matches no rule is refused. Pure: nothing is
# sent here.


METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_SEGMENT = re.compile(rb"[A-Za-z0-9_.~:@=+,-]+")
"""A path segment after percent-decoding. No slash, backslash, semicolon, percent sign or control character: a server
could read those as a different path than the one that was checked."""
_RULE = re.compile(r"(?P<method>[A-Z]+) (?P<path>/v1(?:/(?:\*|[A-Za-z0-9_.~:@=+,-]+))+)")


@dataclass(frozen=True, slots=True)
class PassRule:
    """One method and one path."""

    method: str
    segments: tuple[str, ...]
    """The path's segments; `*` matches any one segment."""

    def __str__(self) -> str:
        return f"{self.method} /{'/'.join(self.segments)}"

    def matches(self, method: str, segments: tuple[str, ...]) -> bool:
        return (
            method == self.method
            and len(segments) == len(self.segments)
            and all(rule in ("*", segment) for rule, segment in zip(self.segments, segments, strict=True))
        )

    def ids(self, segments: tuple[str, ...]) -> tuple[str, ...]:
        """The segments that `*` matched."""
        return tuple(segment for rule, segment in zip(self.segments, segments, strict=True) if rule == "*")


def read_rule(text: str) -> PassRule:
    """Parses `METHOD /v1/path`, as in the configuration and `--pass`."""
    found = _RULE.fullmatch(text)
    if found is None or found["method"] not in METHODS or {".", ".."} & {*found["path"].split("/")}:
        raise UserError(
            f"`{text[:200]}` does not name a request to pass through: write a method ({', '.join(METHODS)}) and a path "
            "below /v1, like `GET /v1/files/*`; `*` stands for one segment"
        )
    return PassRule(found["method"], tuple(found["path"][1:].split("/")))


MODEL_PATHS = (
    "POST /v1/embeddings",
    "POST /v1/moderations",
    "POST /v1/completions",
    "POST /v1/rerank",
    "POST /v1/images/generations",
    "POST /v1/images/edits",
    "POST /v1/images/variations",
    "POST /v1/audio/speech",
    "POST /v1/audio/transcriptions",
    "POST /v1/audio/translations",
)
"""The default list: requests that name their model and leave nothing behind at the provider. On these paths the body
has to name an alias, whatever the key."""

_MODEL_RULES = frozenset(map(read_rule, MODEL_PATHS))


def names_a_model(rule: PassRule) -> bool:
    return rule in _MODEL_RULES


def read_path(raw: bytes) -> tuple[str, ...] | None:
    """The segments of a path as it was sent, without its query; None if servers could disagree on what it means: an
    empty segment, `.` or `..`, an escaped slash, a parameter behind a semicolon."""
    parts = raw.split(b"/")[1:]
    segments = tuple(map(unquote_to_bytes, parts))
    if not raw.startswith(b"/") or any(not _SEGMENT.fullmatch(one) or one in (b".", b"..") for one in segments):
        return None
    return tuple(segment.decode("ascii") for segment in segments)


def find_rule(rules: Iterable[PassRule], method: str, segments: tuple[str, ...]) -> PassRule | None:
    return next((rule for rule in rules if rule.matches(method, segments)), None)
