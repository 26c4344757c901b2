"""Finds mistakes in a program before it runs, so that no model is asked and paid for in vain: unknown tools, unknown or
invalid arguments, variables that are never set, programs that do not exist. It runs nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal, assert_never

from unbroken.errors import UserError
from unbroken.tools.schema import ArgumentsDoNotFit
from unbroken.tools.tool import Tool
from unbroken.tools.toolbox import Toolbox
from unbroken_dph.arguments import TYPED, unfit, unknown
from unbroken_dph.evaluating import NO_MODEL, CannotEvaluate, evaluate, no_such_choice, no_such_model, no_such_tool
from unbroken_dph.lexing import lines_outside_fences, swallowed
from unbroken_dph.problems import InvalidProgram, Problem
from unbroken_dph.running import Library
from unbroken_dph.syntax import (
    Argument,
    Assignment,
    Block,
    CallStatement,
    Constant,
    Expression,
    For,
    If,
    ListOf,
    Parallel,
    Program,
    Quoted,
    Statement,
    Word,
    each_once,
    lists_of,
    names_in,
    names_used,
    parts,
    targets,
    variables,
)
from unbroken_dph.values import kind_of
from unbroken_wires.validation import checked


@checked
def check_program(
    program: Program,
    tools: Toolbox | None = None,
    variables: Collection[str] = (),
    types: Mapping[str, Any] | None = None,
    library: Library | None = None,
    *,
    has_model: bool = True,
    models: Collection[str] | None = None,
) -> list[Problem]:
    """All problems of a program and of the programs that it calls, in order. Without `tools` tools are not checked,
    without `types` types are not."""
    found: dict[Problem, None] = {}  # each once: a program may be checked again with fewer variables
    library, checked = library or Library(), dict[str, set[str]]()
    waiting = [(program, set(variables))]
    for one, given in waiting:  # it grows during the loop
        checker = _Checker(one, tools, types, library, checked, waiting, has_model, models, called=one is not program)
        found |= dict.fromkeys(checker.check(given))
    return [*found]


@dataclass(slots=True)
class _Names:
    """Names that may be set at a position: those of the current block, and those of the blocks around it. A block does
    not copy the outer names, because a program may set many."""

    own: set[str]
    around: _Names | None = None

    def __contains__(self, name: str) -> bool:
        names: _Names | None = self
        while names is not None:
            if name in names.own:
                return True
            names = names.around
        return False

    def inside(self) -> _Names:
        return _Names(set(), self)

    def take(self, others: Iterable[_Names]) -> None:
        """Adds the names that may be set in `others`."""
        for names in others:
            self.own |= names.own


@dataclass(slots=True)
class _Checker:
    program: Program
    tools: Toolbox | None
    types: Mapping[str, Any] | None
    library: Library
    checked: dict[str, set[str]]
    """The programs that were checked, with the variables that they are given."""
    waiting: list[tuple[Program, set[str]]]
    """The programs that are called, and have to be checked next."""
    has_model: bool
    """Whether there is a default model."""
    models: Collection[str] | None
    """The names that blocks may use for other models."""
    called: bool
    """Whether it is called by another program, which passes its variables."""
    problems: list[Problem] = field(default_factory=list[Problem])

    def check(self, variables: set[str]) -> list[Problem]:
        self._statements(self.program.statements, _Names({*variables, *lists_of(self.program)}))
        return sorted(self.problems, key=lambda problem: (problem.place.file, problem.place.line, problem.place.column))

    def _way_out(self, name: str) -> str:
        return f"expected a variable that is set, or {'an argument of the call' if self.called else f'-v {name}=…'}"

    def _report(self, at: int, message: str, expected: str = "", kind: Literal["error", "warning"] = "error") -> None:
        self.problems.append(Problem(self.program.source.place(at), message, expected, kind))

    def _statements(self, statements: Iterable[Statement], known: _Names) -> None:
        """Names that may be set are added to `known`."""
        for statement in statements:
            self._statement(statement, known)

    def _statement(self, statement: Statement, known: _Names) -> None:
        match statement:
            case Block():
                self._block(statement, known)
                known.own.add(statement.target.name)
            case CallStatement():
                self._call(statement, known)
                known.own.add(statement.target.name)
            case Assignment():
                self._expression(statement.value, known)
                known.own.add(statement.target.name)
            case If():
                branches = [known.inside() for _ in statement.branches]
                for branch, inside in zip(statement.branches, branches, strict=True):
                    if branch.condition is not None:
                        self._expression(branch.condition, known)
                    self._statements(branch.body, inside)
                known.take(branches)
            case For():
                self._expression(statement.items, known)
                self._refuse_constant_items(statement)
                # What one iteration sets is available in the next.
                known.own |= {statement.variable, *(target.name for target in targets(statement.body))}
                self._statements(statement.body, known)
            case Parallel():
                self._parallel(statement, known)
            case _:
                assert_never(statement)

    def _parallel(self, statement: Parallel, known: _Names) -> None:
        """Children do not see what other children set."""
        setters: dict[str, Statement] = {}
        children = [known.inside() for _ in statement.body]
        for child, inside in zip(statement.body, children, strict=True):
            self._statement(child, inside)
            for target in targets([child]):
                other = setters.setdefault(target.name, child)
                if other is not child and not target.append:
                    line = self.program.source.place(other.at).line
                    self._report(
                        target.at,
                        f"`{target.name}` is set by two children of /parallel/ (also in line {line}): the last wins",
                        "expected another name, or `>>`",
                        "warning",
                    )
        known.take(children)

    def _refuse_constant_items(self, statement: For) -> None:
        if isinstance(statement.items, Constant | Quoted):
            value = statement.items.value if isinstance(statement.items, Constant) else statement.items.text
            message = f"a loop needs a list, not {kind_of(value)}"
            self._report(statement.items.at, message, "expected a list")

    def _block(self, block: Block, known: _Names) -> None:
        for argument in block.arguments:
            if problem := unknown(block.kind, argument.name):
                self._report(argument.at, problem, "expected another argument")
                continue
            self._value(argument.value, known)
            self._argument(argument)
        if not self.has_model and not any(argument.name == "model" for argument in block.arguments):
            self._report(block.at, NO_MODEL, "expected model=…")
        self._choice(block)
        self._text(block, known)

    def _argument(self, argument: Argument) -> None:
        try:
            value = evaluate(argument.value, {})
        except CannotEvaluate:
            return  # known only at run time
        if isinstance(argument.value, Quoted) and "$" in argument.value.text:
            return
        if problem := unfit(argument.name, value):
            self._report(argument.value.at, problem, "expected another value")
        elif argument.name == "tools" and self.tools is not None and isinstance(argument.value, ListOf):
            for item, name in zip(argument.value.items, value, strict=True):
                if problem := no_such_tool(self.tools, name):
                    self._report(item.at, problem, "expected an existing tool")
        elif argument.name == "model" and self.models is not None and ":" not in value and value not in self.models:
            self._report(argument.value.at, no_such_model(value, self.models), "expected another model")
        elif argument.name == "output" and value.startswith(TYPED):
            name = value.removeprefix(TYPED)
            if self.types is not None and name not in self.types:
                self._report(
                    argument.value.at, f"there is no type `{name}`", "expected a type defined beside the tools"
                )

    def _choice(self, block: Block) -> None:
        """A tool that must be called has to be one of the block's tools."""
        written = {argument.name: argument.value for argument in block.arguments}
        choice, wanted = written.get("tool_choice"), written.get("tools", ListOf(0, (Word(0, "*"),)))
        if self.tools is None or not isinstance(choice, Quoted) or not isinstance(wanted, ListOf):
            return
        names = [item.text for item in wanted.items if isinstance(item, Word | Quoted)]
        if "$" in choice.text or len(names) != len(wanted.items):
            return  # known only at run time
        chosen = Toolbox(*(tool for tool in self.tools if any(fnmatchcase(tool.name, name) for name in names)))
        if problem := no_such_choice(choice.text, chosen):
            self._report(choice.at, problem, "expected one of them")

    def _text(self, block: Block, known: _Names) -> None:
        reported: set[str] = set()
        for at, name, _ in names_in(block.text):
            if name not in known and name not in reported:
                reported.add(name)
                message = f"`${name}` is not set before this, so the text keeps `${name}` itself"
                self._report(block.text_at + at, message, self._way_out(name), "warning")
        began = self.program.source.place(block.at).line
        for at, line in lines_outside_fences(block.text):
            stripped = line.lstrip()
            name = stripped[1:].partition("(")[0].strip() if stripped.startswith("@") and "(" in stripped else ""
            if name and self.tools is not None and name in self.tools:
                self._report(
                    block.text_at + at + len(line) - len(stripped),
                    f"this looks like a call, but is part of the text of the `/{block.kind}/` in line {began}",
                    "expected `-> name` before it, if it is a call",
                    "warning",
                )
                return
        source = self.program.source
        ends_beside = source.place(block.text_at + len(block.text)).line == source.place(block.target.at).line
        for at in swallowed(block.text) if ends_beside else ():
            self._report(
                block.text_at + at,
                f"this line ends like a prompt, but is part of the text of the `/{block.kind}/` in line {began}: "
                "no statement follows it",
                "expected a statement after it, or an arrow on a separate line at the end of the text",
                "warning",
            )

    def _call(self, call: CallStatement, known: _Names) -> None:
        for argument in call.arguments:
            self._value(argument.value, known)
        if self.tools is not None and (tool := self.tools.get(call.name)) is not None:
            if not self._tool_arguments(call, tool.spec.parameters):
                self._bind(call, tool)
            return
        try:
            program = self.library.find(call.name, self.program.source)
        except InvalidProgram as error:
            self.problems += error.problems
            return
        except UserError as error:
            self._report(call.at, str(error), "expected a program that can be read")
            return
        if program is not None:
            used = names_used(program)
            for argument in call.arguments:
                if argument.name not in used:
                    message = f"{program.source.name} does not use `{argument.name}`"
                    self._report(argument.at, message, "expected a variable of that program", "warning")
            self._program(program, {argument.name for argument in call.arguments})
        elif self.tools is not None:
            problem = no_such_tool(self.tools, call.name)
            self._report(
                call.at,
                f"{problem}; and there is no program {call.name}.dph beside this one",
                "expected a tool or a program",
            )

    def _bind(self, call: CallStatement, tool: Tool) -> None:
        """Checks literal values against the types of the tool."""
        if any("$" in part.text for each in call.arguments for part in parts(each.value) if isinstance(part, Quoted)):
            return
        try:
            tool.signature.bind({each.name: evaluate(each.value, {}) for each in call.arguments})
        except CannotEvaluate:
            pass  # known only at run time
        except ArgumentsDoNotFit as error:
            self._report(call.at, f"the arguments of `{call.name}` do not fit: {error}", "expected other values")

    def _tool_arguments(self, call: CallStatement, parameters: Mapping[str, Any]) -> bool:
        """Checks the names of the arguments. Returns whether there is a problem."""
        before = len(self.problems)
        properties: Mapping[str, Any] = parameters.get("properties") or {}
        open_ended = parameters.get("additionalProperties") not in (None, False)
        given = {argument.name for argument in call.arguments}
        for argument in call.arguments:
            if argument.name not in properties and not open_ended:
                takes = f"it accepts: {', '.join(properties)}" if properties else "it accepts none"
                self._report(
                    argument.at,
                    f"tool `{call.name}` has no argument `{argument.name}`; {takes}",
                    "expected another name",
                )
        missing = [name for name in parameters.get("required") or () if name not in given]
        if missing:
            names = ", ".join(f"`{name}`" for name in missing)
            self._report(call.at, f"tool `{call.name}` needs {names}", f"expected {missing[0]}=…")
        return len(self.problems) > before

    def _program(self, program: Program, given: set[str]) -> None:
        name = program.source.name
        before = self.checked.get(name)
        if before is not None and before <= given:
            return  # it was already checked with these variables; programs may call each other
        self.checked[name] = given if before is None else before & given
        self.waiting.append((program, self.checked[name]))

    def _value(self, value: Expression, known: _Names) -> None:
        """In the arguments of blocks and tools an unset variable stays as written."""
        for variable in each_once(variables(value)):
            if variable.name not in known:
                self._report(
                    variable.at,
                    f"`${variable.name}` is not set before this, so its own text is used",
                    self._way_out(variable.name),
                    "warning",
                )
        self._quoted(value, known)

    def _expression(self, expression: Expression, known: _Names) -> None:
        for variable in each_once(variables(expression)):
            if variable.name not in known:
                self._report(
                    variable.at,
                    f"`${variable.name}` is not set before this",
                    self._way_out(variable.name),
                )
        self._quoted(expression, known)

    def _quoted(self, expression: Expression, known: _Names) -> None:
        reported: set[str] = set()
        for part in parts(expression):
            if isinstance(part, Quoted):
                for _, name, _ in names_in(part.text):
                    if name not in known and name not in reported:
                        reported.add(name)
                        message = f"`${name}` is not set before this, so the text keeps `${name}` itself"
                        self._report(part.at, message, self._way_out(name), "warning")
