"""What is said between a program, a model and its tools, in one spelling for all providers.

Frozen data only: no JSON of any wire, no I/O, no rules about order (those live in `transcript`). Everything that every
wire can carry has a field here; what only one wire knows (signatures, encrypted reasoning, block order) travels in
`Assistant.native` and is given back verbatim by that wire's encoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from unbroken.frozen import quick

Json: TypeAlias = Any
"""A JSON value as the standard parser gives it. The edge of the typed world: only wires look inside."""

CacheMark: TypeAlias = Literal["", "5m", "1h"]
"""Ask the provider to cache the prompt up to and including this part. Only Anthropic's wire has marks of its own."""

Outcome: TypeAlias = Literal["done", "failed", "timed_out", "cancelled", "not_executed", "unknown"]
"""How a call ended. `cancelled` means that the run ended it, not the tool; `unknown` that its process died while the
tool ran, so that nobody knows whether it took effect."""
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
"""How much the model should reason: one setting, spelled by each wire in its own way."""


@dataclass(frozen=True, slots=True)
class Native:
    """A thing as its wire said it, to be given back verbatim by the same wire and by no other.

    `value` is JSON in the wire's request form. In an assistant message, `ids` are our ids of the calls in it, in the
    order in which they stand there: the same as the provider's unless one had to be minted.
    """

    wire: str
    value: Json
    ids: tuple[str, ...] = ()
    source: str = ""
    """Who said it, where several are asked in turn: signatures of one provider are refused by another."""


@dataclass(frozen=True, slots=True)
class Text:
    text: str
    cache: CacheMark = ""


@dataclass(frozen=True, slots=True)
class Media:
    """An image (or another file) given either as base64 `data` with its `mime` type, or as a `url`.

    `native` is the part as a client's wire spelled it, where it says more than these fields; a part that only its own
    wire understands (a file by its id) has nothing else.
    """

    mime: str = ""
    data: str = ""
    url: str = ""
    cache: CacheMark = ""
    name: str = ""
    """The file's name."""
    native: Native | None = None

    def __post_init__(self) -> None:
        if self.data and self.url:
            raise ValueError("Media needs either data (base64, with mime) or url, and not both")
        if not (self.data or self.url or self.native):
            raise ValueError("Media needs either data (base64, with mime) or url")
        if self.data and not self.mime:
            raise ValueError("Media with data needs its mime type, for example mime='image/png'")


Part: TypeAlias = Text | Media


@quick
@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that a model made.

    `arguments` is a dict only when `raw` was received whole and parsed strictly; then `complete` is true and the call
    may run. Otherwise it is None and `problem` says why, in words. A call of kind "custom" has free text for its input
    (in `raw`): it is never `complete` in the sense above, and has no `problem` when it was received whole.
    """

    id: str
    name: str
    arguments: dict[str, Json] | None
    raw: str = ""
    index: int = 0
    complete: bool = True
    kind: str = "function"
    problem: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerCall:
    """A tool that the provider ran itself (web search, code execution, remote MCP). Reported, never executed by us."""

    type: str
    id: str | None = None
    name: str | None = None
    arguments: dict[str, Json] | None = None
    status: str | None = None
    item: Json = None


@quick
@dataclass(frozen=True, slots=True)
class ToolResult:
    """The one answer to one call. `error` is told to the model where its wire has a place for it."""

    call_id: str
    content: tuple[Part, ...]
    error: bool = False
    name: str = ""
    duplicate_of: str = ""
    cache: CacheMark = ""
    native: Native | None = None
    """The result as a client's wire spelled it, where it says more than these fields."""
    data: Any = field(default=None, compare=False, repr=False)
    """What the tool gave for the program beside what the model reads (`ToolOutput`). It is neither sent nor saved."""
    ended_as: Outcome | None = None
    """How the call ended, where `error` alone does not tell: read `outcome`."""

    @classmethod
    def of(cls, call: ToolCall, *content: str | Part, error: bool = False) -> ToolResult:
        """The answer to this call, with its id and name; a string is a text part."""
        return cls(call.id, _parts(content), error=error, name=call.name)

    @property
    def outcome(self) -> Outcome:
        """How the call ended."""
        return self.ended_as or ("failed" if self.error else "done")

    @property
    def text(self) -> str:
        """Its text parts, joined as they are; media are left out."""
        return _text(self.content)


