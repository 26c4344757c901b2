"""The tools of the demo: they really inspect this checkout, and take a little time, like tools that use a network.

They work with a real model too: `unbroken run "…" --tools examples/demo_tools.py`.
"""

from __future__ import annotations

import asyncio
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from unbroken import CallContext, tool

ROOT = Path(__file__).resolve().parents[1]
PACE = 1.0
"""Below 1 they are faster than intended."""


@tool(effect="read")
def read_file(path: str) -> str:
    """Read the beginning of a file of the project.

    Args:
        path: From the root of the project, as in README.md.
    """
    time.sleep(0.2 * PACE)
    return _inside(path).read_text("utf-8")[:2000]


@tool(effect="read")
async def installed_version(package: str) -> str:
    """Which version of a Python package is installed here."""
    await asyncio.sleep(0.5 * PACE)
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"{package} is not installed"


@tool(effect="read")
async def count_lines(folder: str) -> str:
    """Count the Python files in a folder and their lines."""
    await asyncio.sleep(0.3 * PACE)
    files = sorted(_inside(folder).rglob("*.py"))
    lines = sum(len(file.read_text("utf-8").splitlines()) for file in files)
    return f"{len(files)} files, {lines:,} lines"


@tool(effect="read")
async def search_code(text: str) -> str:
    """List the Python files under src that contain a text."""
    await asyncio.sleep(0.5 * PACE)
    source = ROOT / "src"
    found = [str(file.relative_to(source)) for file in sorted(source.rglob("*.py")) if text in file.read_text("utf-8")]
    files = "file" if len(found) == 1 else "files"
    return f"in {len(found)} {files}: {', '.join(found[:5])}" if found else "nowhere"


@tool
async def remember(note: str, context: CallContext[Any]) -> str:
    """Keep a note for the rest of the conversation."""
    await asyncio.sleep(0.2 * PACE)
    context.store.setdefault("notes", []).append(note)
    return f"{len(context.store['notes'])} notes kept"


def _inside(path: str) -> Path:
    place = (ROOT / path).resolve()
    if not place.is_relative_to(ROOT):
        raise ValueError(f"{path} is not in this project")
    return place
