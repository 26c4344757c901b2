"""The user tasks of AgentDojo (`agentdojo`): an office, a bank, a chat and a travel agency. The reference solution of a
task is a list of calls; its own runner makes one after another. Here all calls of a task are in one message."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any

from proof.replaying import Declared, Step, Task, World
from unbroken.tools.schema import Signature
from unbroken.tools.tool import Tool
from unbroken_wires.messages import ToolSpec

VERSION = "v1.2.2"
SUITES = ("workspace", "travel", "banking", "slack")
READS = ("check_", "get_", "list_", "read_", "search_")
NOT_READS = {"get_unread_emails"}  # it marks them as read
NOW = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d\.\d+")
OBJECTS = {"calendar": "inbox", "reservation": "user"}
"""Tools of a calendar also send mail, and reservations belong to a user: their calls must not run side by side."""


def tasks(suite_name: str) -> list[Task]:
    suite = _suite(suite_name)
    return [_task(suite, task) for task in suite.user_tasks.values()]


def _task(suite: Any, task: Any) -> Task:
    calls = task.ground_truth(_environment(suite, task))
    step = Step(task.PROMPT, tuple((call.function, dict(call.args)) for call in calls))
    reference = _Reference(suite, task)
    return Task(f"{suite.name} {task.ID}", (step,), lambda: _World(suite, task, reference))


def _environment(suite: Any, task: Any) -> Any:
    return task.init_environment(_loaded(suite.name).model_copy(deep=True))


@cache
def _loaded(suite_name: str) -> Any:
    return _suite(suite_name).load_and_inject_default_environment({})


def _suite(name: str) -> Any:
    return importlib.import_module("agentdojo.task_suite").get_suite(VERSION, name)


def _without_now(value: Any) -> Any:
    """Mails and files carry the time at which they were written: the only microseconds that there are."""
    return NOW.sub("now", str(value))


class _Reference:
    """The benchmark's own run of the reference solution: the results of its calls, and the environment after it."""

    def __init__(self, suite: Any, task: Any) -> None:
        self._suite = suite
        self._task = task

    @cached_property
    def outcome(self) -> tuple[list[str], Any]:
        pipelines = importlib.import_module("agentdojo.agent_pipeline")
        runtime = importlib.import_module("agentdojo.functions_runtime").FunctionsRuntime(self._suite.tools)
        environment = _environment(self._suite, self._task)
        solved = pipelines.GroundTruthPipeline(self._task).query(self._task.PROMPT, runtime, environment)
        results = [message["content"][0]["content"] for message in solved[3] if message["role"] == "tool"]
        return results, environment


class _World(World):
    def __init__(self, suite: Any, task: Any, reference: _Reference) -> None:
        self._suite = suite
        self._task = task
        self._reference = reference
        self._environment = _environment(suite, task)

    def tools(self, declared: Declared) -> list[Tool]:
        runtime = importlib.import_module("agentdojo.functions_runtime").FunctionsRuntime(self._suite.tools)
        return [_as_tool(function, runtime, self._environment, declared) for function in self._suite.tools]

    def difference(self, results: Sequence[str]) -> str:
        expected, environment = self._reference.outcome
        ours, theirs = self._environment.model_dump(mode="json"), environment.model_dump(mode="json")
        for name in theirs:
            if _without_now(ours[name]) != _without_now(theirs[name]):
                return f"state: {name} differs"
        for at, (one, other) in enumerate(zip(results, expected, strict=True)):
            if _without_now(one) != _without_now(other):
                return f"result of call {at}: {one[:200]} | {other[:200]}"
        before = _environment(self._suite, self._task)
        calls = self._task.ground_truth(before)
        solved = self._task.utility_from_traces(self._task.GROUND_TRUTH_OUTPUT, before, self._environment, calls)
        if solved is None:
            solved = self._task.utility(self._task.GROUND_TRUTH_OUTPUT, before, self._environment)
        return "" if solved else "the benchmark does not accept the solution"


def _as_tool(function: Any, runtime: Any, environment: Any, declared: Declared) -> Tool:
    as_text = importlib.import_module("agentdojo.agent_pipeline.tool_execution").tool_result_to_str

    def call(**arguments: Any) -> str:
        result, _ = runtime.run_function(environment, function.name, arguments, raise_on_error=True)
        return as_text(result)

    schema = function.parameters.model_json_schema()
    spec = ToolSpec(function.name, function.description, schema)
    signature = Signature.of_schema(function.name, function.description, schema)
    if declared == "wrong":
        return Tool(spec, call, signature, effect="read", dedupe=False)
    reads = function.name.startswith(READS) and function.name not in NOT_READS
    names = sorted(dependency.env_dependency for dependency in function.dependencies.values())
    key = names and OBJECTS.get(names[0], names[0])
    return Tool(spec, call, signature, effect="read" if reads else "write", key=lambda _: key)
