"""`unbroken eval CASES --agent app:agent`: runs cases and scores them, or asks the prompts of recordings again. `evals`
does the work; this module reads the options, and `eval_output` prints."""

from __future__ import annotations

import asyncio
import json as json_text
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, TypeAlias, cast

import typer

from unbroken.agent import Agent
from unbroken.agent.named_objects import find_object
from unbroken.errors import UserError
from unbroken.logs import chosen_level, set_up_logs
from unbroken_cli.exits import ANSWERED, FAILED, INTERRUPTED, print_line
from unbroken_cli.options import LogLevelName, is_journal, shown_place
from unbroken_cli.progress_line import progress
from unbroken_testing.commands.eval_output import Progress, print_evaluation
from unbroken_testing.evals.case_files import read_cases
from unbroken_testing.evals.cases import Case
from unbroken_testing.evals.comparing import TOLERANCE, Comparison, compare
from unbroken_testing.evals.evaluator import AT_ONCE, Evaluator, MakesAgent, Options
from unbroken_testing.evals.recorded_cases import read_journal, read_runs, recordings_evaluator
from unbroken_testing.evals.report import write_report
from unbroken_testing.evals.results import Evaluation, read_evaluation

NOT_PASSED = 1


CaseFiles: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CASES", help="Files of cases: .yaml, .json, .jsonl, .py, or MODULE:NAME.", show_default=False
    ),
]
AgentName: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="MODULE:NAME",
        help="The agent, as in app:agent or app.py:agent; or a function that makes one for each run.",
    ),
]
Recordings: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="DIR|URL",
        help="Instead of cases: ask the prompts of these recorded runs again, and show what differs.",
    ),
]
LiveTools: TypeAlias = Annotated[
    bool, typer.Option("--live-tools", help="With --recordings: run calls that are not in the recording.")
]
Repeat: TypeAlias = Annotated[int, typer.Option(metavar="N", min=1, help="How often each case is run.")]
AtOnce: TypeAlias = Annotated[int, typer.Option(metavar="N", min=1, help="How many runs are active at the same time.")]
PassRate: TypeAlias = Annotated[
    float, typer.Option(metavar="SHARE", help="The share of the runs of a case that must pass.")
]
Timeout: TypeAlias = Annotated[
    float | None, typer.Option(metavar="S", help="Seconds for each run, unless its case has its own.")
]
Only: TypeAlias = Annotated[
    list[str] | None, typer.Option(metavar="ID", help="Only this case; may be repeated, and contain * and ?.")
]
Tag: TypeAlias = Annotated[
    list[str] | None, typer.Option(metavar="TAG", help="Only cases with this tag; may be repeated.")
]
JudgeModel: TypeAlias = Annotated[
    str, typer.Option(metavar="PROVIDER:MODEL", help="The model of judges that name none.", envvar="UNBROKEN_JUDGE")
]
Out: TypeAlias = Annotated[
    str, typer.Option(metavar="DIR", help="Where results, report and recordings go.", show_default="evals/TIME")
]
CompareWith: TypeAlias = Annotated[
    str, typer.Option("--compare", metavar="DIR", help="An earlier result: which cases are better or worse now?")
]
Tolerance: TypeAlias = Annotated[
    float, typer.Option(metavar="N", help="With --compare: how much a score may change and count as the same.")
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")]


def eval_command(
    cases: CaseFiles = None,
    agent: AgentName = "",
    recordings: Recordings = "",
    live_tools: LiveTools = False,
    repeat: Repeat = 1,
    at_once: AtOnce = AT_ONCE,
    pass_rate: PassRate = 1.0,
    timeout: Timeout = None,
    only: Only = None,
    tag: Tag = None,
    judge: JudgeModel = "",
    out: Out = "",
    compare_with: CompareWith = "",
    tolerance: Tolerance = TOLERANCE,
    json: AsJson = False,
    log_level: LogLevelName = "",
) -> None:
    """Run cases with an agent, score the answers, and write a report; or ask recorded prompts again.

    Exit codes: 0 all cases passed; 1 a case failed, or got worse than in --compare; 2 wrong use; 3 a run could not be
    made, because the provider failed, and no case failed otherwise; 130 interrupted.
    """
    set_up_logs(level=chosen_level(log_level, "warning") or "warning")
    if timeout is not None and timeout <= 0:
        raise UserError(f"--timeout {timeout:g}: give a number of seconds")
    if not 0 < pass_rate <= 1:
        raise UserError(f"--pass-rate {pass_rate:g}: give a share above 0 and at most 1")
    if not 0 <= tolerance <= 1:
        raise UserError(f"--tolerance {tolerance:g}: give a difference of scores, from 0 to 1")
    earlier = read_evaluation(compare_with) if compare_with else None
    progress = Progress()
    options = Options(repeat, at_once, pass_rate, timeout, Path(out) if out else _new_folder(), progress.ended)
    if recordings:
        _refuse_with_recordings(cases, tag)
        evaluator = _of_recordings(recordings, agent, options, live_tools, only)
    else:
        evaluator = _of_cases(cases or (), agent, options, live_tools, only, tag, judge)
    evaluation, interrupted = _run(evaluator, progress)
    comparison = None if earlier is None else _compared(earlier, evaluation, tolerance, bool(only or tag))
    page = write_report(evaluation, comparison) if evaluation.trials else None
    if json:
        compared = {} if comparison is None else {"comparison": comparison.to_json()}
        report = {"report": None if page is None else str(page)}
        typer.echo(json_text.dumps({**evaluation.to_json(), **compared, **report}, ensure_ascii=False))
    else:
        print_evaluation(evaluation, comparison, page)
    if interrupted:
        print_line("interrupted: this is what had ended")
    raise typer.Exit(INTERRUPTED if interrupted else _code(evaluation, comparison))


def _run(evaluator: Evaluator, progress: Progress) -> tuple[Evaluation, bool]:
    """The evaluation, and whether Ctrl-C ended it."""
    try:
        with redirect_stdout(sys.stderr), progress.shown(evaluator.total):  # what tools print is no result
            return asyncio.run(evaluator.run()), False
    except KeyboardInterrupt:
        return evaluator.so_far(), True


def _code(evaluation: Evaluation, comparison: Comparison | None) -> int:
    outcomes = {case.outcome for case in evaluation.cases}
    if "failed" in outcomes or (comparison is not None and comparison.worse):
        return NOT_PASSED
    return FAILED if "unavailable" in outcomes else ANSWERED


def _compared(earlier: Evaluation, evaluation: Evaluation, tolerance: float, chosen: bool) -> Comparison:
    comparison = compare(earlier, evaluation, tolerance=tolerance)
    if not chosen:
        return comparison
    return replace(comparison, changes=tuple(each for each in comparison.changes if each.change != "gone"))


def _of_cases(
    files: Sequence[str],
    agent: str,
    options: Options,
    live_tools: bool,
    only: Sequence[str] | None,
    tag: Sequence[str] | None,
    judge: str,
) -> Evaluator:
    if not files:
        raise UserError("no cases were given: name a file of them, or recordings with --recordings DIR")
    if live_tools:
        raise UserError("--live-tools is for --recordings: the tools of cases always run")
    made = _agent(agent)
    return Evaluator(made, _chosen([case for file in files for case in read_cases(file, judge)], only, tag), options)


def _refuse_with_recordings(cases: Sequence[str] | None, tag: Sequence[str] | None) -> None:
    if cases:
        raise UserError("--recordings takes the place of cases: give one of them")
    if tag:
        raise UserError("--tag is for cases: recordings have no tags")


def _of_recordings(place: str, agent: str, options: Options, live_tools: bool, only: Sequence[str] | None) -> Evaluator:
    made = _agent(agent)
    with progress(f"reading {shown_place(place)}"):
        runs, left_out = read_journal(place) if is_journal(place) else read_runs(place)
    for reason in left_out:
        print_line(f"skipped: {reason}")
    chosen = {case.id for case in _chosen([run.case for run in runs], only, None)}
    return recordings_evaluator(
        made, [run for run in runs if run.case.id in chosen], options, shown_place(place), live_tools
    )


def _chosen(cases: list[Case], only: Sequence[str] | None, tags: Sequence[str] | None) -> list[Case]:
    """The cases that the options choose. Raises `UserError` if an option chooses none."""
    for pattern in only or ():
        if not any(fnmatchcase(case.id, pattern) for case in cases):
            raise UserError(f"--only {pattern}: there is no such case")
    for tag in tags or ():
        if not any(tag in case.tags for case in cases):
            raise UserError(f"--tag {tag}: no case has this tag")
    found = [
        case
        for case in cases
        if (not only or any(fnmatchcase(case.id, pattern) for pattern in only))
        and (not tags or any(tag in case.tags for tag in tags))
    ]
    if cases and not found:
        raise UserError("--only and --tag together choose no case")
    return found


def _agent(given: str) -> MakesAgent:
    if not given:
        raise UserError("no agent was given; use --agent MODULE:NAME, as in app:agent")
    found: Any = find_object(given, "--agent", "app:agent")
    if isinstance(found, Agent):
        return cast("Agent[Any, Any]", found)
    made: Any = found
    if callable(found) and not isinstance(found, Mapping):
        name = given.rpartition(":")[2]
        try:
            made = found()
        except Exception as error:
            raise UserError(f"--agent {given}: `{name}()` failed: {type(error).__name__}: {error}") from error
        if isinstance(made, Agent):
            return cast("MakesAgent", found)
    if isinstance(made, Mapping) and made:
        agents = cast("Mapping[Any, Any]", made)
        if len(agents) == 1 and isinstance(one := next(iter(agents.values())), Agent):
            return cast("Agent[Any, Any]", one)
        names = ", ".join(map(str, agents))
        raise UserError(f"--agent {given}: there are several ({names}): name one, as in {given}.{next(iter(agents))}")
    kind = _kind(cast("object", made))
    raise UserError(f"--agent {given}: expected an Agent, or a function that returns one, got {kind}")


def _kind(value: object) -> str:
    return "an empty dict" if value == {} else type(value).__name__


def _new_folder() -> Path:
    stem = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    folder, number = Path("evals") / stem, 1
    while folder.exists():
        number += 1
        folder = Path("evals") / f"{stem}-{number}"
    return folder
