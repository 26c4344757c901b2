"""Values of an unsure type, read without raising, and the rules for the ids of calls.

Each function returns the value if it has the type in its name, otherwise the empty value of that type. They never
raise.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, TypeAlias, cast

from unbroken_wires.messages import Json, ToolCall

Object: TypeAlias = dict[str, Any]

MISSHAPEN = (AttributeError, KeyError, IndexError, TypeError, ValueError, RecursionError)
"""What reading a value of an unexpected type may raise."""


def as_dict(value: Json) -> Object:
    # Without `cast`, which is a call, and this one is made for nearly every part of a message.
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def as_list(value: Json) -> list[Json]:
    return cast("list[Json]", value) if isinstance(value, list) else []


def dicts(value: Json) -> list[Object]:
    """The objects in a list; everything else in it is left out."""
    return [cast("Object", item) for item in as_list(value) if isinstance(item, dict)]


def as_text(value: Json) -> str:
    return value if isinstance(value, str) else ""


def as_number(value: Json) -> Any:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def as_flag(value: Json) -> bool | None:
    return value if isinstance(value, bool) else None


def as_int(value: Json) -> int:
    """A count: 0 if the value is not a valid count."""
    if value is None:  # mostly: a count that the provider does not have
        return 0
    return int(value) if isinstance(value, (int, float)) and -_NO_COUNT < value < _NO_COUNT else 0


_NO_COUNT = 2**63


# Rules for call ids (`Wire.id_rule`), and `fit`, which makes an id follow them.
#
# A provider's id is kept as it is wherever its own wire reads it. Only when a history goes to another wire may an id
# be too long there, or have characters that are not allowed; then call and result get the same short form, always the
# same for the same id.


@dataclass(frozen=True, slots=True)
class IdRule:
    longest: int
    allowed: str = r"[^\x00-\x1f]"
    """A regular expression for one character."""
    shortest: int = 1
    first: str = ""
    """The same for the first character, if that may not be any of them."""

    def __hash__(self) -> int:
        """There are a dozen of them, and each tool, call and result of each request looks one up."""
        return self.longest


@cache
def _all_of(allowed: str) -> re.Pattern[str]:
    return re.compile(f"{allowed}*")


TOOL_NAME = IdRule(64, "[a-zA-Z0-9_-]")
"""What most providers accept as the name of a tool."""
NAMESPACE = "\u2237"
"""Between a namespace and the name of a tool in it, in our names: a sign (∷) that no provider accepts in a name. Only
the Responses API has namespaces; on other wires the two are joined by `__`."""
UNNAMED = "unnamed"
"""What a call without a name is called in the history that a provider is sent."""
MISTRAL = IdRule(9, "[A-Za-z0-9]", shortest=9)
OPENAI_IDS = IdRule(40)
"""On chat completions. A server that makes longer ones takes its own back; OpenAI does not take theirs."""
MINTED = "minted id"
"""The note of a call that came without one."""


_LONGEST_KEPT = 256
"""A longer id is fitted each time: thousands of them would fill the memory."""


def fit(id: str, rule: IdRule) -> str:
    """The id itself where the rule allows it, else a short form with a digest, so that different ids stay different."""
    return _fit_again(id, rule) if len(id) <= _LONGEST_KEPT else _fit(id, rule)


def _fit(id: str, rule: IdRule) -> str:
    if rule.shortest <= len(id) <= rule.longest and _all_of(rule.first + rule.allowed).fullmatch(id):
        return id
    digest = hashlib.blake2b(id.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    if rule.longest < 24:
        return digest[: rule.longest]
    readable = "".join(re.findall(rule.allowed, id))[: rule.longest - len(digest) - 1 - bool(rule.first)]
    if rule.first and not re.match(rule.first, readable):
        readable = f"_{readable}"
    return f"{readable}_{digest}"


_fit_again = lru_cache(4096)(_fit)


@lru_cache(4096)
def fit_name(name: str, rule: IdRule) -> str:
    """The same for the name of a tool. A model may write a call without one, and every provider refuses that."""
    return fit(name.replace(NAMESPACE, "__") or UNNAMED, rule)


def full_name(call: ToolCall) -> str:
    """The name of the tool that is called, with its namespace. A tool that was loaded by a search is in a namespace of
    its own name, which is not part of its name."""
    return f"{call.namespace}{NAMESPACE}{call.name}" if call.namespace not in ("", call.name) else call.name


def called_name(call: ToolCall, rule: IdRule | None) -> str:
    """The same as a wire without namespaces is sent it. Without a rule, in a response: a client gets the name that it
    declared, even if a provider of its wire would refuse it."""
    return full_name(call).replace(NAMESPACE, "__") if rule is None else fit_name(full_name(call), rule)


def shortened(names: Iterable[str], rule: IdRule) -> dict[str, str]:
    """The names that the rule does not allow, by the names that are sent in their place. A name that another tool
    has stays that tool's: the Responses API knows a tool `a__b` beside the tool `b` of the namespace `a`."""
    names = tuple(names)
    short = {sent: name for name in names if (sent := fit_name(name, rule)) != name}
    return {sent: name for sent, name in short.items() if sent not in names} if short else short


def is_name(name: str, rule: IdRule) -> bool:
    """Does a provider with this rule accept a tool of this name? A tool of a namespace is sent apart from it."""
    return NAMESPACE in name or fit_name(name, rule) == name


def doubled_name(names: Iterable[str], rule: IdRule) -> str:
    """A name that two tools would be sent with, because one of them has to be shortened to it; empty if there is none.
    Tools of a namespace are not looked at: not every wire joins the two."""
    sent: dict[str, str] = {}
    for name in names:
        if NAMESPACE not in name and sent.setdefault(short := fit_name(name, rule), name) != name:
            return short
    return ""
