"""Imports go down only: the table of docs/architecture.md, kept by reading every import in the tree."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import unbroken

ROOT = Path(unbroken.__file__).parent

LAYERS = [
    {"__main__"},
    {"cli"},
    {"gateway", "dph", "testing", "probing", "evals", "mcp"},
    {"durable"},
    {"agent", "viewer", "logs"},
    {"trajectory", "guardrails", "compaction", "read_more", "asgi"},
    {"redacting"},
    {"middleware"},
    {"models"},
    {"decoding"},
    {"wires", "tools"},
    {"run_view"},
    {"transcript", "events", "server_tools"},
    {"validation"},
    {"errors"},
    {"deltas"},
    {"messages", "clock"},
    {"frozen"},
]
"""From the top down. A package may import those below it; packages in one layer do not import each other."""

HEIGHT = {name: len(LAYERS) - row for row, names in enumerate(LAYERS) for name in names}


def package_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


class _Imports(ast.NodeVisitor):
    """Every import of a file: its line, the modules that it names, and whether it is inside a function."""

    def __init__(self) -> None:
        self.found: list[tuple[int, list[str], bool]] = []
        self._functions = 0

    def generic_visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.expr):
            return  # there is no import in an expression
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        self._functions += inside
        super().generic_visit(node)
        self._functions -= inside

    def visit_Import(self, node: ast.Import) -> None:
        self.found.append((node.lineno, [alias.name for alias in node.names], self._functions > 0))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        assert node.level == 0, f"line {node.lineno}: relative import"
        self.found.append((node.lineno, [node.module or ""], self._functions > 0))


@cache
def imports_of(path: Path) -> list[tuple[int, list[str], bool]]:
    visitor = _Imports()
    visitor.visit(ast.parse(path.read_text("utf-8")))
    return visitor.found


def packages_of(path: Path) -> list[str]:
    """The packages of ours that a file imports."""
    modules = [module for _, modules, _ in imports_of(path) for module in modules]
    return [module.split(".")[1] for module in modules if module.startswith("unbroken.")]


def python_files() -> list[Path]:
    return sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def test_imports_go_down_only() -> None:
    up = [
        f"{path.relative_to(ROOT)} imports {target}"
        for path in python_files()
        for target in packages_of(path)
        if target != package_of(path) and HEIGHT[target] >= HEIGHT[package_of(path)]
    ]
    assert up == []


def test_every_package_has_a_layer() -> None:
    assert {package_of(path) for path in python_files()} == set(HEIGHT)


def test_all_imports_are_at_the_top_of_their_file_or_have_a_reason() -> None:
    """A local import is for an optional extra or for start-up time: `# noqa: PLC0415 - reason` on its line."""
    local = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in python_files()
        for line, _, in_a_function in imports_of(path)
        if in_a_function and not re.search(r"# noqa: PLC0415 - \w", path.read_text("utf-8").splitlines()[line - 1])
    ]
    assert local == []


def test_no_module_is_called_utils() -> None:
    banned = {"utils", "helpers", "common", "base", "manager"}
    assert [path for path in python_files() if path.stem in banned] == []


def test_the_foundation_does_no_io() -> None:
    """wires and decoding are pure: bytes come in as arguments."""
    forbidden = {"socket", "asyncio", "aiohttp", "http", "urllib", "ssl", "time", "random", "threading", "subprocess"}
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in python_files()
        if package_of(path) in {"wires", "decoding", "transcript", "messages", "deltas"}
        for _, modules, _ in imports_of(path)
        for name in modules
        if name.split(".")[0] in forbidden
    ]
    assert found == []
