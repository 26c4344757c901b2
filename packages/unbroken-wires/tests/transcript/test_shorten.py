"""A history that was too long becomes about half as long: large results lose their middle, and nothing else changes."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from unbroken_wires.messages import (
    Assistant,
    Media,
    Message,
    Native,
    Part,
    System,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    User,
)
from unbroken_wires.transcript import Transcript, shorten

WHY = "left out: the history was too long for the model"


def rounds(*contents: tuple[str | Part, ...] | str) -> tuple[Message, ...]:
    """One round for each, with one result."""
    messages: list[Message] = [System.of("Be brief."), User.of("Read them all.")]
    for number, content in enumerate(contents):
        call = ToolCall(f"call_{number}_0", "read", {"n": number}, f'{{"n": {number}}}')
        parts = (content,) if isinstance(content, str) else content
        messages += [Assistant("", (call,)), ToolMessage((ToolResult.of(call, *parts),))]
    return tuple(messages)


def results(messages: tuple[Message, ...] | None) -> list[ToolResult]:
    assert messages is not None
    return [result for message in messages if isinstance(message, ToolMessage) for result in message.results]


def size(messages: tuple[Message, ...]) -> int:
    return sum(len(result.text) for result in results(messages))


def test_old_results_are_cut_to_about_half_of_the_total() -> None:
    history = rounds("a" * 30_000, "b" * 10_000, "c" * 500, "d" * 8_000)
    short = shorten(history)
    assert short is not None
    assert 0.45 < size(short) / size(history) < 0.55
    first, second, third, last = (result.text for result in results(short))
    assert len(first) < 9_000
    assert len(second) < 9_000
    assert third == "c" * 500
    assert last == "d" * 8_000


def test_the_largest_results_are_cut_first_down_to_one_length() -> None:
    history = rounds("a" * 50_000, "b" * 40_000, "c" * 5_000, "d" * 10)
    first, second, third, _ = (result.text for result in results(shorten(history)))
    assert abs(len(first) - len(second)) < 20
    assert 20_000 < len(first) < 24_000
    assert third == "c" * 5_000


def test_head_and_tail_stay_and_a_note_tells_how_much_is_missing() -> None:
    text = "".join(f"{line:06}\n" for line in range(10_000))
    short = results(shorten(rounds(text, "now")))[0].text
    remark = re.search(rf"\n\n\[\.\.\. ([\d,]+) characters {WHY} \.\.\.\]\n\n", short)
    assert remark is not None
    head, tail = short[: remark.start()], short[remark.end() :]
    assert text.startswith(head)
    assert text.endswith(tail)
    assert int(remark[1].replace(",", "")) == len(text) - len(head) - len(tail)
    assert abs(len(head) - len(tail)) < 40


def test_the_last_round_is_cut_only_if_the_others_are_not_enough() -> None:
    old, last = results(shorten(rounds("a" * 2_000, "b" * 50_000)))
    assert len(old.text) < 700
    assert 20_000 < len(last.text) < 30_000
    assert WHY in last.text


def test_there_may_be_nothing_to_cut() -> None:
    assert shorten(()) is None
    assert shorten((System.of("x" * 50_000), User.of("y" * 50_000), Assistant("z" * 50_000))) is None
    assert shorten(rounds("a" * 999, "b" * 999)) is None
    assert shorten((ToolMessage(()),)) is None


def test_a_cut_result_is_not_cut_again() -> None:
    short = shorten(rounds("a" * 90_000, "b" * 20_000, "c" * 900))
    assert short is not None
    again = shorten(short)
    kept = [one for one in results(short) if WHY in one.text]
    assert kept
    assert [one for one in results(again) if one in kept] == kept
    assert again is not None
    assert shorten(again) is None


def test_nothing_else_changes() -> None:
    native = Native("anthropic-messages", [{"type": "tool_use"}], ("call_a",))
    calls = (ToolCall("call_a", "read", {"q": "x" * 5_000}), ToolCall("call_b", "read", None, "{", 1, False))
    result = ToolResult(
        "call_a", (Text("a" * 9_000, "5m"),), True, "read", "call_0", "1h", Native("gemini", {"big": 1})
    )
    small = ToolResult("call_b", (Text("no"),), native=Native("gemini", {}))
    history = (User.of("?"), Assistant("so", calls, "hm", native), ToolMessage((result, small)), *rounds("now")[2:])
    short = shorten(history)
    assert short is not None
    Transcript(short)
    assert [a is b for a, b in zip(short, history, strict=True)] == [True, True, False, True, True]
    cut, other = results(short)[:2]
    assert other is small
    assert cut.native is None
    assert (cut.call_id, cut.error, cut.name, cut.duplicate_of, cut.cache) == ("call_a", True, "read", "call_0", "1h")
    assert [part.cache for part in cut.content] == ["5m"]


def test_a_large_image_becomes_a_note() -> None:
    image = Media("image/png", "A" * 400_000, name="shot.png")
    history = rounds(("A screenshot.", image), ("Another.", image), "done")
    first, second, _ = results(shorten(history))
    cut = [part for result in (first, second) for part in result.content if isinstance(part, Text)]
    assert f"[an image (shot.png, image/png) {WHY}]" in [part.text for part in cut]
    assert first.content[0] == Text("A screenshot.")


def test_an_image_next_to_a_larger_text_stays() -> None:
    image = Media("image/png", "A" * 400_000)
    first = results(shorten(rounds(("x" * 60_000, image, "y" * 20_000), "done")))[0]
    assert image in first.content
    assert WHY in first.text
    assert first.text.endswith("y" * 1_000)


def test_a_file_counts_with_its_content() -> None:
    report = Media("application/pdf", "A" * 800_000)
    first, second, _ = results(shorten(rounds((report,), "b" * 5_000, "done")))
    assert first.content == (Text(f"[a file (application/pdf) {WHY}]"),)
    assert second.text == "b" * 5_000


def test_no_character_is_split() -> None:
    family = "👨‍👩‍👧"
    accent = "e\u0301"
    for cluster in (family, accent, "👍🏽"):
        for shift in range(6):
            text = "." * shift + cluster * 6_000
            left = re.sub(r"\n\n\[[^\]]+\]\n\n", "|", results(shorten(rounds(text, "now")))[0].text)
            assert left.replace(cluster, "").strip(".") == "|"


@given(
    st.lists(
        st.lists(st.sampled_from(["", "x", "x" * 900, "y" * 1_000, "z" * 5_000, "é" * 40_000]), min_size=1, max_size=3),
        max_size=5,
    )
)
def test_it_is_shorter_and_the_chain_is_the_same(contents: list[list[str]]) -> None:
    history: list[Message] = [User.of("Go.")]
    for number, texts in enumerate(contents):
        calls = tuple(ToolCall(f"call_{number}_{index}", "read", {}, "{}") for index in range(len(texts)))
        history += [
            Assistant("", calls),
            ToolMessage(tuple(ToolResult.of(call, text) for call, text in zip(calls, texts, strict=True))),
        ]
    whole = tuple(history)
    short = shorten(whole)
    if short is None:
        assert not any(len(result.text) >= 1_000 for result in results(whole)) or size(whole) < 2_000
        return
    assert size(short) < size(whole)
    assert [result.call_id for result in results(short)] == [result.call_id for result in results(whole)]
    Transcript(short)
    for before, after in zip(results(whole), results(short), strict=True):
        assert after == before or (WHY in after.text and len(after.text) < len(before.text))
