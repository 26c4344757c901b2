"""The types of the settings in `unbroken.toml`: pydantic checks them, and each has its own error message.

A message follows the name of the key. It never quotes the value, which may be a secret that was written in place of its
variable.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias, TypedDict, cast, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import ErrorDetails

from unbroken.errors import UserError
from unbroken.logs import LEVELS, LogLevel
from unbroken.models.addresses import ip_version, read_base
from unbroken.models.providers import find_provider
from unbroken.models.secrets import MASK, mask
from unbroken_gateway.relay.references import read_rule
from unbroken_gateway.spending.allowance import Allowance, read_allowance
from unbroken_gateway.stores import SCHEMES
from unbroken_wires.messages import Effort
from unbroken_wires.wires import WIRES

ELSEWHERE = "put it into a variable and name that in `api_key_env`, or into a file and name that in `api_key_file`"
MOST = 2**53
"""Larger numbers are not exact in JSON and in clocks."""
_DURATIONS = {"": 1.0, "ms": 0.001, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SIZES = {"": 1, "b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_TIME = 'has to be a time above 0: seconds as a number, or a text like "500ms", "10s", "5min", "1h", "7d"'
_SIZE = 'has to be a size from 1024 bytes: a number, or a text like "64 KiB", "32 MB", "1 GB"'
_VARIABLE = "has to name an environment variable, like OPENAI_API_KEY, which holds the key"
_ADDRESS = "has to be a web address, like https://host/v1"
PRICED = frozenset({"input", "output", "cached", "cache_write", "reasoning", "request"})
_PRICE = (
    "has to be what a million tokens cost in dollars, like { input = 1.25, output = 10.0 }, with cached, cache_write, "
    "reasoning and request (one of them) if they differ"
)
SECRET_NAMES = re.compile(
    r"(?i)(?:proxy-)?authorization|cookie|key|(?:.*[-_])?(?:api[-_]?key|token|secret|password|auth)"
)


class In(NamedTuple):
    """The place of a setting in the file."""

    table: str
    key: str = ""
    """The key in the table; empty if it is the name of the setting."""


def expect(words: str, fits: Callable[[Any], object] | None = None) -> WrapValidator:
    """Sets the error message of a type, unless an inner type has its own."""

    def check(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
        try:
            read = validate(value)
        except ValidationError as error:
            raise ValueError(words_of(error.errors()[0]) or words) from None
        if fits is not None and not fits(read):
            raise ValueError(words)
        return read

    return WrapValidator(check)


def words_of(error: ErrorDetails) -> str:
    """Our message for an error of pydantic; empty if there is none."""
    return str(error.get("ctx", {}).get("error", ""))


def whole(low: int, high: int | None = None) -> tuple[Any, ...]:
    most = "" if high is None else f" to {high}"
    return Field(strict=True, ge=low, le=high), expect(f"has to be a whole number from {low}{most}")


def one_of(names: Collection[str]) -> BeforeValidator:
    def check(value: Any) -> Any:
        if value not in names:
            near = get_close_matches(value, names, 1) if isinstance(value, str) else []
            guess = f"; did you mean `{near[0]}`?" if near else ""
            raise ValueError(f"has to be one of {', '.join(names)}{guess}")
        return value

    return BeforeValidator(check)


def _in_units(units: Mapping[str, float]) -> BeforeValidator:
    """Turns a text like `10s` into a number."""

    def read(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", value.strip())
        if found is None or found[2].lower() not in units:
            raise ValueError
        return float(found[1]) * units[found[2].lower()]

    return BeforeValidator(read)


def is_alias(name: str) -> bool:
    return name.isprintable() and re.fullmatch(r"[^\s?#%]{1,200}", name) is not None


def is_loopback(host: str) -> bool:
    return ip_address(host).is_loopback if ip_version(host) else host.lower() == "localhost"


def is_variable(name: str) -> bool:
    """Is it the name of a variable, and not a secret that was written in its place?"""
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is not None and MASK not in mask(name, ())


def holds_secret(name: str, text: str) -> bool:
    """Is this the name of a secret, or does the text look like one?"""
    return SECRET_NAMES.fullmatch(name) is not None or mask(text, ()) != text


def _is_host(name: str) -> bool:
    return "/" not in name and " " not in name and (":" not in name or ip_version(name) > 0)


def _model(model: str) -> str:
    provider, _, name = model.partition(":")
    if provider == "python" and not re.fullmatch(r"[\w.]+:[\w.]+", name):
        raise ValueError("has to be python:module:function, where the function returns the model")
    if model == "demo" or provider == "python":
        return model
    if not name.strip() or provider in ("http", "https"):
        raise ValueError("has to be PROVIDER:MODEL like openai:gpt-5, python:module:function, or demo")
    try:
        find_provider(provider)
    except UserError as error:
        raise ValueError(f"names no model: {error}") from None
    return model


GUARDRAILS = ("redact", "check_input", "check_answers", "check_calls", "check_output")


def _guardrail(name: str) -> str:
    if re.fullmatch(r"python:[\w.]+:[\w.]+", name) is None and name not in GUARDRAILS:
        near = get_close_matches(name, GUARDRAILS, 1)
        guess = f"; did you mean `{near[0]}`?" if near else ""
        raise ValueError(f"has to be one of {', '.join(GUARDRAILS)}, or python:module:function{guess}")
    return name


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error.msg} at position {error.pos}") from None
    return text


def _address(text: str) -> str:
    try:
        url = read_base(text, "")
    except UserError:
        raise ValueError(_ADDRESS) from None
    if url.raw_user or url.raw_password or any(SECRET_NAMES.fullmatch(name) for name in url.query):
        raise ValueError(f"has a password or a key in it: {ELSEWHERE}")
    return text.strip()


def _beside(path: str, info: ValidationInfo) -> str:
    """A path in the file is relative to the file's folder; the validation context is the function that resolves it."""
    path = str(Path(path).expanduser()) if path.startswith("~") else path
    beside = cast("Callable[[str | None, str], str] | None", info.context)
    return beside(info.field_name, path) if beside else path


