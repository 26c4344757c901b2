"""The words that we say to a model, in English and Chinese: how to call tools well, and what to do at the end."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

Language: TypeAlias = Literal["en", "zh"]

GUIDANCE = {
    "en": """\
## Using tools
When several tool calls do not depend on each other, make them all in one reply instead of one after another: they run \
at the same time.
Together: searching for several things, reading several files, asking several sources about one question.
One after another: when a call needs the result of an earlier one, or when you must see a result to decide what to do.
Example: asked to compare the weather in Paris and in Rome, call the weather tool twice in one reply; do not wait for \
the first answer before you ask for the second.{budget}""",
    "zh": """\
## 使用工具
当多个工具调用相互独立时，应该在一次回复中同时发出，而不是逐个调用、逐个等待：它们会同时执行。
适合一起调用：从多个关键词或来源搜索、批量读取文件或数据、从多个途径验证同一个问题。
不适合一起调用：后一个调用依赖前一个的结果，或需要看到结果才能决定下一步。
示例：用户要求比较北京和上海的天气，应在一次回复中调用两次天气工具，而不是等第一个结果回来再查第二个。{budget}""",
}

BUDGET = {
    "en": "\nYou can call tools in at most {rounds} replies; after that you must answer with what you have.",
    "zh": "\n你最多可以在 {rounds} 次回复中调用工具；之后必须根据已有信息作答。",
}

FINAL_REFUSED = {
    "en": "not executed: no more tools can be called; answer now with what you have",
    "zh": "未执行：不能再调用工具；请根据已有信息直接回答",
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


def guidance_text(language: Language, rounds: int | None) -> str:
    budget = BUDGET[language].format(rounds=rounds) if rounds is not None else ""
    return GUIDANCE[language].format(budget=budget)
