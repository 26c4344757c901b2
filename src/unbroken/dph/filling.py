"""Variables in texts: `$name`, `$name.key` and `$name[0]` are replaced in prompts and in quoted texts. What is not
known stays as it is written, because a text may speak of `$HOME` or of `$5`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from unbroken.dph.syntax import NAME
from unbroken.dph.values import LARGEST, Missing, in_text, step_into
from unbroken.messages import Json

_VARIABLE = re.compile(r"\$(" + NAME + r")((?:\." + NAME + r"|\[-?\d{1,9}\]|\[\"[^\"\n]*\"\]|\['[^'\n]*'\])*)")
_STEP = re.compile(r"\.(" + NAME + r")|\[(-?\d{1,9})\]|\[\"([^\"\n]*)\"\]|\['([^'\n]*)'\]")


class TooLong(ValueError):
    """A text beyond all measure."""


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
            key = next(key for key in step.groups() if key is not None)
            value = step_into(value, int(key) if step[2] else key)
        except Missing:
            if isinstance(value, dict | list):
                return found.group()  # it was meant to be there: the text shows what was asked for
            break  # a text or a number has no keys: `$file.txt` is a name and an ending
        taken = step.end()
    return in_text(value) + rest[taken:]
