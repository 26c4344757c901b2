"""The bodies of the admin API, checked by pydantic, and keys as JSON. Loaded with the first request to that API."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from unbroken.asgi import Refused
from unbroken.errors import UserError
from unbroken_gateway.keys import GatewayKey
from unbroken_gateway.relay.references import read_rule
from unbroken_gateway.spending.allowance import read_allowance
from unbroken_gateway.stores.marked import Decision

B = TypeVar("B", bound=BaseModel)

MAX_BODY = 64 << 10
_UNITS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class KeyChange(Body):
    """What can be changed of a key. A field that is missing stays as it is."""

    aliases: list[str] = Field([], description="The models that it may use; empty: all.")
    requests_per_minute: int | None = Field(None, ge=1)
    in_flight: int | None = Field(None, ge=1, description="Requests at the same time.")
    passes: list[str] | None = Field(
        None, alias="pass", description="What it may pass through, `METHOD /v1/path` each; null: as configured."
    )
    operator: bool = Field(False, description="It may see the status and the metrics of all keys.")
    admin: bool = Field(False, description="It may change the gateway through this API; implies `operator`.")
    tenant: str = Field("", max_length=200, description="Whose durable runs it sees.")
    expires: str | float | None = Field(
        None, description="Seconds since 1970, or a text: `90d`, `12h`, `2027-01-31`; null: never."
    )
    team: str = Field("", description="The team whose budgets and limits it shares.")
    budgets: list[str] = Field([], description="What may be spent with it, like `20usd/day`.")
    tokens_per_minute: int | None = Field(None, ge=1)


class NewKey(KeyChange):
    name: str = Field(description="The name of its owner: letters, digits and . _ @ -, at most 64.")


class Rotation(Body):
    keep: str = Field("24h", description="How long the old key stays valid: `0`, `30m`, `24h`, `7d`.")


class StoreDecision(Body):
    decision: Decision = Field(description="Write back what the gateway knows, or continue with the store as it is.")


class NewTable(BaseModel):
    """A table as in the configuration file; its keys are checked like those of the file."""

    model_config = ConfigDict(extra="allow")


def read_body(kind: type[B], data: bytes) -> B:
    """Raises `Refused`. Its message never quotes a value, which may be a secret."""
    try:
        value: object = json.loads(data or b"{}", parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise Refused(400, "the body is not JSON") from None
    if not isinstance(value, dict):
        raise Refused(400, "the body is not a JSON object")
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        wrong = [f"`{'.'.join(map(str, each['loc']))}`: {_words(kind, each)}" for each in error.errors()[:10]]
        raise Refused(422, f"the body is not valid: {'; '.join(wrong)}") from None


def _words(kind: type[BaseModel], mistake: ErrorDetails) -> str:
    if mistake["type"] != "extra_forbidden":
        return mistake["msg"].lower()
    known = [field.alias or name for name, field in kind.model_fields.items()]
    if near := get_close_matches(str(mistake["loc"][-1]), known, 1):
        return f"unknown field, did you mean `{near[0]}`?"
    return f"unknown field; there are: {', '.join(known)}"


def _refuse_constant(name: str) -> float:
    raise ValueError(name)


def new_key(body: NewKey) -> GatewayKey:
    """Raises `UserError`."""
    return changed_key(GatewayKey(body.name), body)


def changed_key(key: GatewayKey, body: KeyChange) -> GatewayKey:
    fields: dict[str, Any] = {}
    for name in body.model_fields_set - {"name"}:
        value: Any = getattr(body, name)
        match name:
            case "aliases":
                fields[name] = tuple(value)
            case "passes":
                fields[name] = None if value is None else tuple(map(read_rule, value))
            case "budgets":
                fields[name] = tuple(map(read_allowance, value))
            case "expires":
                fields[name] = read_moment(value, "`expires`") if isinstance(value, str) else value
            case _:
                fields[name] = value
    changed = replace(key, **fields)
    return replace(changed, operator=changed.operator or changed.admin)


def key_as_json(key: GatewayKey) -> dict[str, Any]:
    """Everything about a key except the key itself."""
    return {
        "name": key.name,
        "aliases": list(key.aliases),
        "requests_per_minute": key.requests_per_minute,
        "in_flight": key.in_flight,
        "created": key.created,
        "pass": None if key.passes is None else [*map(str, key.passes)],
        "operator": key.operator,
        "admin": key.admin,
        "tenant": key.tenant or key.name,
        "expires": key.expires,
        "team": key.team,
        "budgets": [*map(str, key.budgets)],
        "tokens_per_minute": key.tokens_per_minute,
    }


def key_from_json(table: Mapping[str, Any]) -> GatewayKey:
    """The key that `key_as_json` has described."""
    body = NewKey.model_validate({name: value for name, value in table.items() if name != "created"})
    tenant = "" if body.tenant == body.name else body.tenant
    return replace(new_key(body), created=float(table["created"]), tenant=tenant)


def read_seconds(text: str, what: str, or_else: str = "") -> float:
    """`what` names the option or the field, for the error, and `or_else` what may be given too."""
    found = re.fullmatch(r"(\d{1,9})\s*([a-z]*)", text.strip().lower())
    if found is None or found[2] not in _UNITS:
        raise UserError(f"{what} {text!r}: give a time like 30m, 24h or 7d{or_else}")
    return float(found[1]) * _UNITS[found[2]]


def read_moment(text: str, what: str) -> float:
    """In seconds since 1970. A key that expires on a day is valid until that day ends, in local time."""
    try:
        day = datetime.strptime(text.strip(), "%Y-%m-%d").astimezone()
    except ValueError:
        later = datetime.now().astimezone() + timedelta(days=90)
        return time.time() + read_seconds(text, what, f" from now, or a day as YEAR-MONTH-DAY, like {later:%Y-%m-%d}")
    return (day + timedelta(days=1)).timestamp()


def table_of(body: NewTable) -> dict[str, Any]:
    return body.model_dump()
