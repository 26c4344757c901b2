"""What providers refuse although the shape of a request is right, as data: the language in which rules are written.

A rule names the models that refuse something, how to check a request for it, the provider's own words, and where that
is known from. Models obey the rules of their provider before they send a request (`obey`), and the servers of
`unbroken_testing` refuse by the same rules (`refusals`). The rules themselves are in the packages of the wires.

The paths in them are those of `body_paths`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Literal, Protocol, TypeAlias, cast

from unbroken_wires.errors import InvalidRequest
from unbroken_wires.frozen import quick
from unbroken_wires.messages import Json
from unbroken_wires.wires.body_paths import (
    GONE,
    changed,
    find,
    first_key,
    place_in,
    places,
    shown,
    values_at,
    values_in,
    without,
)
from unbroken_wires.wires.json_access import MISSHAPEN, Object

# Models by name


@lru_cache(256)
def model_name(model: str) -> str:
    """The name in lower case, without what platforms put around it: `us.anthropic.claude-…`, `models/gemini-…`."""
    return re.sub(r"^(?:[a-z-]+\.)?(?:anthropic|meta|mistral|cohere|amazon)\.", "", model.lower().rpartition("/")[2])


class Models(Protocol):
    """Which models a rule is about."""

    def __contains__(self, model: str) -> bool: ...

    def __str__(self) -> str:
        """For documentation."""
        ...


MOST_KNOWN = 1000


class Named:
    """Models by globs over their names; `!glob` excludes."""

    def __init__(self, *globs: str) -> None:
        self.globs = globs
        self._wanted = [glob for glob in globs if glob[0] != "!"]
        self._excluded = [glob[1:] for glob in globs if glob[0] == "!"]
        self._known: dict[str, bool] = {}
        """By model: it is looked up several times for each request."""

    def __contains__(self, model: str) -> bool:
        known = self._known.get(model)
        if known is None:
            name = model_name(model)
            wanted = any(fnmatchcase(name, glob) for glob in self._wanted)
            known = wanted and not any(fnmatchcase(name, glob) for glob in self._excluded)
            if len(self._known) >= MOST_KNOWN:  # clients may make names up
                self._known.clear()
            self._known[model] = known
        return known

    def __str__(self) -> str:
        without = f", without {', '.join(self._excluded)}" if self._excluded else ""
        return f"{', '.join(self._wanted)}{without}"


ANY_MODEL = Named("*")


# Checks


@quick
@dataclass(frozen=True, slots=True)
class Asked:
    """A request as a server receives it."""

    body: Object
    model: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    stream: bool = False


Mended: TypeAlias = tuple[Object, list[str]]
"""A body, and what was left out of it or changed."""


class Check(Protocol):
    @property
    def field(self) -> str:
        """A field at the top of the body without which the rule cannot be broken; empty: there is none."""
        ...

    def broken(self, asked: Asked) -> list[str]:
        """Where the request breaks the rule. Empty: it does not."""
        ...

    def mend(self, body: Object) -> Mended | None:
        """The body without what the rule refuses; None if that would change what the request means."""
        ...


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing may be at the path, except these values. `repair` does something else than leaving it out."""

    path: str
    but: tuple[Json, ...] = ()
    repair: Callable[[Object], Mended | None] | None = None

    @property
    def field(self) -> str:
        return first_key(self.path)

    def broken(self, asked: Asked) -> list[str]:
        return places(asked.body, self.path, lambda value: value not in self.but)

    def mend(self, body: Object) -> Mended | None:
        if self.repair is not None:
            return self.repair(body)
        return changed(body, self.path, lambda value: value if value in self.but else GONE), [shown(self.path)]


