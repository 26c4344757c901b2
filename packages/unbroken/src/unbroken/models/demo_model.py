"""The model that answers if no other is configured: a script to try any client with.

If it is offered tools, it makes three calls in one answer, even if the request allows one at most: real models do that
too, so it shows what the gateway does about it. With the results it answers in text. It has no memory: the request
decides everything. No network, no key, no language model.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from json import dumps
from math import ceil, floor
from typing import Any
from uuid import UUID

from unbroken.models.model import RESPONSE_HEAD
from unbroken.models.scripted import Call, Say, Step, Uses, play_bytes
from unbroken_wires.decoding import Decoder
from unbroken_wires.deltas import Delta
from unbroken_wires.messages import (
    Assistant,
    Json,
    Media,
    Message,
    OneTool,
    Request,
    ToolMessage,
    ToolResult,
    ToolSpec,
    User,
)
from unbroken_wires.wires import DEFAULT_WIRE, find_wire
from unbroken_wires.wires.json_access import Object, as_dict, as_list, as_number, as_text

# Made-up arguments that fit a common JSON schema and its property names.
#
# For the demo model. `variant` selects different ones, so that three calls of one tool differ. Pure.


DEEPEST = 8
"""Maximum depth, since schemas may refer to themselves."""
MOST = 3
"""Number of properties to fill in if none are required, and of items in a list."""

_FORMATS: Mapping[str, tuple[str, ...]] = {
    "date": ("2025-06-01", "2025-06-02", "2025-06-03"),
    "date-time": ("2025-06-01T09:00:00Z", "2025-06-02T10:30:00Z", "2025-06-03T12:00:00Z"),
    "time": ("09:00:00Z", "10:30:00Z", "12:00:00Z"),
    "duration": ("PT1H", "PT2H", "P1D"),
    "email": ("ada@example.com", "alan@example.com", "grace@example.com"),
    "uri": ("https://example.com/", "https://example.org/", "https://example.net/"),
    "uuid": tuple(f"00000000-0000-4000-8000-00000000000{n}" for n in (1, 2, 3)),
    "ipv4": ("192.0.2.1", "192.0.2.2", "192.0.2.3"),
    "ipv6": ("2001:db8::1", "2001:db8::2", "2001:db8::3"),
    "hostname": ("example.com", "example.org", "example.net"),
}

_TEXTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("city town location place where destination", ("Beijing", "Shanghai", "Shenzhen")),
    ("origin", ("Oslo", "Lima", "Rome")),
    ("country", ("China", "Norway", "Peru")),
    ("timezone tz zone", ("Asia/Shanghai", "Europe/Oslo", "America/Lima")),
    ("url uri link href", _FORMATS["uri"]),
    ("email mail", _FORMATS["email"]),
    ("date day", _FORMATS["date"]),
    ("time", ("09:00", "10:30", "12:00")),
    ("directory dir folder cwd", (".", "src", "docs")),
    ("path file filename", ("README.md", "pyproject.toml", "LICENSE")),
    ("command cmd", ("pwd", "date", "ls")),
    ("glob", ("*.md", "*.toml", "*.txt")),
    ("pattern regex", ("TODO", "README", "test")),
    ("query q search keyword keywords term question topic", ("weather", "news", "music")),
    ("language lang locale", ("en", "zh", "de")),
    ("currency", ("EUR", "CNY", "USD")),
    ("symbol ticker", ("AAPL", "MSFT", "NVDA")),
    ("unit units", ("celsius", "fahrenheit", "kelvin")),
    ("expression formula", ("1 + 2", "3 * 4", "10 / 5")),
    ("id key", ("1", "2", "3")),
    ("user name title", ("Ada", "Alan", "Grace")),
)
"""Example texts by the words in a property's name; the first line that matches counts."""

_BY_WORD = {word: texts for words, texts in reversed(_TEXTS) for word in words.split()}
_OTHERWISE = ("one", "two", "three")
_FOR_PATTERNS = (
    "a",
    "1",
    "A1",
    "abc",
    "ABC",
    "123",
    "2025-06-01",
    "12:00",
    "a-1",
    "a_1",
    "#aabbcc",
    "AB-123",
    "v1.0.0",
)


def demo_arguments(schema: Mapping[str, Json], variant: int = 0) -> Object:
    """Arguments for a tool with these parameters: only the required ones."""
    return _Maker(dict(schema)).object(dict(schema), variant, 0)


