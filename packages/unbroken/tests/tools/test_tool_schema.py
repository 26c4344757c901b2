"""From signatures to JSON Schema and from arguments to signatures."""

from __future__ import annotations

import functools
import json
import math
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, Optional, TypeVar, Union, cast
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from unbroken.errors import InvalidTool
from unbroken.tools.context import CallContext, RunContext
from unbroken.tools.schema import ArgumentsDoNotFit, Signature, read_signature
from unbroken.tools.tool import tool

if TYPE_CHECKING:
    from somewhere import Unknown  # pyright: ignore[reportMissingImports, reportUnknownVariableType] - on purpose


T = TypeVar("T")


class Unit(Enum):
    CELSIUS = "celsius"
    KELVIN = "kelvin"


class Place(BaseModel):
    """A place on a map."""

    title: str
    level: int = 0


@dataclass
class Range:
    low: float
    high: float = math.inf


class Options(TypedDict, total=False):
    loud: bool


def schema_of(function: Any, **options: Any) -> dict[str, Any]:
    return dict(read_signature(function, **options).parameters)


def properties_of(function: Any) -> dict[str, Any]:
    return schema_of(function)["properties"]


def refusal(function: Any, **options: Any) -> str:
    with pytest.raises(InvalidTool) as caught:
        read_signature(function, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def misfit(signature: Signature, arguments: dict[str, Any]) -> str:
    with pytest.raises(ArgumentsDoNotFit) as caught:
        signature.bind(arguments)
    return str(caught.value)


def test_a_signature_becomes_a_schema() -> None:
    def weather(city: str, days: int = 3, unit: Literal["c", "k"] = "c") -> str:
        """The weather of the next days.

        Args:
            city: The city's name.
            days: How many.
        """
        return city

    signature = read_signature(weather)
    assert signature.name == "weather"
    assert signature.description == "The weather of the next days."
    assert signature.parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "The city's name."},
            "days": {"type": "integer", "default": 3, "description": "How many."},
            "unit": {"type": "string", "enum": ["c", "k"], "default": "c"},
        },
        "required": ["city"],
        "additionalProperties": False,
    }


def test_a_function_without_parameters_has_an_empty_object() -> None:
    def now() -> str:
        return "now"

    signature = read_signature(now)
    assert signature.parameters == {"type": "object", "properties": {}, "additionalProperties": False}
    assert signature.bind({}) == {}
    assert misfit(signature, {"x": 1}) == "`x`: there is no such parameter. Parameters: none"