@dataclass(frozen=True, slots=True)
class Never:
    """The path has none of these values. `instead` has what to send in their place; otherwise they are left out."""

    path: str
    values: tuple[Json, ...]
    instead: Mapping[str, Json] = field(default_factory=dict[str, Json])

    @property
    def field(self) -> str:
        return first_key(self.path)

    def broken(self, asked: Asked) -> list[str]:
        return places(asked.body, self.path, lambda value: value in self.values)

    def mend(self, body: Object) -> Mended | None:
        def change(value: Json) -> Any:
            return self.instead.get(str(value), GONE) if value in self.values else value

        return changed(body, self.path, change), [shown(self.path)]


@dataclass(frozen=True, slots=True)
class Only:
    """The path has only these values. `instead` has what to send in place of others; otherwise they are left out."""

    path: str
    values: tuple[Json, ...]
    instead: Mapping[str, Json] = field(default_factory=dict[str, Json])

    @property
    def field(self) -> str:
        return first_key(self.path)

    def broken(self, asked: Asked) -> list[str]:
        return places(asked.body, self.path, lambda value: value not in self.values)

    def mend(self, body: Object) -> Mended | None:
        def change(value: Json) -> Any:
            return value if value in self.values else self.instead.get(str(value), GONE)

        return changed(body, self.path, change), [shown(self.path)]


@dataclass(frozen=True, slots=True)
class NotTogether:
    """Not both; the second one is left out."""

    first: str
    second: str

    @property
    def field(self) -> str:
        return first_key(self.second)

    def broken(self, asked: Asked) -> list[str]:
        seconds = find(asked.body, self.second)
        return [where for where, _ in seconds] if seconds and values_at(asked.body, self.first) else []

    def mend(self, body: Object) -> Mended | None:
        return without(body, self.second), [shown(self.second)]


@dataclass(frozen=True, slots=True)
class Needs:
    """What is at the path needs something at the other path; otherwise it is left out."""

    path: str
    other: str

    @property
    def field(self) -> str:
        return first_key(self.path)

    def broken(self, asked: Asked) -> list[str]:
        here = find(asked.body, self.path)
        return [where for where, _ in here] if here and not values_at(asked.body, self.other) else []

    def mend(self, body: Object) -> Mended | None:
        return without(body, self.path), [shown(self.path)]


@dataclass(frozen=True, slots=True)
class Between:
    """A number in this range; others become the nearest that is allowed. `but` are numbers that are allowed as well."""

    path: str
    low: float | None = None
    high: float | None = None
    but: tuple[float, ...] = ()

    @property
    def field(self) -> str:
        return first_key(self.path)

    def broken(self, asked: Asked) -> list[str]:
        return places(asked.body, self.path, lambda value: self._nearest(value) != value)

    def mend(self, body: Object) -> Mended | None:
        return changed(body, self.path, self._nearest), [shown(self.path)]

    def _nearest(self, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float) or value in self.but:
            return value
        if self.low is not None and value < self.low:
            return self.low
        return self.high if self.high is not None and value > self.high else value


@dataclass(frozen=True, slots=True)
class Matches:
    """Texts that match the pattern from end to end. Encoders write names and ids so; there is nothing to leave out."""

    path: str
    pattern: str

    @property
    def field(self) -> str:
        return first_key(self.path)

    def broken(self, asked: Asked) -> list[str]:
        return places(
            asked.body, self.path, lambda value: not (isinstance(value, str) and re.fullmatch(self.pattern, value))
        )

    def mend(self, body: Object) -> Mended | None:
        return None


@dataclass(frozen=True, slots=True)
class Sized:
    """Texts and lists of this length."""

    path: str
    low: int = 0
    high: int | None = None

    @property
    def field(self) -> str:
        return first_key(self.path)

    def broken(self, asked: Asked) -> list[str]:
        return places(asked.body, self.path, lambda value: not self._fits(value))

    def _fits(self, value: Any) -> bool:
        return not hasattr(value, "__len__") or (
            self.low <= len(value) <= (len(value) if self.high is None else self.high)
        )

    def mend(self, body: Object) -> Mended | None:
        return None


