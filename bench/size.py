"""What installations weigh, each in a fresh environment, without what comes with every one."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from installing import OURS, resolve

NOT_OURS = {"pip", "setuptools", "wheel"}
INSTALLED = {
    "The protocols alone": ("unbroken-wires", "at most 1", "at most 3 MB"),
    "Library": ("unbroken", "at most 17", "at most 27 MB"),
    "Library + command line": ("unbroken[cli]", "at most 24", "at most 32 MB"),
    "Gateway, without the command line": ("unbroken-gateway", "", ""),
}
"""The requirement, and how many packages of others and megabytes are wanted."""


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        wheels = Path(place) / "wheels"
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        subprocess.run(
            [*pip, "wheel", "--no-deps", "--wheel-dir", wheels, *OURS.values()], check=True, stderr=subprocess.DEVNULL
        )
        for number, (what, (requirement, packages, size)) in enumerate(INSTALLED.items()):
            others, weighed = measure(Path(place) / str(number), resolve([requirement, "--wheels", str(wheels)]))
            print(f"{what}: {weighed / 1024 / 1024:.1f} MB ({size or 'no aim'}), ", end="")
            print(f"with {len(others)} packages of others ({packages or 'no aim'})")
            print(f"  {', '.join(others)}")


def measure(place: Path, requirements: list[str]) -> tuple[list[str], int]:
    """The packages of others that these wheels need, and what all of it weighs."""
    venv.create(place, with_pip=True)
    site = next((place / "lib").glob("python*/site-packages"))
    before = weight(site)
    install = [
        place / "bin" / "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-compile",
        "--disable-pip-version-check",
    ]
    subprocess.run([*install, *requirements], check=True, stderr=subprocess.DEVNULL)
    names = {p.name.split("-")[0] for p in site.glob("*.dist-info")}
    ours = {name.replace("-", "_") for name in OURS}
    return sorted(names - NOT_OURS - ours), weight(site) - before


def weight(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


if __name__ == "__main__":
    sys.exit(main())
