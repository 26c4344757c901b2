"""The sdist and the wheel as `make dist` has built them: what is in them, and that the wheel works in environments that
have never seen this checkout, on every supported Python that is here. Not part of `make test`: it installs for minutes.
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

import pytest
from checkout import ROOT

(WHEEL,) = (ROOT / "dist").glob("*.whl")
(SDIST,) = (ROOT / "dist").glob("*.tar.gz")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
LEFTOVERS = re.compile(
    r"__pycache__|\.pyc$|\.(?:venv|git|ci|pytest_cache|ruff_cache|hypothesis)/|\.db(?:-|$)|^(?:dist|build|site)/"
)


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
    assert run(program, *before, "--version", cwd=cwd) == f"unbroken {WHEEL.name.split('-')[1]}\n"
    shown = run(program, *before, "demo", "--pace", "0.1", cwd=cwd)
    assert re.findall(r"^(SEQUENTIAL|PARALLEL|EAGER) +3 +11 ", shown, re.MULTILINE) == [
        "SEQUENTIAL",
        "PARALLEL",
        "EAGER",
    ]
    assert "Each call ran once; the results are the same, in the same order." in shown


def test_the_wheel_has_the_package_with_its_pages_and_nothing_else() -> None:
    with zipfile.ZipFile(WHEEL) as wheel:
        packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    source = ROOT / "src"
    ours = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    assert packed == {name for name in ours if not LEFTOVERS.search(name) and ".egg-info" not in name}
    assert {"unbroken/py.typed", "unbroken/viewer/page/page.html", "unbroken/cli/demo.py"} <= packed


def test_the_metadata_of_the_wheel_is_that_of_the_project() -> None:
    with zipfile.ZipFile(WHEEL) as wheel:
        (place,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = message_from_string(wheel.read(place).decode())
        assert place.replace("METADATA", "licenses/LICENSE") in wheel.namelist()
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload() == (ROOT / "README.md").read_text("utf-8")
    assert sorted(metadata.get_all("Provides-Extra", [])) == sorted(PROJECT["optional-dependencies"])


def test_the_sdist_has_what_its_tests_and_docs_need_and_nothing_that_a_run_leaves() -> None:
    with tarfile.open(SDIST) as sdist:
        packed = {name.partition("/")[2] for name in sdist.getnames()}
    listed = run("git", "ls-files", cwd=ROOT).splitlines() if (ROOT / ".git").exists() else []
    wanted = {name for name in listed if not name.startswith(".ci/")}
    assert packed - {"PKG-INFO"} == wanted or not listed
    assert {"LICENSE", "conftest.py", "Makefile", "packages/unbroken/src/unbroken/__init__.py"} <= packed
    assert [name for name in packed if LEFTOVERS.search(name)] == []


@pytest.mark.parametrize("version", VERSIONS)
def test_the_wheel_installs_and_its_demo_runs(version: str, tmp_path: Path) -> None:
    run(find_python(version), "-m", "venv", "env", cwd=tmp_path)
    python = tmp_path / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", WHEEL, cwd=tmp_path)
    run(python, "-m", "pip", "check", cwd=tmp_path)
    check_program(tmp_path / "env" / "bin" / "unbroken", cwd=tmp_path)
    check_program(python, "-m", "unbroken", cwd=tmp_path)


def test_every_extra_can_be_installed(tmp_path: Path) -> None:
    """pip finds versions of all packages that fit each other; nothing is downloaded but descriptions of packages."""
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed", "--report", "-"]
    for extra in ("all", "local"):
        report = run(*pip, f"unbroken[{extra}] @ {WHEEL.as_uri()}", cwd=tmp_path)
        assert '"name": "aiohttp"' in report


def test_the_command_runs_with_pipx_and_uvx_without_being_installed(tmp_path: Path) -> None:
    tools = Path(sys.executable).parent
    home = {"PIPX_HOME": str(tmp_path / "pipx"), "UV_CACHE_DIR": str(tmp_path / "uv")}
    shown = run(tools / "pipx", "run", "--spec", WHEEL, "unbroken", "--version", cwd=tmp_path, env=home)
    assert shown.startswith("unbroken ")
    uvx = (tools / "uvx", "--python", sys.executable, "--from", WHEEL)
    assert "Each call ran once" in run(*uvx, "unbroken", "demo", "--pace", "0.1", cwd=tmp_path, env=home)