@dataclass(frozen=True, slots=True)
class AtMost:
    """At most so many values at the path."""

    path: str
    most: int

    @property
    def field(self) -> str:
        return first_key(self.path)

    def broken(self, asked: Asked) -> list[str]:
        if len(values_at(asked.body, self.path)) <= self.most:
            return []
        return [where for where, _ in find(asked.body, self.path)[self.most :]]

    def mend(self, body: Object) -> Mended | None:
        return None


@dataclass(frozen=True, slots=True)
class Unique:
    """No value twice."""

    path: str

    @property
    def field(self) -> str:
        return first_key(self.path)

    def broken(self, asked: Asked) -> list[str]:
        values = values_at(asked.body, self.path)
        try:
            if len(set(values)) == len(values):
                return []
        except TypeError:
            pass  # objects, which can still be compared
        found = find(asked.body, self.path)
        return [where for n, (where, value) in enumerate(found) if value in values[:n]]

    def mend(self, body: Object) -> Mended | None:
        return None


@dataclass(frozen=True, slots=True)
class Function:
    """Anything else, in Python."""

    check: Callable[[Asked], Iterable[str]]
    repair: Callable[[Object], Mended | None] | None = None
    field: str = ""
    alone: bool = False
    """It looks at nothing but its field."""

    def broken(self, asked: Asked) -> list[str]:
        return list(self.check(asked))

    def mend(self, body: Object) -> Mended | None:
        return self.repair(body) if self.repair is not None else None


def at_most_in(path: str, most: int) -> Function:
    """A list of at most so many items; the others are left out."""

    def check(asked: Asked) -> list[str]:
        lists = [
            (where, cast("list[Json]", value)) for where, value in find(asked.body, path) if isinstance(value, list)
        ]
        return [where for where, items in lists if len(items) > most]

    return Function(
        check, lambda body: (changed(body, path, lambda value: value[:most]), [shown(path)]), first_key(path)
    )


ASSISTANT_FIRST = "(The assistant speaks first.)"
"""Said in the user's place before a history that begins with a message of the assistant."""


def user_first(field: str, assistant: str, opening: Object) -> Function:
    """The first message is the user's. `assistant`: the other role; `opening`: what is put before its message."""

    def check(asked: Asked) -> list[str]:
        messages = asked.body.get(field)
        first: Json = cast("list[Json]", messages)[0] if isinstance(messages, list) and messages else None
        begins = isinstance(first, dict) and cast("Object", first).get("role") == assistant
        return [f"{field}[0]"] if begins else []

    return Function(
        check, lambda body: ({**body, field: [opening, *cast("list[Json]", body[field])]}, [f"{field}[0]"]), field
    )


@dataclass(frozen=True, slots=True)
class StrictSchemas:
    """Schemas in which every object is closed (`additionalProperties: false`) and, unless `optional`, every property is
    required. `repair` makes the request lenient instead."""

    path: str
    optional: bool = False
    repair: Callable[[Object], Mended | None] | None = None

    @property
    def field(self) -> str:
        return first_key(self.path)

    def broken(self, asked: Asked) -> list[str]:
        return [where for root, schema in find(asked.body, self.path) for where in self._open(schema, root)]

    def _open(self, schema: Any, where: str) -> Iterator[str]:
        if isinstance(schema, dict):
            fields = cast("Object", schema)
            properties = cast("Object", fields.get("properties") or {})
            if fields.get("type") == "object":
                missing = not self.optional and properties.keys() - set(cast("list[str]", fields.get("required") or []))
                if fields.get("additionalProperties") is not False or missing:
                    yield where
        for key, each in values_in(schema):
            yield from self._open(each, place_in(where, key))

    def mend(self, body: Object) -> Mended | None:
        return self.repair(body) if self.repair is not None else None


@dataclass(frozen=True, slots=True)
class When:
    """The check, if something is at the path (or nothing, if `absent`)."""

    path: str
    check: Check
    absent: bool = False

    @property
    def field(self) -> str:
        return self.check.field if self.absent else first_key(self.path)

    def broken(self, asked: Asked) -> list[str]:
        return self.check.broken(asked) if bool(values_at(asked.body, self.path)) != self.absent else []

    def mend(self, body: Object) -> Mended | None:
        return self.check.mend(body)


