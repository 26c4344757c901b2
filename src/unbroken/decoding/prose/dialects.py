"""The forms in which models write calls into their text, as data: each dialect with its marks, its grammar, its origin.

A grammar accepts only the complete form: an offered name, arguments that are one strict JSON object, its closing mark
where the form has one. It never repairs and never accepts a part. When and where to run one is decided in `prose`;
servers' own parsers and the models' chat templates were the sources of the forms, not of the code.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from unbroken.decoding.prose.reader import (
    QUOTE,
    Found,
    Mismatch,
    Names,
    Reader,
    Steps,
    add_pair,
    call_object,
    call_objects,
    strict_object,
    typed,
    untyped,
    write_arguments,
)


@dataclass(frozen=True, slots=True)
class Dialect:
    name: str
    marks: tuple[str, ...]
    """Each of them opens the form; none begins another."""
    read: Callable[[Reader, Names, str], Steps[None]]
    """The grammar. Called with the mark that was found, and with the reader behind it."""
    origin: str
    starts: str = ""
    """Where dialects share a mark: the characters that may follow it here; empty for any other."""
    place: Literal["anywhere", "line", "start"] = "anywhere"
    """Where the mark must stand: at the start of a line, or of the whole text (white space aside)."""


def _followed_well(reader: Reader) -> Steps[None]:
    """For forms that only the object's own brace ends: anything directly after it (a second brace) spoils it."""
    if (yield from reader.peek()) not in ("", " ", "\t", "\r", "\n", ";", "<", "["):
        raise Mismatch


def _hermes(reader: Reader, names: Names, mark: str) -> Steps[None]:
    call = yield from call_object(reader, names)
    yield from reader.blanks()
    yield from reader.literal("</tool_call>")
    yield (call,)


_ANGLE = re.compile(">")
_QWEN_TAG = re.compile(r"</?(?:parameter|function)[>=]")


def _qwen_coder(reader: Reader, names: Names, mark: str) -> Steps[None]:
    if mark == "<tool_call>":
        yield from reader.literal("<function=")
    name = (yield from reader.word(_ANGLE, names)).strip()
    yield from reader.literal(">")
    yield from reader.blanks()
    if (yield from reader.peek()) == "{":
        arguments = strict_object((yield from reader.object()))
        yield from reader.blanks()
        yield from reader.literal("</function>")
    else:
        arguments = yield from _qwen_parameters(reader)
    # The model drops the opening outer tag more often than the closing one.
    yield from reader.tail("</tool_call>")
    yield (Found(name, arguments),)


def _qwen_parameters(reader: Reader) -> Steps[str]:
    pairs: dict[str, str] = {}
    while (yield from reader.literal("<parameter=", "</function>")) == "<parameter=":
        key = yield from reader.word(_ANGLE)
        yield from reader.literal(">")
        value = yield from reader.until(_QWEN_TAG)
        yield from reader.literal("</parameter>")
        add_pair(pairs, key.strip(), untyped(value.removeprefix("\n").removesuffix("\n")))
        yield from reader.blanks()
    return write_arguments(pairs)


_NAME_END = re.compile(r"[\r\n<]")
_GLM_TAG = re.compile("</?(?:arg_key|arg_value|tool_call)>")


def _glm(reader: Reader, names: Names, mark: str) -> Steps[None]:
    name = (yield from reader.word(_NAME_END, names)).strip()
    pairs: dict[str, str] = {}
    yield from reader.blanks()
    while (yield from reader.literal("<arg_key>", "</tool_call>")) == "<arg_key>":
        key = yield from reader.until(_GLM_TAG)
        yield from reader.literal("</arg_key>")
        yield from reader.blanks()
        yield from reader.literal("<arg_value>")
        value = yield from reader.until(_GLM_TAG)
        yield from reader.literal("</arg_value>")
        add_pair(pairs, key.strip(), untyped(value))
        yield from reader.blanks()
    yield (Found(name, write_arguments(pairs)),)


def _llama_tag(reader: Reader, names: Names, mark: str) -> Steps[None]:
    yield from reader.blanks()
    while True:
        call = yield from call_object(reader, names)
        last = yield from reader.tail("<|eom_id|>", "<|eot_id|>")
        if not last:
            yield from _followed_well(reader)
        yield (call,)
        if last:
            return
        between = yield from reader.blanks()
        if (yield from reader.peek()) == ";":
            between += yield from reader.literal(";")
            yield from reader.blanks()
        if not between:
            return


