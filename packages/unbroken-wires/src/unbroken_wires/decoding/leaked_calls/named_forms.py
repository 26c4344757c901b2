"""Forms that name the tool first and then give its arguments: Mistral's, DeepSeek's, Kimi's, Harmony's and others."""

from __future__ import annotations

import re

from unbroken_wires.decoding.leaked_calls.literal_forms import TURN_ENDS, complete, followed_well, one_or_list
from unbroken_wires.decoding.leaked_calls.reader import Found, Mismatch, Reader, Steps
from unbroken_wires.decoding.leaked_calls.tagged_forms import invoke
from unbroken_wires.decoding.leaked_calls.typed_values import Offered, strict_object

LINE_END = re.compile(r"[\r\n]")
NAME_END = re.compile(r"[\r\n<]")
_MISTRAL_NAME_END = re.compile(r"[\[{\s]")
_BRACKET = re.compile(r"\[")
_COLON = re.compile(r"[:\r\n]")


def mistral(reader: Reader, offered: Offered, mark: str) -> Steps[None]:
    yield from reader.blanks()
    if (yield from reader.peek()) in ("[", "{"):
        calls = yield from one_or_list(reader, offered)
    else:
        name = yield from reader.word(_MISTRAL_NAME_END, offered.names)
        yield from reader.blanks()
        if (yield from reader.peek()) == "[":
            if (yield from reader.literal("[CALL_ID]", "[ARGS]")) == "[CALL_ID]":
                yield from reader.word(_BRACKET)
                yield from reader.literal("[ARGS]")
            yield from reader.blanks()
        calls = (Found(name, strict_object((yield from reader.object()))),)
    if not (yield from reader.tail(*TURN_ENDS)):
        yield from followed_well(reader)
    yield calls


KIMI_BEGIN = "<|tool_call_begin|>"
KIMI_SECTIONS = ("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>")
_KIMI_SECTION_ENDS = ("<|tool_calls_section_end|>", "<|tool_call_section_end|>")
_KIMI_NAME_END = re.compile(r"[:<\s]")


def kimi(reader: Reader, offered: Offered, mark: str) -> Steps[None]:
    if mark != KIMI_BEGIN:
        yield from reader.blanks()
        yield from reader.literal(KIMI_BEGIN)
    yield from reader.blanks()
    name = offered.spellings[(yield from reader.word(_KIMI_NAME_END, offered.spellings))]
    if (yield from reader.peek()) == ":":
        yield from reader.literal(":")
        if not (yield from reader.word(_KIMI_NAME_END)).isdecimal():
            raise Mismatch
    yield from reader.blanks()
    yield from reader.literal("<|tool_call_argument_begin|>")
    yield from reader.blanks()
    arguments = strict_object((yield from reader.object()))
    yield from reader.closing("<|tool_call_end|>")
    yield from reader.tail(*_KIMI_SECTION_ENDS)
    yield (Found(name, arguments),)


SOLAR_BEGIN = "<|tool_call:begin|>"


def solar(reader: Reader, offered: Offered, mark: str) -> Steps[None]:
    if mark != SOLAR_BEGIN:
        yield from reader.blanks()
        yield from reader.literal(SOLAR_BEGIN)
    yield from reader.word(NAME_END)
    yield from reader.literal("<|tool_call:name|>")
    name = (yield from reader.word(NAME_END, offered.names)).strip()
    yield from reader.literal("<|tool_call:args|>")
    yield from reader.blanks()
    arguments = strict_object((yield from reader.object()))
    yield from reader.closing("<|tool_call:end|>")
    yield from reader.tail("<|calls|>")
    yield (Found(name, arguments),)


def mcp(reader: Reader, offered: Offered, mark: str) -> Steps[None]:
    yield from reader.blanks()
    if (yield from reader.literal("<server_name>", "<tool_name>")) == "<server_name>":
        yield from reader.word(NAME_END)
        yield from reader.literal("</server_name>")
        yield from reader.blanks()
        yield from reader.literal("<tool_name>")
    name = (yield from reader.word(NAME_END, offered.names)).strip()
    yield from reader.literal("</tool_name>")
    yield from reader.blanks()
    yield from reader.literal("<arguments>")
    yield from reader.blanks()
    arguments = strict_object((yield from reader.object()))
    if (yield from reader.closing("</arguments>")):
        yield from reader.closing("</use_mcp_tool>")
    yield (Found(name, arguments),)


def functionary(reader: Reader, offered: Offered, mark: str) -> Steps[None]:
    name = (yield from reader.word(LINE_END, offered.names)).strip()
    yield from reader.blanks()
    arguments = strict_object((yield from reader.object()))
    if not (yield from reader.tail(*TURN_ENDS)):
        yield from followed_well(reader)
    yield (Found(name, arguments),)


