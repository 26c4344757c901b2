"""Reads cases from a file: YAML, JSON, JSON Lines or Python. An error names the file and the line."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NoReturn, TypeAlias, cast

from unbroken.agent.limits import Limits, limits_from_json
from unbroken.agent.named_objects import find_object
from unbroken.errors import UserError, needs_extra
from unbroken_testing.evals.cases import Case, ExpectedCall, Scorer
from unbroken_testing.evals.judging import JUDGE_THRESHOLD, judge
from unbroken_testing.evals.scorers import called, contains, exact, fits
from unbroken_wires.messages import Message
from unbroken_wires.transcript import from_json
from unbroken_wires.wires.json_access import as_dict, as_list

PYTHON_NAME = "cases"
"""The variable of a Python file that holds its cases."""
_KEYS = ("id", "prompt", "messages", "score", "tools", "tags", "timeout", "limits", "pass_rate")


_Entry: TypeAlias = tuple[Any, int]
"""A case as it is in the file, and the line in which it begins."""


@dataclass(frozen=True, slots=True)
class _Reader:
    file: Path
    judge_model: str

    def fail(self, line: int, words: str) -> NoReturn:
        raise UserError(f"{self.file}, line {line}: {words}")


def read_cases(path: str | os.PathLike[str], judge_model: str = "") -> list[Case]:
    """Reads the cases of a `.yaml`, `.json`, `.jsonl` or `.py` file; `cases.py:name` or `module:name` names a variable
    or a function. `judge_model` is for judges that name no model of their own."""
    given = os.fspath(path)
    place, colon, name = given.rpartition(":")
    if colon and name.isidentifier() and not Path(given).exists():
        return _from_python(given, place, name)
    file = Path(given)
    if file.suffix == ".py":
        return _from_python(given, given, PYTHON_NAME)
    parse = _PARSERS.get(file.suffix.lower())
    if parse is None:
        raise UserError(f"{file}: cases are read from a file that ends in {', '.join(_PARSERS)} or .py, or MODULE:NAME")
    reader = _Reader(file, judge_model)
    entries = parse(reader, _text(file))
    if not entries:
        raise UserError(f"{file} has no cases")
    return _cases(reader, entries)


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{file} is not UTF-8 text") from None
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}") from None


def _cases(reader: _Reader, entries: Sequence[_Entry]) -> list[Case]:
    cases: list[Case] = []
    lines: dict[str, int] = {}
    for value, line in entries:
        case = _case(reader, value, line)
        if case.id in lines:
            reader.fail(line, f"the id `{case.id}` is that of the case in line {lines[case.id]}")
        lines[case.id] = line
        cases.append(case)
    return cases


def _case(reader: _Reader, value: Any, line: int) -> Case:
    if not isinstance(value, dict):
        reader.fail(line, f"a case is a mapping with `id` and `prompt`, this is {_kind(value)}")
    given = as_dict(value)
    for key in given:
        if key not in _KEYS:
            reader.fail(line, f"a case has no `{key}`; it may have {', '.join(_KEYS)}")
    if given.get("id") in (None, ""):
        reader.fail(line, "the case has no id")
    id = str(given["id"])
    try:
        return Case(
            id,
            _plain(given.get("prompt") or "", "prompt"),
            [_scorer(each, reader) for each in _each(given.get("score"))],
            _messages(given.get("messages") or []),
            [_expected(each) for each in _list(given.get("tools"))],
            [_plain(each, "tags") for each in _list(given.get("tags"))],
            _number(given, "timeout"),
            _limits(given.get("limits")),
            _number(given, "pass_rate"),
        )
    except UserError as error:
        words = str(error)
        reader.fail(line, words if f"`{id}`" in words else f"case `{id}`: {words}")


def _list(value: Any) -> list[Any]:
    return as_list(value) if isinstance(value, list | None) else [value]


def _each(score: Any) -> list[Any]:
    """The scorers of a list, or of one mapping: `score: {contains: Oslo, called: search}`."""
    return [{name: value} for name, value in as_dict(score).items()] if isinstance(score, dict) else _list(score)


def _kind(value: Any) -> str:
    names = {dict: "a mapping", list: "a list", str: "a text", type(None): "nothing"}
    return names.get(cast("Any", type(value)), f"`{json.dumps(value, default=str)}`")


def _plain(value: Any, where: str) -> str:
    """A text; a number is one too, as people write `contains: 18`."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UserError(f"`{where}` takes texts, this is {_kind(value)}; put it in quotes")
    return str(value)


