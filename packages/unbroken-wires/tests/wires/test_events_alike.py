"""openai-chat: an event that differs from the previous one only in its text is read without parsing, with the same
result.

Compared with a decoder that parses each event.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from streams import calls_of, chunk, feed, piece, sse

from unbroken import decode
from unbroken_wires.deltas import Delta
from unbroken_wires.wires.openai_chat.chat_decoder import ChatDecoder

TEXTS = st.one_of(
    st.text(max_size=6),
    st.sampled_from(['"', "\\", '"}}]}', '"content":"', '"arguments": "', "{}", "\n\ndata: ", "\ud83d", "\x00", "é😀"]),
)


def event(delta: Any, finish: str | None, tight: bool, ascii_only: bool, **more: Any) -> bytes:
    separators = (",", ":") if tight else (", ", ": ")
    text = json.dumps({**chunk(delta, finish), **more}, separators=separators, ensure_ascii=ascii_only)
    return b"data: " + text.encode("utf-8", "surrogatepass") + b"\n\n"


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Text and calls in pieces, in any order, each event in the format of the previous one or not."""
    tight, ascii_only = draw(st.booleans()), draw(st.booleans())
    out = [event({"role": "assistant", "content": ""}, None, tight, ascii_only)]
    begun: set[int] = set()
    for _ in range(draw(st.integers(1, 12))):
        more: dict[str, Any] = draw(st.sampled_from([{}, {}, {}, {"pad": "x"}, {"usage": None}, {"obfuscation": "r2"}]))
        index = draw(st.sampled_from([None, None, 0, 0, 1]))
        if index is None:
            delta: Any = {"content": draw(TEXTS)}
        elif index not in begun and draw(st.booleans()):
            begun.add(index)
            delta = {"tool_calls": [piece(index, f"c{index}", "f", draw(TEXTS), type="function")]}
        else:
            delta = {"tool_calls": [piece(index, arguments=draw(TEXTS))]}
        spelled = tight if draw(st.integers(0, 4)) else not tight
        out += [event(delta, None, spelled, ascii_only, **more)] * draw(st.sampled_from([1, 1, 2, 3]))
    out.append(event({}, draw(st.sampled_from(["stop", "tool_calls"])), tight, ascii_only))
    return b"".join([*out, b"data: [DONE]\n\n"])


def never(self: ChatDecoder, data: bytes) -> bool:
    return False


def parsed_one_by_one(body: bytes, size: int) -> list[Delta]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ChatDecoder, "again", never)
        return feed(body, size)


@given(bodies(), st.sampled_from([1, 7, 64, 1 << 20]))
def test_the_result_equals_parsing_each_event(body: bytes, size: int) -> None:
    assert feed(body, size) == parsed_one_by_one(body, size)


def test_events_with_the_same_form_are_not_parsed() -> None:
    parsed: list[bytes] = []
    read = ChatDecoder.feed

    def feed_and_count(self: ChatDecoder, event: dict[str, Any], data: bytes) -> None:
        parsed.append(data)
        read(self, event, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ChatDecoder, "feed", feed_and_count)
        words = [
            chunk({"content": word})
            for word in ["Nobody", "has", "to", "read", "all", "of", "this", "again", "and", "again"]
        ]
        assert decode(sse(chunk({"role": "assistant", "content": "So: "}), *words, chunk({}, "stop"))).text
    assert len(parsed) == 3  # the first, the one after which the bytes around the text are known, and the last


def test_a_call_is_built_from_pieces_with_the_same_form() -> None:
    text = json.dumps({"path": 'a "b".txt', "lines": ["\\n", "}", "日本"]})
    pieces = [chunk({"tool_calls": [piece(0, arguments=text[at : at + 3])]}) for at in range(0, len(text), 3)]
    begin = chunk({"tool_calls": [piece(0, "c", "write", "", type="function")]})
    response = decode(sse(begin, *pieces, chunk({}, "tool_calls")))
    assert calls_of(response) == [("c", "write", json.loads(text))]


def test_an_event_that_ends_inside_the_common_form_is_noticed_as_cut() -> None:
    whole = [event({"content": word}, None, tight=True, ascii_only=True) for word in ("one ", "two ", "three")]
    for cut in range(1, len(whole[2]) - 2):
        response = decode(b"".join([*whole[:2], whole[2][:-cut]]))
        assert response.text in ("one two ", "one two three"), cut
        assert not response.complete


def test_a_field_with_the_same_name_elsewhere_is_not_mistaken_for_the_text() -> None:
    def odd(elsewhere: str, text: str) -> bytes:
        body = '{"a":{"content":"%s"},"choices":[{"index":0,"delta":{"content" :"%s"},"finish_reason":null}]}'
        return b"data: " + (body % (elsewhere, text)).encode() + b"\n\n"

    events = [odd("Hi", "Hi"), odd("Hi", "Hi"), odd("X", "Hi"), odd("Y", "Hi")]
    assert decode(b"".join(events)).text == "HiHiHiHi"


def test_a_damaged_text_between_common_bytes_is_damage() -> None:
    events = [event({"content": word}, None, tight=True, ascii_only=True) for word in ("one ", "two ", "XX", "four")]
    for damage in (b"\x01", b'"', b"\\", b"\xff", b'","content":"'):
        broken = [each.replace(b"XX", damage) for each in events]
        body = b"".join([*broken, event({}, "stop", True, True), b"data: [DONE]\n\n"])
        assert feed(body, 1 << 20) == parsed_one_by_one(body, 1 << 20), damage
