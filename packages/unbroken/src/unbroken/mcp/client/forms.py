"""Checks the values of a form against the schema that an MCP server sent. The server is not trusted: nothing is loaded
from other addresses, and no schema can make the check slow."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import date, datetime
from functools import lru_cache
from typing import Annotated, Any, cast
from urllib.parse import urlsplit

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import extend, validator_for  # pyright: ignore[reportUnknownVariableType]
from pydantic import StringConstraints, TypeAdapter
from pydantic import ValidationError as NoMatch
from referencing import Registry

from unbroken_wires.messages import Json

SHOWN = 200
"""Maximum characters of a reason: a schema may be long."""
_NOTHING = Registry[Any]()
"""Where references to other documents are looked up; without it they would be loaded from their addresses."""


def defaults_of(schema: Mapping[str, Any]) -> dict[str, Json]:
    """The default values of a form."""
    properties: Any = schema.get("properties")
    if not isinstance(properties, Mapping):
        return {}
    found = cast("Mapping[str, Any]", properties)
    return {name: one["default"] for name, one in found.items() if isinstance(one, dict) and "default" in one}


def why_not(schema: Mapping[str, Any], values: Mapping[str, Json]) -> str:
    """Why values do not fit, or cannot be checked; empty if they fit."""
    try:
        if _refers(schema):
            return "its schema refers to something else than its own `$defs`, or contains itself"
        kind: Any = validator_for(schema, Draft202012Validator)
        kind.check_schema(schema)
        checking = cast("Any", extend)(
            kind, {"pattern": _pattern, "format": _format, "patternProperties": _not_in_forms}
        )
        wrong: ValidationError | None = next(checking(schema, registry=_NOTHING).iter_errors(values), None)
        return "" if wrong is None else wrong.message[:SHOWN]
    except SchemaError as error:
        return f"its schema is not valid: {error.message}"[:SHOWN]
    except Exception as error:  # noqa: BLE001 - validators raise anything for hostile schemas (RecursionError, TypeError)
        text = str(error).partition("\n")[0]
        return f"its schema cannot be checked: {type(error).__name__}: {text}"[:SHOWN]


def _refers(schema: Mapping[str, Any]) -> bool:
    """Whether it has references other than those of its properties to simple definitions of its own. Definitions that
    refer to others may contain themselves, or double with each step."""
    definitions = [schema.get("$defs"), schema.get("definitions")]
    rest = {name: value for name, value in schema.items() if name not in ("$defs", "definitions")}
    local = ("#/$defs/", "#/definitions/")
    return any(True for _ in _references(definitions)) or any(not each.startswith(local) for each in _references(rest))


def _references(value: Any) -> Generator[str]:
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            given = cast("Mapping[str, Any]", value)
            yield from (str(given[name]) for name in ("$ref", "$dynamicRef", "$recursiveRef") if name in given)
            waiting.extend(given.values())
        elif isinstance(value, Sequence) and not isinstance(value, str):
            waiting.extend(cast("Sequence[Any]", value))


def _pattern(_: Any, pattern: str, value: Any, __: Any) -> Generator[ValidationError]:
    """`re` may take hours for a hostile pattern; this engine takes a time that is linear in the text."""
    try:
        if isinstance(value, str):
            _text_with(pattern).validate_python(value)
    except NoMatch:
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _spelled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII | re.IGNORECASE)


_ATOM, _LABEL = r"[\w!#$%&'*+/=?^`{|}~-]+", r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_DATE = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_FORMATS: dict[str, tuple[re.Pattern[str], Callable[[str], object], str]] = {
    "email": (
        _spelled(rf"{_ATOM}(?:\.{_ATOM})*@{_LABEL}(?:\.{_LABEL})*"),
        str,
        "an email address, such as ann@example.com",
    ),
    "uri": (
        _spelled(r"(?:https?://(?=[\w\[])|(?!https?:)[a-z][a-z0-9+.-]*:)(?:[\w!#$&'()*+,/:;=?@\[\].~-]|%[0-9a-f]{2})+"),
        urlsplit,
        "a URI, such as https://example.com/page",
    ),
    "date": (_spelled(_DATE), date.fromisoformat, "a date, such as 2025-12-31"),
    "date-time": (
        _spelled(rf"{_DATE}T[0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}(?:\.[0-9]+)?(?:Z|[+-][0-9]{{2}}:[0-9]{{2}})"),
        datetime.fromisoformat,
        "a date and time with its zone, such as 2025-12-31T09:30:00Z",
    ),
}
"""Those of forms: how a value is spelled, what raises for one that does not exist, and the words for it."""


def _format(_: Any, name: str, value: Any, __: Any) -> Generator[ValidationError]:
    if name not in _FORMATS or not isinstance(value, str):
        return
    spelled, read, words = _FORMATS[name]
    try:
        if spelled.fullmatch(value):
            read(value.upper())
            return
    except ValueError:
        pass
    yield ValidationError(f"{value!r} is not {words}")


def _not_in_forms(*_: Any) -> Generator[ValidationError]:
    yield ValidationError("its schema has `patternProperties`, which forms do not have")


@lru_cache(maxsize=64)
def _text_with(pattern: str) -> TypeAdapter[str]:
    return TypeAdapter(Annotated[str, StringConstraints(pattern=pattern)])