def _number(given: Mapping[Any, Any], name: str) -> float | None:
    value = given.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise UserError(f"`{name}` is a number, this is {_kind(value)}")
    return value


def _limits(value: Any) -> Limits | None:
    if value is None:
        return None
    known = [each.name for each in fields(Limits) if each.name != "prices"]
    if not isinstance(value, dict) or not as_dict(value).keys() <= set(known):
        raise UserError(f"`limits` is a mapping of {', '.join(known)}")
    try:
        return limits_from_json({"rounds": Limits().rounds, **as_dict(value)})
    except TypeError as error:
        raise UserError(f"`limits`: {error}") from None


def _messages(value: Any) -> tuple[Message, ...]:
    """Messages in their saved form; a text stands for its one part."""
    if not isinstance(value, list):
        raise UserError(f"`messages` is a list, this is {_kind(value)}")
    return from_json([_message(each) for each in as_list(value)])


def _message(value: Any) -> Any:
    message = as_dict(value)
    if message.get("role") != "assistant" and isinstance(content := message.get("content"), str):
        return {**message, "content": [{"type": "text", "text": content}]}
    return value


def _only(value: Any) -> tuple[Any, Any]:
    """The one name in a mapping, and its value; the name is None if this is something else."""
    found = [*as_dict(value).items()]
    return found[0] if len(found) == 1 else (None, None)


def _expected(value: Any) -> ExpectedCall:
    """`search`, or `{book: {seat: 3}}`."""
    if isinstance(value, str):
        return value
    name, arguments = _only(value)
    if isinstance(name, str) and isinstance(arguments, dict | None):
        return {name: as_dict(arguments)}
    raise UserError(
        f"a call is the name of a tool, or {{name: {{argument: value}}}}; this is {json.dumps(value, default=str)}"
    )


# Scorers: each entry of `score` is a mapping of one scorer's name to its parameters.


def _scorer(value: Any, reader: _Reader) -> Scorer | Callable[..., Any]:
    name, given = _only(value)
    match name:
        case "exact":
            options = _options(given, name, "expected", ignore_case=bool)
            return exact(options.pop("expected"), **options)
        case "contains":
            options = _options(given, name, "texts", ignore_case=bool)
            return contains(*(_plain(each, name) for each in _list(options.pop("texts"))), **options)
        case "called":
            options = _options(given, name, "calls", optional=True, only=bool)
            return called(*(_expected(each) for each in _list(options.pop("calls", None))), **options)
        case "fits":
            return fits(find_object(_plain(given, name), "fits"))
        case "judge":
            options = _options(given, name, "rubric", model=str, threshold=float)
            model = options.get("model") or reader.judge_model
            if not model:
                raise UserError("`judge` needs a model: add model: PROVIDER:MODEL, or give --judge")
            threshold = options.get("threshold", JUDGE_THRESHOLD)
            return judge(model, _plain(options["rubric"], "rubric"), threshold=float(threshold))
        case "use":
            return _own(_plain(given, name))
        case None:
            raise UserError(
                f"`score` lists scorers, each as NAME: VALUE, as in `contains: Oslo`; this is {_kind(value)}"
            )
        case _:
            raise UserError(f"there is no scorer `{name}`; there are exact, contains, called, fits, judge and use")


def _options(given: Any, scorer: str, main: str, optional: bool = False, **others: type) -> dict[str, Any]:
    """The parameters of a scorer: its main one alone, or a mapping that has it and others."""
    options = as_dict(given)
    if main not in options and not (optional and options and set(options) <= set(others)):
        return {main: given}
    for name, value in options.items():
        if name != main and name not in others:
            raise UserError(f"`{scorer}` has no `{name}`; it may have {', '.join([main, *others])}")
        kind = others.get(name, object)
        if not isinstance(value, (int, float) if kind is float else kind):
            raise UserError(f"`{name}` of `{scorer}` is a {kind.__name__}, this is {_kind(value)}")
    return dict(options)


