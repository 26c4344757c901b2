"""From a Python signature to a JSON Schema, and from a model's arguments to that signature."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from unbroken.messages import Json


class ArgumentsDoNotFit(Exception):
    """Not an error of ours: its text is told to the model."""


@dataclass(frozen=True, slots=True)
class Signature:
    """`bind` gives the keyword arguments (defaults filled in, values coerced as pydantic does), or raises
    `ArgumentsDoNotFit`. `context` is the name of the parameter that takes the `CallContext`, if there is one."""

    name: str
    description: str
    parameters: Mapping[str, Json]
    bind: Callable[[dict[str, Json]], dict[str, Any]]
    context: str = ""
    is_async: bool = False

    @classmethod
    def of_schema(cls, name: str, description: str, parameters: Mapping[str, Json]) -> Signature:
        """A tool that somebody else validates: arguments pass as they are."""
        return cls(name, description, parameters, dict)


def read_signature(function: Callable[..., Any], *, name: str = "", strict: bool = False) -> Signature:
    raise NotImplementedError
