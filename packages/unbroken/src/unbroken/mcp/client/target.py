"""An MCP server as data, without a dependency: where it is, how to sign in, and what it offers besides tools."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from unbroken.errors import UserError
from unbroken.tools.tool import TIMEOUT, AfterCrash
from unbroken_wires.validation import checked

_STORAGE = ("get_tokens", "set_tokens", "get_client_info", "set_client_info")


@checked
@dataclass(frozen=True, slots=True)
class OAuth:
    """How to sign in to a server over HTTP: `MCPServer(url=…, auth=OAuth())`.

    By default a person signs in: the page of the authorization server is shown, and the browser returns to a port of
    this machine. With `grant="client_credentials"` a program signs in with its own `client_id` and `client_secret`.
    """

    grant: Literal["authorization_code", "client_credentials"] = "authorization_code"
    client_id: str = ""
    """Of a client that is registered already. Otherwise this one registers itself."""
    client_metadata_url: str = ""
    """The address of a document that describes this client (a client ID metadata document): it is the `client_id` at
    authorization servers that accept such documents; at others this client registers itself."""
    client_secret: str = field(default="", repr=False)
    scope: str = ""
    """The scopes to ask for, separated by spaces. By default those that the server names."""
    issuer: str = ""
    """The authorization server that `client_id` belongs to: its secret is sent to no other."""
    storage: Any = field(default=None, repr=False)
    """Where tokens are kept: a file that only its owner can read, or an object with `get_tokens`, `set_tokens`,
    `get_client_info` and `set_client_info` (a `TokenStorage` of the package `mcp`). By default they live as long as the
    `MCPServer`."""
    port: int = 0
    """The port to which the browser returns, if the client was registered with one; otherwise any free one."""
    show: Callable[[str], Any] | None = None
    """Shows the user the page on which to sign in. By default it opens in a browser, and is written to standard
    error."""
    timeout: float = 300.0
    """Seconds that the user has to sign in."""

    def __post_init__(self) -> None:
        if self.grant == "client_credentials" and not (self.client_id and self.client_secret and self.issuer):
            raise UserError("OAuth(grant='client_credentials') needs client_id, client_secret and issuer")
        kept = self.storage is None or isinstance(self.storage, str | Path)
        if not kept and not all(callable(getattr(self.storage, name, None)) for name in _STORAGE):
            raise UserError(f"OAuth(storage=…): expected a path, or an object with {', '.join(_STORAGE)}")
        document = urlsplit(self.client_metadata_url)
        if self.client_metadata_url and not (document.scheme == "https" and document.path.strip("/")):
            raise UserError(
                f"OAuth(client_metadata_url={self.client_metadata_url!r}): its address starts with https:// and has a "
                "path, as in https://example.com/client.json"
            )
        if self.client_metadata_url and self.client_id:
            raise UserError("OAuth(client_metadata_url=…) takes the place of client_id: give one of them")
        if self.client_secret and not self.client_id:
            raise UserError("OAuth(client_secret=…) needs the client_id that it belongs to")


OPENING = 60.0
"""Seconds until a server has to be ready: `npx` and the like may have to fetch it first."""
OUTAGE = 30.0
"""Seconds for which a server over HTTP may be away: its tasks continue without us."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a server is and how its tools appear. What may be secret is kept out of its `repr`."""

    command: tuple[str, ...] = field(default=(), repr=False)
    url: str = field(default="", repr=False)
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    cwd: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    name: str = ""
    prefix: str = ""
    timeout: float | None = TIMEOUT
    opening: float = OPENING
    outage: float = OUTAGE
    after_crash: AfterCrash | None = None
    resources: bool = False
    sampling: Any = field(default=False, repr=False)
    auth: OAuth | None = field(default=None, repr=False)
    tasks: bool = True

    @property
    def label(self) -> str:
        """Without arguments, path and query, which may contain tokens."""
        if self.name:
            return self.name
        if self.command:
            return Path(self.command[0]).name
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"

    def without_secrets(self, text: str) -> str:
        for secret in self._secrets():
            text = text.replace(secret, "***")
        return text

    def _secrets(self) -> Iterator[str]:
        parts = urlsplit(self.url)
        secret = self.auth.client_secret if self.auth is not None else ""
        for value in (*self.env.values(), *self.headers.values(), self.url, parts.query, parts.password or "", secret):
            if len(value) > 3:  # "1" and "on" are not secrets, and occur everywhere
                yield value
                yield from (word for word in value.split() if len(word) > 8)  # `Bearer ...`


@dataclass(frozen=True, slots=True)
class Resource:
    """Something that `MCPServer.read` can read: a file, a row of a table, a page."""

    uri: str
    """Where it is. Of a template it has gaps, as in `notes://{name}`: fill them in before you read it."""
    name: str
    description: str = ""
    mime: str = ""
    size: int | None = None
    """In bytes, if the server knows it."""
    template: bool = False


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """A prompt that `MCPServer.prompt` fills in."""

    name: str
    description: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict[str, str])
    """The descriptions of its arguments, by name."""
    required: tuple[str, ...] = ()
    """The arguments that have to be given."""
