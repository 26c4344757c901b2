"""The settings of a gateway: plain frozen data, the same whether they came from a file or from options.

The types
describe the values in `unbroken.toml`. They are checked when `config` reads the file, not when you create settings
yourself. Nothing is opened or connected here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, get_args

from unbroken_gateway.relay.references import MODEL_PATHS

if TYPE_CHECKING:  # `config` evaluates the annotations; a gateway that runs does not load pydantic
    from unbroken_gateway import setting_types as values

OnDiverge: TypeAlias = Literal["append", "error"]
"""What a client gets if an answer broke after text was sent and the retry gives a different answer: the new text after
a paragraph break, or an error."""

OnExpired: TypeAlias = Literal["continue", "error"]
"""A result came after `hold_timeout`, when the other calls of its turn were given up: ask the model without them, or
refuse the request."""

OnToolError: TypeAlias = Literal["continue", "stop"]
"""After a released call failed: release the next one, or answer the rest with "not run" and ask the model."""

Choose: TypeAlias = Literal["weighted", "least-busy", "fastest"]
"""Which deployment of a model is asked: at random in proportion to the weights, the one with the fewest requests in
progress for its weight, or the one that is likely to begin its answer first."""

WithoutStore: TypeAlias = Literal["continue", "refuse"]
"""What happens to requests with budgets or limits while the store cannot be used: they are counted in this process
alone, or refused."""

WhenEmptied: TypeAlias = Literal["wait", "restore"]
"""What happens if the store comes back empty: the gateways continue with what they know until an operator decides, or
write it back by themselves."""

HOST, PORT = "127.0.0.1", 8400
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""The local address of a machine that listens on all addresses."""

STORE = "sqlite:unbroken-gateway.db"
NO_STORE = "memory://"
"""In its place, if the working directory cannot be written to: a start reports it."""

NEEDS_RESTART = (
    "host",
    "port",
    "workers",
    "store",
    "store_bytes",
    "entry_bytes",
    "large_bodies",
    "stop_timeout",
    "stop_delay",
    "journal",
    "telemetry",
    "telemetry_endpoint",
    "telemetry_content",
    "telemetry_propagate",
    "log_level",
    "log_json",
)
"""Settings that a reload does not change: what they describe exists once, for as long as the gateway runs."""


@dataclass(frozen=True, slots=True)
class DeploymentSettings:
    """One of several deployments of a model, in `[[models.deployments]]`. What is missing is taken from the model."""

    model: values.ModelName
    name: values.Alias = ""
    """For logs, metrics and the status page; the provider and a number, if it is not given."""
    base_url: values.Address = ""
    api_key_env: values.Variable = ""
    api_key_file: values.FilePath = ""
    wire: values.WireName = ""
    weight: values.Weight = 1.0
    priority: Annotated[int, *values.whole(1, 100)] = 1
    """Those with a higher number are asked only if the others cannot answer."""
    price: values.Price = field(default_factory=dict[str, float])
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """More arguments of `connect`."""


