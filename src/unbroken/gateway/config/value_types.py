"""What the values of `unbroken.toml` may be: a small reader for each kind, from what TOML gives to what settings have.

A reader raises `Wrong` in words that follow the key's name. Values are not quoted: somebody may have written a key
where the name of its variable belongs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from ipaddress import ip_address
from typing import Any, TypeAlias, cast

from unbroken.errors import UserError
from unbroken.gateway.passthrough.pass_rules import read_rule
from unbroken.models.addresses import read_base
from unbroken.models.secrets import MASK, mask


class Wrong(Exception):
    """What a value has to be."""


Reader: TypeAlias = Callable[[Any], Any]

ELSEWHERE = "put it into a variable and name that with `api_key_env`, or into a file and name that with `api_key_file`"

_DURATIONS = {"ms": 0.001, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SIZES = {"b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_ALIAS = re.compile(r"[^\s?#%]{1,200}")
_SECRET_NAMES = re.compile(
    r"(?i)(?:proxy-)?authorization|cookie|key|(?:.*[-_])?(?:api[-_]?key|token|secret|password|auth)"
)
_MOST = 2.0**53
"""Beyond it numbers of JSON and of clocks are no longer exact; infinity is beyond it, and NaN is not below."""
_STORES = ("memory", "sqlite", "redis", "rediss", "valkey", "valkeys", "env")


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Wrong("has to be true or false")
    return value


def text(value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable() or not value.strip():
        raise Wrong("has to be a text of one line")
    return value.strip()


def whole(low: int, high: int | None = None) -> Reader:
    most = f" to {high}" if high is not None else ""

    def read(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < low or (high is not None and value > high):
            raise Wrong(f"has to be a whole number from {low}{most}")
        return value

    return read


def number(value: Any) -> float:
    if not _is_number(value):
        raise Wrong("has to be a number")
    return value


def share(value: Any) -> float:
    if not _is_number(value) or not 0 <= value <= 1:
        raise Wrong("has to be a number from 0 to 1")
    return value


def seconds(value: Any) -> float:
    found = _quantity(value, _DURATIONS, "s")
    if found is None or found <= 0:
        raise Wrong('has to be a time above 0: seconds as a number, or a text like "500ms", "10s", "5min", "1h", "7d"')
    return found


def patience(value: Any) -> float | None:
    """Seconds; None for ever."""
    if value == "never":
        return None
    try:
        return seconds(value)
    except Wrong as wrong:
        raise Wrong(f'{wrong}; "never" waits for ever') from None


def size(low: int) -> Reader:
    def read(value: Any) -> int:
        found = _quantity(value, _SIZES, "b")
        if found is None or found < low or found != int(found):
            raise Wrong(f'has to be a size from {low} bytes: a number, or a text like "64 KiB", "32 MB", "1 GB"')
        return int(found)

    return read


def one_of(names: Sequence[str]) -> Reader:
    def read(value: Any) -> str:
        if value not in names:
            near = get_close_matches(value, names, 1) if isinstance(value, str) else []
            guess = f"; did you mean `{near[0]}`?" if near else ""
            raise Wrong(f"has to be one of {', '.join(names)}{guess}")
        return value

    return read


def texts(value: Any) -> tuple[str, ...]:
    items: list[Any] = [value] if isinstance(value, str) else cast("list[Any]", value)
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):  # pyright: ignore[reportUnnecessaryIsInstance] - TOML's value
        raise Wrong('has to be a list of texts, like ["…"]')
    return tuple(items)


def pass_rules(value: Any) -> tuple[str, ...]:
    rules: list[str] = []
    wrong: list[str] = []
    for one in texts(value):
        try:
            rules.append(str(read_rule(one)))
        except UserError as error:
            wrong.append(str(error))
    if wrong:
        what = "an entry that cannot be read" if len(wrong) == 1 else f"{len(wrong)} entries that cannot be read"
        raise Wrong(f"has {what}: {'; '.join(wrong)}")
    return tuple(rules)


def alias(value: Any) -> str:
    if not isinstance(value, str) or not _ALIAS.fullmatch(value) or not value.isprintable():
        raise Wrong("has to be a name without spaces, ?, # and %: clients ask for the model by it")
    return value


def variable(value: Any) -> str:
    """A variable's name; not what somebody may have taken for its value."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value) or MASK in mask(value, ()):
        raise Wrong("has to name a variable of the environment, like OPENAI_API_KEY; the key itself stands in there")
    return value


