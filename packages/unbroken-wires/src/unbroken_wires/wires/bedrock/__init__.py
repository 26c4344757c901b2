"""bedrock-converse: Converse and ConverseStream of Amazon Bedrock, one protocol for models of many families."""

from __future__ import annotations

from unbroken_wires.wires.bedrock.converse_content import ID_RULE, NAME, is_all_signed
from unbroken_wires.wires.bedrock.converse_decoder import MARKS, ConverseDecoder, recognises
from unbroken_wires.wires.bedrock.converse_encoder import (
    ConverseEncoder,
    ConverseProviderWriter,
    error_body,
    error_event,
)
from unbroken_wires.wires.bedrock.converse_reasoning import mend_refused, turn_reasoning_off
from unbroken_wires.wires.bedrock.converse_relay import HISTORY, RELAY, ConverseHttp, keep_first_call
from unbroken_wires.wires.bedrock.converse_requests import decode_request, encode_request
from unbroken_wires.wires.framing import EVENT_STREAM
from unbroken_wires.wires.wire import Wire, on_demand

WIRE = Wire(
    name=NAME,
    http=ConverseHttp(),
    encode_request=encode_request,
    decode_request=decode_request,
    id_rule=ID_RULE,
    history=HISTORY,
    decoder=ConverseDecoder,
    encoder=ConverseEncoder,
    provider_writer=ConverseProviderWriter,
    error_body=error_body,
    error_event=error_event,
    keep_first_call=keep_first_call,
    relay=RELAY,
    recognises=recognises,
    marks=MARKS,
    for_tests=on_demand(f"{__name__}.converse_strict", "FOR_TESTS"),
    crossing=on_demand(f"{__name__}.converse_crossing", "CROSSING"),
    server_tools=on_demand(f"{__name__}.converse_server_tools", "SERVER_TOOLS"),
    rules=on_demand(f"{__name__}.converse_rules", "RULES"),
    framing=EVENT_STREAM,
    lost_reasoning={"off": turn_reasoning_off},
    takes_back=is_all_signed,
    mend_refused=mend_refused,
)

__all__ = ["WIRE", "ConverseDecoder", "ConverseEncoder"]