@dataclass(frozen=True, slots=True)
class GuardrailSettings:
    """One guardrail of a model, in `[[models.guardrails]]`: what it is, and the options of that function in
    `unbroken.guardrails`."""

    use: values.GuardrailName
    """`redact`, `check_input`, `check_answers`, `check_calls`, `check_output`, or `python:module:function` that returns
    any `Middleware`."""
    name: values.GuardName = ""
    """For headers and metrics; by default what `use` says."""
    pattern: values.Pattern = ""
    """What `redact` replaces: a regular expression."""
    by: str = "[redacted]"
    arguments: values.Flag = False
    """Also in the arguments of calls."""
    check: values.FunctionName = ""
    """`module:function`, the check."""
    veto: values.Pattern = ""
    """In place of a check: what matches is refused."""
    message: str = ""
    """The text of that veto."""
    tools: values.Texts = ()
    """The tools whose calls are checked; empty: all."""
    retries: Annotated[int, *values.whole(0, 10)] = 1


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """A model and the alias that clients use for it."""

    alias: values.Alias
    model: values.ModelName
    """`provider:model` as for `connect`; `python:module:function` that returns any `Model`; `demo`."""
    base_url: values.Address = ""
    api_key_env: values.Variable = ""
    api_key_file: values.FilePath = ""
    wire: values.WireName = ""
    fallback: values.Texts = ()
    """Aliases or names of models to try if this one fails."""
    serial: values.Flag = False
    """One call at a time for every client of this alias."""
    all_calls: values.Flag | None = None
    """In serial mode: may the model return several calls at once? None: yes, unless the client itself asks for one."""
    recover: values.Flag = False
    """Find calls that leaked into the text."""
    price: values.Price = field(default_factory=dict[str, float])
    """What a million tokens cost in US dollars, by their kind; empty: as in the price list."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """More arguments of `connect`: time-outs, attempts, temperature, headers."""
    deployments: tuple[DeploymentSettings, ...] = ()
    """If there are several, each request is sent to one of them."""
    choose: Annotated[Choose, values.one_of(get_args(Choose))] = "weighted"
    """Which of its deployments is asked."""
    sticky: values.Flag = False
    """All requests of one conversation go to the same deployment, whose prompt cache has its beginning."""
    cooldown: values.Seconds = 30.0
    """Seconds for which a deployment that failed is asked last."""
    probe: values.Patience = None
    """Seconds between requests for the list of models that find out whether a deployment that failed is back; None: no
    such requests."""
    guardrails: tuple[GuardrailSettings, ...] = ()
    """The first is the outermost."""
    hooks: values.FilePath = ""
    """A Python file whose functions see its requests, calls and answers; it takes the place of the gateway's."""
    hook_timeout: values.Seconds = 10.0
    """Seconds that such a function, or a check of a guardrail, may take."""


@dataclass(frozen=True, slots=True)
class ClientProfile:
    """Identifies a client and sets what it supports. All criteria that are given have to match."""

    name: values.Text
    key: values.KeyName = ""
    """The name of a gateway key."""
    header: values.Header = ""
    """`Name: value`, or `Name` alone for any value."""
    user_agent: values.Text = ""
    """Text that its User-Agent contains."""
    serial: values.Flag = True
    all_calls: values.Flag | None = None
    """As for a model, and instead of that."""


@dataclass(frozen=True, slots=True)
class BudgetSettings:
    """What may be spent: by a key, by a team, with a model, or by all if none of these is given."""

    name: values.Text
    """For errors, logs and reports; made from the others, if the file does not have it."""
    amount: values.Amount
    key: values.KeyName = ""
    team: values.Text = ""
    model: values.Alias = ""
    """The alias of a model."""
    warn_at: values.Share | None = None
    """Which part of it may be spent before it is reported; None: as in `[spend]`."""


