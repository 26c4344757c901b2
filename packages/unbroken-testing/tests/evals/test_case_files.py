"""Files of cases: YAML, JSON, JSON Lines and Python; and the line of a mistake."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from checkout import DOCS
from hidden_packages import hidden

from unbroken.errors import UserError
from unbroken_testing.evals import Case, Scorer, read_cases
from unbroken_testing.evals.scorers import scorers_of
from unbroken_wires.messages import Assistant, User

needs_yaml = pytest.mark.skipif(
    importlib.util.find_spec("yaml") is None, reason="PyYAML is not installed here (the extra `eval`)"
)

WEATHER: dict[str, Any] = {
    "id": "oslo",
    "prompt": "Weather in Oslo?",
    "tools": ["search", {"get_weather": {"city": "Oslo"}}],
    "score": [
        {"contains": ["snow", 3]},
        {"contains": {"texts": "SNOW", "ignore_case": True}},
        {"exact": 42},
        {"called": {"calls": ["search"], "only": True}},
        {"called": {"only": True}},
        {"judge": {"rubric": "Is short.", "model": "ollama:judge", "threshold": 0.5}},
    ],
    "tags": ["smoke"],
    "timeout": 30,
    "limits": {"rounds": 4, "tokens": 1000},
    "pass_rate": 0.5,
}
NAMES = [
    'called `search`, `get_weather(city="Oslo")`',
    'contains "snow", "3"',
    'contains "SNOW" in any case',
    'exact "42"',
    "called `search` and nothing else",
    "called nothing",
    "judge: Is short.",
]


def write(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text, "utf-8")
    return file


def check_weather(case: Case) -> None:
    assert (case.id, case.prompt, case.tags, case.timeout, case.pass_rate) == (
        "oslo",
        "Weather in Oslo?",
        ["smoke"],
        30,
        0.5,
    )
    assert case.limits is not None
    assert (case.limits.rounds, case.limits.tokens, case.limits.calls) == (4, 1000, None)
    assert [scorer.name for scorer in scorers_of(case)] == NAMES
    assert scorers_of(case)[-1].threshold == 0.5


@pytest.mark.parametrize("shape", ["list", "object", "lines"])
def test_cases_in_json(tmp_path: Path, shape: str) -> None:
    second: dict[str, Any] = {
        "id": 2,
        "messages": [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}],
    }
    second["prompt"] = "And?"
    listed = [WEATHER, second]
    text = (
        "\n\n".join(map(json.dumps, listed))
        if shape == "lines"
        else json.dumps(listed if shape == "list" else {"cases": listed}, indent=2)
    )
    first, other = read_cases(write(tmp_path, f"cases.{'jsonl' if shape == 'lines' else 'json'}", text))
    check_weather(first)
    assert (other.id, list(other.messages)) == ("2", [User.of("Hi."), Assistant("Hello.")])


@needs_yaml
def test_cases_in_yaml(tmp_path: Path) -> None:
    text = """
- id: oslo
  prompt: Weather in Oslo?
  tools: [search, {get_weather: {city: Oslo}}]
  score:
    - contains: [snow, 3]
    - contains: {texts: SNOW, ignore_case: true}
    - exact: 42
    - called: {calls: [search], only: true}
    - called: {only: true}
    - judge: {rubric: Is short., model: "ollama:judge", threshold: 0.5}
  tags: smoke
  timeout: 30
  limits: {rounds: 4, tokens: 1000}
  pass_rate: 0.5
