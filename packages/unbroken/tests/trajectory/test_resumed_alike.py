"""A resumed run is the run that was not interrupted: its recording is cut where its process could have died, and a new
agent continues it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unbroken import Agent, Allow, Result, Retry, RetryingModel, ScriptedModel, ToolCall, Wait, tool
from unbroken_testing import Break, Call, Pause, Uses, run_virtual


@tool(effect="read")
async def look(x: str) -> str:
    """Looks."""
    return f"saw {x}"


@tool
async def book(day: str) -> str:
    """Books."""
    if day != "Friday":
        raise Retry("closed")
    return "booked"


def wait(call: ToolCall) -> Wait:
    return Wait()


def allow(call: ToolCall) -> Allow:
    return Allow()


def cut_after(path: Path, mark: bytes) -> None:
    """After the last line that has this mark."""
    lines = path.read_bytes().splitlines(keepends=True)
    last = max(number for number, line in enumerate(lines) if mark in line)
    path.write_bytes(b"".join(lines[: last + 1]))


def paying(paid: list[str]) -> Any:
    @tool(approve=True)
    async def pay(x: str = "") -> str:
        """Pays."""
        paid.append(x)
        if x == "fails":
            raise OSError("no")
        return "paid"

    return pay


def test_a_call_never_gets_the_result_of_another_one_whose_id_it_has(tmp_path: Path) -> None:
    """Local servers number their calls from 0 in each answer."""
    paid: list[str] = []
    path = tmp_path / "r.jsonl"

    @tool
    async def send(x: str) -> str:
        """Sends."""
        paid.append(x)
        return f"sent {x}"

    broken = [Call("look", x="first", id="call_0"), Pause(0.3), Break("gone")]
    again = [Call("look", x="slow", id="s"), Call("send", x="5", id="call_0")]

    def agent(*answers: Any, **more: Any) -> Agent[Any, Any]:
        return Agent(RetryingModel(ScriptedModel(*answers)), [look, send], **more)

    run_virtual(agent(broken, again, "Done.", record=path).run("Go."))
    paid.clear()
    cut_after(path, b'"event":"tool_calls_detected"')
    result = run_virtual(agent("Done.").resume(path))
    assert [(call.id, call.result.text) for call in result.calls] == [("s", "saw slow"), ("call_0", "sent 5")]
    assert paid == ["5"]


@pytest.mark.parametrize("mark", ['"delta":"ended"', '"event":"tool_calls_detected"', '"event":"call_adopted"'])
def test_an_attempt_that_broke_off_with_calls_alone_counts_the_same_after_a_crash(mark: str, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    script = (
        [Call("look", x="first", id="a"), Pause(0.3), Break("gone")],
        [Call("look", x="first", id="c"), Call("look", x="second", id="b"), Uses(100, 10)],
        ["Done.", Uses(100, 10)],
    )

    def agent(*answers: Any, **more: Any) -> Agent[Any, Any]:
        return Agent(RetryingModel(ScriptedModel(*answers)), [look], **more)

    whole = run_virtual(agent(*script, record=path).run("Go."))
    lines = path.read_bytes().splitlines(keepends=True)
    places = [place for place, line in enumerate(lines) if mark.encode() in line]
    path.write_bytes(b"".join(lines[: places[0] + 1]))
    result = run_virtual(agent(script[2]).resume(path))
    assert (result.usage, result.attempts) == (whole.usage, whole.attempts)
    assert counted(result) == counted(whole) == (1, 0, 2, 0)


def counted(result: Result[Any]) -> tuple[int, int, int, int]:
    metrics = result.metrics
    return metrics.adopted, metrics.dropped, metrics.tool_executions, metrics.outside


def approved(path: Path, agent: Callable[..., Agent[Any, Any]], *calls: Any) -> Result[Any]:
    """The run waits for an approval, gets it, and its process dies before it asks the model again."""
    run_virtual(agent(calls, record=path).run("Go."))
    run_virtual(agent("Main answers.").resume(path, {"p": Allow()}))
    cut_after(path, b'"event":"round_finished"')
    return run_virtual(agent("Main answers.").resume(path))


def test_a_hand_off_beside_a_call_that_waited_takes_place_after_a_crash_behind_it(tmp_path: Path) -> None:
    paid: list[str] = []

    def agent(*answers: Any, **more: Any) -> Agent[Any, Any]:
        billing = Agent(ScriptedModel("Billing answers."), name="billing")
        return Agent(ScriptedModel(*answers), [paying(paid)], handoffs=[billing], on_approval=wait, **more)

    result = approved(tmp_path / "r.jsonl", agent, Call("pay", x="5", id="p"), Call("transfer_to_billing", id="t"))
    assert (result.text, result.agent, len(result.handoffs)) == ("Billing answers.", "billing", 1)
    assert paid == ["5"]


def test_a_failed_call_that_waited_ends_the_run_after_a_crash_behind_it(tmp_path: Path) -> None:
    paid: list[str] = []

    def agent(*answers: Any, **more: Any) -> Agent[Any, Any]:
        return Agent(ScriptedModel(*answers), [paying(paid)], on_error="finish", on_approval=wait, **more)

    result = approved(tmp_path / "r.jsonl", agent, Call("pay", x="fails", id="p"))
    assert (result.stop_reason, paid) == ("tool_failure", ["fails"])


def test_a_background_result_that_came_behind_a_wait_reaches_the_model_after_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"

    @tool(effect="read", background=0)
    async def crawl(x: str) -> str:
        """Crawls."""
        await asyncio.sleep(5)
        return "The pages."

    def agent(model: ScriptedModel, **more: Any) -> Agent[Any, Any]:
        return Agent(model, [crawl, paying([])], on_approval=wait, **more)

    script = ScriptedModel([Call("crawl", x="1", id="c")], [Call("pay", id="p")])
    run_virtual(agent(script, record=path).run("Go."))
    run_virtual(agent(ScriptedModel("Done.")).resume(path, {"p": Allow()}))
    cut_after(path, b'"event":"result_arrived"')
    model = ScriptedModel("Done.")
    result = run_virtual(agent(model).resume(path))
    assert result.background[0].delivered
    assert "The pages." in repr(model.requests[-1].messages)


@pytest.mark.parametrize("way", ["its result", "its saved result", "its recording"])
def test_a_run_that_waits_counts_retries_and_repeated_calls_on(way: str, tmp_path: Path) -> None:
    def rounds(*days: str) -> list[list[Call]]:
        return [[Call("book", day=day), Call("look", x="same")] for day in days]

    first = [*rounds("a", "b"), [Call("book", day="c"), Call("look", x="same"), Call("pay", id="p")]]
    then = [*rounds("d", "Friday"), "Done."]

    def agent(*answers: Any, **more: Any) -> Agent[Any, Any]:
        return Agent(ScriptedModel(*answers), [book, look, paying([])], **more)

    def seen(result: Result[Any]) -> list[tuple[str, str]]:
        return [(call.outcome, call.result.text) for call in result.calls if call.name != "pay"][-4:]

    whole = run_virtual(agent(*first, *then, on_approval=allow).run("Go."))
    path = tmp_path / "r.jsonl"
    waits = run_virtual(agent(*first, on_approval=wait, record=path if way == "its recording" else None).run("Go."))
    saved: Any = {"its result": waits, "its saved result": waits.to_json(), "its recording": path}[way]
    result = run_virtual(agent(*then).resume(saved, {"p": Allow()}))
    assert (result.stop_reason, seen(result)) == (whole.stop_reason, seen(whole))
    assert [call.outcome for call in whole.calls if call.name == "book"][-1] == "not_executed"
