"""Toolboxes: what they accept, what they contain, and what is refused."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from unbroken import Agent, CallContext, ScriptedModel
from unbroken.errors import InvalidTool, UserError
from unbroken.tools.todo import todo_write
from unbroken.tools.tool import client_tool, tool
from unbroken.tools.toolbox import Toolbox, origin_of
from unbroken_testing import Call


@tool(effect="read")
def search(query: str) -> str:
    """Search."""
    return f"found {query}"


def plain(x: int) -> int:
    return x + 1


class Shop:
    def __init__(self, name: str = "shop") -> None:
        self.name = name

    @tool
    def buy(self, what: str) -> str:
        return f"{self.name} sells {what}"

    @tool(effect="read")
    async def look(self) -> str:
        return self.name

    @staticmethod
    @tool
    def rules() -> str:
        return "no refunds"

    @classmethod
    @tool
    def kind(cls, loud: bool = False) -> str:
        return cls.__name__

    def not_a_tool(self) -> None: ...


def refusal(*sources: Any) -> str:
    with pytest.raises(InvalidTool) as caught:
        Toolbox(*sources)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def run(toolbox: Toolbox, name: str, **arguments: Any) -> Any:
    found = toolbox.get(name)
    assert found is not None
    assert found.function is not None
    return found.function(**found.signature.bind(arguments))


def test_tools_and_functions_are_in_order() -> None:
    toolbox = Toolbox(search, plain, [todo_write])
    assert toolbox.names == ("search", "plain", "todo_write")
    assert [spec.name for spec in toolbox.specs] == list(toolbox.names)
    assert [one.name for one in toolbox] == list(toolbox.names)
    assert len(toolbox) == 3
    assert "plain" in toolbox
    assert "other" not in toolbox
    assert toolbox.get("search") is search
    assert toolbox.get("other") is None
    assert run(toolbox, "plain", x="1") == 2


def test_an_empty_toolbox_is_valid() -> None:
    assert Toolbox().specs == ()
    assert not Toolbox()


def test_the_methods_of_an_object_are_bound_to_it() -> None:
    toolbox = Toolbox(Shop("Ann's"))
    assert toolbox.names == ("buy", "look", "rules", "kind")
    assert run(toolbox, "buy", what="tea") == "Ann's sells tea"
    assert run(toolbox, "rules") == "no refunds"
    assert run(toolbox, "kind") == "Shop"
    assert [one.effect for one in toolbox] == ["write", "read", "write", "write"]


def test_a_class_without_required_arguments_is_instantiated() -> None:
    class Needs:
        def __init__(self, key: str) -> None:
            self.key = key

        @tool
        def use(self) -> str:
            return self.key

    assert run(Toolbox(Shop), "buy", what="tea") == "shop sells tea"
    assert refusal(Needs) == (
        "class `Needs` cannot be made without arguments (missing a required argument: 'key'); "
        "make an object and give that"
    )


def test_a_class_that_cannot_be_instantiated_is_refused_with_a_message() -> None:
    class Broken:
        def __init__(self) -> None:
            raise OSError("no such device\nand more")

        @tool
        def use(self) -> str:
            return "used"

    assert refusal(Broken) == "class `Broken` cannot be made: OSError: no such device; make an object and give that"


def test_methods_are_inherited_and_overridden() -> None:
    class Better(Shop):
        @tool(name="buy")
        def buy(self, what: str) -> str:
            return "free"

        @tool
        def more(self) -> str:
            return "more"

    toolbox = Toolbox(Better())
    assert toolbox.names == ("buy", "look", "rules", "kind", "more")
    assert run(toolbox, "buy", what="tea") == "free"


def test_bound_methods_partials_and_callable_objects_are_accepted() -> None:
    class Adder:
        def __init__(self, by: int) -> None:
            self.by = by

        def __call__(self, x: int) -> int:
            return x + self.by

        def twice(self, x: int) -> int:
            return x * 2

    def scale(factor: int, x: int) -> int:
        return factor * x

    toolbox = Toolbox(Adder(3), Adder(0).twice, functools.partial(scale, 5))
    assert toolbox.names == ("Adder", "twice", "scale")
    assert [run(toolbox, name, x=2) for name in toolbox.names] == [5, 4, 10]


def test_a_method_without_its_object_is_refused() -> None:
    words = "is a method of `Shop` without its object; give the object, or its method"
    assert refusal(Shop.not_a_tool) == f"tool `not_a_tool` {words}"
    assert refusal(Shop.buy) == f"tool `buy` {words}"
    assert Toolbox(Shop().buy, Shop.rules).names == ("buy", "rules")


def test_a_tool_kept_in_a_class_or_an_object_is_not_bound() -> None:
    class Holder:
        found = search

        @tool
        @staticmethod
        def still(x: int) -> int:
            return x

        def __init__(self) -> None:
            self.own = tool(plain)

    toolbox = Toolbox(Holder)
    assert toolbox.names == ("search", "still", "plain")
    assert run(toolbox, "search", query="it") == "found it"
    assert [run(toolbox, name, x=1) for name in ("still", "plain")] == [1, 2]


def test_an_object_without_tools_is_refused() -> None:
    assert refusal(5) == "an object of the type `int` has no tools; mark its methods with @tool"
    assert refusal(None) == "an object of the type `NoneType` has no tools; mark its methods with @tool"
    assert refusal(ModuleType("empty")) == "empty has no tools; mark its functions with @tool"
    assert refusal(Agent(ScriptedModel())) == (
        "an object of the type `Agent` is no tool: give `….as_tool(name, description)`"
    )


def test_two_tools_with_one_name_name_both_origins() -> None:
    @tool(name="search")
    def other() -> None: ...

    words = refusal(search, other)
    assert words.startswith(f"two tools are called `search`: {__name__}.search ({__file__}:")
    assert f" and {__name__}.test_two_tools_with_one_name_name_both_origins.<locals>.other ({__file__}:" in words
    assert words.endswith("; rename one with @tool(name='...'), or give an MCP server a prefix")
    assert "one that runs at the client" in refusal(search, client_tool("search", "", {"type": "object"}))
    assert "two tools are called `buy`" in refusal(Shop("a"), Shop("b"))


def test_the_same_tool_twice_is_not_a_clash() -> None:
    assert Toolbox(search, [search], Toolbox(search)).names == ("search",)
    assert Toolbox(plain, plain).names == ("plain",)


def test_toolboxes_can_be_added_and_stay_unchanged() -> None:
    first, second = Toolbox(search), Toolbox(plain)
    assert (first + second).names == ("search", "plain")
    assert (second | first | todo_write).names == ("plain", "search", "todo_write")
    assert first.names == ("search",)


def test_similar_names_are_suggested() -> None:
    toolbox = Toolbox(search, plain, todo_write)
    assert toolbox.close_to("serach") == ("search",)
    assert toolbox.close_to("Todo-Write") == ("todo_write",)
    assert toolbox.close_to("xyzzy") == ()


def test_the_tools_of_a_module_are_found() -> None:
    module = ModuleType("m")
    vars(module).update(search=search, again=search, plain=plain, todo=todo_write)
    assert Toolbox(module).names == ("search", "todo_write")
    vars(module)["__all__"] = ["todo", "plain"]
    assert Toolbox(module).names == ("todo_write",)
    vars(module)["__all__"] = ["plain"]
    with pytest.raises(InvalidTool, match="has no tools; mark its functions"):
        Toolbox(module)  # unmarked functions are not tools


FILE = """
from __future__ import annotations
from dataclasses import dataclass
from unbroken.tools.tool import tool
import neighbour

