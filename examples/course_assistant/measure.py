"""Measures what one and two rounds cost: `python -m course_assistant.measure DIR` asks the three example questions with
a budget of two rounds and of one, records each run in DIR, and prints a table from the recordings.

The seconds are simulated, not measured: on virtual time, the scripted model takes 0.8 s for each request and a search
0.2 s, so the table shows the effect of the rounds. Tokens are estimated from the texts that were really sent.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from course_assistant.assistant import PRICES, CourseAssistant
from course_assistant.chunks import Chunk
from course_assistant.courses import Course
from course_assistant.library import MOST_HITS, CourseLibrary
from course_assistant.tours import TOURS, scripted_model
from unbroken import RunFinished, Usage, UserError
from unbroken.trajectory.recording import list_recordings, read_recording
from unbroken_testing import run_virtual

A_REQUEST, A_SEARCH = 0.8, 0.2
EXAMPLES = tuple(TOURS[number] for number in (0, 2, 4))


class SlowLibrary(CourseLibrary):
    """As slow as a search over a network."""

    async def search(
        self, query: str, course: Course | None = None, lesson: int | None = None, limit: int = MOST_HITS
    ) -> list[Chunk]:
        await asyncio.sleep(A_SEARCH)
        return await super().search(query, course, lesson, limit)


async def record(folder: Path) -> None:
    with SlowLibrary.open() as library:
        for budget in (1, 2):
            model = scripted_model(thinks=A_REQUEST)
            assistant = CourseAssistant(model, library, max_tool_rounds=budget, record=folder / str(budget))
            for example in EXAMPLES:
                await assistant.ask(example.question)


def table(folder: Path) -> str:
    lines = [
        "| question | budget | rounds | requests | tokens in + out | cost | seconds |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for example in EXAMPLES:
        for budget in (1, 2):
            found = next(one for one in list_recordings(folder / str(budget)) if one.prompt == example.question)
            usage = _usage(found.path)
            cells = (
                example.question,
                budget,
                found.rounds,
                found.requests,
                f"{usage.input_tokens:,} + {usage.output_tokens:,}",
                f"${PRICES.of(usage):.4f}",
                f"{found.seconds:.1f}",
            )
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def _usage(path: Path) -> Usage:
    end = read_recording(path).ending
    assert isinstance(end, RunFinished)
    return Usage(**end.usage)


def main(folder: Path) -> None:
    try:
        run_virtual(record(folder))
    except UserError as error:
        sys.exit(f"course_assistant.measure: {error}")
    sys.stdout.write(table(folder) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "recordings"))
