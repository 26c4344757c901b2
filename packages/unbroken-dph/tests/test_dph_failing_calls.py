"""Failing and repeated calls of `/explore/`: what stops the block, what gives the model another round, and which calls
are answered without their tool."""

from __future__ import annotations

from typing import Any

import pytest
from scenes import Desk

from unbroken import CallFinished, CallStarted, Metrics, ScriptedModel
from unbroken.tools.results import Retry
from unbroken_dph import BlockFinished, InBlock, ProgramEvent, ProgramFailed, ProgramResult, run_program
from unbroken_testing import Call, Cut, run_virtual

pytestmark = pytest.mark.multi_tool_call

ALL_FAILED = "All tool calls failed. Please check the error messages and try again."
BROKEN = Call("broken")


def explore(desk: Desk, arguments: str, *answers: Any) -> tuple[ProgramResult, list[ProgramEvent]]:
    """One block with the tools of a desk."""

    def unsure(**arguments: Any) -> str:
        raise Retry("say it in English")

    def seen(**arguments: Any) -> int:
        return len(desk.executions)

    tools = [desk.tool("broken", fails="no connection"), desk.tool("good", "fine"), desk.tool("unsure", unsure)]
    tools += [desk.tool("look", seen, effect="read"), desk.tool("put")]
    events: list[ProgramEvent] = []

    async def main() -> ProgramResult:
        run = run_program(f"/explore/({arguments}) Go. -> r", ScriptedModel(*answers), tools)
        events.extend([event async for event in run])
        return run.result

    return run_virtual(main), events


def stop_reason(events: list[ProgramEvent]) -> str:
    return next(event.stop_reason for event in events if isinstance(event, BlockFinished))


@pytest.mark.parametrize("calls", [[BROKEN], [BROKEN, Call("broken", n=1)], [BROKEN, BROKEN]])
@pytest.mark.parametrize("schedule", ["sequential", "parallel", "eager"])
def test_if_all_calls_of_a_response_fail_the_block_stops(schedule: str, calls: list[Any]) -> None:
    result, events = explore(Desk(), f'tool_execution="{schedule}"', calls, "Never said.")
    assert (result.value["answer"], stop_reason(events), result.requests) == (ALL_FAILED, "tool_failure", 1)
    assert [block.name for block in result.failed_blocks] == ["r"]


MISTAKES = {
    "unknown tool": [Call("brokn")],
    "cut arguments": Cut("good", '{"n": '),
    "a mistake beside a failure": [BROKEN, Call("nothing")],
    "a success beside a failure": [BROKEN, Call("good")],
    "asks for a retry": [Call("unsure")],
}


@pytest.mark.parametrize("answer", MISTAKES.values(), ids=MISTAKES)
def test_anything_else_gives_the_model_another_round(answer: Any) -> None:
    result, events = explore(Desk(), "", answer, "I see.")
    assert (result.value["answer"], stop_reason(events), result.requests) == ("I see.", "answered", 2)
    assert (result.failed_blocks, any(call["error"] for call in result.value["calls"])) == ((), True)


def test_arguments_that_do_not_fit_give_the_model_another_round() -> None:
    def place(city: str) -> str:
        return city

    async def main() -> ProgramResult:
        return await run_program("/explore/ Go. -> r", ScriptedModel([Call("place", town="Oslo")], "I see."), [place])

    result = run_virtual(main)
    assert (result.value["answer"], result.value["calls"][0]["error"]) == ("I see.", True)


def test_the_block_may_continue_after_failures() -> None:
    result, events = explore(Desk(), 'on_all_failed="continue"', [BROKEN], "It failed.")
    assert (result.value["answer"], stop_reason(events), result.failed_blocks) == ("It failed.", "answered", ())


def test_in_text_mode_a_failure_stops_nothing_unless_the_block_says_so() -> None:
    text = "=>#broken: {}"
    assert explore(Desk(), 'mode="prompt"', text, "It failed.")[0].value["answer"] == "It failed."
    assert explore(Desk(), 'mode="prompt", on_all_failed="stop"', text)[0].value["answer"] == ALL_FAILED


def test_a_block_with_a_format_has_no_value_if_all_calls_failed() -> None:
    with pytest.raises(ProgramFailed, match=r"All tool calls failed\..* The last one: Error: no connection"):
        explore(Desk(), 'output="json"', [BROKEN])


def executed(events: list[ProgramEvent]) -> tuple[list[str], list[str]]:
    """The names of the calls that started, and of those that shared a result."""
    inner = [event.event for event in events if isinstance(event, InBlock)]
    return (
        [event.name for event in inner if isinstance(event, CallStarted)],
        [event.name for event in inner if isinstance(event, CallFinished) and event.duplicate_of],
    )


def test_a_call_of_an_earlier_round_is_not_executed_again() -> None:
    desk = Desk()
    result, events = explore(desk, "", [Call("good")], [Call("good"), Call("good", n=2)], [Call("good", n=2)], "Done.")
    assert [arguments for _, arguments in desk.ran] == [{}, {"n": 2}]
    assert [call["result"] for call in result.value["calls"]] == ["fine"] * 4
    assert executed(events) == (["good", "good"], ["good", "good"])
    metrics = Metrics()
    for event in events:
        if isinstance(event, InBlock):
            metrics(event.event)
    assert (metrics.tool_calls, metrics.tool_executions, metrics.duplicates_shared) == (4, 2, 2)


def test_a_failed_call_is_executed_again() -> None:
    desk = Desk()
    explore(desk, 'on_all_failed="continue"', [BROKEN], [BROKEN], "Done.")
    assert len(desk.executions) == 2


def test_a_read_after_a_change_is_executed_again() -> None:
    desk = Desk()
    answers = [[Call("look")], [Call("look")], [Call("put")], [Call("look")], [Call("put")], "Done."]
    result, _ = explore(desk, "", *answers)
    assert [name for name, _ in desk.ran] == ["look", "put", "look"]
    assert [call["result"] for call in result.value["calls"]] == ["1", "1", "ok", "3", "ok"]


def test_without_the_deduplicator_every_round_executes_its_calls() -> None:
    desk = Desk()
    explore(desk, "enable_skill_deduplicator=false", [Call("good")], [Call("good")], "Done.")
    assert len(desk.executions) == 2
