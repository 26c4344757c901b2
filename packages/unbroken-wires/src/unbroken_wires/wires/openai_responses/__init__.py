"""openai-responses: OpenAI's Responses API, where a response is a list of items."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

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
from unbroken_wires.wires.wire import Wire

if TYPE_CHECKING:
    from unbroken_wires.wires.crossing import Crossing
    from unbroken_wires.wires.event_shapes import ForTests
    from unbroken_wires.wires.rules import Rule
    from unbroken_wires.wires.server_tools import ServerTools


def _for_tests() -> ForTests:
    from unbroken_wires.wires.openai_responses.responses_strict import FOR_TESTS  # noqa: PLC0415 - start-up time

    return FOR_TESTS


@cache
def _crossing() -> Crossing:
    from unbroken_wires.wires.openai_responses.responses_crossing import CROSSING  # noqa: PLC0415 - start-up time

    return CROSSING


def _rules() -> tuple[Rule, ...]:
    from unbroken_wires.wires.openai_responses.responses_rules import RULES  # noqa: PLC0415 - start-up time

    return RULES


def _server_tools() -> ServerTools:
    from unbroken_wires.wires.openai_responses.responses_server_tools import SERVER_TOOLS  # noqa: PLC0415 - start-up time

    return SERVER_TOOLS


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
    for_tests=_for_tests,
    rules=_rules,
    crossing=_crossing,
    server_tools=_server_tools,
    native_has_text=False,
    sign_is_last=True,
)

__all__ = ["WIRE", "ResponsesDecoder", "ResponsesEncoder"]
