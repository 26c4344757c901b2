"""Processes that are killed (SIGKILL) in the middle of a recorded run, while they pay, so that it is unknown whether it
happened."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unbroken import Agent, Result, ScriptedModel, tool
from unbroken.models.scripted import Answer, Call
from unbroken.tools.context import CallContext
from unbroken_testing import run_virtual
from unbroken_wires.messages import Assistant, Request

UNKNOWN = (
    "Error: outcome unknown: the run stopped while this call was running, and it may have taken effect; "
    "check whether it did before you call it again"
)


def script(request: Request) -> Answer:
    paid = any(isinstance(message, Assistant) for message in request.messages)
    return "Done." if paid else [Call("pay", amount=5, id="a")]


def payer(done: Path, kills: bool = False, **options: Any) -> Agent:
    """Its tool records what it did and with which key; `kills` ends the process right after."""
    settings = {name: options.pop(name) for name in ("after_crash", "effect", "approve") if name in options}

    @tool(**settings)
    async def pay(amount: int, context: CallContext[Any]) -> str:
        with done.open("a") as file:
            file.write(f"{amount} {context.key}\n")
        if kills:
            os.kill(os.getpid(), signal.SIGKILL)
        return f"paid {amount}"

    return Agent(ScriptedModel(script), [pay], **options)


def in_a_child(work: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def killed(tmp_path: Path, **options: Any) -> tuple[Path, Path]:
    """A run whose process died in the middle of its payment: what was done, and the recording."""
    done, record = tmp_path / "done", tmp_path / "run.jsonl"
    dying = payer(done, True, record=record, **options)
    assert in_a_child(lambda: run_virtual(lambda: dying.run("Pay.", run_id="r"))) == signal.SIGKILL
    assert len(done.read_text().splitlines()) == 1
    return done, record


def resumed(done: Path, record: Path, answers: dict[str, Any] | None = None, **options: Any) -> Result:
    return run_virtual(lambda: payer(done, **options).resume(record, answers or {}))


def executions(done: Path) -> int:
    return len(done.read_text().splitlines())
