"""Messages, tool calls, results and requests, in one form for all providers.

This module holds frozen data only: no provider's JSON, no I/O, no rules about message order (those are in
`transcript`). Everything that all wires can carry has a field here. What only one wire knows (signatures, encrypted
reasoning, block order) is kept in `Assistant.native`, and that wire's encoder sends it back verbatim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar, get_args

from unbroken_wires.frozen import quick

Json: TypeAlias = Any
"""A JSON value as the standard library parses it. It is untyped on purpose: only wires look inside."""

CacheMark: TypeAlias = Literal["", "5m", "1h"]
"""Asks the provider to cache the prompt up to and including this part. Only Anthropic's wire has such marks."""

Outcome: TypeAlias = Literal[
    "done", "cached", "failed", "retry", "timed_out", "cancelled", "not_executed", "unknown", "running"
]
"""How a call ended. `cancelled` means that the run ended it, not the tool; `unknown` that its process died while the
tool ran, so that nobody knows whether it took effect; `running` that it continues in the background, and that its
result arrives in a later message."""
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
"""How much the model should reason. This is one setting here; each wire translates it into its own."""


@dataclass(frozen=True, slots=True)
class Native:
    """A message, part, tool or result in the original form of its wire. Only that wire sends it back, verbatim.

    `value` is JSON in the wire's request form. In an assistant message, `ids` are our ids of its calls, in the same
    order. They equal the provider's ids, except where the provider gave none and we generated one.
    """

    wire: str
    value: Json
    ids: tuple[str, ...] = ()
    source: str = ""
    """The model that wrote it, if a run uses several models: a provider rejects signatures of another provider."""


@dataclass(frozen=True, slots=True)
class Text:
    text: str
    cache: CacheMark = ""


@dataclass(frozen=True, slots=True)
class Media:
    """An image (or another file) given either as base64 `data` with its `mime` type, or as a `url`.

    `native` is the part in the form of the client's wire, if that contains more than these fields. A part that only its
    own wire understands (a file id, for example) has no other field.
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

    `arguments` is a dict only if `raw` was received completely and parsed strictly; then `complete` is true and the
    call may run. Otherwise it is None, and `problem` explains why; `args` is for calls that may run, and never None. A
    call of kind "custom" has free text as its input (in `raw`): its `complete` is never true, and it has no `problem`
    if all of its text was received.
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
    namespace: str = ""
    """The group of tools that `name` belongs to, on wires that have such groups."""
    agent: str = ""
    """Of a call that an agent in a team makes, where it is shown outside of it: the path of that agent, such as
    `main/researcher`."""

    @property
    def args(self) -> dict[str, Json]:
        """The arguments of a call that may run, such as an approver or a check gets. Raises `ValueError` for another
        one, which has none."""
        if self.arguments is None:
            raise ValueError(f"the call of `{self.name}` has no arguments: {self.problem or 'its input is free text'}")
        return self.arguments


CallT = TypeVar("CallT", bound=ToolCall)


@dataclass(frozen=True, slots=True)
class ServerCall:
    """A tool that the provider ran itself (web search, code execution, remote MCP). Reported, never executed by us."""

    type: str
    id: str | None = None
    name: str | None = None
    arguments: dict[str, Json] | None = None
    status: str | None = None
    item: Json = None
    tool: str = ""
    """What it does, by the same name on every wire: `web_search`, `web_fetch`, `code_execution`, `file_search`,
    `image_generation`, `mcp`, `tool_search`. Empty for what is none of these."""


@quick
@dataclass(frozen=True, slots=True)
class ToolResult:
    """The answer to one call. `error` is sent to the model if its wire has a field for it."""

    call_id: str
    content: tuple[Part, ...]
    error: bool = False
    name: str = ""
    duplicate_of: str = ""
    cache: CacheMark = ""
    native: Native | None = None
    """The result in the form of the client's wire, if that contains more than these fields."""
    data: Any = field(default=None, compare=False, repr=False)
    """What the tool returned for your program, beside the content for the model (see `ToolOutput`). It is neither sent
    to the model nor saved."""
    ended_as: Outcome | None = None
    """How the call ended, if `error` does not already imply it. Read `outcome` instead."""
    exception: BaseException | None = field(default=None, compare=False, repr=False)
    """What the code behind the call raised, for your program: it is neither sent, saved nor in a history. The log has
    its traceback; here it has none, because that would keep the variables of that code alive."""

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
        """The text parts, concatenated; media are left out."""
        return _text(self.content)


@dataclass(frozen=True, slots=True)
class System:
    parts: tuple[Text, ...]

    @classmethod
    def of(cls, *texts: str | Text) -> System:
        """Each text becomes a separate part; pass a `Text` to set a cache mark."""
        return cls(tuple(Text(text) if isinstance(text, str) else text for text in texts))

    @property
    def text(self) -> str:
        """All parts, concatenated."""
        return _text(self.parts)


