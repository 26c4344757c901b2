"""When calls run: the schedule, keys, and what a tool promises."""

from typing import Any

from unbroken import Agent, Schedule, ScriptedModel, tool
from unbroken_testing import Call


def path_of(arguments: dict[str, Any]) -> str:
    return str(arguments["path"])


@tool(key=path_of)
def append(path: str, line: str) -> int:
    """Append a line."""
    return len(line)


@tool(effect="exclusive", timeout=None)
def reset() -> str:
    """Start again."""
    return "reset"


for schedule in (Schedule.SEQUENTIAL, Schedule.PARALLEL, Schedule.EAGER):
    model = ScriptedModel([Call("append", path="a", line="x"), Call("reset")], "Done.")
    assert Agent(model, [append, reset], schedule=schedule).run_sync("Go.").output == "Done."
assert Agent(ScriptedModel("Done."), schedule="parallel", several_calls=False).run_sync("Go.").rounds == 0
