"""The course assistant's page in a real Chromium: what it shows of a question, by keyboard, in both colour schemes, at
any width.

`make test-apps` runs it; the default tests need no browser. `UNBROKEN_SHOTS=DIR` saves screenshots.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import chromium
import pytest
from course_page import SEARCH, ask, in_browser, reload, shot, texts, until_ended

from course_assistant.assistant import CourseAssistant
from course_assistant.tours import scripted_model
from unbroken import Request, RetryingModel, ScriptedModel
from unbroken.errors import Unavailable
from unbroken_testing import Break, Call, Fail, Say
from unbroken_wires.deltas import Delta

pytestmark = pytest.mark.skipif(chromium.find() is None, reason="Chromium is not installed here")


def test_a_question_shows_its_calls_answer_and_sources_and_a_second_one_continues() -> None:
    async def act(tab: chromium.Tab, assistant: CourseAssistant) -> None:
        await ask(tab, "What is MCP and what are the prerequisites?", 1)
        assert await texts(tab, ".round .label") == ["Round 1", "Round 2"]
        calls = await texts(tab, ".call summary")
        assert 'search_course_content(query: "MCP introduction")' in calls[0]
        assert 'search_course_content(query: "prerequisites", course_name: "MCP")' in calls[1]
        assert all(call.split()[-1] in ("ms", "s") for call in calls)
        assert "Model Context Protocol" in (await texts(tab, ".prose"))[0]
        assert await texts(tab, ".prose strong") == ["Prerequisites:"]
        links = await tab.run(
            "[...document.querySelectorAll('.sources a')].map((node) => [node.innerText, node.pathname])"
        )
        title = "MCP: Build Tool Servers for Language Models"
        assert links == [[f"1 {title} - Lesson 1", "/lessons/10"], [f"2 {title}", "/lessons/9"]]
        assert "scripted:course-tours · 2 rounds · 2 calls · 3 requests" in (await texts(tab, ".facts"))[0]
        assert await tab.run("document.activeElement.id") == "question"
        await shot(tab, "course-answer")

        await ask(tab, "Tell me more", 2)
        assert len(await texts(tab, ".question")) == 2
        assert "What is MCP and what are the prerequisites?" in (await texts(tab, ".call summary"))[2]
        assert len(assistant.sessions) == 1

    in_browser(scripted_model(), act)


def test_a_call_opens_to_its_result_and_the_courses_to_their_lessons_by_keyboard() -> None:
    async def act(tab: chromium.Tab, assistant: CourseAssistant) -> None:
        await ask(tab, "What is MCP?", 1)
        await tab.run("document.querySelector('.call summary').focus()")
        await tab.press("Enter")
        assert "Lesson 1\n>" in (await texts(tab, ".call pre"))[0]
        await tab.run("document.querySelector('#courses summary').focus()")
        await tab.press("Enter")
        assert len(await texts(tab, "#courses [open] li a")) >= 3
        assert await tab.run("document.querySelectorAll('#courses details').length") == len(assistant.library.courses)

    in_browser(scripted_model(), act)


def test_each_example_is_a_button_and_a_new_chat_keeps_the_old_one_in_the_list() -> None:
    async def act(tab: chromium.Tab, assistant: CourseAssistant) -> None:
        assert await tab.run("document.activeElement.id") == "question"
        assert len(await texts(tab, "#examples button")) == 7
        for number in range(7):
            await tab.run(f"document.querySelectorAll('#examples button')[{number}].click()")
            await until_ended(tab, 1)
            assert await texts(tab, ".failure") == []
            assert len(await texts(tab, ".sources a")) >= 1
            assert await tab.run("document.activeElement.id") == "question"  # the next question can be typed
            await tab.run("document.activeElement.blur()")
            await tab.press("n")
            await tab.until("document.querySelector('#talk').hidden && document.activeElement.id === 'question'")
        assert len(assistant.sessions) == len(await texts(tab, "#chats li")) == 7

    in_browser(scripted_model(), act)


def test_a_failing_model_shows_why_and_the_question_can_be_repeated() -> None:
    async def act(tab: chromium.Tab, assistant: CourseAssistant) -> None:
        await ask(tab, "What is MCP?", 1)
        assert await texts(tab, ".failure p") == ["the provider is busy: try later"]
        assert await texts(tab, ".busy") == []
        await shot(tab, "course-failure")
        await tab.run("document.querySelector('.again').click()")
        await tab.until("document.querySelector('.prose p') !== null")
        await until_ended(tab, 1)
        assert await texts(tab, ".prose p") == ["Here I am."]

    in_browser(
        ScriptedModel(SEARCH, Fail(Unavailable("the provider is busy: try later", status=503)), "Here I am."), act
    )


def test_a_huge_number_is_shown_and_answered() -> None:
    async def act(tab: chromium.Tab, assistant: CourseAssistant) -> None:
        await ask(tab, "what does lesson 99999999999999999999999 say about tools", 1)
        assert await texts(tab, ".failure") == []
        assert await texts(tab, ".prose") == ["I found nothing about this in the courses."]

    in_browser(scripted_model(), act)


def test_an_answer_that_broke_off_is_shown_once_with_the_text_of_the_retry() -> None:
    async def act(tab: chromium.Tab, assistant: CourseAssistant) -> None:
        await ask(tab, "What is MCP?", 1)
        assert await texts(tab, ".prose p") == ["MCP is a protocol."]
        assert await texts(tab, ".call") != []
        assert "retried" in " ".join(await texts(tab, ".steps .event"))

    model = ScriptedModel(SEARCH, [Say("I think that"), Break()], "MCP is a protocol.")
    in_browser(RetryingModel(model), act)


def test_escape_stops_a_question_and_its_run() -> None:
    model = Endless()

    async def act(tab: chromium.Tab, assistant: CourseAssistant) -> None:
        await tab.run("document.getElementById('question').focus()")
        await tab.ask("Input.insertText", text="What is MCP?")
        await tab.press("Enter")
        await tab.until("document.querySelector('.busy') !== null")
        assert await texts(tab, "#send") == ["Stop"]
        await asyncio.wait_for(model.asked.wait(), 10)
        await tab.press("Escape")
        await until_ended(tab, 1)
        assert await texts(tab, ".facts") == ["Stopped."]
        await asyncio.wait_for(model.left.wait(), 10)

    in_browser(model, act)


def test_a_chat_that_the_server_has_forgotten_starts_again() -> None:
    async def act(tab: chromium.Tab, assistant: CourseAssistant) -> None:
        await ask(tab, "Hello?", 1)
        assistant.sessions.forget(await tab.run("chat.session"))
        await ask(tab, "And now?", 2)
        assert "has forgotten this chat" in (await texts(tab, ".failure p"))[0]
        await tab.run("document.querySelector('.again').click()")
        await until_ended(tab, 3)
        assert await texts(tab, ".prose") == ["Hello.", "", "Hello."]
        assistant.sessions.forget(await tab.run("chat.session"))
        await reload(tab)
        await tab.until("!document.querySelector('#note').hidden")
        assert "That chat does not exist any more" in (await texts(tab, "#note p"))[0]
        assert await tab.run("!document.querySelector('#welcome').hidden && location.hash === ''")
        assert await texts(tab, "#chats a") == []
        assert [words for words in tab.complaints if "404" not in words] == []  # Chromium reports every 404
        tab.complaints.clear()

    in_browser(ScriptedModel("Hello.", loop_last=True), act)


WORDS = """</script><script>document.title='run'</script><img src=x onerror="document.title='run'">

