"""Large texts of a recording are stored once, by their hash, however often its lines repeat them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, cast

from unbroken.trajectory.lines import exact
from unbroken_wires.wires.jsontext import loads_faithful

LARGE = 16 * 1024
"""Characters from which a text is stored by its hash."""

Place: TypeAlias = tuple[int, list[str | int], str]
"""The number of a line, the keys that lead to a text in it, and the hash of the text."""


def take_out(data: bytes) -> tuple[bytes, str | None, dict[str, bytes]]:
    """The lines without their large texts, where these were (as JSON), and the texts by their hashes."""
    if len(data) < LARGE:
        return data, None, {}
    values: dict[str, bytes] = {}
    places: list[Place] = []
    lines = data.split(b"\n")
    for number, line in enumerate(lines):
        if len(line) < LARGE:
            continue
        content = loads_faithful(line)
        found = list(_large_texts(content, []))
        for keys, text in found:
            value = text.encode("utf-8", "surrogatepass")
            digest = hashlib.sha256(value).hexdigest()
            values[digest] = value
            places.append((number, keys, digest))
            _put(content, keys, "")
        if found:
            lines[number] = exact(content)
    return (b"\n".join(lines), json.dumps(places), values) if places else (data, None, {})


def put_back(data: bytes, large: str, value_of: Callable[[str], bytes]) -> bytes:
    """The lines as they were."""
    lines = data.split(b"\n")
    places: list[Place] = json.loads(large)
    for number in {number for number, _, _ in places}:
        content = loads_faithful(lines[number])
        for place, keys, digest in places:
            if place == number:
                _put(content, keys, value_of(digest).decode("utf-8", "surrogatepass"))
        lines[number] = exact(content)
    return b"\n".join(lines)


def _large_texts(value: Any, keys: list[str | int]) -> Iterator[tuple[list[str | int], str]]:
    if isinstance(value, str):
        if len(value) >= LARGE:
            yield keys, value
    elif isinstance(value, dict):
        for key, inner in cast("dict[str, Any]", value).items():
            yield from _large_texts(inner, [*keys, key])
    elif isinstance(value, list):
        for place, inner in enumerate(cast("list[Any]", value)):
            yield from _large_texts(inner, [*keys, place])


def _put(content: Any, keys: list[str | int], text: str) -> None:
    for key in keys[:-1]:
        content = content[key]
    content[keys[-1]] = text
