"""The programs of the docs, and typical ones of users (`programs/`), under mypy and pyright, both strict: `make types`.

A line that ends in `# wrong` is a mistake which both have to find; in every other line neither may find one. The Python
of a page is one module, as `tests/docs/test_docs.py` runs it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkout import PACKAGES, ROOT

FOLDER = ROOT / ".mypy_cache" / "programs"  # the same one each time, so that mypy finds its cache
PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))
PAGES = [ROOT / "README.md", *sorted(PACKAGES.glob("*/README.md")), *sorted((ROOT / "docs").glob("**/*.md"))]
WRONG = "# wrong"
WRONG_IN_PAGES = {"agent.md": 'run_sync("Hi.", max_turns=3)'}
"""Lines of pages that show what an error looks like."""

Found = dict[tuple[str, int], list[str]]
"""What a checker reports, by file and line."""


def python_of(page: Path) -> str:
    """The code of a page at its own lines; everything else is empty."""
    lines: list[str] = []
    inside = False
    for line in page.read_text("utf-8").splitlines():
        if line in ("```python", "```"):
            inside, line = line == "```python", ""
        mark = f"  {WRONG}" if inside and WRONG_IN_PAGES.get(page.name, "\0") in line else ""
        lines.append(line + mark if inside else "")
    return "\n".join([*lines, ""])


def modules() -> Iterator[tuple[str, str]]:
    """The name and the text of each module."""
    for page in PAGES:
        code = python_of(page)
        if code.strip() and not page.name.endswith(".zh-CN.md"):  # those have the code of the English pages
            yield re.sub(r"\W", "_", str(page.relative_to(ROOT).with_suffix(""))), code
    for program in PROGRAMS:
        yield f"program_{program.stem}", program.read_text("utf-8")


@pytest.fixture(scope="module")
def reports() -> dict[str, Found]:
    """What both checkers report. Each runs once, over all modules."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    for name, code in modules():
        (FOLDER / f"{name}.py").write_text(code, "utf-8")
    settings = {"include": ["."], "exclude": [], "typeCheckingMode": "strict"}
    (FOLDER / "pyrightconfig.json").write_text(json.dumps({**settings, "pythonVersion": "3.11"}))
    mypy = start("mypy", "--strict", "--follow-imports=silent", "--cache-dir", str(FOLDER.parent), str(FOLDER))
    pyright = start("pyright", "--project", str(FOLDER), "--pythonpath", sys.executable, "--outputjson")
    found: dict[str, Found] = {"mypy": {}, "pyright": {}}
    for each in json.loads(pyright.communicate()[0])["generalDiagnostics"]:
        if each["severity"] == "error":
            place = Path(each["file"]).stem, each["range"]["start"]["line"] + 1
            found["pyright"].setdefault(place, []).append(each["message"])
    told = mypy.communicate()[0]
    assert re.search(r"^(Found \d+ errors|Success)", told, re.MULTILINE), told
    for file, line, message in re.findall(r"^.*?(\w+)\.py:(\d+): error: (.*)$", told, re.MULTILINE):
        found["mypy"].setdefault((file, int(line)), []).append(message)
    return found


def start(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1", "TERM": "dumb"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_there_are_many_programs_and_all_pages_with_mistakes_among_them() -> None:
    code = dict(modules())
    assert len([name for name in code if name.startswith("program_")]) >= 40
    assert len(code) - len(PROGRAMS) >= 50
    assert sum(text.count(WRONG) for text in code.values()) >= 40


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_checker_finds_the_mistakes_and_nothing_else(checker: str, reports: dict[str, Found]) -> None:
    marked = {
        (name, number)
        for name, code in modules()
        for number, line in enumerate(code.splitlines(), 1)
        if line.endswith(WRONG)
    }
    reported = reports[checker]
    assert sorted(marked - reported.keys()) == [], "these mistakes are not found"
    assert {place: words for place, words in sorted(reported.items()) if place not in marked} == {}