def dph(reader: Reader, offered: Offered, mark: str) -> Steps[None]:
    name = (yield from reader.word(_COLON, offered.names)).strip()
    yield from reader.literal(":")
    yield from reader.blanks()
    arguments = strict_object((yield from reader.object()))
    yield from followed_well(reader)
    yield (Found(name, arguments),)


_BARE_NAME_END = re.compile(r"[\[{\s]")


def bare_name(reader: Reader, offered: Offered, mark: str) -> Steps[None]:
    """A name and its arguments as the complete message."""
    name = yield from reader.word(_BARE_NAME_END, offered.names)
    yield from reader.blanks()
    if (yield from reader.peek()) == "[":
        yield from reader.literal("[ARGS]")
        yield from reader.blanks()
    calls = (Found(name, strict_object((yield from reader.object()))),)
    yield from complete(reader, calls)


# DeepSeek, and Step 3 which has the same sections

_STEP = invoke("steptml:", "invoke", "parameter")
_STEP_INVOKE = "<steptml:invoke name="


def _deepseek_tags(words: str) -> tuple[str, ...]:
    """R1 and its relatives mix the characters between the words."""
    return tuple(f"<｜{words.replace(' ', separator)}｜>" for separator in ("▁", "_", " ", "\\_"))


_CALL_BEGIN, _CALL_END, _CALLS_END, _SEP = map(
    _deepseek_tags, ("tool call begin", "tool call end", "tool calls end", "tool sep")
)
DEEPSEEK_MARKS = (*_deepseek_tags("tool calls begin"), "<｜tool▁calls｜>", *_CALL_BEGIN)


def deepseek(reader: Reader, offered: Offered, mark: str) -> Steps[None]:
    if mark not in _CALL_BEGIN:
        yield from reader.tail(*_CALL_BEGIN)
    yield from reader.blanks()
    if (yield from reader.peek()) == "<":
        yield from reader.literal(_STEP_INVOKE)
        calls = yield from _STEP(reader, offered)
    else:
        calls = yield from _deepseek_call(reader, offered)
    if (yield from reader.closing(*_CALL_END, *_CALLS_END)) in _CALL_END:
        yield from reader.tail(*_CALLS_END)
    yield calls


def _deepseek_call(reader: Reader, offered: Offered) -> Steps[tuple[Found, ...]]:
    name = (yield from reader.word(NAME_END, offered.names | {"function"})).strip()
    yield from reader.literal(*_SEP)
    yield from reader.blanks()
    following = yield from reader.peek()
    if name == "function" and following == "<":
        yield from reader.literal(_STEP_INVOKE)
        return (yield from _STEP(reader, offered))
    if name == "function" and following != "{":  # V3 and R1; V3.1 has the name here
        name = (yield from reader.word(LINE_END, offered.names)).strip()
        yield from reader.blanks()
    if name not in offered.names:
        raise Mismatch
    fence = (yield from reader.peek()) == "`"
    if fence:
        yield from reader.literal("```")
        yield from reader.tail("json")
        yield from reader.blanks()
    arguments = strict_object((yield from reader.object()))
    if fence:
        yield from reader.closing("```")
    return (Found(name, arguments),)


# Harmony: <|start|>assistant to=functions.NAME<|channel|>commentary <|constrain|>json<|message|>{…}<|call|>

CHANNEL = "<|channel|>"
ASSISTANT = "<|start|>assistant"
_CHANNEL_ENDS = ("<|call|>", "<|end|>", "<|return|>", "<|eot|>", "<|eom|>")
_RECIPIENT_END = re.compile(r"[<{\s]")
_MUSE = "<atem:function_calls>"


def harmony(reader: Reader, offered: Offered, mark: str) -> Steps[None]:
    name, part = "", mark
    if mark == ASSISTANT:
        yield from reader.blanks()
        part = yield from reader.literal("to=", CHANNEL)
    while part != "<|message|>":
        if part.endswith("to="):
            name = offered.spellings[(yield from reader.word(_RECIPIENT_END, offered.spellings))]
        elif part == CHANNEL:
            yield from reader.literal("commentary", "analysis")
        yield from reader.blanks()
        if (yield from reader.peek()) == "{":  # a server has removed the marks
            break
        part = yield from reader.literal("to=", CHANNEL, "<|constrain|>", "json", "code", "<|message|>")
    if not name:
        raise Mismatch
    yield from reader.blanks()
    if (yield from reader.peek()) == "<":
        yield from reader.literal(_MUSE)
        yield from reader.blanks()
        yield from reader.literal("<atem:invoke name=")
        yield (yield from _MUSE_INVOKE(reader, offered))
        return
    arguments = strict_object((yield from reader.object()))
    if not (yield from reader.tail(*_CHANNEL_ENDS)):
        yield from followed_well(reader)
    yield (Found(name, arguments),)


_MUSE_INVOKE = invoke("atem:", "invoke", "parameter", False, "</atem:function_calls>", *_CHANNEL_ENDS)
