"""Calls that leaked into the text of a response, recognised dialect by dialect.

`search` finds marks while the text streams, `dialects` defines the forms as data, `forms` and `reader` are what their
grammars are made of.
"""

from unbroken.decoding.prose.search import Prose, ProseCall, Twins

__all__ = ["Prose", "ProseCall", "Twins"]
