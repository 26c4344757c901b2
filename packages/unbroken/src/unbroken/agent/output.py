"""Structured answers: the requested type becomes a JSON Schema for the model's structured output, or a tool that the
model calls to answer.

Which of the two is decided for each request by the model (`models.structured_output`), so JSON as text and a call are
both read, whatever was asked for. If the answer does not fit, the model is asked once to correct it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from types import UnionType
from typing import Any, Generic, Literal, TypeAlias, Union, cast, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError
from typing_extensions import TypedDict, TypeForm, TypeVar

from unbroken.agent.json_in_text import values_in
from unbroken.errors import UserError
from unbroken.tools.caller import log_bug
from unbroken.tools.schema import ArgumentsDoNotFit, Signature
from unbroken.tools.tool import Tool
from unbroken_wires.messages import Json, OutputSchema, ToolSpec
from unbroken_wires.validation import checked
from unbroken_wires.wires.json_access import as_list

T = TypeVar("T")

ANSWER = "final_answer"
DESCRIPTION = "Give the final answer. Call it alone, once you know everything you need."
ACCEPTED = "The answer is accepted."
DOES_NOT_FIT = "Your answer does not fit: "
HOW_BEGINS = ". Give the whole answer again: "
NOT_JSON = "the answer is not JSON"
NO_OBJECT = "the answer is JSON, but no object"
SEVERAL = "the answer has {count} different JSON values that fit, and must have one"
CUT_OFF = "it was cut off at its length limit, so it has to be shorter"
_AGAIN = "does not fit, even after a correction was requested: "


_TEXT: Json = {"value": {"type": "string"}}

Via: TypeAlias = Literal["auto", "native", "tool"]


@checked
class Output(Generic[T]):
    """The type of an answer, and how the model gives it: `output=Output(Report, via="tool")`.

    - `"auto"`: by structured output if the provider has it for this model, this type and the tools of the request;
      otherwise by a call of the tool `final_answer`. `output=Report` means the same.
    - `"native"`: always by structured output.
    - `"tool"`: always by a call.

    If `str` is the type or one of several (`Report | str`), plain text is an answer too, unless it is `"native"`: no
    schema is forced, and the call is optional.
    """

    def __init__(self, kind: TypeForm[T], *, via: Via = "auto") -> None:
        self.via: Via = via
        self._kind: Any = kind
        self._partial: TypeAdapter[Any] | None = None
        self._why_not: Callable[[dict[str, Json]], str | None] = _fits
        self._recorded_text: Callable[[str], T] | None = None
        self.free_text = via != "native" and _takes_text(kind)
        """Plain text is an answer."""
        try:
            if isinstance(kind, str):
                raise TypeError("the name of a type is not a type")
            self._adapter: TypeAdapter[T] = TypeAdapter(kind)
            schema = self._adapter.json_schema()
        except Exception as error:  # for invalid types pydantic raises KeyError, IndexError and others
            name = getattr(kind, "__name__", repr(kind))
            raise UserError(
                f"output={name} cannot become a JSON Schema; use another kind: a pydantic model, a dataclass, or types "
                "made of them"
            ) from error
        self._wrapped = schema.get("type") != "object"
        if self._wrapped:
            definitions = schema.pop("$defs", None)
            schema = {"type": "object", "properties": {"value": schema}, "required": ["value"]}
            if definitions:
                schema["$defs"] = definitions
        self.schema = schema
        self.wanted = self._wanted()

    @classmethod
    def of(cls, kind: Any) -> Output[Any]:
        """The output itself, or one for a type."""
        return cast("Output[Any]", kind) if isinstance(kind, Output) else Output(kind)

    @classmethod
    def of_schema(
        cls,
        schema: dict[str, Any],
        why_not: Callable[[dict[str, Json]], str | None],
        read_text: Callable[[str], Any],
        via: Via = "auto",
        free_text: bool = False,
    ) -> Output[Any]:
        """For a schema without its type: the value was checked when it was recorded. `why_not` returns what did not fit
        then, and `read_text` stands in for the method."""
        output = Output[Any](dict[str, Any], via=via)
        output._adapter = TypeAdapter(Any)
        output.schema, output._why_not, output._recorded_text = schema, why_not, read_text
        output.free_text = output._wrapped = free_text  # a type with `str` in it is no object
        output.wanted = output._wanted()
        return output

    def _wanted(self) -> OutputSchema | None:
        """What requests say about the answer. The same object each time, so that it is judged once."""
        if self.via == "tool" or self.free_text:
            return None
        return OutputSchema(self.schema, tool=ANSWER if self.via == "auto" else "")

    @property
    def has_tool(self) -> bool:
        """Whether the model may answer by a call."""
        return self.via != "native" and not self.only_text

    @property
    def only_text(self) -> bool:
        """Whether every answer is plain text."""
        return self.free_text and self.schema["properties"] == _TEXT

    def to_json(self) -> dict[str, Json]:
        """What a recording has of it, for `of_schema`."""
        saved: dict[str, Json] = {"tool": ANSWER, "schema": self.schema}
        if self.free_text:
            saved["text"] = True
        return saved if self.via == "auto" else {**saved, "via": self.via}

    def correction(self, why: str) -> str:
        """What the model reads if its answer does not fit."""
        how = f"call `{ANSWER}`, or write" if self.has_tool else "write"
        return f"{DOES_NOT_FIT}{why}{HOW_BEGINS}{how} nothing but its JSON."

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
        """The value of an answer that was given as a call. Raises `ArgumentsDoNotFit`."""
        if (why := self._why_not(arguments)) is not None:
            raise ArgumentsDoNotFit(why)
        if self._wrapped and "value" not in arguments:
            raise ArgumentsDoNotFit("`value` is missing")
        try:
            return self._adapter.validate_python(arguments["value"] if self._wrapped else arguments)
        except ValidationError as error:
            raise ArgumentsDoNotFit(_in_words(error)) from error
        except (Exception, SystemExit) as error:
            log_bug(logging.WARNING, error, "A validator of the type of the answer failed")
            raise ArgumentsDoNotFit(f"a validator of its type failed ({type(error).__name__})") from error

    def read_text(self, text: str) -> T:
        """Reads JSON that is alone, in a code fence, or inside other text. Of several values, the one that fits. Raises
        `ArgumentsDoNotFit`, also if different values fit."""
        if self._recorded_text is not None:
            return self._recorded_text(text)
        if self.free_text:
            return self._read_free_text(text)
        answers: dict[str, T] = {}
        why = ArgumentsDoNotFit(NOT_JSON)
        for value in values_in(text):
            try:
                answer = self.read(self._as_arguments(value))
            except ArgumentsDoNotFit as error:
                why = error
            else:
                answers[self.text_of(answer)] = answer
        if len(answers) == 1:
            return next(iter(answers.values()))
        raise ArgumentsDoNotFit(SEVERAL.format(count=len(answers))) if answers else why

    def _read_free_text(self, text: str) -> T:
        """The text itself, unless it is nothing but JSON of one of the other types."""
        for value in () if self.only_text else only_json(text):
            try:
                answer = self.read(self._as_arguments(value))
            except ArgumentsDoNotFit:
                continue
            if not isinstance(answer, str):
                return answer
        return cast("T", text)

    def _as_arguments(self, value: Json) -> dict[str, Json]:
        """A value that was written as text, as an object that fits `schema`."""
        if self._wrapped:
            is_wrapper = isinstance(value, dict) and list(cast("dict[str, Json]", value)) == ["value"]
            return cast("dict[str, Json]", value) if is_wrapper else {"value": value}
        items = as_list(value)
        inner = items[0] if len(items) == 1 else value
        if not isinstance(inner, dict):
            raise ArgumentsDoNotFit(NO_OBJECT)
        return cast("dict[str, Json]", inner)

    def read_partial(self, text: str) -> T:
        """Reads the beginning of an answer. Raises if that is no value of the type yet."""
        if self._partial is None:
            make: Any = TypedDict  # its fields are known at run time only
            wrapper = make("Answer", {"value": self._kind}, total=False) if self._wrapped else self._kind
            self._partial = TypeAdapter(wrapper)
        value = self._partial.validate_json(text, experimental_allow_partial="trailing-strings")
        return value["value"] if self._wrapped else value

    def text_of(self, value: T) -> str:
        """The value as JSON; plain text as it is."""
        if self.free_text and isinstance(value, str):
            return value
        try:
            return self._adapter.dump_json(value).decode()
        except PydanticSerializationError:  # half a surrogate pair is escaped, as the model has written it
            return json.dumps(self._adapter.dump_python(value, mode="json"), separators=(",", ":"))

    def object_of(self, value: T) -> dict[str, Json]:
        """The value as an object that fits `schema`."""
        plain = self.free_text and isinstance(value, str)
        found: Json = value if plain else json.loads(self.text_of(value))
        return {"value": found} if self._wrapped else cast("dict[str, Json]", found)


def only_json(text: str) -> list[Json]:
    """The JSON value that a text consists of, alone or in a code fence; empty if there is more, or other text."""
    text = text.strip()
    if text.startswith("```") and text.endswith("```"):
        return list(values_in(text))
    try:
        return [json.loads(text)]
    except ValueError:
        return []


def _takes_text(kind: Any) -> bool:
    return kind is str or (get_origin(kind) in (Union, UnionType) and str in get_args(kind))


def _fits(answer: object) -> None:
    return None


def invalid(model: str, why: str) -> str:
    """The text of the error that ends the run."""
    return f"the answer of `{model}` {_AGAIN}{why}"


def why_invalid(error: str) -> str:
    """What did not fit, from the text of that error."""
    return error.partition(_AGAIN)[2] or error


def why_of(correction: str) -> str:
    """What did not fit, from the text of a correction."""
    return correction.removeprefix(DOES_NOT_FIT).rpartition(HOW_BEGINS)[0]


def _in_words(error: ValidationError) -> str:
    errors = error.errors(include_url=False, include_context=False)
    told = [f"`{'.'.join(map(str, each['loc'])) or 'answer'}`: {each['msg']}" for each in errors[:3]]
    more = f"; and {len(errors) - 3} more" if len(errors) > 3 else ""
    return "; ".join(told) + more