def _llama_bare(reader: Reader, names: Names, mark: str) -> Steps[None]:
    call = yield from call_object(reader, names, opened=True)
    yield from reader.blanks()
    if not (yield from reader.peek()):
        yield (call,)


_MISTRAL_NAME_END = re.compile(r"[\[{\s]")
_BRACKET = re.compile(r"\[")


def _mistral(reader: Reader, names: Names, mark: str) -> Steps[None]:
    yield from reader.blanks()
    if (yield from reader.peek()) in ("[", "{"):
        calls = yield from call_objects(reader, names)
    else:
        name = yield from reader.word(_MISTRAL_NAME_END, names)
        yield from reader.blanks()
        if (yield from reader.peek()) == "[":
            if (yield from reader.literal("[CALL_ID]", "[ARGS]")) == "[CALL_ID]":
                yield from reader.word(_BRACKET)
                yield from reader.literal("[ARGS]")
            yield from reader.blanks()
        calls = (Found(name, strict_object((yield from reader.object()))),)
    yield from _followed_well(reader)
    yield calls


_WORD_SEPARATORS = ("▁", "_", " ")


def _deepseek_tag(separator: str, words: str) -> str:
    return f"<｜{words.replace(' ', separator)}｜>"


def _deepseek(reader: Reader, names: Names, mark: str) -> Steps[None]:
    separator = mark.removeprefix("<｜tool")[0]
    if mark == _deepseek_tag(separator, "tool calls begin"):
        yield from reader.blanks()
        yield from reader.literal(_deepseek_tag(separator, "tool call begin"))
    name = (yield from reader.word(_NAME_END, names | {"function"})).strip()
    yield from reader.literal(_deepseek_tag(separator, "tool sep"))
    yield from reader.blanks()
    if name == "function" and (yield from reader.peek()) != "{":  # V3 and R1; V3.1 has the name here
        name = (yield from reader.word(_LINE_END, names)).strip()
        yield from reader.blanks()
    if name not in names:
        raise Mismatch
    fenced = (yield from reader.peek()) == "`"
    if fenced:
        yield from reader.literal("```json")
        yield from reader.blanks()
    arguments = strict_object((yield from reader.object()))
    yield from reader.blanks()
    if fenced:
        yield from reader.literal("```")
        yield from reader.blanks()
    yield from reader.literal(_deepseek_tag(separator, "tool call end"))
    yield from reader.tail(_deepseek_tag(separator, "tool calls end"))
    yield (Found(name, arguments),)


_BARS = ("｜", "｜｜", "|", "||", "‖")
_DSML = (*(f"{bar}DSML{bar}" for bar in _BARS), *(f" {bar} DSML {bar} " for bar in _BARS))
_DSML_WRAPPERS = ("function_calls>", "tool_calls>", "tool_use>", "calls>")


def _dsml(reader: Reader, names: Names, mark: str) -> Steps[None]:
    close = "</" + mark.removeprefix("<")
    if (yield from reader.literal('invoke name="', *_DSML_WRAPPERS)) in _DSML_WRAPPERS:
        yield from reader.blanks()
        yield from reader.literal(mark + 'invoke name="')
    name = yield from reader.word(QUOTE, names)
    if name not in names:  # in quotes white space is part of it
        raise Mismatch
    yield from reader.literal('"')
    yield from reader.blanks()
    yield from reader.literal(">")
    pairs: dict[str, str] = {}
    tag = re.compile("</?" + re.escape(mark.removeprefix("<")))
    yield from reader.blanks()
    while (yield from reader.literal(mark + 'parameter name="', close + "invoke>")) != close + "invoke>":
        key = yield from reader.word(QUOTE)
        yield from reader.literal('"')
        yield from reader.blanks()
        kind = yield from reader.literal('string="true"', 'string="false"')
        yield from reader.blanks()
        yield from reader.literal(">")
        value = yield from reader.until(tag)
        yield from reader.literal(close + "parameter>")
        add_pair(pairs, key, typed(value, is_string=kind == 'string="true"'))
        yield from reader.blanks()
    yield from reader.tail(*(close + wrapper for wrapper in _DSML_WRAPPERS))
    yield (Found(name, write_arguments(pairs)),)


_KIMI_BEGIN = "<|tool_call_begin|>"
_KIMI_SECTIONS = ("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>")
_KIMI_SECTION_ENDS = ("<|tool_calls_section_end|>", "<|tool_call_section_end|>")
_KIMI_NAME_END = re.compile(r"[:<\s]")