def _store(url: str, info: ValidationInfo) -> str:
    """A plain path names a SQLite file."""
    scheme, colon, rest = url.partition(":")
    if not colon or len(scheme) == 1 or "/" in scheme or "\\" in scheme:  # C:\store.db is a path
        return "memory:" if url == "memory" else f"sqlite:{_beside(url, info)}"
    if scheme not in (*SCHEMES, "env"):
        raise ValueError("has to be a path, memory:, sqlite:PATH, redis://HOST:PORT/DB, or env:VARIABLE that holds one")
    if scheme == "env" and not is_variable(rest):
        raise ValueError(_VARIABLE)
    if scheme == "sqlite":
        if rest.strip("/") in ("", ":memory:"):
            raise ValueError("has to name a file, like sqlite:unbroken-gateway.db")
        return f"sqlite:{_beside(rest, info)}"
    if scheme not in ("memory", "env") and " " in url:  # several servers
        return " ".join(_store(each, info) for each in url.split())
    if scheme not in ("memory", "env"):
        login, at, place = rest.removeprefix("//").rpartition("@")
        if not rest.startswith("//") or not place.strip("/"):
            raise ValueError(f"has to name the server, like {scheme}://127.0.0.1:6379/0")
        if (at and ":" in login) or "password=" in place:
            raise ValueError("has a password in it: put the complete address into a variable, and write env:VARIABLE")
    return url


def _journal(url: str, info: ValidationInfo) -> str:
    scheme, _, rest = url.partition(":")
    if scheme == "env":
        if not is_variable(rest):
            raise ValueError(_VARIABLE)
        return url
    if scheme == "sqlite" and rest.startswith("///") and rest.strip("/"):
        return f"sqlite:///{_beside(rest[3:], info)}"
    if scheme not in ("postgresql", "postgres") or not rest.startswith("//"):
        raise ValueError("has to be sqlite:///PATH, postgresql://HOST/DATABASE, or env:VARIABLE that holds one")
    login, at, place = rest.rpartition("@")
    if (at and ":" in login) or "password=" in place:
        raise ValueError("has a password in it: put the complete address into a variable, and write env:VARIABLE")
    return url


def _listed(value: Any) -> list[str]:
    items: list[Any] = [value] if isinstance(value, str) else cast("list[Any]", value)
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):  # pyright: ignore[reportUnnecessaryIsInstance] - TOML's value
        raise ValueError('has to be a list of strings, like ["…"]')
    return items


def _rule(text: str) -> str:
    try:
        return str(read_rule(text))
    except UserError as error:
        raise ValueError(f"has an entry that cannot be read: {error}") from None


def _origin(text: str) -> str:
    if text != "*" and not re.fullmatch(
        r"https?://[a-z0-9.-]+(?::\d{1,5})?|https?://\[[0-9a-f:]+\](?::\d{1,5})?", text
    ):
        raise ValueError('has an entry that is not an origin: write "https://app.example.org", without a path, or "*"')
    return text


def _public(texts: Mapping[str, object]) -> dict[str, str]:
    """Headers or query parameters, none of which may be a key."""
    for name, text in texts.items():
        if holds_secret(name, str(text)):
            raise ValueError(f"has a key in it (`{mask(name, ())}`): {ELSEWHERE}")
    return {name: str(text) for name, text in texts.items()}


def _amount(value: Any) -> Any:
    if isinstance(value, Allowance):
        return value
    try:
        return read_allowance(str(value))
    except UserError:
        raise ValueError(
            "has to be an amount like 20usd/day, 200usd/month, 1000usd/total or 500000tokens/day"
        ) from None


def _price(prices: Mapping[str, float]) -> dict[str, float]:
    if not {"input", "output"} <= prices.keys() or prices.keys() - PRICED:
        raise ValueError(_PRICE)
    return {kind: float(price) for kind, price in prices.items()}


def _json(value: Any) -> Any:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        raise ValueError("has a value that JSON does not have, like a date") from None
    return value


