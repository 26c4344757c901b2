"""The cost of searching for leaked calls: linear in the text, in pieces of any size.

Work is counted (functions run, characters held back), not timed.
"""

from __future__ import annotations

import pytest
from leaks import NAMES
from streams import chunk, sse
from thorough import ALL
from work_done import counted

from unbroken import Decoder
from unbroken_wires.decoding.leaked_calls import Prose

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
    "reasoning": "</think>{",
    "quotations": "```python\n```\n",
    "words": "\nfunctools[",
    "python": "<|tool_call_start|>[get(x='",
    "gemma": "<|tool_call>call:get{x:[{",
    "elements": ']<]minimax[>[<invoke name="get">]<]minimax[>[<x>',
    "attributes": '<|open|>call tool="get" x="',
    "channels": "<|channel|>commentary to=get json",
    "invokes": '<invoke name="get"><parameter name="x">',
}
OPEN = {
    "never-closed-value": ("<function=get><parameter=x>", "a </para "),
    "never-closed-string": ('<tool_call>{"name": "get", "arguments": {"x": "', "ab\\n<"),
    "never-closed-object": ('<tool_call>{"name": "get", "arguments": {"x": [', '{"a": 1}, '),
    "blanks": ("<tool_call>", " \n"),
    "never-closed-python": ("<|tool_call_start|>[get(x='", "it \\'s ]"),
    "never-closed-gemma": ('<|tool_call>call:get{x:<|"|>', "a <| "),
    "never-closed-element": (']<]minimax[>[<invoke name="get">]<]minimax[>[<x>', "a ]< "),
}
TEXTS = {**{name: ("", part) for name, part in NASTY.items()}, **OPEN}


def work(start: str, part: str, characters: int, size: int) -> int:
    """How many Python and C functions run for a text of so many characters; the text held back must stay short."""
    text = (start + part * (characters // len(part) + 1))[:characters]
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    prose = Prose(NAMES)

    def run() -> None:
        for piece in pieces:
            prose.feed(piece)
            assert prose.unread <= 300
        prose.end()

    return counted(run)


SIZES = (1, 64, 1 << 20)
WAYS = [
    (name, size)
    for number, name in enumerate(TEXTS)
    for place, size in enumerate(SIZES)
    if ALL or (number + place) % len(SIZES) == 0
]
"""Each text in pieces of one size, the next text in pieces of another; or each in all sizes."""


@pytest.mark.parametrize(("name", "size"), WAYS)
def test_the_work_is_linear_in_the_text(name: str, size: int) -> None:
    start, part = TEXTS[name]
    once, twice = work(start, part, 2_500, size), work(start, part, 5_000, size)
    assert twice <= 2.2 * once + 200


def test_a_long_text_costs_a_few_steps_for_each_character() -> None:
    assert work("", "<", 50_000, 64) < 50_000 * 10
    assert work(*OPEN["never-closed-value"], 50_000, 1) < 50_000 * 40


def decoding(text: str, tools: tuple[str, ...] | None) -> int:
    """How many functions run for a text in deltas of 8 characters, in reads of 4 KB."""
    body = sse(*(chunk({"content": text[at : at + 8]}) for at in range(0, len(text), 8)), chunk({}, "stop"))
    decoder = Decoder("openai-chat", tools)
    return counted(lambda: [decoder.feed(body[at : at + 4096]) for at in range(0, len(body), 4096)])


def test_all_dialects_together_cost_a_twentieth_of_decoding_plain_text() -> None:
    text = "Plain words (none of them a mark), and so on; nothing else.\n" * 500
    assert decoding(text, NAMES) <= 1.1 * decoding(text, None)


def test_text_without_a_mark_passes_with_one_check() -> None:
    assert work("", "plain words, no mark at all. ", 40_000, 4) < 10_000 * 10
