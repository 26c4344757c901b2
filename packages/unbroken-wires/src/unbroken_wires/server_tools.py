"""Tools that the provider runs itself: one class for each capability, the same on every wire.

```python
agent = Agent("anthropic:claude-sonnet-4-5", tools=[WebSearch(max_uses=3), get_weather])
```

These classes only hold settings. The package of each wire writes them in its own words (`wires/*/*_server_tools.py`); a
provider or a model that lacks a tool, or a limit of it, is a `UserError` before anything is sent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import ClassVar, Literal, cast
from urllib.parse import urlsplit, urlunsplit

from unbroken_wires.errors import UserError
from unbroken_wires.messages import Json, ServerTool
from unbroken_wires.validation import checked

LOCATION = ("city", "region", "country", "timezone")
"""What a user's location may have."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@checked
@dataclass(frozen=True, slots=True)
class WebSearch(ServerTool):
    """The provider searches the web."""

    firm: ClassVar[tuple[str, ...]] = ("allowed_domains", "blocked_domains", "max_uses")

    allowed_domains: Sequence[str] = ()
    """Only these, such as `docs.python.org`."""
    blocked_domains: Sequence[str] = ()
    max_uses: int | None = None
    """How many searches one request may make."""
    user_location: Mapping[str, str] = field(default_factory=dict[str, str])
    """Where the user is: `city`, `region`, `country` (two letters), `timezone`; each may be left out."""
    search_context_size: Literal["low", "medium", "high"] | None = None
    """How much of the pages the model reads."""

    def __post_init__(self) -> None:
        _check_domains(self, self.allowed_domains, self.blocked_domains)
        _check_count(self, "max_uses", self.max_uses)
        for key in self.user_location:
            if key not in LOCATION:
                raise UserError(f"WebSearch(user_location=…): there is no {key!r}; there are: {', '.join(LOCATION)}")


@checked
@dataclass(frozen=True, slots=True)
class WebFetch(ServerTool):
    """The provider reads pages whose addresses stand in the conversation."""

    firm: ClassVar[tuple[str, ...]] = ("allowed_domains", "blocked_domains", "max_uses", "max_content_tokens")

    allowed_domains: Sequence[str] = ()
    blocked_domains: Sequence[str] = ()
    max_uses: int | None = None
    """How many pages one request may read."""
    max_content_tokens: int | None = None
    """How much of a page the model reads."""
    citations: bool = False
    """The answer cites the pages."""

    def __post_init__(self) -> None:
        _check_domains(self, self.allowed_domains, self.blocked_domains)
        _check_count(self, "max_uses", self.max_uses)
        _check_count(self, "max_content_tokens", self.max_content_tokens)


@checked
@dataclass(frozen=True, slots=True)
class CodeExecution(ServerTool):
    """The model writes code, and the provider runs it in a sandbox of its own."""

    firm: ClassVar[tuple[str, ...]] = ("files",)

    files: Sequence[str] = ()
    """Ids of files that the provider has, to be in the sandbox."""


@checked
@dataclass(frozen=True, slots=True)
class FileSearch(ServerTool):
    """The provider searches files that you have given it before."""

    firm: ClassVar[tuple[str, ...]] = ("filters",)

    stores: Sequence[str]
    """The ids or names of its stores: `vs_…` at OpenAI, `fileSearchStores/…` at Google."""
    max_results: int | None = None
    filters: Json = None
    """Which files count, as the provider spells it: an object at OpenAI, a text at Google."""

    def __post_init__(self) -> None:
        if isinstance(self.stores, str) or not self.stores:
            raise UserError(f"FileSearch(stores={self.stores!r}): give a list with at least one store")
        _check_count(self, "max_results", self.max_results)


