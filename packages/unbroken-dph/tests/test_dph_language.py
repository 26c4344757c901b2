"""The DPH language by itself: where texts end, how expressions are evaluated, how variables are filled in, and that
every error has its position. No model is used here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbroken import UserError
from unbroken.tools.toolbox import Toolbox
from unbroken_dph import InvalidProgram, Problem, Source, check_program, flags, load_program, parse_program, read_source
from unbroken_dph.arguments import fill
from unbroken_dph.evaluating import CannotEvaluate, evaluate
from unbroken_dph.functions import FUNCTIONS
from unbroken_dph.syntax import Assignment, Block, CallStatement, If, Word
from unbroken_dph.values import Answer, Scope

NAME = r"[A-Za-z_][A-Za-z0-9_]*"
ENDS_A_STATEMENT = re.compile(r"(?:^|\s)(?:->|>>)[ \t]*" + NAME + r"[ \t]*(?:/end/[ \t]*)?$")
BEGINS_A_BLOCK = re.compile(r"[ \t]*/(?:prompt|explore|judge|if|for|parallel|end)/")
FENCE = re.compile(r"[ \t]*(?:```|~~~)")
ARGUMENTS = re.compile(r"\(\s*(?:" + NAME + r"\s*=(?!=)|\))")

BITS = [
    "->",
    ">>",
    "->x",
    " -> x",
    ">> ",
    "=",
    "==",
    "<",
    "-",
    "+",
    "*",
    "/",
    "//",
    "%",
    ":",
    ",",
    ".",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    '"',
    "'",
    '"""',
    "\\",
    "#",
    "@",
    "@t(",
    "@DESC",
    "$",
    "$x",
    "$x.y",
    "$x[0]",
    "|",
    "1",
    "9.5",
    "1e9",
    "```",
    "else:",
    "elif ",
    "else",
    "import os",
    "and",
    "or",
    "not",
    "in",
    "true",
    "null",
    "len(",
    "nope",
    "中",
    "，",
    "e\u0301",
    "/prompt/",
    "/explore/",
    "/judge/",
    "/if/",
    "/for/",
    "/parallel/",
    "/end/",
    "/no/",
    "~~~",
    "tools=[",
    'output="json"',
    " ",
    " ",
    " ",
    "\n",
    "\n",
    "\n",
    "\t",
    "\r\n",
    "\u3000",
    "\u2028",
    "\x00",
    "\x1b",
    "\ufeff",
]
soup = st.lists(st.sampled_from(BITS), max_size=40).map("".join)
texts = st.lists(st.sampled_from(BITS) | st.text(max_size=5), max_size=30).map("".join)


def block(text: str) -> Block:
    (statement,) = parse_program(text).statements
    assert isinstance(statement, Block)
    return statement


def value_of(expression: str, **variables: Any) -> Any:
    (statement,) = parse_program(f"{expression} -> x").statements
    assert isinstance(statement, Assignment)
    return evaluate(statement.value, variables)


def problem_of(program: str) -> Problem:
    with pytest.raises(InvalidProgram) as caught:
        parse_program(program)
    return caught.value.problems[0]


def is_plain(text: str) -> bool:
    """Whether it contains nothing that ends a text, or is not allowed in one."""
    return (
        bool(text)
        and text == text.strip()
        and not {"\r", "\ufeff"} & set(text)
        and not ARGUMENTS.match(text)
        and not any(rule.search(line) for line in text.split("\n") for rule in (ENDS_A_STATEMENT,))
        and not any(rule.match(line) for line in text.split("\n") for rule in (BEGINS_A_BLOCK, FENCE))
    )


@given(texts.filter(is_plain))
def test_the_text_of_a_prompt_is_kept_exactly(text: str) -> None:
    found = block(f"/prompt/ {text} -> x")
    assert (found.text, found.target.name, found.target.append) == (text, "x", False)
    assert found.text_at == len("/prompt/ ")


