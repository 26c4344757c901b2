"""Calls whose arguments are tags, one for each key: `<parameter=key>value</parameter>` and its relatives.

Each shape is written once; what differs between dialects (the names of the tags, what stands around them) is passed in.
A value ends at the first tag of its form, which must be its closing one: a value that quotes the form itself is text.
"""

from __future__ import annotations

import html
import re
from functools import cache

from unbroken_wires.decoding.leaked_calls.literal_forms import (
    QUOTES,
    Grammar,
    Shape,
    call_objects,
    python_arguments,
    python_calls,
    quoted_name,
)
from unbroken_wires.decoding.leaked_calls.reader import Found, Mismatch, Reader, Steps
from unbroken_wires.decoding.leaked_calls.typed_values import (
    Offered,
    Schema,
    add_pair,
    json_value,
    plain_value,
    strict_object,
    write_arguments,
    write_object,
)

WRAPPERS = (
    "tool_call",
    "tool_calls",
    "function_calls",
    "minimax:tool_call",
    "dots_function_call",
    "seed:tool_call",
    "antml:function_calls",
)
"""Elements that stand around calls, and are often missing: the opening tag more often than the closing one."""

_CLOSES = tuple(f"</{wrapper}>" for wrapper in WRAPPERS)
_ANGLE = re.compile("[>\r\n]")


# <function=NAME><parameter=KEY>VALUE</parameter></function>

_FUNCTION_TAG = re.compile(r"</?(?:parameter|function)[>=]")


def function(reader: Reader, offered: Offered) -> Steps[tuple[Found, ...]]:
    name = (yield from reader.word(_ANGLE, offered.names)).strip()
    yield from reader.literal(">")
    yield from reader.blanks()
    if (yield from reader.peek()) == "{":
        arguments = strict_object((yield from reader.object()))
        yield from reader.closing("</function>")
    else:
        arguments = yield from _parameters(reader, offered.schema(name))
    yield from reader.tail(*_CLOSES)
    return (Found(name, arguments, reader.offset),)


def _parameters(reader: Reader, schema: Schema) -> Steps[str]:
    pairs: dict[str, str] = {}
    while (yield from reader.literal("<parameter=", "</function>")) == "<parameter=":
        key = (yield from reader.word(_ANGLE)).strip()
        yield from reader.literal(">")
        value = yield from reader.until(_FUNCTION_TAG)
        yield from reader.literal("</parameter>")
        value = value.removeprefix("\n").removesuffix("\n")
        add_pair(pairs, key, plain_value(value, schema.member(key)))
        yield from reader.blanks()
    return write_arguments(pairs)


# <invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>


