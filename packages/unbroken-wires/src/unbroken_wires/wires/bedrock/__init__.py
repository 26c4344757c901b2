"""bedrock-converse: Converse and ConverseStream of Amazon Bedrock, one protocol for models of many families."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

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
from unbroken_wires.wires.wire import Wire

if TYPE_CHECKING:
    from unbroken_wires.wires.crossing import Crossing
    from unbroken_wires.wires.event_shapes import ForTests
    from unbroken_wires.wires.rules import Rule
    from unbroken_wires.wires.server_tools import ServerTools


@cache
def _crossing() -> Crossing:
    from unbroken_wires.wires.bedrock.converse_crossing import CROSSING  # noqa: PLC0415 - start-up time

    return CROSSING


def _rules() -> tuple[Rule, ...]:
    from unbroken_wires.wires.bedrock.converse_rules import RULES  # noqa: PLC0415 - start-up time

    return RULES


@cache
def _for_tests() -> ForTests:
    from unbroken_wires.wires.bedrock.converse_strict import (  # noqa: PLC0415 - start-up time
        ConverseEvents,
        check_request,
        check_shape,
    )
    from unbroken_wires.wires.event_shapes import ForTests  # noqa: PLC0415 - start-up time

    return ForTests(check_shape, check_request, ConverseEvents())


def _server_tools() -> ServerTools:
    from unbroken_wires.wires.bedrock.converse_server_tools import SERVER_TOOLS  # noqa: PLC0415 - start-up time

    return SERVER_TOOLS


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
    for_tests=_for_tests,
    crossing=_crossing,
    server_tools=_server_tools,
    rules=_rules,
    framing=EVENT_STREAM,
    lost_reasoning={"off": turn_reasoning_off},
    takes_back=is_all_signed,
    mend_refused=mend_refused,
)

__all__ = ["WIRE", "ConverseDecoder", "ConverseEncoder"]
