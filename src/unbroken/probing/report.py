"""Runs all tests, one at a time, and returns the findings and the provider profile that handles the differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from ipaddress import ip_address
from typing import Any

from yarl import URL

from unbroken.clock import current_clock
from unbroken.errors import UnknownProvider
from unbroken.models.addresses import read_base, shown
from unbroken.models.http import HTTPModel
from unbroken.models.provider_files import ProfileTable
from unbroken.models.providers import find_provider
from unbroken.models.quirks import Quirks
from unbroken.probing.findings import Answer, Finding, Judgement, broken, unclear
from unbroken.probing.probe_client import WAITS, ProbeClient, RequestFailing, TooSlow
from unbroken.probing.questions import QUESTIONS, Question
from unbroken.wires import DEFAULT_WIRE

_WORST_FIRST: tuple[Judgement, ...] = ("broken", "differs", "unclear", "works")


@dataclass(frozen=True, slots=True)
class Report:
    model: str
    """`provider:model`, as given."""
    address: str
    wire: str
    answers: tuple[Answer, ...]
    quirks: dict[str, Any]
    """The fields of the provider's quirks that have to change."""

    @property
    def judgement(self) -> Judgement:
        """The worst judgement of all."""
        found = {answer.finding.judgement for answer in self.answers}
        for judgement in _WORST_FIRST:
            if judgement in found:
                return judgement
        return "unclear"

    def profile(self, base_url: str = "", key_variable: str = "") -> ProfileTable:
        """The profile for the user's file, as small as possible. Secrets in the base URL are left out."""
        name = self.model.partition(":")[0]
        provider = find_provider(name)
        given: dict[str, Any] = {}
        if base_url:
            given["base_url"] = shown(read_base(base_url, name, provider.port))
        if self.wire != provider.wire and not (base_url and provider.elsewhere and self.wire == DEFAULT_WIRE):
            given["wire"] = self.wire
        if key_variable and key_variable not in provider.keys:
            given["keys"] = (key_variable,)
        like = "" if name == "compatible" else name
        return ProfileTable(_name(name, base_url), like, given, self.quirks)


def _name(provider: str, base_url: str) -> str:
    """A name that is not used yet, taken from the host if there is one."""
    if not base_url:
        return f"my-{provider}"
    host = URL(shown(read_base(base_url, provider))).host or ""
    labels = [label for label in host.split(".") if label not in ("api", "www", "")]
    name = "local" if _is_local(host) else labels[0] if labels else "mine"
    try:
        find_provider(name)
    except UnknownProvider:
        return name
    return f"my-{name}"


def _is_local(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return "." not in host
    return True


async def probe(
    model: HTTPModel,
    questions: Sequence[Question] = QUESTIONS,
    *,
    on_start: Callable[[Question], None] = lambda _: None,
    on_answer: Callable[[Answer], None] = lambda _: None,
    waits: tuple[float, ...] = WAITS,
) -> Report:
    """Runs all tests. `on_start` is called with each test before it runs, `on_answer` with its outcome; `waits` are the
    seconds before each retry of a temporary failure. Raises a `ProviderError` if the endpoint does not answer."""
    client, clock = ProbeClient(model, waits=waits), current_clock()
    answers: list[Answer] = []
    without_tools = ""
    for question in questions:
        on_start(question)
        requests, start = client.requests, clock.elapsed()
        try:
            finding = unclear(without_tools) if question.tools and without_tools else await question.ask(client)
        except TooSlow as slow:
            if not answers:
                raise slow.error from None
            within = f"no answer within {model.timeouts.total:g} s" if slow.error.total else str(slow.error)
            finding = unclear(f"{within}: give it more time")
        except RequestFailing as failed:
            finding = await _blamed(client, failed)
        client.quirks = replace(client.quirks, **finding.quirks)
        if question.name == "tools" and finding.judgement == "broken":
            without_tools = "not tested: tool calls do not work"
        answer = Answer(question.name, question.title, finding, client.requests - requests, clock.elapsed() - start)
        answers.append(answer)
        on_answer(answer)
    changed = _changed(model.endpoint.quirks, client.quirks)
    return Report(model.name, shown(model.endpoint.stream_url), model.wire, tuple(answers), changed)


async def _blamed(client: ProbeClient, failed: RequestFailing) -> Finding:
    """The feature is to blame if everything else works; otherwise it may be the connection, which no profile can
    fix."""
    if failed.reply.too_long:
        return unclear(str(failed))
    if await client.is_steady() or await client.is_steady(stream=True):
        return broken(f"{failed}{failed.advice}")
    return unclear(f"{failed}; a plain request sometimes fails too: repeat the probe on a better connection")


def _changed(before: Quirks, after: Quirks) -> dict[str, Any]:
    names = [field.name for field in fields(Quirks)]
    return {name: getattr(after, name) for name in names if getattr(after, name) != getattr(before, name)}
