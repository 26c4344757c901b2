"""The gateway's interface as OpenAPI 3.1: for people, client generators and fuzzers.

Requests have the types that the gateway checks (`HttpApi.fields`), and paths are those of `routes`. Each wire is
defined by its provider: other fields pass through, and only what all answers have in common is described.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

from unbroken import __version__
from unbroken_gateway.http.routes import Route, error_wire, find_route
from unbroken_wires.wires import find_wire
from unbroken_wires.wires.json_access import Object

Shape: TypeAlias = Any
"""Shorthand for a JSON schema: a type, several types in a tuple, `[shape]` for a list, `{name: shape}` for an object (a
name with `?` is optional), `object` for anything, "#Name" for the schema of that name, any other string for that
constant."""

_ABOUT = """\
A gateway between any client and any model. Each path has the wire of its provider, streaming or not, and every model is
available on every path. If a client takes one tool call at a time, further calls are held and released one by one.
Other paths are forwarded to a provider only if the operator lists them (`passing.paths`, or `--pass` of a key)."""

_STATUSES = {
    400: "The request cannot be read, or the model refuses it.",
    401: "The gateway's key is missing or not known.",
    403: "The model's provider denied access.",
    404: "There is no such model.",
    405: "The path does not allow this method.",
    408: "The request did not arrive in time.",
    413: "The body is too large.",
    429: "Too many requests; `retry-after` is the number of seconds to wait.",
    431: "The headers are too large.",
    500: "The gateway failed.",
    502: "The model failed.",
    503: "The model, or the gateway's store, cannot be reached.",
    504: "The model did not answer in time.",
    529: "The model is overloaded.",
}

_HEADERS = {
    "x-unbroken-repairs": "Names of the repairs that the history needed.",
    "x-unbroken-turn": "`handed 2/3`: a held call was released, the second of three. No model was asked. "
    "`lost; expired; 2 calls`: held calls that will not be released, and why.",
    "x-unbroken-expires": "Seconds that the gateway waits for the result of a released call while others are held.",
    "x-unbroken-reasoning": "What happened to reasoning that the model needs back and the client did not send.",
}


class _Page(NamedTuple):
    name: str
    summary: str
    answer: str = "Text"
    media: str = "application/json"
    public: bool = False


_GEMINI = "/v1beta/models/{model}"
_ASKS = {
    "/v1/chat/completions": ("chat", "OpenAI Chat Completions", "ChatRequest", "ChatAnswer"),
    "/v1/responses": ("respond", "OpenAI Responses", "ResponsesRequest", "ResponsesAnswer"),
    "/v1/responses/compact": ("compact", "Compact a conversation", "CompactRequest", "Compaction"),
    "/v1/responses/input_tokens": (
        "countInputTokens",
        "Count the tokens of a request",
        "CountInputRequest",
        "InputCount",
    ),
    "/v1/messages": ("message", "Anthropic Messages", "MessagesRequest", "MessagesAnswer"),
    "/v1/messages/count_tokens": (
        "countMessageTokens",
        "Count the tokens of messages",
        "CountMessagesRequest",
        "MessagesCount",
    ),
    f"{_GEMINI}:generateContent": ("generate", "Gemini generateContent", "GeminiRequest", "GeminiAnswer"),
    f"{_GEMINI}:streamGenerateContent": (
        "generateStream",
        "Gemini generateContent, streaming",
        "GeminiRequest",
        "GeminiAnswers",
    ),
    f"{_GEMINI}:countTokens": ("countTokens", "Count the tokens of contents", "CountContentsRequest", "GeminiCount"),
    "/api/chat": ("ollamaChat", "Ollama chat", "OllamaRequest", "OllamaAnswer"),
    "/v2/chat": ("cohereChat", "Cohere chat, version 2", "CohereRequest", "CohereAnswer"),
    "/model/{model}/converse": ("converse", "Bedrock Converse", "ConverseRequest", "ConverseAnswer"),
    "/model/{model}/converse-stream": ("converseStream", "Bedrock ConverseStream", "ConverseRequest", "ConverseAnswer"),
}
"""By path: the operation, its summary, and the schemas of request and answer."""
_PAGES = {
    "/v1/models": _Page("listModels", "List the models, for OpenAI and Anthropic clients", "Models"),
    "/v1beta/models": _Page("listGeminiModels", "List the models, for Gemini clients", "Models"),
    "/healthz": _Page("healthz", "Is the gateway running?", "Health", public=True),
    "/readyz": _Page("readyz", "Can the gateway store answers?", "Health", public=True),
    "/status.json": _Page("status", "The data of the page at /", "Status"),
    "/spend.json": _Page("spend", "What was spent: the data of the page at /spend", "Spend"),
    "/spend": _Page("spendPage", "What was spent", media="text/html", public=True),
    "/metrics": _Page("metrics", "For Prometheus", media="text/plain"),
    "/openapi.json": _Page("openapi", "This description", "Description", public=True),
    "/": _Page("page", "Status page", media="text/html", public=True),
}
_STORED = {
    "/v1/responses/{id}": {
        "get": _Page("readResponse", "A stored response", "ResponsesAnswer"),
        "delete": _Page("deleteResponse", "Delete a stored response", "Deleted"),
    },
    "/v1/responses/{id}/input_items": {"get": _Page("listInputItems", "What a stored response answers", "Items")},
}
"""By path and method: what can be done with a stored response."""
_RUN_ERRORS = (400, 401, 404, 405, 408, 413, 429, 500, 503)
_RUNS = {
    "/runs": {
        "get": _Page("listRuns", "Durable runs, the latest first", "Runs"),
        "post": _Page("startRun", "Start a durable run", "Run"),
    },
    "/runs/{run}": {"get": _Page("readRun", "A durable run", "Run")},
    "/runs/{run}/answers": {"post": _Page("answerCalls", "Answer the calls that a run waits for", "Run")},
    "/runs/{run}/cancel": {"post": _Page("cancelRun", "End a run, wherever it is driven", "Run")},
    "/runs/{run}/events": {
        "get": _Page("watchRun", "The events of a run, live", media="text/event-stream"),
    },
    "/runs/{run}/ui": {"get": _Page("watchRunAsUiMessage", "For the AI SDK", media="text/event-stream")},
    "/runs/{run}/ag-ui": {"get": _Page("watchRunAsAgUi", "For AG-UI clients", media="text/event-stream")},
}
"""By path and method: durable runs, if the gateway serves them."""
_RUN_BODIES = {"/runs": "NewRun", "/runs/{run}/answers": "Answers", "/runs/{run}/cancel": "Cancelling"}
_RUN_SHAPES: Mapping[str, Shape] = {
    "Run": {
        **dict.fromkeys(("run_id", "agent", "tenant", "state", "question", "error"), str),
        "created": float,
        "updated": float,
        "pending": [{"id": str, "name": str, "arguments": (dict, None), "arguments_text": str, "needs": str}],
        "expires": (float, None),
        "drives": int,
    },
    "Runs": {"runs": ["#Run"], "more": bool},
    "NewRun": {"agent": str, "prompt": str, "run_id?": str, "tenant?": str, "answer_within?": float},
    "Answers": dict,
    "Cancelling": {"reason?": str},
    "RunError": {"error": {"message": str, "status": int}},
}
_ALT: Object = {
    "name": "alt",
    "in": "query",
    "description": "`sse`: server-sent events instead of one JSON array.",
    "schema": {"examples": ["sse"]},
}
_REQUESTS = {
    "ChatRequest": "stream stream_options tools parallel_tool_calls max_tokens max_completion_tokens metadata "
    "temperature top_p",
    "ResponsesRequest": "stream tools parallel_tool_calls max_output_tokens metadata temperature top_p",
    "CompactRequest": "instructions",
    "CountInputRequest": "instructions tools",
    "MessagesRequest": "max_tokens stream tools metadata temperature top_p",
    "CountMessagesRequest": "tools",
    "GeminiRequest": "tools generationConfig",
    "CountContentsRequest": "",
    "OllamaRequest": "stream tools options think format",
    "CohereRequest": "stream tools tool_choice strict_tools max_tokens temperature p seed stop_sequences thinking",
    "ConverseRequest": "system inferenceConfig toolConfig additionalModelRequestFields",
}
"""The fields that are described, beside model and messages. Their types are those that the gateway checks."""
_MORE: Mapping[str, Object] = {
    "tools": {"items": {"type": "object"}},
    "parallel_tool_calls": {
        "description": "False: one call at a time. Further calls of the model are held and released one by one."
    },
}
"""Descriptions of some fields."""
_SHAPES: Mapping[str, Shape] = {
    "ChatAnswer": {
        "id": str,
        "object": "chat.completion",
        "created": int,
        "model": str,
        "choices": [{"index": int, "message": dict, "finish_reason": object}],
        "usage?": (dict, None),
    },
    "ResponsesAnswer": {"id": str, "object": "response", "status": str, "output": [{"type": str}]},
    "Compaction": {"id": str, "object": "response.compaction", "output": [{"type": str}], "usage": dict},
    "Items": {"object": "list", "data": [{"id": str, "type": str}], "has_more": bool},
    "Deleted": {"id": str, "object": "response", "deleted": bool},
    "MessagesAnswer": {
        "id": str,
        "type": "message",
        "role": "assistant",
        "content": [{"type": str}],
        "stop_reason": (str, None),
        "usage": dict,
    },
    "MessagesCount": {"input_tokens": int},
    "InputCount": {"object": "response.input_tokens", "input_tokens": int},
    "GeminiAnswer": {"candidates?": [{"content?": dict, "finishReason?": str}], "usageMetadata?": dict},
    "GeminiAnswers": ["#GeminiAnswer"],
    "GeminiCount": {"totalTokens": int},
    "OllamaAnswer": {"model": str, "created_at": str, "message": {"role": str, "content": str}, "done": bool},
    "CohereAnswer": {"id": str, "message": {"role": "assistant"}, "finish_reason": str, "usage?": dict},
    "ConverseAnswer": {
        "output": {"message": {"role": "assistant", "content": [dict]}},
        "stopReason": str,
        "usage": dict,
    },
    "Models": {
        "object": "list",
        "data": [{"id": str, "object": "model", "created?": int, "created_at?": str, "owned_by?": str}],
        "models": [{"name": str}],
    },
    "Health": {"status": str, "reason?": str},
    "Status": {"status": dict, "view": dict},
    "Spend": {"spend": list, "budgets": list, "view": dict},
    "Description": {"openapi": str},
    "Text": str,
    "OpenAIError": {"error": {"message": str, "type": str, "param?": (str, None), "code?": (str, int, None)}},
    "AnthropicError": {"type": "error", "error": {"type": str, "message": str}},
    "OllamaError": {"error": str},
    "CohereError": {"message": str},
    "BedrockError": {"__type": str, "message": str},
    "GeminiError": {"error": {"code": int, "message": str, "status": str}},
}
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object", None: "null"}


def openapi(models: Sequence[str] = (), *, runs: bool = False) -> Object:
    """If `models` is given, it lists the models that a client may ask for. `runs`: the gateway serves durable runs."""
    shapes = {**_SHAPES, **(_RUN_SHAPES if runs else {})}
    model: Object = {"type": "string", "minLength": 1, "description": "One of the models that /v1/models lists."}
    if models:
        model["enum"] = list(models)
    requests = {request: _request(_route(path), _REQUESTS[request]) for path, (_, _, request, _) in _ASKS.items()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Unbroken gateway", "version": __version__, "description": _ABOUT},
        "paths": {
            **{path: {"post": _ask(path, *ask)} for path, ask in _ASKS.items()},
            **{path: {"get": _page(path, page)} for path, page in _PAGES.items()},
            **{path: _stored(path, methods) for path, methods in _STORED.items()},
            **({path: _runs(path, methods) for path, methods in _RUNS.items()} if runs else {}),
        },
        "components": {
            "schemas": {"Model": model, **requests, **{name: _schema(shape) for name, shape in shapes.items()}},
            "headers": {name: {"description": words, "schema": _schema(str)} for name, words in _HEADERS.items()},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "anthropic": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                "google": {"type": "apiKey", "in": "header", "name": "x-goog-api-key"},
            },
        },
        "security": [{}, {"bearer": []}, {"anthropic": []}, {"google": []}],
    }


def _schema(shape: Shape) -> Object:
    match shape:
        case dict():
            fields = cast("dict[str, Shape]", shape)
            properties = {name.removesuffix("?"): _schema(value) for name, value in fields.items()}
            required = [name for name in fields if not name.endswith("?")]
            return {"type": "object", "properties": properties, **({"required": required} if required else {})}
        case tuple():
            kinds = cast("tuple[type | None, ...]", shape)
            return {"type": [_TYPES[kind] for kind in kinds if kind is not int or float not in kinds]}
        case [one]:
            return {"type": "array", "items": _schema(one)}
        case str():
            return {"$ref": f"#/components/schemas/{shape[1:]}"} if shape.startswith("#") else {"const": shape}
        case _:
            return {} if shape is object else {"type": _TYPES[shape]}


def _request(route: Route, fields: str) -> Object:
    http = route.http
    words = "The kind of entry."
    message = _described(http.message_fields)
    message["description"] = f"As the provider defines it: `role` is {route.http.roles}."
    message["examples"] = [{"role": "user", http.parts_field: [{"text": words}] if route.model else words}]
    messages: Object = {"type": "array", "items": message, "minItems": 1}
    if http.messages_of({http.messages_field: words}) != words:
        messages = {"anyOf": [_schema(str), messages]}
    schema = _described({name: http.fields[name] for name in fields.split()})
    own = (
        {http.messages_field: messages} if route.model else {"model": _schema("#Model"), http.messages_field: messages}
    )
    return {**schema, "properties": own | schema["properties"], "required": list(own)}


def _described(fields: Mapping[str, tuple[type, ...]]) -> Object:
    """Null means the same as a missing field."""
    properties = {name: _schema((*kinds, None)) | _MORE.get(name, {}) for name, kinds in fields.items()}
    return {"type": "object", "properties": properties}


def _route(path: str) -> Route:
    route = find_route(path)
    assert route is not None, path
    return route


def _ask(path: str, name: str, summary: str, request: str, answer: str) -> Object:
    route = _route(path)
    arrays = bool(route.streams) and route.http.wants_array("")
    content: Object = {}
    if not route.streams or arrays:
        content["application/json"] = {"schema": _schema(f"#{answer}")}
    if route.wanted == "answer" and route.streams is not False:
        kind = find_wire(route.wire).framing.content_type
        content[kind] = {"schema": {"description": "Events as the provider of this wire sends them."}}
    headers = {name: {"$ref": f"#/components/headers/{name}"} for name in _HEADERS}
    parameters: list[Object] = []
    if route.model:
        parameters.append({"name": "model", "in": "path", "required": True, "schema": _schema("#Model")})
    if arrays:
        parameters.append(_ALT)
    return {
        "operationId": name,
        "summary": summary,
        "parameters": parameters,
        "requestBody": {"required": True, "content": {"application/json": {"schema": _schema(f"#{request}")}}},
        "responses": {
            "200": {"description": "The answer.", "headers": headers, "content": content},
            **_refusals(path, _STATUSES),
        },
    }


def _page(path: str, page: _Page) -> Object:
    content = {page.media: {"schema": _schema(f"#{page.answer}")}}
    refused = [405, 408, 431, 500] if page.public else [401, 405, 408, 431, 500]
    responses = {"200": {"description": page.summary, "content": content}, **_refusals(path, refused)}
    if path == "/readyz":
        responses["503"] = {"description": "Not now.", "content": content}
    security: Object = {"security": [{}]} if page.public else {}
    return {"operationId": page.name, "summary": page.summary, "responses": responses, **security}


def _stored(path: str, methods: Mapping[str, _Page]) -> Object:
    id: Object = {"name": "id", "in": "path", "required": True, "schema": _schema(str)}
    missing = _refusals(path, [400, 404, 429, 503])
    missing["404"]["description"] = "It is not stored, or not for this key."
    described = {method: _page(path, page) for method, page in methods.items()}
    for one in described.values():
        one["responses"] |= missing
    return {"parameters": [id], **described}


def _runs(path: str, methods: Mapping[str, _Page]) -> Object:
    described: Object = {}
    if "{run}" in path:
        described["parameters"] = [{"name": "run", "in": "path", "required": True, "schema": _schema(str)}]
    error = {"content": {"application/json": {"schema": _schema("#RunError")}}}
    for method, page in methods.items():
        answer = {"description": page.summary, "content": {page.media: {"schema": _schema(f"#{page.answer}")}}}
        responses: Object = {"200": answer}
        operation: Object = {"operationId": page.name, "summary": page.summary, "responses": responses}
        described[method] = operation
        responses |= {str(status): {"description": _STATUSES[status], **error} for status in _RUN_ERRORS}
        responses["404"]["description"] = "There is no such run, or not for this key."
        if page.media == "text/event-stream":
            responses["204"] = {"description": "The run has ended, and the client has all of it."}
        if method == "post":
            body = {"application/json": {"schema": _schema(f"#{_RUN_BODIES[path]}")}}
            operation["requestBody"] = {"required": path != "/runs/{run}/cancel", "content": body}
            responses["409"] = {"description": "Somebody was first: the id is taken, or it was decided.", **error}
        if page.name == "startRun":
            responses["201"] = {**answer, "description": "It was started now; 200: it was started before."}
    return described


def _refusals(path: str, statuses: Iterable[int]) -> Object:
    own = f"#{find_wire(error_wire(path)).http.error_name}"

    def schema(status: int) -> Object:
        # Errors before the path is known have OpenAI's shape.
        before = status in (400, 408, 431) and own != "#OpenAIError"
        return {"anyOf": [_schema(own), _schema("#OpenAIError")]} if before else _schema(own)

    return {
        str(status): {"description": _STATUSES[status], "content": {"application/json": {"schema": schema(status)}}}
        for status in statuses
    }
