"""openai-responses: OpenAI's Responses API, where a response is a list of items."""

from __future__ import annotations

from unbroken_wires.wires.openai_responses.responses_decoder import MARKS, ResponsesDecoder, recognises
from unbroken_wires.wires.openai_responses.responses_encoder import (
    ResponsesEncoder,
    ResponsesProviderWriter,
    error_body,
    error_event,
)
from unbroken_wires.wires.openai_responses.responses_http import ResponsesHttp
from unbroken_wires.wires.openai_responses.responses_items import NAME
from unbroken_wires.wires.openai_responses.responses_messages import ID_RULE
from unbroken_wires.wires.openai_responses.responses_relay import HISTORY, RELAY, keep_first_call
from unbroken_wires.wires.openai_responses.responses_requests import decode_request, encode_request
from unbroken_wires.wires.wire import Wire, on_demand

WIRE = Wire(
    name=NAME,
    http=ResponsesHttp(),
    encode_request=encode_request,
    decode_request=decode_request,
    id_rule=ID_RULE,
    history=HISTORY,
    decoder=ResponsesDecoder,
    encoder=ResponsesEncoder,
    provider_writer=ResponsesProviderWriter,
    error_body=error_body,
    error_event=error_event,
    keep_first_call=keep_first_call,
    relay=RELAY,
    recognises=recognises,
    marks=MARKS,
    for_tests=on_demand(f"{__name__}.responses_strict", "FOR_TESTS"),
    rules=on_demand(f"{__name__}.responses_rules", "RULES"),
    crossing=on_demand(f"{__name__}.responses_crossing", "CROSSING"),
    server_tools=on_demand(f"{__name__}.responses_server_tools", "SERVER_TOOLS"),
    native_has_text=False,
    sign_is_last=True,
)

__all__ = ["WIRE", "ResponsesDecoder", "ResponsesEncoder"]
