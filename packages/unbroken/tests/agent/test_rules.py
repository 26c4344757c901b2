"""The rules of an agent: which lists it has, and that rules decide without changing the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

import pytest

from unbroken import Agent, Limits, Policy, ScriptedModel
from unbroken.agent.emitter import Emitter
from unbroken.agent.output import Output
from unbroken.agent.rules import budgets, nudges
from unbroken.agent.rules.composing import Rules, rules_of
from unbroken.agent.run import Run
from unbroken.agent.run_state import RunState
from unbroken.agent.turns import Again, Instead, Turn
from unbroken.clock import current_clock
from unbroken.errors import ChainBroken
from unbroken.tools.caller import Prepared
from unbroken_testing import run_virtual
from unbroken_wires.deltas import Verdict
from unbroken_wires.messages import Assistant, ToolCall
from unbroken_wires.transcript import Transcript

T = TypeVar("T")

ALWAYS = {"may_run", "judge", "limit", "end_round", "go_on", "ending"}


def of_run(look: Callable[[Run], T], limits: Limits | None = None, **settings: Any) -> T:
    """What a new run of such an agent shows."""

    async def play() -> T:
        clock, state = current_clock(), RunState(Transcript())
        ready = Agent(ScriptedModel("Hi."), **settings).ready("r", state, limits or Limits(), {}, None)
        return look(Run("r", ready.plan(clock), state, ready.account, Emitter("r", clock, state.emitted)))

    return run_virtual(play())


def used(rules: Rules) -> set[str]:
    return {each.name for each in fields(rules) if getattr(rules, each.name)}


def test_an_agent_without_features_has_no_rules_for_them() -> None:
    assert used(of_run(rules_of)) == ALWAYS


def test_a_feature_brings_its_own_rules_and_no_others() -> None:
    assert used(of_run(rules_of, policy=Policy(nudge=True))) - ALWAYS == {"unfinished"}
    assert used(of_run(rules_of, output=Output(int))) - ALWAYS == {"heard", "leave", "offer", "recall"}
    background = {"bind", "close", "deliver", "hold", "prepare", "settle", "unfinished"}
    assert used(of_run(rules_of, policy=Policy(background=1.0))) - ALWAYS == background


def test_rules_are_composed_once_for_all_agents_with_the_same_features() -> None:
    assert of_run(rules_of, policy=Policy(nudge=True)) is of_run(rules_of, policy=Policy(nudge=True))
    assert of_run(rules_of) is not of_run(rules_of, policy=Policy(nudge=True))


def test_a_silent_model_is_asked_twice_and_the_rule_changes_nothing() -> None:
    turn = Turn(Assistant(), Verdict("whole"))

    def ask(run: Run) -> list[object]:
        before, found = run.state.recorded(prepares=True), list[object]()
        for _ in range(nudges.MOST_EMPTY_ANSWERS):
            asked = nudges.ask_silent(run, turn)
            assert asked == nudges.ask_silent(run, turn)
            assert run.state.recorded(prepares=True) == before
            if isinstance(asked, Again):
                run.state.ask_again(turn.message, asked)
                before = run.state.recorded(prepares=True)
            found.append(asked)
        return found

    silent = Again("silent", keeps=False)
    assert of_run(ask, policy=Policy(empty_answer="Nothing.")) == [silent, silent, Instead("Nothing.")]
    with pytest.raises(ChainBroken, match="even after it was asked 2 times to continue"):
        of_run(ask)


def test_what_is_allowed_early_is_allowed_when_the_message_is_complete() -> None:
    calls = [Prepared(ToolCall(str(place), "look", {}, index=place), None) for place in range(4)]

    def refused(run: Run) -> list[list[str]]:
        found: list[list[str]] = []
        for _ in range(2):
            refuse = budgets.refuse_calls(run, False)
            assert refuse is not None
            found.append([refuse(call, place) for place, call in enumerate(calls)])
        run.account.take_calls(len(calls))
        assert run.account.used.calls == 2
        return found

    early, complete = of_run(refused, Limits(calls=2))
    assert early == complete == ["", "", "not executed: budget exhausted", "not executed: budget exhausted"]
