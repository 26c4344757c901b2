"""The shared recordings of real providers, read from their folder; tests are skipped with a reason if they are
absent."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkout import ROOT

FOLDER = Path(os.environ.get("UNBROKEN_CORPUS", ROOT.parent / "shared" / "corpus" / "streams"))
WIRES = {
    "openai-chat": 234,
    "openai-responses": 99,
    "anthropic-messages": 48 + 6,
    "gemini": 47,
    "ollama": 9,
    "cohere-v2": 10,
    "bedrock-converse": 23 + 1,
}
"""How many there are; on two wires, also those that came through `InvokeModel` of Bedrock."""
_NAMES = {
    "ollama-native": "ollama",
    "bedrock-invoke-anthropic": "anthropic-messages",
    "bedrock-invoke-nova": "bedrock-converse",
}
"""What the index calls a wire, and what we call it."""
ABSENT = f"no recordings in {FOLDER}: set UNBROKEN_CORPUS to the folder that holds index.jsonl"


@dataclass(frozen=True)
class Recording:
    id: str
    wire: str
    stream: bool
    file: str
    expected: dict[str, Any]
    request: dict[str, Any]
    quirks: tuple[str, ...]

    @property
    def body(self) -> bytes:
        return (FOLDER / self.file).read_bytes()

    @property
    def tools(self) -> list[str]:
        """The names of the client tools that the recorded request offered."""
        body: dict[str, Any] = self.request.get("body") or {}
        config: dict[str, Any] = body.get("toolConfig") or {}
        tools: list[dict[str, Any]] = body.get("tools") or config.get("tools") or []
        names: list[str] = []
        for tool in tools:
            declared: list[dict[str, Any]] = (
                tool.get("functionDeclarations") or tool.get("function_declarations") or [tool]
            )
            functions: list[dict[str, Any]] = [
                item.get("function") or item.get("toolSpec") or item for item in declared
            ]
            names += [function["name"] for function in functions if "name" in function]
        return names


def _wire(row: dict[str, Any]) -> str:
    name: str = row["wire"]
    return _NAMES.get(name, name)


def recordings() -> list[Recording]:
    index = FOLDER / "index.jsonl"
    if not index.exists():
        return []
    rows: list[dict[str, Any]] = [json.loads(line) for line in index.read_text("utf-8").split("\n") if line.strip()]
    return [
        Recording(
            row["id"],
            _wire(row),
            row["stream"],
            row["file"],
            row["expected"],
            row.get("request") or {},
            tuple(row["quirks"]),
        )
        for row in rows
        if _wire(row) in WIRES
    ]


RECORDINGS = recordings()


# Calls that leaked into text: the cases of other engines' parsers, beside the recordings

LEAKS = FOLDER.parent / "leaks"
NO_LEAKS = f"no cases in {LEAKS}: set UNBROKEN_CORPUS to the folder beside it that holds the recordings"
NOT_COUNTED = ("repair", "unclosed", "bare_in_text", "quotation")
"""Dialects of cases that gather what docs/prose.md rules out, or what the end of a response decides."""


@dataclass(frozen=True)
class LeakCase:
    id: str
    dialect: str
    text: str
    tools: dict[str, dict[str, Any]]
    """The offered tools with the schemas of their parameters, as far as the case has them."""
    calls: list[dict[str, Any]]
    """For a broken form: the calls that stand whole beside it."""
    rest: str | None
    """What stays as text, white space aside; None if it is not compared."""
    chunks: list[str]
    needs: str

    def pieces(self, size: int) -> list[str]:
        return [self.text[at : at + size] for at in range(0, len(self.text), size)]


def leak_cases(file: str) -> list[LeakCase]:
    path = LEAKS / file
    rows = [json.loads(line) for line in path.read_text("utf-8").split("\n") if line] if path.exists() else []
    return [
        LeakCase(
            row["id"],
            row["dialect"],
            row["text"],
            {tool["name"]: tool.get("parameters") or {} for tool in row["tools"]},
            row["whole_calls"] if row.get("broken") else row["expected_calls"],
            row.get("expected_text"),
            row["stream_chunks"] or [row["text"]],
            row.get("needs") or "",
        )
        for row in rows
    ]
