"""The settings of a gateway: plain frozen data, the same whether they came from a file or from options.

Nothing is read, opened or connected here; `config` reads the file, `upstreams` connects the models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from unbroken.gateway.passthrough.pass_rules import MODEL_PATHS

OnDiverge: TypeAlias = Literal["append", "error"]
"""What a client gets when an answer broke after text was sent and the second one says something else: the new text
after a paragraph break, or an error."""

OnToolError: TypeAlias = Literal["continue", "stop"]
"""After a failed result of a call that was released: release the next, or answer the rest "not run" and ask."""

HOST, PORT = "127.0.0.1", 8400


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """A model under the name by which clients ask for it."""

    alias: str
    model: str
    """`provider:model` as `connect` takes it; `python:module:function` that gives any `Model`; `demo`."""
    base_url: str = ""
    api_key_env: str = ""
    api_key_file: str = ""
    wire: str = ""
    fallback: tuple[str, ...] = ()
    """Aliases or names of models to go on with when this one has failed."""
    serial: bool = False
    """One call at a time for every client of this alias."""
    recover: bool = False
    """Find calls that leaked into the text."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """More arguments of `connect`: time-outs, attempts, temperature, headers."""


@dataclass(frozen=True, slots=True)
class ClientProfile:
    """Who a client is and what it can take. All of the marks that are given have to fit."""

    name: str
    key: str = ""
    """The name of a gateway key."""
    header: str = ""
    """`Name: value`, or `Name` alone for any value."""
    user_agent: str = ""
    """What its User-Agent contains."""
    serial: bool = True


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    upstreams: tuple[UpstreamSettings, ...]
    clients: tuple[ClientProfile, ...] = ()
    host: str = HOST
    port: int = PORT
    workers: int = 1
    store: str = "sqlite:unbroken-gateway.db"
    """`memory:`, `sqlite:PATH` or just a path, `redis://HOST:PORT/DB`, `env:VARIABLE` that holds one of these."""
    ttl: float = 7 * 24 * 3600.0
    """Seconds that what a model said is kept."""
    store_bytes: int = 1 << 30
    """The most that is kept; the oldest goes first. (Redis has a limit of its own.)"""
    entry_bytes: int = 8 << 20
    """The most that one answer may take there."""
    hold_timeout: float = 3600.0
    """Seconds that a call which was released is waited for; then the rest of its turn is let go."""
    retry_window: float = 60.0
    """Seconds in which a retry of a turn's first request gets the same answer."""
    on_tool_error: OnToolError = "continue"
    on_diverge: OnDiverge = "append"
    strict: bool = False
    """Refuse a broken history, or one whose held calls are lost (400), instead of continuing."""
    keys: bool = False
    keys_file: str = "unbroken-keys.json"
    shared_ids: bool = False
    """Every key may use whatever the provider holds: files, conversations, containers, whoever made them."""
    passes: tuple[str, ...] = MODEL_PATHS
    """The requests that are passed through to a provider, `METHOD /v1/path` each; a key may have a list of its own."""
    open_to_all: bool = False
    """Told twice: another address than this machine's own, without keys."""
    max_body: int = 32 << 20
    max_values: int = 250_000
    """The most values (texts, numbers, objects, lists) that the JSON of one request may have."""
    large_bodies: int = 256 << 20
    """The most memory that large bodies may take together while they are answered, as far as it can be told."""
    max_response: int = 64 << 20
    """The most bytes that a provider may send for one request, all tries together."""
    max_calls: int = 1000
    """The most calls that one answer of a model may have."""
    max_headers: int = 64 << 10
    head_timeout: float = 10.0
    """Seconds in which the head of a request has to come."""
    body_timeout: float = 60.0
    """The same for its body."""
    write_timeout: float = 300.0
    """Seconds that a client may take to read what was sent."""
    record: str = ""
    """The folder in which requests are recorded; empty: none is."""
    record_share: float = 1.0
    """Which part of them, from 0 to 1."""
    record_bytes: int = 1 << 30
    """The most that the recordings there may take."""
    access_log: bool = False
    """A line in the log for each request."""
    stop_timeout: float = 60.0
    """Seconds that streams may take to end when the gateway is stopped."""
