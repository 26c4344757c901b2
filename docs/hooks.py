"""What mkdocs does with these pages beside its own work: what leads out of the site is mended.

On GitHub a page may link to any file of the checkout. The site has only pages: some that stand outside docs/ are taken
in (`TAKEN_IN`), a link to any other file becomes its path. And the one script that the theme would fetch from elsewhere
is ours. The colours of code are `highlighting`'s, the two languages `languages`', and search passes over examples. The
home pages have no columns beside them. Nothing else is changed here.
"""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path
from typing import Any

import highlighting
import languages
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.utils import get_relative_url

ROOT = Path(__file__).parents[1]
TAKEN_IN = ("deploy/README.md", "examples/*/README.md")
"""Pages outside docs/ that the site has too, at the place that they have in the checkout."""
FETCHED = "https://unpkg.com/iframe-worker/shim"
"""Search from a disk, in the theme's own way."""
EXAMPLE = re.compile(r'<div (class="language-py(?:thon)? highlight")')
NO_HEAD = re.compile(r"<thead>\s*<tr>\s*(?:<th[^>]*></th>\s*)+</tr>\s*</thead>")
NO_NAME = re.compile(r"<th([^>]*)></th>")
"""Markdown has no table without a head; a screen reader would read out empty ones."""
SEARCH = 'data-md-component="search" role="dialog"'
SECTION = re.compile(
    r'(<nav class="md-nav" data-md-level="\d" )aria-labelledby="(\w+)_label"'
    r'([^>]*>\s*<label class="md-nav__title" for="\2">\s*<span[^>]*></span>\s*)([^<]*?)(\s*</label>)'
)
"""Parts of a page that the theme leaves without a name for screen readers."""
TWIN = re.compile(r"^\[English\]\([\w-]+\.md\)\n\n", re.MULTILINE)
"""For readers on a code host; here the header links to the twin."""
WRITTEN = re.compile(r"^<!-- ::: (\S+) -->\n(#+) .*?^<!-- ::: -->$", re.DOTALL | re.MULTILINE)
"""An entry of the reference that `reference_pages` wrote, for readers on a code host; mkdocstrings shows more here."""
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#:\s]+)(#[^)\s]*)?\)")

_built: dict[str, Files] = {}
"""The files of this build; not every event gets them."""

logging.getLogger("jieba").setLevel(logging.WARNING)  # it reports how it loads its words
highlighting.register()


def on_files(files: Files, config: Any) -> Files:
    for pattern in TAKEN_IN:
        for page in sorted(ROOT.glob(pattern)):
            taken = File.generated(config, page.relative_to(ROOT).as_posix(), abs_src_path=str(page))
            taken.name = page.stem  # a README would be an index, and the theme gives an index the name of its section
            files.append(taken)
            for picture in sorted(page.parent.rglob("*.png")):
                name = picture.relative_to(ROOT).as_posix()
                files.append(File.generated(config, name, abs_src_path=str(picture)))
    return files


def on_nav(nav: Navigation, config: Any, files: Files) -> Navigation:
    _built["files"] = files
    return languages.divide(nav)


def on_page_context(context: Any, page: Any, config: Any, nav: Navigation) -> Any:
    languages.set_language(context, page, config, _built["files"])
    if page.file.src_uri in languages.HOMES:
        page.meta["hide"] = ["navigation", "toc"]
    return context


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    place = page.file.src_uri
    here = place if page.file.generated_by else f"docs/{place}"  # in the checkout
    markdown = WRITTEN.sub(
        lambda entry: f"::: {entry[1]}\n    options:\n      heading_level: {len(entry[2])}\n", markdown
    )

    def mend(link: re.Match[str]) -> str:
        mark, words, target, anchor = link.groups()
        there = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
        on_site = there.removeprefix("docs/")
        if files.get_file_from_path(on_site) is not None:
            return f"{mark}[{words}]({posixpath.relpath(on_site, posixpath.dirname(place) or '.')}{anchor or ''})"
        if (ROOT / there).exists():
            return f"`{there}`" if words.strip("`/") in there else f"{words} (`{there}`)"
        return link[0]

    return LINK.sub(mend, TWIN.sub("", markdown, count=1))


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Search finds what pages say, what commands print and the signatures of the reference, not all lines of examples:
    a hit shows its whole block."""
    html = NO_NAME.sub(r"<td\1></td>", NO_HEAD.sub("", html))
    return EXAMPLE.sub(r"<div data-search-exclude \1", html)


def on_post_page(output: str, page: Any, config: Any) -> str:
    languages.reset(config)
    name = "搜索" if languages.is_chinese(page) else "Search"
    output = output.replace(SEARCH, f'{SEARCH} aria-label="{name}"')
    output = SECTION.sub(r'\1aria-label="\4"\3\4\5', output)
    return output.replace(FETCHED, get_relative_url("search-from-disk.js", page.url))


def on_post_template(output_content: str, template_name: str, config: Any) -> str:
    return re.sub(rf'<script src="?{re.escape(FETCHED)}"?></script>', "", output_content)
