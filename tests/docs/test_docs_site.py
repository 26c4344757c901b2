"""The documentation site is consistent: its nav, its links, its reference. mkdocs itself is not needed here; `make
docs` builds the site and fails at the first warning."""

from __future__ import annotations

import importlib
import re
import runpy
from pathlib import Path
from types import ModuleType

import pytest
from checkout import PACKAGES, ROOT
from documented_names import documented_names

import unbroken
import unbroken_dph as dph
import unbroken_gateway as gateway
import unbroken_testing as testing
import unbroken_viewer as viewer

DOCS = ROOT / "docs"
CONFIGURATION = (ROOT / "mkdocs.yml").read_text("utf-8")
PAGES = sorted(DOCS.rglob("*.md"))
LINK = re.compile(r"\]\(([^)\s#:]*)(?:#([^)\s]*))?\)")
OUTSIDE = [ROOT / "CONTRIBUTING.md", *ROOT.glob("README*.md"), *ROOT.glob("deploy/*.md"), *ROOT.glob("examples/*/*.md")]


def nav() -> list[str]:
    listed = re.search(r"^nav:\n((?: .*\n|\n)+)", CONFIGURATION, re.MULTILINE)
    assert listed is not None
    return re.findall(r"(\S+\.md)\s*$", listed[1], re.MULTILINE)