@dataclass(frozen=True, slots=True)
class TeamSettings:
    """Limits that the keys of a team share."""

    name: values.Text
    requests_per_minute: Annotated[int, *values.whole(1)] | None = None
    tokens_per_minute: Annotated[int, *values.whole(1)] | None = None


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Each field declares its table in `unbroken.toml`, and its key there if that has another name."""

    upstreams: tuple[UpstreamSettings, ...]
    clients: tuple[ClientProfile, ...] = ()
    budgets: tuple[BudgetSettings, ...] = ()
    teams: tuple[TeamSettings, ...] = ()
    host: Annotated[values.Host, values.In("server")] = HOST
    port: Annotated[int, *values.whole(0, 65535), values.In("server")] = PORT
    workers: Annotated[int, *values.whole(1, 256), values.In("server")] = 1
    store: Annotated[values.StoreUrl, values.In("store", "url")] = STORE
    """`memory:`, `sqlite:PATH` or just a path, `redis://HOST:PORT/DB` (or several, with spaces between
    them), `env:VARIABLE` that holds one of these."""
    ttl: Annotated[values.Seconds, values.In("store")] = 7 * 24 * 3600.0
    """Seconds that answers of models are stored."""
    store_bytes: Annotated[values.Size, values.In("store", "max_bytes")] = 1 << 30
    """Maximum size of the store; the oldest entries are removed first. (Redis has a limit of its own.)"""
    entry_bytes: Annotated[values.Size, values.In("store", "max_entry")] = 8 << 20
    """Maximum size of one stored answer."""
    when_emptied: Annotated[WhenEmptied, values.one_of(get_args(WhenEmptied)), values.In("store")] = "wait"
    hold_timeout: Annotated[values.Seconds, values.In("serial")] = 3600.0
    """Seconds to wait for the result of a released call; then the rest of its turn is dropped."""
    retry_window: Annotated[values.Seconds, values.In("serial")] = 60.0
    """Seconds in which a retry of a turn's first request gets the same answer."""
    on_tool_error: Annotated[OnToolError, values.one_of(get_args(OnToolError)), values.In("serial")] = "continue"
    on_expired: Annotated[OnExpired, values.one_of(get_args(OnExpired)), values.In("serial")] = "continue"
    strict: Annotated[values.Flag, values.In("repair")] = False
    """Refuse a broken history, or one whose held calls are lost (400), instead of continuing."""
    on_diverge: Annotated[OnDiverge, values.one_of(get_args(OnDiverge)), values.In("chain")] = "append"
    keys: Annotated[values.Flag, values.In("keys", "required")] = False
    keys_file: Annotated[values.FilePath, values.In("keys", "file")] = "unbroken-keys.json"
    keys_in_store: Annotated[values.Flag, values.In("keys", "in_store")] = False
    """The keys are in the store instead of the file: all gateways that share the store have the same."""
    keys_keep: Annotated[values.Seconds, values.In("keys", "keep")] = 300.0
    """Seconds for which the keys of a store that cannot be read stay valid."""
    admin_key_env: Annotated[values.Variable, values.In("admin", "key_env")] = ""
    """The variable that holds a key of the admin API, for a gateway without keys, or before it has an admin key."""
    admin_shared: Annotated[values.Flag, values.In("admin", "shared")] = False
    """Models, teams and budgets may be added through the admin API. They are in the store, for all gateways that share
    it."""
    shared_ids: Annotated[values.Flag, values.In("keys")] = False
    """Every key may use everything that the provider holds: files, conversations, containers, no matter who created
    them."""
    passes: Annotated[values.PassRules, values.In("passing", "paths")] = MODEL_PATHS
    """The requests that are passed through to a provider, `METHOD /v1/path` each; a key may have a list of its own."""
    open_to_all: Annotated[values.Flag, values.In("server")] = False
    """Confirms that the gateway may listen on a public address without keys."""
    cors_origins: Annotated[values.Origins, values.In("server")] = ()
    """Web pages that may use the API from a browser: their origins, or `*` for all."""
    max_body: Annotated[values.Size, values.In("server")] = 32 << 20
    max_values: Annotated[int, *values.whole(1000), values.In("server")] = 250_000
    """Maximum number of values (texts, numbers, objects, lists) in the JSON of one request."""
    large_bodies: Annotated[values.Size, values.In("server")] = 256 << 20
    """Maximum memory, by estimate, that large bodies may take together while they are answered."""
    max_response: Annotated[values.Size, values.In("server")] = 64 << 20
    """Maximum bytes that a provider may send for one request, all attempts together."""
    max_calls: Annotated[int, *values.whole(1), values.In("server")] = 1000
    """Maximum number of calls in one answer of a model."""
    max_headers: Annotated[values.Size, values.In("server")] = 64 << 10
    head_timeout: Annotated[values.Seconds, values.In("server")] = 10.0
    """Seconds in which the head of a request has to arrive."""
    body_timeout: Annotated[values.Seconds, values.In("server")] = 60.0
    """The same for its body."""
    write_timeout: Annotated[values.Seconds, values.In("server")] = 300.0
    """Seconds that a client may take to read what was sent."""
    keep_alive: Annotated[values.Patience, values.In("server")] = 5.0
    """Seconds after which a client that waits for more of a stream gets a sign of life; None: never."""
    stop_timeout: Annotated[values.Seconds, values.In("server")] = 60.0
    """Seconds that streams may take to end when the gateway is stopped."""
    stop_delay: Annotated[values.Delay, values.In("server")] = 0.0
    """Seconds for which a gateway that is stopped still accepts requests while `/readyz` is a 503, so that balancers
    notice before connections are refused."""
    look_every: Annotated[values.Seconds, values.In("server")] = 1.0
    """Seconds after which changes are looked for: of keys, of what gateways share through the store and, with `watch`,
    of the configuration file."""
    websocket_idle: Annotated[values.Seconds, values.In("server")] = 3600.0
    """Seconds without a request after which a WebSocket is closed: it holds a conversation in memory."""
    record: Annotated[values.FilePath, values.In("record", "folder")] = ""
    """The folder in which requests are recorded; empty: no recording."""
    record_share: Annotated[values.Share, values.In("record", "share")] = 1.0
    """The fraction of requests that is recorded, from 0 to 1."""
    record_bytes: Annotated[values.Size, values.In("record", "max_bytes")] = 1 << 30
    """Maximum size of the recordings in that folder."""
    journal: Annotated[values.JournalUrl, values.In("durable")] = ""
    """The journal whose durable runs are served at `/runs`: `sqlite:///runs.db`, `postgresql://HOST/DATABASE`, or
    `env:VARIABLE` that holds one; empty: none."""
    watch: Annotated[values.Flag, values.In("server")] = False
    """Reload the configuration when its file changes."""
    telemetry: Annotated[values.Flag, values.In("telemetry", "enabled")] = False
    """Export traces and metrics with OpenTelemetry; also on if OTEL_EXPORTER_OTLP_ENDPOINT is set."""
    telemetry_endpoint: Annotated[values.Address, values.In("telemetry", "endpoint")] = ""
    """The OTLP server; empty: that of the variables, or http://localhost:4318."""
    telemetry_content: Annotated[values.Flag, values.In("telemetry", "content")] = False
    """Export messages, arguments and answers too, with secrets masked."""
    telemetry_propagate: Annotated[values.Flag, values.In("telemetry", "propagate")] = False
    """Send `traceparent` and the like on to providers."""
    access_log: Annotated[values.Flag, values.In("server")] = False
    """A line in the log for each request."""
    access_share: Annotated[values.Share, values.In("log", "access_share")] = 1.0
    """With `access_log`: the fraction of successful requests that gets a line, from 0 to 1. Others always get one."""
    log_level: Annotated[values.LogLevelName, values.In("log", "level")] = "info"
    """From which level on lines are logged. The option of the command and UNBROKEN_LOG come before it."""
    log_json: Annotated[values.Flag, values.In("log", "json")] = False
    """Each line is a JSON object."""
    spend: Annotated[values.Flag, values.In("spend", "enabled")] = False
    """Whether it is counted what requests cost. Budgets turn it on."""
    spend_kept: Annotated[values.Seconds, values.In("spend", "keep")] = 400 * 86400.0
    """Seconds for which what was spent on a day is stored."""
    spend_batch: Annotated[values.Seconds, values.In("spend", "batch")] = 1.0
    """Seconds after which what was spent is written to the store; a crash loses no more than this."""
    warn_at: Annotated[values.Share, values.In("spend")] = 0.8
    """Which part of a budget may be spent before it is reported."""
    without_store: Annotated[WithoutStore, values.one_of(get_args(WithoutStore)), values.In("spend")] = "continue"
    hooks: Annotated[values.FilePath, values.In("guardrails")] = ""
    """A Python file whose functions see the requests, calls and answers of all models that have none of their own."""

    def __post_init__(self) -> None:
        if self.hooks:
            upstreams = tuple(replace(each, hooks=each.hooks or self.hooks) for each in self.upstreams)
            object.__setattr__(self, "upstreams", upstreams)
