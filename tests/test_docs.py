"""The examples in the README and the docs are true: Python runs, commands print what is shown."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_layers import LAYERS

from unbroken import Request, ToolMessage
from unbroken.models.script import Answer
from unbroken.testing import Call, Uses, serve

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("README*.md")), *sorted((ROOT / "docs").glob("**/*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_the_python_of_a_page_runs_from_top_to_bottom(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "of-the-examples")  # models are named in them, and none is asked
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {"__name__": "__page__"}
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec", dont_inherit=True), names)


def answer(request: Request) -> Answer:
    """What the model of the examples says. It counts files, with a tool if it is given one."""
    last = request.messages[-1]
    if isinstance(last, ToolMessage):
        source, tests = (result.text.partition(",")[0] for result in last.results)
        return [f"There are {source} in src and {tests} in tests.", Uses(520, 14)]
    if request.tools:
        calls = [Call("count_lines", folder=folder) for folder in ("src", "tests")]
        return ["Let me count.", *calls, Uses(310, 40)]
    return ["I cannot look: I have no tools.", Uses(20, 9)]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "console")], ids=lambda page: page.name)
def test_the_commands_of_a_page_print_what_it_shows(page: Path) -> None:
    with serve(answer) as server:
        for block in blocks(page, "console"):
            command, shown = block.split("\n", 1)
            words = shlex.split(command.removeprefix("$ "))
            assert words[0] == "unbroken"
            together = words[-1] == "2>&1"
            done = subprocess.run(
                [sys.executable, "-m", "unbroken.cli", *(words[1:-1] if together else words[1:])],
                cwd=ROOT,
                env={**os.environ, "OPENAI_API_KEY": "of-the-examples", "OPENAI_BASE_URL": server.base_url()},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if together else subprocess.PIPE,
                check=False,
                timeout=60,
            )
            assert steady(done.stdout.decode()) == steady(shown)


def steady(text: str) -> str:
    """Without what differs from run to run and from day to day: seconds, and how much there is to count."""
    return re.sub(r"[\d,]+ (?=files|lines)", "0 ", re.sub(r"\d+\.\d+ s\b", "0.00 s", text))


@pytest.mark.parametrize("page", ["README", "docs/chain"])
def test_both_languages_of_a_page_show_the_same_commands_and_code(page: str) -> None:
    english, chinese = ROOT / f"{page}.md", ROOT / f"{page}.zh-CN.md"
    for language in ("python", "console"):
        assert blocks(english, language) == blocks(chinese, language)


def test_every_link_between_pages_leads_somewhere() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        for target, heading in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text("utf-8")):
            other = page.parent / target if target else page
            assert other.exists(), f"{page.name} links to {target}"
            assert not heading or heading in headings(other), f"{page.name} links to {target}#{heading}"


def headings(page: Path) -> list[str]:
    """As GitHub makes addresses of them."""
    found = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found]


def test_the_page_of_the_architecture_names_every_file_and_every_layer() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    files = [path for path in (ROOT / "src" / "unbroken").rglob("*.py") if not path.name.startswith("__")]
    in_code = " ".join(re.findall(r"`([^`\n]+)`", page))
    assert [path.name for path in files if not re.search(rf"\b{path.stem}\b", in_code)] == []
    table = page.split("```text\n")[1].split("```")[0].replace("* planned", "").replace("*", "")
    assert [set(row.split()) for row in table.splitlines()] == LAYERS
