"""The status page and its data. Pure: `GatewayStatus` in, bytes out.

What the page shows is built once, here, as facts and tables of plain text. `status_page` renders it first, also for
browsers without scripts; status.html renders it again every two seconds. Both only produce text, because names of
models and tools and error messages are untrusted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import quote

import orjson

from unbroken.asgi import page_headers
from unbroken_gateway.admin.stats import Counts, DeploymentStatus, RecentRequest, UpstreamStatus
from unbroken_gateway.reloading import Reload
from unbroken_gateway.spending.allowance import dollars
from unbroken_gateway.turns.pending import HeldTurn

_PAGE = Path(__file__).with_name("status.html").read_text("utf-8")
_HEADERS = page_headers(_PAGE)
_TOP, _, _REST = _PAGE.partition("<!--view-->")
_MIDDLE, _, _BOTTOM = _REST.partition("null<!--data-->")
_BARS = 40
"""How many of the last answers the small picture shows."""
_HELD_SHOWN = 50
State: TypeAlias = Literal["", "good", "warn", "bad", "quiet"]


@dataclass(frozen=True, slots=True)
class StoreStatus:
    kind: str
    """`sqlite`, `memory`, `redis`."""
    entries: int = 0
    bytes: int = 0
    problem: str = ""
    """Why the store cannot be used, without secrets."""


@dataclass(frozen=True, slots=True)
class GatewayStatus:
    version: str
    now: float
    started: float
    upstreams: tuple[UpstreamStatus, ...]
    store: StoreStatus | None = None
    """None if only one key's own requests are shown."""
    in_flight: int = 0
    held: tuple[HeldTurn, ...] = ()
    """Turns with calls that wait to be released, the oldest first."""
    counts: Counts = field(default_factory=Counts)
    """All requests that have ended."""
    recent: tuple[RecentRequest, ...] = ()
    keys: bool = False
    key: str = ""
    """The name of the key whose requests are shown; empty: all requests."""
    workers: int = 1
    reload: Reload | None = None
    """The last time that the configuration was read again."""
    alert: str = ""
    """What an operator has to do now."""
    cost: int | None = None
    """What the requests cost since the start, in nano-dollars. None if it is not counted."""


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    note: str = ""
    state: State = ""
    link: str = ""
    """Where the text leads: a page of this gateway."""
    bars: tuple[float, ...] = ()
    """A small picture of numbers, each a share of the largest."""
    label: str = ""
    """The picture in words."""


@dataclass(frozen=True, slots=True)
class Fact:
    name: str
    value: Cell


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    empty: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """What the page shows."""

    headline: str
    facts: tuple[Fact, ...]
    tables: tuple[Table, ...]
    alert: str = ""
    """What an operator has to do now."""


def status_json(status: GatewayStatus) -> bytes:
    return _dumps({"status": status, "view": view(status)})


def status_page(status: GatewayStatus | None) -> tuple[bytes, dict[str, str]]:
    """The page and its headers. Without a status it is empty and asks for a key."""
    return render_page(None if status is None else view(status))


def render_page(shown: View | None) -> tuple[bytes, dict[str, str]]:
    """A page with this view, and its headers. Its script reads the data of its path again every two seconds."""
    body, data = "", "null"
    if shown is not None:
        # Nothing is escaped inside a script element, so the JSON must not contain what would close it.
        body, data = _html(shown), _dumps(shown).decode().replace("<", "\\u003c")
    return "".join((_TOP, body, _MIDDLE, data, _BOTTOM)).encode("utf-8", "replace"), _HEADERS


def _dumps(value: object) -> bytes:
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:  # half a surrogate pair, in a name that a client chose
        return json.dumps(value, default=asdict).encode()


def view(status: GatewayStatus) -> View:
    uptime = f"up {_span(status.now - status.started)}"
    workers = f", one of {status.workers} workers (its own numbers; /metrics has all)" if status.workers > 1 else ""
    return View(
        headline=f"version {status.version}, {uptime}{workers}",
        facts=(*_facts(status),),
        tables=(
            _upstreams(status),
            *([_deployments(status)] if any(each.deployments for each in status.upstreams) else []),
            *([_held(status)] if status.held else []),
            _requests(status),
        ),
        alert=status.alert,
    )


