"""How each dialect writes calls, as builders, and feeding a text in pieces: for the tests of leaked calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

from unbroken_wires.decoding.leaked_calls import Prose, ProseCall

NAMES = ("get", "get_weather", "add")
Calls = list[tuple[str, dict[str, Any]]]
Item = str | ProseCall

ONE: Calls = [("get_weather", {"city": "Beijing", "days": 3})]
TWO: Calls = [*ONE, ("add", {"city": "東京 <b>", "days": [1, {"x": None}]})]


@dataclass(frozen=True)
class Form:
    """How a dialect writes calls, and the last part without which a form is incomplete."""

    id: str
    dialect: str
    write: Callable[[Calls], str]
    closing: str
    several: bool = True
    enough: str = ""
    """How the calls end that are complete without the closing mark, if the response ends there."""
    between: str = "```"
    """What may stand behind them then."""
    bare: bool = False
    """Only as the complete text."""

    def is_whole(self, text: str, cut: int) -> bool:
        """Is the call in the text whole up to here?"""
        if cut >= text.rindex(self.closing) + len(self.closing):
            return True
        end = text.rindex(self.enough) + len(self.enough) if self.enough else len(text)
        return cut >= end and text[end:cut].strip() in ("", self.between)


def dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def each(write: Callable[[str, dict[str, Any]], str], between: str = "\n") -> Callable[[Calls], str]:
    return lambda calls: between.join(write(name, arguments) for name, arguments in calls)


def section(begin: str, write: Callable[[str, dict[str, Any]], str], end: str) -> Callable[[Calls], str]:
    return lambda calls: begin + each(write)(calls) + end


def raw(value: Any) -> str:
    return value if isinstance(value, str) else dump(value)


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


def python(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def invoke(prefix: str, call: str = "invoke", parameter: str = "parameter") -> Callable[[str, dict[str, Any]], str]:
    def write(name: str, arguments: dict[str, Any]) -> str:
        pairs = "".join(
            f'<{prefix}{parameter} name="{key}">{raw(value)}</{prefix}{parameter}>\n'
            for key, value in arguments.items()
        )
        return f'<{prefix}{call} name="{name}">\n{pairs}</{prefix}{call}>'

    return write


def pairs(prefix: str = "", suffix: str = "", typed: bool = False) -> Callable[[str, dict[str, Any]], str]:
    def tag(name: str, text: str) -> str:
        return f"<{prefix}{name}{suffix}>{text}</{prefix}{name}{suffix}>"

    def write(name: str, arguments: dict[str, Any]) -> str:
        written = "".join(
            tag("arg_key", key)
            + (tag("arg_type", "string" if isinstance(value, str) else "array") if typed and value != 3 else "")
            + tag("arg_value", raw(value))
            for key, value in arguments.items()
        )
        sep = "" if prefix else f"<tool_sep{suffix}>\n"
        return f"<{prefix}tool_call{suffix}>{name}{sep}{written}</{prefix}tool_call{suffix}>"

    return write


def gemma(begin: str, quote: str, end: str) -> Callable[[str, dict[str, Any]], str]:
    def value(item: Any) -> str:
        match item:
            case str():
                return f"{quote}{item}{quote}"
            case list():
                return "[" + ",".join(map(value, cast("list[Any]", item))) + "]"
            case dict():
                members = cast("dict[str, Any]", item)
                return "{" + ",".join(f"{key}:{value(each)}" for key, each in members.items()) + "}"
            case _:
                return dump(item)

    return lambda name, arguments: f"{begin}call:{name}{value(arguments)}{end}"


def kimi_k3(name: str, arguments: dict[str, Any]) -> str:
    kinds = {str: "string", int: "number", list: "array"}
    written = "".join(
        f'<|open|>argument key="{key}" type="{kinds[type(value)]}"<|sep|>{raw(value)}<|close|>argument<|sep|>'
        for key, value in arguments.items()
    )
    return f'<|open|>call tool="{name}" index="1"<|sep|>{written}<|close|>call<|sep|>'


M3 = "]<]minimax[>["


def minimax_m3(name: str, arguments: dict[str, Any]) -> str:
    def element(key: str, value: Any) -> str:
        match value:
            case list():
                inner = "".join(element("item", each) for each in cast("list[Any]", value))
            case dict():
                inner = "".join(element(each, item) for each, item in cast("dict[str, Any]", value).items())
            case _:
                inner = raw(value)
        return f"{M3}<{key}>{inner}{M3}</{key}>"

    written = "".join(element(key, value) for key, value in arguments.items())
    return f'{M3}<invoke name="{name}">{written}{M3}</invoke>'


def harmony(name: str, arguments: dict[str, Any]) -> str:
    header = f"<|start|>assistant<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
    return f"{header}{dump(arguments)}<|call|>"


def muse(name: str, arguments: dict[str, Any]) -> str:
    written = f"<atem:function_calls>\n{invoke('atem:')(name, arguments)}\n</atem:function_calls>"
    return f"<|start|>assistant to={name}<|message|>{written}<|eom|>"


def solar(name: str, arguments: dict[str, Any]) -> str:
    return f"<|tool_call:begin|>0<|tool_call:name|>{name}<|tool_call:args|>{dump(arguments)}<|tool_call:end|>"


def named(key: str = "arguments") -> Callable[[str, dict[str, Any]], str]:
    return lambda name, arguments: dump({"name": name, key: arguments})


def between(begin: str, end: str, write: Callable[[str, dict[str, Any]], str] | None = None) -> Callable[[Calls], str]:
    return each(lambda name, arguments: f"{begin}{(write or named())(name, arguments)}{end}")


def json_form(
    dialect: str, begin: str, end: str, id: str = "", write: Callable[[str, dict[str, Any]], str] | None = None
) -> Form:
    return Form(id or dialect, dialect, between(begin, end, write), end, enough="}")


def list_form(dialect: str, begin: str, end: str, id: str = "") -> Form:
    return Form(id or f"{dialect}-list", dialect, lambda calls: f"{begin}{objects(calls)}{end}", end or "]", enough="]")


FORMS = [
    json_form("hermes", "<tool_call>\n", "\n</tool_call>"),
    Form(
        "hermes-tight",
        "hermes",
        each(lambda n, a: f"<tool_call>{named()(n, a)}</tool_call>", ""),
        "</tool_call>",
        enough="}",
    ),
    json_form(
        "hermes",
        "<tool_call>",
        "</tool_call>",
        "hermes-arguments-as-text",
        lambda n, a: dump({"name": n, "arguments": dump(a)}),
    ),
    json_form(
        "hermes",
        "<tool_call>\r\n",
        "\r\n</tool_call>",
        "hermes-arguments-first",
        lambda n, a: dump({"arguments": a, "name": n}),
    ),
    json_form(
        "hermes",
        "<tool_call>",
        "</tool_call>",
        "hermes-nested",
        lambda n, a: dump({"type": "function", "function": {"name": n, "arguments": a}}),
    ),
    list_form("hermes", "<tool_call>\n", "\n</tool_call>"),
    Form(
        "hermes-lines",
        "hermes",
        lambda calls: f"<tool_call>\n{each(named())(calls)}\n</tool_call>",
        "</tool_call>",
        enough="}",
    ),
    list_form("hunyuan", "<tool_calls>", "</tool_calls>"),
    list_form("hunyuan", "<TOOLCALL>", "</TOOLCALL>", "nemotron"),
    json_form("json-tags", "<tools>\n", "\n</tools>"),
    json_form("longcat", "<longcat_tool_call>\n", "\n</longcat_tool_call>"),
    list_form("granite", "<|tool_call|> ", ""),
    Form("granite-20b", "granite", between("<function_call> ", ""), "}"),
    Form(
        "apertus",
        "apertus",
        lambda calls: f"<|tools_prefix|>{dump([{name: arguments} for name, arguments in calls])}<|tools_suffix|>",
        "<|tools_suffix|>",
        enough="]",
    ),
    Form(
        "cohere",
        "cohere",
        lambda calls: (
            "<|START_ACTION|>\n"
            + dump([{"tool_call_id": "0", "tool_name": name, "parameters": arguments} for name, arguments in calls])
            + "\n<|END_ACTION|>"
        ),
        "<|END_ACTION|>",
        enough="]",
    ),
    json_form("internlm", "<|action_start|> <|plugin|>\n", "<|action_end|>", write=named("parameters")),
    json_form("inkling", "<|content_invoke_tool_json|>", "<|end_message|>", write=named("args")),
    Form("gigachat", "gigachat", between("<|message_sep|>\n\nfunction call<|role_sep|>\n", ""), "}"),
    Form("gigachat-3.1", "gigachat", between("<|function_call|>", "</s>"), "}"),
    Form("functools", "functools", lambda calls: f"functools{objects(calls)}", "]"),
    Form("llama-tag", "llama", lambda calls: "<|python_tag|>" + each(named("parameters"), "; ")(calls), "}"),
    Form("llama-lines", "llama", lambda calls: "<|python_tag|>" + each(named())(calls) + "<|eom_id|>", "}"),
    Form("llama-eot", "llama", lambda calls: f"<|python_tag|> {each(named(), ' ; ')(calls)}\n<|eot_id|>", "}"),
    Form("llama-bare", "llama", each(named("parameters"), "; "), "}", bare=True),
    Form("llama-bare-lines", "llama", each(named("parameters")), "}", bare=True),
    Form(
        "generic",
        "llama",
        lambda calls: dump({"tool_calls": [{"name": name, "arguments": arguments} for name, arguments in calls]}),
        "}",
        bare=True,
    ),
    Form("fence", "fenced", between("```json\n", "\n```"), "```", enough="}"),
    Form("fence-list", "fenced", lambda calls: f"```\n{objects(calls)}\n```", "```", enough="]"),
    Form("fence-tool-call", "fenced", between("```tool_call\n", "\n```"), "```", enough="}"),
    Form("fence-xml", "fenced", between("```xml\n<response>\n", "\n</response>\n```"), "</response>", enough="}"),
    Form("tool-code", "fenced", lambda calls: f"```tool_code\n{each(python)(calls)}\n```", "```"),
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
        enough="}",
    ),
    Form(
        "deepseek-v31",
        "deepseek",
        section("<｜tool▁calls▁begin｜>", deepseek_v31, "<｜tool▁calls▁end｜>"),
        "<｜tool▁call▁end｜>",
        enough="}",
    ),
    Form(
        "deepseek-underscores",
        "deepseek",
        lambda calls: section("<｜tool▁calls▁begin｜>", deepseek_v3, "")(calls).replace("▁", "_"),
        "<｜tool_call_end｜>",
        enough="}",
    ),
    Form(
        "kimi",
        "kimi-k2",
        section("<|tool_calls_section_begin|>", kimi, "<|tool_calls_section_end|>"),
        "<|tool_call_end|>",
        enough="}",
    ),
    Form("kimi-no-section", "kimi-k2", each(kimi), "<|tool_call_end|>", enough="}"),
    Form(
        "kimi-name-only",
        "kimi-k2",
        lambda c: each(kimi)(c).replace("functions.", ""),
        "<|tool_call_end|>",
        enough="}",
    ),
    Form("solar", "solar", section("<|tool_calls|>", solar, "<|calls|>"), "<|tool_call:end|>", enough="}"),
    Form("harmony", "harmony", each(harmony, ""), "}"),
    Form(
        "harmony-recipient-first",
        "harmony",
        between(
            "<|start|>assistant to=functions.",
            "<|call|>",
            lambda n, a: f"{n}<|channel|>commentary json<|message|>{dump(a)}",
        ),
        "}",
    ),
    Form(
        "harmony-start",
        "harmony",
        lambda calls: (
            each(harmony, "")(calls).removeprefix("<|start|>assistant<|channel|>").replace("<|constrain|>", "")
        ),
        "}",
        bare=True,
    ),
    Form(
        "mcp",
        "mcp",
        each(
            lambda n, a: (
                f"<use_mcp_tool>\n<server_name>main</server_name>\n<tool_name>{n}</tool_name>\n"
                f"<arguments>\n{dump(a)}\n</arguments>\n</use_mcp_tool>"
            )
        ),
        "</use_mcp_tool>",
        enough="}",
        between="</arguments>",
    ),
    Form("functionary", "functionary", each(lambda n, a: f">>>{n}\n{dump(a)}"), "}"),
    Form("name-alone", "functionary", each(lambda n, a: f"{n}\n{dump(a)}"), "}", several=False, bare=True),
    Form("dph", "dph", each(lambda n, a: f"=>#{n}: {dump(a)}"), "}"),
    Form("qwen", "qwen-coder", each(lambda n, a: f"<tool_call>\n{qwen(n, a)}\n</tool_call>"), "</function>"),
    Form("qwen-bare", "qwen-coder", each(qwen), "</function>"),
    Form("qwen-only-closed", "qwen-coder", each(lambda n, a: f"{qwen(n, a)}\n</tool_call>"), "</function>"),
    Form("qwen-one-tag", "qwen-coder", section("<tool_call>\n", qwen, "\n</tool_call>"), "</function>"),
    Form(
        "function-json",
        "qwen-coder",
        each(lambda n, a: f"<function={n}>{dump(a)}</function>"),
        "</function>",
        enough="}",
    ),
    Form("seed-oss", "seed-oss", section("<seed:tool_call>\n", qwen, "\n</seed:tool_call>"), "</function>"),
    Form("glm", "glm", each(glm("\n")), "</tool_call>"),
    Form("glm-tight", "glm", each(glm(""), ""), "</tool_call>"),
    Form(
        "glm-json", "glm", between("<tool_call>", "</tool_call>", lambda n, a: n + dump(a)), "</tool_call>", enough="}"
    ),
    Form("glm-python", "glm", between("<tool_call>", "</tool_call>", python), "</tool_call>"),
    Form("hy-v3", "hy-v3", section("<tool_calls>\n", pairs(), "\n</tool_calls>"), "</tool_call>"),
    Form(
        "hy-v3-suffix",
        "hy-v3",
        section("<tool_calls:opensource>", pairs("", ":opensource"), "</tool_calls:opensource>"),
        "</tool_call:opensource>",
    ),
    Form(
        "k2-horizon",
        "k2-horizon",
        section("<ifm|tool_calls>\n", pairs("ifm|", typed=True), "\n</ifm|tool_calls>"),
        "</ifm|tool_call>",
    ),
    Form(
        "iquest",
        "iquest",
        lambda calls: each(glm(""))(calls).replace("tool_call>", "iquest_tool_call>"),
        "</iquest_tool_call>",
    ),
    Form("muse", "harmony", each(muse, ""), "</atem:invoke>"),
    Form("muse-bare", "muse", each(invoke("atem:")), "</atem:invoke>"),
    Form("step3", "step3", each(invoke("steptml:")), "</steptml:invoke>"),
    Form(
        "step3-section",
        "deepseek",
        section(
            "<｜tool_calls_begin｜>",
            lambda n, a: f"<｜tool_call_begin｜>function<｜tool_sep｜>{invoke('steptml:')(n, a)}<｜tool_call_end｜>",
            "<｜tool_calls_end｜>",
        ),
        "<｜tool_call_end｜>",
        enough="</steptml:invoke>",
    ),
    Form(
        "claude",
        "claude",
        section("<antml:function_calls>\n", invoke("antml:"), "\n</antml:function_calls>"),
        "</antml:invoke>",
    ),
    Form("dsml", "deepseek-dsml", dsml("｜DSML｜", "function_calls"), "</｜DSML｜invoke>"),
    Form("dsml-v4", "deepseek-dsml", dsml("｜DSML｜", "tool_calls"), "</｜DSML｜invoke>"),
    Form("dsml-doubled", "deepseek-dsml", dsml("｜｜DSML｜｜", "tool_calls"), "</｜｜DSML｜｜invoke>"),
    Form("dsml-ascii", "deepseek-dsml", dsml("|DSML|", "calls"), "</|DSML|invoke>"),
    Form("dsml-spaced", "deepseek-dsml", dsml(" | DSML | ", "tool_use"), "</ | DSML | invoke>"),
    Form("dsml-bare", "deepseek-dsml", dsml("｜DSML｜"), "</｜DSML｜invoke>"),
    Form("gcml", "deepseek-dsml", dsml("｜GCML｜", "tool_calls"), "</｜GCML｜invoke>"),
    Form(
        "minimax-m2", "minimax-m2", section("<minimax:tool_call>\n", invoke(""), "\n</minimax:tool_call>"), "</invoke>"
    ),
    Form("dots", "dots", section("<dots_function_call>", invoke(""), "</dots_function_call>"), "</invoke>"),
    json_form("dots", "<dots_function_call>", "</dots_function_call>", "dots-json"),
    Form("invoke", "claude", each(invoke("")), "</invoke>"),
    Form("function-calls", "claude", section("<function_calls>\n", invoke(""), "\n</function_calls>"), "</invoke>"),
    Form(
        "invoke-json",
        "claude",
        each(lambda n, a: f'<invoke name="{n}">\n{dump(a)}\n</invoke>'),
        "</invoke>",
        enough="}",
    ),
    Form("minicpm", "minicpm", each(invoke("", "function", "param")), "</function>"),
    Form(
        "kimi-k3", "kimi-k3", section("<|open|>tools<|sep|>", kimi_k3, "<|close|>tools<|sep|>"), "<|close|>call<|sep|>"
    ),
    Form(
        "minimax-m3", "minimax-m3", section(f"{M3}<tool_call>\n", minimax_m3, f"\n{M3}</tool_call>"), f"{M3}</invoke>"
    ),
    Form("olmo3", "olmo3", section("<function_calls>", python, "</function_calls>"), "</function_calls>"),
    Form(
        "lfm2",
        "lfm2",
        lambda calls: f"<|tool_call_start|>[{each(python, ', ')(calls)}]<|tool_call_end|>",
        "<|tool_call_end|>",
        enough="]",
    ),
    list_form("lfm2", "<|tool_call_start|>", "<|tool_call_end|>", "lfm2-json"),
    Form(
        "llama4",
        "pythonic",
        lambda calls: f"<|python_start|>[{each(python, ', ')(calls)}]<|python_end|>",
        "<|python_end|>",
        enough="]",
    ),
    Form("pythonic", "pythonic", lambda calls: f"[{each(python, ', ')(calls)}]", "]", bare=True),
    Form("xlam", "pythonic", objects, "]", bare=True),
    json_form("gemma4", "", "<tool_call|>", write=gemma("<|tool_call>", '<|"|>', "")),
    json_form("functiongemma", "", "<end_function_call>", write=gemma("<start_function_call>", "<escape>", "")),
]


def run(pieces: Iterable[str], names: Iterable[str] = NAMES, max_held: int = 1 << 20) -> list[Item]:
    prose = Prose(tuple(names), max_held=max_held)
    return join([item for piece in pieces for item in prose.feed(piece)] + prose.end())


def join(items: Iterable[Item]) -> list[Item]:
    """With texts that follow one another in one."""
    joined: list[Item] = []
    for item in items:
        if isinstance(item, str) and joined and isinstance(joined[-1], str):
            joined[-1] += item
        else:
            joined.append(item)
    return joined


def calls_in(items: Iterable[Item]) -> Calls:
    return [(item.name, json.loads(item.arguments)) for item in items if isinstance(item, ProseCall)]


def texts_in(items: Iterable[Item]) -> str:
    return "".join(item for item in items if isinstance(item, str))


def everything(items: Iterable[Item]) -> str:
    return "".join(item if isinstance(item, str) else item.text for item in items)
