"""What a model is sent: prompts, images, and our own texts."""

from __future__ import annotations

import base64
import mimetypes
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from unbroken.errors import UserError
from unbroken.tools.schedule import Schedule
from unbroken.tools.tool import Tool
from unbroken_wires.messages import Media, Part, Text, User
from unbroken_wires.validation import checked

Language: TypeAlias = Literal["en", "zh"]
Together: TypeAlias = Literal["reads", "overlapping", "keyed", "ordered"]

GUIDANCE = {
    "en": """\
## Using tools
When several tool calls do not depend on each other, make them all in one reply instead of one after another. {how}
Together: searching for several things, reading several files, asking several sources about one question.
One after another: when a call needs the result of an earlier one, or when you must see a result to decide what to do.
Example: the user wants to know the best practices of asynchronous programming in Python and in Rust.
Right: both searches in one reply.
Wrong: search for Python, wait for the result, then search for Rust.{budget}""",
    "zh": """\
## 使用工具
当多个工具调用相互独立时，应该在一次回复中同时发出，而不是逐个调用、逐个等待。{how}
适合一起调用：从多个关键词或来源搜索、批量读取文件或数据、从多个途径验证同一个问题。
不适合一起调用：后一个调用依赖前一个的结果，或需要看到结果才能决定下一步。
示例：用户想了解 Python 和 Rust 异步编程的最佳实践。
正确：在一次回复中发出两个搜索。
错误：先搜索 Python，等到结果，再搜索 Rust。{budget}""",
}

ONE_CALL = {
    "en": "## Using tools\nMake only one tool call in each reply.{budget}",
    "zh": "## 使用工具\n每次回复只发出一个工具调用。{budget}",
}

HOW_THEY_RUN: dict[Language, dict[Together, str]] = {
    "en": {
        "reads": "{calls} run at the same time.",
        "overlapping": "{calls} run at the same time.",
        "keyed": "{calls} run at the same time if they are about different things.",
        "ordered": "{calls} run one after another, in the order in which you make them.",
    },
    "zh": {
        "reads": "{calls}会同时执行。",
        "overlapping": "{calls}会同时执行。",
        "keyed": "{calls}涉及不同的对象时会同时执行。",
        "ordered": "{calls}会按你发出的顺序逐个执行。",
    },
}
CALLS = {"en": ("They", "Calls of {tools}", "All other calls"), "zh": ("它们", "{tools} 的调用", "其他调用")}
"""All calls; those of some tools; the rest, which is said last."""
LISTED = 20
"""How many tools are named."""

BUDGET = {
    "en": "\nYou can call tools in at most {rounds} replies; after that you must answer with what you have.",
    "zh": "\n你最多可以在 {rounds} 次回复中调用工具；之后必须根据已有信息作答。",
}

FINAL_REFUSED = {
    "en": "not executed: no more tools can be called; answer now with what you have",
    "zh": "未执行：不能再调用工具；请根据已有信息直接回答",
}

REFUSED_PROMPT = {
    "en": "[A message that was refused is not shown.]",
    "zh": "［一条被拒绝的消息，不予显示。］",
}

CONTINUE = {
    "en": "Please continue the tool calls to the end and give the final answer.",
    "zh": "请继续完成工具调用链并给出最终回复。",
}

ANSWER_NOW = {
    "en": "Please give the final answer now, with what you have.",
    "zh": "请根据已有信息直接给出最终回复。",
}

NO_ANSWER = {
    "en": "The run ended ({reason}) before the model gave an answer.",
    "zh": "运行已结束（{reason}），模型未能给出答案。",
}

ALL_FAILED = "All tool calls failed. Please check the error messages and try again."

BUDGET_EXHAUSTED = "not executed: budget exhausted"
TIME_IS_UP = "the time limit of the run was reached"

_CJK = re.compile(r"[\u3400-\u9fff]")


