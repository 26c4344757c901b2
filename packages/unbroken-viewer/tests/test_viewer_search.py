"""Words are found in the contents of recordings, and a recorded request becomes a command or a program."""

from __future__ import annotations

import ast
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from a_long_run import play

from unbroken.errors import UserError
from unbroken.trajectory.recording import Recording, read_recording
from unbroken_viewer.listing import Shelf
from unbroken_viewer.request_code import replay_commands, request_code
from unbroken_viewer.searching import search


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recordings")
    play(folder / "long.jsonl")
    whole = (folder / "long.jsonl").read_text("utf-8")
    (folder / "chinese.jsonl").write_text(whole.replace("whales", "鲸鱼"), "utf-8")
    (folder / "notes.jsonl").write_text('{"hello": "whales"}\n')
    return folder


@pytest.mark.parametrize("wanted", ["whales at noon", "WHALES at", "  whales "])
def test_an_answer_is_found_whatever_its_case(folder: Path, wanted: str) -> None:
    answer = search(Shelf(folder), wanted)
    assert list(answer.found) == ["long.jsonl"]
    assert "whales" in answer.found["long.jsonl"].snippet
    assert answer.skipped == 0


@pytest.mark.parametrize("wanted", ["Akureyri", "Execution timeout", "Plan a day", "make them all in one reply"])
def test_arguments_results_prompts_and_instructions_are_searched(folder: Path, wanted: str) -> None:
    assert sorted(search(Shelf(folder), wanted).found) == ["chinese.jsonl", "long.jsonl"]


def test_chinese_is_found(folder: Path) -> None:
    assert list(search(Shelf(folder), "鲸鱼").found) == ["chinese.jsonl"]


@pytest.mark.parametrize("wanted", ["call_started", "the-long-run", "on_all_failed"])
def test_kinds_and_settings_are_not_contents(folder: Path, wanted: str) -> None:
    assert search(Shelf(folder), wanted).found == {}


def test_a_folder_that_is_too_large_is_searched_in_part_and_says_so(folder: Path) -> None:
    size = (folder / "long.jsonl").stat().st_size
    answer = search(Shelf(folder), "Akureyri", most=size + 10)
    assert (len(answer.found), answer.skipped) == (1, 1)


def test_a_recording_that_is_deleted_during_the_search_is_counted_and_the_others_are_searched(
    folder: Path, tmp_path: Path
) -> None:
    for name in ("kept", "deleted"):
        (tmp_path / f"{name}.jsonl").write_bytes((folder / "long.jsonl").read_bytes())

    class Deleting(Shelf):
        def raw_lines(self, name: str) -> Iterator[bytes]:
            if name == "deleted.jsonl":
                (tmp_path / name).unlink()
            return super().raw_lines(name)

    answer = search(Deleting(tmp_path), "Akureyri")
    assert (list(answer.found), answer.skipped) == (["kept.jsonl"], 1)


def test_a_text_that_is_too_short_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="'a' is too short to search for: write 2 characters or more"):
        search(Shelf(folder), " a ")


def test_quotation_marks_and_line_ends_are_found(tmp_path: Path, folder: Path) -> None:
    whole = (folder / "long.jsonl").read_text("utf-8")
    (tmp_path / "run.jsonl").write_text(whole.replace("whales", 'say \\"hi\\"\\nnow'), "utf-8")
    assert 'say "hi" now' in search(Shelf(tmp_path), 'say "hi"\nnow').found["run.jsonl"].snippet


def changed(folder: Path, **fields: Any) -> Recording:
    recording = read_recording(folder / "long.jsonl")
    recording.head.update(fields)
    return recording


def test_a_request_becomes_a_curl_command_with_the_body_that_was_sent(folder: Path) -> None:
    command = request_code(changed(folder, model="anthropic:claude-sonnet-4-5"), 1, "curl")
    words = shlex.split(command)
    assert words[:3] == ["curl", "-N", "https://api.anthropic.com/v1/messages"]
    assert "x-api-key: $ANTHROPIC_API_KEY" in words
    body = json.loads(words[-1])
    assert body["model"] == "claude-sonnet-4-5"
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    assert [tool["name"] for tool in body["tools"]] == ["weather", "events_on", "map_of", "book"]


def test_a_request_of_an_unknown_provider_is_written_for_a_server_of_ones_own(folder: Path) -> None:
    words = shlex.split(request_code(read_recording(folder / "long.jsonl"), 0, "curl"))
    assert words[2] == "http://127.0.0.1:8000/v1/chat/completions"


HOSTILE = "$(touch broken) `touch broken` '; touch broken; ' \"; touch broken; \" \n touch broken\n"


@pytest.mark.parametrize("model", [f"gemini:{HOSTILE}", f"openai:{HOSTILE}", HOSTILE])
def test_no_text_of_a_recording_becomes_a_command(folder: Path, tmp_path: Path, model: str) -> None:
    recording = changed(folder, model=model)
    for line in recording.of("request"):
        for message in line["messages"]:
            for part in message.get("content", []):
                if isinstance(part, dict):
                    part["text"] = HOSTILE
    command = request_code(recording, 1, "curl")
    fake = tmp_path / "curl"
    fake.write_text("#!/bin/sh\nexit 0\n")
    fake.chmod(0o755)
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    subprocess.run(["/bin/sh", "-c", command], cwd=tmp_path, env=path, check=True, timeout=20)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["curl"]


def test_a_program_continues_from_a_request(folder: Path) -> None:
    program = request_code(read_recording(folder / "long.jsonl"), 2, "python")
    program = program.replace("print(result.text)", "print(len(agent_history))").replace(
        "agent = Agent('scripted:demo', tools=[])", "agent_history = from_json(list(request.messages))"
    )
    program = "\n".join(line for line in program.splitlines() if not line.startswith("result"))
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "6\n", "")


def test_names_of_tools_cannot_end_the_comment_that_they_are_in(folder: Path) -> None:
    recording = read_recording(folder / "long.jsonl")
    next(iter(recording.of("tools")))["tools"][0]["name"] = "look\nimport os"
    tree = ast.parse(request_code(recording, 0, "python"))
    assert [type(node).__name__ for node in tree.body] == ["ImportFrom"] * 3 + ["Assign"] * 3 + ["Expr"]


@pytest.mark.parametrize("number", [4, 1000])
def test_a_request_that_is_not_there_is_an_error(folder: Path, number: int) -> None:
    with pytest.raises(UserError, match=rf"long.jsonl has no request {number + 1}: it has 4"):
        request_code(read_recording(folder / "long.jsonl"), number, "curl")


def test_a_request_is_replayed_from_the_shell(folder: Path, tmp_path: Path) -> None:
    recording = read_recording(folder / "long.jsonl")
    place = Shelf(folder).place("long.jsonl")
    assert replay_commands(recording, 3, place) == f"unbroken replay {place}\n"  # an answer, no round
    commands = replay_commands(recording, 1, f"{HOSTILE}.jsonl")
    fake = tmp_path / "unbroken"
    fake.write_text('#!/bin/sh\necho "$1" "$#" >> told\n')
    fake.chmod(0o755)
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    subprocess.run(["/bin/sh", "-c", commands], cwd=tmp_path, env=path, check=True, timeout=20)
    assert (tmp_path / "told").read_text() == "replay 4\nreplay 6\nresume 4\n"
    assert "--until-round 2 --save from-round-2.jsonl" in commands
    del recording.settings["schedule"]
    with pytest.raises(UserError, match="recorded by a gateway"):
        replay_commands(recording, 1, place)
