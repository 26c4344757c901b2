"""Writes the entries of docs/reference/*.md from the source, so that they can be read on a code host too:
`python docs/reference_pages.py`. For a new name, add two lines to a page first:

    <!-- ::: unbroken.module.Name -->
    <!-- ::: -->

What is between them is written by this script. The site shows more in its place, made by mkdocstrings (`hooks.py`).
The source is read, never imported, so that the text is the same on every version of Python.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PAGES = Path(__file__).parent / "reference"
SOURCES = sorted((Path(__file__).parents[1] / "packages").glob("*/src"))
ENTRY = re.compile(r"^<!-- ::: (unbroken\w*(?:\.\w+)+) -->\n(.*?)^<!-- ::: -->$", re.DOTALL | re.MULTILINE)
WIDTH = 100
LONGEST = 300
"""Characters of a value that are shown."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Found:
    """Where a name is defined."""

    module: str
    node: ast.stmt
    following: str = ""
    """The text below an assignment that describes it."""


def pages() -> dict[Path, str]:
    """Each page as it has to be."""
    return {page: write_page(page.read_text("utf-8")) for page in sorted(PAGES.glob("*.md"))}


def write_page(text: str) -> str:
    def entry(match: re.Match[str]) -> str:
        level = 3 if re.search(r"^## ", ENTRY.sub("", text[: match.start()]), re.MULTILINE) else 2
        return f"<!-- ::: {match[1]} -->\n{write_entry(match[1], level)}\n<!-- ::: -->"

    return ENTRY.sub(entry, text)


def write_entry(path: str, level: int) -> str:
    module, _, name = path.rpartition(".")
    lines = [f"{'#' * level} `{name}`", ""]
    tree = parsed(path)
    if tree is not None:  # a module
        return "\n".join([*lines, f"```py\nimport {path}\n```\n", *(f"{part}\n" for part in of_module(tree))])
    found = find(module, name)
    if found is None:
        raise SystemExit(f"docs/reference: {path} is not in the source")
    node = found.node
    match node:
        case ast.ClassDef():
            made = parameters_of_class(found)
            made = None if made is None else [with_value(text, found.module) for text in made]
            lines += [code(f"class {path}", made), first_paragraph(node)]
            bases = [written(base) for base in node.bases]
            parts = {base: part.node for base in bases if (part := part_of(found, base)) is not None}
            ignored = ("Protocol", "Generic", "TypedDict", *parts)
            if bases := [base for base in bases if not base.startswith(ignored)]:
                lines += [f"Bases: {', '.join(f'`{base}`' for base in bases)}."]
            lines += ["\n".join(members(each) for each in (node, *parts.values()))]
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
            taken = [with_value(text, found.module) for text in parameters(node)]
            lines += [code(f"{word} {path}", taken, returns(node)), first_paragraph(node)]
        case ast.Assign() | ast.AnnAssign():
            value = f" = {shortened(written(node.value))}" if node.value is not None else ""
            lines += [f"```text\n{path}{value}\n```", found.following]
        case _:
            raise SystemExit(f"docs/reference: {path} is neither a class, a function nor a value")
    return "\n".join([*lines[:2], *(f"{part}\n" for part in lines[2:] if part)])


def part_of(found: Found, base: str) -> Found | None:
    """A base that says it is a part of the class: what it has is listed with the class."""
    known = find(found.module, base)
    is_part = known is not None and isinstance(known.node, ast.ClassDef) and "part of" in first_paragraph(known.node)
    return known if is_part else None


def of_module(tree: ast.Module) -> list[str]:
    return [part for part in (one_line(ast.get_docstring(tree) or ""), members(tree)) if part]


@cache
def parsed(module: str) -> ast.Module | None:
    name = module.replace(".", "/")
    files = [source / file for source in SOURCES for file in (f"{name}.py", f"{name}/__init__.py")]
    return next((ast.parse(file.read_text("utf-8")) for file in files if file.exists()), None)


@cache
def find(module: str, name: str) -> Found | None:
    """Follows imports to the definition; of overloads, the last."""
    tree = parsed(module)
    statements = [] if tree is None else [*tree.body]
    for block in statements[:]:
        if isinstance(block, ast.If | ast.Try):  # `if TYPE_CHECKING:`
            statements += block.body
    best: Found | None = None
    for at, node in enumerate(statements):
        following = text_of(statements[at + 1]) if at + 1 < len(statements) else ""
        match node:
            case ast.ClassDef(name=defined) | ast.FunctionDef(name=defined) | ast.AsyncFunctionDef(name=defined):
                if defined == name:
                    best = Found(module, node)
            case ast.Assign(targets=[ast.Name(id=defined)]) | ast.AnnAssign(target=ast.Name(id=defined)):
                if defined == name:
                    best = Found(module, node, following)
            case _:
                pass
    return best or next((find(*source) for source in imports(statements, name)), None)


def imports(statements: list[ast.stmt], name: str) -> Iterator[tuple[str, str]]:
    """The module and the name there of what is imported under a name."""
    for node in statements:
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, each.name) for each in node.names if (each.asname or each.name) == name)


def written(node: ast.expr) -> str:
    """The source of an expression, with double quotes."""
    text = ast.unparse(node)
    return text if '"' in text else text.replace("'", '"')


def text_of(node: ast.stmt) -> str:
    match node:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return one_line(text)
        case _:
            return ""


