"""Recordings run again with a changed agent: tools answer from the recording, and what differs is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from unbroken import Agent, Deny, Request, ScriptedModel, ToolMessage, User, tool
from unbroken.errors import UserError
from unbroken.guardrails import Veto, check_calls
from unbroken.models.scripted import Answer
from unbroken.tools.todo import todo_write
from unbroken_testing import Call, Uses, run_virtual
from unbroken_testing.evals import Difference, Evaluation, evaluate_recordings
from unbroken_testing.evals.recorded_cases import read_runs
from unbroken_wires.messages import ToolCall

ran: list[str] = []


@tool
async def pay(amount: int) -> str:
    """Pays."""
    ran.append(f"pay {amount}")
    return f"paid {amount}"


@tool(approve=True)
async def delete(path: str) -> str:
    """Deletes a file."""
    ran.append(f"delete {path}")
    return f"deleted {path}"


TOOLS = [pay, delete, todo_write]


def model(words: str = "Done", amount: int = 5, tokens: int = 20) -> ScriptedModel:
    def answer(request: Request) -> Answer:
        match request.messages[-1]:
            case User(text="pay"):
                return Call("pay", amount=amount)
            case User(text="pay twice"):
                return [Call("pay", amount=5), Call("pay", amount=7)]
            case User(text="delete"):
                return Call("delete", path="a")
            case ToolMessage(results=results):
                return [f"{words}: {', '.join(result.text for result in results)}", Uses(100, tokens)]
            case _:
                return [f"{words}.", Uses(100, tokens)]

    return ScriptedModel(answer)


def record(folder: Path, *prompts: str, **options: Any) -> None:
    agent = Agent(model(), TOOLS, record=folder, **options)
    for prompt in prompts:
        run_virtual(lambda prompt=prompt: agent.run(prompt, run_id=prompt.replace(" ", "-")))
    ran.clear()


def again(folder: Path, model: ScriptedModel, **options: Any) -> Evaluation:
    return run_virtual(lambda: evaluate_recordings(Agent(model, TOOLS), folder, **options))


def test_the_same_agent_does_the_same_and_runs_no_tool(tmp_path: Path) -> None:
    record(tmp_path, "hello", "pay", "pay twice")
    found = again(tmp_path, model())
    assert found.passed
    assert [trial.differences for trial in found.trials] == [(), (), ()]
    assert {case.head.question for case in found.cases} == {"hello", "pay", "pay twice"}
    assert ran == []


def test_a_different_answer_is_shown_and_passes(tmp_path: Path) -> None:
    record(tmp_path, "pay")
    (trial,) = again(tmp_path, model("All done", tokens=25), out=tmp_path / "out").trials
    assert trial.outcome == "passed"
    assert trial.differences == (
        Difference("text", "Done: paid 5", "All done: paid 5"),
        Difference("tokens out", *(str(tokens) for tokens in _tokens_out(tmp_path, trial.usage.output_tokens))),
    )
    assert (tmp_path / "out" / trial.recording).is_file()


def _tokens_out(folder: Path, now: int) -> tuple[int, int]:
    runs, _ = read_runs(folder)
    return runs[0].view.usage.output_tokens, now


def test_a_call_that_was_not_recorded_is_not_run_and_ends_the_run(tmp_path: Path) -> None:
    record(tmp_path, "pay")
    asked = model(amount=6)
    (trial,) = again(tmp_path, asked).trials
    assert (trial.outcome, trial.calls) == ("failed", ("pay(amount=6)",))
    assert trial.reason == "the run diverged: `pay(amount=6)` is not in the recording, so it was not run"
    assert trial.differences == (Difference("calls", "pay(amount=5)", "pay(amount=6)"),)
    assert ran == []
    assert len(asked.requests) == 1  # the model is not asked about a result that there is not


def test_with_live_tools_only_what_was_not_recorded_runs(tmp_path: Path) -> None:
    record(tmp_path, "pay", "pay twice")
    found = again(tmp_path, model(amount=6), live_tools=True)
    assert found.passed
    assert ran == ["pay 6"]
    by_prompt = {case.head.question: case.trials[0].differences for case in found.cases}
    assert by_prompt["pay twice"] == ()
    assert by_prompt["pay"] == (
        Difference("calls", "pay(amount=5)", "pay(amount=6)"),
        Difference("text", "Done: paid 5", "Done: paid 6"),
    )


def test_a_call_that_is_not_made_any_more_is_another_course(tmp_path: Path) -> None:
    record(tmp_path, "pay")
    (trial,) = again(tmp_path, ScriptedModel("I will not.")).trials
    assert trial.outcome == "failed"
    assert trial.reason == "same calls: not called any more: pay(amount=5)"
    assert [each.what for each in trial.differences] == [
        "calls",
        "text",
        "rounds",
        "requests",
        "tokens in",
        "tokens out",
    ]


def test_calls_that_were_approved_or_denied_are_answered_as_recorded(tmp_path: Path) -> None:
    def refuse(call: ToolCall) -> Deny:
        return Deny("not now")

    record(tmp_path, "delete", on_approval=refuse)
    (trial,) = again(tmp_path, model()).trials
    assert (trial.outcome, trial.text) == ("passed", "Done: Error: not executed: denied: not now")
    assert ran == []


def test_the_to_do_list_is_written_though_it_was_not_recorded(tmp_path: Path) -> None:
    record(tmp_path, "pay")

    def plans(request: Request) -> Answer:
        called = [message for message in request.messages if isinstance(message, ToolMessage)]
        steps = [Call("todo_write", todos=[]), Call("pay", amount=5), "Done: paid 5"]
        return steps[len(called)]

    (trial,) = again(tmp_path, ScriptedModel(plans)).trials
    assert trial.text == "Done: paid 5"
    assert trial.reason == "same calls (0.67, needs 1.00): called now: todo_write(todos=[])"


def test_a_structured_answer_is_compared_as_text_and_is_no_call(tmp_path: Path) -> None:
    def agent(answer: int, **options: Any) -> Agent[Any, int]:
        script = [Call("pay", amount=5)], [Call("final_answer", value=answer)]
        return Agent(ScriptedModel(*script), TOOLS, output=int, **options)

    run_virtual(lambda: agent(1, record=tmp_path).run("How much?"))
    (trial,) = run_virtual(lambda: evaluate_recordings(agent(2), tmp_path)).trials
    assert (trial.outcome, trial.calls) == ("passed", ("pay(amount=5)",))
    assert trial.differences == (Difference("text", "1", "2"),)


def test_a_recording_that_ends_in_the_middle_can_be_asked_again(tmp_path: Path) -> None:
    record(tmp_path, "pay")
    (file,) = tmp_path.iterdir()
    lines = file.read_bytes().splitlines(keepends=True)
    result = next(n for n, line in enumerate(lines) if b'"event":"call_finished"' in line)
    file.write_bytes(b"".join(lines[: result + 1]))
    (trial,) = again(tmp_path, model()).trials
    assert (trial.outcome, trial.text, ran) == ("passed", "Done: paid 5", [])


def test_other_files_are_left_out_and_a_folder_without_recordings_is_refused(tmp_path: Path) -> None:
    record(tmp_path, "hello")
    (tmp_path / "other.jsonl").write_text('{"not": "a recording"}\n')
    runs, left_out = read_runs(tmp_path)
    assert (len(runs), len(left_out)) == (1, 1)
    assert "is not a recording" in left_out[0]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"there is no recording in .* that could be run again"):
        read_runs(tmp_path / "empty")
    with pytest.raises(UserError, match="cannot be listed"):
        read_runs(tmp_path / "nothing")


def test_checks_that_the_agent_has_now_see_the_recorded_calls(tmp_path: Path) -> None:
    def half(call: ToolCall) -> dict[str, int]:
        return {"amount": 2}

    def never(call: ToolCall) -> None:
        raise Veto("Never.", to="user")

    def asked_again(check: Any) -> Evaluation:
        agent = Agent(model(), TOOLS, middleware=[check_calls(check)])
        return run_virtual(lambda: evaluate_recordings(agent, tmp_path))

    record(tmp_path, "pay", middleware=[check_calls(half)])
    same = asked_again(half)
    assert (same.passed, same.trials[0].differences) == (True, ())
    (trial,) = asked_again(never).trials
    assert Difference("ended", "answered", "vetoed") in trial.differences
    assert ran == []
