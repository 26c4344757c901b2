"""What a new configuration changes, in words: for a reload, and for `unbroken serve --check --against`.

`describe` turns settings into plain JSON without secrets, so that those of a running gateway can be sent to another
process; `find_changes` compares two of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeAlias, cast

from unbroken.models.secrets import mask
from unbroken_gateway.config.reading import PLACES
from unbroken_gateway.setting_types import SECRET_NAMES
from unbroken_gateway.settings import NEEDS_RESTART, GatewaySettings
from unbroken_gateway.spending.allowance import Allowance

Described: TypeAlias = dict[str, Any]
"""`{"settings": {"server.port": 8400, …}, "models": {ALIAS: {…}}, "clients": {NAME: {…}}, …}`"""

_ARRAYS = {"upstreams": "models"}
"""Arrays of tables whose field has another name."""
_ONE = {"models": "model", "clients": "client", "budgets": "budget", "teams": "team"}
ADDED = "added"
"""The names of the tables that come from the admin API: a file that does not have them does not remove them."""
_HIDDEN = "(secret)"
RESTART = frozenset(".".join(PLACES[name]) for name in NEEDS_RESTART)


@dataclass(frozen=True, slots=True)
class Change:
    kind: Literal["added", "removed", "changed"]
    what: str
    """`model fast`, `server.port`."""
    details: tuple[str, ...] = ()
    """For what was changed: `weight: 1 -> 2`."""
    restart: bool = False
    """It takes effect only after a restart."""

    def __str__(self) -> str:
        words = f"{self.what}: {'; '.join(self.details)}" if self.details else f"{self.what}: {self.kind}"
        return f"{words} (needs a restart)" if self.restart else words


def describe(settings: GatewaySettings) -> Described:
    described: Described = {"settings": {".".join(PLACES[name]): _shown(getattr(settings, name)) for name in PLACES}}
    for field in fields(settings):
        value: object = getattr(settings, field.name)
        if field.name not in PLACES and isinstance(value, tuple):
            described[_ARRAYS.get(field.name, field.name)] = _tables(cast("tuple[Any, ...]", value))
    return described


def _tables(rows: tuple[Any, ...]) -> dict[str, Any]:
    """Each table under its name, which is its first field."""
    tables: dict[str, Any] = {}
    for row in rows:
        table = asdict(row)
        table |= {name: str(value) for name in table if isinstance(value := getattr(row, name), Allowance)}
        if row_deployments := table.pop("deployments", ()):
            table["deployments"] = {each["name"]: each for each in row_deployments}
        shown = _shown(table)
        if "key" in table:  # of a client or a budget: the name of a gateway key
            shown["key"] = _shown(table["key"])
        tables[str(next(iter(table.values())))] = shown
    return tables


def find_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """What `new` changes; both are `Described`."""
    changes = [*_settings_changes(old.get("settings", {}), new.get("settings", {}))]
    for array in dict.fromkeys((*old, *new)):
        if array not in ("settings", ADDED):
            added, after = old.get(ADDED, {}).get(array, ()), new.get(array, {})
            before = {name: each for name, each in old.get(array, {}).items() if name not in added or name in after}
            changes += _table_changes(_ONE.get(array, array), before, after)
    return changes


def _settings_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    for name in dict.fromkeys((*old, *new)):
        if name in old and name in new and old[name] != new[name]:
            yield Change("changed", name, (f"{_text(old[name])} -> {_text(new[name])}",), name in RESTART)


def _table_changes(one: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    for name in dict.fromkeys((*old, *new)):
        what = f"{one} `{name}`"
        if name not in old:
            model = new[name].get("model", "")
            yield Change("added", f"{what} ({model})" if model else what)
        elif name not in new:
            yield Change("removed", what)
        elif old[name] != new[name]:
            yield Change("changed", what, tuple(_differences(old[name], new[name])))


def _differences(old: Mapping[str, Any], new: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for key in dict.fromkeys((*old, *new)):
        before: object = old.get(key)
        after: object = new.get(key)
        name = f"{above}{key}"
        if before == after:
            continue
        if isinstance(before, dict) and isinstance(after, dict):
            yield from _differences(cast("dict[str, Any]", before), cast("dict[str, Any]", after), f"{name}.")
        elif isinstance(after, dict) and key not in old:
            yield f"{name} added"
        elif isinstance(before, dict) and key not in new:
            yield f"{name} removed"
        else:
            yield f"{name}: {_text(cast('object', before))} -> {_text(cast('object', after))}"


def _text(value: object) -> str:
    if value is None or value in ("", [], {}):
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ", ".join(map(_text, cast("list[object]", value)))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _shown(value: object) -> Any:
    """As JSON, without secrets: settings that were made in Python may have any."""
    if isinstance(value, str):
        scheme, at, place = value.rpartition("@")
        if at and "://" in scheme:  # a user and a password
            value = f"{scheme.partition('://')[0]}://{place}"
        return mask(value, ())
    if isinstance(value, Mapping):
        items = cast("Mapping[str, object]", value).items()
        return {str(key): _HIDDEN if SECRET_NAMES.fullmatch(str(key)) else _shown(each) for key, each in items}
    if isinstance(value, list | tuple):
        return [_shown(each) for each in cast("tuple[object, ...]", value)]
    return value if isinstance(value, bool | int | float) or value is None else str(value)