def host(value: Any) -> str:
    name = text(value).removeprefix("[").removesuffix("]")
    if "/" in name or " " in name or (":" in name and not is_ip(name)):
        raise Wrong("has to be an address or a name alone, like 127.0.0.1; the port stands in `port`")
    return name


def address(value: Any) -> str:
    try:
        url = read_base(value, "")
    except UserError:
        raise Wrong("has to be a web address, like https://host/v1") from None
    if url.raw_user or url.raw_password or any(_SECRET_NAMES.fullmatch(name) for name in url.query):
        raise Wrong(f"has a password or a key in it: {ELSEWHERE}")
    return value.strip()


def store(value: Any) -> str:
    """A path is that of a SQLite file."""
    url = text(value)
    scheme, colon, rest = url.partition(":")
    if not colon or len(scheme) == 1 or "/" in scheme or "\\" in scheme:  # C:\store.db is a path
        return url if url == "memory:" else "memory:" if url == "memory" else f"sqlite:{url}"
    if scheme not in _STORES:
        raise Wrong("has to be a path, memory:, sqlite:PATH, redis://HOST:PORT/DB, or env:VARIABLE that holds one")
    if scheme == "env":
        return f"env:{variable(rest)}"
    if scheme == "sqlite" and rest.strip("/") in ("", ":memory:"):
        raise Wrong("has to name a file, like sqlite:unbroken-gateway.db")
    if scheme not in ("memory", "sqlite"):
        login, at, place = rest.removeprefix("//").rpartition("@")
        if not rest.startswith("//") or not place.strip("/"):
            raise Wrong(f"has to say where the server is, like {scheme}://127.0.0.1:6379/0")
        if (at and ":" in login) or "password=" in place:
            raise Wrong("has a password in it: put the whole address into a variable, and write env:VARIABLE")
    return url


def header(value: Any) -> str:
    """`Name: value`, or `Name` alone."""
    line = text(value)
    if not _TOKEN.fullmatch(line.partition(":")[0]):
        raise Wrong("has to be the name of a header, like X-Client, or one with its value, like `X-Client: pi`")
    return line


def key_name(value: Any) -> str:
    name = text(value)
    if name.startswith("ub-"):
        raise Wrong("has to be the name of a gateway key (`unbroken keys list`), not the key itself")
    return name


def public_texts(value: Any) -> dict[str, str]:
    """Headers or parts of a query, none of which is a key."""
    if not isinstance(value, dict):
        raise Wrong('has to be a table of texts, like { name = "…" }')
    found: dict[str, str] = {}
    for name, one in cast("dict[str, Any]", value).items():
        if not isinstance(one, str) and not _is_number(one):
            raise Wrong('has to be a table of texts, like { name = "…" }')
        if _SECRET_NAMES.fullmatch(name) or mask(str(one), ()) != str(one):
            raise Wrong(f"has a key in it (`{mask(name, ())}`): {ELSEWHERE}")
        found[name] = str(one)
    return found


def json_object(value: Any) -> Mapping[str, Any]:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        raise Wrong("holds what JSON cannot say, like a date") from None
    if not isinstance(value, dict):
        raise Wrong("has to be a table of what stands in the body")
    return cast("dict[str, Any]", value)


def is_ip(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(name: str) -> bool:
    return ip_address(name).is_loopback if is_ip(name) else name.lower() == "localhost"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _MOST


def _quantity(value: Any, units: Mapping[str, float], plain: str) -> float | None:
    if _is_number(value):
        return value
    found = _QUANTITY.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None or (found[2].lower() or plain) not in units:
        return None
    quantity = float(found[1]) * units[found[2].lower() or plain]
    return quantity if quantity <= _MOST else None
