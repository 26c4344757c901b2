"""How each dialect writes calls, as builders, and the running of a text in pieces: for the tests of leaked calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from unbroken.decoding.prose import Prose, ProseCall

NAMES = ("get", "get_weather", "add")
Calls = list[tuple[str, dict[str, Any]]]
Item = str | ProseCall

ONE: Calls = [("get_weather", {"city": "Beijing", "days": 3})]
TWO: Calls = [*ONE, ("add", {"city": "東京 <b>", "days": [1, {"x": None}]})]


@dataclass(frozen=True)
class Form:
    """How a dialect writes calls, and the last thing without which a form is not whole."""

    id: str
    dialect: str
    write: Callable[[Calls], str]
    closing: str
    several: bool = True


def dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def each(write: Callable[[str, dict[str, Any]], str], between: str = "\n") -> Callable[[Calls], str]:
    return lambda calls: between.join(write(name, arguments) for name, arguments in calls)


def section(begin: str, write: Callable[[str, dict[str, Any]], str], end: str) -> Callable[[Calls], str]:
    return lambda calls: begin + each(write)(calls) + end


def raw(value: Any) -> str:
    return value if isinstance(value, str) else dump(value)


def named(key: str = "arguments") -> Callable[[str, dict[str, Any]], str]:
    return lambda name, arguments: dump({"name": name, key: arguments})


def objects(calls: Calls) -> str:
    return "[" + each(named(), ", ")(calls) + "]"


def qwen(name: str, arguments: dict[str, Any]) -> str:
    parameters = "".join(f"<parameter={key}>\n{raw(value)}\n</parameter>\n" for key, value in arguments.items())
    return f"<function={name}>\n{parameters}</function>"


def glm(line: str) -> Callable[[str, dict[str, Any]], str]:
    def write(name: str, arguments: dict[str, Any]) -> str:
        pairs = "".join(
            f"<arg_key>{key}</arg_key>{line}<arg_value>{raw(value)}</arg_value>{line}"
            for key, value in arguments.items()
        )
        return f"<tool_call>{name}{line}{pairs}</tool_call>"

    return write


def dsml(bar: str, wrapper: str = "") -> Callable[[Calls], str]:
    def write(name: str, arguments: dict[str, Any]) -> str:
        pairs = "".join(
            f'<{bar}parameter name="{key}" string="{dump(isinstance(value, str))}">{raw(value)}</{bar}parameter>\n'
            for key, value in arguments.items()
        )
        return f'<{bar}invoke name="{name}">\n{pairs}</{bar}invoke>'

    if not wrapper:
        return each(write)
    return section(f"<{bar}{wrapper}>\n", write, f"\n</{bar}{wrapper}>")


def deepseek_v3(name: str, arguments: dict[str, Any]) -> str:
    return f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{dump(arguments)}\n```<｜tool▁call▁end｜>"


def deepseek_v31(name: str, arguments: dict[str, Any]) -> str:
    return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{dump(arguments)}<｜tool▁call▁end｜>"


def kimi(name: str, arguments: dict[str, Any]) -> str:
    return f"<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{dump(arguments)}<|tool_call_end|>"


FORMS = [
    Form("hermes", "hermes", each(lambda n, a: f"<tool_call>\n{named()(n, a)}\n</tool_call>"), "</tool_call>"),
    Form("hermes-tight", "hermes", each(lambda n, a: f"<tool_call>{named()(n, a)}</tool_call>", ""), "</tool_call>"),
    Form(
        "hermes-arguments-as-text",
        "hermes",
        each(lambda n, a: f"<tool_call>{dump({'name': n, 'arguments': dump(a)})}</tool_call>"),
        "</tool_call>",
    ),
    Form(
        "hermes-arguments-first",
        "hermes",
        each(lambda n, a: f"<tool_call>\r\n{dump({'arguments': a, 'name': n})}\r\n</tool_call>"),
        "</tool_call>",
    ),
    Form("qwen", "qwen-coder", each(lambda n, a: f"<tool_call>\n{qwen(n, a)}\n</tool_call>"), "</function>"),
    Form("qwen-bare", "qwen-coder", each(qwen), "</function>"),
    Form("qwen-only-closed", "qwen-coder", each(lambda n, a: f"{qwen(n, a)}\n</tool_call>"), "</function>"),
    Form("qwen-one-tag", "qwen-coder", section("<tool_call>\n", qwen, "\n</tool_call>"), "</function>"),
    Form("function-json", "qwen-coder", each(lambda n, a: f"<function={n}>{dump(a)}</function>"), "</function>"),
    Form("llama-tag", "llama", lambda calls: "<|python_tag|>" + each(named("parameters"), "; ")(calls), "}"),
    Form("llama-lines", "llama", lambda calls: "<|python_tag|>" + each(named())(calls) + "<|eom_id|>", "}"),
    Form("llama-eot", "llama", lambda calls: f"<|python_tag|> {each(named(), ' ; ')(calls)}\n<|eot_id|>", "}"),
    Form("llama-bare", "llama", each(named("parameters")), "}", several=False),
    Form("mistral-list", "mistral", lambda calls: "[TOOL_CALLS]" + objects(calls), "]"),
    Form("mistral-space", "mistral", lambda calls: "[TOOL_CALLS] " + objects(calls), "]"),
    Form("mistral-v11", "mistral", each(lambda n, a: f"[TOOL_CALLS]{n}{dump(a)}", ""), "}"),
    Form("mistral-args", "mistral", each(lambda n, a: f"[TOOL_CALLS]{n}[ARGS]{dump(a)}", ""), "}"),
    Form("mistral-id", "mistral", each(lambda n, a: f"[TOOL_CALLS]{n}[CALL_ID]aB3xY7q90[ARGS]{dump(a)}"), "}"),
    Form(
        "deepseek-v3",
        "deepseek",
        section("<｜tool▁calls▁begin｜>", deepseek_v3, "<｜tool▁calls▁end｜>"),
        "<｜tool▁call▁end｜>",
    ),
    Form(
        "deepseek-v31",
        "deepseek",
        section("<｜tool▁calls▁begin｜>", deepseek_v31, "<｜tool▁calls▁end｜>"),
        "<｜tool▁call▁end｜>",
    ),
    Form(
        "deepseek-underscores",
        "deepseek",
        lambda calls: section("<｜tool▁calls▁begin｜>", deepseek_v3, "")(calls).replace("▁", "_"),
        "<｜tool_call_end｜>",
    ),
    Form("dsml", "deepseek-dsml", dsml("｜DSML｜", "function_calls"), "</｜DSML｜invoke>"),
    Form("dsml-v4", "deepseek-dsml", dsml("｜DSML｜", "tool_calls"), "</｜DSML｜invoke>"),
    Form("dsml-doubled", "deepseek-dsml", dsml("｜｜DSML｜｜", "tool_calls"), "</｜｜DSML｜｜invoke>"),
    Form("dsml-ascii", "deepseek-dsml", dsml("|DSML|", "calls"), "</|DSML|invoke>"),
    Form("dsml-spaced", "deepseek-dsml", dsml(" | DSML | ", "tool_use"), "</ | DSML | invoke>"),
    Form("dsml-bare", "deepseek-dsml", dsml("｜DSML｜"), "</｜DSML｜invoke>"),
    Form(
        "kimi",
        "kimi-k2",
        section("<|tool_calls_section_begin|>", kimi, "<|tool_calls_section_end|>"),
        "<|tool_call_end|>",
    ),
    Form("kimi-no-section", "kimi-k2", each(kimi), "<|tool_call_end|>"),
    Form("kimi-name-only", "kimi-k2", lambda c: each(kimi)(c).replace("functions.", ""), "<|tool_call_end|>"),
    Form("glm", "glm", each(glm("\n")), "</tool_call>"),
    Form("glm-tight", "glm", each(glm(""), ""), "</tool_call>"),
    Form("fence", "fenced", each(lambda n, a: f"```json\n{named()(n, a)}\n```"), "```"),
    Form("fence-list", "fenced", lambda calls: f"```\n{objects(calls)}\n```", "```"),
    Form("fence-tool-call", "fenced", each(lambda n, a: f"```tool_call\n{named()(n, a)}\n```"), "```"),
    Form("dph", "dph", each(lambda n, a: f"=>#{n}: {dump(a)}"), "}"),
]


def run(pieces: Iterable[str], names: Iterable[str] = NAMES, max_held: int = 1 << 20) -> list[Item]:
    prose = Prose(tuple(names), max_held=max_held)
    items: list[Item] = []
    for item in [item for piece in pieces for item in prose.feed(piece)] + prose.end():
        if isinstance(item, str) and items and isinstance(items[-1], str):
            items[-1] += item
        else:
            items.append(item)
    return items


def calls_in(items: Iterable[Item]) -> Calls:
    return [(item.name, json.loads(item.arguments)) for item in items if isinstance(item, ProseCall)]


def texts_in(items: Iterable[Item]) -> str:
    return "".join(item for item in items if isinstance(item, str))


def everything(items: Iterable[Item]) -> str:
    return "".join(item if isinstance(item, str) else item.text for item in items)
