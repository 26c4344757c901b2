"""openai-chat: Chat Completions, the protocol that most servers imitate, each with deviations of its own."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from unbroken_wires.wires.openai_chat.chat_decoder import MARKS, ChatDecoder, recognises
from unbroken_wires.wires.openai_chat.chat_encoder import (
    ChatEncoder,
    ChatProviderWriter,
    error_body,
    error_event,
    read_plain,
)
from unbroken_wires.wires.openai_chat.chat_messages import ID_RULE, NAME, blank_reasoning
from unbroken_wires.wires.openai_chat.chat_relay import HISTORY, RELAY, ChatHttp, keep_first_call
from unbroken_wires.wires.openai_chat.chat_requests import decode_request, encode_request
from unbroken_wires.wires.wire import Wire

if TYPE_CHECKING:
    from unbroken_wires.wires.crossing import Crossing
    from unbroken_wires.wires.event_shapes import ForTests
    from unbroken_wires.wires.rules import Rule
    from unbroken_wires.wires.server_tools import ServerTools


def _for_tests() -> ForTests:
    from unbroken_wires.wires.openai_chat.chat_strict import FOR_TESTS  # noqa: PLC0415 - start-up time

    return FOR_TESTS


@cache
def _crossing() -> Crossing:
    from unbroken_wires.wires.openai_chat.chat_crossing import CROSSING  # noqa: PLC0415 - start-up time

    return CROSSING


def _rules() -> tuple[Rule, ...]:
    from unbroken_wires.wires.openai_chat.chat_rules import RULES  # noqa: PLC0415 - start-up time

    return RULES


def _server_tools() -> ServerTools:
    from unbroken_wires.wires.openai_chat.chat_server_tools import SERVER_TOOLS  # noqa: PLC0415 - start-up time

    return SERVER_TOOLS


WIRE = Wire(
    name=NAME,
    http=ChatHttp(),
    encode_request=encode_request,
    decode_request=decode_request,
    id_rule=ID_RULE,
    history=HISTORY,
    decoder=ChatDecoder,
    encoder=ChatEncoder,
    provider_writer=ChatProviderWriter,
    error_body=error_body,
    error_event=error_event,
    keep_first_call=keep_first_call,
    relay=RELAY,
    recognises=recognises,
    marks=MARKS,
    for_tests=_for_tests,
    rules=_rules,
    crossing=_crossing,
    server_tools=_server_tools,
    lost_reasoning={"blank": blank_reasoning},
    done_ends=True,
    calls_leak=True,
    native_has_text=False,
    plain=read_plain,
)

__all__ = ["WIRE", "ChatDecoder", "ChatEncoder"]