def test_types_of_pydantic_and_of_python() -> None:
    def many(
        unit: Unit,
        place: Place,
        span: Range,
        options: Options,
        maybe: Optional[int],  # noqa: UP045 - one of the spellings
        either: Union[int, str],  # noqa: UP007 - one of the spellings
        names: list[str],
        counts: dict[str, int],
        pair: tuple[int, str],
        tags: set[str],
        when: datetime,
        price: Decimal,
        key: UUID,
        anything,  # type: ignore[no-untyped-def] - without a type
    ) -> None: ...

    schema = schema_of(many)
    properties = schema["properties"]
    assert properties["unit"] == {"$ref": "#/$defs/Unit"}
    assert schema["$defs"]["Unit"] == {"enum": ["celsius", "kelvin"], "type": "string"}
    assert schema["$defs"]["Place"]["description"] == "A place on a map."
    assert schema["$defs"]["Place"]["properties"] == {
        "title": {"type": "string"},
        "level": {"type": "integer", "default": 0},
    }
    assert properties["maybe"] == {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    assert properties["either"] == {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    assert properties["tags"] == {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    assert properties["when"] == {"type": "string", "format": "date-time"}
    assert properties["anything"] == {}
    json.dumps(schema, allow_nan=False)

    bound = read_signature(cast("Any", many)).bind(
        {
            "unit": "kelvin",
            "place": {"title": "Rome", "level": "2"},
            "span": {"low": "1.5"},
            "options": {"loud": "yes"},
            "maybe": None,
            "either": "4",
            "names": ["a"],
            "counts": {"a": "1"},
            "pair": ["7", "x"],
            "tags": ["a", "a"],
            "when": "2024-02-29T12:00:00Z",
            "price": "1.10",
            "key": "12345678-1234-5678-1234-567812345678",
            "anything": [None],
        }
    )
    assert bound == {
        "unit": Unit.KELVIN,
        "place": Place(title="Rome", level=2),
        "span": Range(1.5),
        "options": {"loud": True},
        "maybe": None,
        "either": "4",
        "names": ["a"],
        "counts": {"a": 1},
        "pair": (7, "x"),
        "tags": {"a"},
        "when": datetime(2024, 2, 29, 12, tzinfo=UTC),
        "price": Decimal("1.10"),
        "key": UUID("12345678-1234-5678-1234-567812345678"),
        "anything": [None],
    }


def test_annotations_override_the_docstring() -> None:
    def f(
        a: Annotated[str, Field(description="by Field")],
        b: Annotated[int, "by text"] = 1,
        c: int = Field(5, description="by default", ge=1),
        d: Annotated[int, Field(ge=1)] = 2,
    ) -> None:
        """F.

        :param a: by docstring
        :param b: by docstring
        :param c: by docstring
        :param d: by docstring
        """

    signature = read_signature(f)
    described = {name: one["description"] for name, one in signature.parameters["properties"].items()}
    assert described == {"a": "by Field", "b": "by text", "c": "by default", "d": "by docstring"}
    assert signature.parameters["required"] == ["a"]
    assert signature.bind({"a": "x"}) == {"a": "x", "b": 1, "c": 5, "d": 2}
    assert "`d`: Input should be greater than or equal to 1 (got 0)" in misfit(signature, {"a": "x", "d": 0})


def test_titles_are_removed_but_a_property_called_title_stays() -> None:
    def f(title: str, place: Place) -> None: ...

    text = json.dumps(schema_of(f))
    assert text.count('"title"') == 4  # twice as a property, twice as required
    assert set(properties_of(f)) == {"title", "place"}


def test_names_that_a_pydantic_field_cannot_have() -> None:
    def f(schema: str, _private: int, model_config: int, self: int, json: str = "x") -> None: ...

    signature = read_signature(f)
    arguments = {"schema": "a", "_private": 1, "model_config": 2, "self": 3}
    assert signature.bind(arguments) == {**arguments, "json": "x"}


def test_a_default_without_json_form_is_left_out_of_the_schema() -> None:
    nothing = object()

    def f(x: Any = nothing, span: float = math.inf) -> None: ...

    signature = read_signature(f)
    assert "default" not in signature.parameters["properties"]["x"]
    assert signature.bind({})["x"] is nothing


def test_a_default_of_none_makes_the_parameter_nullable() -> None:
    def f(x: int = None, y: Annotated[int, Field(ge=1)] = None) -> None: ...  # type: ignore[assignment] # noqa: RUF013

    signature = read_signature(f)
    assert signature.bind({"x": None, "y": None}) == {"x": None, "y": None}
    assert "`y`" in misfit(signature, {"y": 0})


def test_a_mutable_default_is_not_shared_between_calls() -> None:
    def f(names: list[str] = []) -> None: ...  # noqa: B006 - the case in question

    signature = read_signature(f)
    signature.bind({})["names"].append("x")
    assert signature.bind({}) == {"names": []}


def test_types_of_the_enclosing_function_are_found() -> None:
    class Inner(BaseModel):
        x: int

    class Holder:
        class Kind(Enum):
            A = "a"

        @tool
        def method(self, kind: Kind, inner: list["Inner"]) -> None: ...  # noqa: UP037 - a text in a text

    bound = Holder.method.signature.bind({"kind": "a", "inner": [{"x": 1}]})
    assert bound == {"kind": Holder.Kind.A, "inner": [Inner(x=1)]}


def test_the_context_is_not_shown_to_the_model() -> None:
    def plain(x: int, ctx: CallContext) -> None: ...  # pyright: ignore[reportMissingTypeArgument, reportUnknownParameterType] - a spelling
    def generic(ctx: CallContext[Place], x: int) -> None: ...
    def optional(x: int, ctx: CallContext[Any] | None = None) -> None: ...
    def annotated(x: int, ctx: Annotated[Optional[CallContext[Any]], "c"] = None) -> None: ...  # noqa: UP045
    def unknown(x: int, ctx: CallContext[Unknown]) -> None: ...  # type: ignore[valid-type] - nowhere to be found

    functions: list[Any] = [plain, generic, optional, annotated, unknown]
    for function in functions:
        signature = read_signature(function)
        assert signature.context == "ctx"
        assert list(signature.parameters["properties"]) == ["x"]
        assert signature.bind({"x": 1}) == {"x": 1}

    def two(a: CallContext[Any], b: CallContext[Any]) -> None: ...

    assert refusal(two) == "tool `two`: `a` and `b` both take the CallContext; keep one"


def test_the_context_of_a_run_is_refused_as_a_parameter_that_the_model_would_write() -> None:
    class FromElsewhere(Generic[T]):  # as pydantic-ai has it: `unbroken` cannot import it here
        deps: T

    FromElsewhere.__name__, FromElsewhere.__module__ = "RunContext", "pydantic_ai.tools"

    def ours(ctx: RunContext[Place], x: int) -> None: ...
    def optional(x: int, ctx: RunContext[Any] | None = None) -> None: ...
    def theirs(ctx: FromElsewhere[Place], x: int) -> None: ...

    for function in (ours, optional, theirs):
        assert refusal(function) == (
            f"tool `{function.__name__}`: parameter `ctx` is a `RunContext`, which no tool gets here; "
            "annotate it with `CallContext` of `unbroken`, which has `deps` too"
        )


def test_a_class_of_the_program_may_be_called_like_the_context_of_a_library() -> None:
    class Race(BaseModel):
        lap: int

    Race.__name__ = "RunContext"

    def f(ctx: Race) -> None: ...

    assert list(properties_of(f)) == ["ctx"]


def test_methods_leave_out_self() -> None:
    class Shop:
        @tool
        def buy(self, what: str) -> str:
            return what

        @staticmethod
        def find(what: str) -> str:
            return what

        def __call__(self, what: str) -> str:
            """Called."""
            return what

    assert list(Shop.buy.spec.parameters["properties"]) == ["what"]
    assert list(properties_of(Shop.find)) == ["what"]
    assert list(properties_of(Shop().__call__)) == ["what"]
    called = read_signature(Shop())
    assert (called.name, called.description, list(called.parameters["properties"])) == ("Shop", "Called.", ["what"])


def test_partials_leave_out_bound_arguments() -> None:
    async def search(index: str, query: str, limit: int = 10) -> str:
        """Search."""
        return query

    for bound in (functools.partial(search, "books", limit=5), functools.partial(search, limit=5, index="books")):
        signature = read_signature(bound)
        assert (signature.name, signature.description, signature.is_async) == ("search", "Search.", True)
        assert list(signature.parameters["properties"]) == ["query"]
        assert signature.bind({"query": "x"}) == {"query": "x"}


def test_async_is_recognised_in_every_kind_of_callable() -> None:
    async def plain() -> None: ...

    class Holder:
        async def method(self) -> None: ...

        async def __call__(self) -> None: ...

        @staticmethod
        async def still() -> None: ...

        def sync(self) -> None: ...

    holder = Holder()
    for function in (plain, holder.method, holder, Holder.still, functools.partial(plain), functools.partial(holder)):
        assert read_signature(function, name="x").is_async, function
    for function in (holder.sync, functools.partial(holder.sync), lambda: None):
        assert not read_signature(function, name="x").is_async, function


def test_an_invalid_tool_is_refused_with_a_hint() -> None:
    def stars(*args: int) -> None: ...
    def kwargs(**kwargs: int) -> None: ...
    def positional(a: int, /) -> None: ...
    def plug(s: socket.socket) -> None: ...
    def kinds(x: type[int]) -> None: ...
    def above(cls: type) -> None: ...
    def back(f: Callable[[int], int]) -> None: ...
    def missing(x: Nowhere) -> None: ...  # type: ignore[name-defined] # noqa: F821

    assert refusal(stars) == "tool `stars`: parameter `*args` cannot become a JSON Schema; name each parameter"
    assert refusal(kwargs) == "tool `kwargs`: parameter `**kwargs` cannot become a JSON Schema; name each parameter"
    assert "`a` is positional-only" in refusal(positional)
    assert refusal(kinds).startswith("tool `kinds`: parameter `x` has the type `type`, which cannot become")
    assert refusal(classmethod(above)) == (
        "tool `above` is a class method; write @classmethod above @tool, and give its class"
    )
    assert refusal(plug).startswith(
        "tool `plug`: parameter `s` has the type `socket`, which cannot become a JSON Schema; use str,"
    )
    assert "parameter `f` has the type `Callable`" in refusal(back)
    assert "the type `Nowhere` of parameter `x` cannot be resolved" in refusal(missing)
    assert refusal(lambda: None) == "a lambda has no name that a model could call; give it one with name='...'"
    assert "`Place` is a class" in refusal(Place)
    assert "`dict` cannot be read" in refusal(dict.fromkeys) or "positional-only" in refusal(dict.fromkeys)
    assert refusal(5) == "tool `int` is not a function but of the type `int`; give a function"  # type: ignore[arg-type]


def test_a_name_must_be_valid_for_providers() -> None:
    def größe() -> None: ...

    assert "give it another with name='...'" in refusal(größe)
    assert "give it another" in refusal(lambda: None, name="x" * 65)
    assert read_signature(größe, name="size").name == "size"


def test_mismatches_are_described() -> None:
    def weather(city: str, days: int = 3, unit: Unit = Unit.KELVIN, place: Place | None = None) -> None: ...

    signature = read_signature(weather)
    assert misfit(signature, {"days": "x"}) == (
        "`city`: Field required; `days`: Input should be a valid integer, unable to parse string as an integer "
        "(got 'x'). Parameters: city, days, unit, place"
    )
    words = misfit(signature, {"days": "y" * 100, "unit": 1, "place": {"level": []}, "a": 1})
    assert words.startswith("`city`: Field required; `days`: ")
    assert f"(got '{'y' * 49}...)" in words
    assert "; and 3 more. Parameters:" in words
    assert "`place.title`: Field required" in misfit(signature, {"city": "x", "place": {}})


def test_a_mismatch_inside_a_list_names_its_position() -> None:
    def f(places: list[Place]) -> None: ...

    words = misfit(read_signature(f), {"places": [{"title": "a"}, {"title": []}]})
    assert words.startswith("`places[1].title`: Input should be a valid string (got [])")


def test_a_strict_model_inside_accepts_what_json_can_express() -> None:
    class Exact(BaseModel):
        model_config = ConfigDict(strict=True)
        day: date
        count: int

    def f(exact: Exact) -> None: ...

    signature = read_signature(f)
    assert signature.bind({"exact": {"day": "2024-02-29", "count": 1}}) == {
        "exact": Exact(day=date(2024, 2, 29), count=1)
    }
    assert "`exact.count`" in misfit(signature, {"exact": {"day": "2024-02-29", "count": "1"}})


def test_integers_of_any_size_arrive_exactly() -> None:
    def f(n: int) -> None: ...

    assert read_signature(f).bind({"n": 2**100 + 1}) == {"n": 2**100 + 1}


def test_strict_closes_every_object_and_requires_every_property() -> None:
    class Step(BaseModel):
        text: str = Field(min_length=1)
        level: int = 2
        steps: list["Step"] = []  # noqa: UP037 - itself

    def f(step: Step, other: Step = Step(text="x"), limit: int = 7, unit: Unit = Unit.KELVIN) -> None:  # noqa: B008
        """F.

        Args:
            other: Another.
        """

    signature = read_signature(f, strict=True)
    schema = dict(signature.parameters)
    assert schema["required"] == ["step", "other", "limit", "unit"]
    assert schema["properties"]["limit"] == {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    assert schema["properties"]["unit"] == {"anyOf": [{"$ref": "#/$defs/Unit"}, {"type": "null"}]}
    assert schema["properties"]["other"]["description"] == "Another."
    assert schema["$defs"]["Step"]["required"] == ["text", "level", "steps"]
    assert schema["$defs"]["Step"]["additionalProperties"] is False
    text = json.dumps(schema)
    assert '"default"' not in text
    assert "minLength" not in text

    nothing: dict[str, Any] = {"text": "a", "level": None, "steps": None}
    bound = signature.bind({"step": {**nothing, "steps": [nothing]}, "other": None, "limit": None, "unit": None})
    assert bound == {
        "step": Step(text="a", steps=[Step(text="a")]),
        "other": Step(text="x"),
        "limit": 7,
        "unit": Unit.KELVIN,
    }


def test_strict_keeps_a_null_that_means_itself() -> None:
    def f(x: int | None = 5, y: int | None = None) -> None: ...

    assert read_signature(f, strict=True).bind({"x": None, "y": None}) == {"x": None, "y": None}


def test_what_strict_cannot_express_is_refused() -> None:
    def keys(counts: dict[str, int]) -> None: ...
    def pair(pair: tuple[int, str]) -> None: ...
    def anything(x: Any) -> None: ...

    assert "parameter `counts` takes any keys, which strict cannot say" in refusal(keys, strict=True)
    assert "parameter `pair` is a tuple" in refusal(pair, strict=True)
    assert "parameter `x` takes any value" in refusal(anything, strict=True)
