"""What users install is what is tested here: the wheels hold the files of the tree, byte for byte, and each package
works from its wheel without the others. `make dist` checks the sdists, and each package with nothing else installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from check_dist import ALONE, GATEWAY, each_package
from hatchling.builders.wheel import WheelBuilder
from installing import OURS, add_ours, wheel_of


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    for package in OURS.values():
        for _ in WheelBuilder(str(package)).build(directory=str(folder)):
            pass
    return folder


@pytest.fixture(scope="module")
def unpacked(wheels: Path) -> dict[str, Path]:
    """What each wheel installs, once: what has been compiled of it is shared."""
    folders = {package: wheels / package for package in OURS}
    for package, folder in folders.items():
        with zipfile.ZipFile(wheel_of(package, wheels)) as wheel:
            wheel.extractall(folder)
    return folders


@each_package
def test_a_wheel_holds_the_files_that_are_tested(package: str, wheels: Path) -> None:
    source = OURS[package] / "src"
    files = (path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    with zipfile.ZipFile(wheel_of(package, wheels)) as wheel:
        packed = {name: wheel.read(name) for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == {path.relative_to(source).as_posix(): path.read_bytes() for path in files}


@each_package
def test_a_package_works_from_its_wheel_without_those_that_it_does_not_require(
    package: str, unpacked: dict[str, Path], tmp_path: Path
) -> None:
    venv.create(tmp_path / "env", symlinks=True)
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    for folder in (Path(path) for path in sys.path if path.endswith("site-packages")):
        for entry in folder.iterdir():  # what others have written; of ours nothing, not even a link to the tree
            if not entry.name.startswith(("unbroken", "_editable")) and entry.suffix != ".pth":
                (site / entry.name).symlink_to(entry)
    needed: set[str] = set()
    add_ours(package, needed)
    for name in needed:
        for entry in unpacked[name].iterdir():
            (site / entry.name).symlink_to(entry)
    program = tmp_path / "env" / "bin" / "unbroken"
    program.write_text(f"#!{program.parent / 'python'}\nfrom unbroken_cli import main\nmain()\n")
    program.chmod(0o755)
    (tmp_path / "gateway.toml").write_text(GATEWAY)
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [program.with_name("python"), ALONE / f"try_{package.replace('-', '_')}.py"]
    done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