@given(texts.filter(is_plain))
def test_a_prompt_between_statements_does_not_swallow_them(text: str) -> None:
    program = parse_program(f"1 -> a\n/if/ $a:\n/judge/(tools=[a]) {text}\n>> x\n/end/\n@t() -> b")
    first, middle, last = program.statements
    assert isinstance(first, Assignment)
    assert isinstance(last, CallStatement)
    assert isinstance(middle, If)
    (inside,) = middle.branches[0].body
    assert isinstance(inside, Block)
    assert (inside.text, inside.target.append) == (text, True)


@given(soup | texts | st.binary(max_size=60).map(lambda data: data.decode("latin-1")))
def test_parsing_raises_nothing_but_invalid_program(text: str) -> None:
    lines = Source(text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")).text.split("\n")
    try:
        problems = check_program(parse_program(text), Toolbox())
    except InvalidProgram as error:
        problems = list(error.problems)
        assert problems
    for problem in problems:
        place = problem.place
        assert 1 <= place.line <= len(lines)
        assert place.text == lines[place.line - 1]
        assert 1 <= place.column <= len(place.text) + 1
        assert str(problem).startswith(f"<program>:{place.line}:{place.column}: ")


@given(st.binary(max_size=40))
def test_every_broken_file_gets_a_clear_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "broken.dph"
    path.write_bytes(data)
    told = "broken.dph"
    try:
        load_program(path)
    except UserError as error:
        told = str(error)
    assert "broken.dph" in told


WIDTHS = {"a": 1, "中": 2, "，": 2, "Ｆ": 2, "é": 1, "\u0301": 0, "\u200d": 0, "\ufe0f": 0, "ｱ": 1, "😀": 2}


@given(st.text(alphabet=list(WIDTHS), max_size=60))
def test_the_caret_is_below_its_column_however_wide_the_characters_are(before: str) -> None:
    problem = problem_of(f'1 -> a\n"{before}" + nope -> x')
    assert (problem.place.line, problem.place.column) == (2, len(before) + 6)
    line, caret = problem.place.drawn().split("\n")
    assert line == f'   2 | "{before}" + nope -> x'
    assert caret == "     | " + " " * (sum(WIDTHS[each] for each in before) + 5) + "^"


def test_the_caret_follows_tabs() -> None:
    assert problem_of("\t1\t+\tnope -> x").place.drawn() == "   1 | \t1\t+\tnope -> x\n     | \t \t \t^"


def test_a_long_line_is_shown_around_the_position_without_control_characters() -> None:
    problem = problem_of("[" + "1, " * 1000 + "nope, \x1b[31m 2] -> x")
    line, caret = problem.place.drawn().split("\n")
    assert len(line) < 200
    assert line[caret.index("^") :].startswith("nope, ␛[31m")
    assert problem.place.column == 3002


numbers = st.integers(0, 40).map(str) | st.sampled_from(["0.5", "2.25", "1e3"])
arithmetic = st.recursive(
    numbers,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from([" + ", "-", " * ", " / ", " // ", " % "]), inner).map("".join),
        inner.map(lambda each: f"({each})"),
        inner.map(lambda each: f"-{each}"),
    ),
    max_leaves=12,
)
comparisons = st.tuples(arithmetic, st.sampled_from([" < ", " <= ", " > ", " >= ", " == ", " != "]), arithmetic).map(
    "".join
)
conditions = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from([" and ", " or "]), inner).map("".join),
        inner.map(lambda each: f"({each})"),
        inner.map(lambda each: f"not {each}"),
    ),
    max_leaves=6,
)


@given(arithmetic | conditions)
def test_expressions_evaluate_as_in_python(expression: str) -> None:
    try:
        wanted = eval(expression, {"__builtins__": {}})
    except ZeroDivisionError:
        with pytest.raises(CannotEvaluate, match="division by 0"):
            value_of(expression)
        return
    found = value_of(expression)
    assert (found, type(found)) == (wanted, type(wanted))


