"""Row 17: before what the model says, a search or a program that the provider ran itself, in the shape of each wire."""

from __future__ import annotations

from unbroken.testing.frames import Events, Spelled, dumps
from unbroken.testing.shapes import candidates_of, chat_event, delta_of, pieces_of
from unbroken.wires.values import Object, as_dict


def provider_run(events: Events, spelled: Spelled) -> Events:
    """Before what the model says, a search that the provider ran itself."""
    search = {
        "openai-chat": _chat_search,
        "openai-responses": _responses_search,
        "anthropic-messages": _messages_search,
        "gemini": _gemini_search,
    }[spelled.wire]
    return search(events, spelled)


_QUERY = {"query": "weather"}


def _chat_search(events: Events, spelled: Spelled) -> Events:
    call: Object = {
        "id": "srv_1",
        "type": "web_search",
        "function": {"name": "web_search", "arguments": dumps(_QUERY).decode()},
    }
    for event in events:
        pieces = pieces_of(event)
        if not spelled.stream:
            if pieces:
                pieces.append(call)
                as_dict(event)["choices"][0]["message"]["tool_calls"] = pieces
        elif as_dict(delta_of(event)).get("role"):
            yield event
            yield chat_event(event, {"tool_calls": [{"index": 9, **call}]})
            continue
        yield event


def _responses_search(events: Events, spelled: Spelled) -> Events:
    item: Object = {
        "id": "ws_1",
        "type": "web_search_call",
        "status": "completed",
        "action": {"type": "search", **_QUERY},
    }
    opened = False
    for event in events:
        fields = as_dict(event)
        if "output_index" in fields:
            fields["output_index"] += 1
            if not opened:
                opened = True
                yield {"type": "response.output_item.added", "output_index": 0, "item": item}
                yield {"type": "response.output_item.done", "output_index": 0, "item": item}
        for response in (fields, as_dict(fields.get("response"))):
            if response.get("output"):
                response["output"] = [item, *response["output"]]
        yield event


def _messages_search(events: Events, spelled: Spelled) -> Events:
    call: Object = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": _QUERY}
    found: Object = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    for event in events:
        fields = as_dict(event)
        if fields.get("type") == "message":
            fields["content"] = [call, found, *fields["content"]]
        if "index" in fields:
            fields["index"] += 2
        yield event
        if fields.get("type") == "message_start":
            for index, block in enumerate((call, found)):
                yield {"type": "content_block_start", "index": index, "content_block": block}
                yield {"type": "content_block_stop", "index": index}


def _gemini_search(events: Events, spelled: Spelled) -> Events:
    code: Object = {"executableCode": {"language": "PYTHON", "code": "print(1)"}}
    result: Object = {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1\n"}}
    first = True
    for event in events:
        for candidate in candidates_of(event):
            if first:
                candidate["content"]["parts"] = [code, result, *candidate["content"]["parts"]]
                first = False
        yield event
