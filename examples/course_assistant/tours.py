"""The tours: seven questions with the calls that a good model makes for them, and `scripted_model`, which plays them
without a key. The calls are written down here; the answers are quoted from what the tools really returned. For any
other question it searches once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from course_assistant.full_text import is_chinese, key_terms, terms
from course_assistant.instructions import language_of
from course_assistant.library import CourseLibrary
from course_assistant.quoting import field, hits, lesson_titles, numbers, sentences
from course_assistant.vectors import plain
from unbroken import Request, ScriptedModel, ToolMessage, ToolResult, User
from unbroken_testing import Answer, Call, Say
from unbroken_wires.messages import Message

Arguments = Mapping[str, str | int]
Read = Callable[[Sequence[str]], str]
"""Builds an answer from the results, in call order. There are fewer results than calls in the tour if the rounds ran
out."""

SEARCH, OUTLINE = "search_course_content", "get_course_outline"
UNFINISHED = "I could not look up the rest of the question within the rounds that I had."
NOTHING_FOUND = "I found nothing about this in the courses."
NOTHING_FOUND_ZH = "课程材料中没有找到相关内容。"


@dataclass(frozen=True, slots=True)
class Tour:
    question: str
    rounds: tuple[tuple[tuple[str, Arguments], ...], ...]
    """The calls, round by round."""
    read: Read
    shows: str
    also: str = ""
    """Another wording of the question."""

    @property
    def calls(self) -> int:
        return sum(len(calls) for calls in self.rounds)


def _cited(text: str, number: int) -> str:
    return f"{text} [{number}]"


def _explain(results: Sequence[str]) -> str:
    found = hits(results[0])
    return _cited(sentences(found[0].text, 3), found[0].number) if found else NOTHING_FOUND


def _explain_and_require(results: Sequence[str]) -> str:
    found = ((field(hit.text, "Prerequisites"), hit.number) for hit in hits(results[1]))
    needed = next((_cited(text, number) for text, number in found if text), NOTHING_FOUND)
    return f"{_explain(results)}\n\n**Prerequisites:** {needed}"


def _outline(results: Sequence[str]) -> str:
    lessons = "\n".join(f"- Lesson {number}: {title}" for number, title in lesson_titles(results[0]))
    needed = field(results[0], "Prerequisites")
    title = _cited(f"**{field(results[0], 'Course')}**", *numbers(results[0]))
    return f"{title}\n\n{lessons}" + (f"\n\nPrerequisites: {needed}" if needed else "")


def _each_lesson(results: Sequence[str]) -> str:
    firsts = [found[0] for found in map(hits, results) if found]
    lines = [f"**{hit.place}**: {_cited(sentences(hit.text, 2), hit.number)}" for hit in firsts]
    return "\n\n".join(lines) or NOTHING_FOUND


def _compare(results: Sequence[str]) -> str:
    sides = [found[0] for found in map(hits, results) if found]
    said = [_cited(sentences(hit.text, 2, "prompt caching"), hit.number) for hit in sides]
    lines = [f"**{hit.course}** ({hit.part}): {words}" for hit, words in zip(sides, said, strict=True)]
    return "\n\n".join(lines) or NOTHING_FOUND


def _in_both(results: Sequence[str]) -> str:
    titles = [[title for _, title in lesson_titles(result)] for result in results]
    words = [set(key_terms(" ".join(each))) for each in titles]
    shared = set[str].intersection(*words)
    lines = [
        _cited(f"- {field(result, 'Course')}: {'; '.join(each)}", *numbers(result))
        for result, each in zip(results, titles, strict=True)
    ]
    first = " ".join(word for word in terms(" ".join(titles[0])) if word in shared)
    return f"Both courses cover **{first or 'nothing in common'}**. Their lessons:\n\n" + "\n".join(lines)


def _outline_and_lesson(results: Sequence[str]) -> str:
    found = hits(results[1])
    covers = _cited(sentences(found[0].text, 2), found[0].number) if found else NOTHING_FOUND
    return f"{_outline(results)}\n\n**Lesson 3** covers: {covers}"


TOURS: tuple[Tour, ...] = (
    Tour("What is MCP?", (((SEARCH, {"query": "What is MCP"}),),), _explain, "one search is enough"),
    Tour(
        "Show me the course outline for Computer Use",
        (((OUTLINE, {"course_title": "Computer Use"}),),),
        _outline,
        "reads the outline of one course",
    ),
    Tour(
        "What is MCP and what are the prerequisites?",
        (
            ((SEARCH, {"query": "MCP introduction"}),),
            ((SEARCH, {"query": "prerequisites", "course_name": "MCP"}),),
        ),
        _explain_and_require,
        "two searches, one after the other",
    ),
    Tour(
        "Tell me about lesson 1 and lesson 2 of the MCP course",
        (
            (
                (SEARCH, {"query": "what lesson 1 covers", "course_name": "MCP", "lesson_number": 1}),
                (SEARCH, {"query": "what lesson 2 covers", "course_name": "MCP", "lesson_number": 2}),
            ),
        ),
        _each_lesson,
        "two searches at the same time",
    ),
    Tour(
        "Compare prompt caching in MCP with Computer Use",
        (
            ((SEARCH, {"query": "prompt caching", "course_name": "MCP"}),),
            ((SEARCH, {"query": "prompt caching", "course_name": "Computer Use"}),),
        ),
        _compare,
        "a search in each course, then a comparison",
        also="Compare prompt caching in the MCP course with the Computer Use course",
    ),
    Tour(
        "What topics are covered in both courses?",
        (((OUTLINE, {"course_title": "MCP"}),), ((OUTLINE, {"course_title": "Computer Use"}),)),
        _in_both,
        "reads the outline of each course",
    ),
    Tour(
        "What lessons are in the MCP course and what does lesson 3 cover?",
        (
            ((OUTLINE, {"course_title": "MCP"}),),
            ((SEARCH, {"query": "what lesson 3 covers", "course_name": "MCP", "lesson_number": 3}),),
        ),
        _outline_and_lesson,
        "reads the outline, then searches one lesson",
    ),
)

TOUR_QUERIES = tuple(
    sorted(
        {str(given["query"]) for tour in TOURS for calls in tour.rounds for name, given in calls if name == SEARCH}
        | {tour.question for tour in TOURS}
    )
)
"""The queries of the tours; their vectors are shipped."""

CHINESE_EXAMPLES = (
    ("什么是 MCP？", "一次搜索，用中文作答"),
    ("提示缓存怎么用？", "两门课程中的同一个主题"),
    ("沙箱里的安全怎么保证？", "在一节课里找到答案"),
    ("检索增强生成是什么？", "引用课文"),
    (TOURS[2].question, "两个部分，两轮"),
    (TOURS[3].question, "一轮中并行的两次搜索"),
    (TOURS[4].question, "比较，两轮"),
)


def example_questions(library: CourseLibrary) -> dict[str, list[dict[str, str]]]:
    """By language, each with what it demonstrates. For a folder of one's own they are about its courses."""
    if not library.shipped:
        titles = [course.title for course in library.courses[:4]]
        return {
            "en": [{"question": f"What is “{title}” about?", "shows": ""} for title in titles],
            "zh": [{"question": f"“{title}”讲了什么？", "shows": ""} for title in titles],
        }
    return {
        "en": [{"question": tour.question, "shows": tour.shows} for tour in TOURS],
        "zh": [{"question": question, "shows": shows} for question, shows in CHINESE_EXAMPLES],
    }


