"""The tools of `unbroken demo`. They really inspect the packages that are installed here, and take a little time, like
tools that use a network. They work with a real model too: `unbroken run "…" --tools unbroken_cli.demo_tools`."""

from __future__ import annotations

import asyncio
import time
from contextvars import ContextVar
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from unbroken import CallContext, tool

PACE = ContextVar("pace", default=1.0)
"""Below 1 they are faster than intended."""


@tool(effect="read")
def describe_package(package: str) -> str:
    """The summary and the licence of an installed package."""
    time.sleep(0.2 * PACE.get())
    facts = metadata(package)
    licence = [facts[name] for name in ("License-Expression", "License") if name in facts]
    return f"{facts['Summary']} Licence: {licence[0] if licence else 'not stated'}."


@tool(effect="read")
def list_requirements(package: str) -> str:
    """The packages that an installed package needs, without its extras."""
    time.sleep(0.2 * PACE.get())
    return ", ".join(each for each in requires(package) or [] if "extra ==" not in each) or "none"


@tool(effect="read")
async def installed_version(package: str) -> str:
    """Which version of a Python package is installed here."""
    await asyncio.sleep(0.5 * PACE.get())
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"{package} is not installed"


@tool(effect="read")
async def count_lines(package: str) -> str:
    """Count the Python files of an installed package and their lines."""
    await asyncio.sleep(0.3 * PACE.get())
    sources = _sources(package)
    return f"{len(sources)} files, {sum(len(source.splitlines()) for source in sources.values()):,} lines"


@tool(effect="read")
async def search_source(package: str, text: str) -> str:
    """List the Python files of an installed package that contain a text."""
    await asyncio.sleep(0.5 * PACE.get())
    found = [name for name, source in _sources(package).items() if text in source]
    files = "file" if len(found) == 1 else "files"
    return f"in {len(found)} {files}: {', '.join(found[:5])}" if found else "nowhere"


@tool
async def remember(note: str, context: CallContext[Any]) -> str:
    """Keep a note for the rest of the conversation."""
    await asyncio.sleep(0.2 * PACE.get())
    context.store.setdefault("notes", []).append(note)
    return f"{len(context.store['notes'])} notes kept"


def _sources(package: str) -> dict[str, str]:
    """The texts of its Python files, by their path in the package."""
    spec = find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(f"{package} is not a package that is installed here")
    root = Path(spec.submodule_search_locations[0])
    files = sorted(root.rglob("*.py"))
    return {file.relative_to(root).as_posix(): file.read_text("utf-8", "replace") for file in files}
