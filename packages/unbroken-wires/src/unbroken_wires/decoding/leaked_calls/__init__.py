"""Calls that leaked into the text of a response, recognised dialect by dialect.

`search` finds marks while the text streams, `dialects` defines the forms as data; the grammars of their shapes are in
`literal_forms`, `tagged_forms` and `named_forms`, made of the tokens of `reader`, with the values of `values`.
"""

from unbroken_wires.decoding.leaked_calls.search import DuplicateCalls, Prose, ProseCall

__all__ = ["DuplicateCalls", "Prose", "ProseCall"]