literals = st.sampled_from(
    ["1", "-2.5", '"a"', "''", "[]", "[1, 'b']", "{}", '{"k": [2]}', "true", "null", "$s", "$l", "$o.k"]
)
functions = st.sampled_from([*FUNCTIONS])
anything = st.recursive(
    literals,
    lambda inner: st.one_of(
        st.tuples(functions, st.lists(inner, max_size=3)).map(lambda pair: f"{pair[0]}({', '.join(pair[1])})"),
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%", "in", "not in", "and"]), inner).map(
            lambda three: f"({three[0]}) {three[1]} ({three[2]})"
        ),
        inner.map(lambda each: f"[{each}]"),
        inner.map(lambda each: f"$l[{each}]"),
        inner.map(lambda each: f"({each})"),
    ),
    max_leaves=8,
)


@given(anything)
def test_any_values_give_a_value_or_one_error_with_its_position(expression: str) -> None:
    try:
        found, at = value_of(expression, s="text $s", l=[1, "2", [3]], o={"k": {"deep": True}}), 0
    except CannotEvaluate as error:
        found, at = str(error), error.at
    assert 0 <= at < len(expression)
    assert found is None or isinstance(found, bool | int | float | str | list | dict)


@given(st.text(), st.text(max_size=5))
def test_a_text_without_variables_is_not_changed(text: str, value: str) -> None:
    plain = text.replace("$", "")
    assert fill(plain, {"x": value}) == plain
    assert fill(f"{plain}$x", {"x": value}) == plain + value


@given(st.text())
def test_any_text_can_be_quoted(text: str) -> None:
    plain = text.replace("$", "").replace("\r", "")
    escaped = plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    assert value_of(f'"{escaped}"') == plain
    assert value_of(f'"""{escaped}"""') == plain


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("$city的天气", "北京的天气"),
        ("$city.txt", "北京.txt"),
        ("$city[0]", "北"),
        ("$o.k[1].z", "deep"),
        ("$o['k'][0]", "1"),
        ("$o.k", '[1, {"z": "deep"}]'),
        ("$o.nope $o.k[9]", "$o.nope $o.k[9]"),
        ("$nothing.at[0].all", "$nothing.at[0].all"),
        ("$5 $ $$ ${city} $_", "$5 $ $$ ${city} $_"),
        ("$r, $r.answer, $r.think", "Yes., Yes., hm"),
        ("$yes $none $n", "true null 1.5"),
        ("$citys $city_", "$citys $city_"),
        ("$$city", "$北京"),
    ],
)
def test_variables_in_a_text(text: str, wanted: str) -> None:
    variables: dict[str, Any] = {"city": "北京", "o": {"k": [1, {"z": "deep"}]}, "yes": True, "none": None, "n": 1.5}
    assert fill(text, {**variables, "r": Answer(answer="Yes.", think="hm")}) == wanted


def test_inserted_values_are_not_filled_again() -> None:
    assert fill("$a", {"a": "$b", "b": "secret"}) == "$b"


def test_and_and_or_evaluate_no_more_than_they_need() -> None:
    assert value_of("false and $nope") is False
    assert value_of("1 or $nope") == 1
    with pytest.raises(CannotEvaluate, match=r"`\$nope` is not set"):
        value_of("true and $nope")


def test_true_is_not_a_number() -> None:
    assert value_of("1 == true") is False
    assert value_of("1 in [true]") is False
    with pytest.raises(CannotEvaluate, match="a boolean"):
        value_of("true + 1")


@pytest.mark.parametrize(
    "expression",
    ["$x.__class__", "$x['__class__']", "$l.append", "$o.items", "$o.__init__.__globals__"],
)
def test_python_cannot_be_reached_through_a_value(expression: str) -> None:
    with pytest.raises(CannotEvaluate, match=r"has no|there is no"):
        value_of(expression, x="text", l=[1], o={"a": 1})


