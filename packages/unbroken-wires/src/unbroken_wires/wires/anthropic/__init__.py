"""anthropic-messages: the Messages API, where a response is a list of blocks, each with its own begin and end."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from unbroken_wires.wires.anthropic.messages_binding import drop_moved_thinking, drops_moved_thinking
from unbroken_wires.wires.anthropic.messages_content import NAME, is_all_signed, turn_thinking_off
from unbroken_wires.wires.anthropic.messages_decoder import MARKS, MessagesDecoder, recognises
from unbroken_wires.wires.anthropic.messages_encoder import (
    MessagesEncoder,
    MessagesProviderWriter,
    error_body,
    error_event,
)
from unbroken_wires.wires.anthropic.messages_relay import HISTORY, RELAY, MessagesHttp, keep_first_call
from unbroken_wires.wires.anthropic.messages_requests import ID_RULE, NAME_RULE, decode_request, encode_request
from unbroken_wires.wires.anthropic.messages_turns import mend_refused
from unbroken_wires.wires.wire import Wire

if TYPE_CHECKING:
    from unbroken_wires.wires.crossing import Crossing
    from unbroken_wires.wires.event_shapes import ForTests
    from unbroken_wires.wires.rules import Rule
    from unbroken_wires.wires.server_tools import ServerTools


def _for_tests() -> ForTests:
    from unbroken_wires.wires.anthropic.messages_strict import FOR_TESTS  # noqa: PLC0415 - start-up time

    return FOR_TESTS


@cache
def _crossing() -> Crossing:
    from unbroken_wires.wires.anthropic.messages_crossing import CROSSING  # noqa: PLC0415 - start-up time

    return CROSSING


def _rules() -> tuple[Rule, ...]:
    from unbroken_wires.wires.anthropic.messages_rules import RULES  # noqa: PLC0415 - start-up time

    return RULES


def _server_tools() -> ServerTools:
    from unbroken_wires.wires.anthropic.messages_server_tools import SERVER_TOOLS  # noqa: PLC0415 - start-up time

    return SERVER_TOOLS


WIRE = Wire(
    name=NAME,
    http=MessagesHttp(),
    encode_request=encode_request,
    decode_request=decode_request,
    id_rule=ID_RULE,
    name_rule=NAME_RULE,
    history=HISTORY,
    decoder=MessagesDecoder,
    encoder=MessagesEncoder,
    provider_writer=MessagesProviderWriter,
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
    drop_moved_thinking=drop_moved_thinking,
    drops_moved_thinking=drops_moved_thinking,
    lost_reasoning={"off": turn_thinking_off},
    sign_is_last=True,
    takes_back=is_all_signed,
    mend_refused=mend_refused,
)

__all__ = ["WIRE", "MessagesDecoder", "MessagesEncoder"]
