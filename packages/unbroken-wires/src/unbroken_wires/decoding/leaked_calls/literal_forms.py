"""Calls written as literals: JSON objects, Python's calls, Gemma's; in lists, in blocks, in code fences, alone.

All strict: an offered name, one object, no key twice, nothing beside them. The text of JSON arguments is kept, so that
numbers stay as they were written. Python's arguments are literals with names: no sets, tuples or positional arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias, cast

from unbroken_wires.decoding.leaked_calls.reader import PYTHON, Found, Mismatch, Reader, Steps
from unbroken_wires.decoding.leaked_calls.typed_values import (
    Offered,
    Schema,
    plain_value,
    python_members,
    quoted,
    rewritten_object,
    strict_object,
)
from unbroken_wires.messages import Json
from unbroken_wires.wires.jsontext import strict

Shape: TypeAlias = Callable[[Reader, Offered], Steps[tuple[Found, ...]]]
"""Reads calls, all or none."""

Grammar: TypeAlias = Callable[[Reader, Offered, str], Steps[None]]
"""Reads a form from behind its mark, which is passed on, and yields the calls in it as they are complete."""

# A call as one object

QUOTES = {'"': re.compile('"'), "'": re.compile("'")}
_NAMES = ("name", "tool_name", "function")
_ARGUMENTS = ("arguments", "parameters", "args", "input")
_BESIDES = ("type", "id", "tool_call_id", "index")
_AROUND = ("function", "function_call", "tool_call")
_LIST = '"tool_calls"'
_KEYS = (*(f'"{key}"' for key in dict.fromkeys(_NAMES + _ARGUMENTS + _BESIDES + _AROUND)), _LIST)
_TYPES = ("function", "function_call", "tool_call", "tool_use")


def call_object(reader: Reader, offered: Offered) -> Steps[tuple[Found, ...]]:
    """`{"name": …, "arguments": {…}}`, or `{"tool_calls": […]}`. What cannot become one is seen at its first key or at
    its name, so that other JSON is not held back."""
    yield from reader.literal("{")
    head = ["{", (yield from reader.blanks()), (yield from reader.literal(*_KEYS))]
    if head[-1] == _LIST:
        yield from _colon(reader)
        calls = yield from _list(reader, offered, call_object)
        yield from reader.blanks()
        yield from reader.literal("}")
        return calls
    if head[-1] in ('"name"', '"tool_name"'):
        head += [(yield from _colon(reader))]
        head += [(yield from reader.literal('"')), (yield from reader.word(QUOTES['"'], offered.names))]
        head += [(yield from reader.literal('"'))]
    rest = yield from reader.nested("{")
    name, arguments = _name_and_arguments("".join(head) + rest, offered)
    return (Found(name, arguments, reader.offset),)


def named_object(reader: Reader, offered: Offered) -> Steps[tuple[Found, ...]]:
    """`{NAME: {…}}`."""
    yield from reader.literal("{")
    yield from reader.blanks()
    yield from reader.literal('"')
    name = yield from quoted_name(reader, offered)
    yield from _colon(reader)
    arguments = strict_object((yield from reader.object()))
    yield from reader.blanks()
    yield from reader.literal("}")
    return (Found(name, arguments, reader.offset),)


def quoted_name(reader: Reader, offered: Offered, quote: str = '"') -> Steps[str]:
    """From behind the opening quote."""
    name = yield from reader.word(QUOTES[quote], offered.spellings)
    if name not in offered.spellings:  # in quotes white space is part of it
        raise Mismatch
    yield from reader.literal(quote)
    return offered.spellings[name]


def _colon(reader: Reader) -> Steps[str]:
    before = yield from reader.blanks()
    return before + (yield from reader.literal(":")) + (yield from reader.blanks())


def call_objects(reader: Reader, offered: Offered, one: Shape = call_object) -> Steps[tuple[Found, ...]]:
    """A list of call objects, or one, or several with a semicolon or a line break between two. Takes the white space
    behind them."""
    if (yield from reader.peek()) == "[":
        return (yield from _list(reader, offered, one))
    found = list((yield from one(reader, offered)))
    while True:
        between = yield from reader.blanks()
        following = yield from reader.peek()
        if following == ";":
            yield from reader.literal(";")
            yield from reader.blanks()
        elif following != "{" or "\n" not in between:
            return tuple(found)
        found += yield from one(reader, offered)


def list_of(one: Shape) -> Shape:
    return lambda reader, offered: _list(reader, offered, one)


def _list(reader: Reader, offered: Offered, one: Shape) -> Steps[tuple[Found, ...]]:
    yield from reader.literal("[")
    return (yield from rest_of_list(reader, offered, one))


def rest_of_list(reader: Reader, offered: Offered, one: Shape) -> Steps[tuple[Found, ...]]:
    found: list[Found] = []
    separator = ","
    while separator == ",":
        yield from reader.blanks()
        found += yield from one(reader, offered)
        yield from reader.blanks()
        separator = yield from reader.literal(",", "]")
    return tuple(found)


def _name_and_arguments(text: str, offered: Offered, outer: bool = True) -> tuple[str, str]:
    members = _members(text)
    kind, _ = members.pop("type", ("function", ""))
    for key in _BESIDES:
        members.pop(key, None)
    if outer and len(members) == 1:
        key, (value, inner) = next(iter(members.items()))
        if key in _AROUND and isinstance(value, dict):
            return _name_and_arguments(inner, offered, outer=False)
    names = [key for key in _NAMES if key in members]
    if len(names) != 1 or len(members) != 2 or kind not in _TYPES:
        raise Mismatch
    name, _ = members.pop(names[0])
    key, (value, arguments) = members.popitem()
    if not isinstance(name, str) or name not in offered.names or key not in _ARGUMENTS or _is_schema(key, value):
        raise Mismatch
    return name, strict_object(value if isinstance(value, str) else arguments)


def _is_schema(key: str, value: Json) -> bool:
    """The definition of a tool, not a call of it."""
    if key != "parameters" or not isinstance(value, dict):
        return False
    members = cast("dict[str, Json]", value)
    return members.get("type") == "object" and isinstance(members.get("properties"), dict)


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


_NOT_BLANK = re.compile(r"[^ \t\r\n]|$")


def _skip(text: str, at: int) -> int:
    found = _NOT_BLANK.search(text, at)
    return found.start() if found else len(text)


# Python's calls, and Gemma's

_PARENTHESIS = re.compile(r"[(\r\n]")


def python_call(reader: Reader, offered: Offered) -> Steps[tuple[Found, ...]]:
    name = (yield from reader.word(_PARENTHESIS, offered.names)).strip()
    arguments = yield from python_arguments(reader)
    return (Found(name, arguments, reader.offset),)


def python_arguments(reader: Reader) -> Steps[str]:
    yield from reader.literal("(")
    text = yield from reader.nested("(", PYTHON)
    return rewritten_object("{" + python_members(text.removesuffix(")")) + "}")


def python_calls(reader: Reader, offered: Offered) -> Steps[tuple[Found, ...]]:
    """A list of calls, or one. Those of JSON objects are understood too: some templates ask for that between the same
    marks."""
    following = yield from reader.peek()
    if following != "[":
        return (yield from (call_objects if following == "{" else python_call)(reader, offered))
    yield from reader.literal("[")
    yield from reader.blanks()
    one = call_object if (yield from reader.peek()) == "{" else python_call
    return (yield from rest_of_list(reader, offered, one))


def python_lines(close: str) -> Grammar:
    """Calls on lines of their own, or a list of them, up to the closing mark."""

    def grammar(reader: Reader, offered: Offered, mark: str) -> Steps[None]:
        yield from reader.blanks()
        if (yield from reader.peek()) in ("[", "{"):
            calls = list((yield from python_calls(reader, offered)))
            yield from reader.closing(close)
        else:
            calls: list[Found] = []
            while (yield from reader.peek()) != close[0]:
                calls += yield from python_call(reader, offered)
                yield from reader.blanks()
            yield from reader.literal(close)
        if not calls:
            raise Mismatch
        yield tuple(calls)

    return grammar


_WORD_END = re.compile(r"[,:{}\[\]<]")
_ANY = Schema({}, {})


def gemma(quote: str, *closes: str) -> Grammar:
    """`call:NAME{key:value,…}`. Strings stand between two `quote`s, or as in JSON; keys, numbers, constants stand
    bare."""

    def grammar(reader: Reader, offered: Offered, mark: str) -> Steps[None]:
        yield from reader.blanks()
        yield from reader.literal("call:")
        name = (yield from reader.word(_WORD_END, offered.names)).strip()
        yield from reader.literal("{")
        arguments = yield from _gemma_members(reader, quote)
        yield from reader.closing(*closes)
        yield (Found(name, arguments),)

    return grammar


def _gemma_members(reader: Reader, quote: str) -> Steps[str]:
    end = re.compile(re.escape(quote))
    out, depth = ["{"], 1
    while depth:
        yield from reader.blanks()
        following = yield from reader.peek()
        if following in tuple("{}[],:"):
            out.append((yield from reader.literal(following)))
            depth += (following in "{[") - (following in "}]")
        elif following == "<":
            yield from reader.literal(quote)
            out.append(quoted((yield from reader.until(end))))
            yield from reader.literal(quote)
        elif following == '"':
            out.append((yield from reader.literal('"')) + (yield from reader.nested('"')))
        else:
            word = (yield from reader.word(_WORD_END)).strip()
            out.append(quoted(word) if (yield from reader.peek()) == ":" else plain_value(word, _ANY))
    return rewritten_object(" ".join(out))


# Blocks of call objects

TURN_ENDS = ("</s>", "<|im_end|>", "<|eom_id|>", "<|eot_id|>", "<|end_of_text|>", "<|endoftext|>")
"""What a model writes when it is done. Behind a form without a closing mark it belongs to the form."""


def block(*closes: str, also: str = "", read: Shape = call_objects) -> Grammar:
    """Calls up to a closing mark. `also` stands between the mark and them."""

    def grammar(reader: Reader, offered: Offered, mark: str) -> Steps[None]:
        yield from reader.blanks()
        if also:
            yield from reader.literal(also)
            yield from reader.blanks()
        calls = yield from read(reader, offered)
        yield from reader.closing(*closes)
        yield calls

    return grammar


def unclosed(*ends: str, also: str = "") -> Grammar:
    """A call object or a list of them that only its own bracket ends. `also` as in `block`."""

    def grammar(reader: Reader, offered: Offered, mark: str) -> Steps[None]:
        yield from reader.blanks()
        if also:
            yield from reader.literal(also)
            yield from reader.blanks()
        calls = yield from one_or_list(reader, offered)
        if not (yield from reader.tail(*ends, *TURN_ENDS)):
            yield from followed_well(reader)
        yield calls

    return grammar


def one_or_list(reader: Reader, offered: Offered) -> Steps[tuple[Found, ...]]:
    one = (yield from reader.peek()) == "{"
    return (yield from (call_object if one else call_objects)(reader, offered))


def followed_well(reader: Reader) -> Steps[None]:
    """For forms that only their own bracket ends: more JSON directly after it (a second brace) spoils it."""
    if (yield from reader.peek()) in tuple("}]),:\"'"):
        raise Mismatch


def at_start(grammar: Grammar) -> Grammar:
    """The same at the start of the text, where a form reads its mark itself."""

    def reading(reader: Reader, offered: Offered, mark: str) -> Steps[None]:
        yield from reader.literal(mark)
        yield from grammar(reader, offered, mark)

    return reading


def functools(reader: Reader, offered: Offered, mark: str) -> Steps[None]:
    """The mark has the bracket of the list."""
    calls = yield from rest_of_list(reader, offered, call_object)
    yield from followed_well(reader)
    yield calls


def llama_tag(reader: Reader, offered: Offered, mark: str) -> Steps[None]:
    yield from reader.blanks()
    while True:
        calls = yield from call_object(reader, offered)
        last = yield from reader.tail(*TURN_ENDS)
        if not last:
            yield from followed_well(reader)
        yield calls
        if last:
            return
        between = yield from reader.blanks()
        if (yield from reader.peek()) == ";":
            between += yield from reader.literal(";")
            yield from reader.blanks()
        if not between:
            return


# Code fences

JSON_TAGS = ("tool_call", "function_call", "tool", "tools", "response", "json", "xml", "JSON")
"""Elements that models without a template put around a call object."""

_JSON_TAGS = {f"<{tag}>": f"</{tag}>" for tag in JSON_TAGS}
_FENCES = ("", "json", "xml", "tool_call", "tool_calls", "tool_code", "tool_use", "tool", "function_call")
_FENCE_END = re.compile(r"[\r\n`]")
_LANGUAGE = re.compile(r"[A-Za-z][A-Za-z0-9_+#.-]*+(?: .*)?")


class Quotation(Mismatch):
    """A code block of some language begins here: its content is not searched."""


def fenced(reader: Reader, offered: Offered, mark: str) -> Steps[None]:
    language = (yield from reader.word(_FENCE_END)).strip()
    if language.lower() not in _FENCES:
        raise Quotation if _LANGUAGE.fullmatch(language) else Mismatch
    if language == "tool_code":
        yield from _TOOL_CODE(reader, offered, mark)
        return
    yield from reader.blanks()
    close = _JSON_TAGS[(yield from reader.literal(*_JSON_TAGS))] if (yield from reader.peek()) == "<" else ""
    yield from reader.blanks()
    calls = yield from call_objects(reader, offered)
    if close:
        yield from reader.closing(close)
        yield from reader.tail("```")
    else:
        yield from reader.closing("```")
    yield calls


_TOOL_CODE = python_lines("```")


# Messages that are nothing but calls


def bare(reader: Reader, offered: Offered, mark: str) -> Steps[None]:
    """Calls as the complete message: objects, or a list of objects or of Python's calls."""
    calls = yield from python_calls(reader, offered)
    yield from complete(reader, calls)


def complete(reader: Reader, calls: tuple[Found, ...]) -> Steps[None]:
    yield from reader.tail(*TURN_ENDS)
    yield from reader.blanks()
    if not (yield from reader.peek()):
        yield calls