@cache
def invoke(prefix: str, call: str, parameter: str, strict_keys: bool = False, *closes: str) -> Shape:
    """`prefix` is part of each tag; `call` and `parameter` are the names of the elements. With `strict_keys` a key that
    the tool's schema does not have makes it text."""
    tag = re.compile(f"</?{re.escape(prefix)}(?:{call}|{parameter})[ >/]")
    opening, end = f"<{prefix}{parameter} name=", f"</{prefix}{call}>"
    closing = f"</{prefix}{parameter}>"
    after = (*closes, *_CLOSES)

    def shape(reader: Reader, offered: Offered) -> Steps[tuple[Found, ...]]:
        name = yield from quoted_name(reader, offered, (yield from reader.literal('"', "'")))
        schema = offered.schema(name)
        yield from reader.blanks()
        if (yield from reader.literal(">", "/>")) == "/>":
            arguments = "{}"
        else:
            yield from reader.blanks()
            if (yield from reader.peek()) == "{":
                arguments = strict_object((yield from reader.object()))
                yield from reader.closing(end)
            else:
                arguments = yield from pairs_of(reader, schema)
        while (yield from reader.tail(*after)):
            pass
        return (Found(name, arguments, reader.offset),)

    def pairs_of(reader: Reader, schema: Schema) -> Steps[str]:
        pairs: dict[str, str] = {}
        while (yield from reader.literal(opening, end)) == opening:
            quote = yield from reader.literal('"', "'")
            key = yield from reader.word(QUOTES[quote])
            yield from reader.literal(quote)
            if strict_keys and not schema.knows(key):
                raise Mismatch
            yield from reader.blanks()
            add_pair(pairs, key, (yield from value_of(reader, schema.member(key))))
            yield from reader.blanks()
        return write_arguments(pairs)

    def value_of(reader: Reader, schema: Schema) -> Steps[str]:
        kind = yield from reader.literal('string="true"', 'string="false"', ">", "/>")
        if kind.startswith("string"):
            yield from reader.blanks()
            ended = (yield from reader.literal(">", "/>")) == "/>"
        else:
            ended = kind == "/>"
        is_string = kind == 'string="true"'
        if ended:
            value = ""
        elif (yield from reader.tail("<![CDATA[")):
            value = yield from reader.until(_CDATA_END, "]")
            yield from reader.literal("]]>")
            yield from reader.blanks()
            yield from reader.literal(closing)
            is_string = True
        else:
            value = yield from reader.until(tag)
            yield from reader.literal(closing)
        return json_value(value) if kind == 'string="false"' else plain_value(value, schema, is_string)

    return shape


_CDATA_END = re.compile(r"\]\]>")


# <tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>

_PAIRS_NAME_END = re.compile(r"[\r\n<({]")


@cache
def argument_pairs(close: str, prefix: str = "", suffix: str = "") -> Shape:
    """The name, then pairs of tags. Some write JSON or Python's arguments behind the name instead."""
    tag = re.compile(f"</?{re.escape(prefix)}(?:arg_key|arg_type|arg_value|tool_call){re.escape(suffix)}>")

    def opened(element: str) -> str:
        return f"<{prefix}{element}{suffix}>"

    def closed(element: str) -> str:
        return f"</{prefix}{element}{suffix}>"

    def shape(reader: Reader, offered: Offered) -> Steps[tuple[Found, ...]]:
        name = (yield from reader.word(_PAIRS_NAME_END, offered.names)).strip()
        yield from reader.tail(opened("tool_sep"))
        yield from reader.blanks()
        following = yield from reader.peek()
        if following == "{":
            arguments = strict_object((yield from reader.object()))
            yield from reader.closing(close)
        elif following == "(":
            arguments = yield from python_arguments(reader)
            yield from reader.blanks()
            yield from reader.literal(close)
        else:
            arguments = yield from pairs_of(reader, offered.schema(name))
        return (Found(name, arguments, reader.offset),)

    def pairs_of(reader: Reader, schema: Schema) -> Steps[str]:
        pairs: dict[str, str] = {}
        while (yield from reader.literal(opened("arg_key"), close)) != close:
            key = (yield from element(reader, "arg_key")).strip()
            yield from reader.blanks()
            kind = ""
            if (yield from reader.literal(opened("arg_type"), opened("arg_value"))) == opened("arg_type"):
                kind = (yield from element(reader, "arg_type")).strip()
                yield from reader.blanks()
                yield from reader.literal(opened("arg_value"))
            value = yield from element(reader, "arg_value")
            add_pair(pairs, key, of_type(value, kind, schema.member(key)))
            yield from reader.blanks()
        return write_arguments(pairs)

    def element(reader: Reader, name: str) -> Steps[str]:
        text = yield from reader.until(tag)
        yield from reader.literal(closed(name))
        return text

    return shape


_JSON_TYPES = ("number", "integer", "boolean", "object", "array", "null")


def of_type(value: str, kind: str, schema: Schema) -> str:
    """A value whose form may name its type."""
    return json_value(value) if kind in _JSON_TYPES else plain_value(value, schema, is_string=kind == "string")


# Blocks of tagged calls

