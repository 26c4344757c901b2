"""Middleware: code around the loop that sees each request to the model, each tool call and each event of a run.

Recording, replay, OpenTelemetry and Prometheus are middleware, and so is what you write: redaction, a veto, a cache, a
budget. The loop knows none of them. `Agent(…, middleware=[first, second])`: the first is the outermost.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from inspect import isfunction, signature
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeAlias

from unbroken.clock import Clock
from unbroken.errors import UnbrokenError, UserError, Vetoed, middleware_failed
from unbroken.events import Event, Sink
from unbroken.models.model import Model, closing
from unbroken.tools.approval import Approval, OnApproval
from unbroken.tools.caller import Caller, Prepared, in_words, log_bug
from unbroken.tools.context import CallContext, RunContext
from unbroken.tools.handles import BackgroundCall
from unbroken.tools.passing_on import PassingOn
from unbroken.tools.results import ToolFailed
from unbroken.tools.tool import Tool
from unbroken.tools.toolbox import Toolbox
from unbroken_wires.deltas import CallReady, Delta, Ended, PartialResponse, Verdict
from unbroken_wires.messages import (
    Assistant,
    Json,
    Message,
    Request,
    ToolCall,
    ToolResult,
    ToolSpec,
    User,
    own_call,
    own_messages,
)

Ask: TypeAlias = Callable[[Request], AsyncIterator[Sequence[Delta]]]
"""Asks the model: what `Model.stream` does."""
AskAside: TypeAlias = Callable[[Sequence[Message], Model | None], Awaitable["AsideAnswer"]]
"""Asks a model something beside the rounds of a run."""
CheckInput: TypeAlias = Callable[[User], Awaitable[User]]
"""Returns the prompt as it is asked."""
CheckOutput: TypeAlias = Callable[[Any], Awaitable[Any]]
"""Returns the final output as it is given to the caller."""


CLOSE = 0.84
"""How similar two names are if one is the other misspelt (`difflib`)."""


def _ignore(*given: object) -> None:
    pass


@dataclass(slots=True)
class RunStart:
    """What is known of a run when it starts."""

    run: str
    """Its id, which all its events carry."""
    agent: str
    """The agent's name: `main` by default."""
    model: str
    """The model's name."""
    clock: Clock
    settings: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """The schedule, the limits and the other options of the agent, as JSON."""
    messages: tuple[Message, ...] = ()
    """The history at the start. Its last message is the prompt."""
    question: User | None = None
    """The prompt of a run whose history ends in open calls: it is asked once they have their results."""
    resumed: bool = False
    """The run started earlier: it was waiting, or its process died."""
    decisions: Mapping[str, Approval | ToolResult] = field(default_factory=dict[str, "Approval | ToolResult"])
    """The answers that `resume` was given, by call id."""
    history: Callable[[], tuple[Message, ...]] = tuple
    """Returns the history as it is now. A request may hold less of it, or more."""
    state: Callable[[], dict[str, Json]] = dict
    """Returns what the run has counted so far. With this and the history, another process can resume it."""
    emit: Callable[..., None] = _ignore
    """Sends an event of the run: its class, then its own fields."""
    veto: Callable[[Vetoed], None] = _ignore
    """Ends the run with this message when the calls that are running have ended."""
    retries: dict[str, int] = field(default_factory=dict[str, int])
    """How often each tool, and each check of the output, has asked for a retry. A resumed run continues to count."""
    secrets: Callable[[], Iterable[str]] = tuple
    """Returns the keys and tokens of the model, as far as they are known by now."""
    asks: Model | None = None
    """The model itself."""
    context: Callable[[], RunContext[Any]] = RunContext
    """Returns what functions of the agent know about the run now."""
    known_tools: Callable[[], frozenset[str] | None] = lambda: None
    """Returns the names of all tools that the run may offer, found or not. None if a function chooses them."""
    trace: dict[str, str] | None = None
    """Of a durable run: `traceparent` names the span that all its parts belong to. If it is empty, the tracer
    of the first part fills it in."""


@dataclass(frozen=True, slots=True)
class AsideAnswer:
    """The answer to a request that was made beside the rounds of a run."""

    message: Assistant
    verdict: Verdict
    """Whether it is complete."""
    cost: float | None
    """What it cost. None if that is not known."""


