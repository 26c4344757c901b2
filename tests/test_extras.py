"""The packages fit each other: one version, exact pins, entry points that load, extras that name what exists."""

from __future__ import annotations

import re
import tomllib
from importlib import import_module
from itertools import pairwise
from typing import Any

import pytest
from checkout import DOCS, ROOT
from installing import OURS, name_and_extras, requirements_of_group, resolve

import unbroken

PROJECTS: dict[str, dict[str, Any]] = {
    name: tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"] for name, folder in OURS.items()
}
EXTRAS: dict[str, list[str]] = PROJECTS["unbroken"]["optional-dependencies"]
APART = {"local"}  # 100 MB and more


def requirements(name: str) -> list[str]:
    extras: dict[str, list[str]] = PROJECTS[name].get("optional-dependencies", {})
    return [*PROJECTS[name]["dependencies"], *(each for listed in extras.values() for each in listed)]


def test_all_packages_have_one_version() -> None:
    assert {project["version"] for project in PROJECTS.values()} == {unbroken.__version__}


@pytest.mark.parametrize("package", OURS)
def test_packages_of_ours_are_required_in_exactly_this_version(package: str) -> None:
    """But for `all`, which names other extras of the same package."""
    ours = [each for each in requirements(package) if name_and_extras(each)[0] in {*OURS} - {package}]
    assert [each for each in ours if not each.endswith(f"=={unbroken.__version__}")] == []


@pytest.mark.parametrize("package", OURS)
def test_an_extra_that_is_required_exists(package: str) -> None:
    for requirement in requirements(package):
        name, extras = name_and_extras(requirement)
        if name in OURS:
            assert extras <= {*PROJECTS[name].get("optional-dependencies", ())}, requirement
        else:
            assert not name.startswith("unbroken"), requirement


def test_an_extra_of_the_library_names_every_other_package_and_is_called_like_it() -> None:
    for package in {*OURS} - {"unbroken", "unbroken-wires"}:
        named = {name_and_extras(each)[0] for each in EXTRAS[package.removeprefix("unbroken-")]}
        assert package in named


def test_the_workspace_has_all_packages() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]
    assert sorted(tool["uv"]["sources"]) == sorted(OURS)
    ours = {name.replace("-", "_") for name in OURS}
    assert ours <= {*tool["ruff"]["lint"]["isort"]["known-first-party"]}


@pytest.mark.parametrize("package", OURS)
def test_entry_points_and_scripts_load(package: str) -> None:
    groups: dict[str, dict[str, str]] = PROJECTS[package].get("entry-points", {})
    places = [place for group in [*groups.values(), PROJECTS[package].get("scripts", {})] for place in group.values()]
    for place in places:
        module, _, name = place.partition(":")
        assert module.split(".")[0] == package.replace("-", "_")
        assert not name or callable(getattr(import_module(module), name))


@pytest.mark.parametrize("package", OURS)
def test_a_package_has_its_types_its_licence_and_its_readme(package: str) -> None:
    folder = OURS[package]
    assert (folder / "src" / package.replace("-", "_") / "py.typed").is_file()
    assert (folder / "LICENSE").read_text("utf-8") == (ROOT / "LICENSE").read_text("utf-8")
    assert (folder / "README.md").read_text("utf-8").startswith(f"# {package}\n")


@pytest.mark.parametrize("requirement", ["unbroken", "unbroken-cli", "unbroken[all]", "--group dev", "--group test"])
def test_nothing_of_ours_is_searched_on_an_index(requirement: str) -> None:
    """What the Makefile installs: our packages are folders, with all of ours that they need."""
    resolved = resolve(requirement.split())
    folders = {name_and_extras(each.rpartition("/")[2])[0] for before, each in pairwise(resolved) if before == "-e"}
    assert "unbroken-wires" in folders
    for package in folders:
        assert {name_and_extras(each)[0] for each in PROJECTS[package]["dependencies"]} & {*OURS} <= folders
    assert [each for each in resolved if each.startswith("unbroken")] == []


def test_development_needs_all_packages() -> None:
    assert {name for name in OURS if any(name in each for each in resolve(["--group", "dev"]))} == {*OURS}
    assert {*requirements_of_group("test")} < {*requirements_of_group("dev")}


def test_all_has_every_extra_but_the_big_ones() -> None:
    (listed,) = EXTRAS["all"]
    name, extras = name_and_extras(listed)
    assert name == "unbroken"
    assert sorted(extras) == sorted(set(EXTRAS) - APART - {"all"})


def test_the_start_page_names_every_extra() -> None:
    page = (DOCS / "start.md").read_text("utf-8").partition("## Install")[2].partition("\n## ")[0]
    assert set(EXTRAS) <= set(re.findall(r"`([a-z-]+)`", page))
