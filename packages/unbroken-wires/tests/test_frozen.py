"""`quick`: a frozen class is built in another way, and is the same in everything else."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, replace
from typing import get_type_hints

import pytest

from unbroken import Request, ToolCall, Usage, User
from unbroken_wires.frozen import quick


@dataclass(frozen=True, slots=True)
class Plain:
    name: str
    count: int = 1
    parts: list[str] = field(default_factory=list[str])


@quick
@dataclass(frozen=True, slots=True)
class Quick:
    name: str
    count: int = 1
    parts: list[str] = field(default_factory=list[str])


def test_it_behaves_like_an_ordinary_dataclass() -> None:
    assert repr(Quick("a", 2)) == repr(Plain("a", 2)).replace("Plain", "Quick")
    assert Quick("a", 2) == Quick(name="a", count=2) != Quick("b", 2)
    assert hash(ToolCall("a", "b", None)) == hash(ToolCall("a", "b", None))
    assert str(inspect.signature(Quick)) == str(inspect.signature(Plain))


def test_its_signature_can_be_inspected() -> None:
    assert get_type_hints(ToolCall.__init__)["name"] is str
    assert ToolCall.__init__.__module__ == "unbroken_wires.messages"
    assert inspect.signature(Usage, eval_str=True).parameters["input_tokens"].annotation is int


def test_its_fields_cannot_be_changed() -> None:
    built = Quick("a")
    with pytest.raises(FrozenInstanceError):
        built.name = "b"  # type: ignore[misc] - that is what is tried
    with pytest.raises(FrozenInstanceError):
        del built.count  # type: ignore[misc]
    assert type(built) is Quick


def test_a_default_factory_is_called_for_each_object() -> None:
    assert (Quick("a").parts, Usage().raw, Request(()).extra) == ([], {}, {})
    assert Quick("a").parts is not Quick("a").parts
    given = ["x"]
    assert Quick("a", parts=given).parts is given


def test_copies_and_replacements_have_the_same_class() -> None:
    request = Request((User.of("Hello"),), model="m")
    for twin in (copy.copy(request), copy.deepcopy(request), pickle.loads(pickle.dumps(request)), replace(request)):
        assert type(twin) is Request
        assert twin == request
    assert replace(request, model="other").model == "other"


def test_a_subclass_with_more_fields_is_built_as_usual() -> None:
    @dataclass(frozen=True, slots=True)
    class Longer(Quick):
        more: str = "m"

    class Named(Quick):
        pass

    assert (Longer("a", more="x").more, Longer("a").parts) == ("x", [])
    named = Named("a", 3)
    assert (type(named), named.name, named.count, named.parts) == (Named, "a", 3, [])


def test_a_missing_field_is_named() -> None:
    with pytest.raises(TypeError, match=r"Quick.__init__\(\) missing 1 required positional argument: 'name'"):
        Quick()  # type: ignore[call-arg]