1. **one** with `code`
2. [good](https://example.com/good) and [bad](javascript:document.title='run')

| a | b |
|---|---|
| 1 | <b>2</b> |

```
<i>as it is</i>
```"""


def test_hostile_text_has_no_effect_and_simple_markdown_is_drawn() -> None:
    async def act(tab: chromium.Tab, assistant: CourseAssistant) -> None:
        await ask(tab, WORDS, 1)
        await tab.run("document.querySelector('.call').open = true")
        assert await tab.run("document.title") == "Course assistant"
        assert await tab.run("document.querySelector('#talk img, #talk script, #talk i, #talk b') === null")
        assert await tab.run("[...document.querySelectorAll('.prose a')].map((node) => node.href)") == [
            "https://example.com/good"
        ]
        assert await texts(tab, ".prose li") == ["one with code", "good and bad"]
        assert await texts(tab, ".prose td") == ["1", "<b>2</b>"]
        assert await texts(tab, ".prose pre") == ["<i>as it is</i>"]
        await tab.run("find('search').open = true")
        assert (await texts(tab, "#search p"))[0].startswith("</script>")

    in_browser(ScriptedModel(Call(WORDS[:60], {WORDS: WORDS}), WORDS), act, note=WORDS)


@pytest.mark.parametrize("width", [340, 390, 820, 1440])
def test_nothing_is_wider_than_the_window(width: int) -> None:
    async def act(tab: chromium.Tab, assistant: CourseAssistant) -> None:
        fits = (
            "document.documentElement.scrollWidth <= innerWidth && find('chat').scrollWidth <= find('chat').clientWidth"
        )
        assert await tab.run(fits)
        await ask(tab, "Compare prompt caching in MCP with Computer Use", 1)
        await tab.run("document.querySelector('.call').open = true")
        assert await tab.run(fits)
        await shot(tab, f"course-{width}")
        if width < 832:
            assert not await tab.run("find('side').checkVisibility()")
            await tab.run("find('show').click()")
            assert await tab.run(f"find('side').checkVisibility() && {fits}")
            await shot(tab, f"course-{width}-courses")
            await tab.press("Escape")
        assert await tab.run("find('side').checkVisibility()") == (width > 832)

    in_browser(scripted_model(), act, note="Full-text search is used instead of vectors.", width=width)


def test_dark_and_light_follow_the_system_and_the_button_changes_them() -> None:
    async def act(tab: chromium.Tab, assistant: CourseAssistant) -> None:
        paper = "getComputedStyle(document.body).backgroundColor"
        assert await tab.run(paper) == "rgb(251, 251, 249)"
        await tab.theme("dark")
        assert await tab.run(paper) == "rgb(21, 23, 26)"
        await ask(tab, "What lessons are in the MCP course and what does lesson 3 cover?", 1)
        await shot(tab, "course-dark")
        await tab.run("find('theme').click()")
        assert await tab.run(paper) == "rgb(251, 251, 249)"
        await reload(tab)
        assert await tab.run(paper) == "rgb(251, 251, 249)"  # it is remembered

    in_browser(scripted_model(), act)


class Endless:
    """A model that receives a request and answers nothing until the client has gone."""

    name = "endless"

    def __init__(self) -> None:
        self.asked, self.left = asyncio.Event(), asyncio.Event()

    async def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        self.asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.left.set()
        yield []
