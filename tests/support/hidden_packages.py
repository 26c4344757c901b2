"""Packages that cannot be imported, as if they were not installed: in this process, or in one that runs a program."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType


class _Hiding:
    """What Python asks first where a module is."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] == self._package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@contextmanager
def hidden(package: str, *importers: str) -> Generator[None]:
    """Without the package. `importers`: modules that import it, which are imported anew."""
    hiding = _Hiding(package)
    with imported_anew(package, *importers):
        sys.meta_path.insert(0, hiding)
        try:
            yield
        finally:
            sys.meta_path.remove(hiding)


@contextmanager
def imported_anew(*packages: str) -> Generator[None]:
    """What is imported of these packages and modules is forgotten, and afterwards as it was."""
    loaded = _take(packages)
    try:
        yield
    finally:
        _take(packages)
        sys.modules.update(loaded)


def _take(packages: tuple[str, ...]) -> dict[str, ModuleType]:
    names = [name for name in sys.modules for package in packages if f"{name}.".startswith(f"{package}.")]
    return {name: sys.modules.pop(name) for name in names}


def run_without(package: str, program: str) -> subprocess.CompletedProcess[str]:
    """A Python program, to its end."""
    hide = f"import sys; sys.path.append({str(Path(__file__).parent)!r}); import hidden_packages; sys.path.pop()"
    program = f"{hide}\nwith hidden_packages.hidden({package!r}):\n    exec({program!r}, {{}})"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
