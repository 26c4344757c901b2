"""`unbroken eval`, as a user runs it."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from terminals import Terminal, in_pipe, invoke

from unbroken import Agent, ScriptedModel
from unbroken.errors import UserError
from unbroken_durable import drive, open_journal
from unbroken_testing import Call, Uses, serve

APP = """
import asyncio
from unbroken import Agent, ScriptedModel, ToolMessage, tool
from unbroken.errors import Unreachable
from unbroken_testing import Call, Fail

words = "It is"

@tool(effect="read")
async def get_weather(city: str) -> str:
    "The weather of a city."
    print("a tool prints this")
    return f"snow in {city}"

@tool
async def hang() -> str:
    "Takes for ever."
    await asyncio.Event().wait()

def answer(request):
    last = request.messages[-1]
    if isinstance(last, ToolMessage):
        return f"{words} {last.results[0].text}."
    if "Oslo" in last.text:
        return Call("get_weather", city="Oslo")
    if "hang" in last.text:
        return Call("hang")
    if "down" in last.text:
        return Fail(Unreachable("there is no connection"))
    return "Hello."

def make(model=answer, tools=(get_weather, hang)):
    return Agent(ScriptedModel(model), tools, name="weather")

def make_changed():
    return make(lambda request: Call("get_weather", city="Rome") if "Oslo" in str(request.messages[-1]) else "Hello.")

