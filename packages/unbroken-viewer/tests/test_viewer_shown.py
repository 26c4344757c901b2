"""The output of `unbroken view` without a server: one HTML file, lines for the terminal, JSON; and how it ends."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import a_long_run
import pytest
from checkout import DOCS
from rich.cells import cell_len
from terminals import in_pipe
from viewer_pages import data_of

from unbroken import Agent, Limits, Prices, ScriptedModel, tool
from unbroken.trajectory.recorder import Recorder
from unbroken.trajectory.recording import read_recording
from unbroken_cli.run_picture import COARSE, RUNNING, WAITING, WRITING, Ruler, list_lines, picture_lines
from unbroken_testing import Call, Uses, run_virtual
from unbroken_viewer.listing import Shelf
from unbroken_viewer.page import whole_page
from unbroken_viewer.picture import draw

HOSTILE = "</script><script>alert(1)</script><!-- \u2028\u2029 <img src=x onerror=alert(1)> \x1b[31m\x07 \" ' &amp;"


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recordings") / "long.jsonl"
    a_long_run.play(path)
    return path


@tool(effect="read")
async def dig(depth: int) -> str:
    """Digs a hole."""
    await asyncio.sleep(2)
    if depth < 0:
        raise ValueError("there is no such hole")
    return "mud"


def hostile(path: Path) -> Path:
    call = {"id": HOSTILE, "name": HOSTILE, "arguments": {HOSTILE: HOSTILE}, "complete": True}
    said = {"role": "user", "content": [{"type": "text", "text": HOSTILE}]}
    lines: list[dict[str, Any]] = [
        {"line": "run", "schema": 3, "run": HOSTILE, "time": 1.0, "model": HOSTILE, "messages": [said]},
        {"line": "request", "at": 0, "turn": 0, "keep": 0, "messages": [said]},
        {"line": "delta", "at": 0.1, "turn": 0, "delta": "call_ready", "call": call},
        {"line": "note", "text": HOSTILE},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def view(*words: str, columns: int = 80) -> subprocess.CompletedProcess[str]:
    return in_pipe("view", *words, env={"COLUMNS": str(columns), "PYTHONIOENCODING": "utf-8"})


def test_the_file_contains_everything_that_it_shows(long_run: Path) -> None:
    page, left_out = whole_page(Shelf(long_run))
    data = data_of(page)
    assert left_out == []
    assert data["pictures"]["long.jsonl"]["totals"]["calls"] == 8
    assert [row["failed"] for row in data["runs"]] == [1]
    assert b"connect-src 'none'" in page
    assert b"<!--policy-->" not in page
    assert b"src=" not in page.partition(b"<style>")[0]


def test_no_text_of_a_recording_can_break_out_of_its_place_in_the_file(tmp_path: Path) -> None:
    ours, _ = whole_page(Shelf(hostile(tmp_path / "hostile.jsonl")))
    data = data_of(ours)
    [picture] = data["pictures"].values()
    assert picture["prompt"] == HOSTILE
    assert picture["turns"][0]["calls"][0]["name"] == HOSTILE
    assert ours.count(b"<script>") == 1
    assert ours.count(b"</script>") == 2
    assert b"alert(1)<" not in ours
    assert "\u2028".encode() not in ours
    assert "\u2029".encode() not in ours


def test_a_file_of_many_runs_contains_as_many_as_fit(long_run: Path, tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.jsonl").write_bytes(long_run.read_bytes())
    page, left_out = whole_page(Shelf(tmp_path), most=60_000)
    data = data_of(page)
    assert (len(data["runs"]), len(data["pictures"]) + len(left_out)) == (3, 3)
    assert left_out
    assert all("only listed" in words for words in left_out)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_picture_fits_the_width_of_the_terminal(long_run: Path, tmp_path: Path, width: int) -> None:
    for path in (long_run, hostile(tmp_path / "hostile.jsonl")):
        lines = [line.plain for line in picture_lines(draw(read_recording(path)), width)]
        assert max(map(cell_len, lines)) <= width
        assert not any(ord(letter) < 32 for line in lines for letter in line)


def test_the_picture_of_the_long_run_in_eighty_columns(long_run: Path) -> None:
    lines = [line.plain.rstrip() for line in picture_lines(draw(read_recording(long_run)), 80)]
    assert lines[5:20] == [
        "EAGER                       0s       1        2        3        4        4.55 s",
        "round 1                     ─────                                        0.60 s",
        "  weather Reykjavik           ▒▓▓▓▓                                      0.50 s",
        "  weather Reykjavik              ▒·                                      shared",
        "  events_on Saturday             ▒▓▓▓▓▓▓▓▓▓▓▓▓▓                          1.50 s",
        "round 2                                        ─────╳─                   0.60 s",
        "  ╳ the connection was lost",
        "  events_on Sunday                               ▒▓▓▓▓▓▓▓▓▓▓▓▓▓          1.50 s",
        "  map_of Reykjavik                                  ▒╱╱╱╱╱╱╱╱╱           1.00 s",
        "    ╱ Execution timeout after 1s",
        "  weather Akureyri                                  ▒▓▓▓▓                0.50 s",
        "round 3                                                        ─         0.00 s",
        "  book a swim                                                  ▒█        0.25 s",
        "  book whales                                                  ▒█        0.25 s",
        "answer                                                           ─────   0.50 s",
    ]


def test_a_terminal_with_only_ascii_gets_only_ascii(long_run: Path) -> None:
    lines = [line.plain for line in picture_lines(draw(read_recording(long_run)), 100, COARSE)]
    assert all(line.isascii() for line in lines[5:-1])


def test_calls_of_inner_agents_are_drawn_below_the_call_that_runs_them(tmp_path: Path) -> None:
    path = tmp_path / "team.jsonl"

    async def play() -> None:
        inner = Agent(ScriptedModel([Call("dig", depth=3), Call("dig", depth=-1)], "Water."), [dig], name="digger")
        outer = Agent(ScriptedModel([Call("digger", task="a well")], "A well."), [inner.as_tool("digger", "Digs.")])
        await outer.run("Water?", sinks=[Recorder(path)])

    run_virtual(play)
    lines = [line.plain.rstrip() for line in picture_lines(draw(read_recording(path)), 60)]
    assert lines[6:9] == [
        "  digger a well      ▒████████████████████████████   2.00 s",
        "    dig 3            ═════════════════════════════   2.00 s",
        "    dig -1           ╱╱╱╱╱╱╱╱╱╱╱╱╱╱╱╱╱╱╱╱╱╱╱╱╱╱╱╱╱   2.00 s",
    ]
    assert "a call of an inner agent" in " ".join(lines)


def test_a_cost_is_in_dollars_unless_the_run_had_prices_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    model = ScriptedModel(["Hi.", Uses(200, 100)])
    run_virtual(Agent(model, limits=Limits(prices=Prices(input=1000, output=1000))).run("Hi.", sinks=[Recorder(path)]))

    def shown() -> tuple[str, str]:
        lines = picture_lines(draw(read_recording(path)), 200), list_lines(Shelf(tmp_path).rows(), 200)
        one, listed = (" ".join(line.plain for line in each) for each in lines)
        return one, listed

    own = shown()
    assert (" cost 0.3000 " in own[0], " 0.3000 " in own[1]) == (True, True)
    path.write_text(re.sub(r'"prices":\{.*?\}', '"prices":null', path.read_text()))
    dollars = shown()
    assert (" cost $0.3000 " in dollars[0], " $0.3000 " in dollars[1]) == (True, True)
    path.write_text(re.sub(r'"cost":[\d.]+', '"cost":null', path.read_text()))
    assert " cost unknown " in shown()[0]


def test_the_list_has_a_line_for_each_run_and_the_reason_for_other_files(long_run: Path, tmp_path: Path) -> None:
    (tmp_path / "good.jsonl").write_bytes(long_run.read_bytes())
    (tmp_path / "bad.jsonl").write_text("{}\n")
    lines = [line.plain for line in list_lines(Shelf(tmp_path).rows(), 100)]
    assert "answered" in lines[1]
    assert lines[2:4] == [f"  {a_long_run.QUESTION}", "  good.jsonl"]
    assert "not a recording" in " ".join(lines[4:])


def test_the_command_shows_a_recording_in_a_pipe(long_run: Path) -> None:
    done = view(str(long_run), "--plain", columns=120)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "╳ the connection was lost" in done.stdout
    assert json.loads(view(str(long_run), "--json").stdout)["totals"]["restarts"] == 1


def test_the_command_writes_one_file(long_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.html"
    done = view(str(long_run), "--html", str(out))
    assert (done.returncode, done.stdout) == (0, "")
    assert data_of(out.read_bytes())["runs"][0]["name"] == "long.jsonl"
    assert view(str(long_run), "--html", str(tmp_path / "no" / "out.html")).returncode == 2


def test_the_command_reports_a_mistake_in_one_line(long_run: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"line":"run","schema":99}\n')
    for words, told in (
        ((str(bad), "--plain"), "newer version"),
        ((str(tmp_path / "none.jsonl"),), "no recording"),
        ((str(long_run), "--plain", "--json"), "choose one"),
    ):
        done = view(*words)
        assert done.returncode == 2
        assert told in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


def test_the_page_is_served_until_it_is_interrupted(long_run: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "unbroken", "view", str(long_run), "--no-open"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    ) as process:
        assert process.stdout is not None
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\n", process.stdout.readline())
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=20)
        assert process.returncode == 0
        assert "Traceback" not in told


def test_the_page_of_the_docs_shows_what_the_terminal_does(long_run: Path) -> None:
    lines = [line.plain.rstrip() for line in picture_lines(draw(read_recording(long_run)), 80)]
    page = DOCS / "viewer.md"
    assert "\n".join(lines) in page.read_text("utf-8")


def test_nothing_in_a_recording_can_control_the_terminal(tmp_path: Path) -> None:
    path = hostile(tmp_path / "hostile.jsonl")
    end: dict[str, Any] = {
        "line": "event", "event": "run_finished", "run": "r", "turn": 0, "seq": 0, "time": 2.0, "text": HOSTILE,
        "stop_reason": HOSTILE, "rounds": 0, "requests": 1, "calls": 0, "usage": {}, "seconds": 1.0,
    }  # fmt: skip
    path.write_text(path.read_text() + json.dumps(end) + "\n")
    for shown in (view(str(path), "--plain", columns=200), view(str(tmp_path), "--plain", columns=200)):
        assert (shown.returncode, "\x1b" in shown.stdout, "alert(1)" in shown.stdout) == (0, False, True)


@pytest.mark.parametrize("width", [20, 30, 50, 80, 120, 200])
def test_the_list_names_the_file_of_each_run_at_any_width(long_run: Path, tmp_path: Path, width: int) -> None:
    (tmp_path / "good.jsonl").write_bytes(long_run.read_bytes())
    whole = long_run.read_bytes()
    (tmp_path / "unfinished.jsonl").write_bytes(whole[: len(whole) // 2])
    lines = [line.plain for line in list_lines(Shelf(tmp_path).rows(), width)]
    assert max(map(cell_len, lines)) <= width
    shown = " ".join(" ".join(lines).split())
    for words in ("good.jsonl", "unfinished.jsonl", "4.55 s", "Plan a day in", "1 failed"):
        assert words in shown


def test_an_empty_wait_is_not_drawn() -> None:
    """It is written up to the very end of a column, and starts at once."""
    bar = Ruler(0.0, 10.0, 10).bar(
        [(0.0, 3.99999, "▒", WRITING), (3.99999, 4.0, "·", WAITING), (4.0, 9.0, "█", RUNNING)]
    )
    assert bar.plain == "▒▒▒▒█████ "
    bar = Ruler(0.0, 10.0, 10).bar([(0.0, 2.0, "▒", WRITING), (2.0, 4.0, "·", WAITING), (4.0, 9.0, "█", RUNNING)])
    assert bar.plain == "▒▒··█████ "


@pytest.mark.parametrize("seconds", [0.001, 4.55, 1e6, 9e14])
def test_any_time_has_an_axis_and_labels_that_fit(seconds: float, tmp_path: Path) -> None:
    axis = Ruler(0.0, seconds, 40).axis()
    assert axis.startswith("0s")
    assert len(axis) == 40
    assert len(axis.split()) > 2
    path = hostile(tmp_path / "long.jsonl")
    path.write_text(path.read_text() + json.dumps({"line": "note", "at": seconds, "text": ""}) + "\n")
    assert max(cell_len(line.plain) for line in picture_lines(draw(read_recording(path)), 60)) <= 60


def test_a_resumed_run_shows_where_it_was_resumed(tmp_path: Path) -> None:
    path = hostile(tmp_path / "resumed.jsonl")
    path.write_text(path.read_text() + '{"line":"resumed","time":7201.1}\n')
    assert "▸ 0.10 s: the run continues here, 2.0 h later" in "\n".join(
        line.plain for line in picture_lines(draw(read_recording(path)), 80)
    )


def test_a_folder_without_recordings_cannot_be_drawn(long_run: Path, tmp_path: Path) -> None:
    for option in (("--plain",), ("--json",), ("--html", str(tmp_path / "out.html")), ("--no-open",)):
        done = view(str(tmp_path), *option)
        assert (done.returncode, done.stdout) == (2, "")
        assert "Agent(record=…) and unbroken run --record write recordings" in done.stderr
    below = tmp_path / "recordings" / "test_file"
    below.mkdir(parents=True)
    (below / "test_name.jsonl").write_bytes(long_run.read_bytes())
    assert f"some are in {below}; name that folder" in view(str(tmp_path)).stderr


def test_the_page_never_overwrites_a_recording(long_run: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(long_run.read_bytes())
    done = view(str(path), "--html", str(path))
    assert (done.returncode, path.read_bytes()) == (2, long_run.read_bytes())
    assert "is a recording and would be overwritten" in done.stderr
    assert "the name of the file is empty" in view(str(path), "--html", "").stderr
