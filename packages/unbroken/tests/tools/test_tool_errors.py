"""What a model reads when a tool raises: the text of the exception without passwords, or with `tool_errors="safe"` its
type alone."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from scenes import accepted, play, play_aloud, texts

from unbroken import Agent, CallFinished, Policy, ScriptedModel, ToolFailed, UserError, tool
from unbroken.errors import without_passwords
from unbroken_testing import Call

DSN = "postgresql://shop:s3cr3t-pa@ss@db.internal:5432/orders"


@tool
def query() -> str:
    """Ask the database."""
    raise ConnectionError(f"could not connect to {DSN}")


@tool
async def pay() -> str:
    """Pay."""
    raise ToolFailed("the card was refused; ask for another one")


def test_passwords_in_addresses_never_reach_the_model(caplog: pytest.LogCaptureFixture) -> None:
    model = ScriptedModel(Call("query"), "Done.")
    with caplog.at_level(logging.DEBUG):
        result, events = play_aloud(Agent(model, [query]))
    assert texts(result) == ["Error: could not connect to postgresql://shop:***@db.internal:5432/orders"]
    assert "s3cr3t" not in repr((model.bodies, result.messages, events, caplog.text))


def test_in_safe_mode_the_model_reads_the_type_and_the_log_the_text(caplog: pytest.LogCaptureFixture) -> None:
    model = ScriptedModel([Call("query"), Call("pay")], "Done.")
    with caplog.at_level(logging.ERROR, "unbroken.tools"):
        result, events = play_aloud(Agent(model, [query, pay], policy=Policy(tool_errors="safe")))
    first, second = texts(result)
    assert first == "Error: the tool failed (ConnectionError); the details are not shown here"
    assert second == "Error: the card was refused; ask for another one"
    assert "ConnectionError: could not connect to postgresql://shop:***@" in caplog.text
    assert "s3cr3t" not in caplog.text
    assert "db.internal" not in repr((model.bodies, [event for event in events if isinstance(event, CallFinished)]))
    accepted(model, result)


@pytest.mark.parametrize("hook", ["key", "approve"])
def test_errors_of_approvers_and_keys_are_safe_too(hook: str) -> None:
    def fails(arguments: dict[str, Any]) -> Any:
        raise ValueError("no such table: customers")

    look = tool(name="look", key=fails if hook == "key" else None, approve=fails if hook == "approve" else False)
    result = play(
        Agent(ScriptedModel(Call("look"), "Done."), [look(lambda: "seen")], policy=Policy(tool_errors="safe"))
    )
    assert "ValueError" in texts(result)[0]
    assert "customers" not in texts(result)[0]


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(UserError, match="tool_errors='silent'"):
        Agent(ScriptedModel(), policy=Policy(tool_errors="silent"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("redis://:hunter2@cache:6379/0", "redis://:***@cache:6379/0"),
        ("https://a:b@c/d?e=f@g", "https://a:***@c/d?e=f@g"),
        ("http://host:8080/path?mail=a@b", "http://host:8080/path?mail=a@b"),
        ("see https://host/x and amqp://u:p@q", "see https://host/x and amqp://u:***@q"),
        ("mail a@b: no address", "mail a@b: no address"),
    ],
)
def test_only_the_password_is_masked(text: str, masked: str) -> None:
    assert without_passwords(text) == masked