@dataclass(slots=True)
class NextRequest:
    """What is known of the next request before it is written. Change `messages` to send something else."""

    messages: tuple[Message, ...]
    """What is sent of the history: all of it, or what its last summary leaves. Without the agent's instructions."""
    history: tuple[Message, ...]
    """The complete history, as the agent sees it."""
    tools: tuple[ToolSpec, ...]
    tokens: int
    """How long the history is: what the provider reported for the last request and its answer, and an estimate of what
    came since. An estimate of everything before the first report."""
    final: bool
    """No calls are allowed any more: the run ends with its answer."""
    state: dict[str, Json]
    """What middleware notes about the run. It is recorded, and a resumed run has it."""
    ask: AskAside
    """Asks a model something beside the rounds of the run: `await ask(messages, model)`; without a model, that of the
    run. It counts for the usage and the cost of the run, and it is recorded. No call in the answer runs."""
    add: Callable[[User], None]
    """Adds a message to the history."""
    background: tuple[BackgroundCall, ...] = ()
    """The background calls whose results are not in the history yet."""


class Middleware:
    """Base class for middleware. Every method passes through by default; override what you need.

    One object serves any number of runs, also at the same time. To keep something for one run, return a new object from
    `start`.

    Your class may have methods of its own. One that seems to be a misspelt method of this class is an error.
    """

    records: ClassVar[bool] = False
    """It writes the run down, so that it can be resumed. A replay leaves it out, because it is no new run."""
    sees_deltas: ClassVar[bool] = False
    """It reads the answers in `ask_model`, so it receives no `TextAdded` and no `ReasoningAdded` for text that streams:
    there is one for every few characters."""

    mutates: ClassVar[bool] = True
    """It may change what it is given in place (calls, messages, events), so it gets copies. If it never does, say so:
    that saves them."""

    edits_answers: ClassVar[bool] = True
    """Its `ask_model` may change what the model said. If it never does, say so: that saves a comparison."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, function in vars(cls).items():
            own = isfunction(function) and not hasattr(Middleware, name)
            if own and (meant := _misspelt(name, function)) and meant not in vars(cls):
                raise UserError(
                    f"class {cls.__name__}(Middleware): there is no method `{name}` that a run calls; did you mean "
                    f"`{meant}`? Give a method of your own another name, or begin it with `_`"
                )

    def start(self, run: RunStart) -> Middleware:
        """A run starts. Returns the middleware that serves it."""
        return self

    def end(self) -> None:
        """The run is over, however it ended. What this raises is logged, and the run keeps its answer or its error."""

    def ask_model(self, request: Request, call_next: Ask) -> AsyncIterator[Sequence[Delta]]:
        """Around each request. Yields batches of deltas; the history, the result and the events of the run hold what
        you yield."""
        return call_next(request)

    async def before_request(self, request: NextRequest) -> None:
        """Before each request of the run is written: the place to change which messages are sent. It is called again if
        a message was added to the history."""

    async def call_tool(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
        """Around each tool call that runs. `call_next` never raises because a tool failed: that is a result. The call
        that you pass on may have other arguments (see `tools.passing_on`), but not another name or id."""
        return await call_next(call, context)

    async def check_client_call(self, call: ToolCall) -> str:
        """Before a call of a `client_tool` is given to the client. Returns why it may not be, for the model to read."""
        return ""

    def finds_again(self, tool: Tool) -> bool:
        """Does it run this tool's calls elsewhere, and find a call again that was running when the process died? Then a
        resumed run passes it such a call, whatever `after_crash` says."""
        return False

    def approver(self, on_approval: OnApproval | None) -> OnApproval | None:
        """Returns the function that approves calls, in place of the one that was given."""
        return on_approval

    async def check_input(self, prompt: User, call_next: CheckInput) -> User:
        """Around the prompt, before the model is asked for the first time. Returns it, or another one in its place."""
        return await call_next(prompt)

    async def check_output(self, output: Any, call_next: CheckOutput) -> Any:
        """Around the final output: the text of the answer, or its typed value. Returns it, or another one in its place.
        Raise `Retry` to let the model try again."""
        return await call_next(output)

    def on_event(self, event: Event) -> None:
        """An event of the run. What this raises is logged, and the run continues without it."""

    def on_tools(self, turn: int, toolbox: Toolbox) -> None:
        """The tools of the turn that starts."""

    def on_time_limit(self) -> None:
        """The time limit of the run was reached: no call starts any more, and running ones are cancelled."""

    def recordings_of(self, run: str) -> Sequence[Path]:
        """The files in which it has recorded this run, the latest last."""
        return ()

    def resume(self, path: Path, run: str, size: int) -> Self:
        """Returns what serves the rest of a run whose recording `path` had `size` bytes when it was read."""
        return self


def _misspelt(name: str, function: Callable[..., Any]) -> str:
    """The method of `Middleware` that a similar name with as many parameters seems to stand for; or nothing."""
    if name.startswith("_"):
        return ""
    methods = {
        each.replace("_", ""): each
        for each, method in vars(Middleware).items()
        if isfunction(method) and len(each) > 3  # too many words are similar to `end`
    }
    near = get_close_matches(name.replace("_", "").lower(), methods, len(methods), CLOSE)
    # Of few: the signatures of all were a twentieth of what it takes to import an agent.
    return next((methods[each] for each in near if _as_many(getattr(Middleware, methods[each]), function)), "")


def _as_many(method: Callable[..., Any], function: Callable[..., Any]) -> bool:
    return len(signature(method).parameters) == len(signature(function).parameters)


class Listener(Middleware):
    """A sink as middleware: a function that is called with each event."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink

    def on_event(self, event: Event) -> None:
        self.sink(event)


