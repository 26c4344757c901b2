"""What has changed in an agent since a run was driven last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unbroken.agent.output import ANSWER
from unbroken.middleware import RunStart
from unbroken.tools.toolbox import Toolbox
from unbroken.trajectory.lines import Line, tool_fields
from unbroken.trajectory.recording import Recording

_PARTS = {
    "description": "description",
    "parameters": "parameters",
    "effect": "effect",
    "approve": "whether it needs approval",
    "after_crash": "handling after a crash",
    "client": "where it runs",
    "queue": "queue",
}
"""What is compared of a tool."""


def compare(before: Recording, now: RunStart, instructions: str | None, toolbox: Toolbox) -> list[str]:
    """One sentence for each difference; none if there is none."""
    found: list[str] = []
    model, schedule = before.model, str(before.settings.get("schedule", ""))
    tools: list[Line] | None = None
    for line in before.lines:
        if line["line"] == "resumed":
            model, schedule = str(line.get("model") or model), str(line.get("schedule") or schedule)
        elif line["line"] == "tools":
            tools = line["tools"]
    if model != now.model:
        found.append(f"the model is `{now.model}`, it was `{model}`")
    if schedule != now.settings.get("schedule"):
        found.append(f"the schedule is `{now.settings.get('schedule')}`, it was `{schedule}`")
    if _answer_type(before.settings) != _answer_type(now.settings):
        found.append("the type of the answer is different")
    if before.requests and instructions is not None and _instructions(before) != instructions:
        found.append("the instructions are different")
    if tools is not None:
        found += _compare_tools(tools, [tool_fields(tool) for tool in toolbox])
    return found


def _answer_type(settings: Mapping[str, Any]) -> Line | None:
    output: Line | None = settings.get("output")
    return output["schema"] if output else None


def _compare_tools(before: list[Line], now: list[Line]) -> list[str]:
    old = {tool["name"]: tool for tool in before if tool["name"] != ANSWER}
    new = {tool["name"]: tool for tool in now if tool["name"] != ANSWER}
    found = [f"tool `{name}` is gone" for name in old if name not in new]
    found += [f"tool `{name}` is new" for name in new if name not in old]
    for name in (name for name in old if name in new):
        parts = [words for part, words in _PARTS.items() if part in old[name] and old[name][part] != new[name][part]]
        if parts:
            found.append(f"tool `{name}` has changed: {', '.join(parts)}")
    return found


def _instructions(recording: Recording) -> str:
    first = recording.requests[-1].messages[:1]
    if not first or first[0].get("role") != "system":
        return ""
    content = first[0].get("content")
    return content if isinstance(content, str) else "".join(str(part.get("text", "")) for part in content or ())
