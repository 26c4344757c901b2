"""Everything together: questions, sessions, recordings, real HTTP."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

from course_assistant.assistant import CourseAssistant
from course_assistant.library import CourseLibrary
from course_assistant.sessions import Sessions
from course_assistant.tours import script, scripted_model
from unbroken import CallStarted, Request, ScriptedModel, User, connect
from unbroken.trajectory.recording import list_recordings
from unbroken_testing import Call, Say, run_virtual, serve

SEARCH = Call("search_course_content", query="prompt caching", course_name="MCP")


def questions(request: Request) -> list[str]:
    return [message.text for message in request.messages if isinstance(message, User)]


def test_a_question_goes_through_the_store_and_the_answer_has_links(library: CourseLibrary) -> None:
    answered = run_virtual(CourseAssistant(scripted_model(), library).ask("What is MCP?"))
    assert answered.text.startswith("MCP is short for Model Context Protocol.")
    assert answered.sources[0].title == "MCP: Build Tool Servers for Language Models - Lesson 1"
    assert (answered.sources[0].file, answered.sources[0].link) == ("courses/mcp.txt:6", "/lessons/10")


def test_an_outline_names_the_course_as_its_source(library: CourseLibrary) -> None:
    model = ScriptedModel([Call("get_course_outline", course_title="computer use")], "Three lessons.")
    answered = run_virtual(CourseAssistant(model, library).ask("The outline?"))
    outline = answered.result.calls[0].result.text
    assert outline.startswith("Course: Computer Use: Let a Model Drive a Desktop\nSource: [1]\nInstructor: ")
    assert "Prerequisites: Python" in outline
    assert outline.endswith("3. Prompt Caching with Screenshots")
    assert [source.file for source in answered.found] == ["courses/computer_use.txt:1"]
    assert answered.sources == ()  # the answer cites nothing


def test_an_outline_of_an_unknown_course_lists_the_known_ones(library: CourseLibrary) -> None:
    model = ScriptedModel([Call("get_course_outline", course_title="Cooking")], "There is none.")
    answered = run_virtual(CourseAssistant(model, library).ask("The outline?"))
    assert answered.result.calls[0].result.text.startswith("No course found that matches 'Cooking'. The courses are:")
    assert (answered.result.calls[0].error, answered.found) == (False, ())


def test_a_session_remembers_and_another_one_does_not(library: CourseLibrary) -> None:
    async def main() -> None:
        model = ScriptedModel(lambda request: " | ".join(questions(request)))
        assistant = CourseAssistant(model, library)
        one, other = assistant.sessions.start(), assistant.sessions.start()
        await assistant.ask("I am Ada.", one)
        await assistant.ask("I am Bob.", other)
        assert (await assistant.ask("Who am I?", one)).text == "I am Ada. | Who am I?"
        assert (await assistant.ask("Who am I?", other)).text == "I am Bob. | Who am I?"

    run_virtual(main)


def test_two_questions_at_once_in_one_session_wait_for_each_other(library: CourseLibrary) -> None:
    async def main() -> None:
        model = ScriptedModel(lambda request: Say(" | ".join(questions(request)), after=1.0))
        assistant = CourseAssistant(model, library)
        session = assistant.sessions.start()
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(assistant.ask(question, session)) for question in ("First?", "Second?")]
        assert [task.result().text for task in asked] == ["First?", "First? | Second?"]
        assert asyncio.get_running_loop().time() == 2.0

    run_virtual(main)


def test_questions_of_different_sessions_are_answered_at_the_same_time(library: CourseLibrary) -> None:
    async def main() -> None:
        assistant = CourseAssistant(ScriptedModel(lambda request: Say(questions(request)[0], after=1.0)), library)
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(assistant.ask(f"{n}?", assistant.sessions.start())) for n in range(20)]
        assert [task.result().text for task in asked] == [f"{n}?" for n in range(20)]
        assert asyncio.get_running_loop().time() == 1.0

    run_virtual(main)


def test_the_session_that_was_unused_for_longest_is_removed_if_there_are_too_many(library: CourseLibrary) -> None:
    sessions = Sessions(CourseAssistant(ScriptedModel(), library).agent, most=2)
    first, second = sessions.start(), sessions.start()
    assert sessions.find(first.id) is first
    third = sessions.start()
    assert [sessions.find(one.id) for one in (first, second, third)] == [first, None, third]
    assert sessions.forget(first.id)
    assert (sessions.forget(first.id), len(sessions)) == (False, 1)


def test_a_client_that_leaves_ends_the_run_and_can_ask_again(library: CourseLibrary) -> None:
    async def main() -> None:
        assistant = CourseAssistant(ScriptedModel([SEARCH], "Heard."), library)
        session = assistant.sessions.start()
        async with aclosing(assistant.stream("Caching?", session)) as steps:
            async for step in steps:
                if isinstance(step, CallStarted):
                    break
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert not session.turn.locked()
        assert (await assistant.ask("Again?", session)).text == "Heard."

    run_virtual(main)


def test_a_recorded_question_can_be_replayed(library: CourseLibrary, tmp_path: Path) -> None:
    assistant = CourseAssistant(scripted_model(), library, record=tmp_path)
    answered = run_virtual(assistant.ask("What is MCP and what are the prerequisites?"))
    (recorded,) = list_recordings(tmp_path)
    assert (recorded.rounds, recorded.requests, recorded.calls) == (2, 3, 2)
    again = CourseAssistant(ScriptedModel(), library).agent.replay(recorded.path)
    assert again.text == answered.text


def test_over_real_http_the_same_question_has_the_same_answer(library: CourseLibrary) -> None:
    question = "Compare prompt caching in MCP with Computer Use"
    with serve(script()) as server:
        model = connect("openai:tours", base_url=server.base_url(), api_key="any")
        answered = asyncio.run(CourseAssistant(model, library).ask(question))
    without = run_virtual(CourseAssistant(scripted_model(), library).ask(question))
    assert (answered.text, answered.sources) == (without.text, without.sources)
    assert (answered.result.rounds, answered.result.requests, len(server.bodies)) == (2, 3, 3)
    assert server.bodies[2]["tool_choice"] == "none"
