"""A stored turn: restored exactly, and found by what distinguishes it from others."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbroken_gateway.stores.store import MARK, EmptiedStore, MemoryStore
from unbroken_gateway.turns import turn as turns
from unbroken_gateway.turns.call_ids import is_named, is_random, new_call_id
from unbroken_gateway.turns.turn import (
    Hold,
    Turn,
    call_key,
    chain,
    is_retold,
    read_hold,
    read_turn,
    said_key,
    same_call,
    turn_key,
    words,
    write_hold,
    write_turn,
)
from unbroken_gateway.turns.turn_store import EMPTY, TurnStore
from unbroken_wires.messages import Assistant, Media, Native, System, ToolCall, ToolMessage, ToolResult, User


def call(raw: str, id: str = "call_q7Zp2mX91aKd", name: str = "look") -> ToolCall:
    return ToolCall(id, name, json.loads(raw), raw)


def kept(*calls: ToolCall, native: Native | None = None) -> Turn:
    return Turn("turn:1", Assistant("Let me look.", calls, native=native), tuple(c.id for c in calls), True, None, 9.0)


@pytest.mark.parametrize(
    "raw",
    [
        '{"n": 1180591620717411303425}',
        '{"s": "\\ud83d"}',
        '{"n": 1e400}',
        '{"n": -1e400, "big": [99999999999999999999]}',
        '{"s": "\\u0000 \\ud83d\\ude00"}',
        "{}",
    ],
)
def test_arguments_are_restored_exactly(raw: str) -> None:
    turn = kept(call(raw))
    again = read_turn("turn:1", write_turn(turn))
    assert again == turn


def test_data_of_one_wire_is_restored_exactly() -> None:
    native = Native("anthropic-messages", [{"signature": "é\ud83d", "n": 2**80}], ("a",), "anthropic at x:1")
    turn = kept(call("{}", "a"), native=native)
    assert read_turn("turn:1", write_turn(turn)) == turn


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4), st.text(max_size=10))
def test_any_turn_is_restored(arguments: dict[str, object], text: str) -> None:
    made = ToolCall("a", "look", arguments, json.dumps(arguments))
    turn = replace(kept(made), shown=text)
    assert read_turn("turn:1", write_turn(turn)) == turn


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"v": 2}', b'{"v": 1}', b'{"v": 1, "message": 3, "until": 1}'])
def test_an_unreadable_turn_is_ignored(data: bytes) -> None:
    assert read_turn("turn:1", data) is None


def test_a_hold_is_restored() -> None:
    hold = Hold(12.5, closed=True)
    assert read_hold(write_hold(hold)) == hold
    assert read_hold(None) is None


@pytest.mark.parametrize(
    "id",
    [
        "toolu_01A09q90qw90lq917835",
        "call_q7Zp2mX91aKd",
        "chatcmpl-tool-7dd97b806ffa4618b7e6820ca883ab4c",
        "call_00_kUUlyzAFHF3QQjGD",
        "D681PevKs",
        "0f8fad5b-d9cb-469f-a165-70867728950e",
    ],
)
def test_ids_of_providers_distinguish_conversations(id: str) -> None:
    assert is_random(id, "get_weather")


def test_an_id_of_the_gateway_distinguishes_conversations() -> None:
    made = {new_call_id() for _ in range(1000)}
    assert len(made) == 1000
    assert all(is_random(id, "get_weather") for id in made)


@pytest.mark.parametrize(
    "id",
    [
        "",
        "call_0",
        "call_0_1",
        "functions.get_weather:0",
        "get_weather_1",
        "1",
        "tool_call",
        "call_123456789",
        "abc",
        "toolCall0",
        "functionCall0",
        "callNo0000",
        "Call00000A",
        "getWeatherInOslo1",
        "chatcmpl-tool-0123456789abcdef0123456789abcdef",
    ],
)
def test_counting_ids_and_possible_digests_distinguish_nothing(id: str) -> None:
    assert not is_random(id, "get_weather")


def test_a_turn_is_named_only_by_an_id_of_the_gateway() -> None:
    ours = new_call_id()
    turn = kept(call("{}", ours), call("{}", "call_q7Zp2mX91aKd"), call("{}", "call_1"))
    assert is_named(turn, Assistant("", (call("{}", ours),)))
    for other in ("call_q7Zp2mX91aKd", "call_1", new_call_id()):
        assert not is_named(turn, Assistant("", (call("{}", other),)))


def test_half_a_surrogate_pair_does_not_make_it_another_call() -> None:
    assert same_call(call('{"s": "\\ud83d"}'), call('{"s": "\\ufffd"}'))
    assert not same_call(call('{"s": "a"}'), call('{"s": "b"}'))
    assert not same_call(call("{}"), replace(call("{}"), name="listen"))


def test_the_digest_ignores_what_clients_lose_or_rewrite() -> None:
    said = [User.of("Oslo?"), Assistant(" Let me look.\n", (call('{"a": 1, "b": 2}', "x"),), "Hm.")]
    rewritten = [
        System.of("It is noon."),
        User.of("Oslo?"),
        Assistant("Let me look.", (call('{"b": 2, "a": 1}', "y"),)),
    ]
    assert chain(said) == chain(rewritten)


def test_the_digest_distinguishes_content() -> None:
    histories = [
        [User.of("Oslo?")],
        [User.of("Lima?")],
        [User.of("Oslo?"), User.of("Lima?")],
        [Assistant("Oslo?")],
        [User.of("Oslo?", Media(url="https://example.org/a.png"))],
        [User.of("Oslo?", Media(url="https://example.org/b.png"))],
        [Assistant("", (call("{}"),))],
        [Assistant("", (call('{"a": 1}'),))],
        [ToolMessage((ToolResult.of(call("{}"), "a"), ToolResult.of(call("{}"), "b")))],
        [ToolMessage((ToolResult.of(call("{}"), "b"), ToolResult.of(call("{}"), "a")))],
    ]
    assert len({chain(history) for history in histories}) == len(histories)


def test_results_that_arrive_together_or_separately_are_equal() -> None:
    one, two = ToolResult.of(call("{}"), "a"), ToolResult.of(call("{}"), "b")
    assert chain([ToolMessage((one, two))]) == chain([ToolMessage((one,)), ToolMessage((two,))])


def test_reasoning_that_a_client_writes_before_the_text_is_not_part_of_it() -> None:
    assert words("<think>\nHm.\n</think>\n\nLet me look. ") == "Let me look."
    assert words("<think>never ends") == "<think>never ends"


def test_keys_of_one_scope_are_unknown_in_another() -> None:
    digest, message = chain([User.of("Oslo?")]), Assistant("Hi.")
    keys = {
        key
        for scope in ("", "ann", "bob")
        for key in (call_key(scope, "a"), said_key(scope, digest), turn_key(scope, digest, message, ()))
    }
    assert len(keys) == 9


def test_two_answers_with_the_same_beginning_have_two_keys() -> None:
    digest = chain([User.of("Oslo?")])
    first = Assistant("", (call("{}", "a"), call('{"n": 1}', "b")))
    second = Assistant("", (call("{}", "a"), call('{"n": 2}', "b")))
    assert turn_key("", digest, first, ("a", "b")) != turn_key("", digest, second, ("a", "b"))


@pytest.mark.parametrize(
    ("own", "told"),
    [
        ('{"n": 1234567890123456789}', '{"n": 1234567890123456800}'),
        ('{"n": 1}', '{"n": 1.0}'),
        ('{"a": 1}', '{"a": 1, "limit": 10}'),
        ('{"a": 1, "b": null}', '{"a": 1}'),
        ('{"s": " Oslo\\n"}', '{"s": "Oslo"}'),
        ('{"l": [1, {"a": 2}]}', '{"l": [1, {"a": 2, "b": false}]}'),
    ],
)
def test_a_call_that_a_client_parsed_and_rewrote_is_the_same_call(own: str, told: str) -> None:
    assert is_retold(call(own), call(told))


@pytest.mark.parametrize(
    ("own", "told"),
    [
        ('{"s": "Oslo"}', '{"s": "Lima"}'),
        ('{"a": 1}', '{"a": 2}'),
        ('{"a": true}', '{"a": 1}'),
        ('{"a": 1}', "{}"),
        ('{"l": [1]}', '{"l": [1, 2]}'),
        ('{"a": {}}', '{"a": []}'),
    ],
)
def test_a_changed_call_is_another(own: str, told: str) -> None:
    assert not is_retold(call(own), call(told))


def test_a_remembered_digest_equals_a_computed_one() -> None:
    image = Media("image/png", "AAAA", native=Native("openai-chat", {"type": "image_url"}))
    messages = (
        System.of("Be kind."),
        User.of("How is Oslo?", image),
        Assistant("Let me look.", (call('{"city": "Oslo"}'), call('{"n": 1}', "b"))),
        ToolMessage((ToolResult.of(call("{}"), "wet"), ToolResult.of(call("{}", "b"), "7"))),
        Assistant("", (ToolCall("c", "look", None, '{"city": "Os'),)),
        User.of("And?"),
    )
    turns._KNOWN.clear()  # pyright: ignore[reportPrivateUsage]
    made = chain(messages)
    again = chain([replace(message) for message in messages])
    turns._KNOWN.clear()  # pyright: ignore[reportPrivateUsage]
    assert made == again == chain(messages)
    for place, message in enumerate(messages[1:], start=1):
        other = User.of("something else") if not isinstance(message, User) else Assistant("something else")
        assert chain([*messages[:place], other, *messages[place + 1 :]]) != made


def test_only_a_limited_number_of_digests_is_remembered() -> None:
    for number in range(5000):
        chain([User.of(str(number))])
    assert 0 < len(turns._KNOWN) <= turns._MOST_KNOWN  # pyright: ignore[reportPrivateUsage]


def test_a_turn_that_another_replica_listed_is_found_even_if_nothing_was_there_a_moment_ago() -> None:
    """Two people send the same, and their client sends no id that distinguishes them."""
    turn = replace(kept(call("{}", "call_0")), key="turn:" + 16 * "0a")
    history = (User.of("Hello."), turn.message)

    async def story() -> None:
        store = MemoryStore()
        one, other = (TurnStore(store, 60.0, 60.0, lambda: 1.0) for _ in range(2))
        assert not (await one.find("", history, b"12345678", required=True)).turns
        await other.keep("", turn, chain(history), b"12345678", required=True)
        (found,) = (await one.find("", history, b"12345678", required=True)).turns[1]
        assert found.message == turn.message

    asyncio.run(story())


def test_an_empty_list_is_remembered_for_a_while_if_nothing_depends_on_it() -> None:
    history = (User.of("Hello."), Assistant("Let me look.", (call("{}", "call_0"),)))
    clock = [1.0]

    class Counted(MemoryStore):
        reads = 0

        async def get(self, keys: Sequence[str]) -> list[bytes | None]:
            self.reads += 1
            return await super().get(keys)

    async def story() -> None:
        store = Counted()
        replica = TurnStore(store, 60.0, 60.0, lambda: clock[0])
        for _ in range(3):
            await replica.find("", history, b"12345678", required=False)
        assert store.reads == 1
        clock[0] += EMPTY
        await replica.find("", history, b"12345678", required=False)
        assert store.reads == 2

    asyncio.run(story())


class Replica:
    """One of several processes that watch whether their store was emptied."""

    def __init__(self, store: MemoryStore, clock: list[float]) -> None:
        self._store = store
        self._watch = EmptiedStore(store, 800.0, 100.0, lambda: clock[0])
        self.begin = self._watch.begin

    async def doubts(self) -> bool:
        (value,) = await self._store.get([MARK])
        return await self._watch.look(value)


def test_an_emptied_store_is_noticed_and_reported_to_replicas_that_start_later() -> None:
    async def story() -> None:
        clock = [0.0]
        store = MemoryStore(now=lambda: clock[0])
        one, other = Replica(store, clock), Replica(store, clock)
        for replica in (one, other):
            await replica.begin()
            assert not await replica.doubts()
        MemoryStore.__init__(store, now=lambda: clock[0])
        assert await one.doubts()
        assert await Replica(store, clock).doubts()
        assert await other.doubts()
        clock[0] += 99.0
        assert await one.doubts()
        clock[0] += 2.0
        assert not any([await one.doubts(), await other.doubts(), await Replica(store, clock).doubts()])

    asyncio.run(story())


def test_replicas_that_start_at_the_same_time_do_not_mistake_each_other_for_an_emptied_store() -> None:
    async def story() -> None:
        clock = [0.0]
        store = MemoryStore(now=lambda: clock[0])
        replicas = [Replica(store, clock) for _ in range(8)]
        watches = [EmptiedStore(store, 800.0, 100.0, lambda: clock[0]) for _ in range(8)]
        for watch in watches:  # each has read that nothing is there, before any has written
            assert not await watch.look(None)
        (value,) = await store.get([MARK])
        assert [await watch.look(value) for watch in watches] == [False] * 8
        assert not any([await replica.doubts() for replica in replicas])

    asyncio.run(story())


@pytest.mark.parametrize("idle", [90.0, 700.0, 900.0])
def test_a_long_unused_store_does_not_count_as_emptied(idle: float) -> None:
    async def story() -> None:
        clock = [0.0]
        store = MemoryStore(now=lambda: clock[0])
        replica = Replica(store, clock)
        for _ in range(12):
            await replica.begin()
            assert not await replica.doubts()
            clock[0] += idle

    asyncio.run(story())


def test_a_damaged_mark_breaks_nothing() -> None:
    async def story() -> None:
        store = MemoryStore(now=lambda: 0.0)
        replica = Replica(store, [0.0])
        await store.put({MARK: b"\xff" * 20}, 60.0)
        await replica.begin()
        assert not await replica.doubts()

    asyncio.run(story())


def test_large_and_small_requests_are_digested_in_parallel() -> None:
    """Large ones in a separate thread."""
    failed: list[BaseException] = []

    def digest_many(name: str) -> None:
        try:
            for number in range(20_000):
                chain([User.of(f"{name} {number}")])
        except BaseException as error:  # noqa: BLE001 - it is told below
            failed.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=digest_many, args=(name,)) for name in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert failed == []
    assert chain([User.of("a 1")]) == chain([User.of("a 1")])


def test_a_turn_with_numbers_of_every_size_has_a_key_and_is_restored() -> None:
    turn = kept(call('{"n": 1180591620717411303425, "m": 1e400}'))
    assert turn_key("", b"", turn.message, turn.ids).startswith("turn:")
    read = read_turn("turn:1", write_turn(turn))
    assert read is not None
    assert read.message == turn.message
