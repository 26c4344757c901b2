"""The course assistant's chats in a real Chromium: reloads in the middle of an answer, citations and the lessons behind
them, the list of chats, two languages, hostile texts, and what axe-core finds.

`make test-apps` runs it; the default tests need no browser. `UNBROKEN_SHOTS=DIR` saves screenshots.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from pathlib import Path

import axe
import chromium
import pytest
from course_page import READY, SEARCH, ask, in_browser, reload, shot, texts, until_ended

from course_assistant.assistant import CourseAssistant
from course_assistant.library import CourseLibrary
from course_assistant.tours import scripted_model
from course_assistant.web.chat_store import ChatStore
from course_assistant.web.server import create_app, serving
from unbroken import Request, ScriptedModel, ToolMessage
from unbroken_testing import Call, Say, Think
from unbroken_wires.deltas import Delta

pytestmark = pytest.mark.skipif(chromium.find() is None, reason="Chromium is not installed here")


class Stepwise:
    """A model that thinks, calls, and writes its answer word by word, as `free` allows."""

    name = "step:wise"

    def __init__(self) -> None:
        self.written, self.free = asyncio.Event(), asyncio.Event()
        self._model = ScriptedModel(
            [Think("First I search. 先搜索。"), SEARCH], Say("MCP 是一种协议 [10]. It has servers.")
        )

    async def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        held = any(isinstance(message, ToolMessage) for message in request.messages)
        batches = [deltas async for deltas in self._model.stream(request)]
        for at, deltas in enumerate(batches):
            if held and at == len(batches) // 2:
                self.written.set()
                await self.free.wait()
            yield deltas


def test_a_reload_or_a_lost_connection_in_the_middle_of_an_answer_loses_nothing() -> None:
    model = Stepwise()

    async def act(tab: chromium.Tab, assistant: CourseAssistant) -> None:
        await tab.run("document.getElementById('question').focus()")
        await tab.ask("Input.insertText", text="什么是 MCP？")
        await tab.press("Enter")
        await asyncio.wait_for(model.written.wait(), 20)
        await tab.until("document.querySelector('.prose p') !== null")
        assert "#chat=" in await tab.run("location.href")
        half = await texts(tab, ".prose")
        for way in ("reload", "lost"):
            await reload(tab) if way == "reload" else await tab.run(LOSE)
            await tab.until("document.querySelector('.prose p') !== null && chat.going !== null")
            assert (await texts(tab, ".prose"), await texts(tab, ".question")) == (half, ["什么是 MCP？"])
            assert await texts(tab, "#send") == ["Stop"]
        await shot(tab, "course-resumed")
        model.free.set()
        await until_ended(tab, 1)
        assert await texts(tab, ".prose") == ["MCP 是一种协议 [1]. It has servers."]
        assert len(await texts(tab, ".call")) == 1
        await reload(tab)
        await until_ended(tab, 1)
        assert await texts(tab, ".prose") == ["MCP 是一种协议 [1]. It has servers."]
        assert (await texts(tab, ".facts"))[0].startswith("step:wise · 1 round")
        assert len(assistant.sessions) == 1

    in_browser(model, act)


LOSE = """(async () => { const before = chat.going; before.abort(); chat.going = null; listen(rest); })()"""
"""The page reads from its last event on, as after an error of the network."""


def test_chats_and_their_history_survive_a_restart_of_the_server(tmp_path: Path) -> None:
    async def main() -> None:
        with CourseLibrary.open() as library, closing(ChatStore(tmp_path / "chats.db")) as store:
            port = 0
            async with chromium.browser() as tab:
                for number in (1, 2):
                    assistant = CourseAssistant(ScriptedModel(SEARCH, "One protocol. [1]", loop_last=True), library)
                    app = create_app(assistant, library.note, library.note_zh, store)
                    async with serving(app, port=port) as address:
                        port = int(address.rstrip("/").rpartition(":")[2])
                        if number == 1:
                            await tab.open(address, READY)
                            await ask(tab, "What is MCP?", 1)
                        else:
                            await reload(tab)
                            await until_ended(tab, 1)
                            assert len(await texts(tab, "#chats li")) == 1
                            assert "One protocol." in (await texts(tab, "#talk"))[0]
                            await ask(tab, "And then?", 2)
                            assert "What is MCP?" in (await texts(tab, "#talk"))[0]
                            await tab.run("document.getElementById('language').click()")
                            assert "全文搜索" in await tab.run("document.querySelector('#search p').textContent")

    asyncio.run(main())


def test_a_question_that_never_reached_the_server_can_be_repeated() -> None:
    async def act(tab: chromium.Tab, assistant: CourseAssistant) -> None:
        await ask(tab, "First?", 1)
        await tab.run(
            "const real = fetch; window.fetch = () => { window.fetch = real; return Promise.reject(new TypeError()); }"
        )
        await ask(tab, "Second?", 2)
        assert await texts(tab, ".failure p") == ["The connection to the server was lost. Is it still running?"]
        await tab.run("document.querySelector('.again').click()")
        await until_ended(tab, 3)
        assert await texts(tab, ".prose") == ["Hello.", "", "Hello."]

    in_browser(ScriptedModel("Hello.", loop_last=True), act)


def test_a_citation_opens_the_lesson_that_is_in_the_file() -> None:
    async def act(tab: chromium.Tab, assistant: CourseAssistant) -> None:
        await ask(tab, "Compare prompt caching in MCP with Computer Use", 1)
        cited = """[...document.querySelectorAll('.prose .cite')].map((node) =>
          [node.innerText, node.ariaLabel, node.pathname])"""
        (first, second) = await tab.run(cited)
        assert first == ["[1]", "Source 1: MCP: Build Tool Servers for Language Models - Lesson 3", "/lessons/12"]
        assert (second[0], second[2]) == ("[2]", "/lessons/4")
        assert len(await texts(tab, ".sources li")) == 2  # only what is cited
        address = await tab.run("location.origin")
        await tab.open(f"{address}{first[2]}", "document.querySelector('#lesson h2') !== null")
        assert await texts(tab, "#lesson h2") == ["Prompt Caching for Tool Definitions"]
        lesson = assistant.library.courses[2].lessons[2]
        assert await texts(tab, "#lesson .prose p") == list(lesson.paragraphs)
        assert "File: courses/mcp.txt:26" in (await texts(tab, "#lesson .facts"))[0]
        assert await tab.run("document.title") == "Prompt Caching for Tool Definitions · Course assistant"
        await shot(tab, "course-lesson")
        await tab.run("document.querySelector('#lesson .near a').click()")
        await tab.until("document.querySelector('#lesson h2')?.innerText === 'Writing Your First Server'")
        await tab.open(f"{address}/lessons/99", "document.querySelector('#lesson h2') !== null")
        assert await texts(tab, "#lesson h2") == ["This lesson does not exist."]
        tab.complaints.clear()  # Chromium reports the 404

    in_browser(scripted_model(), act)


def test_answers_are_copied_and_repeated_and_chats_are_found_again() -> None:
    async def act(tab: chromium.Tab, assistant: CourseAssistant) -> None:
        await ask(tab, "First?", 1)
        await tab.run("navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }")
        await tab.run("document.querySelector('.copy').click()")
        await tab.until("document.querySelector('.copy').innerText === 'Copied'")
        assert await tab.run("copied") == "One [1].\n\n[1] MCP: Build Tool Servers for Language Models - Lesson 1"
        await tab.run("document.querySelector('.regenerate').click()")
        await tab.until("document.querySelector('.prose').innerText === 'Two.'")
        await until_ended(tab, 1)
        assert len(await texts(tab, ".question")) == 1
        await ask(tab, "Second?", 2)
        assert await tab.run("[...document.querySelectorAll('.regenerate')].map((one) => one.checkVisibility())") == [
            False,
            True,
        ]
        await tab.run("find('anew').click()")
        await ask(tab, "Another chat?", 1)
        assert await texts(tab, "#chats a") == ["Another chat?", "First?"]
        await tab.run("document.querySelectorAll('#chats a')[1].click()")
        await until_ended(tab, 2)
        assert await texts(tab, ".question") == ["First?", "Second?"]
        assert await tab.run("document.querySelector('#chats [aria-current]').innerText") == "First?"
        await tab.run("history.back()")
        await until_ended(tab, 1)
        assert await texts(tab, ".question") == ["Another chat?"]
        await tab.run("document.querySelector('#chats button').click()")
        await tab.until("!document.querySelector('#welcome').hidden")
        assert await texts(tab, "#chats a") == ["First?"]
        async with chromium.browser() as other:
            await other.open(await tab.run("location.origin"), READY)
            assert await texts(other, "#chats a") == []  # the list is of this browser

    model = ScriptedModel(SEARCH, "One [10].", "Two.", "Three.", "Four.")
    in_browser(model, act)


def test_chinese_and_english_are_switched_and_remembered_and_follow_the_browser_first() -> None:
    async def act(tab: chromium.Tab, assistant: CourseAssistant) -> None:
        agent = await tab.run("navigator.userAgent")
        await tab.ask("Emulation.setUserAgentOverride", userAgent=agent, acceptLanguage="zh-CN,en")
        await reload(tab)
        assert await tab.run("document.documentElement.lang") == "zh-CN"
        assert (await texts(tab, "h1"), await texts(tab, "#send")) == (["课程助手"], ["提问"])
        assert "什么是 MCP？" in (await texts(tab, "#examples button"))[0]
        await tab.run("document.querySelector('#examples button').click()")
        await until_ended(tab, 1)
        assert await texts(tab, ".round .label") == ["第 1 轮"]
        assert "模型上下文协议" in (await texts(tab, ".prose"))[0]
        assert "1 轮 · 1 次调用" in (await texts(tab, ".facts"))[0]
        await shot(tab, "course-chinese")
        await tab.run("find('language').click()")
        await tab.until("document.querySelector('.round .label')?.innerText === 'Round 1'")
        await until_ended(tab, 1)
        await reload(tab)
        assert await texts(tab, "h1") == ["Course assistant"]

    in_browser(scripted_model(), act)


def test_reasoning_unknown_tools_and_long_arguments_are_shown() -> None:
    long = "word " * 400

    async def act(tab: chromium.Tab, assistant: CourseAssistant) -> None:
        await ask(tab, "Fly!", 1)
        assert await texts(tab, "#model") == ["scripted:thinker"]
        assert await tab.run("document.querySelector('.reasoning').open") is False
        await tab.run("document.querySelector('.reasoning summary').click()")
        assert await texts(tab, ".reasoning .thought") == ["I have no wings. 没有翅膀。"]
        calls = await texts(tab, ".call summary")
        assert 'fly(to: "moon"' in calls[0].replace("\n", "")
        assert calls[1].count("word") < 40
        await tab.run("for (const call of document.querySelectorAll('.call')) call.open = true")
        (given,) = await texts(tab, ".given pre")
        assert given.count("word") == 400
        assert "unknown tool `fly`" in (await texts(tab, ".result pre"))[0]
        await shot(tab, "course-reasoning")

    calls = [Call("fly", {"to": "moon", "fast": True}), Call("search_course_content", query=long)]
    model = ScriptedModel([Think("I have no wings. 没有翅膀。"), *calls], "I cannot fly.", name="scripted:thinker")
    in_browser(model, act)


RTL, HALF = "\u202egnp.exe\u202c", "\ud83d"
EVIL = f"<img src=x onerror=\"document.title='run'\"> {RTL} [x](javascript:document.title='run') " + "w" * 100_000


def test_hostile_courses_file_names_tools_and_models_have_no_effect(tmp_path: Path) -> None:
    name = f"<svg onload=alert(1)> {RTL} [1](javascript:x).md"
    (tmp_path / name).write_text(f"# {EVIL}\n\n{EVIL}\n\n## {EVIL}\n\n{EVIL} lava", "utf-8")

    async def act(tab: chromium.Tab, assistant: CourseAssistant) -> None:
        await ask(tab, f"lava {EVIL[:3000]}", 1)
        await tab.run("for (const one of document.querySelectorAll('details')) one.open = true")
        fits = (
            "document.documentElement.scrollWidth <= innerWidth && find('chat').scrollWidth <= find('chat').clientWidth"
        )
        clean = "document.querySelector('main img, main svg, aside img, aside svg, main script') === null"
        assert await tab.run(f"document.title === 'Course assistant' && {fits} && {clean}")
        assert await tab.run("[...document.querySelectorAll('a')].every((node) => /^https?:$/.test(node.protocol))")
        for one in ("#model", ".call summary", "#courses", "#chats", ".sources"):
            assert "\u202e" not in " ".join(await texts(tab, one)), one
        assert "⟨U+202E⟩" in (await texts(tab, ".call summary"))[0]
        await tab.open(f"{await tab.run('location.origin')}/lessons/3", "document.querySelector('#lesson h2') !== null")
        assert await tab.run(f"document.title !== 'run' && {fits} && {clean}")
        await reload(tab)

    bad = Call(f"tool{RTL}<b>", {f"key{RTL}{HALF}": [EVIL, HALF]})
    model = ScriptedModel(
        [Think(EVIL), bad], [Call("search_course_content", query="lava")], f"{EVIL} [3]", name=f"m{RTL}<b>"
    )
    in_browser(model, act, courses=tmp_path)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_violation_at_any_width_in_both_languages(theme: str) -> None:
    async def act(tab: chromium.Tab, assistant: CourseAssistant) -> None:
        origin = await tab.run("location.origin")
        await tab.theme(theme)
        await tab.run("document.querySelector('header').append(document.createElement('img'))")
        assert [line.partition(":")[0] for line in await axe.violations(tab)] == ["image-alt"]  # it looks at all
        for width in (390, 820, 1440):
            await tab.size(width, 800)
            await tab.open(f"{origin}/", READY)
            found = {f"{width} welcome": await axe.violations(tab)}
            await ask(
                tab, "沙箱里的安全怎么保证？" if width == 820 else "What is MCP and what are the prerequisites?", 1
            )
            await tab.run("for (const one of document.querySelectorAll('details')) one.open = true")
            found[f"{width} answer"] = await axe.violations(tab)
            await shot(tab, f"course-axe-{width}-{theme}")
            if width < 832:
                await tab.run("find('show').click()")
                found[f"{width} menu"] = await axe.violations(tab)
            await tab.run("find('language').click()")
            await until_ended(tab, 1)
            found[f"{width} other language"] = await axe.violations(tab)
            await tab.open(f"{origin}/lessons/12", "document.querySelector('#lesson h2') !== null")
            found[f"{width} lesson"] = await axe.violations(tab)
            assert {place: lines for place, lines in found.items() if lines} == {}

    in_browser(scripted_model(), act)


def test_everything_is_reached_by_keyboard_alone() -> None:
    async def act(tab: chromium.Tab, assistant: CourseAssistant) -> None:
        await tab.ask("Input.insertText", text="What is MCP?")  # the field has the focus
        await tab.press("Enter")
        await until_ended(tab, 1)
        await tab.run("document.body.focus(); document.activeElement.blur(); document.querySelector('h1 a').focus()")
        reached: list[str] = []
        for _ in range(40):
            await tab.ask("Input.dispatchKeyEvent", type="keyDown", key="Tab", code="Tab", windowsVirtualKeyCode=9)
            await tab.ask("Input.dispatchKeyEvent", type="keyUp", key="Tab", code="Tab", windowsVirtualKeyCode=9)
            reached.append(
                await tab.run(
                    "document.activeElement.id || document.activeElement.className || document.activeElement.tagName"
                )
            )
            if reached[-1] == "send":
                break
        wanted = ["anew", "language", "theme", "cite", "bare copy", "bare regenerate", "question", "send"]
        assert [one for one in reached if one in wanted] == wanted
        names = """[...document.querySelectorAll('button, a, textarea, summary')]
          .filter((node) => node.checkVisibility())
          .every((node) => (node.ariaLabel ?? node.innerText).trim() || node.labels?.length)"""
        assert await tab.run(names)

    in_browser(scripted_model(), act)
