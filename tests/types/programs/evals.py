"""Cases and scorers, your own among them."""

import asyncio

from unbroken import Agent, Result, ScriptedModel
from unbroken_testing.evals import Case, Scorer, contains, evaluate, fits


def short(case: Case, result: Result) -> bool:
    return len(result.output) < 20


async def rated(case: Case, result: Result) -> float:
    return 1.0 if result.output else 0.0


agent = Agent(ScriptedModel("Rome is warm."))
case = Case("rome", "How is Rome?", [contains("warm"), short, Scorer(rated, threshold=0.5), fits(str)], tags=["smoke"])
evaluation = asyncio.run(evaluate(agent, [case]))
assert evaluation.passed
