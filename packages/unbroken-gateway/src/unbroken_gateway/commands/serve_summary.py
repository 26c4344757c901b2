"""What a gateway serves, in lines for people: `unbroken serve` prints them when it has started, or with `--check`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from yarl import URL

from unbroken.models.demo_model import NAME as DEMO
from unbroken_cli.terminal_text import counted
from unbroken_gateway.config.opening import Opened
from unbroken_gateway.settings import (
    EVERYWHERE,
    NO_STORE,
    STORE,
    BudgetSettings,
    GatewaySettings,
    GuardrailSettings,
    TeamSettings,
    UpstreamSettings,
)
from unbroken_gateway.upstreams.pool import Pool
from unbroken_gateway.upstreams.upstream import Upstream

_DAY = 86400.0
_AT_RESTART = {
    STORE: "survive a restart; --store PATH keeps them elsewhere, --store memory: nowhere",
    "memory:": "are lost when the gateway stops",
    NO_STORE: "are lost when the gateway stops",
}
_AT_ONCE = {
    None: "",
    True: ", the model may return all calls at once",
    False: ", the model is asked for one at a time too",
}


def summary(settings: GatewaySettings, opened: Opened, file: str, at: str) -> Iterator[tuple[str, str]]:
    """What it is, and the value; `at` is the address, empty if it does not listen yet."""
    place = URL(at) if at else URL.build(scheme="http", host=settings.host, port=settings.port)
    near = str(place.with_host(EVERYWHERE.get(place.host or "", place.host or ""))).rstrip("/")
    yield "listens on" if at else "would listen on", str(place).rstrip("/")
    yield "OpenAI clients", f"{near}/v1"
    yield "Anthropic clients", near
    yield "Gemini clients", near
    for alias, upstream in opened.upstreams.items():
        yield "model", f"{alias}: {_model(upstream)}"
    for each in settings.upstreams:
        if each.guardrails or each.hooks:
            yield "guardrails", f"{each.alias}: {_guardrails(each)}"
    for profile in settings.clients:
        yield "client", f"{profile.name}: {'one call at a time' if profile.serial else 'all calls at once'}"
    yield "store", settings.store
    if at_restart := _AT_RESTART.get(settings.store):
        yield "held calls", at_restart
    held = f"{len(opened.ring)} in {settings.keys_file}" if opened.ring is not None else "in the store"
    yield "keys", f"required, {held}" if settings.keys else "not required"
    yield from _money(settings)
    if settings.admin_shared or settings.admin_key_env:
        yield "admin API", f"{near}/admin/v1, {_admin(settings)}"
    if settings.cors_origins:
        yield "web pages", f"those of {', '.join(settings.cors_origins)} may use the API"
    if settings.journal:
        yield "durable runs", f"{settings.journal}, at {near}/runs/"
    if settings.record:
        part = "" if settings.record_share == 1 else f", {settings.record_share:.3g} of all requests"
        yield "recordings", f"{settings.record}{part}"
    if exported := _telemetry(settings):
        yield "telemetry", exported
    if file:
        yield "configuration", file
    if at:
        yield "status page", f"{near}/"


def warnings(settings: GatewaySettings, opened: Opened) -> Iterator[str]:
    """What is probably not intended."""
    if settings.store == NO_STORE:
        lost = "so held calls and what was spent are lost when the gateway stops"
        yield f"{Path.cwd()} cannot be written to, {lost}: name a file elsewhere with --store PATH"
    ring = opened.ring
    if ring is not None and not len(ring):
        yield f"there is no key yet: create one with `unbroken keys create NAME --file {settings.keys_file}`"
    for profile in settings.clients:
        if profile.key and not settings.keys_in_store and (ring is None or not ring.has(profile.key)):
            why = "keys are not required" if ring is None else f"{settings.keys_file} has no key of that name"
            yield f"client `{profile.name}` has the key `{profile.key}`, but {why}: its profile is never used"


def _model(upstream: Upstream) -> str:
    if upstream.pool is not None:
        return _pool(upstream.pool, upstream.own_fallback)
    wire = f" ({upstream.wire})" if upstream.wire else ""
    name = "a script to try clients with" if upstream.model.name == DEMO else upstream.model.name
    serial = ", one call at a time" if upstream.serial else ""
    at_once = _AT_ONCE[upstream.all_calls]
    then = f", else {', '.join(upstream.fallback)}" if upstream.fallback else ""
    return f"{name}{wire}{serial}{at_once}{then}"


def _pool(pool: Pool, fallback: Sequence[str]) -> str:
    ways = {
        "weighted": "at random by weight",
        "least-busy": "the least busy by weight",
        "fastest": "the fastest by weight",
    }
    how = "one for each conversation, by weight" if pool.sticky else ways[pool.choose]
    each = (
        f"{one.name} = {one.model.name} (weight {one.weight:g}, priority {one.priority})" for one in pool.deployments
    )
    then = f", else {', '.join(fallback)}" if fallback else ""
    return f"{how}: {', '.join(each)}{then}"


def _guardrails(model: UpstreamSettings) -> str:
    hooks = [f"hooks in {model.hooks}"] if model.hooks else []
    return ", ".join([*hooks, *map(_guardrail, model.guardrails)])


def _guardrail(one: GuardrailSettings) -> str:
    return f"{one.name} ({one.use})" if one.name and one.name != one.use else one.use


def _money(settings: GatewaySettings) -> Iterator[tuple[str, str]]:
    if settings.spend or settings.budgets:
        yield "spend", f"counted, and kept for {counted(round(settings.spend_kept / _DAY), 'day')}"
    for budget in settings.budgets:
        yield "budget", _budget(budget, settings.warn_at)
    for team in settings.teams:
        yield "team", f"{team.name}: {_team(team)}"


def _budget(budget: BudgetSettings, warn_at: float) -> str:
    whose = next((f"{kind} {name}" for kind in ("key", "team", "model") if (name := getattr(budget, kind))), "all")
    name = "" if budget.name.startswith(f"{whose}, ") else f" ({budget.name})"
    warned = warn_at if budget.warn_at is None else budget.warn_at
    return f"{whose}: {budget.amount}{name}, a warning at {warned:.0%}"


def _team(team: TeamSettings) -> str:
    limits = [(team.requests_per_minute, "requests"), (team.tokens_per_minute, "tokens")]
    shown = [f"{limit:,} {what}" for limit, what in limits if limit is not None]
    return f"{' and '.join(shown)} a minute" if shown else "no limits"


def _admin(settings: GatewaySettings) -> str:
    own = f"its key is in {settings.admin_key_env}" if settings.admin_key_env else "for keys made with --admin"
    return f"{own}; it may add models, teams and budgets" if settings.admin_shared else own


def _telemetry(settings: GatewaySettings) -> str:
    """Empty if nothing is exported."""
    kinds = ("", "TRACES_", "METRICS_")
    named = [name for kind in kinds if os.environ.get(name := f"OTEL_EXPORTER_OTLP_{kind}ENDPOINT")]
    if not settings.telemetry and (not named or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"):
        return ""
    to = settings.telemetry_endpoint or (f"the address in {', '.join(named)}" if named else "http://localhost:4318")
    return f"OpenTelemetry to {to}, {'with' if settings.telemetry_content else 'without'} messages and answers"
