"""What clients send to `runs_app`: paths, parameters and bodies, read and checked. Every mistake is a sentence."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast
from urllib.parse import parse_qsl, quote, unquote

from unbroken.asgi import Refused, Scope
from unbroken.errors import TooDeep
from unbroken.tools.approval import Allow, Deny, Edit
from unbroken.tools.results import to_parts
from unbroken_durable.database import storable
from unbroken_durable.records import LONGEST_NAME, LONGEST_WAIT, STATES, State, is_too_long, is_wait
from unbroken_wires.messages import Json, ToolResult
from unbroken_wires.wires.jsontext import MAX_DEPTH, Damaged, loads_faithful, shallow

LISTED = 100
MOST_LISTED = 1000
_UNWANTED = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class Path(NamedTuple):
    """`/`, `/session`, `/runs`, `/runs/` (the page, as `/`), `/runs/ID` and `/runs/ID/WHAT`."""

    place: str
    run_id: str = ""
    what: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    state: State | None
    agent: str | None
    tenant: str | None
    limit: int


@dataclass(frozen=True, slots=True)
class NewRun:
    agent: str
    prompt: str
    run_id: str | None
    tenant: str | None
    answer_within: float | None


def mount_of(scope: Scope) -> str:
    """Where the app is mounted: empty, or a path without a slash at its end."""
    return str(scope.get("root_path", "")).rstrip("/")


def read_path(scope: Scope) -> Path | None:
    """A slash in a run's id is sent as %2F, so the path is split before it is decoded."""
    path, mount = str(scope["path"]), mount_of(scope)
    raw = (scope.get("raw_path") or quote(path).encode()).partition(b"?")[0].decode("latin-1")
    segments = raw.split("/")[1:]
    if mount and (path == mount or path.startswith(f"{mount}/")):
        segments = segments[mount.count("/") :]
    match [unquote(segment) for segment in segments]:
        case [] | [""] | ["runs", ""]:
            return Path("page")
        case ["session"]:
            return Path("session")
        case ["runs"]:
            return Path("runs")
        case ["runs", run_id]:
            return Path("run", run_id)
        case ["runs", run_id, ("answers" | "cancel" | "events" | "ui" | "ag-ui") as what] if run_id:
            return Path("run", run_id, what)
        case _:
            return None


def read_query(scope: Scope) -> dict[str, str]:
    return dict(parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True))


def read_listing(query: Mapping[str, str]) -> Listing:
    state = query.get("state") or None
    if state is not None and state not in STATES:
        raise Refused(400, f"there is no state {state[:50]!r}; there are {', '.join(STATES)}")
    limit = query.get("limit") or str(LISTED)
    if not limit.isascii() or not limit.isdecimal() or not 1 <= int(limit[:9]) <= MOST_LISTED or len(limit) > 9:
        raise Refused(400, f"`limit` is a number from 1 to {MOST_LISTED}")
    return Listing(state, query.get("agent") or None, query.get("tenant"), int(limit))


def read_after(query: Mapping[str, str], headers: Mapping[str, str]) -> int:
    """The number of the last event that the client has. The header is what a browser sends when it connects again, so
    it comes before the address."""
    given = headers.get("last-event-id", "").strip() or query.get("after", "").strip() or "0"
    if not given.isascii() or not given.isdecimal() or len(given) > 18:
        raise Refused(400, "`Last-Event-ID` and `after` are the number of the last event that you have, or 0")
    return int(given)


def read_object(data: bytes) -> dict[str, Json]:
    try:
        if not shallow(data):
            raise TooDeep
        body = loads_faithful(data)
    except TooDeep:
        raise Refused(400, f"the body is JSON nested deeper than {MAX_DEPTH} levels") from None
    except Damaged:
        raise Refused(400, "the body is not JSON") from None
    if not isinstance(body, dict):
        raise Refused(400, "the body is not a JSON object")
    return cast("dict[str, Json]", body)


def read_new_run(body: dict[str, Json]) -> NewRun:
    known = ("agent", "prompt", "run_id", "tenant", "answer_within")
    for name in body:
        if name not in known:
            raise Refused(400, f"there is no field {name[:50]!r}; there are {', '.join(known)}")
    prompt = body.get("prompt")
    if not isinstance(prompt, str) or not prompt.strip():
        raise Refused(400, "`prompt` is the question or task, as a text that is not empty")
    agent = _name(body, "agent")
    if agent is None:
        raise Refused(400, "`agent` is missing: the name of the agent that answers")
    tenant = None if body.get("tenant") == "" else _name(body, "tenant")
    within = body.get("answer_within")
    if within is not None and not is_wait(within):
        raise Refused(400, f"`answer_within` is a number of seconds, more than 0 and at most {LONGEST_WAIT:,}")
    run_id = _name(body, "run_id")
    if run_id in (".", ".."):
        raise Refused(400, f"`run_id` cannot be `{run_id}`: clients and proxies take it out of an address")
    return NewRun(agent, prompt, run_id, tenant, None if within is None else float(cast("float", within)))


def _name(body: dict[str, Json], field: str) -> str | None:
    value = body.get(field)
    if value is None:
        return None
    if not isinstance(value, str) or not value or is_too_long(value) or not is_plain(value):
        raise Refused(400, f"`{field}` is a text of 1 to {LONGEST_NAME} bytes of UTF-8, without control characters")
    return value


def is_plain(text: str) -> bool:
    """Without control characters and halves of surrogate pairs, which no database stores."""
    return not any(
        character < " " or "\x7f" <= character < "\xa0" or "\ud800" <= character < "\ue000" for character in text
    )


def read_answers(body: dict[str, Json]) -> dict[str, object]:
    if not body:
        raise Refused(400, 'the answers are by call id, as in {"call_1": {"decision": "allow"}}')
    return {call: _read_answer(call, answer) for call, answer in body.items()}


def _read_answer(call: str, answer: Json) -> object:
    match answer:
        case {"decision": "allow", **rest} if not rest:
            return Allow()
        case {"decision": "deny", **rest} if rest.keys() <= {"reason"} and isinstance(rest.get("reason", ""), str):
            return Deny(str(rest.get("reason", "")))
        case {"decision": "edit", "arguments": arguments, **rest} if not rest and isinstance(arguments, dict):
            return Edit(cast("dict[str, Any]", arguments))
        case {"result": result, **rest} if not rest:
            return ToolResult(call, to_parts(result))
        case _:
            raise Refused(
                400,
                f'the answer to call `{call[:100]}` is one of {{"decision": "allow"}}, {{"decision": "deny", "reason": '
                f'"…"}}, {{"decision": "edit", "arguments": {{…}}}} and {{"result": …}}',
            )


def read_reason(body: dict[str, Json]) -> str:
    reason = body.get("reason", "")
    if not isinstance(reason, str) or body.keys() - {"reason"}:
        raise Refused(400, 'the body is empty, or {"reason": "…"}')
    return storable(reason[:1000])
