"""The scenario for smolagents, which writes calls and results into its history as text and ends with a call of
`final_answer`. Given only one call at a time, it therefore asks the model again after each one.

With an image it is a `CodeAgent`: the answer has a given shape, and in it is code that writes the files.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from story import FILES, FINAL, PROMPT, Story

from unbroken import Request, User
from unbroken.models.scripted import Answer
from unbroken_testing import Call, Uses


class TextStory(Story):
    __slots__ = ()

    @property
    def fields(self) -> list[str]:
        return ["thought", "code"]

    def is_told_in(self, request: Request) -> bool:
        return PROMPT in _text(request) and (self.rich or bool(request.tools))

    def answer(self, request: Request) -> Answer:
        if self.rich:
            return [self._code(), Uses(310, 60)]
        said = _text(request)
        left = [call for call in self.wanted if f"{call[1]['path']} is written" not in said]
        if not left:
            return [Call("final_answer", answer=FINAL), Uses(520, 14)]
        return [*(Call(name, arguments) for name, arguments in left), Uses(310, 60)]

    def _code(self) -> str:
        files = [(f"{self.folder}/{name}", text) for name, text in FILES.items()]
        lines = [f"write_file(path={path!r}, content={text!r})" for path, text in files]
        code = "\n".join([*lines, f"final_answer({FINAL!r})"])
        return json.dumps({"thought": "Three files.", "code": code})

    def problems_with_requests(self, requests: Sequence[Request], reasoning: bool) -> list[str]:
        return self.problems_with_image([request for request in requests if self.is_told_in(request)])

    def counts(self, serial: bool) -> list[int]:
        """How many calls each answer of the gateway has."""
        if self.rich:
            return [0]
        return [1, 1, 1, 1] if serial else [3, 1]


def _text(request: Request) -> str:
    return " ".join(message.text for message in request.messages if isinstance(message, User))
