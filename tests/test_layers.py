"""Imports go down only, between packages and inside the two that others build on: docs/architecture.md, kept by reading
every import in the tree."""

from __future__ import annotations

import ast
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

from checkout import PACKAGES

USES = {
    "unbroken_wires": set[str](),
    "unbroken": {"unbroken_wires"},
    "unbroken_dph": {"unbroken", "unbroken_wires"},
    "unbroken_viewer": {"unbroken", "unbroken_wires"},
    "unbroken_durable": {"unbroken_viewer", "unbroken", "unbroken_wires"},
    "unbroken_testing": {"unbroken_viewer", "unbroken", "unbroken_wires"},
    "unbroken_gateway": {"unbroken_viewer", "unbroken", "unbroken_wires"},
    "unbroken_cli": {"unbroken_viewer", "unbroken", "unbroken_wires"},
}
"""What each package may import. Types count too."""

WITH_EXTRAS = {
    "unbroken_gateway.app": "unbroken_durable",
    "unbroken_gateway.durable_runs": "unbroken_durable",
    "unbroken_gateway.commands.runs_server": "unbroken_durable",
    "unbroken_testing.evals.recorded_cases": "unbroken_durable",
}
"""Modules that use a package which is an extra of theirs. Commands use `unbroken_cli`, which loads them."""

LAYERS = [
    [
        {"__main__"},
        {"mcp"},
        {"agent", "logs"},
        {"trajectory", "guardrails", "compaction", "read_more", "asgi"},
        {"redacting"},
        {"middleware"},
        {"models"},
        {"tools"},
        {"run_view"},
        {"events"},
        {"errors"},
        {"clock"},
        {"replay_loop"},
    ],
    [
        {"decoding"},
        {"wires"},
        {"transcript", "server_tools"},
        {"validation", "plugins"},
        {"errors"},
        {"deltas"},
        {"messages"},
        {"frozen"},
    ],
]
"""Inside `unbroken` and `unbroken_wires`, top down: a part may import those below it, none of its own layer."""

ROOTS = {"unbroken": LAYERS[0], "unbroken_wires": LAYERS[1]}
HEIGHT = {
    f"{root}.{part}": -row for root, layers in ROOTS.items() for row, parts in enumerate(layers) for part in parts
}


def module_of(path: Path) -> str:
    """`unbroken.agent.loop`."""
    below = path.relative_to(PACKAGES).with_suffix("").parts[2:]
    return ".".join(below).removesuffix(".__init__")


def part_of(module: str) -> str:
    """`unbroken.agent`."""
    return ".".join(module.split(".")[:2])


class Import(NamedTuple):
    line: int
    modules: list[str]
    names: list[str]
    """Which it takes `from` a module."""
    in_a_function: bool


class _Imports(ast.NodeVisitor):
    """Every import of a file."""

    def __init__(self) -> None:
        self.found: list[Import] = []
        self._functions = 0

    def generic_visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.expr):
            return  # there is no import in an expression
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        self._functions += inside
        super().generic_visit(node)
        self._functions -= inside

    def visit_Import(self, node: ast.Import) -> None:
        self.found.append(Import(node.lineno, [alias.name for alias in node.names], [], self._functions > 0))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        assert node.level == 0, f"line {node.lineno}: relative import"
        names = [alias.name for alias in node.names]
        self.found.append(Import(node.lineno, [node.module or ""], names, self._functions > 0))


@cache
def imports_of(path: Path) -> list[Import]:
    visitor = _Imports()
    visitor.visit(ast.parse(path.read_text("utf-8")))
    return visitor.found


def imported(path: Path) -> list[str]:
    """The modules of ours that a file imports."""
    return [module for each in imports_of(path) for module in each.modules if module.startswith("unbroken")]


@cache
def python_files() -> list[Path]:
    return sorted(PACKAGES.glob("*/src/**/*.py"))


def test_packages_import_what_their_place_in_the_graph_allows() -> None:
    up = [
        f"{module} imports {target}"
        for path in python_files()
        for target in imported(path)
        if (module := module_of(path)).split(".")[0] != (package := target.split(".")[0])
        and package not in USES[module.split(".")[0]]
        and WITH_EXTRAS.get(module) != package
        and not (package == "unbroken_cli" and module.split(".")[1:2] == ["commands"])
    ]
    assert up == []


