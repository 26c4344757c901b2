"""A raw log masks a key that a stream sends in pieces, and keeps every other byte."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from model_servers import KEY, streams
from test_raw_log import exchanges, play

from unbroken.models.masking import Masker, Passage, SplitSecrets
from unbroken_wires.decoding import Decoder
from unbroken_wires.deltas import CallReady, TextDelta

OTHER_KEY = 'ab/"c\u00e9-0123456789'


def event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def chat(piece: str, choice: int = 0) -> bytes:
    return event({"id": "chatcmpl-1s", "choices": [{"index": choice, "delta": {"content": piece}}]})


def chat_arguments(piece: str, call: int = 0) -> bytes:
    started = {"index": call, "function": {"arguments": piece}}
    return event({"choices": [{"index": 0, "delta": {"tool_calls": [started]}}]})


def anthropic(piece: str) -> bytes:
    return b"event: content_block_delta\n" + event(
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}
    )


def responses(piece: str) -> bytes:
    return event({"type": "response.output_text.delta", "item_id": "m", "output_index": 0, "delta": piece})


def gemini(piece: str) -> bytes:
    return event({"candidates": [{"content": {"parts": [{"text": piece}], "role": "model"}, "index": 0}]})


def jsonl(piece: str) -> bytes:
    return json.dumps({"message": {"content": piece}}).encode() + b"\n"


WRITERS = (chat, chat_arguments, anthropic, responses, gemini, jsonl)
FIELDS = ("content", "arguments", "text", "delta")


def masked(chunks: Iterable[bytes], *secrets: str) -> bytes:
    """What a raw log contains after these reads."""
    masker = Masker(secrets or (KEY,))
    passage, split = Passage(masker), SplitSecrets(masker)
    shown = b"".join(split.feed(passage.feed(chunk)) for chunk in chunks)
    return shown + split.feed(passage.flush()) + split.flush()


def said(body: bytes) -> str:
    """The pieces of a stream of one text, joined."""
    pieces: list[str] = []

    def take(value: Any) -> None:
        if isinstance(value, dict):
            for name, each in value.items():  # pyright: ignore[reportUnknownVariableType] - any JSON
                if name in FIELDS and isinstance(each, str):
                    pieces.append(each)
                take(each)
        elif isinstance(value, list):
            for each in value:  # pyright: ignore[reportUnknownVariableType] - any JSON
                take(each)

    for line in body.splitlines():
        if line.removeprefix(b"data: ").startswith(b"{"):
            take(json.loads(line.removeprefix(b"data: ")))
    return "".join(pieces)


def assert_hidden(text: str, before: str, after: str, key: str = KEY) -> None:
    """At most five characters of the key are shown, and the text around it is as it was."""
    assert text.startswith(before)
    assert text.endswith(after)
    shown, _, rest = text[len(before) : len(text) - len(after)].partition("***")
    assert (key.startswith(shown), len(shown) <= 5, rest) == (True, True, "")


@pytest.mark.parametrize("write", WRITERS)
def test_a_key_in_two_pieces_is_masked_wherever_it_is_split(write: Callable[[str], bytes]) -> None:
    for cut in range(1, len(KEY)):
        body = write(f"It is {KEY[:cut]}") + write(f"{KEY[cut:]}, see") + write(" you.")
        assert_hidden(said(masked([body])), "It is ", ", see you.")


@pytest.mark.parametrize("write", WRITERS)
def test_a_key_in_three_pieces_is_masked_wherever_it_is_split(write: Callable[[str], bytes]) -> None:
    for first in range(1, len(KEY) - 1):
        for second in range(first + 1, len(KEY)):
            pieces = ("(", KEY[:first], KEY[first:second], KEY[second:], ")")
            assert_hidden(said(masked([b"".join(map(write, pieces))])), "(", ")")


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_a_key_letter_by_letter_is_masked_at_every_size_of_reads(size: int) -> None:
    body = b"".join(map(chat, f"<{KEY}>"))
    reads = [body[at : at + size] for at in range(0, len(body), size)]
    assert masked(reads) == masked([body])
    assert_hidden(said(masked(reads)), "<", ">")


def test_a_key_with_escaped_characters_is_masked_in_pieces() -> None:
    for cut in range(1, len(OTHER_KEY)):
        for spelled in (OTHER_KEY, json.dumps(OTHER_KEY)[1:-1]):
            body = chat_arguments(f"{{{spelled[:cut]}") + chat_arguments(f"{spelled[cut:]}}}")
            assert_hidden(said(masked([body], OTHER_KEY)), "{", "}", spelled)


def test_a_key_written_as_escapes_is_masked() -> None:
    spelled = "".join(f"\\u{ord(letter):04x}" for letter in KEY)
    body = b'data: {"content":"' + spelled.encode() + b'"}\n\n'
    assert masked([body]) == b'data: {"content":"***"}\n\n'


def test_keys_in_interleaved_choices_and_calls_are_masked() -> None:
    for write in (chat, chat_arguments):
        body = b"".join(write(piece, place) for piece in (KEY[:9], KEY[9:], "!") for place in (0, 1))
        assert said(masked([body])) == "******!!"


def test_an_event_of_another_kind_between_the_pieces_keeps_its_position() -> None:
    ping = b": keep-alive\n\n"
    shown = masked([chat(KEY[:9]) + ping + chat(KEY[9:] + ".")])
    assert shown == chat("***") + ping + chat(".")


def test_lines_without_a_key_are_passed_on_at_once_and_unchanged() -> None:
    split = SplitSecrets(Masker([KEY]))
    for piece in ("Ask", " s", "k", "-", "se", "cond", "!"):  # five letters of the key, and then others
        assert split.feed(chat(piece)) == chat(piece)
    assert split.feed(chat("")[:20]) == b""
    assert split.feed(chat("")[20:]) == chat("")
    assert split.flush() == b""


def test_text_that_only_resembles_a_key_is_shown_when_that_is_known() -> None:
    split = SplitSecrets(Masker([KEY]))
    assert split.feed(chat(KEY[:-1])) == b""
    assert split.feed(chat("-no")) == chat(KEY[:-1]) + chat("-no")


def test_a_stream_that_ends_inside_a_key_does_not_show_its_beginning() -> None:
    body = chat(KEY[:9]) + chat(KEY[9:15])
    assert said(masked([body])) == "***"
    for end in range(len(chat(KEY[:9])) + 1, len(body)):
        assert KEY[:6].encode() not in masked([body[:end]])


def test_a_key_that_begins_with_another_key_is_masked_in_pieces_too() -> None:
    longer = KEY + "-and-more"
    for cut in range(1, len(KEY)):
        shown = said(masked([chat(longer[:cut]) + chat(longer[cut:])], KEY, longer))
        assert_hidden(shown, "", "", longer)
    assert said(masked([chat(KEY[:9]) + chat(KEY[9:]) + chat("!")], KEY, longer)) == "***!"


def test_bytes_that_are_not_text_next_to_a_key_do_not_stop_the_log() -> None:
    body = b'{"content":"\xff' + KEY[:9].encode() + b'"}\n{"content":"' + KEY[9:].encode() + b'"}\n'
    assert masked([body]) == b'{"content":"\\ufffd***"}\n{"content":""}\n'


@given(
    st.lists(st.sampled_from([KEY, KEY[:7], KEY[7:], "sk-", '"', "\\", "\u00e9", "\ud83d", "\n", " x "]), max_size=8),
    st.lists(st.integers(0, 60), max_size=6),
    st.integers(1, 40),
)
@example([KEY], [3, 9], 7)
def test_a_log_never_contains_a_joined_key_and_is_exact_without_one(
    texts: list[str], cuts: list[int], size: int
) -> None:
    text = "".join(texts)
    places = sorted({0, *(cut for cut in cuts if cut < len(text)), len(text)})
    body = b"".join(chat(text[begin:end]) for begin, end in pairwise(places))
    shown = masked(body[at : at + size] for at in range(0, len(body), size))
    assert KEY not in said(shown)
    if not any(KEY[:length] in text for length in (5, 6)):
        assert shown == body


def test_the_log_of_a_model_contains_no_key_in_pieces_and_can_be_decoded(tmp_path: Path) -> None:
    path = tmp_path / "raw.jsonl"
    called = {"index": 0, "id": "c1", "function": {"name": "search", "arguments": '{"q": "' + KEY[:8]}}
    body = [
        chat(f"Your key: {KEY[:6]}"),
        chat(KEY[6:12]),
        chat(f"{KEY[12:]}. "),
        event({"choices": [{"index": 0, "delta": {"tool_calls": [called]}}]}),
        chat_arguments(KEY[8:] + '"}'),
        event({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}),
        b"data: [DONE]\n\n",
    ]
    play(streams(body), path)
    (exchange,) = exchanges(path)
    decoder = Decoder("openai-chat")
    deltas = [delta for chunk in exchange.chunks for delta in decoder.feed(chunk)]
    deltas += decoder.end()
    assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == "Your key: ***. "
    assert [delta.call.arguments for delta in deltas if isinstance(delta, CallReady)] == [{"q": "***"}]
    assert "0123456789" not in path.read_text()
