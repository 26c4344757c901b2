"""Structured answers: the requested type becomes a tool that the model calls to answer, on every provider.

If the model writes JSON as text instead, that is read too. If the answer does not fit, the model is asked once to
correct it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any, Generic, cast

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypeVar

from unbroken.errors import UserError
from unbroken.messages import Json, ToolSpec
from unbroken.tools.schema import ArgumentsDoNotFit, Signature
from unbroken.tools.tool import Tool

T = TypeVar("T")

ANSWER = "final_answer"
DESCRIPTION = "Give the final answer. Call it alone, once you know everything you need."
ACCEPTED = "The answer is accepted."
_FENCED = re.compile(r"```(?:json)?\s*\n(.*?)\n?```", re.S)


class OutputType(Generic[T]):
    def __init__(self, kind: type[T] | Any) -> None:
        self._why_not: Callable[[dict[str, Json]], str | None] = _fits
        try:
            if isinstance(kind, str):
                raise TypeError("the name of a type is not a type")
            self._adapter: TypeAdapter[T] = TypeAdapter(kind)
            schema = self._adapter.json_schema()
        except Exception as error:  # for invalid types pydantic raises KeyError, IndexError and others
            name = getattr(kind, "__name__", repr(kind))
            raise UserError(
                f"output={name} cannot become a JSON Schema; use a pydantic model, a dataclass, or types made of them"
            ) from error
        self._wrapped = schema.get("type") != "object"
        if self._wrapped:
            definitions = schema.pop("$defs", None)
            schema = {"type": "object", "properties": {"value": schema}, "required": ["value"]}
            if definitions:
                schema["$defs"] = definitions
        self.schema = schema

    @classmethod
    def of(cls, kind: Any) -> OutputType[Any]:
        return cast("OutputType[Any]", kind) if isinstance(kind, OutputType) else OutputType(kind)

    @classmethod
    def of_schema(cls, schema: dict[str, Any], why_not: Callable[[dict[str, Json]], str | None]) -> OutputType[Any]:
        """For a schema without its type: the value was checked when it was recorded. `why_not` returns what did not fit
        then."""
        output = OutputType[Any](dict[str, Any])
        output.schema, output._why_not = schema, why_not
        return output

    def tool(self, take: Callable[[T], Awaitable[None]]) -> Tool:
        """The tool that the model calls to answer; `take` gets an answer that fits."""

        def bind(arguments: dict[str, Json]) -> dict[str, Any]:
            return {"answer": self.read(arguments)}

        async def answer(answer: T) -> str:
            await take(answer)
            return ACCEPTED

        signature = Signature(ANSWER, DESCRIPTION, self.schema, bind, is_async=True)
        return Tool(ToolSpec(ANSWER, DESCRIPTION, self.schema), answer, signature, after_crash="rerun")

    def read(self, arguments: dict[str, Json]) -> T:
        if (why := self._why_not(arguments)) is not None:
            raise ArgumentsDoNotFit(why)
        try:
            return self._adapter.validate_python(arguments["value"] if self._wrapped else arguments)
        except KeyError:
            raise ArgumentsDoNotFit("`value` is missing") from None
        except ValidationError as error:
            raise ArgumentsDoNotFit(_in_words(error)) from error

    def read_text(self, text: str) -> T:
        """Reads JSON that is alone, in a code fence, or inside other text."""
        for candidate in (text, *_FENCED.findall(text), text[text.find("{") : text.rfind("}") + 1]):
            try:
                value: Json = json.loads(candidate)
            except (ValueError, RecursionError):
                continue
            given = cast("dict[str, Json]", value if isinstance(value, dict) else {"value": value})
            if self._wrapped and set(given) != {"value"}:
                given = {"value": given}
            if isinstance(value, dict) or self._wrapped:
                return self.read(given)
        raise ArgumentsDoNotFit(f"the answer is not JSON; call `{ANSWER}`")

    def text_of(self, value: T) -> str:
        return self._adapter.dump_json(value).decode()


def _fits(arguments: dict[str, Json]) -> None:
    return None


def _in_words(error: ValidationError) -> str:
    errors = error.errors(include_url=False, include_context=False)
    told = [f"`{'.'.join(map(str, each['loc'])) or 'answer'}`: {each['msg']}" for each in errors[:3]]
    more = f"; and {len(errors) - 3} more" if len(errors) > 3 else ""
    return "; ".join(told) + more
