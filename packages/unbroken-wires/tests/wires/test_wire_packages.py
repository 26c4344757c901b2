"""Everything that knows a wire is in its package; other files name a wire only if they are listed here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import unbroken
from unbroken import TextDelta
from unbroken_wires.decoding import guess_wire
from unbroken_wires.messages import Request
from unbroken_wires.wires import WIRES

ROOT = Path(unbroken.__file__).parent
PACKAGES = ("openai_chat", "openai_responses", "anthropic", "gemini", "ollama", "cohere", "bedrock")

NAMED_IN = {
    "wires/__init__.py": "the registry",
    "wires/openai_models.py": "providers with OpenAI's models, two of which are called as its wires",
    "models/providers.py": "provider profiles are data, and a profile names its wires",
    "models/connect.py": "the docstring of `connect` explains what `base_url` assumes",
    "trajectory/otel/names.py": "the provider gemini, which is called as its wire",
    "agent/run_lifecycle.py": "an error shows how raw messages are read",
    "cli/faults.py": "the help of a command names the default",
    "gateway/from_litellm/entries.py": "which fields of another configuration each wire carries",
    "gateway/from_litellm/provider_names.py": "the names of providers in another configuration, and their wires here",
    "gateway/http/client_names.py": "programs that send requests, one of which is called as a wire",
    "testing/matrix.py": "writes docs/faults.md, which names the default",
}

_PROVIDERS = ("gemini", "ollama")
"""Wires that are called as a provider is."""
_NAMES = [re.escape(name) for name in WIRES if name not in _PROVIDERS]
_QUOTED = [f"""["']{name}["']""" for name in _PROVIDERS]
_MENTION = re.compile("|".join([*_NAMES, *_QUOTED, *(rf"\bwires\.{each}\b" for each in PACKAGES), *PACKAGES[:2]]))


def outside() -> list[Path]:
    return [
        path
        for path in sorted(ROOT.rglob("*.py"))
        if not any(path.is_relative_to(ROOT / "wires" / package) for package in PACKAGES)
    ]


def test_only_a_few_files_outside_its_package_name_a_wire() -> None:
    naming = {path.relative_to(ROOT).as_posix() for path in outside() if _MENTION.search(path.read_text("utf-8"))}
    assert naming == set(NAMED_IN)


def test_no_package_of_a_wire_imports_another() -> None:
    for package in PACKAGES:
        others = "|".join(other for other in PACKAGES if other != package)
        for path in (ROOT / "wires" / package).glob("*.py"):
            assert not re.search(rf"unbroken_wires\.wires\.(?:{others})\b", path.read_text("utf-8")), path


@pytest.mark.parametrize("name", WIRES)
def test_each_wire_is_recognised_by_its_own_output(name: str) -> None:
    writer = WIRES[name].provider_writer(Request((), model="m"), "r")
    stream = writer.begin() + writer.feed(TextDelta("Hello.")) + writer.end("done")
    assert guess_wire(stream) == guess_wire(writer.body()) == name
    assert guess_wire(stream[:150]) == name