def language_of(*texts: str) -> Language:
    """Chinese if any of the texts has Chinese characters."""
    return "zh" if any(_CJK.search(text) for text in texts) else "en"


def guidance_text(
    language: Language, tools: Iterable[Tool], schedule: Schedule, several_calls: bool, rounds: int | None
) -> str:
    """Advice on calling these tools, which is true for how their calls run."""
    budget = BUDGET[language].format(rounds=rounds) if rounds is not None else ""
    advice = GUIDANCE if several_calls else ONE_CALL
    return advice[language].format(how=_how_they_run(language, tools, schedule), budget=budget)


def _how_they_run(language: Language, tools: Iterable[Tool], schedule: Schedule) -> str:
    groups: dict[Together, list[str]] = {"reads": [], "overlapping": [], "keyed": [], "ordered": []}
    for tool in tools:
        groups[_together(tool, schedule)].append(f"`{tool.name}`")
    given: dict[Together, list[str]] = {kind: names for kind, names in groups.items() if names}
    everything, some, others = CALLS[language]
    said: list[str] = []
    for kind, names in given.items():
        listed = ", ".join([*names[:LISTED], *(["…"] if len(names) > LISTED else [])])
        calls = others if kind == "ordered" else some.format(tools=listed)
        said.append(HOW_THEY_RUN[language][kind].format(calls=everything if len(given) == 1 else calls))
    return (" " if language == "en" else "").join(said)


def _together(tool: Tool, schedule: Schedule) -> Together:
    """With which other calls its calls run at the same time: the rules of `tools.order`."""
    if schedule.serial or tool.effect == "exclusive":
        return "ordered"
    if tool.key is not None:
        return "keyed"
    if tool.effect == "read" or not schedule.ordered:
        return "reads"
    return "overlapping" if tool.overlap else "ordered"


# What a prompt may be: text, images, or a list of them.


Prompt: TypeAlias = str | Part | User | Sequence[str | Part]


SHOWN = ("image/", "audio/", "video/", "application/pdf")
OTHER_TYPE = "give it with mime='image/png'"


@checked
def Image(source: str | Path | bytes, mime: str = "") -> Media:
    """An image for a prompt: a file's path, an http(s) or data URL, or bytes with their `mime` type."""
    if isinstance(source, bytes):
        if not mime:
            raise UserError("Image(bytes) needs its mime type: Image(data, mime='image/png')")
        return Media(mime=mime, data=base64.b64encode(source).decode())
    text = str(source)
    if text.startswith(("http://", "https://", "data:")):
        return Media(mime=mime, url=text)
    path = Path(source)
    if path.is_dir():
        raise UserError(f"Image({text!r}) cannot be read: it is a folder; name a file in it")
    kind = mime or mimetypes.guess_type(path.name)[0]
    if not kind:
        raise UserError(f"Image({text!r}): the name does not show the type; {OTHER_TYPE}")
    if not mime and not kind.startswith(SHOWN):
        raise UserError(f"Image({text!r}): {kind} is not an image; {OTHER_TYPE}")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"Image({text!r}) cannot be read: {error.strerror or error}") from error
    return Media(mime=kind, data=base64.b64encode(data).decode(), name=path.name)


def to_user(prompt: Prompt) -> User:
    if isinstance(prompt, User):
        return prompt
    if isinstance(prompt, str) and prompt:
        return User((Text(prompt),))
    parts = list(prompt) if isinstance(prompt, Sequence) and not isinstance(prompt, str) else [prompt]
    for part in parts:
        if not isinstance(part, str | Part):  # pyright: ignore[reportUnnecessaryIsInstance] - it is a caller's value
            kind = type(part).__name__
            raise UserError(f"a prompt is text, images, or a list of them; this one holds a {kind}")
    if not any(part if isinstance(part, str) else True for part in parts):
        raise UserError("the prompt is empty; write what the agent should do")
    return User.of(*parts)