@dataclass(frozen=True, slots=True)
class System:
    parts: tuple[Text, ...]

    @classmethod
    def of(cls, *texts: str | Text) -> System:
        """Each text is a part of its own; a `Text` may carry a cache mark."""
        return cls(tuple(Text(text) if isinstance(text, str) else text for text in texts))

    @property
    def text(self) -> str:
        """All its parts, joined as they are."""
        return _text(self.parts)


@dataclass(frozen=True, slots=True)
class User:
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, *parts: str | Part) -> User:
        """Strings are text parts; `Media` may stand between them."""
        return cls(_parts(parts))

    @property
    def text(self) -> str:
        """Its text parts, joined as they are; media are left out."""
        return _text(self.parts)


@quick
@dataclass(frozen=True, slots=True)
class Assistant:
    """What a model answered. Text, reasoning and calls stand apart because not every wire can order them; the order
    of a wire that can is kept in `native`."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    native: Native | None = None


@dataclass(frozen=True, slots=True)
class ToolMessage:
    """The results of one assistant message, in the order of its calls."""

    results: tuple[ToolResult, ...]


Message: TypeAlias = System | User | Assistant | ToolMessage


@quick
@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as reported, in one spelling; `raw` is the provider's own object."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    raw: Mapping[str, Json] = field(default_factory=dict[str, Json])
    estimated: bool = False

    @property
    def total_tokens(self) -> int:
        """Input and output: what came from a cache is in the input, reasoning is in the output."""
        return self.input_tokens + self.output_tokens

    def to_json(self) -> dict[str, Json]:
        """Without the provider's own object."""
        return {
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cached_tokens": self.cached_tokens,
            "cache_write_tokens": self.cache_write_tokens,
            "reasoning_tokens": self.reasoning_tokens,
            "estimated": self.estimated,
        }

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            estimated=self.estimated or other.estimated,
        )


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model sees it. `parameters` is a JSON Schema of type object."""

    name: str
    description: str = ""
    parameters: Mapping[str, Json] = field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: bool | None = None
    cache: CacheMark = ""
    native: Native | None = None
    """The tool as a client's wire spelled it, where it says more than these fields."""


@dataclass(frozen=True, slots=True)
class OneTool:
    """A choice: exactly this tool must be called."""

    name: str


Choice: TypeAlias = Literal["auto", "none", "required"] | OneTool


@dataclass(frozen=True, slots=True)
class Sampling:
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None


@quick
@dataclass(frozen=True, slots=True)
class Request:
    """One question to a model. `None` means: leave it to the provider's default.

    `parallel` asks for several calls at once (True) or for one at most (False). `final` marks the request in which
    nothing may be called: the tools stay, the choice becomes none. `cache` lets the encoder place cache marks itself.
    `extra` is merged into the body last, as it is; `wire` names the one wire that it is meant for, if it came from a
    client of that wire, so that no other provider is sent what it does not know.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    choice: Choice | None = None
    parallel: bool | None = None
    final: bool = False
    stream: bool = True
    reasoning: Effort | None = None
    cache: bool = False
    sampling: Sampling = Sampling()
    extra: Mapping[str, Json] = field(default_factory=dict[str, Json])
    model: str = ""
    wire: str = ""
    taken: frozenset[str] = frozenset()
    """Ids of calls that are used already, though their messages are not sent: a new call gets none of them."""
    pieces: bool = True
    """Are pieces of a call's arguments wanted as they come? Who only runs calls has no use for half of one."""


def _parts(parts: tuple[str | Part, ...]) -> tuple[Part, ...]:
    return tuple(Text(part) if isinstance(part, str) else part for part in parts)


def _text(parts: tuple[Part, ...] | tuple[Text, ...]) -> str:
    return "".join([part.text for part in parts if isinstance(part, Text)])