def _facts(status: GatewayStatus) -> Sequence[Fact]:
    counts = status.counts
    errors = sum(upstream.errors for upstream in status.upstreams)
    asked = Fact("Requests", Cell(f"{counts.all:,}", f"{status.in_flight:,} in flight"))
    rest = [f"{counts.refused:,} refused"] if counts.refused else []
    rest += [f"{counts.failed:,} failed"] if counts.failed else []
    answered = Fact("Answered", Cell(f"{counts.answered:,}", ", ".join(rest)))
    failed = Fact("Model errors", Cell(f"{errors:,}", _share(errors, counts.all), "warn" if errors else ""))
    since = f"the oldest for {_span(status.now - status.held[0].since)}" if status.held else ""
    held = Fact("Held turns", Cell(f"{len(status.held):,}", since or "calls that wait for others"))
    cost = [Fact("Cost", Cell(dollars(status.cost or 0), "since the start", link="spend"))]
    cost = cost if status.cost is not None else []
    store = status.store
    if store is None:
        return asked, answered, failed, held, *cost, Fact("Key", Cell(status.key, "its own requests only"))
    kept = f"{_number(store.entries, 'entry', 'entries')}, {_size(store.bytes)}"
    return (
        asked,
        answered,
        failed,
        held,
        *cost,
        Fact("Store", Cell(store.kind, store.problem or kept, "bad" if store.problem else "")),
        Fact("Keys", Cell("on" if status.keys else "off", "" if status.keys else "clients need no key")),
        *([] if status.reload is None else [Fact("Configuration", _reload(status.reload, status.now))]),
    )


def _reload(reload: Reload, now: float) -> Cell:
    when = _ago(now - reload.at)
    if reload.problem:
        return Cell("not reloaded", f"{when}, the old one is in force: {reload.problem}", "bad")
    changes = f"{when}, {_number(len(reload.changes), 'change', 'changes')}"
    if reload.needs_restart:
        return Cell("reloaded", f"{changes}; a restart is needed for {', '.join(reload.needs_restart)}", "warn")
    return Cell("reloaded", changes)


def _upstreams(status: GatewayStatus) -> Table:
    def row(upstream: UpstreamStatus) -> tuple[Cell, ...]:
        fallback = f"falls back to {', '.join(upstream.fallback)}" if upstream.fallback else ""
        when = "" if upstream.last_error_at is None else _ago(status.now - upstream.last_error_at)
        when = f"{when}, request {upstream.last_error_id}" if upstream.last_error_id else when
        models = dict.fromkeys([upstream.model, *(each.model for each in upstream.deployments)])
        several = _number(len(upstream.deployments), "deployment", "deployments") if upstream.deployments else ""
        return (
            Cell(upstream.alias, fallback),
            Cell(", ".join(models), several),
            Cell(upstream.wire or "in this process", state="quiet"),
            Cell("one at a time" if upstream.serial else "any number", state="" if upstream.serial else "quiet"),
            Cell(f"{upstream.requests:,}"),
            Cell(f"{upstream.errors:,}", state="warn" if upstream.errors else "quiet"),
            _times(upstream.times),
            Cell(upstream.last_error, when) if upstream.last_error else Cell("none", state="quiet"),
        )

    other = status.counts.all - sum(upstream.requests for upstream in status.upstreams)
    return Table(
        "Models",
        ("Alias", "Model", "API", "Calls", "Requests", "Errors", "Time", "Last error"),
        tuple(row(upstream) for upstream in status.upstreams),
        "No model is set up.",
        f"{_number(other, 'more request', 'more requests')} reached none of these" if other > 0 else "",
    )


_DEPLOYMENTS_SHOWN = 100