@checked
@dataclass(frozen=True, slots=True, repr=False)
class MCPConnector(ServerTool):
    """The provider connects to an MCP server and calls its tools. Nothing asks you before a call: if you want to
    approve calls, or the server is only reachable from here, use `MCPServer`."""

    firm: ClassVar[tuple[str, ...]] = ("tools", "headers")

    url: str
    """Its query, and a user and password in it, are treated as secrets."""
    name: str
    """How its calls are reported."""
    token: str = field(default="", repr=False)
    """An OAuth token, or what the server takes in its place. It is sent to the provider."""
    tools: Sequence[str] | None = None
    """Only these of its tools. None: all."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Sent to the server, where the provider can do that."""

    def __post_init__(self) -> None:
        if not self.url.startswith(("https://", "http://")):
            raise UserError(
                f"MCPConnector(url={_shown(self.url)!r}): the provider connects to an address with https://"
            )
        if not _NAME.fullmatch(self.name):
            raise UserError(f"MCPConnector(name={self.name!r}): a name has up to 64 letters, digits, `_` and `-`")

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not be written down: the token, the values of the headers, and those in the address."""
        parts = urlsplit(self.url)
        return tuple(filter(None, (self.token, *self.headers.values(), parts.query, parts.password)))

    def __repr__(self) -> str:
        return f"MCPConnector(url={_shown(self.url)!r}, name={self.name!r}, tools={self.tools!r})"


@checked
@dataclass(frozen=True, slots=True)
class ImageGeneration(ServerTool):
    """The provider draws images. They are in `result.server_calls`."""

    size: str = ""
    """Such as `1024x1024`. Empty: the provider chooses."""
    quality: Literal["low", "medium", "high"] | None = None
    format: Literal["png", "webp", "jpeg"] | None = None
    background: Literal["transparent", "opaque"] | None = None


@dataclass(frozen=True, slots=True)
class DeferredTools(ServerTool):
    """The provider's own search for tools: definitions of the tools with these names are loaded when the model has
    found them. `ToolSearch` adds it where the model has such a search."""

    names: frozenset[str]


def server_tool_to_json(tool: ServerTool) -> dict[str, Json]:
    """For recordings: the settings that are set, without secrets."""
    saved: dict[str, Json] = {"tool": type(tool).__name__}
    for each in fields(tool):
        value = _shown(tool.url) if each.name == "url" and isinstance(tool, MCPConnector) else getattr(tool, each.name)
        if each.name not in _SECRET and value not in (None, "", (), [], {}, False):
            saved[each.name] = sorted(cast("frozenset[str]", value)) if isinstance(value, frozenset) else _plain(value)
    return saved


def server_tool_from_json(saved: Mapping[str, Json]) -> ServerTool:
    """The tool again, without its secrets."""
    kind = _KINDS.get(saved.get("tool"))
    if kind is None:
        raise UserError(f"{saved.get('tool')!r} is not a tool that this version knows")
    if kind is DeferredTools:
        return DeferredTools(frozenset(saved["names"]))
    known = {each.name for each in fields(kind)}
    return kind(**{name: value for name, value in saved.items() if name in known})


_SECRET = ("token", "headers")
_KINDS: dict[Json, type[ServerTool]] = {
    kind.__name__: kind
    for kind in (WebSearch, WebFetch, CodeExecution, FileSearch, MCPConnector, ImageGeneration, DeferredTools)
}


def _shown(url: str) -> str:
    """The address without what may be a key in it."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))


def _plain(value: Json) -> Json:
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Json]", value))
    return list(cast("Sequence[Json]", value)) if isinstance(value, tuple | list) else value


def _check_domains(tool: ServerTool, allowed: Sequence[str], blocked: Sequence[str]) -> None:
    name = type(tool).__name__
    for given in (allowed, blocked):
        if isinstance(given, str):
            raise UserError(f"{name}: give a list of domains, not the text {given!r}")


def _check_count(tool: ServerTool, field: str, count: int | None) -> None:
    if count is not None and count < 1:
        raise UserError(f"{type(tool).__name__}({field}={count}): expected a number from 1")
