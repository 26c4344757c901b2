"""The commands and claims of both READMEs hold. Their Python is run by test_docs.py, `make refunds` by its own test."""

from __future__ import annotations

import asyncio
import os
import re
import runpy
import shlex
import tomllib
from typing import Any

import loaded_command
import pytest
from checkout import PACKAGES, ROOT
from typer.main import get_command

from unbroken.models.providers import PROFILES
from unbroken_cli.commands import build
from unbroken_testing.faults import FAULTS
from unbroken_wires.wires import WIRES

ENGLISH = (ROOT / "README.md").read_text("utf-8")
CHINESE = (ROOT / "README.zh-CN.md").read_text("utf-8")
BOTH = pytest.mark.parametrize("text", [ENGLISH, CHINESE], ids=["English", "Chinese"])


def in_code(text: str) -> list[str]:
    """What stands between backticks in a line, and the lines of `sh` blocks."""
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [line.partition("#")[0].strip() for block in blocks for line in block.splitlines()]
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return [*lines, *(" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose))]


def test_our_column_of_the_table_is_what_our_agent_does() -> None:
    compare = runpy.run_path(str(ROOT / "bench" / "compare" / "__main__.py"))

    async def cells() -> list[str]:
        return await asyncio.gather(*(compare["run"]("Unbroken", case) for case in compare["CASES"]))

    rows = [f"| {case.title} | {cell} |" for case, cell in zip(compare["CASES"], asyncio.run(cells()), strict=True)]
    assert len(rows) == 5
    assert [row for row in rows if row not in ENGLISH] == []


def test_both_languages_show_the_same_codes_in_the_table_and_link_to_the_same_pages() -> None:
    tables = [[in_code(row) for row in text.splitlines() if row.startswith("|")] for text in (ENGLISH, CHINESE)]
    assert tables[0] == tables[1]
    links = [
        [link.replace(".zh-CN", "").partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text)]
        for text in (ENGLISH, CHINESE)
    ]
    assert sorted(set(links[0])) == sorted(set(links[1]))


@BOTH
def test_every_make_target_exists(text: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = {words.split()[1] for words in in_code(text) if words.startswith("make ")}
    assert {"demo", "test", "compare"} <= named <= targets


@BOTH
def test_every_command_is_accepted_with_its_options(text: str) -> None:
    command: Any = get_command(build())
    named = [shlex.split(words)[1:] for words in in_code(text) if words.startswith("unbroken ")]
    assert {words[0] for words in named} == {"chat", "dph", "faults", "view", "serve", "probe"}
    for words in named:
        found, rest = command, words
        while rest and rest[0] in getattr(found, "commands", {}):
            found, rest = found.commands[rest[0]], rest[1:]
        found.make_context(words[0], list(rest), resilient_parsing=True)  # raises for an option that it does not have


@BOTH
def test_each_design_document_has_a_line_that_works(text: str) -> None:
    rows = [line for line in text.splitlines() if re.match(r"\| 00\d", line)]
    assert [row[2:5] for row in rows] == ["000", "001", "002", "003", "004"]
    for row in rows:
        typed = re.findall(r"`([^`]+)`", row)
        assert typed
        for line in typed:
            assert line.startswith(("unbroken ", "make ", "from unbroken import "))
            if line.startswith("from "):
                exec(line, {})


def test_the_line_of_the_first_document_runs_without_a_key() -> None:
    (line,) = [code for code in in_code(ENGLISH) if code.startswith("unbroken dph ")]
    done = loaded_command.run(*shlex.split(line)[1:], cwd=str(ROOT), env=dict(os.environ))
    assert done.returncode == 0, done.stderr.decode()
    assert b"done" in done.stderr


@BOTH
def test_every_extra_exists(text: str) -> None:
    core = tomllib.loads((PACKAGES / "unbroken" / "pyproject.toml").read_text("utf-8"))["project"]
    named = [extra for extras in re.findall(r"'unbroken\[([\w,]+)\]'", text) for extra in extras.split(",")]
    assert named == ["cli", "gateway", "all", "cli", "local"]
    assert set(named) <= set(core["optional-dependencies"])


@BOTH
def test_every_provider_has_a_profile(text: str) -> None:
    (line,) = re.findall(r"^(OpenAI[,、].*?llama\.cpp)", text, re.DOTALL | re.MULTILINE)
    titles = " ".join(profile.title for profile in PROFILES)
    names = re.split(r"[,、]\s*", line)
    assert len(names) == 24
    assert [name for name in names if name not in titles] == []


def test_there_are_seven_wires_and_a_hundred_faults() -> None:
    assert len(WIRES) == 7
    assert "on seven wires" in ENGLISH
    assert len(FAULTS) >= 100


def test_the_readme_can_be_read_in_five_minutes() -> None:
    assert len(ENGLISH.split()) < 1300
