"""gemini: the signature that newer models demand on a call, for calls that have none.

Gemini 3 signs the first call of an answer and refuses a history of the current turn in which a first call is unsigned
(400 "Function call is missing a thought_signature"). A call of another wire never had a signature, and one that was
dropped took its signature with it: it may go back only on the very part on which it came, so it is not moved to a
sibling. For both the API documents a placeholder (https://ai.google.dev/gemini-api/docs/thought-signatures#faqs).
"""

from __future__ import annotations

from unbroken.wires.values import Object

PLACEHOLDER = "skip_thought_signature_validator"
"""Of the two documented ones the one that Vertex AI documents too."""

_STRICT = {
    "gemini-3": "documented: strict validation, at every thinking level",
    "gemini-flash-latest": "an alias that has moved on to Gemini 3 and was seen to refuse",
}
"""What a model's name contains, and how we know that the model refuses. Others take unsigned calls as they are."""


def sign(contents: list[Object], model: str) -> None:
    """Put the placeholder on the first call of each content of the current turn, where it has no signature."""
    if not any(name in model for name in _STRICT):
        return
    for content in reversed(contents):
        parts: list[Object] = content["parts"]
        if content["role"] == "model":
            at = next((at for at, part in enumerate(parts) if "functionCall" in part), None)
            if at is not None and not parts[at].get("thoughtSignature"):
                parts[at] = {**parts[at], "thoughtSignature": PLACEHOLDER}
        elif not any("functionResponse" in part for part in parts):
            break  # the turn began here; the API does not look further back
