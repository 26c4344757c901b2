"""From a Python signature to a JSON Schema, and from a model's arguments to that signature.

pydantic makes both from one model that is built when the function becomes a tool, so a signature that JSON cannot
express is refused then and not in the middle of a run. The only file of the library that validates anything.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Optional, TypeAlias, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from unbroken.errors import InvalidTool
from unbroken.tools.parameters import (
    ABSENT,
    Docstring,
    Parameter,
    innermost,
    read_docstring,
    read_parameters,
    takes_self,
)
from unbroken_wires.messages import Json

# Converts an ordinary schema for OpenAI's strict mode: each object closed, each property required, optional ones
# nullable, and nothing that the mode refuses. Also removes the nulls that mean "left out" from arguments.


Schema = dict[str, Any]

_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "$defs", "patternProperties", "dependentSchemas")
_SINGLE = ("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else")

_KEYWORDS = {
    "type",
    "description",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "enum",
    "const",
    "anyOf",
    "$ref",
    "$defs",
    "pattern",
    "format",
    "minItems",
    "maxItems",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
}
_FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
_NULL: Schema = {"type": "null"}


def each_schema(schema: Json, change: Callable[[Schema], Json]) -> Json:
    """A copy in which every schema inside, from the innermost out, is what `change` makes of it. Values that only look
    like schemas (defaults, examples, enum members) stay as they are."""
    if not isinstance(schema, dict):
        return schema
    copy = cast("Schema", schema).copy()
    for key in _SINGLE:
        if key in copy:
            copy[key] = each_schema(copy[key], change)
    for key in _LISTS:
        if isinstance(copy.get(key), list):
            copy[key] = [each_schema(one, change) for one in copy[key]]
    for key in _MAPS:
        if isinstance(copy.get(key), dict):
            copy[key] = {name: each_schema(one, change) for name, one in copy[key].items()}
    return change(copy)


def make_strict(tool: str, schema: Schema) -> Schema:
    for name, one in schema.get("properties", {}).items():
        each_schema({"$defs": schema.get("$defs", {}), **one}, lambda inner, name=name: _refuse(tool, name, inner))
    return each_schema(each_schema(schema, lambda inner: _without_siblings(inner, schema)), _close)


def _refuse(tool: str, parameter: str, schema: Schema) -> Json:
    way_out = "give it a type with named fields, or leave strict out"
    if schema.get("type") == "object" and schema.get("additionalProperties", False) is not False:
        raise InvalidTool(f"tool `{tool}`: parameter `{parameter}` takes any keys, which strict cannot say; {way_out}")
    if "prefixItems" in schema:
        raise InvalidTool(f"tool `{tool}`: parameter `{parameter}` is a tuple, which strict cannot say; {way_out}")
    if not schema.keys() & {"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"}:
        raise InvalidTool(f"tool `{tool}`: parameter `{parameter}` takes any value, which strict cannot say; {way_out}")
    return schema


def _without_siblings(schema: Schema, top: Schema) -> Json:
    """Strict mode requires `$ref` alone: its siblings go into a copy of what it points to."""
    if "$ref" not in schema or len(schema) == 1:
        return schema
    beside = {key: value for key, value in schema.items() if key in ("description",)}
    return {**_resolve(schema, top), **beside} if beside else {"$ref": schema["$ref"]}


def _close(schema: Schema) -> Json:
    if len(one := schema.get("allOf", ())) == 1:
        schema = {**one[0], **schema}
    if "oneOf" in schema:
        schema["anyOf"] = schema["oneOf"]
    closed = {key: value for key, value in schema.items() if key in _KEYWORDS}
    if closed.get("format") not in _FORMATS:
        closed.pop("format", None)
    if closed.get("type") == "object":
        required = schema.get("required", ())
        properties: Schema = closed.get("properties", {})
        closed["properties"] = {name: one if name in required else _nullable(one) for name, one in properties.items()}
        closed["required"] = list(properties)
        closed["additionalProperties"] = False
    return closed


def _nullable(schema: Schema) -> Schema:
    if takes_null(schema):
        return schema
    if "anyOf" in schema:
        return {**schema, "anyOf": [*schema["anyOf"], _NULL]}
    beside = {"description": schema["description"]} if "description" in schema else {}
    alone = {key: value for key, value in schema.items() if key != "description"}
    return {"anyOf": [alone, _NULL], **beside}


def takes_null(schema: Mapping[str, Any]) -> bool:
    if (
        schema.get("type") == "null"
        or ("const" in schema and schema["const"] is None)
        or None in schema.get("enum", ())
    ):
        return True
    if any(takes_null(one) for key in ("anyOf", "oneOf") for one in schema.get(key, ())):
        return True
    return not schema.keys() & {"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"}


def without_omitted(value: Json, schema: Schema, top: Schema) -> Json:
    """`value` without the nulls that mean "left out": those of an optional property that does not accept null in the
    ordinary schema."""
    schema = _resolve(schema, top)
    if isinstance(value, list):
        items = schema.get("items") or next((one["items"] for one in schema.get("anyOf", ()) if "items" in one), None)
        return [without_omitted(one, items, top) for one in cast("list[Json]", value)] if items else cast("Json", value)
    if not isinstance(value, dict):
        return value
    given = cast("dict[str, Json]", value)
    properties = _properties_for(given, schema, top)
    if properties is None:
        return given
    required, known = properties
    return {
        name: without_omitted(one, known[name], top) if name in known else one
        for name, one in given.items()
        if not (one is None and name in known and name not in required and not takes_null(_resolve(known[name], top)))
    }


def _properties_for(given: dict[str, Json], schema: Schema, top: Schema) -> tuple[list[str], dict[str, Schema]] | None:
    if "properties" in schema:
        return schema.get("required", []), schema["properties"]
    for one in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        found = _properties_for(given, _resolve(one, top), top)
        if found is not None and given.keys() <= found[1].keys():
            return found
    return None


def _resolve(schema: Schema, top: Schema) -> Schema:
    while "$ref" in schema:
        schema = top.get("$defs", {}).get(schema["$ref"].rpartition("/")[2], {})
    return schema


NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
ERRORS_TOLD = 3
VALUE_TOLD = 50
"""Maximum characters of a value that did not fit."""


Bind: TypeAlias = Callable[[dict[str, Json]], dict[str, Any]]


class ArgumentsDoNotFit(Exception):
    """The model's mistake: its text goes to the model."""


