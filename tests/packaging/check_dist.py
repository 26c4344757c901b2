"""The sdists and the wheels as `make dist` has built them: what is in them, and that each works in an environment that
has never seen this checkout, the command on every supported Python that is here. Not part of `make test`: it installs
for minutes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Mapping
from email import message_from_string
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from installing import OURS, resolve, wheel_of

DIST = ROOT / "dist"
ALONE = Path(__file__).parent / "alone"
PROJECTS: dict[str, dict[str, Any]] = {
    name: tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"] for name, folder in OURS.items()
}
VERSION = PROJECTS["unbroken"]["version"]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
LEFTOVERS = re.compile(
    r"__pycache__|\.pyc$|\.(?:venv|git|ci|pytest_cache|ruff_cache|hypothesis)/|\.db(?:-|$)|^(?:dist|build|site)/"
)
GATEWAY = """\
[server]
port = 0

[[models]]
alias = "demo"
model = "demo"
"""
each_package = pytest.mark.parametrize("package", OURS)


def run(*command: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """What a command prints. Outside of the checkout, and without a path to its source."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        command, cwd=cwd, env={**clean, **(env or {})}, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def find_python(version: str) -> Path:
    """pyenv has programs for all its versions, of which only the chosen one works; others ignore the variable."""
    name = f"python{version}"
    if shutil.which(name) is not None:
        asked = [name, "-c", "import sys; print(sys.executable)"]
        env = {**os.environ, "PYENV_VERSION": version}
        done = subprocess.run(asked, env=env, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return Path(done.stdout.strip())
    pytest.skip(f"Python {version} is not installed here")


def check_program(program: Path | str, *before: str, cwd: Path) -> None:
    """The command works, and its demo runs to its end."""
    assert run(program, *before, "--version", cwd=cwd) == f"unbroken {VERSION}\n"
    shown = run(program, *before, "demo", "--pace", "0.1", cwd=cwd)
    assert re.findall(r"^(SEQUENTIAL|PARALLEL|EAGER) +3 +11 ", shown, re.MULTILINE) == [
        "SEQUENTIAL",
        "PARALLEL",
        "EAGER",
    ]
    assert "Each call ran once; the results are the same, in the same order." in shown


def environment(place: Path, version: str = "") -> Path:
    """The Python of a new environment, and beside it the configuration that the gateway's program reads."""
    run(find_python(version) if version else sys.executable, "-m", "venv", "env", cwd=place)
    (place / "gateway.toml").write_text(GATEWAY)
    return place / "env" / "bin" / "python"


def wheels(*requirements: str) -> list[str]:
    """For pip: the wheels of ours that these need, so that no index is asked for them."""
    return resolve([*requirements, "--wheels", str(DIST)])


def test_every_package_has_a_wheel_and_an_sdist_of_the_same_version() -> None:
    stems = [f"{name.replace('-', '_')}-{VERSION}" for name in OURS]
    built = [*(f"{stem}-py3-none-any.whl" for stem in stems), *(f"{stem}.tar.gz" for stem in stems)]
    assert sorted(path.name for path in DIST.iterdir() if path.name != ".gitignore") == sorted(built)


@each_package
def test_a_wheel_has_the_source_with_its_pages_and_nothing_else(package: str) -> None:
    with zipfile.ZipFile(wheel_of(package, DIST)) as wheel:
        packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    source = OURS[package] / "src"
    ours = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    assert packed == {name for name in ours if not LEFTOVERS.search(name)}
    assert f"{package.replace('-', '_')}/py.typed" in packed


@each_package
def test_the_metadata_of_a_wheel_is_that_of_its_project(package: str) -> None:
    with zipfile.ZipFile(wheel_of(package, DIST)) as wheel:
        (place,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = message_from_string(wheel.read(place).decode())
        assert place.replace("METADATA", "licenses/LICENSE") in wheel.namelist()
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload() == (OURS[package] / "README.md").read_text("utf-8")
    extras = PROJECTS[package].get("optional-dependencies", {})
    assert sorted(metadata.get_all("Provides-Extra", [])) == sorted(extras)


@each_package
def test_an_sdist_has_the_source_and_nothing_that_a_run_leaves(package: str) -> None:
    """Its tests need what tests share, in the root: they are in the checkout only."""
    with tarfile.open(DIST / f"{package.replace('-', '_')}-{VERSION}.tar.gz") as sdist:
        packed = {name.partition("/")[2] for name in sdist.getnames()}
    beside = {".gitignore", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"}  # hatchling adds the first
    assert {name for name in packed if not name.startswith("src/")} == beside
    listed = run("git", "ls-files", "src", cwd=OURS[package]).splitlines() if (ROOT / ".git").exists() else []
    assert {name for name in packed if name.startswith("src/")} == {*listed} or not listed
    assert [name for name in packed if LEFTOVERS.search(name)] == []


@each_package
def test_a_package_works_alone_with_what_it_requires(package: str, tmp_path: Path) -> None:
    python = environment(tmp_path)
    run(python, "-m", "pip", "install", "--quiet", *wheels(package), cwd=tmp_path)
    run(python, "-m", "pip", "check", cwd=tmp_path)
    run(python, ALONE / f"try_{package.replace('-', '_')}.py", cwd=tmp_path)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_command_installs_and_its_demo_runs(version: str, tmp_path: Path) -> None:
    python = environment(tmp_path, version)
    run(python, "-m", "pip", "install", "--quiet", *wheels("unbroken[cli]"), cwd=tmp_path)
    run(python, "-m", "pip", "check", cwd=tmp_path)
    check_program(tmp_path / "env" / "bin" / "unbroken", cwd=tmp_path)
    check_program(python, "-m", "unbroken", cwd=tmp_path)


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_all_packages_install_from_a_checkout_with_one_command(installer: str, tmp_path: Path) -> None:
    python = environment(tmp_path)
    uv = Path(sys.executable).with_name("uv")
    how = (python, "-m", "pip", "install") if installer == "pip" else (uv, "pip", "install", "--python", python)
    run(*how, "--quiet", *(f"./{folder.relative_to(ROOT)}" for folder in OURS.values()), cwd=ROOT)
    check_program(tmp_path / "env" / "bin" / "unbroken", cwd=tmp_path)
    run(python, ALONE / "try_unbroken_gateway.py", cwd=tmp_path)


@pytest.mark.parametrize("extra", ["all", "local"])
def test_every_extra_can_be_installed(extra: str, tmp_path: Path) -> None:
    """pip finds versions of all packages that fit each other; nothing is downloaded but descriptions of packages."""
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed", "--report", "-"]
    assert '"name": "aiohttp"' in run(*pip, *wheels(f"unbroken[{extra}]"), cwd=tmp_path)


def test_the_command_runs_with_pipx_and_uvx_without_being_installed(tmp_path: Path) -> None:
    tools = Path(sys.executable).parent
    home = {"PIPX_HOME": str(tmp_path / "pipx"), "UV_CACHE_DIR": str(tmp_path / "uv")}
    wheel = wheel_of("unbroken-cli", DIST)
    pipx = (tools / "pipx", "run", "--pip-args", f"--find-links {DIST}", "--spec", wheel)
    assert run(*pipx, "unbroken", "--version", cwd=tmp_path, env=home).startswith("unbroken ")
    uvx = (tools / "uvx", "--python", sys.executable, "--find-links", DIST, "--from", wheel)
    assert "Each call ran once" in run(*uvx, "unbroken", "demo", "--pace", "0.1", cwd=tmp_path, env=home)