class _Maker:
    def __init__(self, root: Object) -> None:
        self._root = root

    def value(self, given: Json, name: str, variant: int, depth: int) -> Json:
        schema = self._settled(as_dict(given), depth)
        if "const" in schema:
            return schema["const"]
        for choices in (as_list(schema.get("enum")), as_list(schema.get("examples"))):
            if choices:
                return choices[variant % len(choices)]
        if schema.get("default") is not None:
            return schema["default"]
        match _type(schema):
            case "object":
                return self.object(schema, variant, depth)
            case "array":
                return self._array(schema, name, variant, depth)
            case "integer":
                return int(_number(schema, (3, 5, 7)[variant % 3], whole=True))
            case "number":
                return _number(schema, (1.5, 2.5, 4.0)[variant % 3], whole=False)
            case "boolean":
                return variant % 2 == 0
            case "null":
                return None
            case _:
                return _text(schema, name, variant)

    def object(self, schema: Object, variant: int, depth: int) -> Object:
        if depth > DEEPEST:
            return {}
        schema = self._settled(schema, depth)
        properties = as_dict(schema.get("properties"))
        required = [as_text(name) for name in as_list(schema.get("required"))]
        if "required" not in schema and not depth:
            required = [name for name, one in properties.items() if "default" not in as_dict(one)][:MOST]
        return {name: self.value(properties.get(name), name, variant, depth + 1) for name in required}

    def _array(self, schema: Object, name: str, variant: int, depth: int) -> list[Json]:
        first = as_list(schema.get("prefixItems"))
        count = max(_whole(schema.get("minItems"), 0), len(first), 1)
        count = min(count, _whole(schema.get("maxItems"), count))
        if depth > DEEPEST:
            return []
        items = [*first, *[schema.get("items")] * max(0, count - len(first))][:count]
        return [self.value(item, name, variant + at, depth + 1) for at, item in enumerate(items)]

    def _settled(self, schema: Object, depth: int) -> Object:
        """The schema with references, `allOf` and alternatives resolved; an alternative that is only null is not
        chosen."""
        for _ in range(DEEPEST - depth):
            if "$ref" in schema:
                schema = {**self._referred(as_text(schema["$ref"])), **_without(schema, "$ref")}
            elif parts := as_list(schema.get("allOf")):
                schema = _joined(
                    [_without(schema, "allOf"), *(self._settled(as_dict(part), depth + 1) for part in parts)]
                )
            elif key := next((key for key in ("anyOf", "oneOf") if as_list(schema.get(key))), ""):
                options = [as_dict(option) for option in as_list(schema[key])]
                option = next((option for option in options if option.get("type") != "null"), options[0])
                schema = _joined([_without(schema, key), option])
            else:
                break
        return schema

    def _referred(self, reference: str) -> Object:
        found: Json = self._root
        for part in reference.removeprefix("#").split("/")[1:]:
            found = as_dict(found).get(part.replace("~1", "/").replace("~0", "~"))
        return as_dict(found)


def _without(schema: Object, key: str) -> Object:
    return {name: value for name, value in schema.items() if name != key}


def _joined(schemas: list[Object]) -> Object:
    whole: Object = {}
    for schema in schemas:
        properties = {**as_dict(whole.get("properties")), **as_dict(schema.get("properties"))}
        required = [*as_list(whole.get("required")), *as_list(schema.get("required"))]
        whole = {**whole, **schema}
        whole |= {"properties": properties} if properties else {}
        whole |= {"required": list(dict.fromkeys(map(as_text, required)))} if required else {}
    return whole


def _type(schema: Object) -> str:
    given = schema.get("type")
    named = next((as_text(one) for one in as_list(given) if one != "null"), as_text(given))
    return named.lower() or ("object" if "properties" in schema else "array" if "items" in schema else "string")


def _number(schema: Object, value: float, *, whole: bool) -> float:
    step: Any = as_number(schema.get("multipleOf"))
    step = step if step and step > 0 else 0
    gap = step or (1 if whole else 0.5)
    low, high = as_number(schema.get("minimum")), as_number(schema.get("maximum"))
    if (above := as_number(schema.get("exclusiveMinimum"))) is not None:
        low = above + gap if low is None else max(low, above + gap)
    if (below := as_number(schema.get("exclusiveMaximum"))) is not None:
        high = below - gap if high is None else min(high, below - gap)
    if high is not None and value > high:
        value = floor(high) if whole else high
    if low is not None and value < low:
        value = ceil(low) if whole else low
    if step:
        value = ceil(value / step) * step
        value = value if high is None or value <= high else floor(high / step) * step
    return value


def _text(schema: Object, name: str, variant: int) -> str:
    texts = _FORMATS.get(as_text(schema.get("format"))) or _named(name)
    text = texts[variant % len(texts)]
    if pattern := as_text(schema.get("pattern")):
        text = next((one for one in (text, *_FOR_PATTERNS) if _fits(pattern, one)), text)
    text = text.ljust(min(_whole(schema.get("minLength"), 0), 1000), ".")
    return text[: _whole(schema.get("maxLength"), len(text))]


def _named(name: str) -> tuple[str, ...]:
    """A value by the last known word of a name: `file_path`, `startDate`, `cityName`."""
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
    known = [_BY_WORD[word.lower()] for word in words if word.lower() in _BY_WORD]
    return known[0] if known else _OTHERWISE


def _fits(pattern: str, text: str) -> bool:
    try:
        return re.search(pattern, text) is not None
    except re.error:  # a regular expression of another language
        return False