agent = make()
agents = {"one": agent, "two": agent}
number = 3
"""

CASES = [
    {
        "id": "oslo",
        "prompt": "How is Oslo?",
        "tools": ["get_weather"],
        "score": {"contains": "snow"},
        "tags": ["smoke"],
    },
    {"id": "greeting", "prompt": "Hi.", "score": {"exact": "Hello."}},
]
BAD = {"id": "bad", "prompt": "Hi.", "score": {"exact": "Bye."}}
DOWN = {"id": "down", "prompt": "down"}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "app.py").write_text(APP, "utf-8")
    write(tmp_path, CASES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(place: Path, cases: list[dict[str, Any]]) -> None:
    (place / "cases.json").write_text(json.dumps(cases), "utf-8")


def run(*arguments: str) -> Any:
    return invoke("eval", *arguments, "--agent", "app.py:agent")


def test_cases_that_pass_are_listed_and_exit_with_0(place: Path) -> None:
    done = run("cases.json", "--out", "out")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].split("\t") == ["case", "outcome", "score", "passed", "calls", "tokens", "seconds"]
    assert lines[1].split("\t")[:5] == ["oslo", "passed", "1.00", "1/1", "1"]
    assert lines[2].split("\t")[:5] == ["greeting", "passed", "1.00", "1/1", "0"]
    assert lines[3].startswith("2 of 2 cases passed · score 1.00 · 2 runs · ")
    assert lines[4] == f"report: {Path('out/report.html')}"
    assert "a tool prints this" not in done.stdout
    assert "unbroken: 2 of 2: " in done.stderr
    assert sorted(each.name for each in Path("out").iterdir()) == [
        "recordings",
        "recordings.html",
        "report.html",
        "results.jsonl",
    ]


def test_without_out_the_folder_has_the_time_in_its_name(place: Path) -> None:
    assert run("cases.json").exit_code == 0
    assert run("cases.json").exit_code == 0
    assert len(list(Path("evals").iterdir())) == 2


def test_a_case_that_fails_exits_with_1_and_says_why(place: Path) -> None:
    write(place, [*CASES, BAD, DOWN])
    done = run("cases.json")
    assert done.exit_code == 1
    assert 'bad (failed): exact "Bye.": the answer is "Hello."' in done.stdout
    assert "down (unavailable): Unreachable: there is no connection" in done.stdout


def test_a_provider_that_is_down_exits_with_3(place: Path) -> None:
    write(place, [*CASES, DOWN])
    assert run("cases.json").exit_code == 3


def test_json_has_everything(place: Path) -> None:
    write(place, [*CASES, BAD])
    run("cases.json", "--out", "before")
    done = run("cases.json", "--json", "--repeat", "2", "--out", "out", "--compare", "before")
    told = json.loads(done.stdout)
    assert (told["passed"], told["complete"], told["agent"], told["repeat"]) == (False, True, "weather", 2)
    assert [(case["id"], case["outcome"], case["passed"]) for case in told["cases"]] == [
        ("oslo", "passed", 2),
        ("greeting", "passed", 2),
        ("bad", "failed", 0),
    ]
    assert told["cases"][0]["trials"][1]["calls"] == ['get_weather(city="Oslo")']
    assert told["comparison"]["worse"] == told["comparison"]["better"] == []
    assert Path(told["report"]).is_file()


def test_a_comparison_shows_what_got_worse_and_exits_with_1(place: Path) -> None:
    run("cases.json", "--out", "before")
    write(
        place, [CASES[0], {**CASES[1], "score": [{"exact": "Hello."}, {"contains": ["Hello", "Hi"]}], "pass_rate": 1}]
    )
    done = run("cases.json", "--compare", "before")
    assert done.exit_code == 1
    assert "compared: 1 worse, 0 better, 1 the same" in done.stdout
    assert (
        "worse: `greeting`: passed, score 1.00 before, failed, score 0.75 now; the case itself was changed"
        in done.stdout
    )
    chosen = run("cases.json", "--compare", "before", "--only", "os*")
    assert chosen.exit_code == 0
    assert "gone" not in chosen.stdout
    assert run("cases.json", "--compare", "before", "--tag", "smoke").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no cases were given"),
        (["none.json"], "cannot be read"),
        (["cases.json", "--compare", "none"], "cannot be read as the result of an evaluation"),
        (["cases.json", "--only", "x"], "--only x: there is no such case"),
        (["cases.json", "--tag", "x"], "--tag x: no case has this tag"),
        (["cases.json", "--only", "greeting", "--tag", "smoke"], "together choose no case"),
        (["cases.json", "--timeout", "0"], "--timeout 0"),
        (["cases.json", "--pass-rate", "2"], "--pass-rate 2"),
        (["cases.json", "--tolerance", "2"], "--tolerance 2"),
        (["cases.json", "--live-tools"], "--live-tools is for --recordings"),
        (["cases.json", "--recordings", "x"], "--recordings takes the place of cases"),
        (["--recordings", "x", "--tag", "y"], "--tag is for cases"),
        (["--recordings", "none"], "none cannot be listed"),
        (["cases.json", "--agent", ""], "no agent was given"),
        (["cases.json", "--agent", "app"], "write MODULE:NAME, as in app:agent"),
        (
            ["cases.json", "--agent", "app.py:agents"],
            r"there are several \(one, two\): name one, as in app.py:agents.one",
        ),
        (["cases.json", "--agent", "app.py:number"], "expected an Agent, or a function that returns one, got int"),
        (["cases.json", "--agent", "app.py:nothing"], "has no `nothing`"),
        (["cases.json", "cases.json"], "two cases have the id `oslo`"),
    ],
)
def test_wrong_use_is_one_sentence(place: Path, arguments: list[str], words: str) -> None:
    own = [] if "--agent" in arguments else ["--agent", "app.py:agent"]
    done = invoke("eval", *arguments, *own)
    assert isinstance(done.exception, UserError)
    with pytest.raises(UserError, match=words):
        raise done.exception
    assert not Path("evals").exists()


def test_an_agent_of_a_dict_and_one_that_is_made_for_each_run(place: Path) -> None:
    for name in ("agents.two", "make"):
        assert invoke("eval", "cases.json", "--agent", f"app.py:{name}").exit_code == 0


def test_recordings_are_asked_again_with_a_changed_agent(place: Path) -> None:
    run("cases.json", "--out", "out")
    same = invoke("eval", "--recordings", "out/recordings", "--agent", "app.py:make")
    assert same.exit_code == 0
    assert "oslo-1: no difference" in same.stdout
    done = invoke("eval", "--recordings", "out/recordings", "--agent", "app.py:make_changed", "--out", "again")
    assert done.exit_code == 1
    assert 'the run diverged: `get_weather(city="Rome")` is not in the recording' in done.stdout
    assert '  -get_weather(city="Oslo")\n  +get_weather(city="Rome")\n' in done.stdout
    assert "greeting-1: no difference" in done.stdout
    assert "<del>" in Path("again/report.html").read_text("utf-8")
    live = invoke("eval", "--recordings", "out/recordings", "--agent", "app.py:make_changed", "--live-tools")
    assert live.exit_code == 0
    assert "oslo-1: calls and text differ" in live.stdout


def test_the_runs_of_a_journal_are_asked_again(place: Path) -> None:
    async def fill() -> None:
        agents = {"main": Agent(ScriptedModel("Hello.", "Good bye."))}
        async with await open_journal("sqlite:///runs.db") as journal:
            for prompt, run_id in (("Hi.", "order.1"), ("Bye.", "order.2")):
                await drive(agents, journal, await journal.start("main", prompt, run_id=run_id))

    asyncio.run(fill())
    done = invoke("eval", "--recordings", "sqlite:///runs.db", "--agent", "app.py:agent")
    assert done.exit_code == 0, done.output
    assert "order.1: calls and text are the same; tokens in " in done.stdout
    assert "order.2: text differs" in done.stdout
    one = invoke("eval", "--recordings", "sqlite:///runs.db#order.1", "--agent", "app.py:agent")
    assert "1 of 1 case passed" in one.stdout


def test_a_judge_of_a_file_uses_the_model_of_the_option_over_http(place: Path) -> None:
    write(place, [{"id": "a", "prompt": "Hi.", "score": {"judge": "Is polite."}}])
    with serve([Call("final_answer", score=0.5, reason="Too short."), Uses(50, 7)]) as server:
        env = {"OPENAI_API_KEY": "any", "OPENAI_BASE_URL": server.base_url()}
        done = invoke("eval", "cases.json", "--agent", "app.py:agent", "--judge", "openai:gpt-5", env=env)
        assert "Is polite." in str(server.bodies[0]["messages"])
    assert done.exit_code == 1
    assert "a (failed): judge: Is polite. (0.50, needs 0.70): Too short." in done.stdout
    assert "judges: 50 tokens in, 7 out" in done.stdout


def test_a_real_process_exits_with_2_and_a_sentence(place: Path) -> None:
    write(place, [CASES[0], CASES[0]])
    done = in_pipe("eval", "cases.json", "--agent", "app:agent")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "unbroken: cases.json, line 1: the id `oslo` is that of the case in line 1\n"


def test_ctrl_c_shows_what_has_ended(place: Path) -> None:
    write(place, [CASES[1], BAD, {"id": "slow", "prompt": "hang"}])
    with Terminal("eval", "cases.json", "--agent", "app:agent", "--out", "out") as terminal:
        terminal.wait_for("2 of 3 runs · 1 did not pass")
        terminal.interrupt()
        assert terminal.end() == 130
        shown = terminal.plain
    assert 'bad, run 1: failed: exact "Bye.": the answer is "Hello."' in shown
    assert "slow (not run): it was not run" in shown
    assert "1 of 3 cases passed" in shown
    assert "unbroken: interrupted: this is what had ended" in shown
    assert (place / "out" / "report.html").is_file()
    assert len((place / "out" / "results.jsonl").read_bytes().splitlines()) == 3


def test_a_terminal_shows_a_table(place: Path) -> None:
    with Terminal("eval", "cases.json", "--agent", "app:agent") as terminal:
        assert terminal.end() == 0
        lines = [line.split() for line in terminal.plain.splitlines()]
    assert ["case", "outcome", "score", "passed", "calls", "tokens", "seconds"] in lines
    assert any(line[:4] == ["oslo", "passed", "1.00", "1/1"] for line in lines)
    assert os.listdir("evals")
