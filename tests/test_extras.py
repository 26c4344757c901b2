"""The extras of pyproject.toml: `all` has those that the library can use, and the docs name every one of them."""

from __future__ import annotations

import re
import tomllib

from checkout import ROOT

EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]
APART = {
    *("local", "claude-agent", "embeddings"),  # 100 MB and more
    *("course", "chroma", "dev", "docs", "bench"),  # for an example, or for work on Unbroken itself
}


def test_all_has_every_extra_but_the_big_ones_and_those_for_development() -> None:
    (listed,) = EXTRAS["all"]
    named = re.fullmatch(r"unbroken\[(.+)\]", listed)
    assert named is not None
    assert sorted(named[1].split(",")) == sorted(set(EXTRAS) - APART - {"all"})


def test_the_start_page_names_every_extra() -> None:
    page = (ROOT / "docs" / "start.md").read_text("utf-8").partition("## Install")[2].partition("\n## ")[0]
    assert set(EXTRAS) <= set(re.findall(r"`([a-z-]+)`", page))
