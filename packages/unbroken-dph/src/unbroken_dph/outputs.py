"""The formats for a block's answer: `output="json"`, `"jsonl"`, `"list_str"`, `"obj/Type"`. Each has an instruction for
the model and a function that reads the answer. Nothing is repaired: if an answer does not match, the request is retried
once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias, cast

from pydantic import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, TypeAdapter, ValidationError

from unbroken.errors import UserError
from unbroken.events import Event, event_to_json
from unbroken_dph.arguments import TYPED
from unbroken_dph.problems import Position
from unbroken_dph.values import read_json
from unbroken_wires.messages import Json

_FENCED = re.compile(r"^[ \t]*```[\w+-]*[ \t]*\n(.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)
_BULLET = re.compile(r"^\s*(?:[-*+•]|\(?\d+[.)、])\s+")


class DoesNotFit(ValueError):
    """Its message is sent to the model."""


@dataclass(frozen=True, slots=True)
class Output:
    instruction: str
    read: Callable[[str], Json]


def output_of(form: str, types: Mapping[str, Any]) -> Output:
    match form:
        case "json":
            return Output("Answer with one JSON value and nothing else.", _json)
        case "jsonl":
            return Output("Answer with JSON Lines and nothing else: one JSON value on each line.", _jsonl)
        case "list_str":
            return Output('Answer with a JSON array of strings and nothing else, as in ["a", "b"].', _list_str)
        case _:
            return _typed(form.removeprefix(TYPED), types)


def correction(problem: DoesNotFit, output: Output) -> str:
    """The message to a model whose answer did not match."""
    return f"That does not match the format: {problem}. {output.instruction}"


def _typed(name: str, types: Mapping[str, Any]) -> Output:
    if name not in types:
        raise UserError(
            f'output="{TYPED}{name}": there is no type `{name}`; '
            f'define it beside the tools, or give types={{"{name}": …}}'
        )
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(types[name])
        schema = json.dumps(adapter.json_schema(), ensure_ascii=False)
    except (PydanticSchemaGenerationError, PydanticInvalidForJsonSchema, TypeError) as error:
        raise UserError(f'output="{TYPED}{name}": this type has no JSON Schema: {error}') from None

    def read(text: str) -> Json:
        try:
            return adapter.dump_python(adapter.validate_python(_json(text)), mode="json")
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise DoesNotFit(f"{where}: {first['msg']}" if where else first["msg"]) from None

    return Output(f"Answer with one JSON object and nothing else; it has this JSON Schema: {schema}", read)


def _json(text: str) -> Json:
    try:
        return read_json(_unfenced(text))
    except ValueError as error:
        raise DoesNotFit(str(error)) from None


def _jsonl(text: str) -> list[Json]:
    found: list[Json] = []
    for number, line in enumerate(_unfenced(text).splitlines(), 1):
        if line.strip():
            try:
                found.append(read_json(line))
            except ValueError as error:
                raise DoesNotFit(f"line {number}: {error}") from None
    return found


def _list_str(text: str) -> list[str]:
    """Reads a JSON array, or else a list with bullets or numbers, as models often write it."""
    inside = _unfenced(text)
    if inside.startswith("["):
        value = _json(inside)
        if isinstance(value, list) and all(isinstance(one, str) for one in cast("list[Any]", value)):
            return cast("list[str]", value)
        raise DoesNotFit("it is not an array of strings")
    lines = [line for line in inside.splitlines() if line.strip()]
    if lines and lines[0].rstrip().endswith((":", "：")):
        del lines[0]  # "Here are three:"
    if not lines or not all(map(_BULLET.match, lines)):
        raise DoesNotFit("it is neither an array of strings nor a list with one item per line")
    return [_BULLET.sub("", line).strip() for line in lines]


def _unfenced(text: str) -> str:
    """The content of the only code fence of an answer, if there is one; models often put JSON into a fence."""
    fences = _FENCED.findall(text)
    return (fences[0] if len(fences) == 1 else text).strip()


# The events of a program: which block started and finished, and every event of a block's run with the block it belongs
# to.


@dataclass(frozen=True, slots=True)
class BlockRun:
    """One block while it runs. In a loop each iteration is another one; `number` distinguishes them."""

    number: int
    """From 1, in the order in which they started."""
    kind: str
    """`prompt`, `explore`, `judge`, `call` (of a tool) or `program` (another file)."""
    name: str
    """The variable that gets its value."""
    file: str
    line: int
    called: str = ""
    """The tool or program that is called."""
    parent: int = 0
    """The number of the block that called this block's program; 0 in the first program."""

    @classmethod
    def at(cls, number: int, kind: str, name: str, place: Position, called: str = "", parent: int = 0) -> BlockRun:
        """Takes the file and line from the position."""
        return cls(number, kind, name, place.file, place.line, called, parent)


@dataclass(frozen=True, slots=True)
class BlockStarted:
    block: BlockRun


@dataclass(frozen=True, slots=True)
class InBlock:
    """An event of the block's run."""

    block: BlockRun
    event: Event


@dataclass(frozen=True, slots=True)
class BlockFinished:
    """The block has its value, or failed with an `error`."""

    block: BlockRun
    value: Json
    seconds: float
    error: str = ""
    stop_reason: str = ""
    """How the run ended, if the block asked a model."""


ProgramEvent: TypeAlias = BlockStarted | InBlock | BlockFinished
ProgramSink: TypeAlias = Callable[[ProgramEvent], None]


def program_event_to_json(event: ProgramEvent) -> dict[str, Json]:
    """The event as JSON: its `type`, the block, and what happened."""
    saved: dict[str, Json] = {"type": type(event).__name__, "block": asdict(event.block)}
    match event:
        case BlockStarted():
            pass
        case InBlock():
            saved["event"] = event_to_json(event.event)
        case BlockFinished():
            saved |= {
                "value": event.value,
                "seconds": event.seconds,
                "error": event.error,
                "stop_reason": event.stop_reason,
            }
    return saved
