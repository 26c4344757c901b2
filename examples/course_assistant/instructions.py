"""The instructions for the model: its task, the courses, and how to use its rounds, in the language of the question.
They contain the real number of rounds."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

from course_assistant.library import CourseLibrary

Language: TypeAlias = Literal["en", "zh"]

_CHINESE_LETTER = re.compile(r"[\u3400-\u9fff]")
_KANA = re.compile(r"[\u3040-\u30ff]")
_LATIN_WORD = re.compile(r"[a-z]+", re.I)

MOST_LISTED = 100

_TIMES: dict[Language, dict[int, str]] = {
    "en": {1: "ONCE", 2: "up to TWO times", 3: "up to THREE times"},
    "zh": {1: "一", 2: "两", 3: "三"},
}

_ENGLISH = """\
You are an assistant for course materials. You answer questions about these courses with the help of two tools:
{courses}

Tools:
- search_course_content: for questions about what a course teaches.
- get_course_outline: for the outline of a course: title, link, prerequisites, and all lessons.

Tool usage guidelines:
- **Multi-part questions**: you may use tools {times} per question; after that you must answer with what you have.
{examples}\
  - Prioritize efficiency: use one search if one is enough, and none for questions of general knowledge.
- **Tool independence**: each call should gather distinct, complementary information. Do not search for the same thing \
in other words.
- If nothing is found, say so plainly. Never answer course questions from memory.

Answers: brief, in the language of the question, with the facts that the tools gave. Do not describe your searches. \
After each fact write the number of its hit in brackets, as in [7]; cite nothing that you did not use."""

_CHINESE = """\
你是课程材料助手，借助两个工具回答关于以下课程的问题：
{courses}

工具：
- search_course_content：查找课程讲授的内容。
- get_course_outline：查看课程大纲：标题、链接、先决条件和全部课时。

工具使用指南：
- **多部分问题**：每个问题最多可以使用{times}轮工具；之后必须根据已有信息作答。
{examples}\
  - 效率优先：一次搜索足够时只搜索一次；常识问题不必搜索。
- **工具独立性**：每次调用应获取不同且互补的信息，不要换一种说法重复搜索。
- 没有找到内容时请直接说明，不要凭记忆回答课程问题。

回答要简短，使用提问的语言，只依据工具给出的事实，不要描述搜索过程。\
在每个事实后面用方括号写上它所出自的搜索结果的编号，例如 [7]；没有用到的不要引用。"""

_EXAMPLES: dict[Language, str] = {
    "en": """\
  - "What is X, and what is Y?": search for X, then search for Y if that is still needed.
  - "Compare topic A in course X with course Y": search course X, then search course Y.
""",
    "zh": """\
  - “什么是 X？Y 又是什么？”：先搜索 X，仍有需要时再搜索 Y。
  - “比较课程 X 和课程 Y 中的主题 A”：先搜索课程 X，再搜索课程 Y。
""",
}


def language_of(question: str) -> Language:
    """The language of the question's words; names and terms in it do not count. A text with kana is Japanese."""
    chinese, kana, words = (len(pattern.findall(question)) for pattern in (_CHINESE_LETTER, _KANA, _LATIN_WORD))
    return "zh" if chinese and chinese >= words and not kana else "en"


def _listed(library: CourseLibrary) -> str:
    """A folder of one's own may have hundreds of courses; a search finds the others too."""
    titles = [f"- {course.title}" for course in library.courses[:MOST_LISTED]]
    more = len(library.courses) - len(titles)
    return "\n".join([*titles, f"- … ({more})"] if more else titles)


def instructions(library: CourseLibrary, rounds: int, language: Language = "en") -> str:
    other = f" {rounds} " if language == "zh" else f"up to {rounds} times"
    return (_CHINESE if language == "zh" else _ENGLISH).format(
        courses=_listed(library),
        times=_TIMES[language].get(rounds, other),
        examples=_EXAMPLES[language] if rounds > 1 else "",
    )
