"""How a wire is used over HTTP: its paths, and what its clients and its provider expect beyond the body.

Only data and pure functions: nothing is sent here. Each wire has a subclass in its `*_http` module.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from unbroken_wires.messages import Json, Managed, Message, Usage
from unbroken_wires.wires.json_access import Object

Wanted: TypeAlias = Literal["answer", "count", "compact"]

StoredPart: TypeAlias = Literal["", "input_items", "cancel"]


@dataclass(frozen=True, slots=True)
class Operation:
    """What a path asks for."""

    wanted: Wanted = "answer"
    model: str = ""
    """As in the path, where it may be percent-encoded. Empty: the body names it."""
    stream: bool | None = None
    """None: the body decides."""


@dataclass(frozen=True, slots=True)
class StoredPath:
    """A path that names a stored response, or a part of it."""

    id: str
    part: StoredPart = ""


class HttpApi:
    short_name: ClassVar[str]
    """For columns of tables."""
    provider: ClassVar[str]
    """Whose protocol it is: the name of the provider for `connect`."""
    base_url_variable: ClassVar[str]
    """The environment variable from which clients take the base URL."""
    base_path: ClassVar[str] = ""
    """What clients expect in their base URL."""
    path: ClassVar[str]
    """What follows the base URL of the provider; may contain `{model}` and `{method}`."""
    safe_in_model: ClassVar[str] = "/:@.-_~"
    """Characters of a model's name that stay as they are in a path."""
    methods: ClassVar[tuple[str, str]] = ("", "")
    """The `{method}` for one body, and for a stream."""
    stream_field: ClassVar[str] = "stream"
    """The field of a body that asks for a stream; empty if the URL does."""
    stream_query: ClassVar[Mapping[str, str]] = {}
    key_header: ClassVar[str] = "bearer"
    """How the provider takes the key: the name of a header, or `bearer` for `Authorization`."""
    headers: ClassVar[Mapping[str, str]] = {}
    """What the provider expects in each request."""
    operations: ClassVar[Mapping[str, Operation]] = {}
    endings: ClassVar[tuple[str, ...]]
    """How the paths end on which a model is asked, whatever the base URL is."""
    error_paths: ClassVar[tuple[str, ...]] = ()
    """On paths that begin so, errors have the shape of this wire."""
    error_name: ClassVar[str] = "OpenAIError"
    """What a description of the API calls that shape."""
    roles: ClassVar[str] = ""
    """The roles of a message, as text."""
    messages_field: ClassVar[str] = "messages"
    fields: ClassVar[Mapping[str, tuple[type, ...]]] = {
        "stream": (bool,),
        "tools": (list,),
        "temperature": (int, float),
        "top_p": (int, float),
        "max_tokens": (int,),
        "max_completion_tokens": (int,),
        "max_output_tokens": (int,),
        "parallel_tool_calls": (bool,),
        "stream_options": (dict,),
        "metadata": (dict,),
        "previous_response_id": (str,),
    }
    """The types of fields of a request."""
    message_fields: ClassVar[Mapping[str, tuple[type, ...]]] = {"role": (str,), "content": (str, list)}
    """The same for each message."""
    parts_field: ClassVar[str] = "content"
    part_fields: ClassVar[Mapping[str, tuple[type, ...]]] = {"type": (str,), "text": (str,)}
    """The same for each part of a message."""
    refused_content: ClassVar[tuple[Json, ...]] = (None, "", [])
    """What the provider refuses as the content of a user's message."""
    takes_texts: ClassVar[bool] = False
    """May a part of a message be a mere text?"""
    response_id: ClassVar[str] = ""
    """How the ids of responses begin."""
    stores: ClassVar[bool] = False
    """Does the provider keep each response, unless `store` is false, so that later requests can refer to it?"""
    count_path: ClassVar[str] = ""
    """Where the provider counts the tokens of a request, if that takes the same body."""
    count_field: ClassVar[str] = "input_tokens"
    count_lacking: ClassVar[tuple[int, ...]] = ()
    """A server that answers so on that path does not count."""
    manages: ClassVar[frozenset[Literal["compact", "clear"]]] = frozenset()
    """What the wire's own provider can do by itself with a long history (`Request.managed`)."""
    later_system: ClassVar[Container[str]] = ()
    """Models that take system text between the messages as well, on a wire where others do not."""
    account_bound: ClassVar[Container[str]] = ()
    """Models whose reasoning is read only under the account that it was written under."""
    compact_path: ClassVar[str] = ""
    """Where the provider compacts a history, after its base URL."""
    socket_paths: ClassVar[tuple[str, ...]] = ()
    """Where clients may also open a WebSocket, and send each request as a message."""

    def headers_of(self, managed: Managed) -> Mapping[str, str]:
        """The headers that a request with this needs."""
        return {}

    def find(self, path: str) -> Operation | None:
        """What this path asks for; None if it is of no use on this wire."""
        return self.operations.get(path)

    def streams(self, body: Mapping[str, Json]) -> bool:
        """Does a body ask for a stream, where it is the body that does?"""
        return bool(body.get(self.stream_field))

    def messages_of(self, body: Mapping[str, Json]) -> Json:
        return body.get(self.messages_field)

    def mistake_in(self, message: Object) -> str:
        """Why no provider takes this message, beyond the types of its fields; empty if there is nothing."""
        return ""

    def body_to_count(self, body: Object) -> Object:
        """The request inside a request to count its tokens."""
        return body

    def counted(self, tokens: int) -> Object:
        """The answer to a request to count tokens."""
        return {self.count_field: tokens}

    def wants_usage(self, body: Mapping[str, Json]) -> bool:
        """Does the client of a stream want to know its usage?"""
        return True

    def asking_usage(self, body: Object) -> Object:
        """The same request for a stream, whose answer has its usage even if the client does not want to know it."""
        return body

    def wants_array(self, query: str) -> bool:
        """Does the client of a stream with this query string expect one JSON array instead of events?"""
        return False

    def socket_body(self, body: Object) -> Object:
        """The request in a message on a WebSocket (`socket_paths`), as its body would be over HTTP."""
        return body

    # Responses that are stored, and the items in them

    def find_stored(self, path: str) -> StoredPath | None:
        """The stored response that this path names; None if it names none."""
        return None

    def item_ids(self, response: Object) -> Sequence[str]:
        """The ids of the items that the model made in this response, which later requests may refer to."""
        return ()

    def stored_items(self, response: Object) -> Mapping[str, Object]:
        """The items of a response by id, as a request may contain them."""
        return {}

    def reference_in(self, message: Object) -> str:
        """The id of the stored item that this message stands for; empty if it stands for itself."""
        return ""

    def input_items(self, messages: Sequence[Message], id: str) -> list[Object]:
        """The messages that were the input of the response with this id, as items with ids."""
        return []

    def compaction(self, id: str, created: int, summary: str, usage: Usage) -> Object:
        """A history that was compacted to this summary, as the provider would answer."""
        raise NotImplementedError

    def summary_in(self, message: Object) -> str | None:
        """The summary in this message, if it is one that `compaction` wrote."""
        return None

    def not_supported(self, body: Mapping[str, Json]) -> str:
        """Why a gateway cannot answer this request, and the way out; empty if it can."""
        return ""

    def held_by_provider(self, body: Mapping[str, Json]) -> str:
        """The field of the request that refers to something that only the provider has; empty if there is none."""
        return ""


