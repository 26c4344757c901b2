"""Answers that are none yet: the provider has paused, the model wrote nothing, or it announced a call and made none. It
is asked to continue."""

from __future__ import annotations

from unbroken.agent.announced_calls import announces
from unbroken.agent.prompts import CONTINUE, language_of
from unbroken.agent.rules.budgets import times
from unbroken.agent.run import Run
from unbroken.agent.turns import Again, Instead, Turn, Unfinished
from unbroken.errors import ChainBroken
from unbroken.tools.toolbox import Toolbox

NUDGES = 3
"""How often in a run a model is asked to continue after an empty answer or an announced call."""

MOST_EMPTY_ANSWERS = 3
"""After this many empty answers in a row, those that a `RetryingModel` has repeated included, there is no answer."""

PAUSES = 16
"""How often a provider may pause one answer."""


def continue_paused(run: Run, turn: Turn) -> Again | None:
    return Again("paused") if turn.verdict.meaning == "paused" and run.state.counters.pauses < PAUSES else None


def ask_silent(run: Run, turn: Turn) -> Again | Instead | None:
    """An image is an answer without text."""
    if turn.message.text.strip() or (run.server_calls is not None and run.server_calls.made_image()):
        return None
    if run.state.counters.empty_answers + 1 < MOST_EMPTY_ANSWERS and run.state.counters.nudges < NUDGES:
        return Again("silent", keeps=False)
    if run.plan.output is None and run.plan.settings.policy.empty_answer is not None:
        return Instead(run.plan.settings.policy.empty_answer)
    what = turn.verdict.reason or f"finish reason {turn.verdict.finish!r}"
    if turn.verdict.meaning == "length":
        what += "; raise `max_tokens`, its length limit"
    often = f"even after it was asked {times(run.state.counters.nudges)} to continue"
    raise ChainBroken(f"`{run.plan.model.name}` gave an empty answer, {often}: {what}", tuple(run.state.verdicts))


def find_announcement(run: Run, turn: Turn, toolbox: Toolbox) -> Unfinished:
    text = turn.message.text
    if turn.closed or run.state.counters.nudges >= NUDGES or _is_typed(run, text):
        return ""
    return "announced" if announces(text, toolbox.names) else ""


def _is_typed(run: Run, text: str) -> bool:
    """Whether it is a structured answer, which announces nothing."""
    return run.plan.output is not None and text.lstrip().startswith(("{", "[", "```"))


def ask_for_announced(run: Run, turn: Turn) -> Again | None:
    return Again("announced", nudge_text(run, turn.message.text)) if turn.unfinished == "announced" else None


def nudge_text(run: Run, said: str = "") -> str:
    """The text that asks the model to continue, in the language of its answer, or else of the prompt."""
    plan = run.plan
    if plan.settings.policy.continue_prompt:
        return plan.settings.policy.continue_prompt
    return CONTINUE["zh" if plan.language == "zh" else language_of(said or run.last_prompt)]
