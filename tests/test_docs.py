"""The examples in the README and the docs are true: Python runs, commands print what is shown."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("README*.md")), *sorted((ROOT / "docs").glob("**/*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_the_python_of_a_page_runs_from_top_to_bottom(page: Path) -> None:
    names: dict[str, Any] = {}
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec"), names)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "console")], ids=lambda page: page.name)
def test_the_commands_of_a_page_print_what_it_shows(page: Path) -> None:
    for block in blocks(page, "console"):
        command, shown = block.split("\n", 1)
        words = shlex.split(command.removeprefix("$ "))
        assert words[0] == "unbroken"
        run = [sys.executable, "-m", "unbroken.cli", *words[1:]]
        done = subprocess.run(run, cwd=ROOT, capture_output=True, check=False, timeout=60)
        assert done.stdout.decode() == shown


def test_both_readmes_show_the_same_commands_and_code() -> None:
    english, chinese = ROOT / "README.md", ROOT / "README.zh-CN.md"
    for language in ("python", "console"):
        assert blocks(english, language) == blocks(chinese, language)


def test_every_link_between_pages_leads_somewhere() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
