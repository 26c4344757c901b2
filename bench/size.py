"""What an installation weighs: library and command line in a fresh environment, without what comes with every one."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
NOT_OURS = {"pip", "setuptools", "wheel"}


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        venv.create(place, with_pip=True)
        python = Path(place) / "bin" / "python"
        site = next((Path(place) / "lib").glob("python*/site-packages"))
        before = weight(site)
        install = [python, "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check", str(ROOT)]
        subprocess.run(install, check=True, stderr=subprocess.DEVNULL)
        names = [p.name.split("-")[0] for p in site.glob("*.dist-info")]
        packages = sorted(name for name in names if name not in NOT_OURS)
        print(f"Library + command line: {len(packages)} packages (at most 24), ", end="")
        print(f"{(weight(site) - before) / 1024 / 1024:.1f} MB (at most 32)")
        print(f"  {', '.join(packages)}")


def weight(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


if __name__ == "__main__":
    sys.exit(main())