@pytest.mark.parametrize("name", ["eval", "open", "getattr", "__import__", "print"])
def test_there_are_no_functions_besides_the_documented_ones(name: str) -> None:
    assert f"there is no function `{name}`" in problem_of(f'{name}("x") -> y').message


@pytest.mark.parametrize(
    ("expression", "variables"),
    [
        ('replace($x, "a", $x)', {"x": "a" * 100_000}),
        ("join(range(100000), $x)", {"x": "a" * 100_000}),
        ("$x + $x", {"x": "a" * 9_000_000}),
        ("range(10000000)", {}),
        ("$n * $n", {"n": 2**4000}),
        ("json($x)", {"x": "[" * 200_000}),
        ("round(5, -3000000)", {}),
        ("'$x$x'", {"x": "a" * 9_000_000}),
    ],
)
def test_a_huge_value_is_refused_before_it_is_built(expression: str, variables: dict[str, Any]) -> None:
    with pytest.raises(CannotEvaluate):
        value_of(expression, **variables)


def test_bare_words_are_names_only_in_the_list_of_an_argument() -> None:
    (argument,) = block('/explore/(tools=[search, fs.*, "x", mcp__*]) Go. -> r').arguments
    assert evaluate(argument.value, {}) == ["search", "fs.*", "x", "mcp__*"]
    assert problem_of("[search] -> x").place.column == 2
    (call,) = parse_program("@t(a=[b, [c]], d={'e': [1]}) -> x").statements
    assert isinstance(call, CallStatement)
    assert isinstance(evaluate(call.arguments[0].value, {}), list)
    assert not isinstance(call.arguments[1].value, Word)


def test_a_parenthesis_after_a_space_contains_arguments_only_if_it_looks_like_them() -> None:
    assert block("/prompt/ (briefly) why? -> x").text == "(briefly) why?"
    spaced = block('/prompt/ (output="json") why? -> x')
    assert (spaced.text, spaced.arguments[0].name) == ("why?", "output")


def test_an_else_inside_a_text_is_text_and_the_one_after_its_arrow_belongs_to_the_if() -> None:
    program = parse_program("/if/ true:\n/prompt/ a\nelse:\nb -> c\nd\n-> x\nelse:\n1 -> x\n/end/")
    (statement,) = program.statements
    assert isinstance(statement, If)
    first, second = statement.branches
    assert isinstance(first.body[0], Block)
    assert first.body[0].text == "a\nelse:\nb -> c\nd"
    assert second.condition is None


def test_line_ends_and_byte_order_marks_of_other_systems_do_not_change_a_program() -> None:
    text = '/prompt/ a\n  b\n-> x\n"c" -> y\n'
    same = [text, text.replace("\n", "\r\n"), text.replace("\n", "\r"), f"\ufeff{text}", text.rstrip("\n")]
    assert len({repr([*parse_program(each).statements]) for each in same}) == 1


def test_positions_in_a_file_with_carriage_returns_match_an_editor() -> None:
    place = problem_of('\ufeff1 -> a\r\n\r\n"中" + nope -> x\r\n').place
    assert (place.line, place.column, place.text) == (3, 7, '"中" + nope -> x')


def test_a_mistake_after_the_last_line_has_a_position_in_the_text() -> None:
    place = problem_of("1 -> a\n$a +").place
    assert (place.line, place.column) == (2, 5)


def test_brackets_and_blocks_may_be_nested_up_to_a_limit_which_always_works() -> None:
    deep = "/if/ true:\n" * 30 + "len([" * 12 + ")])"[1:] * 12 + " -> x\n" + "/end/\n" * 30
    deep = deep.replace("len([" * 12, "[" * 24).replace("])" * 12, "]" * 24)
    assert parse_program(deep).statements
    assert "deep" in problem_of("(" * 100 + "1" + ")" * 100 + " -> x").message
    assert "deep" in problem_of("-" * 100 + "1 -> x").message
    assert "deep" in problem_of("not " * 100 + "true -> x").message
    assert "at most" in problem_of("1" + " + 1" * 1000 + " -> x").message


