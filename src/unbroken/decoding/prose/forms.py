"""What the dialects share: a call written as one JSON object, and arguments written as keys and values.

Strict like everything that makes a call: an offered name, one JSON object, no key twice, nothing beside them. The text
of JSON arguments is kept, so that numbers stay as they were written.
"""

from __future__ import annotations

import json
import re

from unbroken.decoding.arguments import parse_arguments
from unbroken.decoding.prose.reader import Found, Mismatch, Reader, Steps
from unbroken.messages import Json
from unbroken.wires.jsontext import shallow, strict

Names = frozenset[str]

# Calls written as JSON

_KEYS = ('"name"', '"arguments"', '"parameters"', '"type"', '"id"')
QUOTE = re.compile('"')
_NOT_A_STRING = tuple("{[-0123456789tfn")


def call_object(reader: Reader, names: Names, opened: bool = False) -> Steps[Found]:
    """`{"name": …, "arguments": {…}}`. What cannot become one is seen at its first key or at its name, so that other
    JSON is not held back."""
    if not opened:
        yield from reader.literal("{")
    head = ["{", (yield from reader.blanks()), (yield from reader.literal(*_KEYS))]
    if head[-1] == '"name"':
        head += [(yield from reader.blanks()), (yield from reader.literal(":")), (yield from reader.blanks())]
        head += [(yield from reader.literal('"')), (yield from reader.word(QUOTE, names))]
        head += [(yield from reader.literal('"'))]
    rest = yield from reader.rest_of_object()
    name, arguments = _name_and_arguments("".join(head) + rest, names)
    return Found(name, arguments, reader.offset)


def call_objects(reader: Reader, names: Names) -> Steps[tuple[Found, ...]]:
    """One call object, or a list of them: all or none."""
    if (yield from reader.peek()) != "[":
        return ((yield from call_object(reader, names)),)
    yield from reader.literal("[")
    found: list[Found] = []
    separator = ","
    while separator == ",":
        yield from reader.blanks()
        found.append((yield from call_object(reader, names)))
        yield from reader.blanks()
        separator = yield from reader.literal(",", "]")
    return tuple(found)


def _name_and_arguments(text: str, names: Names) -> tuple[str, str]:
    members = _members(text)
    name, _ = members.pop("name", (None, ""))
    kind, _ = members.pop("type", ("function", ""))
    members.pop("id", None)
    if not isinstance(name, str) or name not in names or kind != "function" or len(members) != 1:
        raise Mismatch
    value, arguments = members.get("arguments") or members.get("parameters") or (None, "")
    return name, strict_object(value if isinstance(value, str) else arguments)


def _members(text: str) -> dict[str, tuple[Json, str]]:
    """The members of one JSON object, each with its value and the text of it."""
    members: dict[str, tuple[Json, str]] = {}
    at, separator = 1, ","
    try:
        while separator == ",":
            key, at = strict.raw_decode(text, _skip(text, at))
            at = _skip(text, at)
            start = _skip(text, at + 1)
            value, end = strict.raw_decode(text, start)
            if not isinstance(key, str) or text[at] != ":" or key in members:
                raise Mismatch
            members[key] = (value, text[start:end])
            at = _skip(text, end)
            separator = text[at]
            at += 1
    except (ValueError, IndexError, RecursionError):
        raise Mismatch from None
    if separator != "}" or at != len(text):
        raise Mismatch
    return members


def strict_object(text: str) -> str:
    parsed = parse_arguments(text) if text else None
    if parsed is None or parsed.arguments is None or parsed.notes:
        raise Mismatch
    return text


_NOT_BLANK = re.compile(r"[^ \t\r\n]|$")


def _skip(text: str, at: int) -> int:
    found = _NOT_BLANK.search(text, at)
    return found.start() if found else len(text)


# Calls written as keys and values


def write_arguments(pairs: dict[str, str]) -> str:
    """The text of an object, from its keys and the JSON texts of its values."""
    members = (f"{json.dumps(key, ensure_ascii=False)}: {value}" for key, value in pairs.items())
    return strict_object("{" + ", ".join(members) + "}")


def add_pair(pairs: dict[str, str], key: str, value: str) -> None:
    if not key or key in pairs:
        raise Mismatch
    pairs[key] = value


def untyped(value: str) -> str:
    """The JSON text of a value whose form does not show its type.

    The templates write objects, lists, numbers, booleans and null as JSON and strings bare; servers look it up in the
    tool's schema. Here only names are known, so strict JSON of those kinds is parsed, and everything else is a string,
    also a text in quotes: a template would not have quoted it.
    """
    text = value.strip()
    if text[:1] in _NOT_A_STRING and _is_json(text):
        return text
    return json.dumps(value, ensure_ascii=False)


def typed(value: str, is_string: bool) -> str:
    """The JSON text of a value whose form shows whether it is a bare string or JSON."""
    if is_string:
        return json.dumps(value, ensure_ascii=False)
    if not _is_json(value.strip()):
        raise Mismatch
    return value.strip()


def _is_json(text: str) -> bool:
    if not shallow(text.encode("utf-8", "replace")):
        return False
    try:
        strict.decode(text)
    except (ValueError, RecursionError):
        return False
    return True
