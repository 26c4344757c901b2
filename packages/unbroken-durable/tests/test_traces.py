"""Traces across processes: all drives of a run are in one trace, or linked to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from in_loop import in_loop
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from unbroken import Agent, Allow, OpenTelemetry, ScriptedModel, tool
from unbroken_durable import drive, open_journal
from unbroken_testing import Call


class Process:
    """Has its own telemetry, as another process has."""

    def __init__(self, *answers: Any, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider(**options)
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))

        @tool(approve=True)
        def refund(order: int) -> str:
            """Refund."""
            return "refunded"

        self.agents = {"a": Agent(ScriptedModel(*answers), [refund], middleware=[OpenTelemetry(self.tracers)])}

    def drives(self) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == "invoke_agent main"]


def ids(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def above(span: ReadableSpan) -> tuple[int, int] | None:
    return (span.parent.trace_id, span.parent.span_id) if span.parent is not None else None


async def drive_twice(folder: Path, first: Process, second: Process) -> None:
    url = f"sqlite:///{folder}/runs.db"
    async with await open_journal(url) as journal:
        assert (await drive(first.agents, journal, "r")).state == "waiting"
    async with await open_journal(url) as journal:
        await journal.answer("r", {"c": Allow()})
        assert (await drive(second.agents, journal, "r")).state == "answered"


@in_loop
async def test_a_later_drive_is_below_the_span_of_the_first(tmp_path: Path) -> None:
    first, second = Process([Call("refund", order=7, id="c")]), Process("Done.")
    async with await open_journal(f"sqlite:///{tmp_path}/runs.db") as journal:
        await journal.start("a", "Refund.", run_id="r")
    await drive_twice(tmp_path, first, second)
    (one,), (two,) = first.drives(), second.drives()
    assert (above(one), above(two)) == (None, ids(one))


@in_loop
async def test_all_drives_are_below_the_span_in_which_the_run_was_started(tmp_path: Path) -> None:
    first, second = Process([Call("refund", order=7, id="c")]), Process("Done.")
    async with await open_journal(f"sqlite:///{tmp_path}/runs.db") as journal:
        with first.tracers.get_tracer("test").start_as_current_span("request") as request:
            for _ in range(2):  # the second start changes nothing
                await journal.start("a", "Refund.", run_id="r")
    await drive_twice(tmp_path, first, second)
    context = request.get_span_context()
    for process in (first, second):
        (span,) = process.drives()
        assert above(span) == (context.trace_id, context.span_id)


@in_loop
async def test_a_drive_inside_of_another_span_is_linked_to_the_trace_of_the_run(tmp_path: Path) -> None:
    first, second = Process([Call("refund", order=7, id="c")]), Process("Done.")
    async with await open_journal(f"sqlite:///{tmp_path}/runs.db") as journal:
        await journal.start("a", "Refund.", run_id="r")
        await drive(first.agents, journal, "r")
        await journal.answer("r", {"c": Allow()})
        with second.tracers.get_tracer("test").start_as_current_span("activity") as activity:
            await drive(second.agents, journal, "r")
    (one,), (two,) = first.drives(), second.drives()
    assert above(two) == (activity.get_span_context().trace_id, activity.get_span_context().span_id)
    assert [(link.context.trace_id, link.context.span_id) for link in two.links] == [ids(one)]


@in_loop
async def test_a_run_that_was_not_sampled_stays_so(tmp_path: Path) -> None:
    first, second = Process([Call("refund", order=7, id="c")], sampler=ALWAYS_OFF), Process("Done.")
    async with await open_journal(f"sqlite:///{tmp_path}/runs.db") as journal:
        await journal.start("a", "Refund.", run_id="r")
    await drive_twice(tmp_path, first, second)
    assert (first.drives(), second.drives()) == ([], [])