def test_a_long_sum_does_not_count_as_deep() -> None:
    assert value_of("1" + " + 1" * 400) == 401


def test_a_scope_never_changes_a_list_in_place() -> None:
    scope = Scope({"list": [1]})
    before = scope["list"]
    scope.put("list", 2, append=True)
    assert (before, scope["list"]) == ([1], [1, 2])


def test_forks_see_what_was_set_before_and_nothing_of_each_other() -> None:
    scope = Scope({"a": 1, "list": [0]})
    one, other = scope.fork(), scope.fork()
    one.put("a", 2, append=False)
    one.put("list", 1, append=True)
    other.put("list", 2, append=True)
    assert (other["a"], other["list"]) == (1, [0, 2])
    scope.join(one)
    scope.join(other)
    assert dict(scope) == {"a": 2, "list": [0, 1, 2]}


def test_the_flag_is_on_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    flag = flags.ENABLE_PARALLEL_TOOL_CALLS
    for prefix in flags.PREFIXES:
        monkeypatch.delenv(f"{prefix}ENABLE_PARALLEL_TOOL_CALLS", raising=False)
    flags.reset()
    assert flags.is_enabled(flag)
    monkeypatch.setenv("DOLPHIN_ENABLE_PARALLEL_TOOL_CALLS", "false")
    assert not flags.is_enabled(flag)
    monkeypatch.setenv("UNBROKEN_ENABLE_PARALLEL_TOOL_CALLS", " On ")
    assert flags.is_enabled("ENABLE_PARALLEL_TOOL_CALLS")  # our own prefix has priority
    flags.disable(flag)
    assert not flags.is_enabled(flag)
    flags.enable(flag)
    assert flags.is_enabled(flag)
    flags.reset(flag)
    monkeypatch.setenv("UNBROKEN_ENABLE_PARALLEL_TOOL_CALLS", "maybe")
    with pytest.raises(UserError, match="UNBROKEN_ENABLE_PARALLEL_TOOL_CALLS=maybe: set it to true or false"):
        flags.is_enabled(flag)


def test_an_unknown_flag_is_refused() -> None:
    with pytest.raises(UserError, match="there is no flag `turbo`; the flags are: enable_parallel_tool_calls"):
        flags.enable("turbo")


def test_a_program_is_found_by_its_path_and_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.dph").write_text("1 -> x")
    monkeypatch.chdir(tmp_path)
    for source in (tmp_path / "a.dph", str(tmp_path / "a.dph"), "a.dph", read_source("a.dph"), "1 -> x"):
        assert len(load_program(source).statements) == 1


@pytest.mark.parametrize(("path", "words"), [("b.dph", "did you mean a.dph"), (".", "cannot be read")])
def test_a_program_that_cannot_be_read_is_named(tmp_path: Path, path: str, words: str) -> None:
    (tmp_path / "a.dph").write_text("1 -> x")
    with pytest.raises(UserError, match=words):
        read_source(tmp_path / path)


def test_the_checker_reports_every_problem_once_in_order() -> None:
    program = parse_program("@a(x=$u) -> p\n/prompt/(nope=1) $v $v $v -> q\n$w + $w -> r\n")
    found = check_program(program, Toolbox())
    assert [(problem.kind, problem.place.line, problem.place.column) for problem in found] == [
        ("error", 1, 1),
        ("warning", 1, 6),
        ("error", 2, 10),
        ("warning", 2, 18),
        ("error", 3, 1),
    ]
    assert found[0].to_json()["text"] == "@a(x=$u) -> p"


def test_without_tools_the_checker_does_not_check_tools() -> None:
    program = parse_program('@anything(x=1) -> y\n/explore/(tools=[nope], output="obj/Any") Go. -> z')
    assert check_program(program) == []
