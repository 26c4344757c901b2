"""Makes a virtual environment and installs packages into it, for the targets of the Makefile: one line that shows how
far it is, without pip's warnings. If pip fails, everything that it wrote to standard error follows.

    python tests/support/installing.py FOLDER [arguments of pip install]

It uses the standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

STEPS = ("Collecting", "Processing", "Building", "Preparing", "Installing")


def main(folder: Path, arguments: list[str]) -> int:
    python = folder / "bin" / "python"
    new = not python.exists()
    if new:
        show(f"{folder}: making the virtual environment")
        if code := subprocess.run([sys.executable, "-m", "venv", str(folder)], check=False).returncode:
            return code
    # Not --quiet, which hides the progress and shows the warnings: what pip prints is read here instead.
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar=off"]
    began = time.monotonic()
    with tempfile.TemporaryFile() as errors:
        with subprocess.Popen([*pip, *arguments], stdout=subprocess.PIPE, stderr=errors, text=True) as process:
            assert process.stdout is not None
            installed = follow(process.stdout, folder)
        show("")
        if process.returncode == 0:
            sys.stdout.write(f"{folder}: {installed} packages installed in {time.monotonic() - began:.0f} s\n")
            return 0
        errors.seek(0)
        sys.stderr.write(errors.read().decode(errors="replace"))
    sys.stderr.write(f"{folder}: pip could not install {' '.join(arguments)}\n")
    if new:
        shutil.rmtree(folder)  # so that make does not take it for a complete one the next time
    return process.returncode


def follow(lines: Iterable[str], folder: Path) -> int:
    """Shows what pip does now. Returns how many packages it installed."""
    found = 0
    for line in map(str.strip, lines):
        if line.startswith("Successfully installed "):
            return len(line.split()) - 2
        if line.startswith(STEPS):
            found += line.startswith(("Collecting", "Processing"))
            show(f"{folder}: {found} packages found, {line.partition(' (from ')[0]}")
    return 0


def show(line: str) -> None:
    """In place of the line before, on a terminal only."""
    if sys.stdout.isatty():
        sys.stdout.write(f"\r\x1b[2K{line[:79]}")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
