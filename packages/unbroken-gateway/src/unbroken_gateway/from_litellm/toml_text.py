"""Writes a configuration as TOML that people can read and `tomllib` reads back: tables, arrays of tables one level
deep in another, and any JSON value as an inline value."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(document: Mapping[str, Any], comments: Sequence[str] = ()) -> str:
    """`comments` come first, one line each."""
    lines = [f"# {_one_line(comment)}".rstrip() for comment in comments]
    for name, table in document.items():
        for each in cast("list[Mapping[str, Any]]", table) if isinstance(table, list) else [table]:
            lines += ["", *_table(name, each, isinstance(table, list))]
    return "\n".join(lines).lstrip("\n") + "\n"


def _table(name: str, table: Mapping[str, Any], in_array: bool) -> Iterator[str]:
    yield f"[[{name}]]" if in_array else f"[{name}]"
    inner = {key: value for key, value in table.items() if _is_tables(value)}
    for key, value in table.items():
        if key not in inner:
            yield f"{_key(key)} = {_value(value)}"
    for key, tables in inner.items():
        for each in tables:
            yield ""
            yield from _table(f"{name}.{_key(key)}", each, True)


def _is_tables(value: object) -> bool:
    items = cast("list[object]", value) if isinstance(value, list) else []
    return bool(items) and all(isinstance(item, Mapping) for item in items)


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _string(key)


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _string(value)
        case int() | float():
            return repr(value)
        case Mapping():
            inside = ", ".join(f"{_key(key)} = {_value(inner)}" for key, inner in cast("dict[str, Any]", value).items())
            return f"{{ {inside} }}" if inside else "{}"
        case _:
            return f"[{', '.join(_value(inner) for inner in value)}]"


def _string(text: str) -> str:
    # TOML's basic strings are JSON's, but for DEL, and for lone surrogates, which no UTF-8 file can hold.
    escaped = json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
    return re.sub("[\ud800-\udfff]", "\ufffd", escaped)


def _one_line(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
