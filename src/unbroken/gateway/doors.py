"""The ways in: which path asks for what, in which wire. Data and small pure functions; nothing is answered here."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, cast
from urllib.parse import unquote

from unbroken.errors import InvalidRequest
from unbroken.messages import Json, Request
from unbroken.wires import find_wire
from unbroken.wires.jsontext import MAX_DEPTH, Damaged, loads_faithful, shallow, strict
from unbroken.wires.values import Object, as_dict, as_list, as_text

CHAT, RESPONSES, MESSAGES, GEMINI = "openai-chat", "openai-responses", "anthropic-messages", "gemini"

Wanted: TypeAlias = Literal["answer", "count"]

MESSAGES_FIELD = {CHAT: "messages", RESPONSES: "input", MESSAGES: "messages", GEMINI: "contents"}
_IDS = {CHAT: "chatcmpl-", RESPONSES: "resp_", MESSAGES: "msg_", GEMINI: ""}

PASSED_ON = ("anthropic-beta", "anthropic-version", "openai-beta")
"""Headers of a client that are meant for the provider of its wire."""


@dataclass(frozen=True, slots=True)
class Door:
    """What a path asks for. On Gemini's wire the model and the stream stand in the path."""

    wire: str
    wanted: Wanted = "answer"
    model: str = ""
    streams: bool | None = None
    """None: the body says it."""


_FIXED = {
    "/v1/chat/completions": Door(CHAT),
    "/chat/completions": Door(CHAT),
    "/v1/responses": Door(RESPONSES),
    "/responses": Door(RESPONSES),
    "/v1/messages": Door(MESSAGES),
    "/v1/messages/count_tokens": Door(MESSAGES, "count"),
}
_GEMINI_PATH = re.compile(
    r"/(?:v1|v1beta|v1alpha)/models/(?P<model>[^:]+(?::[^:]+)*?):(?P<method>generateContent|streamGenerateContent|countTokens)"
)
_GEMINI_METHODS: dict[str, tuple[Wanted, bool]] = {
    "generateContent": ("answer", False),
    "streamGenerateContent": ("answer", True),
    "countTokens": ("count", False),
}


def find_door(path: str) -> Door | None:
    if (door := _FIXED.get(path)) is not None:
        return door
    if (found := _GEMINI_PATH.fullmatch(path)) is None:
        return None
    wanted, streams = _GEMINI_METHODS[found["method"]]
    return Door(GEMINI, wanted, unquote(found["model"]), streams)


def wire_of(path: str) -> str:
    """In whose shape an error of this path is told."""
    if path.startswith(("/v1beta/", "/v1alpha/")):
        return GEMINI
    return MESSAGES if path.startswith("/v1/messages") else CHAT


def _is_strict(data: bytes) -> bool:
    try:
        strict.decode(data.decode("utf-8"))
    except ValueError:
        return False
    return True


def read_body(data: bytes) -> Object:
    if not shallow(data):
        raise InvalidRequest(f"the body is JSON nested deeper than {MAX_DEPTH} levels")
    try:
        body: Json = loads_faithful(data)
    except Damaged:
        raise InvalidRequest("the body is not JSON") from None
    if (b"NaN" in data or b"Infinity" in data) and not _is_strict(data):
        raise InvalidRequest("the body is not JSON: NaN and Infinity are no numbers there")
    if not isinstance(body, dict):
        raise InvalidRequest("the body is not a JSON object")
    return cast("Object", body)


def read_request(door: Door, body: Object) -> Request:
    """The request in our spelling."""
    request = find_wire(door.wire).decode_request(body)
    return request if door.streams is None else replace(request, stream=door.streams)


def check_body(door: Door, body: Object) -> None:
    """Raises `InvalidRequest` for what no provider of the wire would take."""
    field = MESSAGES_FIELD[door.wire]
    said = body.get(field)
    if door.wire == RESPONSES and isinstance(said, str):
        said = [said]
    elif said is None and door.wire == RESPONSES and (body.get("previous_response_id") or body.get("prompt")):
        said = [""]
    if not isinstance(said, list):
        what = "is missing" if field not in body else "is not a list"
        raise InvalidRequest(f"`{field}` {what}: it holds the messages")
    items = cast("list[Json]", said)
    if not items:
        raise InvalidRequest(f"`{field}` is empty: there is nothing to answer")
    for at, message in enumerate(items):
        if not isinstance(message, dict) and not (door.wire == RESPONSES and isinstance(message, str)):
            raise InvalidRequest(f"`{field}[{at}]` is not an object")
    _check_types(body)


_TYPES: dict[str, tuple[type, ...]] = {
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
    "generationConfig": (dict,),
}
_NAMES = {
    bool: "true or false",
    list: "a list",
    int: "a whole number",
    float: "a number",
    dict: "an object",
    str: "a text",
}


def _check_types(body: Object) -> None:
    """Fields that would otherwise be left out without a word."""
    for name, types in _TYPES.items():
        value = body.get(name)
        if value is None or (isinstance(value, types) and not (isinstance(value, bool) and bool not in types)):
            continue
        raise InvalidRequest(f"`{name}` is not {_NAMES[types[-1]]}")
    for at, tool in enumerate(cast("list[Json]", body.get("tools") or ())):
        if not isinstance(tool, dict):
            raise InvalidRequest(f"`tools[{at}]` is not an object")


def model_of(door: Door, body: Mapping[str, Json]) -> str:
    model = door.model or as_text(body.get("model"))
    if not model:
        raise InvalidRequest("`model` is missing: name one of those that GET /v1/models lists")
    return model.removeprefix("models/")


def held_by_provider(door: Door, body: Mapping[str, Json]) -> str:
    """What a request of openai-responses stands on that only its provider has: no other model can go on from there."""
    if door.wire != RESPONSES:
        return ""
    items = [as_dict(item).get("type") for item in as_list(body.get("input"))]
    if "item_reference" in items:
        return "item_reference"
    return next((name for name in ("conversation", "prompt", "background") if body.get(name)), "")


def most_tokens(body: Mapping[str, Json]) -> Json:
    """How many it may have for its answer, as far as openai-chat says it."""
    return body.get("max_completion_tokens", body.get("max_tokens"))


def wants_usage(door: Door, body: Mapping[str, Json]) -> bool:
    return door.wire != CHAT or bool(as_dict(body.get("stream_options")).get("include_usage"))


def new_id(wire: str) -> str:
    return _IDS[wire] + secrets.token_hex(12)
