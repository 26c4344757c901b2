"""The code "before" of docs/moving runs too: each library in an environment of its own, against the scripted server.

`make test-moving` makes the environments and runs this; the default tests need none of them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from moving.page_code import MODEL_KEY, PAGES, ROOT, add_to_path, check, prepare_folder, read_pairs
from moving.topics import TOPICS, results_of
from unbroken import Request, ToolMessage
from unbroken_testing import Answer, Call, serve

RUN = """
import json, sys
names = {"__name__": "__before__"}
exec(compile(sys.stdin.read(), "before", "exec", dont_inherit=True), names)
outcome = {name: names[name] for name in sys.argv[2:]}
with open(sys.argv[1], "w") as file:
    json.dump(outcome, file, default=lambda value: value.model_dump())
"""
CASES = [(library, name) for library in PAGES for name in read_pairs(library)]


def run(library: str, code: str, names: list[str], base_url: str, folder: Path) -> tuple[dict[str, object], str]:
    """The variables at the end of the code, and what it printed."""
    python = ROOT / ".venv" / f"moving-{library}" / "bin" / "python"
    path = add_to_path(os.environ["PATH"], python)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    ended = subprocess.run(
        [python, "-W", "ignore", "-c", RUN, "outcome.json", *names],  # warnings of the libraries are theirs
        env={**kept, **MODEL_KEY, "PATH": path, "OPENAI_BASE_URL": base_url, "ANTHROPIC_BASE_URL": base_url},
        cwd=folder,
        input=code,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads((folder / "outcome.json").read_text("utf-8")), ended.stdout


@pytest.mark.parametrize(("library", "name"), CASES)
def test_the_code_before_does_what_its_topic_says(library: str, name: str, tmp_path: Path) -> None:
    topic = TOPICS[name]
    prepare_folder(tmp_path, old_mcp=library == "langgraph")  # langchain-mcp-adapters needs mcp 1
    with serve(*topic.answers, scripts=topic.scripts) as server:
        code = read_pairs(library)[name].before
        outcome, printed = run(library, code, [*topic.outcome], server.base_url(), tmp_path)
    check(topic, outcome, printed, server)


def test_chats_that_pydantic_ai_stored_continue(tmp_path: Path) -> None:
    python = ROOT / ".venv" / "moving-pydantic-ai" / "bin" / "python"
    program = Path(__file__).with_name("stored_chat.py")
    ended = subprocess.run(
        [python, "-W", "ignore", program],
        env={"PATH": os.environ["PATH"]},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "3 checks passed\n"), ended.stderr


def weather(request: Request) -> Answer:
    if isinstance(request.messages[-1], ToolMessage):
        return "Go to Rome."
    return [Call("get_weather", city="Rome"), Call("get_weather", city="Oslo")]


def test_the_hand_written_anthropic_loop_gives_the_same_answer(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "moving" / "from-an-anthropic-loop.md").read_text("utf-8")
    (code,) = re.findall(r"^```py\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    answers = (
        Call("search", query="MCP"),
        Call("search", query="prerequisites"),
        "A protocol for tools; you need Python.",
    )
    with serve(*answers) as server:
        outcome, _ = run("anthropic", code, ["text"], server.base_url("anthropic-messages"), tmp_path)
    assert outcome == {"text": "A protocol for tools; you need Python."}
    assert [body["tool_choice"] for body in server.bodies] == [{"type": kind} for kind in ("auto", "auto", "none")]
    with serve(*answers) as server:  # the tools left out of the last request
        bare = re.sub(
            r"^ +tools=tools,\n +tool_choice=.*\n", "**({} if last else {'tools': tools}),\n", code, flags=re.M
        )
        with pytest.raises(AssertionError, match="calls or results in a request without tools"):
            run("anthropic", bare, ["text"], server.base_url("anthropic-messages"), tmp_path)


def test_the_hand_written_loop_gives_the_same_answer(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "moving" / "from-a-loop.md").read_text("utf-8")
    (code,) = re.findall(r"^```py\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    with serve(weather) as server:
        outcome, _ = run("openai-agents", code, ["text"], server.base_url(), tmp_path)
    assert outcome == {"text": "Go to Rome."}
    assert results_of(server.requests[1]) == ["sunny", "snow"]
