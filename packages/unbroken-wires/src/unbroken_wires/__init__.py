"""What language models write and what they are sent: messages, deltas, decoding, wires, transcript. No I/O."""