_BY_QUESTION = {plain(words): tour for tour in TOURS for words in (tour.question, tour.also) if words}
_LESSON = re.compile(r"lesson (\d+)|第\s*(\d+)\s*课", re.I)


def find_tour(question: str) -> Tour | None:
    return _BY_QUESTION.get(plain(question))


def scripted_model(pace: float = 0.0, *, thinks: float = 0.0) -> ScriptedModel:
    """The model without a key. It writes a word every `pace` seconds, after `thinks` seconds for each request."""
    return ScriptedModel(script(pace, thinks=thinks), name="scripted:course-tours", recover=False, keep=1)


def script(pace: float = 0.0, *, thinks: float = 0.0) -> Callable[[Request], Answer]:
    """The script of the model; `unbroken_testing.serve` can play it over HTTP."""

    def answer(request: Request) -> Answer:
        said = next_words(request)
        if not isinstance(said, str):
            first, *others = said
            return [Call(first[0], first[1], after=thinks), *(Call(name, given) for name, given in others)]
        # Chinese has no spaces, so it is split by length.
        chunks = len(said) // 4 + 1 if is_chinese(said) else 0
        return Say(said, chunks=chunks, after=thinks, over=pace * (chunks or len(said.split())))

    return answer


def next_words(request: Request) -> str | Sequence[tuple[str, Arguments]]:
    """The next response in this conversation: an answer, or calls."""
    before, question, results = _state_of(request.messages)
    # Not every wire marks results as errors; then their text shows it.
    failed = [result.text for result in results if result.error or result.text.startswith("Error: ")]
    if failed:
        return f"I could not look this up: {failed[0].removeprefix('Error: ')}"
    tour = find_tour(question)
    search = _search_for(question, before)
    rounds = tour.rounds if tour else (((SEARCH, search),),)
    done = 0
    for calls in rounds:
        if done == len(results):
            return _so_far(results) if request.final or request.choice == "none" else calls
        done += len(calls)
    texts = [result.text for result in results]
    return tour.read(texts) if tour else _from_first_hits(texts[0], str(search["query"]), language_of(question) == "zh")


def _so_far(results: Sequence[ToolResult]) -> str:
    """The answer if the rounds ran out before the tour ended."""
    texts = [result.text for result in results]
    lines = [_outline([text]) if lesson_titles(text) else _explain([text]) for text in texts]
    return "\n\n".join([*lines, UNFINISHED])


def _state_of(messages: Sequence[Message]) -> tuple[str, str, list[ToolResult]]:
    """The previous question, the last question, and the results since then."""
    questions = [at for at, message in enumerate(messages) if isinstance(message, User)]
    asked = [messages[at] for at in questions[-2:]]
    texts = [message.text for message in asked if isinstance(message, User)]
    since = messages[questions[-1] if questions else 0 :]
    results = [result for message in since if isinstance(message, ToolMessage) for result in message.results]
    return texts[0] if len(texts) == 2 else "", texts[-1] if texts else "", results


def _search_for(question: str, before: str) -> Arguments:
    """A question without key terms (`Tell me more`) refers to the previous one."""
    own = [term for term in key_terms(question) if not term.isdigit()]
    query = question if own or not before else before
    lesson = _LESSON.search(question)
    return {"query": query} if lesson is None else {"query": query, "lesson_number": int(lesson[1] or lesson[2])}


def _from_first_hits(result: str, about: str, chinese: bool) -> str:
    found = hits(result)
    if chinese:
        found = [hit for hit in found if is_chinese(hit.text)] or found
    found = found[:2]
    if not found:
        return NOTHING_FOUND_ZH if chinese else NOTHING_FOUND
    colon = "：" if chinese else ": "
    said = [_cited(sentences(hit.text, 2, about, chinese=chinese), hit.number) for hit in found]
    return "\n\n".join(f"**{hit.place}**{colon}{words}" for hit, words in zip(found, said, strict=True))
