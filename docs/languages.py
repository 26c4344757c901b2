"""The pages in Chinese: `start.zh-CN.md` is the twin of `start.md`, and stands beside it.

A page in Chinese has the navigation, the words of the theme and the language of Chinese; the header of each page links
to its twin, or to the home page of the other language. mkdocs-static-i18n does the same by building every page once for
each language, the reference included; here a page without a twin is built once.
"""

from __future__ import annotations

from typing import Any

from mkdocs.structure.files import Files
from mkdocs.structure.nav import Navigation, Section

SECTION = "中文"
"""The part of the nav in mkdocs.yml that pages in Chinese have in place of the others."""
SUFFIX = ".zh-CN.md"
HOMES = ("index.md", "index.zh-CN.md")

_navs: dict[str, Navigation] = {}


def is_chinese(page: Any) -> bool:
    return page.file.src_uri.endswith(SUFFIX)


def divide(nav: Navigation) -> Navigation:
    """One nav for each language. Returns the complete one, of which mkdocs builds the pages."""
    (chinese,) = [item for item in nav.items if isinstance(item, Section) and item.title == SECTION]
    for child in chinese.children:
        child.parent = None
    others = [item for item in nav.items if item is not chinese]
    for language, items in (("en", others), ("zh", chinese.children)):
        pages = [page for page in nav.pages if is_chinese(page) == (language == "zh")]
        for before, page, after in zip([None, *pages[:-1]], pages, [*pages[1:], None], strict=True):
            page.previous_page, page.next_page = before, after
        _navs[language] = Navigation(items, pages)
        homes = [page for page in pages if page.file.src_uri in HOMES]
        _navs[language].homepage = homes[0]
    return nav


def set_language(context: Any, page: Any, config: Any, files: Files) -> None:
    """For the templates of one page; `reset` undoes it."""
    language = "zh" if is_chinese(page) else "en"
    config.theme["language"] = language
    context["nav"] = _navs[language]
    names = {"en": "English", "zh": "中文"}
    config.extra["alternate"] = [
        {"name": name, "lang": lang, "link": _twin(page, lang, files)} for lang, name in names.items()
    ]


def reset(config: Any) -> None:
    config.theme["language"] = "en"


def _twin(page: Any, language: str, files: Files) -> str:
    english = page.file.src_uri.replace(SUFFIX, ".md")
    wanted = english.removesuffix(".md") + SUFFIX if language == "zh" else english
    found = files.get_file_from_path(wanted) or files.get_file_from_path(HOMES[language == "zh"])
    assert found is not None
    return found.url
