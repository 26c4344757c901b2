"""Settings that not every wire has, carried from a client's wire to the wire of the model.

What a client's request has beyond the fields of `Request` is in `Request.extra`, spelled as on its own wire. `cross`
lets the client's wire read that and the model's wire write it; `report` names what did not arrive, in the client's
words. Each wire has a `Crossing`, which is all that the other wires know of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from unbroken_wires.errors import InvalidRequest
from unbroken_wires.messages import UNSET, Json, Media, Message, OutputSchema, Request, ToolMessage, User
from unbroken_wires.server_tools import LOCATION
from unbroken_wires.wires.body_paths import find, shown
from unbroken_wires.wires.claude_models import budget_within
from unbroken_wires.wires.content_parts import FOREIGN
from unbroken_wires.wires.history_losses import HistoryCrossing, lost_from_history
from unbroken_wires.wires.json_access import NAMESPACE, Object, as_dict, as_int, as_list

if TYPE_CHECKING:
    from unbroken_wires.wires.server_tools import ServerTools

Name: TypeAlias = Literal[
    # Fields of `Request`
    "max_tokens",
    "temperature",
    "top_p",
    "stop",
    "seed",
    "choice",
    "parallel",
    "effort",
    "strict",
    # Settings in `extra`
    "output",
    "top_k",
    "frequency_penalty",
    "presence_penalty",
    "verbosity",
    "user",
    "safety_identifier",
    "metadata",
    "service_tier",
    "cache_key",
    "cache_retention",
    "store",
    "allowed_tools",
    # Tools that the provider runs
    "web_search",
    "web_fetch",
    "code_execution",
]
"""What the settings are called here, whatever a wire calls them."""


@dataclass(frozen=True, slots=True)
class Setting:
    field: str
    """Where the client has it: `generationConfig.topK`."""
    value: Any


Settings: TypeAlias = dict[Name, Setting]


@dataclass(frozen=True, slots=True)
class Target:
    """The model that is asked."""

    vendor: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """How a wire spells the settings."""

    places: Mapping[Name, tuple[str, ...]]
    """Paths (see `rules`) in a body where a setting may be; the first one, without its marks, is its name in reports. A
    setting that is absent here does not exist on this wire."""
    read: Callable[[Mapping[str, Json]], tuple[Settings, list[str]]]
    """The settings in a client's `extra`, and the fields that are not among them."""
    write: Callable[[Object, Settings, Target], list[str]]
    """Writes settings into a body. Returns the parts of them that this wire has no field for, in the client's words;
    a setting that does not arrive at all need not be named."""
    history: HistoryCrossing
    """What its messages and tools can say."""


@dataclass(slots=True)
class Crossed:
    """What a client has set, by what it calls it, to be looked for in the body that is sent."""

    model: Crossing
    asked: dict[Name, str] = field(default_factory=dict[Name, str])
    lost: list[str] = field(default_factory=list[str])
    """Fields that have no counterpart."""
    output: OutputSchema | None = None
    """What the client's answer has to look like."""


def asked_of(request: Request, places: Mapping[Name, tuple[str, ...]]) -> dict[Name, str]:
    """The settings that are fields of a request, by their names on a wire. A free choice and several calls are the
    default everywhere and need not be sent."""
    sampling = request.sampling
    values: tuple[tuple[Name, object], ...] = (
        ("max_tokens", sampling.max_tokens),
        ("temperature", sampling.temperature),
        ("top_p", sampling.top_p),
        ("stop", sampling.stop or None),
        ("seed", sampling.seed),
        ("choice", None if request.choice == "auto" else request.choice),
        ("parallel", None if request.parallel else request.parallel),
        ("effort", request.reasoning),
        ("strict", any(tool.strict for tool in request.tools) or None),
    )
    return {name: shown(places[name][0]) if name in places else name for name, value in values if value is not None}


_LIMITS = (("max_tokens", "thinking"), ("inferenceConfig.maxTokens", "additionalModelRequestFields.thinking"))


def keep_limit(body: Object, most: int) -> list[str]:
    """A client gets at most the tokens that it asked for: an encoder that raised its limit to make room for thinking
    is put right here, and the budget is lowered or left out. Returns what has changed."""
    for place, thinking in _LIMITS:
        limits, budgets = find(body, place), find(body, f"{thinking}.budget_tokens")
        if not (limits and budgets and as_int(limits[0][1]) > most):
            continue
        put(body, place, most)
        outer, _, inner = thinking.rpartition(".")
        if budget := budget_within(as_int(budgets[0][1]), most):
            put(body, f"{thinking}.budget_tokens", budget)
        elif not outer:
            del body[inner]
        else:
            rest = {key: value for key, value in as_dict(body[outer]).items() if key != inner}
            body.update({outer: rest}) if rest else body.pop(outer)
        return [thinking]
    return []


def cross(
    request: Request, body: Object, client: Crossing | None, model: Crossing | None, target: Target
) -> Crossed | None:
    """Writes the settings of a client of another wire into the body for the model. None if one of the wires has no
    crossing."""
    if client is None or model is None:
        return None
    _refuse_equal_names(request)
    settings, lost = client.read(request.extra)
    crossed = Crossed(model, asked_of(request, client.places), lost)
    crossed.asked |= {name: setting.field for name, setting in settings.items()}
    if (output := settings.get("output")) is not None:
        crossed.output = output.value
    crossed.lost += model.write(body, settings, target)
    crossed.lost += lost_from_history(request, client.history, model.history)
    return crossed


_NOT_PASSED_ON = FOREIGN.rstrip("]")


