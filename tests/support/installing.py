"""Makes a virtual environment and installs packages into it, for the targets of the Makefile: one line that shows how
far it is, without pip's warnings. If pip fails, everything that it wrote to standard error follows.

    python tests/support/installing.py FOLDER [--group NAME] [--wheels FOLDER] [arguments of pip install]

A requirement that names a package of this checkout (`unbroken-cli`, `unbroken[mcp]`) is that package, editable, with
those of ours that it needs: no index is searched for them. With `--wheels` it is the wheel in that folder. `--group` is
a dependency group of the root's pyproject.toml; pip before 25.1 has no such option. Only the standard library is used:
this runs before anything is installed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BACKEND = ("hatchling", "editables")  # what the packages are built with, in [build-system] and for -e
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
    resolved = resolve(arguments)
    # Once here, instead of once for each package in an environment that pip makes for its build: half the time.
    if "-e" in resolved and subprocess.run([*pip, *BACKEND], capture_output=True, check=False).returncode == 0:
        pip.append("--no-build-isolation")
    with tempfile.TemporaryFile() as errors:
        with subprocess.Popen([*pip, *resolved], stdout=subprocess.PIPE, stderr=errors, text=True) as process:
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


def resolve(arguments: list[str]) -> list[str]:
    """The arguments for pip: groups replaced by what they list, our packages by their folders."""
    foreign: list[str] = []
    requirements: list[str] = []
    wheels: Path | None = None
    rest = iter(arguments)
    for argument in rest:
        if argument == "--group":
            requirements += requirements_of_group(next(rest))
        elif argument == "--wheels":
            wheels = Path(next(rest)).resolve()
        elif name_and_extras(argument)[0] in OURS:
            requirements.append(argument)
        else:
            foreign.append(argument)
    ours: set[str] = set()
    foreign += [each for each in requirements if not add_ours(each, ours)]
    places = {name: OURS[name] if wheels is None else wheel_of(name, wheels) for name in ours}
    # Without their extras, too: pip 23 takes a package that it knows with extras only for another one.
    listed = [
        f"{places[name]}[{','.join(sorted(extras))}]"
        for name, extras in map(name_and_extras, requirements)
        if extras and name in ours
    ]
    listed += [str(places[name]) for name in sorted(ours)]
    return [*foreign, *(word for each in listed for word in (["-e", each] if wheels is None else [each]))]


def wheel_of(name: str, folder: Path) -> Path:
    (wheel,) = folder.glob(f"{name.replace('-', '_')}-*.whl")
    return wheel


def add_ours(requirement: str, ours: set[str]) -> bool:
    """Whether a requirement names a package of ours, which is added with those of ours that it needs."""
    name, extras = name_and_extras(requirement)
    if name not in OURS:
        return False
    ours.add(name)
    project = read(OURS[name])["project"]
    for needed in (project["dependencies"], *(project["optional-dependencies"][extra] for extra in extras)):
        for each in needed:
            add_ours(each, ours)
    return True


def requirements_of_group(name: str) -> list[str]:
    found: list[str] = []
    for each in read(ROOT)["dependency-groups"][name]:
        found += [each] if isinstance(each, str) else requirements_of_group(each["include-group"])
    return found


def name_and_extras(requirement: str) -> tuple[str, set[str]]:
    match = re.match(r"([\w.-]+)\s*(?:\[([^]]*)\])?", requirement)
    if match is None:
        return "", set()
    return match[1], {extra.strip() for extra in (match[2] or "").split(",") if extra.strip()}


def read(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))


OURS = {folder.name: folder for folder in sorted((ROOT / "packages").iterdir()) if (folder / "pyproject.toml").exists()}


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