def as_middleware(sinks: Iterable[Sink | Middleware]) -> tuple[Middleware, ...]:
    return tuple(sink if isinstance(sink, Middleware) else Listener(sink) for sink in sinks)


def wraps(middleware: Middleware, method: str) -> bool:
    """Does it override this method? What it does not is not called."""
    return getattr(type(middleware), method) is not getattr(Middleware, method)


@contextmanager
def blaming(middleware: Middleware, method: str) -> Generator[None]:
    """What this method raises names it, except errors of the library itself, and what is raised for the model."""
    try:
        yield
    except (UnbrokenError, ToolFailed):
        raise
    except (Exception, SystemExit) as error:
        name = type(middleware).__name__
        log_bug(logging.WARNING, error, "The middleware %s failed in %s", name, method)
        raise middleware_failed(name, method, in_words(error)) from error


def start(middleware: Iterable[Middleware], about: Callable[[], RunStart], started: list[Middleware]) -> None:
    """Adds each to `started` as soon as it has started. What is known of the run is put together if any needs it."""
    run: RunStart | None = None
    for each in middleware:
        if not wraps(each, "start"):
            started.append(each)
            continue
        run = run or about()
        with blaming(each, "start"):
            started.append(each.start(run))


def end(middleware: Iterable[Middleware]) -> None:
    """All of them end, and what one raises is logged: a run that has an answer keeps it."""
    for each in middleware:
        try:
            each.end()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - foreign code, and the run has ended
            log_bug(logging.WARNING, error, "The middleware %s failed in end", type(each).__name__)


def wrap_model(middleware: Sequence[Middleware], model: Model) -> Ask:
    ask: Ask = model.stream
    for each in reversed(middleware):
        if wraps(each, "ask_model"):
            ask = partial(each.ask_model, call_next=ask)
            if each.mutates:
                ask = partial(_ask_with_own, ask)
            if each.edits_answers:
                ask = partial(_agreeing, ask)
    return ask


def _ask_with_own(ask: Ask, request: Request) -> AsyncIterator[Sequence[Delta]]:
    return ask(replace(request, messages=own_messages(request.messages)))


async def _agreeing(ask: Ask, request: Request) -> AsyncIterator[Sequence[Delta]]:
    """The message at the end of an answer holds what its deltas say. If they were edited, it is written anew, without
    what only the provider's own wire knows of the original. The calls are copies: the middleware may keep its own."""
    response = PartialResponse()
    async with closing(ask(request)) as batches:
        async for batch in batches:
            deltas = [CallReady(own_call(each.call)) if isinstance(each, CallReady) else each for each in batch]
            for delta in deltas:
                response.feed(delta)
            last = deltas[-1] if deltas else None
            if isinstance(last, Ended) and last.message is not None:
                message = response.message
                if response.matches(last.message):
                    message = replace(last.message, calls=message.calls)
                deltas[-1] = Ended(last.verdict, message)
            yield deltas


def wrap_caller(middleware: Sequence[Middleware], caller: Caller, prepare: Callable[[ToolCall], Prepared]) -> Caller:
    """`prepare` is called for a call whose arguments were changed."""
    for each in reversed(middleware):
        if wraps(each, "call_tool"):
            # What only writes the run down passes on what it gets: there is nothing to check.
            only_records = each.records and not (each.mutates or each.edits_answers)
            caller = partial(each.call_tool, call_next=caller) if only_records else PassingOn(each, caller, prepare)
    return caller


def wrap_check(middleware: Sequence[Middleware], method: Literal["check_input", "check_output"]) -> CheckOutput | None:
    """None if no middleware looks at that."""
    checking = [each for each in middleware if wraps(each, method)]
    if not checking:
        return None
    check: CheckOutput = _unchanged
    for each in reversed(checking):
        check = partial(_check_blaming, each, method, check)
    return check


async def _check_blaming(middleware: Middleware, method: str, call_next: CheckOutput, value: Any) -> Any:
    with blaming(middleware, method):
        return await getattr(middleware, method)(value, call_next)


async def _unchanged(value: Any) -> Any:
    return value


def wrap_approver(middleware: Sequence[Middleware], on_approval: OnApproval | None) -> OnApproval | None:
    for each in reversed(middleware):
        with blaming(each, "approver"):
            on_approval = each.approver(on_approval)
    return on_approval
