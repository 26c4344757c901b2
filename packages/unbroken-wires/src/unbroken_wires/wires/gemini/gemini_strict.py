"""gemini: what `generateContent` refuses. Neighbouring turns of the user are allowed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import ClassVar

from unbroken_wires.wires.event_shapes import Event, Events, EventShapes, ForTests, TooLong
from unbroken_wires.wires.json_access import Object, as_dict, as_list, as_text, dicts
from unbroken_wires.wires.strict import (
    LIST,
    LIST_OR_OBJECT,
    OBJECT,
    TEXT,
    TEXT_OR_OBJECT,
    Fields,
    check_names,
    check_types,
)

_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}")

_FIELDS: Fields = {
    "contents": LIST,
    "tools": LIST_OR_OBJECT,
    "toolConfig": OBJECT,
    "generationConfig": OBJECT,
    "systemInstruction": TEXT_OR_OBJECT,
}
_CONTENTS: Fields = {"role": TEXT, "parts": LIST_OR_OBJECT}


def check_shape(body: Object) -> list[str]:
    return check_types(body, _FIELDS, {"contents": _CONTENTS, "tools": {}}, "contents")


def check_request(body: Object) -> list[str]:
    problems = _check_tools(body)
    contents = dicts(body.get("contents"))
    if contents[0].get("role") not in ("user", None):
        problems.append("contents[0]: the first turn must be the user's")
    calls: list[Object] = []
    for n, content in enumerate(contents):
        where, parts = f"contents[{n}]", dicts(content.get("parts"))
        problems += _check_content(where, content)
        responses = [as_dict(part["functionResponse"]) for part in parts if "functionResponse" in part]
        problems += _check_responses(where, calls, responses)
        calls = [as_dict(part["functionCall"]) for part in parts if "functionCall" in part]
        if calls and n and contents[n - 1].get("role") == "model":
            problems.append(f"{where}: a call must come right after a turn of the user or a function's response")
    return problems + _check_responses("the end", calls, [])


def _check_tools(body: Object) -> list[str]:
    declared = [function for tool in dicts(body.get("tools")) for function in dicts(tool.get("functionDeclarations"))]
    names = [as_text(function.get("name")) for function in declared]
    calling = as_dict(as_dict(body.get("toolConfig")).get("functionCallingConfig"))
    allowed = as_list(calling.get("allowedFunctionNames"))
    problems = check_names("tools", names, _NAME)
    if calling and not names:
        problems.append("toolConfig: there are no functions")
    if allowed and calling.get("mode") not in ("ANY", "VALIDATED"):
        problems.append("toolConfig.allowedFunctionNames: only in the modes ANY and VALIDATED")
    return problems + [f"toolConfig: there is no function {name!r}" for name in allowed if name not in names]


def _check_content(where: str, content: Object) -> list[str]:
    role, parts = content.get("role"), dicts(content.get("parts"))
    problems = [] if role in ("user", "model", "function", None) else [f"{where}: there is no role {role!r}"]
    if not parts:
        problems.append(f"{where}: no parts")
    for part in parts:
        if not _says(part):
            problems.append(f"{where}: an empty part")
        if "functionCall" in part:
            call = as_dict(part["functionCall"])
            problems += check_names(where, [as_text(call.get("name"))], _NAME)
            if role != "model":
                problems.append(f"{where}: a call in a turn of the user")
            if not isinstance(call.get("args", {}), dict):
                problems.append(f"{where}: the args of a call are not an object")
    return problems


def _check_responses(where: str, calls: list[Object], responses: list[Object]) -> list[str]:
    if len(calls) != len(responses):
        return [f"{where}: {len(responses)} function responses to {len(calls)} function calls"]
    problems: list[str] = []
    for call, response in zip(calls, responses, strict=True):
        if call.get("name") != response.get("name"):
            problems.append(f"{where}: a response of {response.get('name')!r} where {call.get('name')!r} was called")
        if call.get("id") != response.get("id"):
            problems.append(f"{where}: a response with the id {response.get('id')!r} to the call {call.get('id')!r}")
        if not isinstance(response.get("response"), dict):
            problems.append(f"{where}: the response of {response.get('name')!r} is not an object")
    return problems


def _says(part: Object) -> bool:
    """Has it a field of content? A text must not be empty, except to carry a signature."""
    if "text" in part:
        return bool(part["text"]) or "thoughtSignature" in part
    return bool(part.keys() - {"thought", "thoughtSignature", "partMetadata"})


# gemini, its events as faults change them: parts of `candidates[].content`, a call always in one of them.


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


FOR_TESTS = ForTests(check_shape, check_request, GeminiEvents())