INVOKE = invoke("", "invoke", "parameter")
NAMED_FUNCTION = invoke("", "function", "param", True)
PAIRS = argument_pairs("</tool_call>")


def single(shape: Shape) -> Grammar:
    """The grammar of a form whose mark opens one call."""

    def grammar(reader: Reader, offered: Offered, mark: str) -> Steps[None]:
        yield from reader.blanks()
        yield (yield from shape(reader, offered))

    return grammar


def contents(close: str, pairs: Shape = PAIRS) -> Grammar:
    """A block: a list of calls or call objects, tagged calls, or a name with its arguments (`pairs`, which reads the
    closing mark too)."""

    def grammar(reader: Reader, offered: Offered, mark: str) -> Steps[None]:
        yield from reader.blanks()
        following = yield from reader.peek()
        if following in ("{", "["):
            calls = yield from python_calls(reader, offered)
            yield from reader.closing(close)
            yield calls
        elif following == "`":
            yield from reader.literal("```")
            yield from reader.tail("json")
            yield from reader.blanks()
            calls = yield from call_objects(reader, offered)
            if (yield from reader.closing("```")):
                yield from reader.closing(close)
            yield calls
        elif following == "<":
            yield from _tagged(reader, offered, mark, close)
        else:
            yield (yield from pairs(reader, offered))

    return grammar


def _tagged(reader: Reader, offered: Offered, mark: str, close: str) -> Steps[None]:
    last, marks = "", [inner for inner in _INNER if inner != mark]
    while not last:
        yield from reader.blanks()
        calls = yield from _INNER[(yield from reader.literal(*marks))](reader, offered)
        last = yield from reader.tail(close)
        yield calls


def _tool_call(reader: Reader, offered: Offered) -> Steps[tuple[Found, ...]]:
    """A `<tool_call>` inside a block."""
    yield from reader.blanks()
    following = yield from reader.peek()
    if following in ("{", "["):
        calls = yield from call_objects(reader, offered)
        yield from reader.closing("</tool_call>")
        return calls
    if following == "<":
        return (yield from _INNER[(yield from reader.literal("<function=", "<invoke name="))](reader, offered))
    return (yield from PAIRS(reader, offered))


IFM_PAIRS = argument_pairs("</ifm|tool_call>", "ifm|")
OPEN_SOURCE_PAIRS = argument_pairs("</tool_call:opensource>", "", ":opensource")
_INNER: dict[str, Shape] = {
    "<tool_call>": _tool_call,
    "<ifm|tool_call>": IFM_PAIRS,
    "<tool_call:opensource>": OPEN_SOURCE_PAIRS,
    "<function=": function,
    "<function name=": NAMED_FUNCTION,
    "<invoke name=": INVOKE,
}


def prefixed(prefix: str, *wrappers: str) -> Grammar:
    """`<PREFIXinvoke name="…">`, with or without one of the wrappers around it. The mark ends with the prefix."""
    shape = invoke(prefix, "invoke", "parameter", False, *(f"</{prefix}{wrapper}" for wrapper in wrappers))

    def grammar(reader: Reader, offered: Offered, mark: str) -> Steps[None]:
        if (yield from reader.literal("invoke name=", *wrappers)) in wrappers:
            yield from reader.blanks()
            yield from reader.literal(f"<{prefix}invoke name=")
        yield (yield from shape(reader, offered))

    return grammar


# <|open|>call tool="NAME"<|sep|><|open|>argument key="KEY" type="TYPE"<|sep|>VALUE<|close|>argument<|sep|>…

KIMI_K3_TOOLS = "<|open|>tools<|sep|>"
KIMI_K3_CALL = "<|open|>call "
_K3_TAG = re.compile(r"<\|(?:open|close)\|>(?:argument|call|tools)")
_K3_ARGUMENT, _K3_END = "<|open|>argument ", "<|close|>call<|sep|>"


