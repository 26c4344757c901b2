"""anthropic-messages: the Messages API, where a response is a list of blocks, each with its own begin and end."""

from __future__ import annotations

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
from unbroken_wires.wires.wire import Wire, on_demand

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
    for_tests=on_demand(f"{__name__}.messages_strict", "FOR_TESTS"),
    rules=on_demand(f"{__name__}.messages_rules", "RULES"),
    crossing=on_demand(f"{__name__}.messages_crossing", "CROSSING"),
    server_tools=on_demand(f"{__name__}.messages_server_tools", "SERVER_TOOLS"),
    drop_moved_thinking=drop_moved_thinking,
    drops_moved_thinking=drops_moved_thinking,
    lost_reasoning={"off": turn_thinking_off},
    sign_is_last=True,
    takes_back=is_all_signed,
    mend_refused=mend_refused,
)

__all__ = ["WIRE", "MessagesDecoder", "MessagesEncoder"]
