"""The report: one page that needs nothing else, in which no text of a model can do anything."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

from unbroken import Agent, ScriptedModel
from unbroken_testing import run_virtual
from unbroken_testing.evals import Case, Evaluation, compare, contains, evaluate, exact, report_page
from unbroken_testing.evals.report import write_report

EVIL = "</pre><script>alert(1)</script><!--body--><!--policy--> \u202e \ud800"


def evaluation(*cases: Case, answer: str = EVIL, out: Path | None = None, repeat: int = 1) -> Evaluation:
    agent = Agent(ScriptedModel(answer, loop_last=True), name="<b>agent</b>")
    return run_virtual(lambda: evaluate(agent, cases, out=out, repeat=repeat))


def page_of(found: Evaluation) -> str:
    return report_page(found).decode("utf-8")


def test_texts_of_models_cases_and_agents_stay_texts() -> None:
    answer = EVIL.replace("\ud800", "")
    page = page_of(evaluation(Case(f"id {EVIL}", f"prompt {EVIL}", [contains(EVIL)], tags=[EVIL]), answer=answer))
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "&lt;b&gt;agent&lt;/b&gt;" in page
    assert page.count("Content-Security-Policy") == 1


def test_the_policy_allows_the_style_of_the_page_and_nothing_else() -> None:
    page = page_of(evaluation(Case("a", "Hi.")))
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    hashed = b64encode(sha256(style.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{hashed}'; base-uri 'none'; form-action 'none'"
    assert not re.search(r"\sstyle=|https?://|\son\w+=", page.replace(style, ""))


def test_the_page_has_each_case_with_its_runs_scores_and_links(tmp_path: Path) -> None:
    found = evaluation(
        Case("good", "Hi.", [exact("Hello.")]),
        Case("bad", "Hi.", [exact("Bye.")]),
        answer="Hello.",
        out=tmp_path,
        repeat=2,
    )
    assert write_report(found) == tmp_path / "report.html"
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "1 of 2 cases passed" in page
    assert page.count('<section class="trial') == 4
    assert page.count("exact &quot;Bye.&quot;") == 3  # the reason of the case, and a score of each run
    links = re.findall(r'href="([^"#]*)(?:#([^"]*))?"', page)
    assert ("recordings.html", "bad-2.jsonl") in links
    assert all((tmp_path / file).is_file() for file, _ in links)
    runs = (tmp_path / "recordings.html").read_text("utf-8")
    assert all(f'"{name}":' in runs for _, name in links if name)


def test_the_page_names_what_changed_and_what_was_not_run() -> None:
    before = evaluation(Case("a", "Hi.", [exact("Hello.")]), answer="Hello.")
    now = evaluation(Case("a", "Hi.", [exact("Hello.")]), answer="Bye.")
    page = report_page(now, compare(before, now)).decode()
    assert "1 worse, 0 better" in page
    assert '<span class="chip bad">worse</span>' in page
    cut = Evaluation(now.heads, (), 1, "a", "m", 0.0)
    assert "0 of 1 run ended" in page_of(cut)
    assert "It was not run." in page_of(cut)
