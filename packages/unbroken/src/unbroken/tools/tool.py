"""`@tool`: makes a Python function callable by a model. Its declarations (effect, time-out, key) are data; `caller`
runs it, `execution` decides when."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Concatenate, Generic, Literal, Protocol, TypeAlias, cast, overload

from typing_extensions import TypeVar

from unbroken.errors import InvalidTool
from unbroken.tools.context import CallContext
from unbroken.tools.schema import Signature, read_signature
from unbroken_wires.messages import Json, ToolCall, ToolSpec, own
from unbroken_wires.validation import check_options, checked

Effect: TypeAlias = Literal["read", "write", "exclusive"]
Arguments: TypeAlias = dict[str, Any]
Verify: TypeAlias = Callable[[Arguments, str], Any]
AfterCrash: TypeAlias = Literal["report", "rerun", "wait"] | Verify
"""What happens to a call that had started when its process died, and whose result is not recorded."""
TIMEOUT = 30.0

NeedsT = TypeVar("NeedsT", contravariant=True, default=Any)
"""The `deps` that a tool needs: those of its `CallContext`."""
Needing: TypeAlias = (
    Callable[Concatenate[CallContext[NeedsT], ...], Any] | Callable[Concatenate[Any, CallContext[NeedsT], ...], Any]
)
"""A function that takes the context as its first or second parameter (of a method, `self` is the first)."""


@checked(error=InvalidTool)
@dataclass(frozen=True, slots=True)
class Tool(Generic[NeedsT]):
    """Called directly, it is the function it was made of.

    - `effect`: a `read` changes nothing, so it may start early, be shared by identical calls and be tried again. A
      `write` (the default) runs once for each call. An `exclusive` one runs alone.
    - `timeout`: seconds, None for none.
    - `key`: of the bound arguments; calls with equal keys run one after another, in call order, and calls with
      different keys may run side by side.
    - `overlap`: calls of tools that say True may run side by side, whatever they change. None means: nothing was
      declared, so a write runs in call order.
    - `dedupe`: share one execution among identical calls of one message; None means: reads do.
    - `cache`: seconds for which a good result answers the same call again.
    - `retries`: how often a read that raises is tried again.
    - `repeat`: the same call again and again is meant (polling): the check for loops leaves it alone.
    - `approve`: ask before it runs; a function of the bound arguments decides for each call.
    - `after_crash`: what a resumed run does with a call that had started when its process died. `"report"`: its result
      says that the outcome is unknown. `"rerun"`: it runs again, because the tool honours `context.key`. A function
      `verify(arguments, key)` returns the result if the call took effect, and None if it did not: then it runs.
      `"wait"`: the run waits for a person. None means `"rerun"` for reads, and `"report"` for all others.
    - `queue`: where its calls run in a durable run: workers of this queue, on other machines. This needs a middleware
      that sends them there (`unbroken_durable.temporal.TemporalTools`, `unbroken_durable.dbos.DBOSTools`); without one
      they run here.
    - `background`: seconds after which a call that still runs is answered with a handle, while it continues in the
      background; 0 means at once. Its result arrives in a later message. It also declares that later calls may run
      beside it: only equal keys and exclusive calls wait. None means what the agent's `Policy` says.
    - `function` is None for a tool that runs at the client: its call ends the run as `waiting`.
    """

    spec: ToolSpec
    function: Callable[..., Any] | None
    signature: Signature
    effect: Effect = "write"
    timeout: float | None = TIMEOUT
    key: Callable[[Arguments], Any] | None = None
    overlap: bool | None = None
    dedupe: bool | None = None
    cache: float | None = None
    retries: int = 0
    repeat: bool = False
    approve: bool | Callable[[Arguments], bool] = False
    after_crash: AfterCrash | None = None
    queue: str | None = None
    role: Literal["", "agent", "handoff", "task"] = ""
    background: float | None = None

    __hash__: ClassVar[None]  # type: ignore[assignment] - its schema is a dict

    def __post_init__(self) -> None:
        if self.timeout is not None and self.timeout <= 0:
            raise InvalidTool(f"tool `{self.name}`: timeout must be more than 0 seconds, or None for none")
        if self.overlap and self.effect == "exclusive":
            raise InvalidTool(
                f"tool `{self.name}`: an exclusive tool runs alone; leave out overlap=True, or the effect"
            )
        for name, hook in (("key", self.key), ("approve", self.approve)):
            if inspect.iscoroutinefunction(hook):
                raise InvalidTool(f"tool `{self.name}`: {name} must not be async: it is called before a call may start")
        if self.retries < 0:
            raise InvalidTool(f"tool `{self.name}`: retries must be 0 or more")
        if self.cache is not None and self.cache < 0:
            raise InvalidTool(f"tool `{self.name}`: cache must be 0 seconds or more, or None for none")
        if self.retries and self.effect != "read":
            raise InvalidTool(f"tool `{self.name}`: only a read may be retried; use effect='read' or retries=0")
        if self.cache is not None and self.effect != "read":
            raise InvalidTool(f"tool `{self.name}`: only a read may be cached; use effect='read' or cache=None")
        if self.queue == "":
            raise InvalidTool(f"tool `{self.name}`: queue is empty; give the name of a queue, or None for none")
        if self.background is not None and self.background < 0:
            raise InvalidTool(f"tool `{self.name}`: background must be 0 seconds or more, or None for none")
        if self.background is not None and (self.effect == "exclusive" or self.after_crash == "wait"):
            what = "an exclusive call" if self.effect == "exclusive" else "a call with after_crash='wait'"
            raise InvalidTool(f"tool `{self.name}`: {what} cannot run in the background; leave out background")
        if self.after_crash is not None:
            check_after_crash(f"tool `{self.name}`", self.after_crash)

    @property
    def name(self) -> str:
        """What the model calls it."""
        return self.spec.name

    @property
    def shared(self) -> bool:
        """Do identical calls of one message share one execution?"""
        return self.effect == "read" if self.dedupe is None else self.dedupe

    @property
    def crash_policy(self) -> AfterCrash:
        """`after_crash`, or its default."""
        if self.after_crash is not None:
            return self.after_crash
        return "rerun" if self.effect == "read" else "report"

    def bind(self, call: ToolCall) -> Arguments:
        """The bound arguments of a call. They share nothing with the call, so whoever gets them may change them."""
        return self.signature.bind(own(call.arguments or {}))

    def needs_approval(self, arguments: Arguments) -> bool:
        """Is the approver asked before a call with these bound arguments runs?"""
        return self.approve(arguments) if callable(self.approve) else self.approve

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.function is None:
            raise InvalidTool(f"tool `{self.name}` runs at the client; it has no function to call")
        return self.function(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Tool:
        """A method of an object is a tool that is bound to it."""
        if instance is None or self.function is None or not self.signature.takes_self:
            return self
        return replace(self, function=partial(self.function, instance))


def check_after_crash(where: str, policy: object) -> None:
    """Raises `InvalidTool` for a function that does not take arguments and a key."""
    if not callable(policy):
        return
    try:
        inspect.signature(policy).bind({}, "")
    except TypeError as error:
        raise InvalidTool(
            f"{where}: after_crash is 'report', 'rerun', 'wait' or a function verify(arguments, key), and this one "
            f"cannot be called so ({error})"
        ) from None
    except ValueError:
        pass  # it has no signature


_NO_PROMISES = ("spec", "function", "signature", "role")
_OWN_OPTIONS = ("name", "description", "strict")


class MakeTool(Protocol):
    """`@tool(…)` with options."""

    @overload
    def __call__(self, function: Needing[NeedsT], /) -> Tool[NeedsT]: ...
    @overload
    def __call__(self, function: Callable[..., Any], /) -> Tool: ...  # pyright: ignore[reportOverlappingOverload] - used


@overload
def tool(function: Needing[NeedsT], /) -> Tool[NeedsT]: ...


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...  # pyright: ignore[reportOverlappingOverload] - it is used


@overload
def tool(
    *,
    name: str = "",
    description: str = "",
    effect: Effect = "write",
    timeout: float | None = TIMEOUT,
    key: Callable[[Arguments], Any] | None = None,
    overlap: bool | None = None,
    dedupe: bool | None = None,
    cache: float | None = None,
    retries: int = 0,
    repeat: bool = False,
    approve: bool | Callable[[Arguments], bool] = False,
    after_crash: AfterCrash | None = None,
    queue: str | None = None,
    background: float | None = None,
    strict: bool | None = None,
) -> MakeTool: ...


@checked(name="@tool", error=InvalidTool)
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str = "",
    description: str = "",
    strict: bool | None = None,
    **promises: Any,
) -> Tool | MakeTool:
    """Make a tool of a function: its parameters become a JSON Schema, its docstring the description.

    See `Tool` for the options (`effect`, `timeout`, `key`, `overlap`, `dedupe`, `cache`, `retries`, `repeat`,
    `approve`, `after_crash`, `queue`, `background`).
    """

    check_options("@tool", Tool, promises, hidden=_NO_PROMISES, also=_OWN_OPTIONS, error=InvalidTool)

    def make(function: Callable[..., Any]) -> Tool:
        signature = read_signature(function, name=name, strict=bool(strict))
        spec = ToolSpec(signature.name, description or signature.description, signature.parameters, strict)
        if "effect" in promises:  # then its order is declared, and no hint is needed
            promises.setdefault("overlap", False)
        return Tool(spec, function, signature, **promises)

    return make if function is None else make(function)


@checked(error=InvalidTool)
def client_tool(name: str, description: str, parameters: Mapping[str, Json], *, strict: bool | None = None) -> Tool:
    """A tool that runs elsewhere (for example in the user's browser): its call ends the run with stop reason `waiting`,
    and `agent.resume` continues with its result."""
    return Tool(
        ToolSpec(name, description, parameters, strict), None, Signature.of_schema(name, description, parameters)
    )


def plain_key(key: Any) -> Any:
    """A key that is always hashable; equal keys stay equal."""
    if key is None or isinstance(key, str | int | bytes):
        return key
    if isinstance(key, list | tuple):
        return tuple(map(plain_key, cast("Iterable[Any]", key)))
    if isinstance(key, dict):
        return frozenset((plain_key(name), plain_key(value)) for name, value in cast("dict[Any, Any]", key).items())
    if isinstance(key, set | frozenset):
        return frozenset(map(plain_key, cast("Iterable[Any]", key)))
    try:
        hash(key)
        same = bool(key == key)
    except (Exception, SystemExit):  # noqa: BLE001 - a foreign type
        same = False
    return key if same else f"{type(key).__name__} {key!r}"