def _deployments(status: GatewayStatus) -> Table:
    every = [(upstream.alias, each) for upstream in status.upstreams for each in upstream.deployments]
    rows = tuple(
        (
            Cell(alias),
            Cell(each.name, each.model),
            _state_of(each),
            Cell(f"{each.requests:,}", f"{each.busy:,} in flight" if each.busy else ""),
            Cell(f"{each.failures:,}", state="warn" if each.failures else "quiet"),
            _times(each.times),
            Cell(each.reason) if each.reason else Cell("none", state="quiet"),
        )
        for alias, each in every[:_DEPLOYMENTS_SHOWN]
    )
    more = f"the first {_DEPLOYMENTS_SHOWN} of {len(every):,}" if len(every) > _DEPLOYMENTS_SHOWN else ""
    columns = ("Alias", "Deployment", "State", "Requests", "Failures", "First byte", "Last cooldown")
    return Table("Deployments", columns, rows, "", more)


def _state_of(each: DeploymentStatus) -> Cell:
    share = f"weight {each.weight:g}, priority {each.priority}"
    if not each.cooling:
        return Cell("in use", share, "good")
    until = f"for another {_span(each.cooling + 1)}"
    return Cell("probe failed" if each.probe_failed else "cooling down", until, "bad" if each.probe_failed else "warn")


def _times(times: Sequence[float]) -> Cell:
    """Half of the answers, and 95 % of them, took at most this long."""
    if not times:
        return Cell("")
    ordered = sorted(times)
    half, most = (ordered[min(int(len(ordered) * share), len(ordered) - 1)] for share in (0.5, 0.95))
    last = times[-_BARS:]
    label = f"the last {len(last)} took {_seconds(min(last))} to {_seconds(max(last))}"
    bars = tuple(round(each / (max(last) or 1.0), 3) for each in last)
    return Cell(f"p50 {_seconds(half)}", f"p95 {_seconds(most)}", bars=bars, label=label)


def _held(status: GatewayStatus) -> Table:
    rows = tuple(
        (
            Cell(_span(status.now - turn.since)),
            Cell(turn.session),
            Cell(turn.alias),
            Cell(turn.client or turn.key or "unknown", turn.key if turn.client else ""),
            Cell(_number(turn.waiting, "call waits", "calls wait"), _named(turn.calls)),
            Cell(turn.released, f"for another {_span(turn.expires - status.now)}" if turn.expires else ""),
        )
        for turn in status.held[:_HELD_SHOWN]
    )
    more = "their clients take one call at a time: each next call waits for the result of the one before"
    if len(status.held) > _HELD_SHOWN:
        more = f"the {_HELD_SHOWN} oldest of {len(status.held):,}; {more}"
    return Table(
        "Held turns", ("Held for", "Turn", "Model", "Client", "Held", "Waits for the result of"), rows, "", more
    )


def _requests(status: GatewayStatus) -> Table:
    columns = ("When", "Client", "Model", "Status, id", "Time", "Tokens", "Calls", "Notes")
    rows = tuple(_request(request, status.now) for request in status.recent)
    if status.cost is not None:
        columns = (*columns, "Cost")
        costs = map(_cost, status.recent)
        rows = tuple((*row, cell) for row, cell in zip(rows, costs, strict=True))
    if any(request.recording for request in status.recent):
        columns = (*columns, "Recording")
        shown = (_recording(request) for request in status.recent)
        rows = tuple((*row, cell) for row, cell in zip(rows, shown, strict=True))
    counted = status.counts.all
    note = f"the last {len(rows):,} of {counted:,}" if counted > len(rows) else ""
    return Table("Recent requests", columns, rows, "None yet. Point a client at this address.", note)


def _cost(request: RecentRequest) -> Cell:
    if request.cost is None:
        return Cell("")
    return Cell(dollars(request.cost), "estimated" if request.is_estimated else "")


def _recording(request: RecentRequest) -> Cell:
    if not request.recording:
        return Cell("")
    return Cell("show recording", link=f"recordings/#{quote(request.recording, safe='')}")


def _request(request: RecentRequest, now: float) -> tuple[Cell, ...]:
    how = "streamed" if request.streamed else "not streamed"
    first = "" if request.first_token is None else f"first after {_seconds(request.first_token)}"
    shown = request.upstream or request.upstream_wire
    held = bool(request.handed) and not request.handed.startswith("1/")
    tokens = f"{request.input_tokens:,} in", f"{request.output_tokens:,} out"
    sent = f"call {request.handed.replace('/', ' of ')}" if request.handed else ""
    notes = [*request.repairs, *(f"retried: {what}" for what in request.restarts), *request.guardrails]
    return (
        Cell(_ago(now - request.at), _clock(request.at)),
        _client(request, how),
        Cell(request.alias or "unknown", "a held call: the model was not asked" if held else shown),
        _outcome(request),
        Cell(_seconds(request.seconds), first),
        Cell(*tokens) if request.input_tokens or request.output_tokens else Cell(""),
        Cell(_named(request.calls), sent),
        Cell(", ".join(notes), request.error) if notes else Cell(request.error, state="bad" if request.error else ""),
    )


