"""Reads the code of a page of docs/moving, and checks what running it has led to."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkout import ROOT

from moving.topics import MCP_SERVER, TOPICS, Topic, prompts_of, results_of, system_of
from unbroken_testing import ScriptedServer

PAGES = {
    "pydantic-ai": ROOT / "docs" / "moving" / "from-pydantic-ai.md",
    "openai-agents": ROOT / "docs" / "moving" / "from-openai-agents.md",
    "langgraph": ROOT / "docs" / "moving" / "from-langgraph.md",
}
MODEL_KEY = {"OPENAI_API_KEY": "any", "ANTHROPIC_API_KEY": "any", "OPENAI_AGENTS_DISABLE_TRACING": "1"}


@dataclass(frozen=True, slots=True)
class Pair:
    before: str
    after: str


def read_pairs(library: str) -> dict[str, Pair]:
    """The code before and after, by topic. A topic that the library does not have is not among them."""
    text = PAGES[library].read_text("utf-8")
    found: dict[str, Pair] = {}
    for name, topic in TOPICS.items():
        section = re.search(rf"^### {re.escape(topic.title)}\n(.*?)(?=^##|\Z)", text, re.DOTALL | re.MULTILINE)
        if section is not None:
            before, after = re.findall(r"^```py\n(.*?)^```", section[1], re.DOTALL | re.MULTILINE)
            found[name] = Pair(before, after)
    return found


def count_lines(code: str) -> int:
    return sum(bool(line.strip()) for line in code.splitlines())


def prepare_folder(folder: Path, *, old_mcp: bool = False) -> None:
    """What the code expects beside it: the MCP server that it starts."""
    names = {"module": "fastmcp", "server": "FastMCP"} if old_mcp else {"module": "mcpserver", "server": "MCPServer"}
    (folder / "weather_server.py").write_text(MCP_SERVER.format_map(names), "utf-8")


def add_to_path(path: str, python: Path | None = None) -> str:
    """`PATH` with the folder of this interpreter first: the code starts `python`."""
    return f"{(python or Path(sys.executable)).parent}:{path}"


def check(topic: Topic, outcome: Mapping[str, Any], printed: str, server: ScriptedServer) -> None:
    """Asserts that the code has done what its topic says."""
    assert outcome == topic.outcome
    assert topic.printed is None or printed == topic.printed
    if not server.requests:
        assert not topic.answers
        assert not topic.scripts
        return
    last = server.requests[-1]
    if topic.results is not None:
        pairs = zip(topic.results, results_of(last), strict=True)
        assert [result for expected, result in pairs if expected not in result] == []
    assert topic.native in str(server.bodies[-1].get("tools"))
    assert topic.prompts is None or prompts_of(last) == topic.prompts
    assert topic.offered is None or [spec.name for spec in last.tools] == topic.offered
    assert topic.system in system_of(last)
    assert topic.summary in "\n".join(prompts_of(last))