def one_line(text: str) -> str:
    """Its first paragraph, unless that is an example."""
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    return "" if "```" in paragraph else paragraph


def first_paragraph(node: ast.ClassDef | Function) -> str:
    return one_line(ast.get_docstring(node) or "")


def parameters(node: Function, skip: int = 0) -> list[str]:
    """As they are written: `name: type = default`, with `*` and `/`."""
    given = node.args
    texts: list[str] = []
    positional = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + list(given.defaults)
    for at, (argument, default) in enumerate(zip(positional, defaults, strict=True)):
        texts.append(parameter(argument, default))
        if at + 1 == len(given.posonlyargs):
            texts.append("/")
    texts = texts[skip:]
    if given.vararg is not None:
        texts.append(f"*{parameter(given.vararg, None)}")
    elif given.kwonlyargs:
        texts.append("*")
    texts += [parameter(each, value) for each, value in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return [*texts, f"**{parameter(given.kwarg, None)}"] if given.kwarg is not None else texts


def parameter(argument: ast.arg, default: ast.expr | None) -> str:
    kind = f": {written(argument.annotation)}" if argument.annotation else ""
    value = "" if default is None else f" = {written(default)}" if kind else f"={written(default)}"
    return f"{argument.arg}{kind}{value}"


def with_value(text: str, module: str) -> str:
    """The number or text of a constant in place of its name: `timeout: float = 30` and not `= TIMEOUT`."""
    head, equals, default = text.rpartition(" = ")
    known = find(module, default) if equals and re.fullmatch(r"[A-Z][A-Z_]+", default) else None
    match known:
        case Found(node=ast.Assign(value=ast.Constant() as value)):
            shown = written(value)
            return f"{head} = {shown}" if len(shown) < WIDTH // 2 else text
        case _:
            return text


def shortened(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


def returns(node: Function) -> str:
    return f" -> {written(node.returns)}" if node.returns is not None else ""


def parameters_of_class(found: Found) -> list[str] | None:
    """Those of `__init__`, or the fields of a dataclass; None if it is made in no way of its own."""
    node = found.node
    assert isinstance(node, ast.ClassDef)
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            return parameters(method, skip=1)
    if any("dataclass" in written(decorator) for decorator in node.decorator_list):
        return fields(found)
    return None


def fields(found: Found) -> list[str]:
    """Of a dataclass, those of its bases first."""
    node = found.node
    assert isinstance(node, ast.ClassDef)
    texts: dict[str, str] = {}
    for base in node.bases:
        known = find(found.module, written(base).partition("[")[0])
        if known is not None and isinstance(known.node, ast.ClassDef):
            texts.update({text.partition(":")[0]: text for text in fields(known)})
    for each in node.body:
        match each:
            case ast.AnnAssign(target=ast.Name(id=name)) if not name.startswith("_"):
                kind = written(each.annotation)
                if not kind.startswith("ClassVar"):
                    texts[name] = f"{name}: {kind}{default_of(each.value)}"
            case _:
                pass
    return list(texts.values())


def default_of(value: ast.expr | None) -> str:
    match value:
        case None:
            return ""
        case ast.Call(func=ast.Name(id="field"), keywords=keywords):
            given = {keyword.arg: written(keyword.value) for keyword in keywords}
            return f" = {given['default']}" if "default" in given else " = …" if "default_factory" in given else ""
        case _:
            return f" = {written(value)}"


def members(node: ast.ClassDef | ast.Module) -> str:
    """A list of what it has: attributes that are described, properties and methods."""
    lines: dict[str, str] = {}
    for at, each in enumerate(node.body):
        match each:
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                told = text_of(node.body[at + 1]) if at + 1 < len(node.body) else ""
                if told and not name.startswith("_"):
                    lines[name] = f"- `{name}`: {told}"
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if not name.startswith("_"):
                marks = [written(decorator) for decorator in each.decorator_list]
                is_property = any(mark in ("property", "cached_property") for mark in marks)
                told = first_paragraph(each)
                shown = (
                    name if is_property else f"{name}({', '.join(short(each, marks, isinstance(node, ast.ClassDef)))})"
                )
                awaited = "await " if isinstance(each, ast.AsyncFunctionDef) and not is_generator(each) else ""
                lines[name] = f"- `{awaited}{shown}`{f': {told}' if told else ''}"
            case _:
                pass
    return "\n".join(lines.values())


def is_generator(node: Function) -> bool:
    return "AsyncIterator" in returns(node) or "AsyncGenerator" in returns(node)


def short(node: Function, marks: list[str], method: bool) -> list[str]:
    """The parameters without types; `=…` marks a default."""
    texts = parameters(node, skip=1 if method and "staticmethod" not in marks else 0)
    return [re.sub(r"^(\**\w+).*?( ?= ?.*)?$", lambda m: m[1] + ("=…" if m[2] else ""), text) for text in texts]


def code(head: str, parameters: list[str] | None, tail: str = "") -> str:
    if parameters is None:
        return f"```py\n{head}\n```"
    line = f"{head}({', '.join(parameters)}){tail}"
    if len(line) > WIDTH:
        line = "\n".join([f"{head}(", *(f"    {each}," for each in parameters), f"){tail}"])
    return f"```py\n{line}\n```"


def main() -> int:
    for page, text in pages().items():
        page.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
