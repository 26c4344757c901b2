"""Half a character: an emoji split over two events arrives as two halves of a surrogate pair.

The fast JSON parser refuses such an event, the standard one lets the half through; here the halves meet again.
"""

from __future__ import annotations


def join_halves(text: str) -> tuple[str, str]:
    """Join the halves of surrogate pairs; a half at the end waits for the next piece, a lone one becomes U+FFFD."""
    half = ""
    if text and "\ud800" <= text[-1] <= "\udbff":
        text, half = text[:-1], text[-1]
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"), half
