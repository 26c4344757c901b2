"""openai-chat: Chat Completions, the protocol that most servers imitate, each with deviations of its own."""

from __future__ import annotations

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
from unbroken_wires.wires.wire import Wire, on_demand

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
    for_tests=on_demand(f"{__name__}.chat_strict", "FOR_TESTS"),
    rules=on_demand(f"{__name__}.chat_rules", "RULES"),
    crossing=on_demand(f"{__name__}.chat_crossing", "CROSSING"),
    server_tools=on_demand(f"{__name__}.chat_server_tools", "SERVER_TOOLS"),
    lost_reasoning={"blank": blank_reasoning},
    done_ends=True,
    calls_leak=True,
    native_has_text=False,
    plain=read_plain,
)

__all__ = ["WIRE", "ChatDecoder", "ChatEncoder"]
