"""JSON text to values and back: fast where it can be, exact where it must be, never recursing into a trap.

orjson is four times faster than the standard parser, but it refuses half a surrogate pair and turns integers beyond 64
bits into floats; both happen in real responses. So: orjson first, the standard parser where orjson refuses or where a
number matters.
"""

from __future__ import annotations

import json
import re
import sys
from json.encoder import encode_basestring
from typing import NoReturn, cast

import orjson

from unbroken_wires.errors import CannotEncode, StreamError, TooDeep
from unbroken_wires.messages import Json

MAX_DEPTH = 512


class Damaged(StreamError):
    """One event that is not JSON. Does not leave the decoder: it becomes part of the verdict."""


class NumberTooLong(Damaged):
    """A number with more digits than Python converts in reasonable time."""


def loads(data: bytes) -> Json:
    """Parse one event. orjson where it can, the standard parser where orjson refuses (half a surrogate pair, NaN);
    raises `Damaged` for what is not JSON and `TooDeep` before anything could recurse."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return loads_exact(data)


def loads_faithful(data: bytes) -> Json:
    """For what is written again: fast, unless a number stands in it that the fast parser might bend."""
    return loads_exact(data) if _LONG_NUMBER in data.translate(_ALL_ZEROS) else loads(data)


_ALL_ZEROS = bytes(48 if 48 <= byte <= 57 else 32 for byte in range(256))
_LONG_NUMBER = b"0" * 19


def loads_exact(data: bytes) -> Json:
    """The standard parser: integers of any length stay exact, at four times the cost."""
    if not shallow(data):
        raise too_deep()
    try:
        return json.loads(data.decode("utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Damaged(f"an event is not JSON: {error}") from None
    except ValueError:  # of `int`, which counts digits before it converts them
        raise NumberTooLong(f"a number has more than {sys.get_int_max_str_digits():,} digits") from None


_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|$)', re.DOTALL)
_NOT_BRACKETS = re.compile(rb"[^\[\]{}]+")


def shallow(data: bytes, limit: int = MAX_DEPTH) -> bool:
    """Is the JSON text nested at most `limit` deep? Without recursion, for text that no parser has seen yet."""
    if data.count(b"[") + data.count(b"{") <= limit:
        return True
    if len(data) > _WINDOW:
        return _shallow_in_steps(data, limit)
    depth = 0
    for bracket in _NOT_BRACKETS.sub(b"", _STRINGS.sub(b"", data)):
        if bracket in b"[{":
            depth += 1
            if depth > limit:
                return False
        else:
            depth -= 1
    return True


_WINDOW = 1 << 20
"""Bytes that are looked at in one step: between steps other threads can run."""


def _shallow_in_steps(data: bytes, limit: int) -> bool:
    """The same for a long text."""
    depth = at = 0
    while at < len(data):
        quote = data.find(b'"', at)
        end = len(data) if quote < 0 else quote
        for begin in range(at, end, _WINDOW):
            for bracket in _NOT_BRACKETS.sub(b"", data[begin : min(end, begin + _WINDOW)]):
                depth += 1 if bracket in b"[{" else -1
                if depth > limit:
                    return False
        at = after_string(data, quote) if quote >= 0 else end
    return True


def after_string(data: bytes, quote: int) -> int:
    """Where the text continues after the string that begins with this quote."""
    end = quote
    while (end := data.find(b'"', end + 1)) >= 0:
        escapes = 0
        while data[end - 1 - escapes] == 92:  # a backslash: an even number of them escape each other
            escapes += 1
        if escapes % 2 == 0:
            return end + 1
    return len(data)


def too_deep() -> TooDeep:
    return TooDeep(f"reading the response stopped: JSON nested deeper than {MAX_DEPTH} levels; no provider sends that")


def exact(event: dict[str, Json], data: bytes, value: Json) -> dict[str, Json]:
    """The event again, with exact numbers, if `value` (a part of it) holds an integer that orjson rounded.

    Without `data` the event was parsed exactly from the start.
    """
    return cast("dict[str, Json]", loads_exact(data)) if data and _holds_rounded_integer(value) else event


def _holds_rounded_integer(value: Json) -> bool:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, float):
            if abs(item) >= 2**63 and item == item // 1:
                return True
        elif isinstance(item, dict):
            stack.extend(cast("dict[str, Json]", item).values())
        elif isinstance(item, list):
            stack.extend(cast("list[Json]", item))
    return False


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


strict = json.JSONDecoder(parse_constant=_refuse)
"""Standard JSON and no more: NaN and Infinity are refused, integers of any length are exact."""


def dumps(value: Json) -> bytes:
    """JSON for the wire. Half a surrogate pair, which no parser would take, becomes U+FFFD; NaN and Infinity, which
    JSON does not have, become null."""
    try:
        return orjson.dumps(value)
    except TypeError:
        try:
            return without_halves(_dump_unusual(value)).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise CannotEncode(f"a request or response cannot be written as JSON: {error}") from None


def _dump_unusual(value: Json) -> str:
    """What orjson refuses: halves of surrogate pairs, integers beyond 64 bits, deep nesting."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError):
        return _dump_piecemeal(value)  # there is a NaN or an `orjson.Fragment`, too


def _dump_piecemeal(value: Json) -> str:
    if isinstance(value, dict):
        fields = cast("dict[str, Json]", value)
        values = map(_dump_piecemeal, fields.values())
        return "{" + ",".join(map("{}:{}".format, map(encode_basestring, fields), values)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_dump_piecemeal, cast("list[Json]", value))) + "]"
    if isinstance(value, float) or isinstance(value, orjson.Fragment):  # noqa: SIM101 - a union is one more recursion
        return orjson.dumps(value).decode()
    return json.dumps(value, ensure_ascii=False)


_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_HALVES = re.compile("[\ud800-\udfff]+")


def without_halves(text: str) -> str:
    """Joins surrogate pairs; a half that is alone becomes U+FFFD. By way of UTF-16 and its error handlers it would take
    1 us for each half, in one step that no other thread can interrupt."""
    if _HALVES.search(text) is None:
        return text
    joined = _PAIR.sub(lambda pair: chr(0x10000 + ((ord(pair[0][0]) & 0x3FF) << 10) + (ord(pair[0][1]) & 0x3FF)), text)
    return _HALVES.sub(lambda halves: "\ufffd" * len(halves[0]), joined)


def join_surrogates(text: str) -> tuple[str, str]:
    """Joins surrogate pairs; a character that is split over two events arrives as two halves. A half at the end is
    returned apart, for the next piece; any other lone half becomes U+FFFD."""
    half = ""
    if text and "\ud800" <= text[-1] <= "\udbff":
        text, half = text[:-1], text[-1]
    return without_halves(text), half


def dump_arguments(arguments: Json) -> str | None:
    """The text of arguments that came as an object; None when JSON cannot express it (NaN, Infinity, too deep)."""
    try:
        return json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return None
