"""The table of the design documents is true as far as a program can tell: every test and file that it names exists, it
counts its own verdicts, and both languages agree."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

from checkout import PACKAGES, ROOT

ENGLISH, CHINESE = ROOT / "docs" / "seeds.md", ROOT / "docs" / "seeds.zh-CN.md"
VERDICTS = ("yes", "equivalent", "partly", "no")
WORDS: dict[str, str] = {"是": "yes", "等价": "equivalent", "部分": "partly", "否": "no"}


class Row(NamedTuple):
    number: str
    section: str
    requirement: str
    verdict: str
    note: str
    where: str
    tests: str


@cache
def rows_of(page: Path) -> list[Row]:
    found: list[Row] = []
    for line in page.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 4 and re.match(r"00\d-\d+ · ", cells[0]):
            number, _, section = cells[0].partition(" · ")
            verdict, _, note = cells[2].replace("：", ":", 1).partition(":")
            where, _, tests = cells[3].partition("<br>")
            found.append(Row(number, section, cells[1], WORDS.get(verdict, verdict), note.strip(), where, tests))
    return found


@cache
def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def is_marked(path: Path, name: str) -> bool:
    """A test, or all of its file, has the mark `multi_tool_call`."""
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            if any("multi_tool_call" in ast.unparse(each) for each in node.decorator_list):
                return True
        elif isinstance(node, ast.Assign) and ast.unparse(node) == "pytestmark = pytest.mark.multi_tool_call":
            return True
    return False


def named_tests(row: Row) -> list[tuple[str, str]]:
    """Each as its path and its name, from the words and the target of a link."""
    links = re.findall(r"\[([^\]]+)\]\(\.\./([^)]+)\)", row.tests)
    return [(path, f"test_{words.replace(' ', '_')}") for words, path in links]


def test_every_requirement_names_tests_that_exist() -> None:
    for row in rows_of(ENGLISH):
        assert named_tests(row), row.number
        for path, name in named_tests(row):
            assert name in functions_of(ROOT / path), f"{row.number}: {path}::{name}"


def test_every_requirement_names_a_place_that_exists() -> None:
    product = [*PACKAGES.glob("*/src/**/*.py"), *(ROOT / "examples").rglob("*.py"), *(ROOT / "deploy").rglob("*.py")]
    support = [*(ROOT / "tests" / "support").glob("*.py"), ROOT / "pyproject.toml", ROOT / "Makefile"]
    known = set(re.findall(r"\w+", "\n".join(path.read_text("utf-8") for path in [*product, *support])))
    for row in rows_of(ENGLISH):
        names = re.findall(r"`([^`]+)`", row.where)
        assert names or "](" in row.where, row.number
        for name in names:
            if re.fullmatch(r"[a-z_0-9]+(/[a-z_0-9]+)*(\.py|\.toml|/)?", name) and ("/" in name or "." in name):
                assert (ROOT / name).exists() or any(PACKAGES.glob(f"*/src/{name}")), f"{row.number}: {name}"
            else:
                missing = set(re.findall(r"[A-Za-z_]\w+", name)) - known
                assert not missing, f"{row.number}: {name} has {missing}"


def test_requirements_are_numbered_in_order_and_every_verdict_but_yes_has_its_reason() -> None:
    rows = rows_of(ENGLISH)
    counted: Counter[str] = Counter()
    for row in rows:
        document = row.number.partition("-")[0]
        counted[document] += 1
        assert row.number == f"{document}-{counted[document]}"
        assert row.verdict in VERDICTS, row.number
        assert row.note or row.verdict == "yes", row.number
    assert list(counted) == ["000", "001", "002", "003", "004"]


def test_the_numbers_at_the_top_are_those_of_the_tables() -> None:
    for page in (ENGLISH, CHINESE):
        expected: dict[str, list[int]] = {}
        for document in ("000", "001", "002", "003", "004", ""):
            verdicts = Counter(row.verdict for row in rows_of(page) if row.number.startswith(document))
            expected[document] = [verdicts.total(), *(verdicts[verdict] for verdict in VERDICTS)]
        stated = re.findall(r"^\| (\S+)((?: \| \d+){5}) \|$", page.read_text("utf-8"), re.MULTILINE)
        found = [(name, [int(number) for number in re.findall(r"\d+", numbers)]) for name, numbers in stated]
        assert [numbers for _, numbers in found] == list(expected.values())


def test_both_languages_have_the_same_rows() -> None:
    english, chinese = rows_of(ENGLISH), rows_of(CHINESE)
    assert [(row.number, row.where, row.tests, row.verdict) for row in english] == [
        (row.number, row.where.replace(".zh-CN.md", ".md"), row.tests, row.verdict) for row in chinese
    ]
    for ours, theirs in zip(english, chinese, strict=True):
        assert bool(ours.note) == bool(theirs.note), ours.number
        if re.match(r"\d", ours.section):
            assert ours.section == theirs.section, ours.number


def test_the_tests_of_several_calls_are_found_by_one_word() -> None:
    """`pytest -k multi_tool_call`, as the first document has it."""
    tests = [*(ROOT / "tests").rglob("test_*.py"), *PACKAGES.glob("*/tests/**/test_*.py")]
    found = [path for path in tests if "multi_tool_call" in path.name]
    assert len(found) >= 10
    assert all(any(name.startswith("test_") for name in functions_of(path)) for path in found)
    for row in rows_of(ENGLISH):
        if row.number.startswith("000") and re.match(r"7\.[1-4]", row.section):
            for path, name in named_tests(row):
                assert "multi_tool_call" in path or is_marked(ROOT / path, name), f"{row.number}: {path}::{name}"


def test_the_packages_for_developers_measure_coverage() -> None:
    """`pytest --cov`, as the first document has it."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["dependency-groups"]
    assert any(isinstance(package, str) and package.startswith("pytest-cov") for package in groups["dev"])
