"""The dialects in which models write calls into their text, as data: each with its marks, its grammar, its origin.

A grammar accepts only the complete form: an offered name, arguments that are one strict JSON object (or become one),
its closing mark where the form has one. It never repairs and never accepts a part. The shapes that several dialects
share are in `literal_forms`, `tagged_forms` and `named_forms`; when and where to run a grammar is decided in `search`.
Servers' own parsers and the models' chat templates were the sources of the forms, not of the code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from unbroken_wires.decoding.leaked_calls.literal_forms import (
    JSON_TAGS,
    Grammar,
    at_start,
    bare,
    block,
    fenced,
    functools,
    gemma,
    list_of,
    llama_tag,
    named_object,
    python_calls,
    python_lines,
    unclosed,
)
from unbroken_wires.decoding.leaked_calls.named_forms import (
    ASSISTANT,
    CHANNEL,
    DEEPSEEK_MARKS,
    KIMI_BEGIN,
    KIMI_SECTIONS,
    SOLAR_BEGIN,
    bare_name,
    deepseek,
    dph,
    functionary,
    harmony,
    kimi,
    mcp,
    mistral,
    solar,
)
from unbroken_wires.decoding.leaked_calls.tagged_forms import (
    IFM_PAIRS,
    INVOKE,
    KIMI_K3_CALL,
    KIMI_K3_TOOLS,
    MINIMAX_M3,
    NAMED_FUNCTION,
    OPEN_SOURCE_PAIRS,
    argument_pairs,
    contents,
    function,
    kimi_k3,
    minimax_m3,
    prefixed,
    single,
)


@dataclass(frozen=True, slots=True)
class Dialect:
    name: str
    marks: tuple[str, ...]
    """Each of them opens the form; none begins another. A form at the start of the text reads its mark itself."""
    read: Grammar
    """Called with the mark that was found, and with the reader behind it."""
    origin: str
    starts: str = ""
    """Where dialects share a mark: the characters that may follow it here; empty for any other."""
    place: Literal["anywhere", "line", "start", "name"] = "anywhere"
    """Where the mark must stand: at the start of a line, or of the whole text (white space and reasoning aside).
    `name`: the mark is the name of an offered tool, at the start of the whole text."""


_BARS = ("｜", "｜｜", "|", "||", "‖")
_DSML = (*(f"{bar}DSML{bar}" for bar in _BARS), *(f" {bar} DSML {bar} " for bar in _BARS))
_DSML_WRAPPERS = ("function_calls>", "tool_calls>", "tool_use>", "calls>")


def _invoked(name: str, prefix: str, origin: str) -> Dialect:
    return Dialect(name, (f"<{prefix}",), prefixed(prefix, *_DSML_WRAPPERS), origin)


DIALECTS = (
    # JSON
    Dialect(
        "hermes",
        ("<tool_call>",),
        contents("</tool_call>"),
        "Nous Hermes 2 and 3, Qwen 2.5 and 3, Granite 3, Ernie, xLAM: one JSON object between the tags, or a list.",
        starts="{[",
    ),
    Dialect(
        "hunyuan",
        ("<tool_calls>", "<TOOLCALL>"),
        lambda reader, offered, mark: contents(f"</{mark[1:]}")(reader, offered, mark),
        "Hunyuan A13B, Jamba and Apriel; Nemotron Nano 2 writes the tag as `<TOOLCALL>`.",
        starts="{[",
    ),
    Dialect(
        "json-tags",
        tuple(f"<{tag}>" for tag in JSON_TAGS if tag not in ("tool_call", "function_call")),
        lambda reader, offered, mark: block(f"</{mark[1:]}")(reader, offered, mark),
        "Models that were not trained on a tag and make one up (llama.cpp lists them for Hermes 2 Pro).",
    ),
    Dialect(
        "longcat",
        ("<longcat_tool_call>",),
        contents("</longcat_tool_call>", argument_pairs("</longcat_tool_call>", "longcat_")),
        "LongCat Flash: a JSON object between the tags; later versions write pairs of keys and values.",
    ),
    Dialect(
        "granite",
        ("<|tool_call|>", "<function_call>"),
        unclosed("<|/tool_call|>", "</function_call>"),
        "Granite 3 (`<|tool_call|>` and a list), Granite 20B (`<function_call>` and an object); no closing mark.",
    ),
    Dialect(
        "apertus",
        ("<|tools_prefix|>",),
        block("<|tools_suffix|>", read=list_of(named_object)),
        "Apertus: a list of objects whose only key is the name of the tool.",
    ),
    Dialect(
        "cohere",
        ("<|START_ACTION|>",),
        block("<|END_ACTION|>"),
        "Command R7B, Command A: a list of objects with `tool_name` and `parameters`.",
    ),
    Dialect(
        "internlm",
        ("<|action_start|>",),
        block("<|action_end|>", also="<|plugin|>"),
        "InternLM 2 and 3, Intern-S1: an object behind `<|plugin|>`.",
    ),
    Dialect(
        "inkling",
        ("<|content_invoke_tool_json|>",),
        block("<|end_message|>"),
        "Inkling: an object with `name` and `args`.",
    ),
    Dialect(
        "gigachat",
        ("<|message_sep|>", "<|function_call|>"),
        lambda reader, offered, mark: _GIGACHAT[mark](reader, offered, mark),
        "GigaChat 3 opens a message of the role `function call`, 3.1 has a mark of its own; no closing mark.",
    ),
    Dialect(
        "functools",
        ("functools[",),
        functools,
        "Phi-4-mini and FireFunction 2: a list behind the word, at the start of a line.",
        place="line",
    ),
    Dialect(
        "functools",
        ("functools[",),
        at_start(functools),
        "FireFunction 2 writes a space before it.",
        place="start",
    ),
    Dialect(
        "llama",
        ("<|python_tag|>",),
        llama_tag,
        "Llama 3.1 to 3.3 with `Environment: ipython`; several calls are separated by a semicolon or a line break.",
    ),
    Dialect(
        "llama",
        ("{",),
        bare,
        "Llama 3.1 and 3.2, whose template has no tag: the whole message is the object, or several with semicolons.",
        place="start",
    ),
    Dialect(
        "fenced",
        ("```",),
        fenced,
        "Models without a template for calls (Gemma, Phi, small Llamas), which answer with a block of JSON.",
    ),
    # A name, then JSON
    Dialect(
        "mistral",
        ("[TOOL_CALLS]",),
        mistral,
        "Mistral: a list of objects up to tokenizer v7, `name{…}` in v11, `name[CALL_ID]…[ARGS]{…}` after it.",
    ),
    Dialect(
        "deepseek",
        DEEPSEEK_MARKS,
        deepseek,
        "DeepSeek V3 and R1 (type, name, fenced JSON) and V3.1 (name, JSON); R1 also has marks with _ or a space.",
    ),
    Dialect(
        "kimi-k2",
        (KIMI_BEGIN, *KIMI_SECTIONS),
        kimi,
        "Kimi K2 and K2 Thinking; leaks behind many servers (vllm#31207), also without the section.",
    ),
    Dialect("solar", (SOLAR_BEGIN, "<|tool_calls|>"), solar, "Solar Open: an id, the name, its arguments."),
    Dialect(
        "harmony",
        (ASSISTANT, CHANNEL),
        harmony,
        "gpt-oss: a message to `functions.NAME`, its recipient before or behind the channel.",
    ),
    Dialect(
        "harmony",
        ("to=", "commentary to=", "assistantcommentary to="),
        at_start(harmony),
        "gpt-oss behind a server that removes the first marks, or all of them.",
        place="start",
    ),
    Dialect(
        "mcp",
        ("<use_mcp_tool>",),
        mcp,
        "MiroThinker, and prompts that ask for it (Cline): server, tool and arguments as elements.",
    ),
    Dialect(
        "functionary",
        (">>>",),
        functionary,
        "Functionary 3.2: the name on a line, then its arguments.",
    ),
    Dialect(
        "functionary",
        (),
        bare_name,
        "Functionary's first call, and Mistral's behind a server that removes the mark: the whole message.",
        place="name",
    ),
    Dialect("dph", ("=>#",), dph, "DPH's prompt mode: one call, on a line of its own.", place="line"),
    # Tags
    Dialect(
        "qwen-coder",
        ("<tool_call>",),
        contents("</tool_call>"),
        "Qwen3-Coder's chat template, Nemotron 3, Step 3.5, MiMo.",
        starts="<",
    ),
    Dialect(
        "qwen-coder",
        ("<function=",),
        single(function),
        "Qwen3-Coder: the outer tag is often missing (ollama#17742). Llama 3 puts JSON into the tag.",
    ),
    Dialect(
        "seed-oss",
        ("<seed:tool_call>",),
        contents("</seed:tool_call>"),
        "Seed-OSS: Qwen3-Coder's tags, in one of its own.",
    ),
    Dialect(
        "glm",
        ("<tool_call>",),
        contents("</tool_call>"),
        "GLM 4.5 and 4.6, Ling 3, Laguna; GLM 4.7 writes no line breaks, and nothing for a tool without arguments.",
    ),
    Dialect(
        "hy-v3",
        ("<tool_calls>",),
        contents("</tool_calls>"),
        "Hunyuan 3: GLM's pairs, in a tag around all calls.",
    ),
    Dialect(
        "hy-v3",
        ("<tool_calls:opensource>", "<tool_call:opensource>"),
        lambda reader, offered, mark: contents(f"</{mark[1:]}", OPEN_SOURCE_PAIRS)(reader, offered, mark),
        "Hunyuan 3 as published: each tag with a suffix.",
    ),
    Dialect(
        "k2-horizon",
        ("<ifm|tool_calls>", "<ifm|tool_call>"),
        lambda reader, offered, mark: contents(f"</{mark[1:]}", IFM_PAIRS)(reader, offered, mark),
        "K2 Horizon: GLM's pairs with a prefix, and maybe a type; or JSON.",
    ),
    Dialect(
        "iquest",
        ("<iquest_tool_call>",),
        single(argument_pairs("</iquest_tool_call>")),
        "IQuest: GLM's pairs in a tag of its own.",
    ),
    _invoked("muse", "atem:", "Muse: a message to the tool, with the call in it."),
    _invoked("step3", "steptml:", "Step 3, in DeepSeek's sections or without them."),
    _invoked("claude", "antml:", "Claude, and models that were trained on its answers."),
    Dialect(
        "deepseek-dsml",
        tuple("<" + inner for inner in (*_DSML, "｜GCML｜")),
        lambda reader, offered, mark: prefixed(mark[1:], *_DSML_WRAPPERS)(reader, offered, mark),
        "DeepSeek V3.2 (`function_calls`), V4 (`tool_calls`), GigaChat 3.5; bars doubled, ASCII, spaced (cline#13348).",
    ),
    Dialect(
        "minimax-m2",
        ("<minimax:tool_call>",),
        contents("</minimax:tool_call>"),
        "MiniMax M2: the tags of Claude, in one of its own.",
    ),
    Dialect("dots", ("<dots_function_call>",), contents("</dots_function_call>"), "dots.llm: tags or JSON."),
    Dialect(
        "claude",
        ("<invoke name=",),
        single(INVOKE),
        "The same without a prefix: MiniMax, dots, DeepSeek and others that lose the tag around it.",
    ),
    Dialect(
        "claude",
        ("<function_calls>",),
        contents("</function_calls>"),
        "The same in the tag that Claude had around it.",
        starts="<",
    ),
    Dialect(
        "minicpm",
        ("<function name=",),
        single(NAMED_FUNCTION),
        "MiniCPM 5; the keys must be the tool's, as far as its schema is known. Hermes 2 Pro puts JSON into the tag.",
    ),
    Dialect("kimi-k3", (KIMI_K3_TOOLS, KIMI_K3_CALL), kimi_k3, "Kimi K3: the types of the values are written."),
    Dialect("minimax-m3", (MINIMAX_M3,), minimax_m3, "MiniMax M3: one element for each key, and elements inside them."),
    # Python's calls, and Gemma's
    Dialect(
        "olmo3",
        ("<function_calls>",),
        python_lines("</function_calls>"),
        "Olmo 3: one call on each line.",
    ),
    Dialect(
        "lfm2",
        ("<|tool_call_start|>",),
        block("<|tool_call_end|>", read=python_calls),
        "LFM2: a list of calls; of JSON objects where the prompt asks for them.",
    ),
    Dialect(
        "pythonic",
        ("<|python_start|>",),
        block("<|python_end|>", read=python_calls),
        "Llama 4, where its list of calls stands between marks.",
    ),
    Dialect(
        "pythonic",
        ("[",),
        bare,
        "Llama 3.2 and 4, ToolACE; xLAM writes JSON: a list of calls is the whole message.",
        place="start",
    ),
    Dialect(
        "gemma4",
        ("<|tool_call>",),
        gemma('<|"|>', "<tool_call|>"),
        "Gemma 4: keys, numbers and constants stand bare, strings between marks.",
    ),
    Dialect(
        "functiongemma",
        ("<start_function_call>",),
        gemma("<escape>", "<end_function_call>"),
        "FunctionGemma: as Gemma 4, with other marks.",
    ),
)
"""In the order in which dialects that share a mark are asked."""

_GIGACHAT = {"<|message_sep|>": unclosed(also="function call<|role_sep|>"), "<|function_call|>": unclosed()}
