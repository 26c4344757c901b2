"""What the search for leaked calls costs: work that grows with the text and not faster, in pieces of any size.

Work is counted (functions run, characters that wait to be looked at again), not timed.
"""

from __future__ import annotations

import sys
from types import FrameType

import pytest
from leaks import NAMES

from unbroken.decoding.prose import Prose

NASTY = {
    "less-than": "<",
    "fences": "```",
    "lines": "\n=",
    "marks": "<tool_call>",
    "spaces": "<tool_call> ",
    "cut-marks": "<tool_cal",
    "prefixes": "<|tool_call",
    "brackets": "[TOOL_CALLS][",
    "names": "<function=get",
    "values": "<function=get><parameter=x>",
    "keys": "<tool_call>get<arg_key>",
    "dsml": '<｜DSML｜invoke name="get"><｜DSML｜parameter name="x" string="true">',
    "objects": '<tool_call>{"name": "get", "arguments": {"x": ',
    "strings": '<tool_call>{"name": "get", "arguments": {"x": "\\\\<',
    "deep": '{"name": "get", "arguments": {"x": [[[[',
    "calls": '<tool_call>{"name": "get", "arguments": {}}</tool_call>',
}
OPEN = {
    "never-closed-value": ("<function=get><parameter=x>", "a </para "),
    "never-closed-string": ('<tool_call>{"name": "get", "arguments": {"x": "', "ab\\n<"),
    "never-closed-object": ('<tool_call>{"name": "get", "arguments": {"x": [', '{"a": 1}, '),
    "blanks": ("<tool_call>", " \n"),
}
TEXTS = {**{name: ("", part) for name, part in NASTY.items()}, **OPEN}


def work(start: str, part: str, characters: int, size: int) -> int:
    """How many functions of Python and of C run for a text of so many characters; what waits must stay short."""
    text = (start + part * (characters // len(part) + 1))[:characters]
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    prose = Prose(NAMES)
    count = 0

    def counted(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        for piece in pieces:
            prose.feed(piece)
            assert prose.unread <= 300
        prose.end()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("size", [1, 64, 1 << 20])
@pytest.mark.parametrize("name", TEXTS)
def test_the_work_is_linear_in_the_text(name: str, size: int) -> None:
    start, part = TEXTS[name]
    once, twice = work(start, part, 5_000, size), work(start, part, 10_000, size)
    assert twice <= 2.2 * once + 200


def test_a_long_text_costs_a_few_steps_for_each_character() -> None:
    assert work("", "<", 50_000, 64) < 50_000 * 10
    assert work(*OPEN["never-closed-value"], 50_000, 1) < 50_000 * 40


def test_text_without_a_mark_passes_with_one_check() -> None:
    assert work("", "plain words, no mark at all. ", 40_000, 4) < 10_000 * 10
