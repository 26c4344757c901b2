"""gemini, its events as faults change them: parts of `candidates[].content`, a call always in one of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from unbroken.wires.event_shapes import Event, Events, EventShapes, TooLong
from unbroken.wires.values import Object, as_dict, dicts


class GeminiEvents(EventShapes):
    in_fragments = False
    text_arguments = ()
    merges_calls = True
    usage_apart = True
    too_long: ClassVar[Mapping[str, TooLong]] = {
        "gemini": TooLong(
            400, "The input token count (1206415) exceeds the maximum number of tokens allowed (1048575)."
        )
    }

    def arguments_in(self, event: Event) -> Iterator[tuple[Object, str]]:
        for part in _parts(event):
            if "functionCall" in part:
                yield part["functionCall"], "args"

    def text_in(self, event: Event) -> tuple[Object, str] | None:
        return next(((part, "text") for part in _parts(event) if isinstance(part.get("text"), str)), None)

    def is_finish(self, event: Event) -> bool:
        return any(candidate.get("finishReason") for candidate in _candidates(event))

    def provider_run(self, events: Events, stream: bool) -> Events:
        code: Object = {"executableCode": {"language": "PYTHON", "code": "print(1)"}}
        result: Object = {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1\n"}}
        first = True
        for event in events:
            for candidate in _candidates(event):
                if first:
                    candidate["content"]["parts"] = [code, result, *candidate["content"]["parts"]]
                    first = False
            yield event

    def all_calls_at_once(self, events: Events) -> Events:
        held: list[Object] = []
        for event in events:
            calls = [part for part in _parts(event) if "functionCall" in part]
            if calls:
                held += calls
                continue
            if held and self.is_finish(event):
                as_dict(event)["candidates"][0]["content"]["parts"] = held
                held = []
            yield event

    def usage_last(self, events: Events) -> Events:
        for event in events:
            if not self.is_finish(event):
                yield event
                continue
            fields = as_dict(event)
            usage = fields.pop("usageMetadata", {"promptTokenCount": 7, "candidatesTokenCount": 5})
            yield event
            yield {"usageMetadata": usage, "modelVersion": fields.get("modelVersion")}


def _candidates(event: Event) -> list[Object]:
    return dicts(as_dict(event).get("candidates"))


def _parts(event: Event) -> list[Object]:
    return [part for candidate in _candidates(event) for part in dicts(candidate["content"]["parts"])]
