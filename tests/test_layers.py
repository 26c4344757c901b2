"""Imports go down only: the table of docs/architecture.md, kept by reading every import in the tree."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import unbroken

ROOT = Path(unbroken.__file__).parent

LAYERS = [
    {"__main__"},
    {"cli"},
    {"gateway", "dph", "testing", "probing", "evals", "mcp"},
    {"durable"},
    {"agent", "viewer", "logs"},
    {"trajectory", "guardrails", "compaction", "asgi"},
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


def imports_of(path: Path) -> list[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.append(node.module or "")
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return [name.split(".")[1] for name in names if name.startswith("unbroken.")]


def python_files() -> list[Path]:
    return sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def test_imports_go_down_only() -> None:
    up = [
        f"{path.relative_to(ROOT)} imports {target}"
        for path in python_files()
        for target in imports_of(path)
        if target != package_of(path) and HEIGHT[target] >= HEIGHT[package_of(path)]
    ]
    assert up == []


def test_every_package_has_a_layer() -> None:
    assert {package_of(path) for path in python_files()} == set(HEIGHT)


def test_all_imports_are_at_the_top_of_their_file_or_have_a_reason() -> None:
    """A local import is for an optional extra or for start-up time: `# noqa: PLC0415 - reason` on its line."""
    local = [
        f"{path.relative_to(ROOT)}:{inner.lineno}"
        for path in python_files()
        for lines in [path.read_text("utf-8").splitlines()]
        for node in ast.walk(ast.parse("\n".join(lines)))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
        if isinstance(inner, ast.Import | ast.ImportFrom)
        and not re.search(r"# noqa: PLC0415 - \w", lines[inner.lineno - 1])
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
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
        if name.split(".")[0] in forbidden
    ]
    assert found == []
