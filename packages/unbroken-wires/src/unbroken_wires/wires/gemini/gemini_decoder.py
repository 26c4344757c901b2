"""gemini, reading responses: a chunk of a stream and a complete body have the same shape here.

The wire has no switch for parallel calls and no cache marks; a limit of one call at a time has to be enforced above.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from unbroken_wires.deltas import Meaning
from unbroken_wires.messages import Json, ServerCall, Usage
from unbroken_wires.wires.gemini.gemini_parts import (
    GROUNDING,
    TEXT_KEYS,
    PartialArguments,
    Parts,
    camel,
    camel_part,
    plain,
)
from unbroken_wires.wires.json_access import Object, as_dict, as_int, as_list, as_text
from unbroken_wires.wires.jsontext import dump_arguments, exact
from unbroken_wires.wires.wire import Receiver

_INSIDE = frozenset(("candidates", "promptFeedback", "usageMetadata", "modelVersion", "responseId"))
_SNAKE = frozenset(("prompt_feedback", "usage_metadata"))
_OURS = _INSIDE | _SNAKE | {"error"}

_SNAKE_PARTS = frozenset(
    (
        "function_call",
        "function_response",
        "inline_data",
        "file_data",
        "executable_code",
        "code_execution_result",
        "tool_call",
        "tool_response",
        "thought_signature",
    )
)

_NO_REASON = (None, "", 0, "FINISH_REASON_UNSPECIFIED", "BLOCK_REASON_UNSPECIFIED", "BLOCKED_REASON_UNSPECIFIED")

_REFUSALS = (
    "SAFETY RECITATION LANGUAGE OTHER BLOCKLIST PROHIBITED_CONTENT SPII IMAGE_SAFETY IMAGE_PROHIBITED_CONTENT "
    "IMAGE_RECITATION IMAGE_OTHER NO_IMAGE MODEL_ARMOR"
)
_MEANINGS: dict[str, Meaning] = {
    "STOP": "done",
    "1": "done",
    "MAX_TOKENS": "length",
    "2": "length",  # Vertex has been seen to send the numbers of the enum; 3 to 9 all mean that it refused
    **dict.fromkeys(_REFUSALS.split(), cast("Meaning", "refused")),
    **dict.fromkeys("3456789", cast("Meaning", "refused")),
}

# The model wrote something that could not be read, so there is no answer to continue with.
_FAILURES = {
    "MALFORMED_FUNCTION_CALL",
    "UNEXPECTED_TOOL_CALL",
    "TOO_MANY_TOOL_CALLS",
    "MISSING_THOUGHT_SIGNATURE",
    "MALFORMED_RESPONSE",
}

# A `toolResponse` is the answer to a `toolCall` that was reported before: kept, but not a call.
_SERVER_CALLS = ("executableCode", "codeExecutionResult", "toolCall")


_TOOLS = {"GOOGLE_SEARCH_WEB": "web_search", "URL_CONTEXT": "web_fetch", "FILE_SEARCH": "file_search"}
"""What the tools do that Google runs, by the types of their calls."""
_PAID_ONCE = ("gemini-1", "gemini-2")
"""Models whose searches cost the same, however many an answer needs."""


class _Streamed:
    """A call whose arguments come in `partialArgs`, over many chunks. `arguments` is None once they cannot be read."""

    __slots__ = ("arguments", "id", "key", "name", "nameless", "part")

    def __init__(self, key: int, id: str, name: str, part: Object) -> None:
        self.key = key
        self.id = id
        self.name = name
        self.nameless = False
        """It has continued without its name, so a name belongs to another call."""
        self.arguments: PartialArguments | None = PartialArguments()
        self.part = {**part, "functionCall": {"name": name, "args": self.arguments.value}}
        if id:
            self.part["functionCall"]["id"] = id

    def goes_on_in(self, call: Object, id: str, name: str) -> bool:
        if id and self.id and id != self.id:
            return False
        if name:
            return name == self.name and not self.nameless and not call.get("args")
        self.nameless = True
        return True


MARKS = (b'"candidates"',)
"""Near the beginning of every response."""


def recognises(event: Object) -> bool:
    """Is it an event or a body of this wire? Code Assist wraps each in a `response`."""
    if "candidates" in as_dict(event.get("response")) or "status" in as_dict(event.get("error")):
        return True
    return "candidates" in event or "usageMetadata" in event or "promptFeedback" in event


class GeminiDecoder:
    """Chunks and non-streaming bodies. Only the first candidate.

    Names are the API's, in camelCase. Proxies that print a client library's objects write them in snake_case, and Code
    Assist puts each chunk into `response`: both are read where the usual names are missing, and kept as usual ones.
    """

    def __init__(self, receiver: Receiver) -> None:
        self.recognised = False
        self._to = receiver
        self._parts = Parts()
        self._calls = 0
        self._streamed: _Streamed | None = None
        self._usage: Json = None
        self._grounding: Object = {}
        self._codes = 0
        self._queries = 0
        """Programs that the provider ran, and searches that it made."""
        self._counted = 0
        """Searches in the usage that was reported last."""

    def feed(self, event: Object, data: bytes) -> None:
        event = _unwrapped(event)
        if not _OURS.isdisjoint(event):
            self.recognised = True
        candidates = event.get("candidates")
        if isinstance(candidates, list):
            for position, candidate in enumerate(cast("list[Json]", candidates)):
                if isinstance(candidate, dict) and cast("Object", candidate).get("index") in (None, 0, "0"):
                    self._candidate(cast("Object", candidate), position, event, data)
                    break
        feedback = event.get("promptFeedback") or event.get("prompt_feedback")
        if feedback:
            self._feedback(camel(as_dict(feedback)), answered=bool(event.get("candidates")))
        usage = event.get("usageMetadata") or event.get("usage_metadata")
        if usage and isinstance(usage, dict) and (usage != self._usage or self._queries != self._counted):
            self._usage, self._counted = cast("Object", usage), self._queries
            searches = self._queries if not as_text(event.get("modelVersion")).startswith(_PAID_ONCE) else 1
            counted = _usage(self._usage)
            self._to.usage(replace(counted, web_searches=searches) if self._queries else counted)
        if event.get("error"):
            self._to.error(event["error"])

    def native(self) -> Json:
        parts = self._parts.whole()
        if self._grounding:
            return [*parts, {GROUNDING: self._grounding}]
        return None if plain(parts) else parts

    def kept(self) -> object:
        return self._parts.kept(), self._grounding

    def _candidate(self, candidate: Object, position: int, event: Object, data: bytes) -> None:
        parts = as_dict(candidate.get("content")).get("parts")
        if parts and not isinstance(parts, list):
            raise ValueError("the parts of the content are not a list")
        if isinstance(parts, list):
            parts = cast("list[Json]", parts)
            if any("functionCall" in part or "function_call" in part for part in parts if isinstance(part, dict)):
                again: Json = exact(event, data, parts)
                if again is not event:
                    if isinstance(again, list):
                        (again,) = cast("list[Json]", again)
                    parts = _unwrapped(again)["candidates"][position]["content"]["parts"]
            for part in parts:
                if isinstance(part, dict):
                    self._part(cast("Object", part))
        grounding = as_dict(candidate.get(GROUNDING) or candidate.get("grounding_metadata"))
        if grounding:
            self._grounding = camel(grounding)
            self._searched(self._grounding)
        reason = candidate.get("finishReason") or candidate.get("finish_reason")
        if isinstance(reason, str | int) and reason not in _NO_REASON:
            reason = str(reason)
            if reason in _FAILURES:
                words = camel(candidate).get("finishMessage") or "the model's answer could not be used"
                self._to.error({"status": reason, "message": f"{reason}: {words}"})
            self._to.finish(reason, _MEANINGS.get(reason.upper(), "other"))

    def _feedback(self, feedback: Object, answered: bool) -> None:
        reason = feedback.get("blockReason")
        if isinstance(reason, str | int) and reason not in _NO_REASON:
            self._to.finish(str(reason), "refused")
        elif feedback.get("blockReasonMessage") and not answered:
            self._to.finish("", "refused")

    def _part(self, part: Object) -> None:
        text = part.get("text")
        if isinstance(text, str):
            thought = part.get("thought") is True
            (self._to.reasoning if thought else self._to.text)(text)
            if part.keys() <= TEXT_KEYS:
                self._parts.text(text, thought)
            else:
                self._parts.add(camel(part) if "thought_signature" in part else part)
            return
        if not _SNAKE_PARTS.isdisjoint(part):
            part = camel_part(part)
        call = part.get("functionCall")
        if isinstance(call, dict):
            self._call(cast("Object", call), part)
            return
        if "inlineData" in part or "fileData" in part:
            self._to.other()
        for type in _SERVER_CALLS:
            item = part.get(type)
            if isinstance(item, dict):
                self._server_call(type, cast("Object", item))
        if isinstance(part.get("toolResponse"), dict):
            self._server_result(cast("Object", part["toolResponse"]))
        self._parts.add(part)

    def _server_call(self, type: str, item: Object) -> None:
        id, arguments = item.get("id"), item.get("args")
        call = ServerCall(
            type,
            # The id that newer models give to code ties it to its result; it is no call's and stays in `item`.
            id=id if type == "toolCall" and isinstance(id, str) else None,
            arguments=cast("Object", arguments) if isinstance(arguments, dict) else None,
            status=as_text(item.get("outcome")) or None,
            item=item,
            tool=_TOOLS.get(as_text(item.get("toolType")), "" if type == "toolCall" else "code_execution"),
        )
        if type == "codeExecutionResult":
            self._to.server_call(call)
            failed = as_text(item.get("output")) or as_text(item.get("outcome"))
            error = "" if item.get("outcome") == "OUTCOME_OK" else failed
            self._to.server_call_ended(ServerCall(type, self._code_id(item), tool=call.tool), error)
            return
        if type == "executableCode":
            self._codes += 1
            code = {"code": item.get("code"), "language": item.get("language")}
            opened = replace(call, id=self._code_id(item), arguments=code, item=None)
        else:
            self._queries += _count_queries(as_dict(arguments)) if call.tool == "web_search" else 0
            opened = replace(call, item=None)
        self._to.server_call_opened(opened)
        self._to.server_call(call)

    def _code_id(self, item: Object) -> str:
        return as_text(item.get("id")) or f"code_{self._codes}"

    def _server_result(self, item: Object) -> None:
        id, tool = as_text(item.get("id")) or None, _TOOLS.get(as_text(item.get("toolType")), "")
        self._to.server_call_ended(ServerCall("toolCall", id, tool=tool))

    def _searched(self, grounding: Object) -> None:
        """A search that only shows in what it found: models answer so as long as there are no functions."""
        queries = [query for query in as_list(grounding.get("webSearchQueries")) if isinstance(query, str)]
        if queries and not self._queries:
            call = ServerCall("googleSearch", "search_1", arguments={"queries": queries}, tool="web_search")
            self._to.server_call_opened(call)
            self._to.server_call_ended(call)
        self._queries = max(self._queries, len(queries))

    def _call(self, call: Object, part: Object) -> None:
        id, name, arguments = as_text(call.get("id")), as_text(call.get("name")), call.get("args")
        if self._streamed is not None:
            if self._streamed.goes_on_in(call, id, name):
                self._go_on(self._streamed, call, part)
                return
            self._streamed = None  # it was to continue and did not: never closed, so never complete
        if not (name or arguments or call.get("partialArgs") or call.get("willContinue")):
            return  # an empty end of a call that has ended already
        self._calls += 1
        key = self._calls
        self._to.open(key, id, name)
        if call.get("willContinue") is True or call.get("partialArgs"):
            self._streamed = _Streamed(key, id, name, part)
            self._parts.add(self._streamed.part)
            # Never blank from here on: at the end of the stream blank arguments mean that there are none.
            self._to.arguments(key, "{")
            self._go_on(self._streamed, call, part)
            return
        self._parts.add(part)
        if not name:
            self._to.arguments(key, "{")
        elif isinstance(arguments, dict) or arguments in (None, "", []):
            self._to.close(key, cast("Object", arguments or {}))
        else:
            # Not blank, even for what JSON cannot express: the assembler has to refuse it, not take it for none.
            self._to.close(key, arguments if isinstance(arguments, str) else dump_arguments(arguments) or "{")

    def _go_on(self, streamed: _Streamed, call: Object, part: Object) -> None:
        if "thoughtSignature" in part:
            streamed.part.setdefault("thoughtSignature", part["thoughtSignature"])
        arguments = streamed.arguments
        ended = call.get("willContinue") is not True
        if ended:
            self._streamed = None
        if arguments is None:
            return
        try:
            for partial in call.get("partialArgs") or ():
                if isinstance(partial, dict) and "json_path" in partial:
                    partial = camel(cast("Object", partial))
                self._to.arguments(streamed.key, arguments.feed(partial))
            whole = call.get("args")
            if isinstance(whole, dict):
                self._to.arguments(streamed.key, arguments.feed_object(cast("Object", whole)))
        except (ValueError, TypeError):
            streamed.arguments = None
            raise
        if ended and streamed.name:
            closing = arguments.end()
            if closing is not None:
                self._to.arguments(streamed.key, closing)
                self._to.close(streamed.key, arguments.text())


def _unwrapped(event: Object) -> Object:
    if "candidates" not in event:
        inner = as_dict(event.get("response"))
        if not _INSIDE.isdisjoint(inner):
            return inner
    return event


def _usage(raw: Object) -> Usage:
    said = raw if "promptTokenCount" in raw else camel(raw)
    thoughts = as_int(said.get("thoughtsTokenCount"))
    return Usage(
        input_tokens=as_int(said.get("promptTokenCount")) + as_int(said.get("toolUsePromptTokenCount")),
        output_tokens=as_int(said.get("candidatesTokenCount")) + thoughts,
        cached_tokens=as_int(said.get("cachedContentTokenCount")),
        reasoning_tokens=thoughts,
        raw=raw,
    )


def _count_queries(arguments: Object) -> int:
    """A search has `queries`. One that a script writes may have a `query`, as with other providers."""
    return len(as_list(arguments.get("queries"))) or int(bool(arguments.get("query")))
