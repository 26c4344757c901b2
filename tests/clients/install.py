"""Installs clients from the package registries: the Python ones together in one environment, each Node one in a
separate folder, so that their dependencies do not conflict. A client that is installed in the wanted version is left as
it is."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from checkout import ROOT
from rows import Client

PYTHON_ROOM, NODE_ROOM = ROOT / ".venv" / "clients", ROOT / ".venv" / "clients-node"
PROGRAMS = Path(__file__).parent / "programs"
SECONDS = 600


class CannotInstall(Exception):
    """The reason, in one line."""


@dataclass(frozen=True, slots=True)
class Installed:
    version: str
    folder: str = ""
    """The folder of a Node package."""
    python: str = str(PYTHON_ROOM / "bin" / "python")


def install(client: Client, latest: bool = False) -> Installed:
    """`latest` installs the newest versions instead of those listed for the client."""
    if client.kind == "python":
        return _install_python(client.packages, latest)
    if client.beside:
        _install_python(client.beside, latest)
    return _install_node(client, latest)


def _install_python(packages: tuple[str, ...], latest: bool) -> Installed:
    python = str(PYTHON_ROOM / "bin" / "python")
    if not Path(python).exists():
        _do([sys.executable, "-m", "venv", str(PYTHON_ROOM)])
    name, _, wanted = packages[0].partition("==")
    bare = name.partition("[")[0]
    if latest or _python_version(python, bare) != wanted:
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _do([*pip, "--upgrade", name] if latest else [*pip, *packages])
    return Installed(_python_version(python, bare))


def _python_version(python: str, package: str) -> str:
    find = "import importlib.metadata as m, sys; sys.stdout.write(m.version(sys.argv[1]))"
    done = subprocess.run([python, "-c", find, package], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def _install_node(client: Client, latest: bool) -> Installed:
    if shutil.which("npm") is None:
        raise CannotInstall("npm is not installed")
    names = [package.rpartition("@")[0] for package in client.packages]
    folder = NODE_ROOM / re.sub(r"\W+", "-", names[0]).strip("-")
    folder.mkdir(parents=True, exist_ok=True)
    present = [f"{name}@{_node_version(folder, name)}" for name in names]
    if latest or present != list(client.packages):
        npm = ["npm", "install", "--prefix", str(folder), "--silent", "--no-audit", "--no-fund"]
        _do([*npm, *([f"{name}@latest" for name in names] if latest else client.packages)])
    for program in PROGRAMS.glob("*.mjs"):  # Node looks for packages next to the program
        shutil.copy(program, folder)
    return Installed(_node_version(folder, names[0]), str(folder))


def _node_version(folder: Path, package: str) -> str:
    about = folder / "node_modules" / package / "package.json"
    return str(json.loads(about.read_text("utf-8"))["version"]) if about.exists() else ""


def _do(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise CannotInstall(f"{Path(command[0]).name} took more than {SECONDS} s") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        raise CannotInstall(f"{Path(command[0]).name}: {lines[-1]}")
