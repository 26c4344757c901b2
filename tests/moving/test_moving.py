"""The code that docs/moving shows for Unbroken runs, leads to what its topic says, and is not longer than the code that
it replaces. `make test-moving` runs the other code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from moving.page_code import MODEL_KEY, PAGES, add_to_path, check, count_lines, prepare_folder, read_pairs
from moving.topics import TOPICS
from unbroken_testing import serve


def code_of(name: str) -> str:
    """The code after, which must be the same on each page that has the topic."""
    (code,) = {pairs[name].after for pairs in map(read_pairs, PAGES) if name in pairs}
    return code


@pytest.mark.parametrize("name", TOPICS)
def test_the_code_after_does_what_its_topic_says(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, names = TOPICS[name], dict[str, Any](__name__="__after__")
    prepare_folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", add_to_path(os.environ["PATH"]))
    with serve(*topic.answers, scripts=topic.scripts) as server:
        for variable, value in {**MODEL_KEY, "OPENAI_BASE_URL": server.base_url()}.items():
            monkeypatch.setenv(variable, value)
        exec(compile(code_of(name), name, "exec", dont_inherit=True), names)
    outcome = {key: _plain(names[key]) for key in topic.outcome}
    check(topic, outcome, capsys.readouterr().out, server)


def _plain(value: Any) -> Any:
    return value.model_dump() if hasattr(value, "model_dump") else value


@pytest.mark.parametrize("library", PAGES)
def test_no_code_after_is_longer_than_the_code_before(library: str) -> None:
    longer = [name for name, pair in read_pairs(library).items() if count_lines(pair.after) > count_lines(pair.before)]
    assert longer == []


@pytest.mark.parametrize("library", PAGES)
def test_the_table_has_every_topic_and_says_which_the_library_lacks(library: str) -> None:
    text, shown = PAGES[library].read_text("utf-8"), read_pairs(library)
    for name, topic in TOPICS.items():
        start = f"| [{topic.title}](" if name in shown else f"| {topic.title} | not "
        assert text.count(f"\n{start}") == 1, topic.title


@pytest.mark.parametrize("library", PAGES)
def test_every_section_with_code_is_a_topic(library: str) -> None:
    text = PAGES[library].read_text("utf-8")
    assert text.count("\n```py\n") == 2 * len(read_pairs(library))
