"""After a broken stream: nothing is repeated, and nothing silently turns into another text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from unbroken_wires.decoding import Shown, StillToSay


def shown(*pieces: str) -> Shown:
    said = Shown()
    for piece in pieces:
        said.feed(piece)
    return said


def test_an_answer_that_starts_with_the_shown_text_continues_it() -> None:
    assert shown("Let me ", "look").compare("Let me look that up.") == StillToSay(" that up.")


def test_an_answer_that_is_shorter_than_the_shown_text_adds_nothing() -> None:
    assert shown("Let me look").compare("Let me") == StillToSay("")


def test_a_different_answer_replaces_the_shown_text() -> None:
    assert shown("Let me look").compare("I will look.") == StillToSay("I will look.", replaced=True)


def test_before_anything_was_shown_everything_is_new() -> None:
    assert shown().compare("Hello") == StillToSay("Hello")


@given(st.text(max_size=20), st.text(max_size=20))
def test_a_reader_ends_with_the_answer_or_a_beginning_of_it(first: str, answer: str) -> None:
    rest = shown(first).compare(answer)
    reader = rest.text if rest.replaced else first + rest.text
    assert reader == answer or (not rest.replaced and reader.startswith(answer))
