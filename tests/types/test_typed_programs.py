"""The programs that type checkers read (`check_types.py`) do what they say: each runs to its end."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))


@pytest.mark.parametrize(
    "program", [each for each in PROGRAMS if "# wrong" not in each.read_text("utf-8")], ids=lambda each: each.stem
)
def test_a_program_without_mistakes_runs(program: Path) -> None:
    assert runpy.run_path(str(program))["__builtins__"]
