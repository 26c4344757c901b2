"""From the bytes of one response to deltas and a verdict. Pure: no I/O, no clock."""

from unbroken.decoding.decoder import Decoder, Response, decode
from unbroken.decoding.guess import guess_wire
from unbroken.decoding.shown import Shown, StillToSay

__all__ = ["Decoder", "Response", "Shown", "StillToSay", "decode", "guess_wire"]
