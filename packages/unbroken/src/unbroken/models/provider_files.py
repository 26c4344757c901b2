"""Reads and writes the user's provider profiles: a TOML file with a table `[providers.NAME]` for each.

This module only checks a table: which profile it starts from, and which fields of `Provider` and `Quirks` it sets.
`providers` builds a `Provider` from it. Error messages do not quote values, because somebody may have written a secret
instead of the name of its variable.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeAlias, cast, get_args

from unbroken.errors import UserError
from unbroken.models.addresses import read_base
from unbroken.models.quirks import ALL_CHOICES, WAYS, NativeOutput
from unbroken_wires.messages import Effort
from unbroken_wires.wires import WIRES
from unbroken_wires.wires.json_access import IdRule

VARIABLE = "UNBROKEN_PROVIDERS"
"""The variable that holds the path of the file. If it is set and empty, no file is read."""

KEY_HEADER_NAMES = ("bearer", "x-api-key", "x-goog-api-key", "api-key")


@dataclass(frozen=True, slots=True)
class ProfileTable:
    """One table of the file. `like` is the profile that it starts from; if it is empty, that is the profile with the
    same name, or else `compatible`."""

    name: str
    like: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    quirks: Mapping[str, Any] = field(default_factory=dict[str, Any])


def user_file() -> Path | None:
    """The user's file, or None if there is none. A file that the variable names must exist."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        return Path(named).expanduser() if named.strip() else None
    config = os.environ.get("XDG_CONFIG_HOME", "").strip()
    try:
        path = (Path(config) if config else Path("~/.config").expanduser()) / "unbroken" / "providers.toml"
    except RuntimeError:  # the home folder is unknown
        return None
    return path if path.is_file() else None


def read_profiles(path: Path) -> tuple[ProfileTable, ...]:
    """The tables in the order of the file."""
    import tomllib  # noqa: PLC0415 - start-up time

    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file; correct {VARIABLE}, or unset it") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path} is not TOML: {error}; write provider profiles as [providers.NAME]") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text, which TOML must be") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    for name in tables:
        if name != "providers":
            raise UserError(
                f"{path}: [{name}] is not a table of this file; write provider profiles as [providers.NAME]"
            )
    profiles = tables.get("providers", {})
    if not isinstance(profiles, dict):
        raise UserError(f"{path}: `providers` has to be a table; write provider profiles as [providers.NAME]")
    return tuple(_profile(path, name, table) for name, table in cast("dict[str, object]", profiles).items())


class _InvalidValue(Exception):
    """Its message says what the value has to be."""


Reader: TypeAlias = Callable[[Any], Any]
"""Converts a TOML value for the field; raises `_InvalidValue` if it cannot."""


def _profile(path: Path, name: str, table: object) -> ProfileTable:
    place = f"{path}: [providers.{name}]"
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) or name in ("http", "https"):
        raise UserError(f"{place} has a name that does not work in NAME:MODEL: use letters, digits, - and _")
    if not isinstance(table, dict):
        raise UserError(f"{place} has to be a table")
    values = dict(cast("dict[str, Any]", table))
    quirks: object = values.pop("quirks", {})
    if not isinstance(quirks, dict):
        raise UserError(f"{path}: [providers.{name}.quirks] has to be a table")
    like = _value(place, "like", _text, values.pop("like")) if "like" in values else ""
    for key in values:
        if key not in FIELDS and key in QUIRKS:
            raise UserError(f"{place} has no key `{key}`: it belongs in [providers.{name}.quirks]")
    fields = _read(place, values, FIELDS, ["like", "quirks"])
    return ProfileTable(
        name, like, fields, _read(f"{path}: [providers.{name}.quirks]", cast("dict[str, Any]", quirks), QUIRKS)
    )


def _read(
    place: str, values: Mapping[str, Any], readers: Mapping[str, Reader], others: Sequence[str] = ()
) -> dict[str, Any]:
    for key in values:
        if key not in readers:
            near = get_close_matches(key, [*readers, *others], 1)
            guess = f"did you mean `{near[0]}`? There are" if near else "there are"
            way_out = "; put a provider's key into a variable, and name that in `keys`" if "key" in key.lower() else ""
            raise UserError(f"{place} has no key `{key}`: {guess}: {', '.join([*others, *readers])}{way_out}")
    return {key: _value(place, key, readers[key], value) for key, value in values.items()}


def _value(place: str, key: str, reader: Reader, value: Any) -> Any:
    try:
        return reader(value)
    except _InvalidValue as error:
        raise UserError(f"{place}: `{key}` {error}") from None


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _InvalidValue("has to be true or false")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise _InvalidValue("has to be a string without line breaks")
    return value


