"""Runs in numbers: each checked by hand against the events, and the sum against every way to split the runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import a_long_run
import pytest
import test_resume_recording as set_table
from broken_runs import play, schedules, scripts, wires
from checkout import DOCS
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from strategies import costly

from unbroken import (
    Agent,
    Allow,
    CallFinished,
    Event,
    Limits,
    Prices,
    Result,
    RetryingModel,
    Schedule,
    ScriptedModel,
    Wait,
    tool,
)
from unbroken.errors import ChainBroken, Unavailable, UserError
from unbroken.events import (
    CallAdopted,
    CallDropped,
    CallStarted,
    RequestRetried,
    RequestSent,
    RunFailed,
    RunFinished,
    RunStarted,
    ToolCallsDetected,
)
from unbroken.models.scripted import Answer, Break, Call, Fail, Pause, Say, Uses
from unbroken.trajectory.counted import MOST_TOOLS, OTHER_TOOLS
from unbroken.trajectory.counting import MOST_FAILED
from unbroken.trajectory.histogram import Histogram
from unbroken.trajectory.metrics import NUMBERS, Metrics
from unbroken.trajectory.prometheus import PrometheusMetrics
from unbroken.trajectory.recorder import Recorder
from unbroken.trajectory.recording import read_recording
from unbroken_testing import run_virtual
from unbroken_wires.messages import Assistant, Request

PRICES = Prices(input=2.0, output=10.0)


@tool(effect="read")
async def look(path: str, seconds: float = 0.5) -> str:
    """Looks."""
    await asyncio.sleep(seconds)
    return f"looked at {path}"


@tool(approve=True)
async def delete(path: str) -> str:
    """Deletes."""
    await asyncio.sleep(0.25)
    return f"deleted {path}"


@tool
async def fail(path: str) -> str:
    """Fails."""
    raise ValueError(path)


def heard(script: Sequence[Answer], **options: Any) -> tuple[Result, list[Event]]:
    events: list[Event] = []

    async def main() -> Result:
        agent = Agent(
            RetryingModel(ScriptedModel(*script), first_wait=0.0), [look, delete, fail], sinks=[events.append]
        )
        return await agent.run("Go.", **options)

    return run_virtual(main), events


def only(kind: type[Any], events: Sequence[Event]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


# The long run, by hand


@pytest.fixture(scope="module")
def long_run() -> tuple[Result, list[Event]]:
    events: list[Event] = []
    return a_long_run.play(sinks=[events.append]), events


def test_the_queries_of_the_long_run(long_run: tuple[Result, list[Event]]) -> None:
    metrics = Metrics.of(long_run[1])
    assert (metrics.queries, metrics.answered, metrics.failed) == (1, 1, 0)
    assert (metrics.waiting, metrics.unended) == (0, 0)
    # 2.1 s for the first round, 1.7 for the second, 0.25 for the third, 0.5 for the answer
    assert metrics.avg_query_latency == pytest.approx(2.1 + 1.7 + 0.25 + 0.5)
    assert metrics.avg_tool_rounds_per_query == 3.0
    assert metrics.rounds == {3: 1}
    assert metrics.to_json()["queries_with_3_rounds"] == 1
    # three rounds and the answer; the second was requested twice, because its response broke
    assert (metrics.requests, metrics.retries, metrics.restarts) == (4, 1, 1)
    assert len(only(RequestSent, long_run[1])) == 4
    assert len(only(RequestRetried, long_run[1])) == 1
    assert (metrics.tool_chain_broken, metrics.tool_chain_broken_rate) == (1, 1.0)


def test_the_calls_of_the_long_run(long_run: tuple[Result, list[Event]]) -> None:
    metrics = Metrics.of(long_run[1])
    # 3 + 3 + 2 calls in three turns, each of which had several
    assert metrics.tool_calls == 3 + 3 + 2
    assert metrics.tool_calls_per_turn == 8 / 3
    assert metrics.turns == {3: 2, 2: 1}
    assert metrics.multi_tool_call_count == 3
    # the second `weather` of the first turn shared the first; `events_on` of the second was adopted, and ran once
    assert (metrics.duplicates_shared, metrics.adopted, metrics.dropped) == (1, 1, 0)
    assert metrics.tool_executions == 8 - 1
    assert len(only(CallStarted, long_run[1])) == 7
    # weather 0.5, events_on 1.5 | events_on 1.5, map_of 1.0, weather 0.5 | book 0.25 twice
    assert metrics.tool_execution_time_total == 0.5 + 1.5 + 1.5 + 1.0 + 0.5 + 0.25 + 0.25
    assert sum(event.seconds for event in only(CallFinished, long_run[1])) == metrics.tool_execution_time_total
    assert metrics.tool_execution_time_max == 1.5
    # `map_of` timed out
    assert (metrics.tool_failures, metrics.tool_failure_rate) == (1, 1 / 7)
    assert (metrics.refused, metrics.outside) == (0, 0)


def test_the_long_run_saved_time_by_early_starts(long_run: tuple[Result, list[Event]]) -> None:
    early = [event for event in only(CallStarted, long_run[1]) if event.early]
    starts = [(event.name, round(event.time - a_long_run.START, 6)) for event in early]
    assert starts == [("weather", 0.3), ("events_on", 0.6), ("events_on", 2.3), ("map_of", 2.7), ("weather", 2.7)]
    # the responses ended at 0.6 and, the second one, at 2.7; nothing had ended by then
    assert Metrics.of(long_run[1]).early_seconds_saved == pytest.approx((0.6 - 0.3) + 0 + (2.7 - 2.3) + 0 + 0)


def test_the_tools_of_the_long_run(long_run: tuple[Result, list[Event]]) -> None:
    tools = Metrics.of(long_run[1]).tools
    counted = {
        name: (each.calls, each.executions, each.failures, each.seconds.seconds, each.seconds.max)
        for name, each in tools.items()
    }
    assert counted == {
        "weather": (3, 2, 0, 1.0, 0.5),
        "events_on": (2, 2, 0, 3.0, 1.5),
        "map_of": (1, 1, 1, 1.0, 1.0),
        "book": (2, 2, 0, 0.5, 0.25),
    }
    assert tools["weather"].duplicates == 1
    assert tools["events_on"].adopted == 1
    assert tools["map_of"].failure_rate == 1.0
    assert tools["weather"].seconds.steps == {500_000_000: 2}


def test_the_tokens_of_the_long_run(long_run: tuple[Result, list[Event]]) -> None:
    metrics = Metrics.of(long_run[1], prices=PRICES)
    # the four complete answers report these; the broken one reported nothing, and is estimated at 213 and 10
    assert metrics.input_tokens == 100 + 200 + 300 + 400 + 213
    assert metrics.output_tokens == 20 + 30 + 40 + 50 + 10
    assert metrics.tokens == 1363
    assert metrics.tokens_estimated
    assert metrics.cost == pytest.approx((1213 * 2.0 + 150 * 10.0) / 1_000_000)


def test_a_result_has_the_metrics_of_its_run_with_and_without_a_sink(long_run: tuple[Result, list[Event]]) -> None:
    result, events = long_run
    assert result.metrics == Metrics.of(events)
    assert a_long_run.play().metrics == Metrics.of(events)


def test_a_recording_has_the_metrics_of_its_run(long_run: tuple[Result, list[Event]], tmp_path: Path) -> None:
    a_long_run.play(tmp_path / "run.jsonl")
    assert Metrics.of(read_recording(tmp_path / "run.jsonl").events) == Metrics.of(long_run[1])


# Any run


@given(scripts, schedules, wires)
def test_the_metrics_of_a_result_are_those_of_its_events(script: list[Answer], schedule: Schedule, wire: str) -> None:
    limits = Limits(rounds=8, prices=PRICES)
    played = run_virtual(lambda: play(script, schedule, wire, limits=limits), a_long_run.START)
    metrics = Metrics.of(played.events, prices=PRICES)
    assert metrics.queries == 1
    assert metrics.tool_executions == len(played.world.executions)
    assert metrics.tool_executions == len(only(CallStarted, played.events))
    if played.result is not None:
        assert played.result.metrics == metrics
        assert metrics.tool_calls == len(played.result.calls)
        assert metrics.requests == played.result.requests


@costly
@given(st.lists(st.tuples(scripts, schedules, wires), min_size=2, max_size=4), st.data())
def test_any_split_of_runs_adds_up_to_the_same(runs: list[tuple[Any, Any, Any]], data: st.DataObject) -> None:
    limits = Limits(rounds=8)
    played = [
        run_virtual(lambda each=each: play(*each, limits=limits), a_long_run.START + place)
        for place, each in enumerate(runs)
    ]
    for place, each in enumerate(played):
        for event in each.events:
            event.run = f"run-{place}"
    # the runs are interleaved, each in its own order
    turns = data.draw(st.permutations([place for place, each in enumerate(played) for _ in each.events]))
    queues = [iter(each.events) for each in played]
    all_events = [next(queues[place]) for place in turns]
    halves = data.draw(st.lists(st.booleans(), min_size=len(runs), max_size=len(runs)))
    here = [event for event in all_events if halves[int(event.run[4:])]]
    there = [event for event in all_events if not halves[int(event.run[4:])]]
    whole = Metrics.of(all_events, prices=PRICES)
    one, other = Metrics.of(here, prices=PRICES), Metrics.of(there, prices=PRICES)
    assert one + other == whole == other + one
    one_by_one = sum((Metrics.of(each.events, prices=PRICES) for each in played), Metrics())
    assert one_by_one == whole


# What is counted when


def test_a_refused_call_is_a_call_but_not_an_execution() -> None:
    result, events = heard([[Call("odd"), Call("delete", path="a"), Call("look", path="a")], "Done."])
    metrics = Metrics.of(events)
    assert metrics == result.metrics
    assert (metrics.tool_calls, metrics.refused, metrics.tool_executions) == (3, 2, 1)
    assert (metrics.tool_failures, metrics.tool_failure_rate) == (0, 0.0)
    assert metrics.tools["odd"].refused == 1
    assert metrics.tools["delete"].executions == 0


def test_a_dropped_call_is_an_execution_but_neither_a_call_nor_a_failure() -> None:
    broken: Answer = [Call("look", path="a", seconds=5.0), Pause(1.0), Break()]
    result, events = heard([broken, [Call("look", path="b")], "Done."])
    metrics = Metrics.of(events)
    assert metrics == result.metrics
    assert [(event.call, event.seconds) for event in only(CallFinished, events)] == [(0, 1.0), (1, 0.5)]
    assert [event.call for event in only(CallDropped, events)] == [0]
    assert (metrics.dropped, metrics.tool_calls, metrics.tool_executions) == (1, 1, 2)
    assert metrics.tool_failures == 0
    assert metrics.tool_execution_time_total == 1.5
    assert metrics.early_seconds_saved == 0.0  # the second one came with the complete answer, at once


def test_a_call_that_ended_before_its_response_broke_runs_and_saves_once() -> None:
    broken: Answer = [Call("look", path="a"), Pause(2.0), Break()]
    result, events = heard([broken, [Call("look", path="a")], "Done."])
    told = only(CallFinished, events)
    (adopted,) = only(CallAdopted, events)
    assert [event.call for event in told] == [adopted.adopted, adopted.call]  # each has its end
    metrics = Metrics.of(events)
    assert metrics == result.metrics
    assert (metrics.tool_calls, metrics.tool_executions, metrics.adopted) == (1, 1, 1)
    assert metrics.tool_execution_time_total == 0.5
    assert metrics.early_seconds_saved == 0.5  # to its own end, which was before that of the response


def test_a_busy_provider_does_not_break_the_chain() -> None:
    result, events = heard([[Fail(Unavailable("busy", status=503))], "Done."])
    metrics = Metrics.of(events)
    assert metrics == result.metrics
    assert (metrics.retries, metrics.restarts, metrics.tool_chain_broken) == (1, 0, 0)


def test_a_query_that_fails_is_counted_with_its_rounds_and_broken_responses() -> None:
    events: list[Event] = []

    async def main() -> None:
        script: list[Answer] = [[Call("fail", path="a")], [Say("I"), Break()]]
        model = RetryingModel(ScriptedModel(*script, loop_last=True), first_wait=0.0)
        with pytest.raises(Exception, match="broke"):
            await Agent(model, [fail], sinks=[events.append]).run("Go.")

    run_virtual(main)
    metrics = Metrics.of(events)
    assert (metrics.queries, metrics.failed, metrics.outcomes) == (1, 1, {"failed": 1})
    assert metrics.rounds == {1: 1}
    assert (metrics.tool_executions, metrics.tool_failures) == (1, 1)
    # three tries, two of which were followed by another
    assert (metrics.restarts, metrics.tool_chain_broken) == (2, 3)
    assert metrics.latency.count == 0
    assert metrics.tokens == 0


def test_a_run_that_is_cancelled_is_not_a_failure() -> None:
    metrics = Metrics()

    async def main() -> None:
        task = asyncio.create_task(Agent(ScriptedModel([Call("look", path="a")]), [look], sinks=[metrics]).run("Go."))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_virtual(main)
    assert (metrics.queries, metrics.failed, metrics.outcomes) == (1, 0, {"cancelled": 1})
    assert metrics.unended == 0


# Runs that are resumed


def waiting_and_resumed(saved: bool) -> tuple[Result, list[Event], Result, list[Event]]:
    """A run that waits for an approval, and its continuation; in the same process, or from a saved state."""
    first: list[Event] = []
    second: list[Event] = []

    def agent(events: list[Event]) -> Agent:
        script: list[Answer] = [
            [Call("look", path="a"), Call("delete", path="b"), Uses(100, 10)],
            ["Done.", Uses(200, 20)],
        ]
        model = ScriptedModel(*(script if events is first else script[1:]))
        limits = Limits(prices=PRICES)
        return Agent(model, [look, delete], sinks=[events.append], limits=limits, on_approval=lambda call: Wait())

    async def main() -> tuple[Result, Result]:
        waiting = await agent(first).run("Go.", run_id="r")
        given: Any = waiting.to_json() if saved else waiting
        return waiting, await agent(second).resume(given, {waiting.pending[0].id: Allow()})

    waiting, result = run_virtual(main)
    return waiting, first, result, second


def test_a_waiting_run_is_not_a_query_yet_but_its_tokens_are_counted() -> None:
    waiting, events, _, _ = waiting_and_resumed(saved=False)
    metrics = Metrics.of(events, prices=PRICES)
    assert metrics == waiting.metrics
    assert (metrics.queries, metrics.waiting, metrics.tool_calls, metrics.tool_executions) == (0, 1, 2, 1)
    assert (metrics.input_tokens, metrics.output_tokens) == (100, 10)
    assert metrics.avg_query_latency == metrics.avg_tool_rounds_per_query == 0.0


def test_a_run_that_waited_and_was_resumed_counts_once() -> None:
    _, first, result, second = waiting_and_resumed(saved=False)
    metrics = Metrics.of([*first, *second], prices=PRICES)
    assert metrics == result.metrics
    assert (metrics.queries, metrics.waiting, metrics.rounds) == (1, 0, {1: 1})
    assert (metrics.requests, metrics.tool_calls, metrics.tool_executions) == (2, 2, 2)
    assert (metrics.input_tokens, metrics.output_tokens) == (100 + 200, 10 + 20)
    assert metrics.cost == pytest.approx((300 * 2.0 + 30 * 10.0) / 1_000_000)
    assert metrics.avg_query_latency == pytest.approx(0.5 + 0.25)


def test_a_run_that_was_resumed_in_another_process_counts_once_when_both_are_added() -> None:
    _, first, result, second = waiting_and_resumed(saved=True)
    one, other = Metrics.of(first, prices=PRICES), Metrics.of(second, prices=PRICES)
    assert result.metrics == other  # of the first part only the sums were saved
    assert other.input_tokens == 300
    assert other.tool_calls == 0
    assert one + other == Metrics.of([*first, *second], prices=PRICES) == other + one


def test_a_run_whose_process_died_anywhere_is_resumed_and_counts_once(tmp_path: Path) -> None:
    set_table.play(tmp_path / "done", tmp_path / "whole.jsonl")
    lines = (tmp_path / "whole.jsonl").read_bytes().splitlines(keepends=True)
    whole = Metrics.of(read_recording(tmp_path / "whole.jsonl").events)
    for place in [place for place, line in enumerate(lines) if line.startswith(b'{"line":"event"')][1:]:
        file = tmp_path / f"cut-{place}.jsonl"
        file.write_bytes(b"".join(lines[:place]))
        assert Metrics.of(read_recording(file).events).unended == 1
        set_table.resume(tmp_path / "done", file)
        metrics = Metrics.of(read_recording(file).events)
        counted = ("queries", "unended", "requests", "tool_calls", "tool_executions", "tool_failures")
        for name in (*counted, "rounds", "turns"):
            assert getattr(metrics, name) == getattr(whole, name), f"{name}, cut at line {place}"
        assert metrics.tokens >= whole.tokens  # an answer that was cut off is paid, too


def test_a_query_that_failed_and_was_resumed_counts_once(tmp_path: Path) -> None:
    file, fails = tmp_path / "run.jsonl", [True]

    def script(request: Request) -> Answer:
        if fails and any(isinstance(message, Assistant) for message in request.messages):
            return [Say("I"), Break()]
        return set_table.script(request)

    async def main() -> Result:
        agent = Agent(RetryingModel(ScriptedModel(script), first_wait=0.0), set_table.tools(tmp_path / "done"))
        with pytest.raises(ChainBroken):
            await agent.run("Go.", sinks=[Recorder(file)])
        failed = Metrics.of(read_recording(file).events)
        assert (failed.outcomes, failed.rounds, failed.tool_chain_broken) == ({"failed": 1}, {1: 1}, 3)
        fails.clear()
        return await agent.resume(file)

    run_virtual(main)
    events = read_recording(file).events
    metrics = Metrics.of(events)
    assert (metrics.outcomes, metrics.rounds) == ({"answered": 1}, {2: 1})
    assert (metrics.requests, metrics.tool_calls, metrics.avg_tool_rounds_per_query) == (3, 5, 2.0)
    assert metrics.tool_chain_broken >= 2
    assert metrics.tool_chain_broken_rate == 1.0


def test_a_request_and_a_refused_call_that_a_resumed_run_repeats_count_once() -> None:
    listed: list[dict[str, Any]] = [{"call": 0, "id": "a", "name": "look", "arguments": {}}]
    refused = CallFinished("r", 0, 4, 1.0, 0, "a", "look", 0.0, True, "no", "not_executed")
    events: Sequence[Event] = [
        RunStarted("r", 0, 0, 1.0, "m", "eager"),
        RequestSent("r", 0, 1, 1.0, 1, 1, False),
        ToolCallsDetected("r", 0, 2, 1.0, 1, ["look"], listed),
        CallStarted("r", 0, 3, 1.0, 0, "a", "look", {}),
        refused,
        RequestSent("r", 1, 5, 1.0, 3, 1, False),  # its process died before this one was in the recording
        RunStarted("r", 0, 6, 2.0, "m", "eager"),
        RequestSent("r", 0, 7, 2.0, 1, 1, False),
        CallAdopted("r", 0, 8, 2.0, 1, "a", "look", 0),
        ToolCallsDetected("r", 0, 9, 2.0, 1, ["look"], [{**listed[0], "call": 1}]),
        CallStarted("r", 0, 10, 2.0, 1, "a", "look", {}),
        replace(refused, seq=11, call=1),
        RequestSent("r", 1, 12, 2.0, 3, 1, False),
    ]
    metrics = Metrics.of(events)
    assert (metrics.requests, metrics.tool_calls, metrics.refused, metrics.tool_executions) == (2, 1, 1, 0)
    registry = CollectorRegistry()
    sink = PrometheusMetrics(registry)
    for event in events:
        sink.on_event(event)
    # a counter cannot decrease: this one has counted the request that was repeated
    assert registry.get_sample_value("unbroken_model_requests_total") == 3


# Keeping it small


def test_an_event_from_two_sinks_counts_once() -> None:
    metrics = Metrics()
    a_long_run.play(sinks=[metrics, metrics])
    assert metrics == a_long_run.play().metrics


def test_unknown_tool_names_beyond_a_hundred_are_counted_together() -> None:
    metrics = Metrics()
    for number in range(MOST_TOOLS + 50):
        told = number, f"call_{number}", f"odd_{number}", 0.0, True, "no", "not_executed"
        metrics(CallFinished("r", 0, number, 0.0, *told))
    assert len(metrics.tools) == MOST_TOOLS + 1
    assert metrics.tools[OTHER_TOOLS].refused == 50
    assert metrics.refused == MOST_TOOLS + 50
    assert len((metrics + metrics).tools) == MOST_TOOLS + 1


def test_memory_per_run_does_not_grow() -> None:
    metrics = Metrics()
    for number in range(10 * MOST_FAILED):
        metrics(RunStarted(f"r{number}", 0, 0, 0.0, "m", "eager"))
        metrics(RunFailed(f"r{number}", 0, 1, 0.0, "ProviderError", "gone"))
    assert metrics.failed == 10 * MOST_FAILED
    counter = metrics._counter  # pyright: ignore[reportPrivateUsage] - what is kept is what is asked about
    assert (len(counter.failed), len(counter.active), len(counter.waiting)) == (MOST_FAILED, 0, 0)


def test_every_number_is_documented() -> None:
    page, reference = ((DOCS / name).read_text("utf-8") for name in ("metrics.md", "reference/recordings.md"))
    assert [name for name in NUMBERS if f"`{name}`" not in page] == []
    assert [name for name in NUMBERS if f"- `{name}`: " not in reference] == []  # it is written from the docstrings


def test_a_histogram_keeps_two_digits_and_the_rest_is_exact() -> None:
    histogram = Histogram()
    for milliseconds in range(1, 1001):
        histogram.add(milliseconds * 1_000_000)
    assert (histogram.count, histogram.seconds, histogram.max) == (1000, 500.5, 1.0)
    assert histogram.quantile(0.5) == 0.5
    assert histogram.quantile(0.95) == 0.95
    assert histogram.quantile(0.951) == 0.96
    assert histogram.quantile(1.0) == 1.0
    assert histogram.cumulative([0.1, 0.25, 1.0]) == [100, 250, 1000]
    assert len(histogram.steps) == 99 + 90 + 1
    assert Histogram().quantile(0.5) == Histogram().mean == 0.0


@given(st.lists(st.integers(0, 10**17), max_size=50), st.floats(0, 1))
def test_a_quantile_is_at_most_a_tenth_too_high(durations: list[int], share: float) -> None:
    histogram = Histogram()
    for duration in durations:
        histogram.add(duration)
    if not durations:
        return
    exact = sorted(durations)[max(ceil(share * len(durations)), 1) - 1]
    clamped = min(max(exact, 10_000), 10**15)
    assert min(clamped, max(durations)) / 1e9 <= histogram.quantile(share) <= max(1.1 * clamped / 1e9, 1e-5)


def test_failed_runs_with_one_id_count_separately() -> None:
    metrics = Metrics()
    for seq in (0, 0, 0):
        metrics(RunStarted("job", 0, seq, 1.0, "m", "eager"))
        metrics(RunFailed("job", 0, 1, 2.0, "ProviderError", "no"))
    assert (metrics.queries, metrics.failed) == (3, 3)
    metrics(RunStarted("job", 0, 2, 3.0, "m", "eager"))  # this one continues: its event numbers continue
    assert (metrics.queries, metrics.unended) == (2, 1)


def test_a_tool_that_ended_with_its_cancelled_run_has_not_failed() -> None:
    @tool(effect="read")
    async def wait_long() -> str:
        "Waits."
        await asyncio.sleep(30)
        return "done"

    metrics = Metrics()

    async def main() -> None:
        task = asyncio.create_task(Agent(ScriptedModel([Call("wait_long")]), [wait_long], sinks=[metrics]).run("Go."))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_virtual(main)
    assert (metrics.outcomes, metrics.tool_executions, metrics.tool_failures) == ({"cancelled": 1}, 1, 0)


def test_a_client_that_disconnected_counts_as_abandoned() -> None:
    metrics = Metrics.of([RunFailed("r", 0, 1, 2.0, "ClientGone", "the client went away")])
    assert metrics.outcomes == {"cancelled": 1}


def test_queries_by_rounds_are_a_metric_for_any_number() -> None:
    metrics = Metrics()
    assert (metrics.queries_with_2_rounds, metrics.to_json()["queries_with_2_rounds"]) == (0, 0)
    metrics.rounds[2] = 5
    assert (metrics.queries_with_2_rounds, getattr(metrics, "queries_with_3_rounds")) == (5, 0)  # noqa: B009 - no field
    with pytest.raises(AttributeError, match="there is no metric 'speed'"):
        getattr(metrics, "speed")  # noqa: B009 - there is none


def test_only_metrics_can_be_added_and_json_is_not_accepted_as_events() -> None:
    with pytest.raises(TypeError):
        _ = Metrics() + 5  # pyright: ignore[reportOperatorIssue] - that is what is tried
    one = Metrics.of([RunFailed("r", 0, 1, 2.0, "ProviderError", "no")])
    assert sum([one, one], 0 + one).failed == 3
    with pytest.raises(UserError, match="read it with event_from_json"):
        Metrics.of([{"event": "run_started"}])  # pyright: ignore[reportArgumentType] - that is what is tried


def test_unfinished_runs_are_added_up_in_linear_time() -> None:
    def adding(count: int) -> float:
        metrics, began = Metrics(), time.process_time()
        for number in range(count):
            metrics += Metrics.of([RunStarted(str(number), 0, 0, 1.0, "m", "eager")])
        assert metrics.unended == count
        return time.process_time() - began

    adding(100)
    assert adding(2_000) < 2.0  # it was a minute


def test_negative_times_and_invalid_tokens_count_as_zero() -> None:
    usage = {"input_tokens": "abc", "output_tokens": float("inf"), "cached_tokens": -3}
    end = RunFinished("r", 0, 1, 2.0, "", "answered", 0, 1, 0, usage, -3.0)  # pyright: ignore[reportArgumentType] - of a recording
    metrics = Metrics.of([end], prices=Prices(1e308, 1e308))
    assert (metrics.avg_query_latency, metrics.tokens, metrics.cost) == (0.0, 0, 0.0)
    end.usage = {"input_tokens": 10**14}
    assert Metrics.of([end], prices=Prices(1e308, 1e308)).cost == 0.0
    end.usage = {"input_tokens": 10**9}
    assert Metrics.of([end], prices=Prices(1e300, 1e300)).cost is None
