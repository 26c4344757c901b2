"""The gateway's interface as OpenAPI 3.1: for people, client generators and fuzzers. Data only.

The wires belong to their providers; only what the gateway itself looks at is described, and other fields pass through.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from unbroken import __version__

Object: TypeAlias = dict[str, Any]

_ABOUT = """\
A gateway between any client and any model. Each path speaks the wire of its provider, streamed and whole, and any
model can be asked through any of them. Where a client takes one tool call at a time, calls are held and handed out one
by one. Other paths under /v1 go to a provider of that wire as they are."""

_STATUSES = {
    400: "The request cannot be read, or the model refuses it.",
    401: "The gateway's key is missing or not known.",
    403: "The model's provider says no.",
    404: "There is no such model.",
    405: "Another method is meant.",
    408: "The request did not come in time.",
    413: "The body is too large.",
    429: "Too many requests; `retry-after` says when to come back.",
    431: "The headers are too large.",
    500: "The gateway failed.",
    502: "The model failed.",
    503: "The model, or the gateway's store, cannot be reached.",
    504: "The model did not answer in time.",
    529: "The model is overloaded.",
}

_HEADERS = {
    "x-unbroken-repairs": "Names of the repairs that the history needed.",
    "x-unbroken-turn": "`handed 2/3`: a call that had been held, the second of three. No model was asked. "
    "`lost; expired; 2 calls`: held calls that are not handed out, and why.",
    "x-unbroken-reasoning": "What became of reasoning that the model wants back and the client did not send.",
}


def openapi(models: Sequence[str] = ()) -> Object:
    """With the names of models, these are the ones that can be asked."""
    model: Object = {"type": "string", "minLength": 1, "description": "One of those that /v1/models lists."}
    if models:
        model["enum"] = list(models)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Unbroken gateway", "version": __version__, "description": _ABOUT},
        "paths": _paths(),
        "components": {
            "schemas": {"Model": model, **_requests(), **_answers(), **_errors()},
            "parameters": {
                "model": {"name": "model", "in": "path", "required": True, "schema": _ref("Model")},
                "alt": {
                    "name": "alt",
                    "in": "query",
                    "description": "`sse`: server-sent events instead of one JSON array.",
                    "schema": {"examples": ["sse"]},
                },
            },
            "headers": {name: {"description": words, "schema": _STRING} for name, words in _HEADERS.items()},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "anthropic": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                "google": {"type": "apiKey", "in": "header", "name": "x-goog-api-key"},
            },
        },
        "security": [{}, {"bearer": []}, {"anthropic": []}, {"google": []}],
    }


def _paths() -> Object:
    gemini = "/v1beta/models/{model}"
    in_path = [{"$ref": "#/components/parameters/model"}]
    streamed = [*in_path, {"$ref": "#/components/parameters/alt"}]
    return {
        "/v1/chat/completions": _ask("chat", "Chat completions of OpenAI", "ChatRequest", "ChatAnswer", "OpenAIError"),
        "/v1/responses": _ask("respond", "Responses of OpenAI", "ResponsesRequest", "ResponsesAnswer", "OpenAIError"),
        "/v1/messages": _ask("message", "Messages of Anthropic", "MessagesRequest", "MessagesAnswer", "AnthropicError"),
        "/v1/messages/count_tokens": _ask(
            "countMessageTokens",
            "How many tokens messages have",
            "CountMessagesRequest",
            "MessagesCount",
            "AnthropicError",
            streams=False,
        ),
        f"{gemini}:generateContent": _ask(
            "generate", "Contents of Gemini", "GeminiRequest", "GeminiAnswer", "GeminiError", in_path, streams=False
        ),
        f"{gemini}:streamGenerateContent": _ask(
            "generateStream", "The same, streamed", "GeminiRequest", "GeminiAnswers", "GeminiError", streamed
        ),
        f"{gemini}:countTokens": _ask(
            "countTokens",
            "How many tokens contents have",
            "CountContentsRequest",
            "GeminiCount",
            "GeminiError",
            in_path,
            streams=False,
        ),
        "/v1/models": _read("listModels", "The models, for clients of OpenAI and Anthropic", "Models", "OpenAIError"),
        "/v1beta/models": _read("listGeminiModels", "The models, for clients of Gemini", "Models", "GeminiError"),
        "/healthz": _read("healthz", "Is it there?", "Health", "OpenAIError", public=True),
        "/readyz": _read("readyz", "Can it keep what models say?", "Health", "OpenAIError", public=True, unready=True),
        "/status.json": _read("status", "What the page at / shows", "Status", "OpenAIError"),
        "/metrics": _read("metrics", "For Prometheus", "Text", "OpenAIError", media="text/plain"),
        "/openapi.json": _read("openapi", "This", "Description", "OpenAIError", public=True),
        "/": _read("page", "A page for people", "Text", "OpenAIError", public=True, media="text/html"),
    }


def _ask(
    name: str,
    summary: str,
    request: str,
    answer: str,
    error: str,
    parameters: Sequence[Object] = (),
    streams: bool = True,
) -> Object:
    content: Object = {"application/json": {"schema": _ref(answer)}}
    if streams:
        content["text/event-stream"] = {"schema": {"description": "Events as the provider of this wire sends them."}}
    headers = {name: {"$ref": f"#/components/headers/{name}"} for name in _HEADERS}
    operation: Object = {
        "operationId": name,
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": _ref(request)}}},
        "responses": {
            "200": {"description": "The answer.", "headers": headers, "content": content},
            **_refusals(error, *_STATUSES),
        },
    }
    if parameters:
        operation["parameters"] = list(parameters)
    return {"post": operation}


def _read(
    name: str,
    summary: str,
    answer: str,
    error: str,
    public: bool = False,
    media: str = "application/json",
    unready: bool = False,
) -> Object:
    operation: Object = {
        "operationId": name,
        "summary": summary,
        "responses": {
            "200": {"description": summary, "content": {media: {"schema": _ref(answer)}}},
            **_refusals(error, *((405, 408, 431, 500) if public else (401, 405, 408, 431, 500))),
        },
    }
    if unready:
        operation["responses"]["503"] = {
            "description": "Not now.",
            "content": {"application/json": {"schema": _ref(answer)}},
        }
    if public:
        operation["security"] = [{}]
    return {"get": operation}


def _refusals(error: str, *statuses: int) -> Object:
    def schema(status: int) -> Object:
        # What is refused before a path was read has OpenAI's shape.
        before = status in (400, 408, 431) and error != "OpenAIError"
        return {"anyOf": [_ref(error), _ref("OpenAIError")]} if before else _ref(error)

    return {
        str(status): {
            "description": _STATUSES[status],
            "content": {"application/json": {"schema": schema(status)}},
        }
        for status in statuses
    }


def _ref(name: str) -> Object:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(required: str = "", **properties: Object) -> Object:
    """Other fields than these may stand there too."""
    named: Object = {"type": "object", "properties": properties}
    if required:
        named["required"] = required.split()
    return named


def _list(of: Object, least: int = 0) -> Object:
    return {"type": "array", "items": of, **({"minItems": least} if least else {})}


def _or_null(schema: Object) -> Object:
    return {**schema, "type": [schema["type"], "null"]}


_ANY: Object = {"type": "object"}
_STRING: Object = {"type": "string"}
_BOOLEAN: Object = {"type": "boolean"}
_INTEGER: Object = {"type": "integer"}
_NUMBER: Object = {"type": "number"}
_SEVERAL: Object = {
    "type": ["boolean", "null"],
    "description": "False: one call at a time. Further calls of the model are held, and handed out one by one.",
}


def _requests() -> Object:
    sampling = {"temperature": _or_null(_NUMBER), "top_p": _or_null(_NUMBER)}
    chat_message = {
        "type": "object",
        "description": "As OpenAI has it: `role` is system, developer, user, assistant or tool.",
        "examples": [{"role": "user", "content": "What is on the list?"}],
    }
    message = {
        "type": "object",
        "description": "As Anthropic has it: `role` is user or assistant.",
        "examples": [{"role": "user", "content": "What is on the list?"}],
    }
    content = {
        "type": "object",
        "description": "As Google has it: `role` is user or model, `parts` what is said.",
        "examples": [{"role": "user", "parts": [{"text": "What is on the list?"}]}],
    }
    tools = _or_null(_list(_ANY))
    contents = _list(content, least=1)
    messages = _list(message, least=1)
    return {
        "ChatRequest": _object(
            "model messages",
            model=_ref("Model"),
            messages=_list(chat_message, least=1),
            stream=_or_null(_BOOLEAN),
            stream_options=_or_null(_ANY),
            tools=tools,
            parallel_tool_calls=_SEVERAL,
            max_tokens=_or_null(_INTEGER),
            max_completion_tokens=_or_null(_INTEGER),
            metadata=_or_null(_ANY),
            **sampling,
        ),
        "ResponsesRequest": _object(
            "model input",
            model=_ref("Model"),
            input={"anyOf": [_STRING, _list({"type": ["object", "string"]}, least=1)]},
            stream=_or_null(_BOOLEAN),
            tools=tools,
            parallel_tool_calls=_SEVERAL,
            max_output_tokens=_or_null(_INTEGER),
            metadata=_or_null(_ANY),
            **sampling,
        ),
        "MessagesRequest": _object(
            "model messages",
            model=_ref("Model"),
            messages=messages,
            max_tokens=_or_null(_INTEGER),
            stream=_or_null(_BOOLEAN),
            tools=tools,
            metadata=_or_null(_ANY),
            **sampling,
        ),
        "CountMessagesRequest": _object("model messages", model=_ref("Model"), messages=messages, tools=tools),
        "GeminiRequest": _object("contents", contents=contents, tools=tools, generationConfig=_or_null(_ANY)),
        "CountContentsRequest": _object("contents", contents=contents),
    }


def _answers() -> Object:
    listed = _object(
        "id object", id=_STRING, object={"const": "model"}, created=_INTEGER, created_at=_STRING, owned_by=_STRING
    )
    return {
        "ChatAnswer": _object(
            "id object created model choices",
            id=_STRING,
            object={"const": "chat.completion"},
            created=_INTEGER,
            model=_STRING,
            choices=_list(_object("index message finish_reason", index=_INTEGER, message=_ANY, finish_reason={})),
            usage=_or_null(_ANY),
        ),
        "ResponsesAnswer": _object(
            "id object status output",
            id=_STRING,
            object={"const": "response"},
            status=_STRING,
            output=_list(_object("type", type=_STRING)),
        ),
        "MessagesAnswer": _object(
            "id type role content stop_reason usage",
            id=_STRING,
            type={"const": "message"},
            role={"const": "assistant"},
            content=_list(_object("type", type=_STRING)),
            stop_reason=_or_null(_STRING),
            usage=_ANY,
        ),
        "MessagesCount": _object("input_tokens", input_tokens=_INTEGER),
        "GeminiAnswer": _object(candidates=_list(_object(content=_ANY, finishReason=_STRING)), usageMetadata=_ANY),
        "GeminiAnswers": _list(_ref("GeminiAnswer")),
        "GeminiCount": _object("totalTokens", totalTokens=_INTEGER),
        "Models": _object(
            "object data models",
            object={"const": "list"},
            data=_list(listed),
            models=_list(_object("name", name=_STRING)),
        ),
        "Health": _object("status", status=_STRING, reason=_STRING),
        "Status": _object("status view", status=_ANY, view=_ANY),
        "Description": _object("openapi", openapi=_STRING),
        "Text": _STRING,
    }


def _errors() -> Object:
    code = {"type": ["string", "integer", "null"]}
    openai = _object("message type", message=_STRING, type=_STRING, param=_or_null(_STRING), code=code)
    anthropic = _object("type message", type=_STRING, message=_STRING)
    gemini = _object("code message status", code=_INTEGER, message=_STRING, status=_STRING)
    return {
        "OpenAIError": _object("error", error=openai),
        "AnthropicError": _object("type error", type={"const": "error"}, error=anthropic),
        "GeminiError": _object("error", error=gemini),
    }
