"""`evaluate`: cases are run at the same time, scored, written down, and compared with an earlier result."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest

from unbroken import Agent, Limits, Request, Result, ScriptedModel, ToolMessage, User, tool
from unbroken.agent.limits import Prices
from unbroken.errors import Unreachable, UserError
from unbroken.models.scripted import Answer
from unbroken.trajectory.recording import read_recording
from unbroken_testing import Call, Fail, Pause, Uses, run_virtual
from unbroken_testing.evals import (
    Case,
    Evaluation,
    Trial,
    called,
    compare,
    contains,
    evaluate,
    exact,
    judge,
    read_evaluation,
)
from unbroken_testing.evals.report import write_report


@tool(effect="read")
async def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"{city}: snow"


def answer(request: Request) -> Answer:
    match request.messages[-1]:
        case User(text=text) if "weather" in text:
            return [Call("get_weather", city="Oslo"), Uses(10, 5)]
        case User(text="break"):
            return Fail(Unreachable("there is no connection"))
        case User(text="hang"):
            return [Pause(100), "late"]
        case ToolMessage(results=results):
            return [results[0].text, Uses(20, 5)]
        case _:
            return ["Hello.", Uses(10, 5)]


def agent() -> Agent:
    return Agent(ScriptedModel(answer), [get_weather], name="weather", limits=Limits(prices=Prices(1e6, 2e6)))


WEATHER = Case("weather", "How is the weather?", [contains("snow")], tools=["get_weather"])


def run(cases: list[Case], **options: Any) -> Evaluation:
    return run_virtual(lambda: evaluate(agent(), cases, **options))


def only_trial(cases: list[Case], **options: Any) -> Trial:
    (trial,) = run(cases, **options).trials
    return trial


def test_a_case_is_run_scored_and_counted() -> None:
    found = run([WEATHER, Case("greeting", "Hi.", [exact("Good day.")])])
    weather, greeting = found.cases
    assert (weather.outcome, weather.score, weather.flaky) == ("passed", 1.0, False)
    assert (greeting.outcome, greeting.score) == ("failed", 0.0)
    assert greeting.reason == 'exact "Good day.": the answer is "Hello."'
    assert (found.passed, found.complete, found.score, found.agent) == (False, True, 0.5, "weather")
    assert (found.usage.input_tokens, found.usage.output_tokens, found.cost) == (40, 15, 70)
    (trial,) = weather.trials
    assert (trial.text, trial.calls, trial.rounds, trial.requests) == (
        "Oslo: snow",
        ('get_weather(city="Oslo")',),
        1,
        2,
    )


def test_a_case_without_scorers_passes_if_there_is_an_answer() -> None:
    assert only_trial([Case("a", "Hi.")]).outcome == "passed"
    limited = only_trial([Case("a", "How is the weather?", limits=Limits(rounds=0))])
    assert (limited.outcome, limited.stop_reason) == ("passed", "round_limit")  # answered with the budget that it had
    assert limited.cost  # the prices are still the agent's
    stopped = only_trial([Case("a", "hang", limits=Limits(rounds=0, final_seconds=5.0))])
    assert (stopped.outcome, stopped.reason) == ("failed", "answered: the run ended as round_limit without an answer")


def test_earlier_messages_come_before_the_prompt() -> None:
    model = ScriptedModel("Oslo.")
    case = Case("a", "Which city?", [exact("Oslo.")], messages=[User.of("I live in Oslo.")])
    found = run_virtual(lambda: evaluate(Agent(model), [case]))
    assert found.passed
    assert [cast("User", message).text for message in model.requests[0].messages] == ["I live in Oslo.", "Which city?"]


def test_runs_are_active_at_the_same_time_up_to_a_number() -> None:
    active = most = 0

    @tool
    async def wait() -> str:
        """Waits."""
        nonlocal active, most
        active += 1
        most = max(most, active)
        await asyncio.sleep(1)
        active -= 1
        return "done"

    def ask(request: Request) -> Answer:
        return "done" if isinstance(request.messages[-1], ToolMessage) else Call("wait")

    cases = [Case(str(number), "Go.") for number in range(6)]
    for at_once, expected in ((1, 1), (3, 3), (50, 6)):
        most = 0
        run_virtual(lambda at_once=at_once: evaluate(Agent(ScriptedModel(ask), [wait]), cases, at_once=at_once))
        assert most == expected


def test_a_function_makes_a_new_agent_for_each_run() -> None:
    made: list[Agent] = []

    def make() -> Agent:
        made.append(Agent(ScriptedModel("Hello."), name="fresh"))
        return made[-1]

    found = run_virtual(lambda: evaluate(make, [Case("a", "Hi.", [exact("Hello.")])], repeat=3))
    assert (found.passed, len(made), found.agent) == (True, 3, "fresh")


def test_a_case_that_passes_sometimes_is_flaky_and_passes_with_a_pass_rate() -> None:
    answers = iter(["heads", "tails", "heads"])

    def flip() -> Agent:
        return Agent(ScriptedModel(next(answers)))

    cases = [Case("coin", "Flip.", [exact("heads")])]
    found = run_virtual(lambda: evaluate(flip, cases, repeat=3, at_once=1))
    (case,) = found.cases
    assert (case.flaky, case.outcome, case.passed_count) == (True, "failed", 2)
    assert case.reason == 'exact "heads": the answer is "tails"'
    answers = iter(["heads", "tails", "heads"])
    assert run_virtual(lambda: evaluate(flip, cases, repeat=3, at_once=1, pass_rate=0.6)).passed
    answers = iter(["tails", "tails"])
    assert not run_virtual(lambda: evaluate(flip, cases, repeat=2)).cases[0].flaky


def test_a_provider_that_is_down_is_not_the_agents_fault() -> None:
    down = only_trial([Case("a", "break")])
    assert (down.outcome, down.reason) == ("unavailable", "Unreachable: there is no connection")
    found = run([Case("a", "break"), WEATHER])
    assert [case.outcome for case in found.cases] == ["unavailable", "passed"]
    assert not found.passed
    judge_down = judge(ScriptedModel(Fail(Unreachable("no"))), "Good?")
    assert only_trial([Case("a", "Hi.", [judge_down])]).reason == "scoring failed: Unreachable: no"


def test_a_run_that_takes_too_long_has_failed() -> None:
    late = only_trial([Case("a", "hang", timeout=5)])
    assert (late.outcome, late.reason, late.seconds) == ("failed", "the run took longer than 5 s", 5)
    assert only_trial([Case("a", "hang")], timeout=7).reason == "the run took longer than 7 s"


def test_an_agent_that_raises_and_a_scorer_that_raises_are_reported_and_the_others_continue() -> None:
    def broken() -> Agent:
        raise ValueError("no agent today")

    raised = run_virtual(lambda: evaluate(broken, [Case("a", "Hi.")])).trials[0]
    assert (raised.outcome, raised.reason) == ("error", "the run failed: ValueError: no agent today")
    no_agent = run_virtual(lambda: evaluate(cast("Any", lambda: 3), [Case("a", "Hi.")])).trials[0]
    assert no_agent.reason.endswith("the function that makes the agent returned int, not an Agent")

    def count(case: Case, result: Result[Any]) -> float:
        raise KeyError("tokens")

    found = run([Case("a", "Hi.", [count]), WEATHER])
    assert [case.outcome for case in found.cases] == ["failed", "passed"]
    assert found.cases[0].trials[0].outcome == "error"
    assert found.cases[0].reason == "scorer `count` raised KeyError: 'tokens'"


def test_wrong_use_is_refused_before_anything_runs(tmp_path: Path) -> None:
    refused: tuple[tuple[Any, dict[str, Any], str], ...] = (
        ([], {}, "there are no cases"),
        ([WEATHER, WEATHER], {}, "two cases have the id `weather`"),
        ([WEATHER], {"repeat": 0}, "repeat=0"),
        ([WEATHER], {"at_once": 0}, "at_once=0"),
        ([WEATHER], {"pass_rate": 2.0}, "pass_rate=2.0"),
        ([WEATHER], {"repeats": 3}, "repeat"),
        (["weather"], {}, "Case"),
    )
    for cases, options, words in refused:
        with pytest.raises(UserError, match=words):
            run(cases, **options)
    run([WEATHER], out=tmp_path / "out")
    with pytest.raises(UserError, match="has the results of an earlier evaluation"):
        run([WEATHER], out=tmp_path / "out")


def test_results_and_a_recording_of_each_run_are_kept_and_read_again(tmp_path: Path) -> None:
    odd = Case("a/b ü", "Hi.", [exact("Hello.")])
    found = run([WEATHER, odd], repeat=2, out=tmp_path)
    assert read_evaluation(tmp_path) == found
    for trial in found.trials:
        recording = read_recording(tmp_path / trial.recording)
        assert recording.ending is not None
        assert recording.agent_name == "weather"
    assert len(list((tmp_path / "recordings").iterdir())) == 4
    head, *lines = map(json.loads, (tmp_path / "results.jsonl").read_text().splitlines())
    assert (head["agent"], head["repeat"], [case["id"] for case in head["cases"]]) == (
        "weather",
        2,
        ["weather", "a/b ü"],
    )
    assert [line["outcome"] for line in lines] == ["passed"] * 4


def test_secrets_are_masked_in_results_as_in_recordings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "sk-a-key-that-nobody-may-see"
    monkeypatch.setenv("SHOP_API_KEY", secret)

    @tool
    async def login(key: str) -> str:
        """Logs in."""
        return "done"

    def leak(request: Request) -> Answer:
        return f"The key is {secret}." if isinstance(request.messages[-1], ToolMessage) else Call("login", key=secret)

    def scorer(case: Case, result: Result[Any]) -> tuple[float, str]:
        return 0.0, f"it says {secret}"

    case = Case("leak", f"Use {secret}.", [scorer])
    found = run_virtual(lambda: evaluate(Agent(ScriptedModel(leak), [login]), [case], out=tmp_path))
    write_report(found)
    (trial,) = found.trials
    assert (trial.text, trial.calls) == ("The key is ***.", ('login(key="***")',))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 4
    assert [path.name for path in files if secret.encode() in path.read_bytes()] == []


def test_results_that_cannot_be_written_end_the_evaluation(tmp_path: Path) -> None:
    def full(trial: Trial, done: int, total: int) -> None:
        raise UserError("the disk is full")

    with pytest.raises(UserError, match="the disk is full"):
        run([WEATHER], on_trial=full)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"is a file and no folder|Not a directory"):
        run([WEATHER], out=tmp_path / "file")


def test_what_was_written_before_a_process_died_is_read(tmp_path: Path) -> None:
    run([WEATHER], repeat=2, out=tmp_path)
    file = tmp_path / "results.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:2]) + lines[2][:40])
    found = read_evaluation(tmp_path)
    assert (len(found.trials), found.complete, found.passed) == (1, False, False)
    file.write_bytes(lines[0] + b"{}\n" + lines[2])
    with pytest.raises(UserError, match=r"results\.jsonl, line 2 is not one that an evaluation writes"):
        read_evaluation(tmp_path)
    with pytest.raises(UserError, match="cannot be read as the result of an evaluation"):
        read_evaluation(tmp_path / "nothing")


def fixed(id: str, *values: float, edited: bool = False) -> Case:
    left = iter(values)

    def give(case: Case, result: Result[Any]) -> float:
        return next(left)

    give.__name__ = "edited" if edited else "given"
    return Case(id, "Hi.", [give])


def test_a_comparison_names_what_is_better_and_worse_beyond_a_tolerance() -> None:
    half, most = Case("half", "Hi.", [contains("Hello", "x")]), Case("half", "Hi.", [contains("Hello", "x", "y", "z")])
    before = run([half, fixed("fell", 1.0), fixed("rose", 0.0), fixed("close", 1.0), fixed("gone", 1.0)])
    now = run([most, fixed("fell", 0.5), fixed("rose", 1.0), fixed("close", 1.0), fixed("new", 1.0)])
    found = compare(before, now)
    assert {each.id: each.change for each in found.changes} == {
        "half": "worse",
        "fell": "worse",
        "rose": "better",
        "close": "same",
        "new": "new",
        "gone": "gone",
    }
    assert found.worse[0].words == (
        "`half`: failed, score 0.50 before, failed, score 0.25 now; the case itself was changed"
    )
    assert found.better[0].words == "`rose`: failed, score 0.00 before, passed, score 1.00 now"
    assert [each.id for each in compare(before, now, tolerance=0.3).worse] == ["fell"]  # it passed before
    assert compare(now, now).worse == compare(now, now).better == []


def test_a_case_that_could_not_be_run_is_not_compared() -> None:
    before, now = run([Case("a", "Hi.")]), run([Case("a", "break")])
    assert [each.change for each in compare(before, now).changes] == ["unknown"]
    with pytest.raises(UserError, match="tolerance=2"):
        compare(before, now, tolerance=2)


def test_tools_of_a_case_and_called_are_the_same() -> None:
    asked = "How is the weather?"
    one = run([Case("a", asked, tools=["get_weather"])])
    other = run([Case("a", asked, [called("get_weather")])])
    assert one.heads == other.heads
    assert one.passed
