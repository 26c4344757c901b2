"""Programs that went wrong once: statements swallowed by a prompt, endless values, recursion through /parallel/, lost
text calls, and what is kept of each."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unbroken import Allow, ScriptedModel, UserError, connect, tool
from unbroken.errors import Unauthorized
from unbroken.models.scripted import Line
from unbroken.tools.toolbox import Toolbox
from unbroken.trajectory.recording import read_recording
from unbroken_dph import (
    BlockStarted,
    InvalidProgram,
    ProgramFailed,
    ProgramResult,
    check_program,
    load_program,
    run_program,
)
from unbroken_dph.syntax import Assignment, Block
from unbroken_dph.values import measure
from unbroken_testing import Call, Fail, Say, Uses, run_virtual, serve


def run(program: str | Path, *answers: Line, tools: list[Any] | None = None, **variables: Any) -> ProgramResult:
    return run_virtual(lambda: _run(program, ScriptedModel(*answers), tools or [], variables))


async def _run(program: str | Path, model: ScriptedModel, tools: list[Any], variables: dict[str, Any]) -> ProgramResult:
    return await run_program(program, model, tools, variables)


@pytest.mark.parametrize(
    "statement",
    [
        "not $x -> y",
        "-$x -> y",
        '-len("a") -> y',
        "(1 + 2) * 3 -> y",
        "(1) > 2 -> y",
        "[1] + $x -> y",
        "1e5 -> y",
        "True -> y",
        "None -> y",
        "$x[$i[0]] -> y",
        '$x["a]"] -> y',
        '[\n"a",\n"b"\n] -> y',
        '{\n"a": 1\n} -> y',
        "len(\n$x) -> y",
        '"""\ntext\n""" -> y',
        "2 * 3 -> y  # a comment",
    ],
)
def test_no_prompt_swallows_the_statement_that_follows_it(statement: str) -> None:
    prompt, after = load_program(f"/prompt/ Hi -> x\n{statement}\n").statements
    assert isinstance(prompt, Block)
    assert isinstance(after, Assignment)
    assert (prompt.text, prompt.target.name, after.target.name) == ("Hi", "x", "y")


@pytest.mark.parametrize(
    "line",
    [
        "1 - first",
        '"quoted text" in a line',
        "true or false?",
        "$x and $y",
        "3 / 4 of them",
        "@home (soon) we go",
        "- $a is b",
        "/usr/bin/env",
        "web_search(q=1)",
    ],
)
def test_a_text_that_only_begins_like_a_statement_stays_text(line: str) -> None:
    [block] = load_program(f"/prompt/ Flow:\nA -> B\n{line}\n-> r").statements
    assert isinstance(block, Block)
    assert block.text == f"Flow:\nA -> B\n{line}"


@pytest.mark.parametrize(
    ("program", "words", "line"),
    [
        ("/prompt/ Hi -> x\n/prmpt/ z -> y", "did you mean `/prompt/`?", 2),
        ("/prompt/ Hi\n/explor/ z -> y", "`/explor/` is inside the text of the `/prompt/` in line 1", 2),
        ("/prompt/ Hi -> a\n$a.answer", "this is not a statement, so the arrow before it is text", 2),
    ],
)
def test_a_mistake_after_a_prompt_is_an_error_at_its_position(program: str, words: str, line: int) -> None:
    with pytest.raises(InvalidProgram) as caught:
        load_program(program)
    assert words in caught.value.problems[0].message
    assert caught.value.problems[0].place.line == line


@pytest.mark.parametrize(
    "ending", ["-> joke # first", "-> $joke", "-> joke.x", "-> joke"], ids=["comment", "dollar", "path", "call"]
)
def test_an_invalid_ending_is_warned_of_if_the_next_line_is_the_last(ending: str) -> None:
    last = '"b" -> y' if ending != "-> joke" else "web_search(q=1) -> y"
    problems = check_program(load_program(f"/prompt/ Tell\na joke {ending}\n{last}"), variables=["joke"])
    assert [(problem.kind, problem.place.line) for problem in problems] == [("warning", 2)]


@pytest.mark.parametrize(
    "text", ["A -> B\nB -> C", "/send/ it", "/prompts/list.txt", "/form/ x", "def f() -> int\nreturn 1"]
)
def test_arrows_and_paths_in_a_prompt_cause_no_warning(text: str) -> None:
    program = load_program(f"/prompt/ Rules:\n{text}\n-> x")
    assert check_program(program) == []
    [block] = program.statements
    assert isinstance(block, Block)
    assert block.text == f"Rules:\n{text}"


@pytest.mark.parametrize(
    "value",
    [
        "[\n" + '"aaaa",\n' * 2000 + "]",
        '"""' + "long text.\n" * 600 + '"""',
        '{"a": """' + "b\n" * 5000 + '"""}',
        '"' + "a" * 5000 + '"',
        'len("' + "a" * 5000 + '")',
    ],
    ids=["list", "text", "object", "line", "function"],
)
def test_a_value_of_any_length_after_a_prompt_is_a_statement(value: str) -> None:
    before = '/prompt/ q -> x\n"a short text of some sixty characters, as programs have them" -> y\n' * 1000
    *_, prompt, after = load_program(f"{before}/prompt/ Hi -> x\n{value} -> z").statements
    assert isinstance(prompt, Block)
    assert isinstance(after, Assignment)
    assert after.target.name == "z"


@pytest.mark.parametrize(
    "value", ['{\n"a": 1\n"b": 2\n}', '[\n"a"\n"b"\n]', '"a" +\n"b"'], ids=["object", "list", "sum"]
)
def test_a_mistake_in_a_multi_line_value_after_a_prompt_is_warned_of(value: str) -> None:
    problems = check_program(load_program(f"/prompt/ Hi\nthere -> x\n{value} -> y\n/prompt/ k -> z"))
    assert [(problem.kind, problem.place.line) for problem in problems] == [("warning", 2)]


def test_only_the_first_of_many_lines_that_end_like_a_prompt_is_warned_of() -> None:
    problems = check_program(load_program("/prompt/ Say:\nhello -> bonjour\ncat -> chat\nand sum up -> r"))
    assert [(problem.kind, problem.place.line) for problem in problems] == [("warning", 2)]


def test_a_description_may_follow_a_prompt() -> None:
    program = load_program("/prompt/ a -> x\n@DESC hi\nthere @DESC\n1 -> y")
    assert (len(program.statements), program.description) == (2, "hi\nthere")


def test_a_name_that_is_only_appended_to_is_a_list_from_the_beginning() -> None:
    result = run("/for/ $t in $all:\n$t >> hits\n/end/\nlen($hits) -> n", all=[])
    assert (result.value, result.variables["hits"]) == (0, [])


@pytest.mark.parametrize(
    "program",
    [
        "1 -> x\n/for/ $i in range(3000):\n[$x] -> x\n/end/",
        "1 -> x\n/for/ $i in range(60):\n[$x, $x] -> x\n/end/",
        "[1] -> x\n/for/ $i in range(60):\n$x >> x\n/end/",
        "'a' -> x\n/for/ $i in range(60):\n'$x$x' -> x\n/end/",
        '{"a": 1} -> x\n/for/ $i in range(3000):\n{"b": $x} -> x\n/end/',
        "/parallel/\n/for/ $i in range(3000):\n[$x] -> x\n/end/\n/end/",
        "round(5, -1000000000) -> x",
        "1e308 * 10 -> x",
        "sum([1e308, 1e308]) -> x",
        "float('inf') -> x",
        "json('1e999') -> x",
        "json($deep) -> x",
    ],
)
def test_an_endless_value_is_refused_where_it_is_built(program: str) -> None:
    with pytest.raises(ProgramFailed, match=r"too large|deep|no number|at most|too long"):
        run(program, x=1, deep="[" * 100_000)


def test_appending_is_linear() -> None:
    assert len(run("/for/ $i in range(100000):\n$i >> all\n/end/").variables["all"]) == 100_000


def test_a_list_that_was_read_does_not_change_for_its_reader() -> None:
    result = run("1 >> a\n$a -> b\n2 >> a\n[$a] -> c\n3 >> a\n$b + $c[0] -> d")
    assert result.variables["a"] == [1, 2, 3]
    assert result.value == [1, 1, 2]


def test_a_tool_with_a_cache_is_called_once_and_its_value_stays_a_value() -> None:
    asked: list[str] = []

    @tool(effect="read", cache=60)
    def look(q: str) -> dict[str, str]:
        """Look."""
        asked.append(q)
        return {"q": q}

    result = run('@look(q="a") -> a\n@look(q="a") -> b\n$b.q -> q', tools=[look])
    assert (asked, result.value) == (["a"], "a")


def test_the_callers_data_is_never_changed() -> None:
    @tool
    def grow(items: list[Any]) -> int:
        """Grow."""
        items.append(2)
        return len(items)

    given: dict[str, Any] = {"items": [1]}
    before = copy.deepcopy(given)
    assert run("@grow(items=$items) -> n", tools=[grow], **given).variables["items"] == [1]
    assert given == before


def test_endless_recursion_through_parallel_is_one_error(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.dph"
    bomb.write_text("/parallel/\n@bomb() -> a\n@bomb() -> b\n/end/")
    with pytest.raises(ProgramFailed, match="programs call each other too deep"):
        run(bomb)


def test_blocks_of_a_called_program_name_the_block_that_called_it(tmp_path: Path) -> None:
    (tmp_path / "sub.dph").write_text('"$n" + "!" -> said\n@note(text=$said) -> x')
    main = tmp_path / "main.dph"
    main.write_text('@sub(n="1") -> a\n@sub(n="2") -> b')

    @tool
    def note(text: str) -> str:
        """Note."""
        return text

    async def begun() -> list[tuple[int, int, str]]:
        events = [event async for event in run_program(main, None, [note])]
        return [(e.block.number, e.block.parent, e.block.kind) for e in events if isinstance(e, BlockStarted)]

    assert asyncio.run(begun()) == [(1, 0, "program"), (2, 1, "call"), (3, 0, "program"), (4, 3, "call")]


def test_an_argument_that_a_called_program_never_uses_is_warned_of(tmp_path: Path) -> None:
    (tmp_path / "sub.dph").write_text('$text + "!" -> out')
    main = tmp_path / "main.dph"
    main.write_text('@sub(txt="hi") -> x')
    problems = check_program(load_program(main), Toolbox())
    told = [(Path(problem.place.file).name, problem.kind, problem.expected) for problem in problems]
    assert told == [
        ("main.dph", "warning", "expected a variable of that program"),
        ("sub.dph", "error", "expected a variable that is set, or an argument of the call"),
    ]


def test_all_failing_children_are_named() -> None:
    @tool
    def fail(why: str) -> str:
        """Fail."""
        raise ValueError(why)

    with pytest.raises(ProgramFailed) as caught:
        run("/parallel/\n@fail(why='a') -> x\n@fail(why='b') -> y\n/end/", tools=[fail])
    assert caught.value.message == "tool `fail` failed: a (also: line 3: tool `fail` failed: b)"


def test_messages_of_children_are_known_after_them_in_order() -> None:
    model = ScriptedModel("A.", "B.", "D.")
    program = "/parallel/\n/prompt/(history=true) a -> a\n/prompt/(history=true) b -> b\n/end/\n"
    run_virtual(lambda: _run(program + "/prompt/(history=true) d -> d", model, [], {}))
    said = [getattr(message, "text", "") for message in model.requests[-1].messages]
    assert said == ["a", "A.", "b", "B.", "d"]


def test_a_correction_of_the_answer_repeats_no_calls() -> None:
    ran: list[int] = []

    @tool
    def now() -> str:
        """The time."""
        ran.append(1)
        return "noon"

    answers: tuple[Line, ...] = (Call("now"), "It is noon.", '{"time": "noon"}')
    result = run('/explore/(output="json", tool_choice="required") When? -> x', *answers, tools=[now])
    assert (result.value, len(ran), result.requests) == ({"time": "noon"}, 1, 3)


@pytest.mark.parametrize("answer", ["STILL BAD", '"a"', '{"a": ["x"]}', "Sorry, I cannot.\nReally."])
def test_a_list_of_strings_is_not_built_from_anything(answer: str) -> None:
    with pytest.raises(ProgramFailed, match=r"neither an array of strings nor a list|not an array of strings"):
        run('/prompt/(output="list_str") Which? -> x', answer, answer)


def test_a_list_with_bullets_is_a_list_of_strings() -> None:
    assert run('/prompt/(output="list_str") Which? -> x', "Here they are:\n- a\n- b c").value == ["a", "b c"]


def test_next_to_a_string_the_value_of_a_block_is_its_answer() -> None:
    program = (
        '/prompt/ yes or no? -> r\n{"yes": 1} -> d\n'
        '[$r == "yes", "ye" in $r, upper($r), $r != "no", $r in ["yes"], len($r), $d[$r], replace($r, "y", "Y")] -> all'
    )
    assert run(program, "yes").value == [True, True, "YES", True, True, 3, 1, "Yes"]
    assert run("/prompt/ How many? -> n\nint($n) + float($n) -> m", "5").value == 10.0


def test_a_tool_with_a_string_parameter_gets_the_answer_of_a_block() -> None:
    @tool
    def save(text: str) -> str:
        """Save."""
        return f"saved {text}"

    assert run("/prompt/ What? -> r\n@save(text=$r) -> s", "This.", tools=[save]).value == "saved This."


def test_a_judgement_is_one_request_and_its_call_is_in_its_recording(tmp_path: Path) -> None:
    @tool(approve=True)
    def page(who: str) -> dict[str, str]:
        """Page somebody."""
        return {"paged": who}

    model = ScriptedModel([Call("page", who="Ada"), Uses(10, 2)])

    async def judge() -> ProgramResult:
        program = "/judge/(tools=[page]) Who? -> who"
        return await run_program(program, model, [page], on_approval=lambda call: Allow(), record=tmp_path)

    result = run_virtual(judge)
    assert (result.value, result.requests, result.usage.input_tokens) == ({"paged": "Ada"}, 1, 10)
    [file] = tmp_path.glob("*.jsonl")
    recording = read_recording(file)
    assert recording.ending is not None
    assert getattr(recording.ending, "stop_reason", "") == "round_limit"
    assert len([*recording.of("result")]) == 1


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('I look. =>#look: {"q": "a"}', {"q": "a"}),
        ('> =>#look: {"q": "a"} and so on', {"q": "a"}),
        ('=>#look：{"q": "a"}', {"q": "a"}),
        ('=>#look:\n{"q":\n"a"}\nResult: invented', {"q": "a"}),
        ("=>#now", {}),
        ("=>#now:\n", {}),
        ("Let me see.\n=>#now\n", {}),
        ("=>#now\nI wait for it.", {}),
    ],
)
def test_a_call_in_text_is_read_as_models_write_it(written: str, arguments: dict[str, str]) -> None:
    ran: list[dict[str, str]] = []

    @tool
    def look(q: str) -> str:
        """Look."""
        ran.append({"q": q})
        return "seen"

    @tool
    def now() -> str:
        """Now."""
        ran.append({})
        return "noon"

    for pieces in (1, 2, 5, len(written)):
        ran.clear()
        answers = [Say(written, chunks=pieces)], "Done."
        result = run('/explore/(mode="prompt") Go. -> r', *answers, tools=[look, now])
        assert (ran, result.variables["r"]["answer"]) == ([arguments], "Done.")


def test_a_text_that_mentions_calls_but_makes_none_is_an_answer() -> None:
    text = "=>#\n" * 2000 + "Write => # or =>#nobody here: {} as you like."
    result = run('/explore/(mode="prompt") Go. -> r', [Say(text, chunks=1)], tools=[])
    assert result.variables["r"]["answer"] == text


def test_usage_of_text_calls_is_counted() -> None:
    @tool
    def now() -> str:
        """Now."""
        return "noon"

    answers = [Say("=>#now"), Uses(100, 20)], [Say("Done."), Uses(200, 30)]
    usage = run('/explore/(mode="prompt") Go. -> r', *answers, tools=[now]).usage
    assert (usage.input_tokens, usage.output_tokens, usage.estimated) == (300, 50, False)


@pytest.mark.parametrize(
    ("choice", "told"), [("required", "you must call a tool"), ("now", "you must call now"), ("none", "No tool can")]
)
def test_a_tool_choice_is_described_in_text_for_a_model_without_calls(choice: str, told: str) -> None:
    @tool
    def now() -> str:
        """Now."""
        return "noon"

    model = ScriptedModel("Noon.")
    program = f'/explore/(mode="prompt", tool_choice="{choice}") When? -> r'
    run_virtual(lambda: _run(program, model, [now], {}))
    assert told in getattr(model.requests[0].messages[0], "text", "")


def test_usage_of_a_failed_block_is_in_the_error() -> None:
    @tool
    def now() -> str:
        """Now."""
        return "noon"

    answers: tuple[Line, ...] = ([Call("now"), Uses(100, 10)], Fail(Unauthorized("the key is wrong")))
    with pytest.raises(ProgramFailed) as caught:
        run("/explore/ When? -> r", *answers, tools=[now])
    assert (caught.value.usage.input_tokens, caught.value.requests) == (100, 2)
    assert isinstance(caught.value.__cause__, Unauthorized)


class _Unwritable:
    def __str__(self) -> str:
        raise RuntimeError("no words")


def _nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "given", [_nested(5000), _Unwritable(), 10**5000, [1, 10**5000]], ids=["deep", "odd", "big", "in"]
)
@pytest.mark.parametrize("program", ["@give() -> x", "/judge/(tools=[give]) Which? -> x"])
def test_a_tool_result_that_is_not_a_value_is_reported(program: str, given: Any) -> None:
    @tool
    def give() -> Any:
        """Give."""
        return given

    with pytest.raises(ProgramFailed, match="the result of tool `give` is not a JSON value"):
        run(program, Call("give"), tools=[give])


def test_a_generator_tool_returns_a_list() -> None:
    @tool
    def count() -> Any:
        """Count."""
        return (number for number in range(3))

    assert run("@count() -> x", tools=[count]).value == [0, 1, 2]


@pytest.mark.parametrize(
    "program",
    [
        "/for/ $i in range(1000000):\n/for/ $j in range(1000000):\n/end/\n/end/",
        "range(200000) -> big\n/for/ $i in range(1000000):\n$big + [$i] -> x\n/end/",
    ],
    ids=["nothing in it", "long statements"],
)
def test_a_program_that_only_computes_can_be_stopped(program: str) -> None:
    async def main() -> None:
        async with asyncio.timeout(0.2):
            await run_program(program, None)

    with pytest.raises(TimeoutError):
        asyncio.run(main())


def test_a_mistake_in_a_called_program_comes_with_an_explanation(tmp_path: Path) -> None:
    (tmp_path / "sub.dph").write_text('$text + "!" -> out')
    main = tmp_path / "main.dph"
    main.write_text('@sub(txt="hi") -> x')
    with pytest.raises(InvalidProgram) as caught:
        run(main)
    assert [Path(problem.place.file).name for problem in caught.value.warnings] == ["main.dph"]


def test_appending_in_parallel_in_a_loop_keeps_every_item_in_order() -> None:
    program = "/for/ $i in range(300):\n/parallel/\n$i >> all\n$i * 2 >> all\n/end/\n/end/"
    assert run(program).variables["all"] == [item for i in range(300) for item in (i, i * 2)]


def test_a_snapshot_of_the_variables_does_not_change() -> None:
    @tool
    def wait() -> str:
        """Wait."""
        return "waited"

    async def main() -> None:
        running = run_program("1 >> a\n@wait() -> x\n2 >> a\n@wait() -> x\n3 >> a", None, [wait])
        kept: list[tuple[list[int], list[int]]] = []
        async for _ in running:
            now: list[int] = running.variables["a"]
            kept.append((now, [*now]))
        assert running.variables["a"] == [1, 2, 3]
        assert all(now == then for now, then in kept)

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["circle", "deep", "odd"])
def test_a_variable_that_is_not_a_value_is_refused(kind: str) -> None:
    circle: list[Any] = []
    circle.append(circle)
    given = {"circle": circle, "deep": _nested(5000), "odd": _Unwritable()}[kind]
    with pytest.raises(UserError, match="the variable `x` is not a JSON value"):
        run("$x -> y", x=given)
    assert run("$x -> y", x={1: (2, 3)}).value == {"1": [2, 3]}


@pytest.mark.parametrize("mode", ["tool_call", "prompt"])
def test_the_models_key_is_in_no_recording_of_a_block(mode: str, tmp_path: Path) -> None:
    key = "sk-test-0123456789abcdefghij"

    @tool
    def leak() -> str:
        """Tell the key."""
        return f"it is {key}"

    call: Line = [Say("=>#leak")] if mode == "prompt" else Call("leak")

    async def main(address: str) -> str:
        model = connect("openai:m", base_url=address, api_key=key)
        result = await run_program(f'/explore/(mode="{mode}") Go. -> r', model, [leak], record=tmp_path)
        return result.variables["r"]["calls"][0]["result"]

    with serve(call, "Done.", api_key=key) as server:
        assert asyncio.run(main(server.base_url())) == f"it is {key}"
    [recording] = tmp_path.glob("*.jsonl")
    text = recording.read_text("utf-8")
    assert "it is ***" in text
    assert key not in text


@pytest.mark.parametrize(
    "expression",
    [
        " + ".join(["$big"] * 400),
        "$big" + " + [1]" * 400,
        " + ".join(f"len($big + [{n}])" for n in range(200)),
        "[" + ", ".join(f"$big + [{n}]" for n in range(200)) + "]",
        " + ".join(["str($big)"] * 200),
        " or ".join(["$big == $same + [1]"] * 100),
        "len(sorted($big))" + " + len(sorted($big))" * 100,
    ],
)
def test_one_statement_cannot_do_more_than_a_bounded_amount_of_work(expression: str) -> None:
    """Otherwise it would block the event loop, and no time-out would be noticed."""
    big: list[Any] = list(range(100_000))
    with pytest.raises(ProgramFailed, match=r"more than 3,000,000 values|too large"):
        run(f"{expression} -> x\n", big=big, same=list(big))


def test_a_program_that_doubles_a_list_notices_its_time_out() -> None:
    program = "/for/ $i in range(1000000):\n$start + $start -> x\n[$x[0]] -> y\n/end/\n"

    async def main() -> None:
        async with asyncio.timeout(0.2):
            await run_program(program, ScriptedModel(), [], {"start": list(range(200_000))})

    with pytest.raises(TimeoutError):
        asyncio.run(main())


@pytest.mark.parametrize("items", [[1, 2, 3, 4], ["a", "b"], [True], [2.5]], ids=str)
def test_measuring_a_doubled_list_costs_little_more_than_reading_it(items: list[Any]) -> None:
    """No time-out is noticed meanwhile: two million numbers took two seconds."""
    long = items * (300_000 // len(items))

    def seconds(work: Callable[[], object]) -> float:
        began = time.process_time()
        work()
        return time.process_time() - began

    measured = min(seconds(lambda: measure(long)) for _ in range(5))
    walked = min(seconds(lambda: sum(1 for each in long if each)) for _ in range(5))
    assert measured < 8 * walked


def test_measuring_many_values_at_once_equals_measuring_each() -> None:
    for items in ([1, 2**61], ["ab", ""], [1.5], [1, "ab", None, True, 2.5], [1, [2, "ab"]], [2**100]):
        size, depth = measure(items)
        assert measure(items * 101) == ((size - 1) * 101 + 1, depth)
    for wrong in (2**5000, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="too large"):
            measure([1] * 101 + [wrong])