@dataclass(frozen=True, slots=True)
class Signature:
    """`bind` returns the keyword arguments (defaults filled in, values coerced as pydantic does), or raises
    `ArgumentsDoNotFit`. `context` is the name of the parameter that takes the `CallContext`, if there is one."""

    name: str
    description: str
    parameters: Mapping[str, Json]
    bind: Bind
    context: str = ""
    is_async: bool = False
    takes_self: bool = False
    """It is a method, to be bound to its object before it is called."""
    deps: Any = Any
    """The type in `CallContext[…]`."""

    @classmethod
    def of_schema(cls, name: str, description: str, parameters: Mapping[str, Json]) -> Signature:
        """For a tool that validates elsewhere: arguments pass unchanged."""
        return cls(name, description, parameters, dict)


def read_signature(function: Callable[..., Any], *, name: str = "", strict: bool = False) -> Signature:
    inner = innermost(function)
    name = name or _name_of(function, inner)
    if not NAME.fullmatch(name):
        raise InvalidTool(
            f"tool `{name}`: a name is 1 to 64 letters, digits, `_` or `-` of ASCII; give it another with name='...'"
        )
    _refuse_what_cannot_be_called(name, function, inner)
    doc = read_docstring(_docstring_of(function, inner))
    parameters = read_parameters(name, function)
    model, schema = _make_model(name, parameters.shown, doc)
    bind = _make_bind(model, parameters.shown)
    if strict:
        bind, schema = _bind_strictly(bind, schema), make_strict(name, schema)
    is_async = inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner)
    return Signature(
        name, doc.description, schema, bind, parameters.context, is_async, takes_self(function), parameters.deps
    )


def _name_of(function: Callable[..., Any], inner: Callable[..., Any]) -> str:
    called = getattr(inner, "__name__", "")
    if called == "<lambda>":
        raise InvalidTool("a lambda has no name that a model could call; give it one with name='...'")
    # A callable object has the name of its class.
    return type(function).__name__ if called in ("__call__", "") else called


def _docstring_of(function: Callable[..., Any], inner: Callable[..., Any]) -> str | None:
    if inner.__doc__ or inner.__name__ != "__call__":
        return inner.__doc__
    return type(function).__doc__


def _refuse_what_cannot_be_called(name: str, function: Callable[..., Any], inner: Callable[..., Any]) -> None:
    if isinstance(function, classmethod):
        raise InvalidTool(f"tool `{name}` is a class method; write @classmethod above @tool, and give its class")
    if not callable(function):
        raise InvalidTool(
            f"tool `{name}` is not a function but of the type `{type(function).__name__}`; give a function"
        )
    if inspect.isclass(function):
        raise InvalidTool(f"tool `{name}` is a class; mark its methods with @tool, and give an object of it")


def _make_model(name: str, parameters: tuple[Parameter, ...], doc: Docstring) -> tuple[type[BaseModel], Schema]:
    """Its fields are numbered and have the parameters' names as aliases: a parameter may be called `schema` or `_x`,
    which a field may not."""
    fields = {f"p{at}": _field_of(parameter, doc) for at, parameter in enumerate(parameters)}
    try:
        model = create_model(name, __config__=ConfigDict(extra="forbid"), **cast("dict[str, Any]", fields))
        return model, _make_schema(model)
    except Exception as error:  # a user's type may raise anything while pydantic inspects it
        raise _refusal(name, parameters, error) from error


