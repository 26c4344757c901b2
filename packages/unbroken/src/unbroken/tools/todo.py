"""`todo_write`: a list of what is to be done that a model keeps for itself, and that people can watch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from unbroken.events import TodoUpdated
from unbroken.tools.context import CallContext
from unbroken.tools.tool import tool

TODOS = "todos"
"""Where the list is kept in the store of the conversation."""

_MARKS = {"pending": "[ ]", "in_progress": "[>]", "completed": "[x]"}


@dataclass(frozen=True, slots=True)
class Todo:
    """One step: what is to be done, and how far it is."""

    content: str
    status: Literal["pending", "in_progress", "completed"]


@tool(after_crash="rerun")  # each call replaces the list
async def todo_write(todos: list[Todo], context: CallContext[Any]) -> str:
    """Write the list of steps of the current task, for work that takes several of them.

    Each call replaces the whole list: give every step, also the completed ones. Have one step in_progress at a time,
    and mark a step completed as soon as it is done, not several at the end. Leave the tool out where one step does.

    Args:
        todos: All steps, in the order in which they are to be done.
    """
    saved = [asdict(todo) for todo in todos]
    context.store[TODOS] = saved
    context.say(TodoUpdated, context.number, context.call_id, context.name, [dict(todo) for todo in saved])
    if not todos:
        return "The list is empty now."
    counts = {status: sum(todo.status == status for todo in todos) for status in _MARKS}
    told = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in counts.items() if count)
    return "\n".join([f"{told}:", *(f"{_MARKS[todo.status]} {todo.content}" for todo in todos)])
