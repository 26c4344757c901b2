"""`import unbroken` offers exactly its public names, with docstrings; a name is imported at its first use."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import pytest
from checkout import PACKAGES
from documented_names import documented_names

import unbroken

METHODS = (types.FunctionType, classmethod, staticmethod, property, cached_property)
EMPTY_WORDS = frozenset(
    {"a", "an", "and", "for", "get", "gets", "give", "gives", "is", "its", "of", "the", "this", "to"}
)


def test_every_name_can_be_imported() -> None:
    for name in unbroken.__all__:
        assert getattr(unbroken, name) is not None
    assert dir(unbroken) == sorted(unbroken.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = unbroken.Nothing  # pyright: ignore[reportAttributeAccessIssue] - that is what is tested


def test_there_are_at_most_75() -> None:
    assert len(unbroken.__all__) <= 75


def test_what_readers_of_the_design_documents_look_for_is_at_the_root() -> None:
    assert {"Alerts", "sentences", "steps", "todo_write", "validate_tool_chain"} <= set(unbroken.__all__)
    assert {"Message", "Retry", "RunContext", "Toolbox"} <= set(unbroken.__all__)


def test_a_documented_name_that_is_elsewhere_is_named_with_its_module() -> None:
    elsewhere = {(module, name) for module, name, _ in documented_names() if name not in unbroken.__all__}
    assert len(elsewhere) > 150
    ambiguous = {"Answer", "ChainStatus", "serve"}  # two modules have one of that name
    for module, name in sorted(elsewhere):
        with pytest.raises(ImportError, match=f"from unbroken.* import {name}`") as raised:
            getattr(unbroken, name)
        assert name in ambiguous or f"`from {module} import {name}`" in str(raised.value)


def test_a_name_of_another_library_leads_to_ours() -> None:
    with pytest.raises(ImportError, match="cannot import name 'ModelRetry' from 'unbroken': it is called `Retry` here"):
        exec("from unbroken import ModelRetry")
    from unbroken import guardrails  # noqa: PLC0415 - a module is imported as ever

    assert guardrails.Retry is unbroken.Retry


def test_type_checkers_see_the_real_names() -> None:
    tree = ast.parse(Path(unbroken.__file__).read_text("utf-8"))
    seen = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("unbroken")
        for alias in node.names
    }
    assert {*seen, "__version__"} == set(unbroken.__all__)
    for name, home in seen.items():
        assert getattr(sys.modules[home or ""], name) is getattr(unbroken, name)


def test_decoding_does_not_import_an_http_client() -> None:
    program = "import sys; from unbroken import decode; print(sorted({'aiohttp', 'pydantic'} & set(sys.modules)))"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"


def test_an_agent_imports_the_http_client_only_with_a_model_that_needs_it() -> None:
    program = (
        "import sys; from unbroken import Agent, ScriptedModel, connect, tool; "
        "Agent(ScriptedModel('Hello.')).run_sync('Hi'); print('aiohttp' in sys.modules); "
        "connect('compatible:m', base_url='http://127.0.0.1:1'); print('aiohttp' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["False", "True"]


def test_everything_public_has_a_docstring() -> None:
    silent = [
        name for _, name, value in documented_names() if isinstance(value, types.FunctionType) and not value.__doc__
    ]
    assert silent == []


def public_methods() -> Iterator[tuple[str, str]]:
    """For every public class: its methods and properties, by name, with their docstrings; inherited ones of other
    libraries excluded."""
    for kind in (value for _, _, value in documented_names() if isinstance(value, type)):
        for name in dir(kind):
            home = next((each for each in kind.__mro__ if name in vars(each)), kind)
            if name.startswith("_") or not home.__module__.startswith("unbroken"):
                continue
            if isinstance(method := vars(home)[name], METHODS):
                bound = method if isinstance(method, property) else getattr(kind, name)
                yield f"{home.__name__}.{name}", inspect.getdoc(bound) or ""


def says_more_than(name: str, doc: str) -> bool:
    known = {*re.findall(r"[A-Z]?[a-z]+", name), *name.split(".")}
    said = {word.lower() for word in re.findall(r"\w+", doc)}
    return bool(said - EMPTY_WORDS - {word.lower() for word in known})


def test_every_public_method_has_a_docstring_that_adds_to_its_name() -> None:
    methods = dict(public_methods())
    assert len(methods) > 150  # they were found at all
    assert {"Decoder.feed", "Transcript.add", "Problem.to_json", "Shelf.rows", "Recording.events"} <= set(methods)
    assert sorted(name for name, doc in methods.items() if not says_more_than(name, doc)) == []


@pytest.mark.parametrize("doc", ["", "The name.", "Gets the name of this tool.", "Tool name"])
def test_a_repeated_name_is_not_a_docstring(doc: str) -> None:
    assert not says_more_than("Tool.name", doc)
    assert says_more_than("Tool.name", "What the model calls it.")


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def test_a_field_has_one_text_below_it() -> None:
    """Of two texts in a row the second describes a field further up, which was separated from it."""
    doubled = [
        f"{path.relative_to(PACKAGES)}:{second.lineno}"
        for path in PACKAGES.glob("*/src/**/*.py")
        if re.search(r'"""\s*"""', text := path.read_text("utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        for first, second in pairwise(node.body)
        if is_text(first) and is_text(second)
    ]
    assert doubled == []