def lost_media(request: Request, body: Object, encode: Callable[[Request], Object], messages: str) -> list[str]:
    """The attachments that a note stands for in the body: `messages.image`. `messages` is the client's field."""
    media = [part for message in request.messages for part in _media(message)]
    if not media or not _has_note(body):
        return []
    kinds: list[str] = []
    for part in media:
        kind = part.mime.partition("/")[0] or ("image" if part.url else "attachment")
        alone = Request((User((part,)),), model=request.model)
        if _has_note(encode(alone)):
            kinds.append("document" if kind in ("application", "text") else kind)
    return [f"{messages}.{kind}" for kind in dict.fromkeys(kinds or ["attachment"])]


def _media(message: Message) -> Iterator[Media]:
    if isinstance(message, User):
        yield from (part for part in message.parts if isinstance(part, Media))
    elif isinstance(message, ToolMessage):
        yield from (part for result in message.results for part in result.content if isinstance(part, Media))


def _has_note(value: Json) -> bool:
    if isinstance(value, str):
        return len(value) < _LONGEST_NOTED and _NOT_PASSED_ON in value
    inner: list[Json] = [*as_dict(value).values(), *as_list(value)]
    return any(map(_has_note, inner))


_LONGEST_NOTED = 1 << 20
"""Longer strings are data of files."""


def sets_something(request: Request) -> bool:
    """Whether a request has settings at all: most have none."""
    sampling = request.sampling
    return (sampling is not UNSET and sampling != UNSET) or request.choice is not None or request.reasoning is not None


def not_sent(request: Request, body: Object, model: Crossing | None, left_out: Collection[str]) -> list[str]:
    """The settings of a request of our own that the body does not have, by our names for them, except those that
    `left_out` has in the words of the wire. No calls and no thinking can also be had without tools and without the
    setting; the code that runs the calls keeps to one at a time, and checks the arguments."""
    if model is None:
        return []
    asked = asked_of(request, {})
    asked.pop("parallel", None)
    asked.pop("strict", None)
    if request.choice == "none":
        asked.pop("choice")
    if request.reasoning == "none":
        asked.pop("effort")
    places = {name: model.places.get(name, ()) for name in asked}
    return [
        name for name, paths in places.items() if not any(find(body, path) or shown(path) in left_out for path in paths)
    ]


def report(crossed: Crossed, body: Object, left_out: Sequence[str]) -> list[str]:
    """The fields that did not arrive, or not as they were, in the client's words. `left_out`: what the rules of the
    model's family left out of the body or changed in it, in the words of its wire."""
    places = crossed.model.places
    missing = [own for name, own in crossed.asked.items() if not any(_has(body, path) for path in places.get(name, ()))]
    changed = [_in_clients_words(name, crossed) for name in left_out]
    return list(dict.fromkeys([*missing, *crossed.lost, *changed]))


def _has(body: Object, path: str) -> bool:
    keys = _keys(path)
    if keys is None:
        return bool(find(body, path))
    value: Any = body
    for key in keys:
        value = cast("Object", value).get(key) if isinstance(value, dict) else None
    return value is not None


@cache
def _keys(path: str) -> tuple[str, ...] | None:
    """The keys of a path without any marks: most are, and `find` takes four times as long."""
    return tuple(path.split(".")) if path.replace(".", "").replace("_", "").isalnum() else None


def _in_clients_words(name: str, crossed: Crossed) -> str:
    for setting, own in crossed.asked.items():
        for path in crossed.model.places.get(setting, ()):
            place = shown(path)
            if place != "tools" and (name == place or name.startswith(f"{place}.")):
                return own
    return name


def _refuse_equal_names(request: Request) -> None:
    """Tools of a namespace are sent as `namespace__name`, which another tool may be called as well: then a call could
    reach the wrong one."""
    names = [tool.name.replace(NAMESPACE, "__") for tool in request.tools]
    if len(set(names)) < len(names) and any(NAMESPACE in tool.name for tool in request.tools):
        double = next(name for name in names if names.count(name) > 1)
        raise InvalidRequest(f"two tools would be called `{double}` for this model: rename one of them")


# For the wires' own modules


def simple(extra: Mapping[str, Json], fields: Mapping[str, Name], before: str = "") -> Iterator[tuple[Name, Setting]]:
    """Settings that are one field each, with a value that all wires take."""
    for key, name in fields.items():
        if (value := extra.get(key)) is not None:
            yield name, Setting(f"{before}{key}", value)


def rest_of(extra: Mapping[str, Json], known: Collection[str], before: str = "") -> list[str]:
    """The fields that say something and are not known."""
    return [f"{before}{key}" for key, value in extra.items() if key not in known and value not in (None, [], {}, "")]


def put(body: Object, path: str, value: Json) -> None:
    """Writes a value at a path of keys. Objects on the way are copied, because a body shares them with the history."""
    key, _, rest = path.partition(".")
    if not rest:
        body[key] = value
        return
    body[key] = inner = dict(as_dict(body.get(key)))
    put(inner, rest, value)


def place_of(location: Mapping[str, Json]) -> dict[str, str]:
    """The parts of a user's location that all wires know."""
    return {key: value for key in LOCATION if isinstance(value := location.get(key), str)}


def write_tool(settings: Settings, name: Name, wire: ServerTools, body: Object, target: Target) -> list[str]:
    """Puts a tool that the provider runs into the body for the model, if it has it. Returns the settings of the tool
    that have no field there, in the client's words."""
    setting = settings.get(name)
    encoded = wire.encode(setting.value, target) if setting is not None else None
    if setting is None or encoded is None:
        return []
    wire.place(body, encoded, target)
    return [f"{setting.field}.{each}" for each in encoded.lost]


def texts(value: Json) -> tuple[str, ...]:
    items: list[Json] = cast("list[Json]", value) if isinstance(value, list) else []
    return tuple(item for item in items if isinstance(item, str))
