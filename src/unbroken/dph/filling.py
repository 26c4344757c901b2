"""Variables in texts: `$name`, `$name.key` and `$name[0]` are replaced in prompts and in quoted texts. What is not
known stays as it is written, because a text may speak of `$HOME` or of `$5`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from unbroken.dph.syntax import NAME
from unbroken.messages import Json

_VARIABLE = re.compile(r"\$(" + NAME + r")((?:\." + NAME + r"|\[-?\d{1,9}\]|\[\"[^\"\n]*\"\]|\['[^'\n]*'\])*)")
_STEP = re.compile(r"\.(" + NAME + r")|\[(-?\d{1,9})\]|\[[\"']([^\"'\n]*)[\"']\]")


class Answer(dict[str, Json]):
    """What a block that asked a model gave: `answer`, `think`, and `calls` of an `/explore/`. In a text it stands as
    its answer."""


LARGEST = 10_000_000
"""Characters or items of one value: a program that makes more has gone wrong."""


class TooLong(ValueError):
    """A text beyond all measure."""


class Missing(LookupError):
    """There is no such key or position."""


def fill(text: str, variables: Mapping[str, Json]) -> str:
    if "$" not in text:
        return text
    parts: list[str] = []
    at = size = 0
    for found in _VARIABLE.finditer(text):
        parts += (text[at : found.start()], _filled(found, variables))
        at = found.end()
        size += len(parts[-1])
        if size > LARGEST:
            raise TooLong("the text gets too long with its variables")
    return "".join([*parts, text[at:]])


def names_in(text: str) -> Iterator[tuple[int, str, str]]:
    """Each variable of a text: where it stands, its name, and all that is written."""
    for found in _VARIABLE.finditer(text):
        yield found.start(), found[1], found.group()


def _filled(found: re.Match[str], variables: Mapping[str, Json]) -> str:
    if found[1] not in variables:
        return found.group()
    value, rest = variables[found[1]], found[2]
    taken = 0
    for step in _STEP.finditer(rest):
        try:
            value = step_into(value, int(step[2]) if step[2] else cast("str", step[1] or step[3]))
        except Missing:
            if isinstance(value, dict | list):
                return found.group()  # it was meant to be there: the text shows what was asked for
            break  # a text or a number has no keys: `$file.txt` is a name and an ending
        taken = step.end()
    return in_text(value) + rest[taken:]


def step_into(value: Any, key: Any) -> Json:
    """`.key` or `[0]` of a value."""
    if isinstance(value, dict):
        inside = cast("dict[Any, Any]", value)
        if isinstance(key, str | int) and not isinstance(key, bool):
            for name in (key, str(key)):
                if name in inside:
                    return inside[name]
        raise Missing(f"there is no `{key}`; there are: {', '.join(map(str, inside)) or 'none'}")
    if isinstance(value, list | str) and isinstance(key, int) and not isinstance(key, bool):
        items = cast("list[Any] | str", value)
        if -len(items) <= key < len(items):
            return items[key]
        what = "characters" if isinstance(value, str) else "items"
        raise Missing(f"there is no position {key}: it has {len(items)} {what}")
    raise Missing(f"{kind_of(value)} has no `{key}`")


def in_text(value: Json) -> str:
    """A value as it stands in a text."""
    if isinstance(value, str):
        return value
    if isinstance(value, Answer):
        return in_text(value.get("answer", ""))
    return json.dumps(value, ensure_ascii=False, default=str)


def kind_of(value: Any) -> str:
    """For people."""
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "a text"
        case list():
            return "a list"
        case dict():
            return "an object"
        case _:
            return f"a {type(value).__name__}"
