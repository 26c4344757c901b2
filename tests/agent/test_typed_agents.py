"""`Agent[Deps, Output]` is generic: pyright infers both in a user's code, and rejects mismatches."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typed_agents

ROOT = Path(__file__).parents[2]


def pyright(*files: Path) -> list[dict[str, Any]]:
    run = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--project", str(ROOT), *map(str, files)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    return json.loads(run.stdout)["generalDiagnostics"]


def test_the_types_of_answers_and_deps_are_inferred() -> None:
    assert pyright(Path(typed_agents.__file__)) == []


@pytest.mark.parametrize(
    "program",
    [
        typed_agents.plain,
        typed_agents.with_a_type,
        typed_agents.with_a_way_to_answer,
        typed_agents.with_a_type_that_is_named,
        typed_agents.with_deps,
    ],
)
def test_type_checkers_infer_the_real_types(program: Any) -> None:
    program()


def test_a_type_mismatch_is_an_error_for_the_type_checker(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "from unbroken import Agent\n"
        "agent = Agent('openai:gpt-5', output=int, deps=3)\n"
        "agent.run_sync('x', deps='three')\n"
        "agent.run_sync('x').output.upper()\n"
    )
    found = pyright(wrong)
    assert {each["range"]["start"]["line"] for each in found} == {2, 3}