def _own(name: str) -> Scorer | Callable[..., Any]:
    found = find_object(name, "use")
    if not isinstance(found, Scorer) and not callable(found):
        raise UserError(f"use: {name} is no function of a case and a result, and no Scorer")
    return found


# Python: a list of cases.


def _from_python(given: str, place: str, name: str) -> list[Case]:
    found = find_object(f"{place}:{name}", "cases")
    if callable(found):
        try:
            found = found()
        except Exception as error:
            raise UserError(f"{given}: `{name}()` failed: {type(error).__name__}: {error}") from error
    cases: list[Any] = list(cast("Sequence[Any]", found)) if isinstance(found, list | tuple) else [None]
    if not all(isinstance(case, Case) for case in cases):
        raise UserError(f"{given}: `{name}` is not a list of Case, and no function that returns one")
    if not cases:
        raise UserError(f"{given} has no cases")
    return cases


# The text of a file, parsed so that the line of each case is known.


def _parse_lines(reader: _Reader, text: str) -> list[_Entry]:
    entries: list[_Entry] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                entries.append((json.loads(line), number))
            except ValueError as error:
                reader.fail(number, f"it is not JSON: {error}")
    return entries


def _parse_json(reader: _Reader, text: str) -> list[_Entry]:
    """A list of cases, or an object with the list as `cases`."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        reader.fail(error.lineno, f"it is not JSON: {error.msg}")
    listed = as_dict(value).get("cases") if isinstance(value, dict) else value
    if not isinstance(listed, list):
        reader.fail(1, "expected a list of cases, or an object with the list as `cases`")
    return list(zip(as_list(listed), _lines_of(text, value), strict=True))


def _lines_of(text: str, value: Any) -> list[int]:
    """The line in which each element of the list begins; the text is known to be valid."""
    place = text.index("[", text.index('"cases"') if isinstance(value, dict) else 0) + 1
    decoder = json.JSONDecoder()
    lines: list[int] = []
    while True:
        while text[place] in " \t\r\n,":
            place += 1
        if text[place] == "]":
            return lines
        lines.append(text.count("\n", 0, place) + 1)
        _, place = decoder.raw_decode(text, place)


def _parse_yaml(reader: _Reader, text: str) -> list[_Entry]:
    try:
        yaml: Any = importlib.import_module("yaml")
    except ModuleNotFoundError:
        raise needs_extra(f"{reader.file}: YAML, unlike JSON,", "the package PyYAML", "eval") from None
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return []
        _refuse_repeated_keys(reader, root)
        listed = root
        if root.id == "mapping":
            listed = next((value for key, value in root.value if key.value == "cases"), None)
        if listed is None or listed.id != "sequence":
            reader.fail(root.start_mark.line + 1, "expected a list of cases, or a mapping with the list as `cases`")
        return [(loader.construct_object(node, deep=True), node.start_mark.line + 1) for node in listed.value]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        words = " ".join(filter(None, (error.context, error.problem)))
        reader.fail(mark.line + 1 if mark else 1, f"it is not YAML: {words}")
    except yaml.YAMLError as error:
        reader.fail(1, f"it is not YAML: {error}")
    finally:
        loader.dispose()


def _refuse_repeated_keys(reader: _Reader, root: Any) -> None:
    """YAML itself takes the last of two values without a word."""
    waiting, known = [root], {id(root)}
    while waiting:
        node = waiting.pop()
        inside: list[Any] = []
        if node.id == "sequence":
            inside = node.value
        elif node.id == "mapping":
            keys: set[str] = set()
            for key, value in node.value:
                if key.id == "scalar" and key.value in keys and key.value != "<<":
                    reader.fail(key.start_mark.line + 1, f"`{key.value}` is there twice")
                keys.add(str(key.value))
                inside.append(value)
        waiting += [each for each in inside if id(each) not in known]  # an alias is the same node again
        known.update(map(id, inside))


_PARSERS: dict[str, Callable[[_Reader, str], list[_Entry]]] = {
    ".yaml": _parse_yaml,
    ".yml": _parse_yaml,
    ".json": _parse_json,
    ".jsonl": _parse_lines,
}
