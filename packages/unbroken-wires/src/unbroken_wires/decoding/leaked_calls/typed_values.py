"""The offered tools, and the JSON text of values that are written otherwise: without a type, or as Python's literals.

Most tagged forms write `3` for a number and for the string "3". The tool's JSON Schema decides where it is known;
otherwise strict JSON is taken for what it is, and everything else for a string. Python's literals are rewritten token
by token, and strict JSON decides what is accepted. Nothing is repaired.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, cast

from unbroken_wires.decoding.arguments import parse_arguments
from unbroken_wires.decoding.leaked_calls.reader import Mismatch
from unbroken_wires.messages import Json
from unbroken_wires.wires.jsontext import shallow, strict

Node: TypeAlias = Mapping[str, Any]
Kinds: TypeAlias = frozenset[str]
"""JSON types; none at all means that any will do."""

_ANY: Kinds = frozenset()
_STRING: Kinds = frozenset({"string"})
_NUMBERS: Kinds = frozenset({"integer", "number"})
_MAX_REFERENCES = 8


@dataclass(frozen=True, slots=True)
class Schema:
    """A JSON Schema, or a part of one: `root` is where its references point into."""

    node: Node
    root: Node

    def member(self, key: str) -> Schema:
        node = self._resolved()
        found = _mapping(node.get("properties")).get(key, node.get("additionalProperties"))
        return Schema(_mapping(found), self.root)

    def item(self) -> Schema:
        return Schema(_mapping(self._resolved().get("items")), self.root)

    def knows(self, key: str) -> bool:
        """Might a parameter have this name? A schema that lists none says nothing."""
        node = self._resolved()
        properties = _mapping(node.get("properties"))
        return not properties or key in properties or bool(node.get("additionalProperties"))

    @property
    def kinds(self) -> Kinds:
        return self._kinds(0)

    def _kinds(self, depth: int) -> Kinds:
        node = self._resolved()
        if depth > _MAX_REFERENCES:
            return _ANY
        kind: object = node.get("type")
        found: set[str] = {kind} if isinstance(kind, str) else set(cast("list[str]", kind or ()))
        if not found:
            choices = cast("list[Json]", node.get("anyOf") or node.get("oneOf") or [])
            several = [Schema(_mapping(choice), self.root)._kinds(depth + 1) for choice in choices]
            if several and all(several):
                found = {kind for kinds in several for kind in kinds}
            elif values := cast("list[Json]", node.get("enum")):
                found = {_kind_of(value) for value in values}
        return frozenset(found | {"null"}) if found and node.get("nullable") is True else frozenset(found)

    def _resolved(self) -> Node:
        node = self.node
        for _ in range(_MAX_REFERENCES):
            reference = node.get("$ref")
            if not isinstance(reference, str) or not reference.startswith("#"):
                break
            node = self.root
            for part in reference[1:].split("/")[1:]:
                node = _mapping(node.get(part.replace("~1", "/").replace("~0", "~")))
        return node


def _mapping(value: object) -> Node:
    return cast("Node", value) if isinstance(value, Mapping) else {}


def _kind_of(value: Json) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case int():
            return "integer"
        case float():
            return "number"
        case list():
            return "array"
        case _:
            return "object"


class Offered:
    """The tools that may be called. `schemas` are the JSON Schemas of their parameters, as far as they are known."""

    def __init__(self, names: Collection[str], schemas: Mapping[str, Node] | None = None) -> None:
        self.names = frozenset(names)
        self.schemas = schemas or {}

    @cached_property
    def spellings(self) -> Mapping[str, str]:
        """How forms with namespaces may write a name, and the name."""
        return {
            **{f"{name}.{name}": name for name in self.names},
            **{f"functions.{name}": name for name in self.names},
            **{name: name for name in self.names},
        }

    def schema(self, name: str) -> Schema:
        node = self.schemas.get(name, {})
        return Schema(node, node)


# The text of JSON values


def write_arguments(pairs: dict[str, str]) -> str:
    """The text of an object, from its keys and the JSON texts of its values."""
    return strict_object(write_object(pairs))


def write_object(pairs: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{quoted(key)}: {value}" for key, value in pairs.items()) + "}"


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def add_pair(pairs: dict[str, str], key: str, value: str) -> None:
    if not key or key in pairs:
        raise Mismatch
    pairs[key] = value


def strict_object(text: str) -> str:
    parsed = parse_arguments(text) if text else None
    if parsed is None or parsed.arguments is None or parsed.notes:
        raise Mismatch
    return text


def rewritten_object(text: str) -> str:
    """An object that was not written as JSON: here no key may stand twice at any level."""
    try:
        _once.decode(strict_object(text))
    except (ValueError, RecursionError):
        raise Mismatch from None
    return text


def _once_each(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a key stands twice")
    return members


_once = json.JSONDecoder(object_pairs_hook=_once_each)


def json_value(text: str) -> str:
    """The JSON text of a value whose form says that it is JSON."""
    text = text.strip()
    if not text or not _kind(text):
        raise Mismatch
    return text


_SCHEMA_CONSTANTS = {"True": ("boolean", "true"), "False": ("boolean", "false"), "None": ("null", "null")}
_DIGITS = re.compile(r"[+-]?[0-9]+")
_NOT_A_STRING = tuple("{[-0123456789tfn")


def plain_value(text: str, schema: Schema, is_string: bool = False) -> str:
    """The JSON text of a value that is written without quotes.

    Strings are written bare, also those in quotes: a template would not have quoted them. The templates write all other
    values as JSON, some of them as Python's `str` does (`True`, `None`). `is_string`: the form says that it is a
    string, which holds unless the tool takes none.
    """
    kinds = schema.kinds
    if kinds == _STRING or (is_string and (not kinds or "string" in kinds)):
        return quoted(text)
    word = text.strip()
    kind = _kind(word) if word[:1] in _NOT_A_STRING else ""
    if kind and (not kinds or _fits(kind, kinds)):
        return word
    if kinds and "string" not in kinds:
        constant = _SCHEMA_CONSTANTS.get(word)
        if constant and constant[0] in kinds:
            return constant[1]
        if kinds & _NUMBERS and len(word) < 20 and _DIGITS.fullmatch(word):
            return str(int(word))
    return word if kind and "string" not in kinds and not is_string else quoted(text)


def _fits(kind: str, kinds: Kinds) -> bool:
    return kind in kinds or (kind in _NUMBERS and bool(kinds & _NUMBERS))


def _kind(text: str) -> str:
    """The type of a strict JSON text; empty if it is none."""
    if not shallow(text.encode("utf-8", "replace")):
        return ""
    try:
        return _kind_of(strict.decode(text))
    except (ValueError, RecursionError):
        return ""


# Python's literals

_TOKEN = re.compile(
    r"""(?P<blank>[ \t\r\n]++)
    |(?P<long>'''[^'\\]*+(?:(?:\\.|'(?!''))[^'\\]*+)*+'''|\"\"\"[^"\\]*+(?:(?:\\.|"(?!""))[^"\\]*+)*+\"\"\")
    |(?P<string>'[^'\\]*+(?:\\.[^'\\]*+)*+'|"[^"\\]*+(?:\\.[^"\\]*+)*+")
    |(?P<key>[A-Za-z_][A-Za-z0-9_]*+)(?=[ \t\r\n]*+=)
    |(?P<word>[A-Za-z_][A-Za-z0-9_]*+)
    |(?P<other>[-+.0-9][-+.0-9A-Za-z_]*+|[\[\]{},:=])""",
    re.DOTALL | re.VERBOSE,
)
_CONSTANTS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}


def python_members(text: str) -> str:
    """Keyword arguments as the members of a JSON object."""
    out: list[str] = []
    at = depth = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise Mismatch
        at = token.end()
        kind, written = token.lastgroup, token.group()
        if kind == "long":
            out.append(_string(written[3:-3]))
        elif kind == "string":
            out.append(_string(written[1:-1]))
        elif kind == "key" and not depth:
            out.append(quoted(written))
        elif kind == "word" and written in _CONSTANTS:
            out.append(_CONSTANTS[written])
        elif written == "=" and not depth:
            out.append(":")
        elif (kind == "other" and written not in "=:") or (written == ":" and depth):
            depth += (written in "[{") - (written in "]}")
            out.append(written)
        elif kind != "blank":
            raise Mismatch
    return " ".join(out)


_ESCAPE = re.compile(r"\\(\r\n|[0-7]{1,3}|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "\n": "", "\r\n": ""}


def _string(inner: str) -> str:
    try:
        text = _ESCAPE.sub(_unescaped, inner)
        text.encode()
    except (ValueError, OverflowError):  # beyond Unicode, or half a character
        raise Mismatch from None
    return quoted(text)


def _unescaped(escape: re.Match[str]) -> str:
    code = escape[1]
    if code in _ESCAPES:
        return _ESCAPES[code]
    if code[0] in "01234567":
        return chr(int(code, 8))
    if len(code) > 1:
        return chr(int(code[1:], 16))
    if code in "NxuU":
        raise ValueError
    return code if code in "\\'\"" else "\\" + code  # Python keeps the others as they are