def _kimi(reader: Reader, names: Names, mark: str) -> Steps[None]:
    if mark != _KIMI_BEGIN:
        yield from reader.blanks()
        yield from reader.literal(_KIMI_BEGIN)
    yield from reader.blanks()
    name = yield from reader.word(_KIMI_NAME_END, names | {f"functions.{name}" for name in names})
    if name not in names:
        name = name.removeprefix("functions.")
    if (yield from reader.peek()) == ":":
        yield from reader.literal(":")
        if not (yield from reader.word(_KIMI_NAME_END)).isdecimal():
            raise Mismatch
    yield from reader.blanks()
    yield from reader.literal("<|tool_call_argument_begin|>")
    yield from reader.blanks()
    arguments = strict_object((yield from reader.object()))
    yield from reader.blanks()
    yield from reader.literal("<|tool_call_end|>")
    yield from reader.tail(*_KIMI_SECTION_ENDS)
    yield (Found(name, arguments),)


_LINE_END = re.compile(r"[\r\n]")
_FENCES = ("", "json", "tool_call", "tool_calls")


def _fenced(reader: Reader, names: Names, mark: str) -> Steps[None]:
    yield from reader.word(_LINE_END, _FENCES)
    yield from reader.blanks()
    calls = yield from call_objects(reader, names)
    yield from reader.blanks()
    yield from reader.literal("```")
    yield calls


_COLON = re.compile(r"[:\r\n]")


def _dph(reader: Reader, names: Names, mark: str) -> Steps[None]:
    name = (yield from reader.word(_COLON, names)).strip()
    yield from reader.literal(":")
    yield from reader.blanks()
    arguments = strict_object((yield from reader.object()))
    yield from _followed_well(reader)
    yield (Found(name, arguments),)


DIALECTS = (
    Dialect(
        "hermes",
        ("<tool_call>",),
        _hermes,
        "Nous Hermes 2 and 3, Qwen 2.5 and 3: their chat templates ask for one JSON object between the tags.",
        starts="{",
    ),
    Dialect(
        "qwen-coder",
        ("<tool_call>", "<function="),
        _qwen_coder,
        "Qwen3-Coder's chat template; the outer tag is often missing (ollama#17742). Llama 3 puts JSON into the tag.",
        starts="<",
    ),
    Dialect(
        "glm",
        ("<tool_call>",),
        _glm,
        "GLM 4.5 and 4.6; 4.7 writes no line breaks, and no arguments at all for a tool that has none (rtp-llm#525).",
    ),
    Dialect(
        "llama",
        ("<|python_tag|>",),
        _llama_tag,
        "Llama 3.1 to 3.3 with `Environment: ipython`; several calls are separated by a semicolon or a line break.",
    ),
    Dialect(
        "llama",
        ("{",),
        _llama_bare,
        "Llama 3.1 and 3.2, whose template has no tag: the whole message is the object.",
        place="start",
    ),
    Dialect(
        "mistral",
        ("[TOOL_CALLS]",),
        _mistral,
        "Mistral: a list of objects up to tokenizer v7, `name{…}` in v11, `name[CALL_ID]…[ARGS]{…}` after it.",
    ),
    Dialect(
        "deepseek",
        tuple(
            _deepseek_tag(separator, words)
            for separator in _WORD_SEPARATORS
            for words in ("tool calls begin", "tool call begin")
        ),
        _deepseek,
        "DeepSeek V3 and R1 (type, name, fenced JSON) and V3.1 (name, JSON); R1 also has marks with _ or a space.",
    ),
    Dialect(
        "deepseek-dsml",
        tuple("<" + inner for inner in _DSML),
        _dsml,
        "DeepSeek V3.2 (`function_calls`) and V4 (`tool_calls`); bars doubled, ASCII or spaced (cline#13348).",
    ),
    Dialect(
        "kimi-k2",
        (_KIMI_BEGIN, *_KIMI_SECTIONS),
        _kimi,
        "Kimi K2 and K2 Thinking; leaks behind many servers (vllm#31207), also without the section.",
    ),
    Dialect(
        "fenced",
        ("```",),
        _fenced,
        "Models without a template for calls (Gemma, Phi, small Llamas), which answer with a block of JSON.",
    ),
    Dialect("dph", ("=>#",), _dph, "DPH's prompt mode: one call, on a line of its own.", place="line"),
)
"""In the order in which dialects that share a mark are asked."""