def _field_of(parameter: Parameter, doc: Docstring) -> tuple[Any, Any]:
    kind, given = parameter.type, parameter.default
    if isinstance(given, FieldInfo):
        kind, given = Annotated[kind, given], ABSENT
    options: dict[str, Any] = {"alias": parameter.name}
    if described := _description(kind, doc.of(parameter.name)):
        options["description"] = described
    if given is None and kind is not Any:
        kind = _or_none(kind)
    if given is not ABSENT:
        options["default"] = given
    return kind, Field(**options)


def _or_none(kind: Any) -> Any:
    """`x: int = None` also accepts null: a model may send the default."""
    if get_origin(kind) is Annotated:
        inner, *extras = get_args(kind)
        return Annotated[Optional[inner], *extras]  # noqa: UP045 - a value, and not every type knows `|`
    return Optional[kind]  # noqa: UP045


def _description(kind: Any, fallback: str) -> str:
    """From the annotation (a `Field`, a plain text or a `Doc`); otherwise from the docstring."""
    for extra in get_args(kind)[1:] if get_origin(kind) is Annotated else ():
        said = extra if isinstance(extra, str) else getattr(extra, "description", getattr(extra, "documentation", None))
        if isinstance(said, str) and said:
            return said
    return fallback


def _refusal(name: str, parameters: tuple[Parameter, ...], error: Exception) -> InvalidTool:
    for parameter in parameters:
        try:
            TypeAdapter(parameter.type).json_schema(schema_generator=_Quiet)
        except Exception as found:  # noqa: BLE001 - a foreign type again; it is named in the error that is raised
            kind = f"`{getattr(parameter.type, '__name__', None) or parameter.type}`"
            way_out = "use str, int, float, bool, list, dict, Literal, Enum, a dataclass or a pydantic model"
            if "typing_extensions.TypedDict" in str(found):
                way_out = "use typing_extensions.TypedDict: before Python 3.12 pydantic cannot read typing.TypedDict"
            return InvalidTool(
                f"tool `{name}`: parameter `{parameter.name}` has the type {kind}, "
                f"which cannot become a JSON Schema; {way_out}"
            )
    return InvalidTool(f"tool `{name}`: its signature cannot become a JSON Schema: {str(error).splitlines()[0]}")


class _Quiet(GenerateJsonSchema):
    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - as pydantic declares it

    def is_subclass_schema(self, schema: core_schema.IsSubclassSchema) -> JsonSchemaValue:
        """pydantic's schema for `type[int]` accepts anything, but no JSON value fits."""
        return self.handle_invalid_for_json_schema(schema, "type[...]")


def _make_schema(model: type[BaseModel]) -> Schema:
    schema = each_schema(model.model_json_schema(schema_generator=_Quiet), _without_noise)
    return {"type": "object", "properties": {}, **schema}


def _without_noise(schema: Schema) -> Schema:
    schema.pop("title", None)
    try:
        json.dumps(schema.get("default"), allow_nan=False)
    except ValueError:  # an infinite one is none in JSON
        del schema["default"]
    return schema


def _make_bind(model: type[BaseModel], parameters: tuple[Parameter, ...]) -> Bind:
    validate = model.__pydantic_validator__.validate_python
    names = [(parameter.name, f"p{at}") for at, parameter in enumerate(parameters)]

    def bind(arguments: dict[str, Json]) -> dict[str, Any]:
        try:
            bound = validate(arguments).__dict__
        except ValidationError as error:
            bound = _read_as_json(model, arguments)
            if bound is None:
                raise ArgumentsDoNotFit(_in_words(error, parameters)) from None
        return {name: bound[field] for name, field in names}

    return bind


def _read_as_json(model: type[BaseModel], arguments: dict[str, Json]) -> dict[str, Any] | None:
    """A strict model accepts a date or an Enum as a string only in JSON mode."""
    try:
        return model.__pydantic_validator__.validate_json(json.dumps(arguments)).__dict__
    except (ValueError, TypeError, RecursionError):
        return None


def _bind_strictly(bind: Bind, schema: Schema) -> Bind:
    return lambda arguments: bind(without_omitted(arguments, schema, schema))


def _in_words(error: ValidationError, parameters: tuple[Parameter, ...]) -> str:
    found = error.errors(include_url=False, include_context=False)
    told: list[str] = []
    for one in found[:ERRORS_TOLD]:
        where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in one["loc"]).lstrip(".")
        match one["type"]:
            case "missing":
                told.append(f"`{where}`: {one['msg']}")
            case "extra_forbidden" if len(one["loc"]) == 1:
                told.append(f"`{where}`: there is no such parameter")
            case _:
                told.append(f"`{where}`: {one['msg']} (got {_shortened(one['input'])})")
    if len(found) > ERRORS_TOLD:
        told.append(f"and {len(found) - ERRORS_TOLD} more")
    names = ", ".join(parameter.name for parameter in parameters)
    return f"{'; '.join(told)}. Parameters: {names or 'none'}"


def _shortened(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= VALUE_TOLD else f"{text[:VALUE_TOLD]}..."