@dataclass(frozen=True, slots=True)
class User:
    parts: tuple[Part, ...]
    kept: int | None = field(default=None, repr=False)
    """Set if this message is a summary (see `transcript.summaries`): it stands for the history before it, except for
    this many messages right before it."""
    arrived: bool = field(default=False, repr=False)
    """Set if this message brings results of background calls: then nobody has asked for anything with it."""

    @classmethod
    def of(cls, *parts: str | Part) -> User:
        """Strings become text parts; `Media` may be passed between them."""
        return cls(_parts(parts))

    @property
    def text(self) -> str:
        """The text parts, concatenated; media are left out."""
        return _text(self.parts)

    def with_text(self, text: str) -> User:
        """The same media with another text, which comes first."""
        return User((Text(text), *(part for part in self.parts if not isinstance(part, Text))))


@quick
@dataclass(frozen=True, slots=True)
class Assistant:
    """What a model answered. Text, reasoning and calls are separate fields because not every wire can order them; if
    the wire has an order, `native` keeps it."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    native: Native | None = None


@dataclass(frozen=True, slots=True)
class ToolMessage:
    """The results of one assistant message, in the order of its calls."""

    results: tuple[ToolResult, ...]

    @property
    def text(self) -> str:
        """The texts of the results, one below the other."""
        return "\n".join(result.text for result in self.results)


Message: TypeAlias = System | User | Assistant | ToolMessage


@quick
@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts, with the same names for every provider; `raw` is the provider's own object."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    raw: Mapping[str, Json] = field(default_factory=dict[str, Json])
    estimated: bool = False
    cache_write_1h_tokens: int = 0
    """The part of `cache_write_tokens` that is kept for an hour, which costs more."""
    web_searches: int = 0
    """Searches that the provider ran itself and charges for."""
    server_calls: int = 0
    """Other calls of its own tools that it charges for: code that it ran, files that it searched, images."""
    cost: float | None = field(default=None, compare=False)
    """What all of it cost. None if that is not known."""
    cache_saving: float | None = field(default=None, compare=False)
    """How much less it cost because of the provider's cache: less for what was read from it, more for what was written.
    None if nothing was, or if that is not known."""

    @property
    def total_tokens(self) -> int:
        """Input plus output. Input includes tokens read from a cache; output includes reasoning."""
        return self.input_tokens + self.output_tokens

    def to_json(self) -> dict[str, Json]:
        """All fields except `raw` and the costs; the last three counts only if they are not 0."""
        saved: dict[str, Json] = {
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cached_tokens": self.cached_tokens,
            "cache_write_tokens": self.cache_write_tokens,
            "reasoning_tokens": self.reasoning_tokens,
            "estimated": self.estimated,
        }
        if self.cache_write_1h_tokens:
            saved["cache_write_1h_tokens"] = self.cache_write_1h_tokens
        if self.web_searches:
            saved["web_searches"] = self.web_searches
        if self.server_calls:
            saved["server_calls"] = self.server_calls
        return saved

    def __add__(self, other: Usage) -> Usage:
        return self.plus(other, other.cost)

    def plus(self, other: Usage, cost: float | None) -> Usage:
        """The sum of both, if the other one has this cost. It is None if one of them has an unknown cost. No tokens
        and no cost: that is nothing."""
        if self.cost is not None and cost is not None:
            known = self.cost + cost
        elif not self.input_tokens and not self.output_tokens and self.cost is None:
            known = cost
        else:
            known = self.cost if cost is None and not other.input_tokens and not other.output_tokens else None
        saving = self.cache_saving
        if other.cache_saving is not None:
            saving = other.cache_saving if saving is None else saving + other.cache_saving
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            estimated=self.estimated or other.estimated,
            cache_write_1h_tokens=self.cache_write_1h_tokens + other.cache_write_1h_tokens,
            web_searches=self.web_searches + other.web_searches,
            server_calls=self.server_calls + other.server_calls,
            cost=known,
            cache_saving=saving,
        )


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model sees it. `parameters` is a JSON Schema of type object. A tool of kind "custom" takes free
    text: wires without such tools offer it as a function with one argument, `input`, and its calls come back as
    text."""

    name: str
    description: str = ""
    parameters: Mapping[str, Json] = field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: bool | None = None
    cache: CacheMark = ""
    native: Native | None = None
    """The tool in the form of the client's wire, if that contains more than these fields."""
    kind: Literal["function", "custom"] = field(default="function", repr=False)


@dataclass(frozen=True, slots=True)
class ServerTool:
    """A tool that the provider runs, as requested. `unbroken_wires.server_tools` has one class for each capability."""

    firm: ClassVar[tuple[str, ...]] = ()
    """Settings that a request must not lose. The others are wishes: a wire without them leaves them out, with a
    warning."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not be written down."""
        return ()