def prose_of(page: Path) -> str:
    """Without its code, in which a line may begin with # and brackets may follow each other."""
    text = re.sub(r"^( *)```.*?^\1```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"``[^\n]+?``|`[^`\n]*`", lambda code: code[0].replace("](", "] ("), text)


def anchors(page: Path) -> list[str]:
    """The anchors as the site and GitHub generate them. A repeated heading gets a number in a different form on each:
    nobody links to it."""
    found = re.findall(r"^#+ (.+)$", prose_of(page), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in found]


def test_every_page_is_in_the_nav_exactly_once() -> None:
    listed = nav()
    assert sorted(listed) == sorted(set(listed))
    assert [page for page in PAGES if page.relative_to(DOCS).as_posix() not in listed] == []


def test_every_entry_of_the_nav_is_a_page() -> None:
    """A page outside docs/ is included by docs/hooks.py, if it is listed there."""
    taken_in = re.search(r"TAKEN_IN = \((.*?)\)", (DOCS / "hooks.py").read_text("utf-8"))
    assert taken_in is not None
    outside = {
        path.relative_to(ROOT).as_posix() for glob in re.findall(r'"(.+?)"', taken_in[1]) for path in ROOT.glob(glob)
    }
    assert [entry for entry in nav() if not (DOCS / entry).is_file() and entry not in outside] == []


@pytest.mark.parametrize("page", [*PAGES, *OUTSIDE], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    wrong: list[str] = []
    for target, anchor in LINK.findall(prose_of(page)):
        other = (page.parent / target).resolve() if target else page
        if not other.exists() or (anchor and anchor not in anchors(other)):
            wrong.append(f"{target}#{anchor}" if anchor else target)
    assert wrong == []


@pytest.mark.parametrize("room", [unbroken, testing, gateway, dph, viewer], ids=lambda room: room.__name__)
def test_every_public_name_is_in_the_reference_once(room: ModuleType) -> None:
    pages = "\n".join(page.read_text("utf-8") for page in (DOCS / "reference").glob("*.md"))
    told = re.findall(r"^<!-- ::: (unbroken\w*(?:\.\w+)*)\.(\w+) -->$", pages, re.MULTILINE)
    elsewhere = set[str]() if room is unbroken else set(unbroken.__all__)
    wanted = sorted(set(room.__all__) - elsewhere)
    assert sorted(name for where, name in told if where == room.__name__) == wanted


def test_every_entry_of_the_reference_is_there_once() -> None:
    entries = [(module, name) for module, name, value in documented_names() if value is not None]
    assert len(entries) > 180  # they were found at all
    assert sorted(set(entries)) == sorted(entries)


def test_the_pages_of_the_reference_are_written_from_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that they can be read on a code host, where there is no mkdocstrings."""
    monkeypatch.syspath_prepend(DOCS)  # pyright: ignore[reportUnknownMemberType] - partly typed
    written: dict[Path, str] = importlib.import_module("reference_pages").pages()
    assert len(written) >= 15
    for page, text in written.items():
        assert page.read_text("utf-8") == text, "run: python docs/reference_pages.py"
    agent = written[DOCS / "reference" / "agent.md"]
    assert "class unbroken.Agent(\n    model: Model | str,\n" in agent
    assert "- `await run(prompt=…, *, output=…, **options)`: Ask, and run tools until there is an answer." in agent


def test_the_loop_is_shown_from_its_source() -> None:
    page = (DOCS / "how-it-works.md").read_text("utf-8")
    loop, rounds = re.findall(r'^--8<-- "(.+)"$', page, re.MULTILINE)
    source = (ROOT / loop).read_text("utf-8") + (ROOT / rounds).read_text("utf-8")
    drawing = page.split("```text\n")[1].split("```")[0]
    drawn = set(re.findall(r"\b(?:_?[a-z]+_[a-z_]+|play|listen)\b", drawing))
    assert len(drawn) >= 8
    assert [name for name in drawn if not re.search(rf"\b{name}\b", source)] == []


def test_the_names_for_those_of_the_design_documents_are_in_the_source() -> None:
    source = "\n".join(path.read_text("utf-8") for path in PACKAGES.glob("*/src/**/*.py"))
    known = set(re.findall(r"\w+", source))
    page = (DOCS / "names.md").read_text("utf-8")
    rows = re.findall(r"^\| (?!there|---)(.+) \| (.+) \|$", page, re.MULTILINE)
    assert len(rows) >= 60
    words = {
        word for _, here in rows for code in re.findall(r"`([^`]+)`", here) for word in re.findall(r"[A-Za-z]\w+", code)
    }
    prefixed = {"UNBROKEN_ENABLE_PARALLEL_TOOL_CALLS"}  # made of a prefix and the flag
    assert words - known - prefixed == set()


TWINS = [page for page in [*PAGES, ROOT / "README.zh-CN.md"] if page.name.endswith(".zh-CN.md")]


def test_a_page_in_chinese_links_to_pages_in_chinese_where_there_are_some() -> None:
    for page in TWINS:
        others = {(page.parent / target).resolve() for target, _ in LINK.findall(prose_of(page))}
        own = page.with_name(page.name.replace(".zh-CN", ""))
        assert {other for other in others if other.with_suffix(".zh-CN.md") in TWINS} <= {own}, page.name


def test_a_page_in_chinese_has_the_sections_of_its_twin() -> None:
    """So that a section that is new in English is not forgotten in Chinese."""
    assert len(TWINS) >= 9
    for page in TWINS:
        english = page.with_name(page.name.replace(".zh-CN", ""))
        assert f"]({english.name})" in page.read_text("utf-8").split("##")[0] or english == DOCS / "index.md", page.name
        sections = [len(re.findall(r"^## ", prose_of(each), re.MULTILINE)) for each in (english, page)]
        assert sections[0] == sections[1], page.name


def test_the_waterfall_of_the_home_page_is_drawn_from_its_run() -> None:
    drawn = runpy.run_path(str(DOCS / "waterfall_picture.py"))["pictures"]()
    assert len(drawn) == 4
    for name, content in drawn.items():
        assert (DOCS / name).read_text("utf-8") == content, "run: python docs/waterfall_picture.py"


def test_every_picture_of_a_terminal_is_drawn_by_a_scene_and_shown_on_a_page() -> None:
    """`make docs` runs the commands again and compares."""
    drawn = sorted(picture.stem for picture in (DOCS / "terminal").glob("*.svg"))
    scenes = re.findall(r'^    "([\w-]+)": Scene\(', (DOCS / "terminal_scenes.py").read_text("utf-8"), re.MULTILINE)
    shown = re.findall(r"\(\.\./terminal/([\w-]+)\.svg\)", "".join(page.read_text("utf-8") for page in PAGES))
    assert drawn == sorted(scenes) == sorted(set(shown))
    assert len(drawn) >= 10


def test_the_site_fetches_nothing_from_elsewhere() -> None:
    assert re.search(r"^  font: false$", CONFIGURATION, re.MULTILINE)
    assert re.findall(r"https?://", CONFIGURATION) == []
    for asset in [*DOCS.glob("*.css"), *DOCS.glob("*.js"), *DOCS.glob("theme/**/*.html")]:
        fetched = asset.read_text("utf-8").replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert re.findall(r"https?://", fetched) == [], asset.name
    for picture in DOCS.rglob("*.svg"):
        assert re.findall(r"@import|@font-face|href=|url\(", picture.read_text("utf-8")) == [], picture.name


def test_the_navigation_in_chinese_has_every_part_of_that_in_english() -> None:
    """A page without a twin is linked in English; the parts and the pages in Chinese have Chinese titles."""
    nav = CONFIGURATION.partition("\nnav:\n")[2].partition("\nvalidation:")[0]
    english, _, chinese = nav.partition("  - 中文:")
    twins = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.zh-CN.md")}
    assert set(re.findall(r"^      - (\S+)$", chinese, re.MULTILINE)) == twins
    source = (DOCS / "languages.py").read_text("utf-8")
    entries = re.findall(r"^( +)- (?:(.+?): ?)?(\S+\.md)?$", english, re.MULTILINE)
    for _, title, page in entries:
        if not page or page.replace(".md", ".zh-CN.md") in twins:
            assert f'    "{title or page}": "' in source, title or page
    assert {"recipes/index.zh-CN.md", "recipes/one-call.zh-CN.md"} <= twins
