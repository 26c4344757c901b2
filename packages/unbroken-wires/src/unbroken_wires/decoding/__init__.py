"""From the bytes of one response to deltas and a verdict. Pure: no I/O, no clock."""

from unbroken_wires.decoding.assembler import Shown, StillToSay
from unbroken_wires.decoding.decoder import Decoder, Response, decode, guess_wire

__all__ = ["Decoder", "Response", "Shown", "StillToSay", "decode", "guess_wire"]