def _whole(value: Json, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else otherwise


NAME = "demo"
CALLS = 3
CHUNK_DELAY = 0.02
"""Seconds between two words, so that a person sees a stream."""
INTRODUCTION = "I am the demo model of Unbroken: a script, and no language model."

_WIRE = DEFAULT_WIRE
_QUOTED = 160
_CHARACTERS_A_TOKEN = 4
_RISKY = re.compile(
    "agent|apply|bash|book|buy|cancel|click|commit|computer|create|delete|deploy|drop|edit|exec|execute|install|kill|"
    "mail|make|modify|move|navigate|order|patch|pay|post|powershell|publish|push|put|python|remove|rename|replace|reset|"
    "restart|run|save|send|set|shell|spawn|start|stop|submit|task|terminal|transfer|uninstall|update|upload|write"
)
"""Words in the names of tools that change something: made-up calls should only read."""


class DemoModel:
    """Serves any number of requests at once; `chunk_delay` is the seconds between two chunks."""

    def __init__(self, chunk_delay: float = CHUNK_DELAY) -> None:
        self._chunk_delay = chunk_delay

    @property
    def name(self) -> str:
        return NAME

    async def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        if (head := RESPONSE_HEAD.get()) is not None:
            head.model = self.name
        request = replace(request, model=request.model or NAME)
        decoder = Decoder(_WIRE, None, request)
        for pause, data in play_bytes(demo(request), _WIRE, request, self._chunk_delay):
            await asyncio.sleep(pause)
            if deltas := decoder.feed(data):
                yield deltas
        yield decoder.end()


def demo(request: Request) -> list[Step]:
    """What the demo model answers."""
    asked, since = _since_the_user(request.messages)
    results = [result for message in since if isinstance(message, ToolMessage) for result in message.results]
    calls = [] if results or request.final or request.choice == "none" else _calls(request)
    if calls:
        text = f"Let me try {'your tool' if len(calls) == 1 else 'your tools'}. "
    elif results:
        described = "; ".join(_describe(result, _names(since)) for result in results)
        text = f"I have all the results: {described}. {INTRODUCTION}"
    else:
        said = f'You said "{_short(asked)}". ' if asked else ""
        text = f"{said}{INTRODUCTION} Offer me tools, and I call three times at once."
    return [Say(text), *calls, _usage(request, text, calls)]


def _since_the_user(messages: tuple[Message, ...]) -> tuple[str, tuple[Message, ...]]:
    """The last user message, and the messages after it."""
    for at in range(len(messages) - 1, -1, -1):
        if isinstance(message := messages[at], User):
            media = any(isinstance(part, Media) for part in message.parts)
            return message.text or ("(a picture or a file)" if media else ""), messages[at + 1 :]
    return "", messages


def _calls(request: Request) -> list[Call]:
    tools = [tool for tool in request.tools if tool.name]
    if isinstance(request.choice, OneTool):
        tools = [tool for tool in tools if tool.name == request.choice.name]
    harmless = [] if isinstance(request.choice, OneTool) else [tool for tool in tools if not _is_risky(tool)]
    wanted = dict.fromkeys(
        (tool.name, dumps(demo_arguments(tool.parameters, variant), ensure_ascii=False))
        for variant in range(CALLS if harmless else 1)
        for tool in harmless or tools[:1]
    )
    origin = _origin_of(request)
    return [Call(name, raw, id=f"call_{origin}_{at}") for at, (name, raw) in enumerate(wanted) if at < CALLS]


def _origin_of(request: Request) -> str:
    """For ids, which must differ between conversations and stay the same for a retry, and in the docs. It has the form
    of a UUID, so that a gateway takes it for random as it takes those of most providers."""
    body = find_wire(DEFAULT_WIRE).encode_request(request)
    asked = dumps([body["messages"], body.get("tools")], sort_keys=True)
    return UUID(bytes=sha256(asked.encode()).digest()[:16], version=4).hex[:20]


def _is_risky(tool: ToolSpec) -> bool:
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", tool.name)
    return any(_RISKY.fullmatch(word.lower()) for word in words)


def _names(messages: tuple[Message, ...]) -> dict[str, str]:
    return {call.id: call.name for message in messages if isinstance(message, Assistant) for call in message.calls}


def _describe(result: ToolResult, names: dict[str, str]) -> str:
    name = names.get(result.call_id) or result.name or "a tool"
    if not result.text.strip():
        return f"{name} {'failed without a word' if result.error else 'gave nothing'}"
    return f"{name} {'failed with' if result.error else 'gave'} {dumps(_short(result.text), ensure_ascii=False)}"


def _short(text: str) -> str:
    line = " ".join(text[: 8 * _QUOTED].split())
    return line if len(line) <= _QUOTED else f"{line[: _QUOTED - 1]}…"


def _usage(request: Request, text: str, calls: list[Call]) -> Uses:
    """Roughly what a model would report."""
    came = sum(len(_text_of(message)) for message in request.messages)
    went = len(text) + sum(len(call.name) + len(call.raw) for call in calls)
    return Uses(came // _CHARACTERS_A_TOKEN + 1, went // _CHARACTERS_A_TOKEN + 1)


def _text_of(message: Message) -> str:
    return "".join(result.text for result in message.results) if isinstance(message, ToolMessage) else message.text
