"""The arguments of blocks: which blocks accept each argument, and what its value must be. A literal value is checked
before the program runs, any other when it is known."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from unbroken_dph.syntax import NAME, VARIABLE
from unbroken_dph.values import LARGEST, Missing, in_text, kind_of, step_into
from unbroken_wires.messages import Json

MODES = ("tool_call", "prompt")
EXECUTIONS = ("sequential", "parallel", "eager")
ON_ALL_FAILED = ("stop", "continue")
OUTPUTS = ("json", "jsonl", "list_str")
TYPED = "obj/"
"""The prefix of a type name in `output`."""


@dataclass(frozen=True, slots=True)
class ArgumentRule:
    blocks: tuple[str, ...]
    expects: str
    """For error messages."""
    fits: Callable[[Any], bool]


_ALL, _TOOLED = ("prompt", "explore", "judge"), ("explore", "judge")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_switch(value: Any) -> bool:
    return isinstance(value, bool)


def _is_history(value: Any) -> bool:
    if isinstance(value, list):
        return all(_is_message(one) for one in cast("list[Any]", value))
    return isinstance(value, bool)


def _is_message(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    message = cast("dict[str, Any]", value)
    return message.get("role") in ("user", "assistant", "system") and isinstance(message.get("content"), str)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) and one for one in cast("list[Any]", value))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_output(value: Any) -> bool:
    return value in OUTPUTS or (isinstance(value, str) and value.startswith(TYPED) and len(value) > len(TYPED))


ARGUMENTS: Mapping[str, ArgumentRule] = {
    "model": ArgumentRule(_ALL, 'the name of a model, such as "openai:gpt-5"', _is_text),
    "system_prompt": ArgumentRule(_ALL, "a text", lambda value: isinstance(value, str)),
    "history": ArgumentRule(_ALL, 'true, false, or a list of {"role": …, "content": …}', _is_history),
    "output": ArgumentRule(("prompt", "explore"), 'one of "json", "jsonl", "list_str", "obj/Type"', _is_output),
    "tools": ArgumentRule(_TOOLED, "a list of names and patterns, such as [search, fs.*]", _are_names),
    "mode": ArgumentRule(("explore",), f"one of {', '.join(MODES)}", lambda value: value in MODES),
    "tool_choice": ArgumentRule(_TOOLED, '"auto", "required", "none" or the name of a tool', _is_text),
    "multi_tool_calls": ArgumentRule(("explore",), "true or false", _is_switch),
    "tool_execution": ArgumentRule(("explore",), f"one of {', '.join(EXECUTIONS)}", lambda value: value in EXECUTIONS),
    "max_rounds": ArgumentRule(("explore",), "a whole number from 0", _is_count),
    "enable_skill_deduplicator": ArgumentRule(("explore",), "true or false", _is_switch),
    "on_all_failed": ArgumentRule(
        ("explore",), f"one of {', '.join(ON_ALL_FAILED)}", lambda value: value in ON_ALL_FAILED
    ),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """The arguments of a block with their values. None if an argument was not given."""

    model: str | None = None
    system_prompt: str = ""
    history: bool | list[dict[str, str]] = False
    output: str | None = None
    tools: list[str] | None = None
    mode: Literal["tool_call", "prompt"] = "tool_call"
    tool_choice: str | None = None
    multi_tool_calls: bool | None = None
    tool_execution: Literal["sequential", "parallel", "eager"] = "sequential"
    max_rounds: int | None = None
    enable_skill_deduplicator: bool = True
    on_all_failed: Literal["stop", "continue"] | None = None
    given: tuple[str, ...] = field(default=(), compare=False)


def unknown(block: str, name: str) -> str:
    """The error message for an argument that a block does not accept; empty if it does."""
    rule = ARGUMENTS.get(name)
    if rule is not None and block in rule.blocks:
        return ""
    taken = [known for known, other in ARGUMENTS.items() if block in other.blocks]
    close = difflib.get_close_matches(name, taken, n=1)
    meant = f"did you mean `{close[0]}`?" if close else f"it accepts: {', '.join(taken)}"
    return f"`/{block}/` has no argument `{name}`; {meant}"


def unfit(name: str, value: Json) -> str:
    """The error message for a value that an argument cannot have; empty if it can."""
    rule = ARGUMENTS[name]
    if rule.fits(value):
        return ""
        return ""
    shown = repr(value)[:60] if isinstance(value, str | int | float) else kind_of(value)
    return f"`{name}` must be {rule.expects}, not {shown}"


# Variables in texts: `$name`, `$name.key` and `$name[0]` are replaced in prompts and in quoted strings. Unknown
# variables stay as they are, because a text may contain `$HOME` or `$5`.


_STEP = re.compile(r"\.(" + NAME + r")|\[(-?\d{1,9})\]|\[\"([^\"\n]*)\"\]|\['([^'\n]*)'\]")


class TooLong(ValueError):
    """The text becomes too long."""


def fill(text: str, variables: Mapping[str, Json]) -> str:
    if "$" not in text:
        return text
    parts: list[str] = []
    at = size = 0
    for found in VARIABLE.finditer(text):
        parts += (text[at : found.start()], _filled(found, variables))
        at = found.end()
        size += len(parts[-1])
        if size > LARGEST:
            raise TooLong("the text becomes too long with its variables")
    return "".join([*parts, text[at:]])


def _filled(found: re.Match[str], variables: Mapping[str, Json]) -> str:
    if found[1] not in variables:
        return found.group()
    value, rest = variables[found[1]], found[2]
    taken = 0
    for step in _STEP.finditer(rest):
        try:
            key = next(key for key in step.groups() if key is not None)
            value = step_into(value, int(key) if step[2] else key)
        except Missing:
            if isinstance(value, dict | list):
                return found.group()  # a key was expected: leave the variable in the text
            break  # a string or a number has no keys: `$file.txt` is a name and a file extension
        taken = step.end()
    return in_text(value) + rest[taken:]