"""
    check_weather(*read_cases(write(tmp_path, "cases.yaml", text)))
    check_weather(*read_cases(write(tmp_path, "more.yml", f"cases:\n{text}")))


@needs_yaml
def test_the_cases_of_the_page_are_read(tmp_path: Path) -> None:
    page = (DOCS / "evals.md").read_text("utf-8")
    text = page.partition("```yaml\n")[2].partition("```")[0]
    cases = read_cases(write(tmp_path, "cases.yaml", text))
    assert [(case.id, len(scorers_of(case))) for case in cases] == [("oslo", 2), ("two-cities", 2), ("greeting", 2)]


@needs_yaml
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- id: a\n  prompt: [", "line 2: it is not YAML: while parsing"),
        ("- id: a\n  prompt: x\n- id: b\n  prompt: y\n  prompt: z", "line 5: `prompt` is there twice"),
        ("- id: a\n  prompt: x\n\n- id: a\n  prompt: y", "line 4: the id `a` is that of the case in line 1"),
        ("- id: a\n  prompt: x\n- id: b", "line 3: case `b` has nothing to answer"),
        ("- id: a\n  prompt: x\n- prompt: y", "line 3: the case has no id"),
        ("- id: a\n  promt: x", "line 1: a case has no `promt`; it may have id, prompt"),
        ("- id: a\n  prompt: x\n  score: {contains: yes}", "line 1: case `a`: `contains` takes texts, this is `true`"),
        ("- id: a\n  prompt: x\n  score: {like: yes}", "line 1: case `a`: there is no scorer `like`; there are exact"),
        ("- id: a\n  prompt: x\n  score: [{judge: Good}]", "line 1: case `a`: `judge` needs a model"),
        ("- id: a\n  prompt: x\n  score: contains", "line 1: case `a`: `score` lists scorers"),
        ("- id: a\n  prompt: x\n  limits: {round: 3}", "line 1: case `a`: `limits` is a mapping of rounds, calls"),
        ("- id: a\n  prompt: [x]", "line 1: case `a`: `prompt` takes texts, this is a list"),
        ("- id: a\n  prompt: x\n  timeout: soon", "line 1: case `a`: `timeout` is a number, this is a text"),
        ("- just text", "line 1: a case is a mapping with `id` and `prompt`, this is a text"),
        ("id: a", "line 1: expected a list of cases"),
        ("", "has no cases"),
    ],
)
def test_a_mistake_in_yaml_is_reported_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    file = write(tmp_path, "cases.yaml", text)
    with pytest.raises(UserError) as refused:
        read_cases(file)
    assert str(refused.value).startswith(f"{file}")
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("cases.json", '[\n{"id": "a",}]', "line 2: it is not JSON: "),
        ("cases.json", '[{"id": "a", "prompt": "x"},\n\n {"id": "a", "prompt": "y"}]', "line 3: the id `a` is that of"),
        ("cases.json", '{"cases": [{"id": "a", "prompt": "x"},\n{"id": "b"}]}', "line 2: case `b` has nothing"),
        ("cases.json", "3", "line 1: expected a list of cases"),
        ("cases.json", "[]", "has no cases"),
        ("cases.jsonl", '{"id": "a", "prompt": "x"}\nnonsense', "line 2: it is not JSON"),
        (
            "cases.jsonl",
            '{"id": "a", "prompt": "x", "score": {"fits": "nowhere:X"}}',
            "line 1: case `a`: fits nowhere:X",
        ),
        ("cases.txt", "", "cases are read from a file that ends in .yaml, .yml, .json, .jsonl or .py"),
        ("empty.py", "cases = []", "has no cases"),
        ("other.py", "cases = [3]", "`cases` is not a list of Case"),
        ("raising.py", "def cases():\n    raise ValueError('no')", "`cases()` failed: ValueError: no"),
    ],
)
def test_a_mistake_in_another_file_is_reported(tmp_path: Path, name: str, text: str, words: str) -> None:
    with pytest.raises(UserError) as refused:
        read_cases(write(tmp_path, name, text))
    assert words in str(refused.value)


def test_a_file_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.json cannot be read: No such file"):
        read_cases(tmp_path / "none.json")
    with pytest.raises(UserError, match=r"there is no Python file .*none\.py"):
        read_cases(tmp_path / "none.py")


def test_yaml_without_its_package_names_the_extra(tmp_path: Path) -> None:
    with hidden("yaml"), pytest.raises(UserError, match=r"needs the package PyYAML: pip install 'unbroken\[eval\]'"):
        read_cases(write(tmp_path, "cases.yaml", "- id: a"))


def test_cases_in_python_and_scorers_that_a_file_names(tmp_path: Path) -> None:
    own = write(
        tmp_path,
        "own_cases.py",
        "from pydantic import BaseModel\n"
        "from unbroken_testing.evals import Case, Scorer, contains\n"
        "class City(BaseModel):\n    name: str\n"
        "def polite(case, result): return 'please' in result.text\n"
        "gentle = Scorer(polite, threshold=0.5)\n"
        "cases = [Case('a', 'Hi.', [polite])]\n"
        "def more(): return [*cases, Case('b', 'Hi.')]\n",
    )
    assert [case.id for case in read_cases(own)] == ["a"]
    assert [case.id for case in read_cases(f"{own}:more")] == ["a", "b"]
    listed = [{"use": f"{own}:polite"}, {"use": f"{own}:gentle"}, {"fits": f"{own}:City"}]
    (case,) = read_cases(write(tmp_path, "cases.json", json.dumps([{"id": "c", "prompt": "x", "score": listed}])))
    scorers = scorers_of(case)
    assert [(scorer.name, scorer.threshold) for scorer in scorers] == [
        ("polite", 1.0),
        ("polite", 0.5),
        ("fits City", 1.0),
    ]
    assert isinstance(case.scorers[1], Scorer)
    assert case.scorers[0] is read_cases(own)[0].scorers[0]  # the file was run once