@dataclass(frozen=True, slots=True)
class OneTool:
    """A tool choice: the model must call exactly this tool."""

    name: str


Choice: TypeAlias = Literal["auto", "none", "required"] | OneTool


@dataclass(frozen=True, slots=True)
class Sampling:
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None


UNSET = Sampling()
"""The provider's defaults."""


@dataclass(frozen=True, slots=True)
class OutputSchema:
    """The JSON that the answer has to consist of; without a schema, any object."""

    schema: Mapping[str, Json] | None = None
    name: str = ""
    description: str = ""
    strict: bool | None = None
    tool: str = ""
    """The tool among `Request.tools` that takes the answer if the model has no structured output. Empty: there is
    none."""


@dataclass(frozen=True, slots=True)
class Managed:
    """What a provider should do by itself with a long history, if it can."""

    compact_at: int | None = None
    """Tokens from which it summarises the history."""
    instructions: str = ""
    """How it should, in place of the provider's own instructions."""
    clear_at: int | None = None
    """The number of results from which it clears old ones."""
    keep_results: int = 0
    never_clear: tuple[str, ...] = ()
    """The names of tools whose results it keeps."""


@quick
@dataclass(frozen=True, slots=True)
class Request:
    """One request to a model. `None` means: use the provider's default.

    `parallel` asks for several calls at once (True) or for at most one (False). `final` marks a request in which the
    model may not call tools: the tools are still sent, with tool choice none. `cache` lets the encoder place cache
    marks itself. `extra` is merged into the body last, unchanged. `wire` is set if `extra` came from a client of that
    wire: other wires then ignore it, so that no provider receives fields it does not know.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    choice: Choice | None = None
    parallel: bool | None = None
    final: bool = False
    stream: bool = True
    reasoning: Effort | None = None
    cache: bool = False
    sampling: Sampling = UNSET
    extra: Mapping[str, Json] = field(default_factory=dict[str, Json])
    model: str = ""
    wire: str = ""
    taken: frozenset[str] = frozenset()
    """Call ids that are in use although their messages are not sent. A new call gets none of them."""
    output: OutputSchema | None = None
    """What the answer has to look like. With `output.tool`, a model of a provider that has structured output does not
    see that tool and writes the answer as text; for any other model the schema is left out. Without it, the schema is
    sent as it is."""
    managed: Managed | None = None
    """What the provider should do with a long history; those that cannot do not see it."""
    server_tools: tuple[ServerTool, ...] = ()
    """Tools that the provider runs itself."""
    insists: bool = False
    """It asks once more after empty answers: another empty one is passed on, not retried."""
    appended: tuple[Message, ...] | None = field(default=None, repr=False, compare=False)
    """The `messages` themselves, if all thinking in them was seen being written behind what is before it now. A layer
    that replaces the messages does not know that any more. Without it, a provider that checks what is before its
    thinking is asked to drop what does not fit."""
    pieces: bool = True
    """Whether the decoder yields the arguments of a call piece by piece. Code that only runs calls does not need
    that."""


_CONTAINERS: tuple[type[Any], ...] = (dict, list)
_FLAT = frozenset({str, int, float, bool, type(None)})


def own(value: Json) -> Json:
    """A copy of a JSON value that shares no object and no list with it, for code that may change what it gets."""
    if value.__class__ in _FLAT:
        return value
    # Most are flat, and then this takes a third of the time.
    if value.__class__ is dict and _FLAT.issuperset(map(type, value.values())):
        return value.copy()
    whole: Any = [value]
    copies: dict[int, Any] = {}
    to_do = [whole]
    for copy in to_do:  # not recursive: arguments may be nested deeper than the stack
        for key, inner in copy.items() if hasattr(copy, "items") else enumerate(copy):
            if isinstance(inner, _CONTAINERS):
                if id(inner) not in copies:
                    copies[id(inner)] = inner.copy()
                    to_do.append(copies[id(inner)])
                copy[key] = copies[id(inner)]
    return whole[0]


def own_call(call: CallT) -> CallT:
    """The same call with arguments of its own."""
    return replace(call, arguments=own(call.arguments))


def own_messages(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The same messages, and the calls in them with arguments of their own."""
    return tuple(
        replace(message, calls=tuple(map(own_call, message.calls)))
        if isinstance(message, Assistant) and message.calls
        else message
        for message in messages
    )


def _parts(parts: tuple[str | Part, ...]) -> tuple[Part, ...]:
    return tuple(Text(part) if isinstance(part, str) else part for part in parts)


def _text(parts: tuple[Part, ...] | tuple[Text, ...]) -> str:
    return "".join([part.text for part in parts if isinstance(part, Text)])
