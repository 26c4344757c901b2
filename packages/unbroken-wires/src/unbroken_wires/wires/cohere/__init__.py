"""cohere-v2: the Chat API v2 of Cohere, where a call often follows a plan in words (`tool_plan`)."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from unbroken_wires.wires.cohere.cohere_decoder import MARKS, CohereDecoder, recognises
from unbroken_wires.wires.cohere.cohere_encoder import CohereEncoder, CohereProviderWriter, error_body, error_event
from unbroken_wires.wires.cohere.cohere_messages import NAME
from unbroken_wires.wires.cohere.cohere_relay import HISTORY, RELAY, CohereHttp, keep_first_call
from unbroken_wires.wires.cohere.cohere_requests import decode_request, encode_request
from unbroken_wires.wires.wire import Wire

if TYPE_CHECKING:
    from unbroken_wires.wires.crossing import Crossing
    from unbroken_wires.wires.event_shapes import ForTests
    from unbroken_wires.wires.rules import Rule


@cache
def _crossing() -> Crossing:
    from unbroken_wires.wires.cohere.cohere_crossing import CROSSING  # noqa: PLC0415 - start-up time

    return CROSSING


def _rules() -> tuple[Rule, ...]:
    from unbroken_wires.wires.cohere.cohere_rules import RULES  # noqa: PLC0415 - start-up time

    return RULES


@cache
def _for_tests() -> ForTests:
    from unbroken_wires.wires.cohere.cohere_strict import (  # noqa: PLC0415 - start-up time
        CohereEvents,
        check_request,
        check_shape,
    )
    from unbroken_wires.wires.event_shapes import ForTests  # noqa: PLC0415 - start-up time

    return ForTests(check_shape, check_request, CohereEvents())


WIRE = Wire(
    name=NAME,
    http=CohereHttp(),
    encode_request=encode_request,
    decode_request=decode_request,
    id_rule=None,
    history=HISTORY,
    decoder=CohereDecoder,
    encoder=CohereEncoder,
    provider_writer=CohereProviderWriter,
    error_body=error_body,
    error_event=error_event,
    keep_first_call=keep_first_call,
    relay=RELAY,
    recognises=recognises,
    marks=MARKS,
    for_tests=_for_tests,
    crossing=_crossing,
    rules=_rules,
    imitates="openai-chat",
    sign_is_last=True,
    native_has_text=False,
)

__all__ = ["WIRE", "CohereDecoder", "CohereEncoder"]