def kimi_k3(reader: Reader, offered: Offered, mark: str) -> Steps[None]:
    if mark == KIMI_K3_TOOLS:
        yield from reader.blanks()
        yield from reader.literal(KIMI_K3_CALL)
    name = (yield from _attributes(reader, "tool")).get("tool", "")
    if name not in offered.names:
        raise Mismatch
    schema = offered.schema(name)
    pairs: dict[str, str] = {}
    yield from reader.blanks()
    while (yield from reader.literal(_K3_ARGUMENT, _K3_END)) == _K3_ARGUMENT:
        found = yield from _attributes(reader, "key")
        key = found["key"]
        value = yield from reader.until(_K3_TAG)
        yield from reader.literal("<|close|>argument<|sep|>")
        add_pair(pairs, key, of_type(value, found.get("type", ""), schema.member(key)))
        yield from reader.blanks()
    yield from reader.tail("<|close|>tools<|sep|>")
    yield (Found(name, write_arguments(pairs)),)


_EQUALS = re.compile(r"[=<\s]")


def _attributes(reader: Reader, first: str) -> Steps[dict[str, str]]:
    """`tool="…" index="1"<|sep|>`, from its first attribute to the end of the tag."""
    found: dict[str, str] = {}
    name = yield from reader.literal(first)
    while True:
        yield from reader.literal('="')
        found[name] = html.unescape((yield from reader.word(QUOTES['"'])))
        yield from reader.literal('"')
        yield from reader.blanks()
        if (yield from reader.peek()) == "<":
            yield from reader.literal("<|sep|>")
            return found
        name = yield from reader.word(_EQUALS)


# ]<]minimax[>[<KEY>VALUE]<]minimax[>[</KEY>: one element for each key, elements inside elements

MINIMAX_M3 = "]<]minimax[>["
_M3_TAG = re.compile(re.escape(MINIMAX_M3))
_MAX_ELEMENTS = 32


def minimax_m3(reader: Reader, offered: Offered, mark: str) -> Steps[None]:
    yield from reader.blanks()
    if (yield from reader.literal("<tool_call>", "<invoke name=")) == "<tool_call>":
        yield from reader.blanks()
        yield from reader.literal(MINIMAX_M3)
        yield from reader.blanks()
        yield from reader.literal("<invoke name=")
    yield from reader.literal('"')
    name = yield from quoted_name(reader, offered)
    yield from reader.literal(">")
    arguments = strict_object((yield from _element(reader, "invoke", offered.schema(name), 0)))
    yield from reader.tail(MINIMAX_M3 + "</tool_call>")
    yield (Found(name, arguments),)


def _element(reader: Reader, name: str, schema: Schema, depth: int) -> Steps[str]:
    """The JSON text of an element's content, up to and including its closing tag."""
    children: list[tuple[str, str]] = []
    if depth > _MAX_ELEMENTS:
        raise Mismatch
    while True:
        text = yield from reader.until(_M3_TAG, "]")
        yield from reader.literal(MINIMAX_M3)
        yield from reader.blanks()
        yield from reader.literal("<")
        tag = yield from reader.word(_ANGLE)
        yield from reader.literal(">")
        if tag == "/" + name:
            break
        if text.strip() or tag.startswith("/"):
            raise Mismatch
        inner = schema.item() if tag == "item" and "object" not in schema.kinds else schema.member(tag)
        children.append((tag, (yield from _element(reader, tag, inner, depth + 1))))
    if not children and depth:
        return plain_value(text, schema)
    if text.strip():
        raise Mismatch
    if children and depth and all(tag == "item" for tag, _ in children) and "object" not in schema.kinds:
        return f"[{', '.join(value for _, value in children)}]"
    members: dict[str, list[str]] = {}
    for tag, value in children:
        members.setdefault(tag, []).append(value)
    return write_object({tag: each[0] if len(each) == 1 else f"[{', '.join(each)}]" for tag, each in members.items()})
