"""The OpenAPI document of the admin API, made from its list of operations."""

from __future__ import annotations

from typing import Any

from unbroken import __version__
from unbroken_gateway.admin.api import BASE, OPERATIONS, Operation

_ERROR: dict[str, Any] = {
    "type": "object",
    "properties": {"error": {"type": "object", "properties": {"message": {"type": "string"}}}},
}
_REFUSALS = {
    401: "No key, or one that is not known or has expired.",
    403: "The key may not do this.",
    404: "There is no such thing, or the admin API is off.",
    405: "The path needs another method.",
    409: "There is one of this name already, or it is in the configuration file.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    422: "The body is not valid; the message names each mistake.",
    503: "The store does not answer.",
}


def described_api() -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(BASE + operation.path, {})[operation.method.lower()] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Unbroken gateway, administration", "version": __version__},
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "An admin key; an operator's key may read."}
            },
            "schemas": {"Error": _ERROR},
        },
    }


def _described(operation: Operation) -> dict[str, Any]:
    error = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    done = "201" if operation.method == "POST" and not operation.path.endswith(("/rotate", "/reload")) else "200"
    statuses = [status for status in _REFUSALS if operation.changes or status not in (409, 413, 415, 422)]
    described: dict[str, Any] = {
        "operationId": _name(operation),
        "summary": operation.summary,
        "responses": {
            done: {"description": "Done.", "content": {"application/json": {"schema": {"type": "object"}}}},
            **{str(status): {"description": _REFUSALS[status], **error} for status in statuses},
        },
    }
    if "{name}" in operation.path:
        described["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]
    if operation.body is not None:
        schema = operation.body.model_json_schema(by_alias=True)
        described["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    return described


def _name(operation: Operation) -> str:
    words = [word.strip("{}") for word in operation.path.split("/") if word]
    return "_".join([operation.method.lower(), *words])
