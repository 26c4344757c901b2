"""What background calls gain: the shapes of calls that the papers on asynchronous function calling (AsyncFC) and on
compiling plans (LLMCompiler) measure, played on virtual time, once with all calls in the foreground and once with calls
in the background. The numbers are exact, because nothing waits for real.

The model thinks before each message (`THINKS`), and answers in a few words that it waits (`WAITS`). In the background,
a later call has the handle of an earlier one as its argument, so a plan is written in one go. `best` is the critical
path: what a scheduler could reach that knows all durations, with the same thinking before each message.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from unbroken import Agent, Request, ScriptedModel, Tool, tool
from unbroken_testing import Call, Pause, run_virtual
from unbroken_wires.messages import Assistant

THINKS = 1.5
WAITS = 0.4


@dataclass(frozen=True, slots=True)
class Step:
    """One call: how long its tool takes, and the numbers of the calls whose results it needs, from 0."""

    seconds: float
    needs: tuple[int, ...] = ()


Plan = list[list[Step]]
"""The messages of the model, in order, each with its calls."""

SHAPES: dict[str, Plan] = {
    "parallel: 4 searches in one message": [[Step(4.0), Step(6.0), Step(3.0), Step(5.0)]],
    "one by one: 4 searches, a message each": [[Step(6.0)], [Step(6.0)], [Step(6.0)], [Step(6.0)]],
    "chain: each needs the one before": [[Step(4.0)], [Step(4.0, (0,))], [Step(4.0, (1,))], [Step(4.0, (2,))]],
    "two chains, written in turn": [
        [Step(5.0)],
        [Step(5.0)],
        [Step(5.0, (0,))],
        [Step(5.0, (1,))],
        [Step(5.0, (2,))],
        [Step(5.0, (3,))],
    ],
    "map and reduce: 6 pages, 2 summaries, 1 report": [
        [Step(3.0), Step(8.0), Step(4.0), Step(3.0), Step(5.0), Step(4.0)],
        [Step(4.0, (0, 2, 3)), Step(4.0, (1, 4, 5))],
        [Step(5.0, (6, 7))],
    ],
    "DAG: uneven branches that join": [
        [Step(12.0), Step(2.0)],
        [Step(3.0, (1,)), Step(2.0)],
        [Step(4.0, (2, 3))],
        [Step(2.0, (0, 4))],
    ],
    "one slow job beside quick steps": [
        [Step(30.0)],
        *([Step(1.0)] for _ in range(8)),
        [Step(2.0, (0,))],
    ],
}


def worker(background: float | None) -> Tool:
    @tool(effect="read", timeout=None, background=background)
    async def work(number: int, seconds: float, needs: list[str]) -> str:
        """Works for so many seconds."""
        await asyncio.sleep(seconds)
        return f"result {number}"

    return work


def script(plan: Plan) -> ScriptedModel:
    """Plays the plan, then answers; the answer depends on nothing but the history."""
    messages: list[list[Any]] = []
    number = 0
    for steps in plan:
        calls: list[Any] = [Pause(THINKS)]
        for step in steps:
            needs = [f"$call_{each + 1}" for each in step.needs]
            calls.append(Call("work", number=number, seconds=step.seconds, needs=needs))
            number += 1
        messages.append(calls)

    def answer(request: Request) -> Any:
        said = sum(isinstance(message, Assistant) for message in request.messages)
        return messages[said] if said < len(messages) else [Pause(WAITS), "That is all so far."]

    return ScriptedModel(answer)


def play(plan: Plan, background: float | None) -> float:
    agent = Agent(script(plan), [worker(background)])
    return run_virtual(agent.run("Go.")).seconds


def best(plan: Plan) -> float:
    """The critical path: each message as early as the model can write it, each call as early as its needs are met."""
    ends: list[float] = []
    for place, steps in enumerate(plan):
        written = (place + 1) * THINKS
        ends += [max([written, *(ends[need] for need in step.needs)]) + step.seconds for step in steps]
    return max(*ends, len(plan) * THINKS) + WAITS


def main() -> None:
    print(f"{'shape':48} {'calls':>5} {'foreground':>11} {'background':>11} {'gain':>6} {'of best':>8}")
    for name, plan in SHAPES.items():
        calls = sum(map(len, plan))
        before, now, bound = play(plan, None), play(plan, 0.0), best(plan)
        print(f"{name:48} {calls:5} {before:9.1f} s {now:9.1f} s {before / now:5.2f}x {now / bound:7.2f}x")


if __name__ == "__main__":
    main()