def test_every_exception_of_the_graph_is_used() -> None:
    used = {module_of(path): {target.split(".")[0] for target in imported(path)} for path in python_files()}
    assert [module for module, package in WITH_EXTRAS.items() if package not in used[module]] == []


def test_there_is_no_circle_between_packages() -> None:
    extras = {(module.split(".")[0], package) for module, package in WITH_EXTRAS.items()}
    graph = {package: below | {to for who, to in extras if who == package} for package, below in USES.items()}
    commands = {f"{package} commands": {package, "unbroken_cli"} for package in USES}
    assert len(list(TopologicalSorter({**graph, **commands}).static_order())) == len(graph) + len(commands)


CIRCLES = {
    "unbroken.models.connections",
    "unbroken.models.connect",
    "unbroken.trajectory.otel",
    "unbroken_wires.wires.anthropic.messages_requests",
    "unbroken_wires.wires.bedrock.converse_requests",
    "unbroken_wires.wires.crossing",
    "unbroken_wires.wires.gemini.gemini_requests",
    "unbroken_gateway.admin.api",
    "unbroken_gateway.upstreams.upstream",
    "unbroken_gateway.relay.exchange",
}
"""One file of each circle of imports that is left."""


def _targets(each: Import) -> list[str]:
    """A name that is taken from a package may be a file of it."""
    return [f"{each.modules[0]}.{name}" for name in each.names] or each.modules


def test_files_do_not_import_each_other_in_circles() -> None:
    files = {module_of(path): path for path in python_files()}

    def imports(path: Path) -> set[str]:
        found = [name for each in imports_of(path) for name in _targets(each)]
        return {name if name in files else name.rpartition(".")[0] for name in found}

    graph = {module: (imports(path) & files.keys()) - {module} for module, path in files.items()}
    for module in CIRCLES:
        del graph[module]
    assert len([*TopologicalSorter(graph).static_order()]) >= len(graph)


def test_members_of_the_workspace_know_each_other_by_public_names_only() -> None:
    private = [
        f"{path.relative_to(PACKAGES)}:{each.line} {each.modules[0]} {name}"
        for path in python_files()
        for each in imports_of(path)
        if each.modules[0].startswith("unbroken") and each.modules[0].split(".")[0] != module_of(path).split(".")[0]
        for name in each.names
        if name.startswith("_") and not name.startswith("__")
    ]
    assert private == []


def test_imports_go_down_only() -> None:
    up = [
        f"{module} imports {target}"
        for path in python_files()
        for target in imported(path)
        if (part := part_of(module := module_of(path))) in HEIGHT
        and part_of(target) in HEIGHT
        and target.split(".")[0] == module.split(".")[0]
        and part_of(target) != part
        and HEIGHT[part_of(target)] >= HEIGHT[part]
    ]
    assert up == []


def test_every_part_has_a_layer() -> None:
    parts = {part_of(module) for path in python_files() if "." in (module := module_of(path))}
    assert {part for part in parts if part.split(".")[0] in ROOTS} == set(HEIGHT)


def test_all_imports_are_at_the_top_of_their_file_or_have_a_reason() -> None:
    """A local import is for an optional extra or for start-up time: `# noqa: PLC0415 - reason` on its line."""
    local = [
        f"{path.relative_to(PACKAGES)}:{each.line}"
        for path in python_files()
        if any(each.in_a_function for each in imports_of(path)) and (lines := path.read_text("utf-8").splitlines())
        for each in imports_of(path)
        if each.in_a_function and not re.search(r"# noqa: PLC0415 - \w", lines[each.line - 1])
    ]
    assert local == []


def test_no_module_is_called_utils() -> None:
    banned = {"utils", "helpers", "common", "base", "manager"}
    assert [path for path in python_files() if path.stem in banned] == []


def test_the_foundation_does_no_io() -> None:
    """What is in unbroken_wires is pure: bytes come in as arguments."""
    forbidden = {"socket", "asyncio", "aiohttp", "http", "urllib", "ssl", "time", "random", "threading", "subprocess"}
    found = [
        f"{path.relative_to(PACKAGES)}: {name}"
        for path in python_files()
        if module_of(path).startswith("unbroken_wires")
        for each in imports_of(path)
        for name in each.modules
        if name.split(".")[0] in forbidden and name != "urllib.parse"
    ]
    assert found == []