_Real: TypeAlias = StrictInt | Annotated[StrictFloat, Field(allow_inf_nan=False)]
Flag: TypeAlias = Annotated[StrictBool, expect("has to be true or false")]
Number: TypeAlias = Annotated[_Real, Field(ge=-MOST, le=MOST), expect("has to be a number")]
Weight: TypeAlias = Annotated[_Real, Field(gt=0, le=1_000_000), expect("has to be a number above 0")]
LogLevelName: TypeAlias = Annotated[LogLevel, one_of(LEVELS)]
Share: TypeAlias = Annotated[_Real, Field(ge=0, le=1), expect("has to be a number from 0 to 1")]
_Seconds: TypeAlias = Annotated[_Real, Field(gt=0, le=MOST), _in_units(_DURATIONS)]
Seconds: TypeAlias = Annotated[_Seconds, expect(_TIME)]
Delay: TypeAlias = Annotated[_Real, Field(ge=0, le=MOST), _in_units(_DURATIONS), expect(_TIME.replace("above", "from"))]
Patience: TypeAlias = Annotated[
    _Seconds | None,  # None: no limit
    BeforeValidator(lambda value: None if value == "never" else value),
    expect(f'{_TIME}; "never" waits for ever'),
]
Size: TypeAlias = Annotated[int, Field(ge=1024, le=MOST), _in_units(_SIZES), expect(_SIZE)]
Text: TypeAlias = Annotated[
    str,
    expect("has to be a string without line breaks", lambda text: text.isprintable() and text.strip()),
    AfterValidator(str.strip),
]
Texts: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(_listed)]
PassRules: TypeAlias = Annotated[tuple[Annotated[str, AfterValidator(_rule)], ...], BeforeValidator(_listed)]
Origins: TypeAlias = Annotated[tuple[Annotated[str, AfterValidator(_origin)], ...], BeforeValidator(_listed)]
FilePath: TypeAlias = Annotated[Text, AfterValidator(_beside)]
Variable: TypeAlias = Annotated[str, expect(_VARIABLE, is_variable)]
Host: TypeAlias = Annotated[
    Text,
    AfterValidator(lambda name: name.removeprefix("[").removesuffix("]")),
    expect("has to be an address or a name only, like 127.0.0.1; the port goes in `port`", _is_host),
]
StoreUrl: TypeAlias = Annotated[Text, AfterValidator(_store)]
JournalUrl: TypeAlias = Annotated[Text, AfterValidator(_journal)]
Alias: TypeAlias = Annotated[
    str, expect("has to be a name without spaces, ?, # and %: clients ask for the model by it", is_alias)
]
ModelName: TypeAlias = Annotated[Text, AfterValidator(_model)]
WireName: TypeAlias = Annotated[str, one_of(WIRES)]
Address: TypeAlias = Annotated[str, expect(_ADDRESS), AfterValidator(_address)]
GuardName: TypeAlias = Annotated[
    str,
    expect("has to be a name of letters, digits and . _ -, at most 64", re.compile(r"[A-Za-z0-9._-]{1,64}").fullmatch),
]
GuardrailName: TypeAlias = Annotated[Text, AfterValidator(_guardrail)]
Pattern: TypeAlias = Annotated[str, AfterValidator(_pattern), expect("has to be a regular expression")]
FunctionName: TypeAlias = Annotated[Text, expect("has to be module:function", re.compile(r"[\w.]+:[\w.]+").fullmatch)]
KeyName: TypeAlias = Annotated[
    Text,
    expect(
        "has to be the name of a gateway key (`unbroken keys list`), not the key itself",
        lambda name: not name.startswith("ub-"),
    ),
]
Header: TypeAlias = Annotated[  # `Name: value`, or `Name` alone
    Text,
    expect(
        "has to be the name of a header, like X-Client, or one with its value, like `X-Client: pi`",
        re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+(?::.*)?").fullmatch,
    ),
]
JsonObject: TypeAlias = Annotated[
    dict[str, Any], expect("has to be a table of fields for the body"), BeforeValidator(_json)
]
PublicTexts: TypeAlias = Annotated[
    dict[str, str | _Real],
    expect('has to be a table of texts, like { name = "…" }'),
    AfterValidator(_public),
]


Amount: TypeAlias = Annotated[Allowance, BeforeValidator(_amount)]
Price: TypeAlias = Annotated[
    Mapping[str, Annotated[_Real, Field(ge=0, le=1_000_000)]], expect(_PRICE), AfterValidator(_price)
]


class ConnectOptions(TypedDict, total=False):
    """Further settings of a model: arguments of `connect`."""

    stream: Flag
    connect_timeout: Patience
    first_byte: Patience
    idle: Patience
    total: Patience
    attempts: Annotated[int, *whole(1, 100)]
    seconds: Patience
    stream_with_tools: Flag
    raw_log: FilePath
    temperature: Number
    top_p: Number
    max_tokens: Annotated[int, *whole(1)]
    stop: Texts
    seed: Annotated[int, *whole(-MOST, MOST)]
    reasoning: Annotated[Effort, one_of(get_args(Effort))]
    cache: Flag
    headers: PublicTexts
    query: PublicTexts
    extra: JsonObject
    organization: Text
    project: Text
    location: Text
    api_version: Text
