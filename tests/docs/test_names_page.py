"""docs/names.md: every name in its right column exists."""

from __future__ import annotations

import re

import pytest
from checkout import PACKAGES, ROOT

PAGE = (ROOT / "docs" / "names.md").read_text("utf-8")
CODE = re.compile(r"`([^`]+)`")
NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
ROWS = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| ") and "| there |" not in line]
VALUES = frozenset({"UNBROKEN_ENABLE_PARALLEL_TOOL_CALLS", "DOLPHIN_ENABLE_PARALLEL_TOOL_CALLS"})
"""The source makes these of a prefix and a name."""


@pytest.fixture(scope="module")
def known() -> set[str]:
    """Every word of the source and of the docs of the gateway's settings."""
    files = [*PACKAGES.glob("*/src/**/*.py"), ROOT / "pyproject.toml", ROOT / "docs" / "gateway.md"]
    return {word for file in files for word in NAME.findall(file.read_text("utf-8"))}


def test_every_row_has_two_columns_and_there_are_many() -> None:
    assert len(ROWS) > 60
    assert {len(row) for row in ROWS} == {2}


def test_the_right_column_names_what_exists(known: set[str]) -> None:
    named = {word for _, here in ROWS for code in CODE.findall(here) for word in NAME.findall(code)}
    assert len(named) > 80
    assert sorted(named - known - VALUES) == []


def test_what_is_the_same_is_there_under_its_old_name(known: set[str]) -> None:
    same = {
        word
        for there, here in ROWS
        if here.startswith("the same") and not here.startswith("the same form")
        for code in CODE.findall(there)
        for word in NAME.findall(code)
    }
    assert len(same) > 15
    assert sorted(same - known - VALUES) == []
