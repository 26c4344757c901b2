"""The wires by name: imported when they are first used, known before."""

from __future__ import annotations

import subprocess
import sys

from unbroken.models.quirks import WAYS
from unbroken_wires.wires import DEFAULT_WIRE, WIRES, find_wire


def test_every_wire_has_the_name_under_which_it_is_found() -> None:
    assert {name: wire.name for name, wire in WIRES.items()} == {name: name for name in WIRES}
    assert all(find_wire(name) is WIRES[name] for name in WIRES)
    assert next(iter(WIRES)) == DEFAULT_WIRE


def test_providers_can_name_each_way_to_continue_without_reasoning() -> None:
    assert {way for wire in WIRES.values() for way in wire.lost_reasoning} == set(WAYS)


def test_only_the_wire_that_is_used_is_imported() -> None:
    program = """
import sys
from unbroken import Agent, connect, decode, tool
from unbroken_wires.wires import WIRES, find_wire

assert len(WIRES) == 7 and "bedrock-converse" in WIRES
find_wire("anthropic-messages")
for package in ("anthropic", "bedrock", "cohere", "gemini", "ollama", "openai_chat", "openai_responses"):
    if f"unbroken_wires.wires.{package}" in sys.modules:
        print(package)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["anthropic"]
