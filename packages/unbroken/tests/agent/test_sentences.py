"""Text by sentence: the same pieces however the text was split, nothing lost, and no end where there may be none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbroken import Agent, Assistant, CallFinished, Event, RunFailed, ScriptedModel, TextAdded, tool
from unbroken.agent.sentences import Sentences, Splitter, sentences
from unbroken.errors import Unavailable
from unbroken.events import TextFinished, TextReplaced
from unbroken.models.scripted import Call, Fail, Pause, Say
from unbroken_testing import run_virtual


def split(pieces: Iterable[str]) -> list[str]:
    splitter = Splitter()
    found = [sentence for piece in pieces for sentence in splitter.feed(piece)]
    return [sentence for sentence in [*found, splitter.flush(), splitter.end()] if sentence]


CASES: list[list[str]] = [
    ["Hello there. ", "How are you? ", "Fine!"],
    ["Dr. Smith paid 3.14 dollars at example.com. ", "Then he left."],
    ['He said "Go!" ', "Then he left."],
    ["“Really?” he asked. ", "“Yes.” ", "(He was sure.) ", "Good."],
    ["He came . ", "She went."],
    ["Well... maybe. ", "Hmm... ", "Let me see… then go on."],
    ["See e.g. J. R. Tolkien in the U.S. Army, at 5 p.m. ", "Then No. 5 came. ", "No. ", "It did not."],
    ["1. First step. ", "Second half.\n", "2. Second step\n", "a. Below it"],
    ["See https://example.com/a.b?c=d. ", "Version 2.0.1 is out!"],
    ["**Note.** ", "Then *stop.* ", "**Bold** again."],
    ["| a. b | c. D |\n", "| e! | F |\n"],
    ["你好。", "我是“小明。”", "他说！！", "真的？！", "好……", "吧"],
    ["他说：“走吧。”", "然后走了。", "（他来了。）", "『はい。』", "そうです。"],
    ["“好！”，他说。", "今天3.14元.", "明天!", "好的?", "是 OK. ", "Next"],
    ["* 你好。", "**重点**是这个。"],
    ["Look:\n", "```python\nx = 1. \nprint(x). Y\n```\n", "Done. ", "Bye"],
    ["Look:\n", "\n~~~~\n```\nA. B\n~~~\n~~~~\n", "\n\nDone."],
    ["Use ```x. ", "Y``` here. ", "Good.\n", "A line\n", "\n\nText."],
    ["C'est fini ! ", "Voilà. ", "यह है। ", "ठीक है।"],
    ["```\nnever closed. Not here\n\n"],
]


@pytest.mark.parametrize("expected", CASES, ids=lambda case: case[0][:24])
def test_text_is_split_at_sentence_ends_whatever_the_chunks(expected: list[str]) -> None:
    text = "".join(expected)
    for size in range(1, len(text) + 1):
        assert split(text[at : at + size] for at in range(0, len(text), size)) == expected


SNIPPETS = (
    ". |! |?|…|...|。|！|”|“|\"|'|)|**|_|\n|\n\n| |\t|\r\n|```|\n```\n|~~~|`|Dr|e.g|1|3.14|a|B|word|Word|你好|，|-|🎉"
)
snippets = st.sampled_from([*SNIPPETS.split("|"), "|", "\u00a0"])
texts = st.lists(snippets | st.text(max_size=3), max_size=40).map("".join)


@given(texts, st.data())
def test_nothing_is_lost_and_no_chunking_changes_the_sentences(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    whole = split([text])
    assert "".join(whole) == text
    assert split(text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)) == whole
    assert split(text) == whole
    assert all(sentence.strip() for sentence in whole[:-1])


@given(texts)
def test_a_yielded_sentence_does_not_depend_on_what_follows(text: str) -> None:
    early = Splitter().feed(text)
    assert Splitter().feed(text + "And more.\nOr 更多。")[: len(early)] == early


def test_a_sentence_is_yielded_with_the_first_sign_of_the_next_one() -> None:
    splitter = Splitter()
    assert splitter.feed("It is done.") == []  # it may be a number, an address, or a quote that is not closed yet
    assert splitter.feed(" ") == []
    assert splitter.feed("N") == ["It is done. "]
    assert splitter.feed("ow this\n") == ["Now this\n"]  # a line's end is sure at once
    assert splitter.feed("好。") == []
    assert splitter.feed("然") == ["好。"]


LONG: dict[str, Callable[[int], str]] = {
    "code": lambda n: "```\n" + "x = 1\n" * (n // 6),
    "one word": lambda n: "word" * (n // 4),
    "stops": lambda n: "." * n,
    "lines": lambda n: "\n" * n,
    "spaces": lambda n: "." + " " * n,
    "quotes": lambda n: 'a"b."' * (n // 5),
    "backticks": lambda n: "`" * n,
    "no fence": lambda n: "```" + "word" * (n // 4) + "`\n",
}


@pytest.mark.parametrize("make", LONG.values(), ids=LONG)
def test_the_cost_of_a_long_text_in_small_pieces_is_linear(make: Callable[[int], str]) -> None:
    def cost(text: str) -> float:
        start = time.process_time()
        assert "".join(split(text[at : at + 4] for at in range(0, len(text), 4))) == text
        return time.process_time() - start

    once, eight_times = (min(cost(make(size)) for _ in range(2)) for size in (10_000, 80_000))
    assert eight_times < 24 * once + 0.05


def test_the_rest_of_a_turn_is_yielded_before_its_tools_have_run() -> None:
    told: list[str] = []

    @tool
    async def slow() -> str:
        """Slow."""
        told.append("slow runs")
        await asyncio.sleep(5)
        told.append("slow ends")
        return "ok"

    async def main() -> None:
        agent = Agent(ScriptedModel([Say("Let me look. Just a moment"), Call("slow")], "It is done."), [slow])
        async for sentence in sentences(agent.stream("Go")):
            told.append(sentence)

    run_virtual(main())
    assert told == ["Let me look. ", "Just a moment", "slow runs", "slow ends", "It is done."]


def test_the_rest_is_yielded_before_the_error_of_a_failed_run() -> None:
    async def main() -> list[str]:
        model = ScriptedModel([Say("One. Two"), Fail(Unavailable("model `m` is overloaded (529)"))])
        spoken = sentences(Agent(model).stream("Go"))
        said = [await anext(spoken), await anext(spoken)]
        with pytest.raises(Unavailable):
            await anext(spoken)
        return said

    assert run_virtual(main()) == ["One. ", "Two"]


def test_if_you_stop_reading_the_run_ends() -> None:
    async def main() -> None:
        stream = Agent(ScriptedModel([Say("One. Two."), Pause(1000), Say(" Three.")])).stream("Go")
        async with aclosing(sentences(stream)) as spoken:
            async for sentence in spoken:
                assert sentence == "One. "
                break
        kinds = [type(event) async for event in stream]
        assert kinds[-1] is RunFailed
        assert stream.messages[-1] == Assistant("One. Two.")

    run_virtual(main())


def test_events_from_any_source_work() -> None:
    async def saved() -> AsyncIterator[Event]:
        yield TextAdded("r", 0, 0, 0.0, "One. T")
        yield TextAdded("r", 0, 1, 0.0, "wo.\n\n")
        yield TextFinished("r", 0, 2, 0.0, "One. Two.\n\n", False)
        yield TextAdded("r", 1, 3, 0.0, "Three.\n\n")

    async def main() -> list[str]:
        return [sentence async for sentence in sentences(saved())]

    assert run_virtual(main()) == ["One. ", "Two.\n", "\nThree.\n", "\n"]


def test_sentences_can_be_taken_between_other_events() -> None:
    @tool(effect="read")
    def look() -> str:
        """Look."""
        return "seen"

    model = ScriptedModel([Say("I look. Now."), Call("look")], "Done. Good.")

    async def read() -> list[str]:
        speaker, heard = Sentences(), list[str]()
        async for event in Agent(model, [look]).stream("Look."):
            heard += speaker.take(event)
            if isinstance(event, CallFinished):
                heard.append(f"[{event.text}]")
        return [*heard, speaker.end()]

    assert asyncio.run(read()) == ["I look. ", "Now.", "[seen]", "Done. ", "Good.", ""]


@pytest.mark.parametrize(
    "text",
    [
        "It is done.",
        "It is done. ",
        "Really?",
        "Stop!!",
        "他走了。",
        "真的吗？",
        "(He was sure.)",
        "**Note.**",
        "“走吧。”",
        "ठीक है।",
    ],
)
def test_a_sentence_that_looks_complete_leaves_at_a_pause(text: str) -> None:
    splitter = Splitter()
    assert splitter.feed(text) == []
    assert splitter.looks_complete
    assert splitter.flush_sentence() == text
    assert splitter.feed(" Next. Then") == [" Next. "]


@pytest.mark.parametrize(
    "text",
    [
        "I met Dr.",
        "It costs 3.",
        "1.",
        "See e.g.",
        "Well...",
        "Hmm…",
        "He asked “Really?”",
        "Open https://example.",
        "Run ./a.",
        "| a.",
        "```\nx = 1.",
        "J.",
        "and then",
        "他问“真的？”",
        "Mail a.b@example.",
    ],
)
def test_a_full_stop_that_may_be_inside_of_a_sentence_waits_for_what_follows(text: str) -> None:
    splitter = Splitter()
    splitter.feed(text)
    assert not splitter.looks_complete


@given(texts, st.data())
def test_pauses_lose_nothing_and_double_nothing(text: str, data: st.DataObject) -> None:
    splitter, found = Splitter(), list[str]()
    for character in text:
        found += splitter.feed(character)
        if splitter.looks_complete and data.draw(st.booleans()):
            found.append(splitter.flush_sentence())
    assert "".join([*found, splitter.flush(), splitter.end()]) == text


def test_a_sentence_leaves_within_50_ms_though_arguments_are_still_being_written() -> None:
    heard: list[tuple[float, str]] = []

    @tool
    def build(plan: str) -> str:
        """Build."""
        return "built"

    async def main() -> None:
        script = [Say("I begin"), Pause(2), Say("."), Pause(3), Call("build", plan="a house")]
        agent = Agent(ScriptedModel(script, [Say("It stands. Enjoy"), Pause(1), Say(" it!"), Pause(1)]), [build])
        start = asyncio.get_running_loop().time()
        async for sentence in sentences(agent.stream("Go")):
            heard.append((asyncio.get_running_loop().time() - start, sentence))

    run_virtual(main())
    assert [text for _, text in heard] == ["I begin.", "It stands. ", "Enjoy it!"]
    first, _, last = [time for time, _ in heard]
    assert 2 <= first <= 2.05
    assert 6 <= last <= 6.05


def test_a_sentence_that_left_at_a_pause_is_not_repeated_after_a_broken_stream() -> None:
    async def main() -> list[str]:
        events = [TextAdded("r", 0, 0, 0.0, "One. Two."), None, TextReplaced("r", 0, 1, 0.0, "One. Two. Three.")]
        speaker, heard = Sentences(), list[str]()
        for event in events:
            heard += speaker.pause() if event is None else speaker.take(event)
        return [*heard, speaker.end()]

    assert asyncio.run(main()) == ["One. ", "Two.", " Three."]


def test_if_you_stop_reading_at_a_pause_the_run_ends() -> None:
    async def main() -> None:
        stream = Agent(ScriptedModel([Say("One."), Pause(1000), Say("Two.")])).stream("Go")
        async with aclosing(sentences(stream)) as spoken:
            assert await anext(spoken) == "One."
        assert stream.messages[-1] == Assistant("One.")

    run_virtual(main())
