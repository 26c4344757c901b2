"""The nine tests of rounds: how many there are, what ends them, and what each request contains."""

from __future__ import annotations

from course_assistant.assistant import CourseAssistant
from course_assistant.chunks import Chunk
from course_assistant.courses import Course
from course_assistant.library import CourseLibrary
from unbroken import Assistant, RetryingModel, ScriptedModel, ToolMessage, User
from unbroken_testing import Call, check_request, run_virtual

MCP = Call("search_course_content", query="MCP introduction")
NEEDED = Call("search_course_content", query="prerequisites", course_name="MCP")
OUTLINE = Call("get_course_outline", course_title="MCP")
QUESTION = "What is MCP and what are the prerequisites?"


class BrokenLibrary(CourseLibrary):
    async def search(
        self, query: str, course: Course | None = None, lesson: int | None = None, limit: int = 5
    ) -> list[Chunk]:
        raise OSError("the store is closed")


def test_one_search_may_be_enough(library: CourseLibrary) -> None:
    model = ScriptedModel([MCP], "It is a protocol.")
    result = run_virtual(CourseAssistant(model, library).ask("What is MCP?")).result
    assert (result.text, result.stop_reason) == ("It is a protocol.", "answered")
    assert (result.rounds, result.requests) == (1, 2)


def test_two_rounds_take_three_requests(library: CourseLibrary) -> None:
    model = ScriptedModel([MCP], [NEEDED], "It is a protocol; you need Python.")
    result = run_virtual(CourseAssistant(model, library).ask(QUESTION)).result
    assert result.text == "It is a protocol; you need Python."
    assert (result.rounds, result.requests, len(result.calls)) == (2, 3, 2)


def test_a_tool_that_fails_in_round_one_leads_to_the_final_request() -> None:
    model = ScriptedModel([MCP], "I could not look it up.")
    with BrokenLibrary.open() as broken:
        result = run_virtual(CourseAssistant(model, broken).ask(QUESTION)).result
    assert (result.text, result.stop_reason) == ("I could not look it up.", "tool_failure")
    assert result.calls[0].result.text == "Error: the store is closed"
    assert (result.rounds, model.requests[1].final) == (1, True)


def test_a_model_that_requests_a_third_round_has_to_answer(library: CourseLibrary) -> None:
    model = ScriptedModel([MCP], [NEEDED], [OUTLINE], "That is all I know.")
    result = run_virtual(CourseAssistant(model, library).ask(QUESTION)).result
    assert (result.text, result.stop_reason, result.rounds) == ("That is all I know.", "round_limit", 2)
    assert [call.name for call in result.calls if not call.error] == ["search_course_content"] * 2
    assert result.calls[2].result.text.startswith("Error: not executed")


def test_each_round_adds_one_message_with_calls_and_one_with_their_results(library: CourseLibrary) -> None:
    model = ScriptedModel([MCP], [NEEDED], "Done.")
    run_virtual(CourseAssistant(model, library).ask(QUESTION))
    kinds = [[type(message) for message in request.messages[1:]] for request in model.requests]
    assert kinds == [[User], [User, Assistant, ToolMessage], [User, *[Assistant, ToolMessage] * 2]]
    assert [check_request(model.wire, body) for body in model.bodies] == [[], [], []]


def test_the_tools_stay_in_every_request(library: CourseLibrary) -> None:
    model = ScriptedModel([MCP], [NEEDED], "Done.")
    run_virtual(CourseAssistant(model, library).ask(QUESTION))
    assert [len(request.tools) for request in model.requests] == [2, 2, 2]
    assert [request.final for request in model.requests] == [False, False, True]


def test_the_final_request_allows_no_calls(library: CourseLibrary) -> None:
    openai = ScriptedModel([MCP], [NEEDED], "Done.")
    anthropic = ScriptedModel([MCP], [NEEDED], "Done.", wire="anthropic-messages")
    for model in (openai, anthropic):
        run_virtual(CourseAssistant(model, library).ask(QUESTION))
    assert openai.bodies[2]["tool_choice"] == "none"
    assert anthropic.bodies[2]["tool_choice"] == {"type": "none"}
    assert "tool_choice" not in openai.bodies[1] or openai.bodies[1]["tool_choice"] == "auto"


def test_an_empty_result_is_passed_on_and_a_second_round_may_follow(library: CourseLibrary) -> None:
    model = ScriptedModel([Call("search_course_content", query="photosynthesis", course_name="MCP")], [MCP], "Found.")
    result = run_virtual(CourseAssistant(model, library).ask(QUESTION)).result
    assert result.calls[0].result.text.startswith("No relevant content found in course 'MCP")
    assert not result.calls[0].error
    assert (result.rounds, result.text) == (2, "Found.")


def test_different_tools_may_follow_one_another(library: CourseLibrary) -> None:
    model = ScriptedModel([OUTLINE], [NEEDED], "Three lessons; you need Python.")
    result = run_virtual(CourseAssistant(model, library).ask("Lessons and prerequisites?")).result
    assert [call.name for call in result.calls] == ["get_course_outline", "search_course_content"]
    assert [call.turn for call in result.calls] == [0, 1]


def test_a_silent_model_ends_with_an_empty_answer_after_three_requests(library: CourseLibrary) -> None:
    model = ScriptedModel("", loop_last=True)
    answered = run_virtual(CourseAssistant(RetryingModel(model), library).ask("What is MCP?"))
    assert (answered.text, answered.sources, len(model.requests)) == ("", (), 3)


def test_the_rounds_may_grow_while_searches_find_something_new(library: CourseLibrary) -> None:
    searches = [Call("search_course_content", query=query) for query in ("MCP", "caching", "judges", "judges")]
    model = ScriptedModel(*searches, "Enough.")
    answered = run_virtual(CourseAssistant(model, library, most_rounds=9).ask("What is there?"))
    assert (answered.text, answered.result.rounds, answered.result.stop_reason) == ("Enough.", 4, "round_limit")
