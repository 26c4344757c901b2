"""The todo list."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from unbroken.events import Event, TodoUpdated
from unbroken.tools.context import CallContext
from unbroken.tools.schema import ArgumentsDoNotFit
from unbroken.tools.todo import todo_write

STEPS = [
    {"content": "look", "status": "completed"},
    {"content": "build", "status": "in_progress"},
    {"content": "test", "status": "pending"},
]


def write(todos: list[Any], store: dict[str, Any], said: list[Any]) -> str:
    def say(kind: type[Event], *fields: Any) -> None:
        said.append((kind, *fields))

    context = CallContext[Any](call_id="call_1", name="todo_write", store=store, say=say)
    return asyncio.run(todo_write(**todo_write.signature.bind({"todos": todos}), context=context))


def test_the_list_is_kept_reported_and_answered() -> None:
    store: dict[str, Any] = {}
    said: list[Any] = []
    assert write(STEPS, store, said) == ("1 pending, 1 in progress, 1 completed:\n[x] look\n[>] build\n[ ] test")
    assert store == {"todos": STEPS}
    assert said == [(TodoUpdated, -1, "call_1", "todo_write", STEPS)]


def test_each_call_replaces_the_list() -> None:
    store: dict[str, Any] = {"todos": STEPS}
    assert write([], store, []) == "The list is empty now."
    assert store == {"todos": []}


def test_the_event_is_not_changed_by_what_happens_to_the_list() -> None:
    store: dict[str, Any] = {}
    said: list[Any] = []
    write(STEPS, store, said)
    store["todos"][0]["content"] = "changed"
    assert said[0][4][0]["content"] == "look"


def test_an_invalid_status_is_reported() -> None:
    with pytest.raises(ArgumentsDoNotFit, match=r"`todos\[0\].status`: Input should be 'pending'"):
        todo_write.signature.bind({"todos": [{"content": "x", "status": "later"}]})


def test_the_model_sees_one_parameter() -> None:
    assert list(todo_write.spec.parameters["properties"]) == ["todos"]
    assert todo_write.effect == "write"
