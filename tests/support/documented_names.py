"""The names that users see: those of the reference pages, at the root or in their modules."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from typing import Any

from checkout import DOCS

REFERENCE = DOCS / "reference"
ENTRY = re.compile(r"^<!-- ::: (unbroken\w*(?:\.\w+)*)\.(\w+) -->$", re.MULTILINE)


def documented_names() -> Iterator[tuple[str, str, Any]]:
    """Module, name and value of each entry."""
    for page in sorted(REFERENCE.glob("*.md")):
        for module, name in ENTRY.findall(page.read_text("utf-8")):
            yield module, name, getattr(importlib.import_module(module), name)