# Error responses: the status of each kind of failure, and the error object that both wires of OpenAI share.
#
# The shape of an error on each wire is in its encoder. The caller decides on status and message.


# By the kinds of `Verdict`. All others, such as a stream that broke, are a bad gateway to the client.
_STATUSES = {
    "too_long": 400,
    "limited": 429,
    "unavailable": 503,
    "unanswered": 504,
    "silent": 504,
    "late": 504,
}

TOO_LONG = "too_long"

UNKNOWN_URL = "unknown_url"
"""The kind of a 404 that is about the path, not about a model."""

NOT_FOUND = "not_found"
"""The kind of a 404 that is about a file or another thing that the provider holds. OpenAI has no code for it."""


def status_of(kind: str) -> int:
    """The HTTP status of a failure of that kind (of `Verdict`)."""
    return _STATUSES.get(kind, 502)


def beginning_with(words: str, message: str) -> str:
    """The message with `words` in front, which clients look for."""
    return message if message.startswith(words) else f"{words}: {message}"


_OPENAI = {
    401: ("invalid_request_error", "invalid_api_key"),
    402: ("insufficient_quota", "insufficient_quota"),
    403: ("permission_error", None),
    404: ("invalid_request_error", "model_not_found"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
    503: ("service_unavailable_error", "server_is_overloaded"),
    529: ("service_unavailable_error", "server_is_overloaded"),
}


NO_PREVIOUS_RESPONSE = "previous_response_not_found"
NO_ITEM = "item_not_found"
"""The kinds of errors about a stored response, or an item in one, that is not there."""
_PARAMS = {NO_PREVIOUS_RESPONSE: "previous_response_id", NO_ITEM: "input"}


def openai_error(status: int, message: str, kind: str, messages_field: str) -> Object:
    """`kind` is one of `Verdict`, or any code that OpenAI has for the error."""
    type, code = _OPENAI.get(status) or ("invalid_request_error" if status < 500 else "server_error", None)
    param = None
    if kind == TOO_LONG:
        type, code, param = "invalid_request_error", "context_length_exceeded", messages_field
    param = _PARAMS.get(kind, param)
    code = kind if kind == UNKNOWN_URL else None if kind in (NOT_FOUND, NO_ITEM) else code or kind or None
    return {"error": {"message": message, "type": type, "param": param, "code": code}}
