"""A recording in which any field has any wrong type is listed, shown, counted, replayed and resumed, or refused with a
message: never with an error that is not ours."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import a_long_run
import pytest
from terminals import invoke
from thorough import ALL

from unbroken import UnbrokenError
from unbroken.agent.recorded_agent import agent_of, output_of
from unbroken.trajectory.recording import list_recordings, read_recording
from unbroken_testing import run_virtual

Line = dict[str, Any]
WRONG: list[Any] = [None, True, -1, 1e300, 10**30, "x", [], {}, [1], {"a": 1}, [[]], [{}], ["x"]]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[Line]:
    path = tmp_path_factory.mktemp("whole") / "a.jsonl"
    a_long_run.play(path)
    found: list[Line] = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    for line in found:
        if line["line"] == "result":
            line["usage"] = {"input_tokens": 3, "output_tokens": 1}
    end = found.pop()
    last = {"at": 4.0, "turn": 2}
    found.append({"line": "closed", **last, "cancelled": True})
    found.append({"line": "approval", **last, "call_id": "z", "name": "q", "decision": "edit", "arguments": {"a": 1}})
    found.append({"line": "cancelled", **last, "call_id": "z", "start": 3, "approval": True})
    return [*found, end]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        inner = [*cast("Line", value).items()]
    elif isinstance(value, list):
        inner = [*enumerate(cast("list[Any]", value))]
    for name, each in inner:
        yield (*path, name)
        yield from places(each, (*path, name))


def tampered(lines: list[Line]) -> list[list[Line]]:
    """Each field of each kind of line, once with each wrong value."""
    found: list[list[Line]] = []
    seen: set[Any] = set()
    for number, line in enumerate(lines):
        for path in places(line):
            kind = (line["line"], line.get("event"), line.get("delta"))
            shape = (*kind, *(name if isinstance(name, str) else "*" for name in path))
            if shape in seen:
                continue
            seen.add(shape)
            for wrong in WRONG:
                changed = copy.deepcopy(line)
                holder: Any = changed
                for name in path[:-1]:
                    holder = holder[name]
                holder[path[-1]] = wrong
                found.append([*lines[:number], changed, *lines[number + 1 :]])
    return found


def replay_without_code(path: Path) -> None:
    recording = read_recording(path)
    agent_of(recording).replay(recording, output=output_of(recording))


def on_command_line(*arguments: str) -> Callable[[Path], None]:
    def act(path: Path) -> None:
        done = invoke(*arguments, str(path))
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception

    return act


ACTS: dict[str, Callable[[Path], object]] = {
    "list": lambda path: list_recordings(path.parent),
    "view": on_command_line("view", "--plain"),
    "stats": on_command_line("stats"),
    "replay": lambda path: a_long_run.agent().replay(path),
    "replay without code": replay_without_code,
    "resume": lambda path: run_virtual(lambda: a_long_run.agent().resume(path)),
}


@pytest.mark.parametrize("name", ACTS)
def test_a_field_of_a_wrong_type_raises_nothing_but_our_own_errors(
    name: str, lines: list[Line], tmp_path: Path
) -> None:
    everything = tampered(lines)
    some = everything if ALL else random.Random(name).sample(everything, 30)
    path = tmp_path / "a.jsonl"
    for changed in some:
        kept = changed[:-1] if name == "resume" else changed
        path.write_text("".join(json.dumps(line) + "\n" for line in kept), "utf-8")
        outcome = "done"
        try:
            ACTS[name](path)
        except UnbrokenError as error:
            outcome = str(error)
        assert outcome


@pytest.mark.parametrize("usage", [None, 3, "x", {"input_tokens": "x"}, {"input_tokens": -1}, {"other": []}])
def test_a_tampered_usage_is_refused_and_nothing_runs_again(usage: Any, lines: list[Line], tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    changed = copy.deepcopy(lines[:-1])
    for line in changed:
        if line["line"] == "request":
            line["state"]["usage"] = usage
    path.write_text("".join(json.dumps(line) + "\n" for line in changed), "utf-8")
    with pytest.raises(UnbrokenError, match=r"a\.jsonl"):
        run_virtual(lambda: a_long_run.agent().resume(path))
