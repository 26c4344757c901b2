"""Everything that knows a wire is in its package; other files name a wire only if they are listed here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from checkout import PACKAGES

from unbroken import TextDelta
from unbroken_wires.decoding import guess_wire
from unbroken_wires.messages import Request
from unbroken_wires.wires import WIRES

WIRES_FOLDER = PACKAGES / "unbroken-wires" / "src" / "unbroken_wires" / "wires"
WIRE_PACKAGES = ("openai_chat", "openai_responses", "anthropic", "gemini", "ollama", "cohere", "bedrock")

NAMED_IN = {
    "unbroken_wires/wires/__init__.py": "the registry",
    "unbroken_wires/wires/openai_models.py": "providers with OpenAI's models, two of which are called as its wires",
    "unbroken/models/providers.py": "provider profiles are data, and a profile names its wires",
    "unbroken/models/connect.py": "the docstring of `connect` explains what `base_url` assumes",
    "unbroken/trajectory/otel/names.py": "the provider gemini, which is called as its wire",
    "unbroken/agent/given_history.py": "an error shows how raw messages are read",
    "unbroken_testing/commands/faults.py": "the help of a command names the default",
    "unbroken_gateway/from_litellm/model_list.py": "which fields of another configuration each wire carries",
    "unbroken_gateway/from_litellm/provider_names.py": "providers of another configuration, and their wires here",
    "unbroken_gateway/http/client_names.py": "programs that send requests, one of which is called as a wire",
    "unbroken_testing/matrix.py": "writes docs/faults.md, which names the default",
}

_PROVIDERS = ("gemini", "ollama")
"""Wires that are called as a provider is."""
_NAMES = [re.escape(name) for name in WIRES if name not in _PROVIDERS]
_QUOTED = [f"""["']{name}["']""" for name in _PROVIDERS]
_MENTION = re.compile(
    "|".join([*_NAMES, *_QUOTED, *(rf"\bwires\.{each}\b" for each in WIRE_PACKAGES), *WIRE_PACKAGES[:2]])
)


def sources() -> dict[str, Path]:
    """Each file of the packages by its import path: `unbroken/agent/run.py`."""
    return {
        path.relative_to(folder).as_posix(): path
        for folder in PACKAGES.glob("*/src")
        for path in sorted(folder.rglob("*.py"))
    }


def test_only_a_few_files_outside_its_package_name_a_wire() -> None:
    inside = tuple(f"unbroken_wires/wires/{package}/" for package in WIRE_PACKAGES)
    naming = {name for name, path in sources().items() if _MENTION.search(path.read_text("utf-8"))}
    assert {name for name in naming if not name.startswith(inside)} == set(NAMED_IN)


@pytest.mark.parametrize("package", WIRE_PACKAGES)
def test_no_package_of_a_wire_imports_another(package: str) -> None:
    others = "|".join(other for other in WIRE_PACKAGES if other != package)
    paths = list((WIRES_FOLDER / package).glob("*.py"))
    assert paths
    for path in paths:
        assert not re.search(rf"unbroken_wires\.wires\.(?:{others})\b", path.read_text("utf-8")), path


@pytest.mark.parametrize("name", WIRES)
def test_each_wire_is_recognised_by_its_own_output(name: str) -> None:
    writer = WIRES[name].provider_writer(Request((), model="m"), "r")
    stream = writer.begin() + writer.feed(TextDelta("Hello.")) + writer.end("done")
    assert guess_wire(stream) == guess_wire(writer.body()) == name
    assert guess_wire(stream[:150]) == name