def _integer(low: int, high: int) -> Reader:
    def read(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise _InvalidValue(f"has to be a whole number from {low} to {high}")
        return value

    return read


def _one_of(names: Collection[str], what: str) -> Reader:
    def read(value: Any) -> str:
        if value not in names:
            near = get_close_matches(value, names, 1) if isinstance(value, str) else []
            guess = f"did you mean `{near[0]}`? There are" if near else "there are"
            raise _InvalidValue(f"has to be {what}: {guess}: {', '.join(names)}")
        return value

    return read


def _list(item: Reader, of: str) -> Reader:
    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise _InvalidValue(f'has to be a list of {of}, like ["…"]')
        return tuple(item(one) for one in cast("list[Any]", value))

    return read


def _two(item: Reader) -> Reader:
    def read(value: Any) -> tuple[Any, ...]:
        found = _list(item, "two strings")(value)
        if len(found) != 2:
            raise _InvalidValue("has to be a list of two: for one body, and for a stream")
        return found

    return read


def _set(item: Reader, of: str) -> Reader:
    read = _list(item, of)
    return lambda value: frozenset(read(value))


def _table(key: Reader, item: Reader) -> Reader:
    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _InvalidValue("has to be a table, like { … = … }")
        return {key(name): item(one) for name, one in cast("dict[str, Any]", value).items()}

    return read


def _variable(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
        raise _InvalidValue("has to name environment variables, with letters, digits and _ only")
    return value


def _address(value: Any) -> str:
    text = _text(value)
    if "{" not in text:  # otherwise it has parts that only `connect` knows
        try:
            read_base(text, "")
        except UserError:
            raise _InvalidValue("has to be a web address, like https://host/v1") from None
    return text


def _path(value: Any) -> str:
    text = _text(value)
    try:
        text.format(model="", method="")
    except (LookupError, ValueError):
        raise _InvalidValue("has to be a path in which only {model} and {method} are filled in") from None
    return text


def _json(value: Any) -> Any:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        raise _InvalidValue("has a value that JSON does not have, like a date") from None
    return value


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _InvalidValue("has to be a table of fields for the body")
    return _json(value)


def _id_rule(value: Any) -> IdRule:
    rule = _table(_one_of(["longest", "shortest", "allowed"], "a rule for ids"), lambda one: one)(value)
    read: dict[str, Any] = {key: (_text if key == "allowed" else _integer(1, 1000))(one) for key, one in rule.items()}
    if read.get("longest", 0) < read.get("shortest", 1):
        raise _InvalidValue("needs `longest`, which is not below `shortest`")
    try:
        re.compile(f"{read.get('allowed', '')}*")
    except re.error:
        raise _InvalidValue("has an `allowed` that is not a regular expression for one character") from None
    return IdRule(**read)


_wire = _one_of(WIRES, "a wire")
_names = _list(_text, "strings")
_variables = _list(_variable, "variables")

FIELDS: Mapping[str, Reader] = {
    "title": _text,
    "wire": _wire,
    "base_url": _address,
    "keys": _variables,
    "several_calls": _flag,
    "known_from": _one_of(["recorded", "documented, not tried"], "where that is known from"),
    "needs_key": _flag,
    "other_wires": _table(_wire, _address),
    "elsewhere": _text,
    "base_url_variables": _variables,
    "parts": _table(_one_of(["project", "location"], "a table of parts"), _variables),
    "port": _integer(1, 65535),
    "prefix": _path,
    "path": _path,
    "dated_path": _path,
    "version_variables": _variables,
    "methods": _two(_text),
    "key_header": _one_of(KEY_HEADER_NAMES, "a way to send a key"),
    "signing": _one_of(["", "aws"], "a way to sign requests"),
    "note": _text,
    "aliases": _names,
    "prices": _text,
}
"""The fields of `Provider`, except its name and its quirks."""

QUIRKS: Mapping[str, Reader] = {
    "rename": _table(_text, _text),
    "drop": _set(_text, "strings"),
    "add": _object,
    "require": _object,
    "reasoning": _table(_one_of([*get_args(Effort), "*"], "a table of efforts"), _object),
    "choices": _set(_one_of(sorted(ALL_CHOICES), "a list of choices"), "choices"),
    "asks_for_several": _flag,
    "call_ids": _id_rule,
    "no_call_ids": _flag,
    "stream_with_tools": _flag,
    "strict": _flag,
    "lost_reasoning": _one_of(["", *WAYS], "a way to continue without reasoning"),
    "native_output": _one_of(get_args(NativeOutput), "when it accepts a schema"),
    "prose": _flag,
}
"""The fields of `Quirks`."""


def write_profile(table: ProfileTable) -> str:
    """The profile as TOML that `read_profiles` reads."""
    name = _key(table.name)
    like = {"like": table.like} if table.like else {}
    lines = [f"[providers.{name}]", *_lines({**like, **table.fields})]
    if table.quirks:
        lines += ["", f"[providers.{name}.quirks]", *_lines(table.quirks)]
    return "\n".join(lines) + "\n"


def _lines(values: Mapping[str, Any]) -> list[str]:
    return [f"{_key(key)} = {_toml(value)}" for key, value in values.items()]


def _key(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else _toml(text)


def _toml(value: Any) -> str:
    match value:
        case str():
            # JSON's escapes are valid in TOML, except for one control character that JSON does not escape.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case IdRule(longest, allowed, shortest):
            return _toml({"longest": longest, "allowed": allowed, "shortest": shortest})
        case frozenset():
            return _toml(sorted(cast("frozenset[str]", value)))
        case tuple() | list():
            return f"[{', '.join(_toml(one) for one in cast('Sequence[Any]', value))}]"
        case dict():
            table = cast("dict[str, Any]", value)
            return f"{{ {', '.join(_lines(table))} }}" if table else "{}"
        case _:
            return json.dumps(value)  # true, false and numbers are the same in both