def _outcome(request: RecentRequest) -> Cell:
    state: State = "good" if request.status < 400 else "warn" if request.status < 500 else "bad"
    return Cell(str(request.status), request.id, state)


def _named(calls: Sequence[str]) -> str:
    """`search × 3, read_file`"""
    return ", ".join(f"{name} × {times}" if times > 1 else name for name, times in Counter(calls).items())


def _client(request: RecentRequest, how: str) -> Cell:
    named = [name for name in (request.client, request.key, request.client_wire) if name]
    return Cell(named[0], ", ".join([*named[1:], how]))


def _html(shown: View) -> str:
    facts = "".join(
        f"<div><dt>{escape(fact.name)}</dt><dd{_state(fact.value)}>{_words(fact.value)}</dd></div>"
        for fact in shown.facts
    )
    tables = "".join(_table(table) for table in shown.tables)
    alert = f'<p class="alert" role="alert">{escape(shown.alert)}</p>' if shown.alert else ""
    return f'{alert}<p class="headline">{escape(shown.headline)}</p><dl class="facts">{facts}</dl>{tables}'


def _table(table: Table) -> str:
    note = f" <small>{escape(table.note)}</small>" if table.note else ""
    title = f"<h2>{escape(table.title)}{note}</h2>"
    if not table.rows:
        return f'<section>{title}<p class="empty">{escape(table.empty)}</p></section>'
    head = "".join(f'<th role="columnheader" scope="col">{escape(column)}</th>' for column in table.columns)
    rows = "".join(
        '<tr role="row">'
        + "".join(
            f'<td role="cell" data-label="{escape(column)}"{_state(cell)}>{_words(cell)}</td>'
            for column, cell in zip(table.columns, row, strict=True)
        )
        + "</tr>"
        for row in table.rows
    )
    return (
        f'<section>{title}<table role="table"><thead role="rowgroup"><tr role="row">{head}</tr></thead>'
        f'<tbody role="rowgroup">{rows}</tbody></table></section>'
    )


def _words(cell: Cell) -> str:
    note = f"<small>{escape(cell.note)}</small>" if cell.note else ""
    text = escape(cell.text)
    if cell.link:
        text = f'<a href="{escape(cell.link)}">{text}</a>'
    return f"<span>{text}</span>{note}{_picture(cell)}"


def _picture(cell: Cell) -> str:
    if not cell.bars:
        return ""
    bars = "".join(
        f'<rect x="{4 * at}" y="{16 - tall}" width="3" height="{tall}"></rect>'
        for at, tall in enumerate(max(1, round(16 * share)) for share in cell.bars)
    )
    size = 4 * len(cell.bars)
    return (
        f'<svg role="img" aria-label="{escape(cell.label)}" width="{size}" height="16" '
        f'viewBox="0 0 {size} 16">{bars}</svg>'
    )


def _state(cell: Cell) -> str:
    return f' class="{cell.state}"' if cell.state else ""


def _span(seconds: float) -> str:
    seconds = max(0, int(seconds))
    for size, unit, below, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            rest = seconds % size // below
            return f"{seconds // size} {unit} {rest} {small}" if rest else f"{seconds // size} {unit}"
    return f"{seconds} s"


def _ago(seconds: float) -> str:
    if seconds < 1:
        return "now"
    count, unit, *_ = _span(seconds).split()
    return f"{count} {unit} ago"


def _clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%H:%M:%S} UTC"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s" if seconds < 60 else _span(seconds)


def _size(size: int) -> str:
    amount = float(size)
    for unit in ("bytes", "KB", "MB"):
        if amount < 1024:
            return f"{size} bytes" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GB"


def _number(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} % of all" if part and whole else ""
