"""Writes docs/modules.md from the first sentence of each module: `python docs/modules_page.py > docs/modules.md`."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "unbroken"
HEAD = """\
# Modules

<!-- Made from src/unbroken: `python docs/modules_page.py > docs/modules.md` -->

Every file of `src/unbroken`, with the first sentence of its docstring. [Architecture](architecture.md) shows how the
packages depend on each other and which way a request takes.
"""


def make_page() -> str:
    folders = sorted({file.parent for file in PACKAGE.rglob("*.py")})
    return "\n".join([HEAD, *(_section(folder) for folder in folders)])


def _section(folder: Path) -> str:
    title = (Path("unbroken") / folder.relative_to(PACKAGE)).as_posix().replace("/", ".")
    files = [file for file in sorted(folder.glob("*.py")) if not file.name.startswith("__")]
    rows = [f"| `{file.name}` | {_sentence(file)} |" for file in files]
    table = ["| file | what it holds |", "|---|---|", *rows, ""] if rows else []
    return "\n".join([f"## `{title}`", "", _sentence(folder / "__init__.py"), "", *table])


def _sentence(file: Path) -> str:
    paragraph = " ".join((ast.get_docstring(ast.parse(file.read_text("utf-8"))) or "").split("\n\n")[0].split())
    sentence = re.split(r"(?<=[.?])\s+(?=[A-Z`])", paragraph, maxsplit=1)[0]
    return sentence.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(make_page())