# Rules

Source: TypeAlias = str
"""Where a rule is known from: a page, an issue, a package."""


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    says: str
    """What is refused, for people."""
    check: Check
    models: Models = ANY_MODEL
    providers: tuple[str, ...] = ()
    """Empty: the providers that the wire belongs to."""
    error: str = ""
    """The provider's own words, if they are known. `{where}` is the place."""
    status: int = 400
    source: Source = ""
    obeyed: Literal["here", "by the encoder"] = "here"
    """Whether `obey` changes the body, or the encoder never writes such a body."""


@dataclass(frozen=True, slots=True)
class Refusal:
    rule: str
    status: int
    message: str


_PASSES = 3
"""What one rule leaves out may be what another field needs: after a change, all rules are checked again."""

RulesByField: TypeAlias = Mapping[str, Sequence[Rule]]


def rules_for(rules: Iterable[Rule], provider: str, model: str) -> tuple[Rule, ...]:
    """The rules of a provider for a model."""
    return tuple([rule for rule in rules if provider in rule.providers and model in rule.models])


def to_obey(rules: Iterable[Rule]) -> RulesByField:
    """Those that `obey` can do something about, by the field that they are about."""
    by_field: dict[str, list[Rule]] = {}
    for rule in rules:
        if rule.obeyed == "here":
            by_field.setdefault(rule.check.field, []).append(rule)
    return by_field


_ALONE = (Refused, Never, Only, Between, Matches, Sized, AtMost, Unique, StrictSchemas)


def beside(rules: RulesByField, field: str) -> RulesByField:
    """Those that are left if what this field has is known to be accepted: the ones that look at other fields too."""

    def is_alone(check: Check) -> bool:
        return check.alone if isinstance(check, Function) else isinstance(check, _ALONE)

    left = [rule for rule in rules.get(field, ()) if not is_alone(rule.check)]
    others = {key: ones for key, ones in rules.items() if key != field}
    return {**others, field: left} if left else others


def refusals(rules: Iterable[Rule], asked: Asked) -> list[Refusal]:
    """What a provider with these rules would answer instead of a response, in the order of the rules."""
    found: list[Refusal] = []
    for rule in rules:
        if places := rule.check.broken(asked):
            words = rule.error.replace("{where}", places[0]) if rule.error else f"{places[0]}: {rule.says}"
            found.append(Refusal(rule.name, rule.status, words))
    return found


def obey(
    rules: RulesByField, body: Object, model: str, headers: Mapping[str, str], stream: bool, said: Collection[str] = ()
) -> Mended:
    """The body as these rules accept it, and the fields that were left out or changed for that. `InvalidRequest` where
    that would change what the request means. `said`: fields that stay unchanged."""
    dropped: list[str] = []
    if "" not in rules and rules.keys().isdisjoint(body):
        return body, dropped  # nothing in it that a rule is about
    stays = {key: body[key] for key in said if key in body}
    for _ in range(_PASSES):
        before = body
        asked = Asked(body, model, headers, stream)
        for key in ("", *body):
            for rule in () if key in said else rules.get(key, ()):
                if _is_broken(rule, asked):
                    mended = rule.check.mend(body)
                    if mended is None:
                        raise InvalidRequest(f"the model `{model}` would refuse this request: {rule.says}")
                    body = mended[0]
                    asked = Asked(body, model, headers, stream)
                    dropped += [name for name in mended[1] if name not in dropped]
        if body is before:
            break
    return ({**body, **stays}, [name for name in dropped if name not in stays]) if stays else (body, dropped)


def _is_broken(rule: Rule, asked: Asked) -> bool:
    try:
        return bool(rule.check.broken(asked))
    except MISSHAPEN:  # a client's body that the provider will refuse for another reason
        return False
