"""Whether the requests of a run only grow, and what was changed first."""

from __future__ import annotations

import time

from unbroken_wires.messages import Assistant, Message, System, ToolSpec, User
from unbroken_wires.transcript.prefix import Prefix, first_change

BRIEF, HI, HELLO, AND = System.of("Be brief."), User.of("Hi."), Assistant("Hello."), User.of("And?")
LOOK, LISTEN = ToolSpec("look"), ToolSpec("listen")
BEFORE: tuple[Message, ...] = (BRIEF, HI, HELLO, AND)


def changed(*messages: Message, tools: tuple[ToolSpec, ...] = (LOOK,)) -> str:
    return first_change(((LOOK,), BEFORE), (tools, messages))


def test_the_first_region_that_is_not_as_it_was_is_named() -> None:
    assert changed(*BEFORE) == changed(*BEFORE, HELLO, AND) == ""
    assert changed(System.of("Be brief."), User.of("Hi."), HELLO, AND) == ""  # equal, and other objects
    assert changed(*BEFORE, tools=(LOOK, LISTEN)) == changed(*BEFORE, tools=()) == "tools"
    assert changed(System.of("Be long."), User.of("Ho.")) == changed(HI, HELLO, AND) == "system"
    assert changed(BRIEF, User.of("Ho."), HELLO, AND) == "message 1"
    assert changed(BRIEF, HI, HELLO, User.of("Or?"), HELLO) == "message 3"
    assert changed(BRIEF, HI) == "message 2"


def test_one_change_counts_for_all_later_requests() -> None:
    prefix = Prefix()
    prefix.take((LOOK,), (HI,))
    prefix.take((LOOK,), (HI, HELLO, AND))
    assert (prefix.intact, prefix.changed) == (True, "")
    prefix.take((LOOK, LISTEN), (HI, HELLO, AND))
    assert (prefix.intact, prefix.changed) == (False, "tools")
    prefix.take((LOOK, LISTEN), (HI, HELLO, AND, HELLO))
    assert (prefix.intact, prefix.changed) == (False, "")


def test_what_an_earlier_run_was_answered_is_not_known_to_be_intact() -> None:
    prefix = Prefix()
    prefix.take((LOOK,), (HI, HELLO, AND))
    assert (prefix.intact, prefix.changed) == (False, "")


def test_new_instructions_stay_where_they_came_in_until_another_agent_takes_over() -> None:
    prefix = Prefix()
    one, two = System.of("One."), System.of("Two.")
    assert prefix.instruct(one, (HI,), "a") == (one, HI)
    assert prefix.instruct(two, (HI, HELLO, AND), "a") == (one, HI, HELLO, AND, two)
    assert prefix.instruct(two, (HI, HELLO, AND, HELLO), "a") == (one, HI, HELLO, AND, two, HELLO)
    assert prefix.instruct(one, (HI, HELLO, AND, HELLO), "a") == (one, HI, HELLO, AND, two, HELLO, one)
    assert prefix.instruct(two, (HI,), "a") == (two, HI)  # the history has become shorter
    assert prefix.instruct(one, (HI, HELLO, AND, HELLO), "b") == (one, HI, HELLO, AND, HELLO)


def test_comparing_a_long_history_costs_next_to_nothing() -> None:
    prefix, messages = Prefix(), tuple(User.of(f"{n} " * 1000) for n in range(2000))
    began = time.process_time()
    for n in range(0, 2000, 2):
        prefix.take((LOOK,), messages[:n])
    assert prefix.intact
    assert time.process_time() - began < 0.5  # 0.01 here: 1,000 rounds
