"""What `import unbroken` offers is what it says it offers, and each name is fetched when it is first asked for."""

from __future__ import annotations

import ast
import subprocess
import sys
import types
from pathlib import Path

import pytest

import unbroken


def test_every_name_can_be_had() -> None:
    for name in unbroken.__all__:
        assert getattr(unbroken, name) is not None
    assert dir(unbroken) == sorted(unbroken.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = unbroken.Nothing  # pyright: ignore[reportAttributeAccessIssue] - that is what is tested


def test_what_type_checkers_see_is_what_there_is() -> None:
    tree = ast.parse(Path(unbroken.__file__).read_text("utf-8"))
    seen = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("unbroken.")
        for alias in node.names
    }
    assert {*seen, "__version__"} == set(unbroken.__all__)
    for name, home in seen.items():
        assert getattr(sys.modules[home or ""], name) is getattr(unbroken, name)


def test_who_only_decodes_does_not_wait_for_an_http_client() -> None:
    program = "import sys; from unbroken import decode; print(sorted({'aiohttp', 'pydantic'} & set(sys.modules)))"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"


def test_every_public_thing_has_words() -> None:
    silent = [
        name
        for name in unbroken.__all__
        if isinstance(value := getattr(unbroken, name), types.FunctionType) and not value.__doc__
    ]
    assert silent == []
