"""The README of each package is short, its example prints what it shows, and what it names exists. Its Python and its
links are run and followed by test_docs.py, too."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from checkout import PACKAGES, ROOT
from test_docs import blocks
from typer.main import get_command

from unbroken_cli.commands import build

READMES = sorted(PACKAGES.glob("*/README.md"))
EACH = pytest.mark.parametrize("readme", READMES, ids=lambda readme: readme.parent.name)


def test_every_package_has_a_readme() -> None:
    assert [readme.parent for readme in READMES] == sorted(path.parent for path in PACKAGES.glob("*/pyproject.toml"))


@EACH
def test_a_readme_is_read_in_two_minutes_and_has_an_example(readme: Path) -> None:
    assert len(readme.read_text("utf-8").split()) <= 400
    assert blocks(readme, "python")


@EACH
def test_the_example_prints_what_its_comments_show(
    readme: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = blocks(readme, "python")
    exec(compile(code, str(readme), "exec", dont_inherit=True), {"__name__": "__page__"})
    shown = [comment.partition(":")[0] for comment in re.findall(r"\bprint\(.*\)  # (.+)", code)]
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(shown)
    for line, wanted in zip(printed, shown, strict=True):
        assert line.startswith(wanted.removesuffix("…"))


@EACH
def test_every_file_that_a_readme_names_exists_and_every_folder_is_named(readme: Path) -> None:
    (source,) = (path for path in (readme.parent / "src").iterdir() if path.is_dir())
    prose = re.sub(r"^```.*?^```", "", readme.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    named = set(re.findall(r"`((?:[\w*]+/)*[\w*]+(?:\.py|\.js|/))`", prose))
    below = [readme.parent, *PACKAGES.glob("*/src"), *PACKAGES.glob("*/src/*"), *source.glob("wires/*")]
    assert [name for name in named if not any(any(folder.glob(name.rstrip("/"))) for folder in below)] == []
    folders = {f"{file.parent.name}/" for file in source.glob("*/__init__.py")}
    assert folders - named == set()


@EACH
def test_every_command_and_extra_of_a_readme_exists(readme: Path) -> None:
    text = readme.read_text("utf-8")
    core = tomllib.loads((PACKAGES / "unbroken" / "pyproject.toml").read_text("utf-8"))["project"]
    named = {extra for extras in re.findall(r"'unbroken\[([\w,-]+)\]'", text) for extra in extras.split(",")}
    assert named <= set(core["optional-dependencies"])
    command: Any = get_command(build())
    for line in re.findall(r"^unbroken .*", "\n".join(blocks(readme, "sh")), re.MULTILINE):
        found, rest = command, shlex.split(line.partition("  #")[0])[1:]
        while rest and rest[0] in getattr(found, "commands", {}):
            found, rest = found.commands[rest[0]], rest[1:]
        found.make_context("unbroken", rest, resilient_parsing=True)


def test_what_contributing_says_where_to_look_exists() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("## Where to look")[2].partition("\n## ")[0]
    named = re.findall(r"`(unbroken\w*/[\w/*]+(?:\.py|\.js|/))`", table)
    assert len(named) >= 10
    assert [name for name in named if not any(PACKAGES.glob(f"*/src/{name.rstrip('/')}"))] == []
    words = " ".join(
        path.read_text("utf-8") for name in named for path in PACKAGES.glob(f"*/src/{name}") if path.is_file()
    )
    assert [word for word in re.findall(r"\(`(\w+)`\)", table) if not re.search(rf"\b{word}\b", words)] == []
