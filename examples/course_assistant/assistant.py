"""`CourseAssistant`: a model, two tools over a library of courses, and a budget of rounds. It answers questions,
streamed or not, with the sources that were used. It does not depend on terminals or pages; `cli` and `web` show its
answers."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from course_assistant.config import MAX_TOOL_ROUNDS, check_rounds
from course_assistant.course_tools import course_tools
from course_assistant.instructions import Language, instructions, language_of
from course_assistant.library import CourseLibrary
from course_assistant.sessions import Session, Sessions
from course_assistant.sources import Source, cite, unique
from unbroken import Agent, Event, Limits, Model, Policy, Prices, Recorder, Result, UserError, connect

LONGEST_QUESTION = 4_000
PRICES = Prices(input=1.0, output=5.0)
"""Dollars per million tokens, for a small model of 2025."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The end of a question: the result of the run, and its sources."""

    text: str
    """As the model wrote it: `[7]` cites the source with this number."""
    sources: tuple[Source, ...]
    """The sources that the text cites, in the order of their first citation."""
    found: tuple[Source, ...]
    """What the tools found for this question, in the order of the calls."""
    result: Result


class CourseAssistant:
    """`await assistant.ask("What is MCP?")`. After `max_tool_rounds` rounds of calls, or if a tool fails, a final
    request asks the model for its answer without tool calls. With `most_rounds` there may be so many rounds, as long as
    each brings something new."""

    def __init__(
        self,
        model: Model | str,
        library: CourseLibrary,
        *,
        max_tool_rounds: int = MAX_TOOL_ROUNDS,
        most_rounds: int | None = None,
        record: str | os.PathLike[str] | Recorder | None = None,
    ) -> None:
        self.library = library
        self.max_tool_rounds = check_rounds(max_tool_rounds)
        self._most_rounds = most_rounds if most_rounds is None else check_rounds(most_rounds)
        self._record = record if record is None or isinstance(record, Recorder) else Recorder(record)
        self._model: Model = connect(model) if isinstance(model, str) else model
        self.agent = self._build("en")
        self._chinese = self._build("zh")
        self.sessions = Sessions(self.agent)

    def _build(self, language: Language) -> Agent:
        return Agent(
            self._model,
            course_tools(self.library),
            instructions(self.library, self.max_tool_rounds, language),
            name="course-assistant",
            limits=Limits(rounds=self.max_tool_rounds, most_rounds=self._most_rounds, prices=PRICES),
            on_error="finish",
            guidance=False,  # the instructions of this application include it
            policy=Policy(empty_answer=""),
            record=self._record,
        )

    async def stream(self, question: str, session: Session) -> AsyncGenerator[Event | Answered, None]:
        """Yields the events as they happen, and `Answered` last. A run that fails raises its error. To stop early,
        close the generator (`aclosing`), which ends the run."""
        question = check_question(question)
        async with session.turn:
            session.forget_the_oldest()
            session.conversation.agent = self._chinese if language_of(question) == "zh" else self.agent
            async with session.conversation.stream(question) as run:
                async for event in run:
                    yield event
            result = run.result
        found: list[Source] = [source for call in result.calls for source in call.result.data or ()]
        session.found |= {source.number: source for source in found}
        yield Answered(result.text, cite(result.text, session.found)[1], unique(found), result)

    async def ask(self, question: str, session: Session | None = None) -> Answered:
        """The same without the events; without a session nothing is remembered."""
        async with aclosing(self.stream(question, session or self.sessions.apart())) as steps:
            async for step in steps:
                if isinstance(step, Answered):
                    return step
        raise AssertionError("a stream ends with Answered, or raises")


def check_question(question: str) -> str:
    if not question.strip():
        raise UserError("the question is empty: ask something, for example `What is MCP?`")
    if len(question) > LONGEST_QUESTION:
        raise UserError(
            f"the question has {len(question):,} characters and {LONGEST_QUESTION:,} are allowed: shorten it"
        )
    return question.strip()