@dataclass
class Point:
    x: int

@tool
def move(to: Point) -> int:
    "Move."
    return to.x + neighbour.STEP
"""


def test_the_tools_of_a_file_are_found(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("STEP = 10")
    path = tmp_path / "my tools.py"
    path.write_text(FILE)
    before = list(sys.path)
    try:
        for toolbox in (Toolbox.from_file(path), Toolbox(path), Toolbox(str(path))):
            assert run(toolbox, "move", to={"x": 1}) == 11
        assert sys.path == before
        assert "my tools" not in sys.modules
        assert f"({path}:" in origin_of(next(iter(toolbox)))
    finally:
        sys.modules.pop("neighbour", None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = (", "{path}:1: '(' was never closed; nothing of it was run"),
        ("\n\nraise KeyError('key')", "{path}:3: running it failed: KeyError: 'key'"),
        ("import no_such_module_at_all", "{path}:1: running it failed: ModuleNotFoundError: No module named"),
        ("raise SystemExit(1)", "{path}:1: running it failed: SystemExit: 1"),
        ("x = 1", "{path} has no tools; mark its functions with @tool"),
        (
            "from unbroken.tools.tool import tool\n\n@tool\ndef f(*x): ...",
            "{path}:3: tool `f`: parameter `*x` cannot become a JSON Schema; name each parameter",
        ),
    ],
)
def test_an_unusable_file_is_reported_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "bad.py"
    path.write_text(text)
    assert refusal(path).startswith(words.format(path=path))


def test_a_path_that_is_not_a_python_file_is_reported(tmp_path: Path) -> None:
    missing = tmp_path / "missing.py"
    assert refusal(missing).startswith(f"{missing} is no file; give the path of a .py file")
    assert refusal("search").startswith("search is no Python file; give the path of a .py file")


class Database:
    def rows(self) -> int:
        return 3


class Cache:
    def hits(self) -> int:
        return 3


class FakeDatabase:
    """Has what the tool uses, as the fakes of tests do."""

    def rows(self) -> int:
        return 4


@tool(effect="read")
def count_rows(context: CallContext[Database]) -> int:
    """Count."""
    return context.deps.rows()


def test_a_tool_that_needs_other_deps_is_refused_before_the_model_is_asked() -> None:
    model = ScriptedModel([Call("count_rows")], "Three.")
    agent: Agent[Any] = Agent(model, [count_rows])
    with pytest.raises(UserError, match=r"tool `count_rows` needs deps of the type `Database`.*, and got `Cache`"):
        agent.run_sync("How many?", deps=Cache())
    assert model.requests == []


@pytest.mark.parametrize(("deps", "found"), [(Database(), "3"), (FakeDatabase(), "4"), (None, "Error")])
def test_deps_that_may_do_are_given_to_the_tool(deps: Any, found: str) -> None:
    agent = Agent(ScriptedModel([Call("count_rows")], "Done."), [count_rows], deps=deps)
    assert agent.run_sync("How many?").calls[0].result.text.startswith(found)
