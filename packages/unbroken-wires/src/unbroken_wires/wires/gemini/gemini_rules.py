"""gemini: what Gemini models refuse, by family, on the Gemini API and on Vertex AI."""

from __future__ import annotations

from unbroken_wires.messages import Json
from unbroken_wires.wires.body_paths import changed, find, without
from unbroken_wires.wires.json_access import Object, as_dict, as_int, as_text, dicts
from unbroken_wires.wires.rules import (
    ANY_MODEL,
    ASSISTANT_FIRST,
    Asked,
    Between,
    Function,
    Matches,
    Mended,
    Named,
    NotTogether,
    Only,
    Refused,
    Rule,
    When,
    at_most_in,
    user_first,
)
from unbroken_wires.wires.schemas import keywords_of

GEMINI = ("gemini", "vertex")
GEMINI_3 = Named("gemini-3*", "gemini-flash-latest", "gemini-pro-latest", "gemini-4*")
BEFORE_3 = Named("gemini-1*", "gemini-2*")
NOT_THINKING = Named("gemini-2.0*", "gemini-1*", "!gemini-2.0-flash-thinking*")

_THINKING = "generationConfig.thinkingConfig"
_LEVELS = ("minimal", "low", "medium", "high")
_SUBSET = frozenset(
    (
        "type",
        "format",
        "title",
        "description",
        "nullable",
        "enum",
        "items",
        "maxItems",
        "minItems",
        "properties",
        "required",
        "minProperties",
        "maxProperties",
        "minimum",
        "maximum",
        "minLength",
        "maxLength",
        "pattern",
        "example",
        "anyOf",
        "propertyOrdering",
        "default",
    )
)
OUTPUT_KEYWORDS = frozenset(
    (
        "$id",
        "$defs",
        "$ref",
        "$anchor",
        "type",
        "format",
        "title",
        "description",
        "enum",
        "items",
        "prefixItems",
        "minItems",
        "maxItems",
        "minimum",
        "maximum",
        "anyOf",
        "oneOf",
        "properties",
        "additionalProperties",
        "required",
        "propertyOrdering",
    )
)
"""What `responseJsonSchema` may have (ai.google.dev/api/generate-content: GenerationConfig)."""
_NEAREST_LEVEL: dict[str, Json] = {"minimal": "low", "MINIMAL": "LOW", "medium": "high", "MEDIUM": "HIGH"}


def _level(body: Object) -> Mended | None:
    """The budget as a level, which these models know instead."""

    def change(thinking: Object) -> Object:
        budget = as_int(thinking.get("thinkingBudget"))
        rest = {key: value for key, value in thinking.items() if key != "thinkingBudget"}
        if budget < 0:
            return rest
        level = "MINIMAL" if budget <= 512 else "LOW" if budget <= 4096 else "MEDIUM" if budget <= 12288 else "HIGH"
        return {**rest, "thinkingLevel": level}

    return changed(body, _THINKING, change), []


def _odd_output_schemas(asked: Asked) -> list[str]:
    config = as_dict(asked.body.get("generationConfig"))
    given = [key for key in ("responseSchema", "responseJsonSchema", "_responseJsonSchema") if config.get(key)]
    unknown = keywords_of(config.get("responseJsonSchema")) - OUTPUT_KEYWORDS
    if given and (config.get("responseMimeType") != _JSON or len(given) > 1 or unknown):
        return [f"generationConfig.{given[0]}"]
    return []


def _beyond_subset(asked: Asked) -> list[str]:
    found: list[str] = []
    for where, schema in find(asked.body, "tools[].functionDeclarations[].parameters"):
        found += _unknown_keywords(schema, where)
    return found


def _unknown_keywords(value: Json, where: str) -> list[str]:
    schema = as_dict(value)
    found = [f"{where}.{key}" for key in schema if key not in _SUBSET]
    for name, inner in as_dict(schema.get("properties")).items():
        found += _unknown_keywords(inner, f"{where}.properties.{name}")
    if "items" in schema:
        found += _unknown_keywords(schema["items"], f"{where}.items")
    for n, inner in enumerate(dicts(schema.get("anyOf"))):
        found += _unknown_keywords(inner, f"{where}.anyOf[{n}]")
    return found


def _as_json_schema(body: Object) -> Mended | None:
    """Other keywords are accepted in `parametersJsonSchema`."""

    def change(declaration: Object) -> Object:
        if not _unknown_keywords(declaration.get("parameters"), ""):
            return declaration
        rest = {key: value for key, value in declaration.items() if key != "parameters"}
        return {**rest, "parametersJsonSchema": declaration["parameters"]}

    return changed(body, "tools[].functionDeclarations[]", change), []


def _says_nothing(asked: Asked) -> list[str]:
    contents = dicts(asked.body.get("contents"))
    return [
        f"contents[{n}]"
        for n, content in enumerate(contents)
        if not dicts(content.get("parts")) or any(not part for part in dicts(content.get("parts")))
    ]


def _roles(asked: Asked) -> list[str]:
    return [where for where, role in find(asked.body, "contents[].role") if role not in ("user", "model", "function")]


def _calls(content: Object) -> int:
    return sum("functionCall" in part for part in dicts(content.get("parts")))


def _results(content: Object) -> int:
    return sum("functionResponse" in part for part in dicts(content.get("parts")))


def _counts(asked: Asked) -> list[str]:
    contents = dicts(asked.body.get("contents"))
    return [
        f"contents[{n}]"
        for n, content in enumerate(contents)
        if (calls := _calls(content)) and n + 1 < len(contents) and _results(contents[n + 1]) != calls
    ]


def _after_model(asked: Asked) -> list[str]:
    """Calls that do not follow the user or results."""
    contents = dicts(asked.body.get("contents"))
    return [
        f"contents[{n}]"
        for n, content in enumerate(contents)
        if _calls(content) and (n == 0 or as_text(contents[n - 1].get("role")) == "model")
    ]


def _unsigned(asked: Asked) -> list[str]:
    """In the current turn the first call of each content has a signature."""
    contents = dicts(asked.body.get("contents"))
    start = max(
        (n for n, each in enumerate(contents) if each.get("role") != "model" and not _results(each)), default=-1
    )
    found: list[str] = []
    for n, content in enumerate(contents[start + 1 :], start + 1):
        calls = [part for part in dicts(content.get("parts")) if "functionCall" in part]
        if calls and not calls[0].get("thoughtSignature"):
            found.append(f"contents[{n}]")
    return found


_JSON = "application/json"


def _hidden_server_tools(asked: Asked) -> list[str]:
    tools = dicts(asked.body.get("tools"))
    keys = [key for tool in tools for key in tool]
    shown = as_dict(asked.body.get("toolConfig")).get("includeServerSideToolInvocations")
    beside = "functionDeclarations" in keys and any(key in _SERVER_TOOLS for key in keys)
    return ["tools"] if beside and not shown else []


_SERVER_TOOLS = ("googleSearch", "urlContext", "codeExecution", "fileSearch")

RULES = (
    Rule(
        "gemini.user-first",
        "the first turn is the user's",
        user_first("contents", "model", {"role": "user", "parts": [{"text": ASSISTANT_FIRST}]}),
        ANY_MODEL,
        GEMINI,
        "Please ensure that function call turn comes immediately after a user turn or after a function response turn.",
        source="ai.google.dev/gemini-api/docs/function-calling",
    ),
    Rule(
        "gemini.no-thinking",
        "`thinkingConfig` is for models that think",
        Refused(_THINKING),
        NOT_THINKING,
        GEMINI,
        "Unable to submit request because thinking is not supported by this model.",
        source="ai.google.dev/gemini-api/docs/thinking",
    ),
    Rule(
        "gemini.no-level",
        "`thinkingLevel` is known since Gemini 3",
        Refused(f"{_THINKING}.thinkingLevel"),
        BEFORE_3,
        GEMINI,
        "Thinking level is not supported for this model.",
        source="ai.google.dev/gemini-api/docs/thinking",
    ),
    Rule(
        "gemini.level-or-budget",
        "`thinkingLevel` and `thinkingBudget` are not accepted together",
        NotTogether(f"{_THINKING}.thinkingLevel", f"{_THINKING}.thinkingBudget"),
        ANY_MODEL,
        GEMINI,
        "You can only set only one of thinking budget and thinking level.",
        source="ai.google.dev/gemini-api/docs/gemini-3",
    ),
    Rule(
        "gemini.always-thinks",
        "thinking cannot be turned off",
        Function(
            lambda asked: [where for where, value in find(asked.body, f"{_THINKING}.thinkingBudget") if value == 0],
            _level,
            "generationConfig",
        ),
        Named("gemini-3-pro*", "gemini-3.*-pro*", "gemini-pro-latest"),
        GEMINI,
        "Budget 0 is invalid. This model only works in thinking mode.",
        source="ai.google.dev/gemini-api/docs/thinking",
    ),
    Rule(
        "gemini.levels-pro",
        "`thinkingLevel` is low or high",
        Only(
            f"{_THINKING}.thinkingLevel", ("low", "high", "LOW", "HIGH", "THINKING_LEVEL_UNSPECIFIED"), _NEAREST_LEVEL
        ),
        Named("gemini-3-pro*"),
        GEMINI,
        "Thinking level is not supported for this model.",
        source="ai.google.dev/gemini-api/docs/thinking",
    ),
    Rule(
        "gemini.budget-2.5-pro",
        "`thinkingBudget` is -1 or 128 to 32768",
        Between(f"{_THINKING}.thinkingBudget", 128, 32_768, but=(-1,)),
        Named("gemini-2.5-pro*"),
        GEMINI,
        "Unable to submit request because The model does not support setting thinking_budget to 0",
        source="ai.google.dev/gemini-api/docs/thinking",
    ),
    Rule(
        "gemini.budget-2.5-flash-lite",
        "`thinkingBudget` is -1, 0 or 512 to 24576",
        Between(f"{_THINKING}.thinkingBudget", 512, 24_576, but=(-1, 0)),
        Named("gemini-2.5-flash-lite*"),
        GEMINI,
        source="ai.google.dev/gemini-api/docs/thinking",
    ),
    Rule(
        "gemini.budget-2.5-flash",
        "`thinkingBudget` is -1 or 0 to 24576",
        Between(f"{_THINKING}.thinkingBudget", 0, 24_576, but=(-1,)),
        Named("gemini-2.5-flash*"),
        GEMINI,
        source="ai.google.dev/gemini-api/docs/thinking",
    ),
    Rule(
        "gemini.stop-5",
        "`stopSequences` has at most 5 texts",
        at_most_in("generationConfig.stopSequences", 5),
        ANY_MODEL,
        GEMINI,
        source="ai.google.dev/api/generate-content#GenerationConfig",
    ),
    Rule(
        "gemini.json-with-functions",
        "JSON output is not accepted beside functions",
        When(
            "tools[].functionDeclarations[]",
            Function(
                lambda asked: [
                    where for where, value in find(asked.body, "generationConfig.responseMimeType") if value == _JSON
                ]
            ),
        ),
        BEFORE_3,
        GEMINI,
        "Function calling with a response mime type: 'application/json' is unsupported",
        source="ai.google.dev/gemini-api/docs/structured-output",
        obeyed="by the encoder",
    ),
    Rule(
        "gemini.schema-needs-json",
        "a schema of the answer needs the MIME type of JSON, and is given once",
        Function(_odd_output_schemas, field="generationConfig"),
        ANY_MODEL,
        GEMINI,
        "Setting a response schema requires the response MIME type application/json, and one schema only",
        source="ai.google.dev/api/generate-content#GenerationConfig",
        obeyed="by the encoder",
    ),
    *(
        Rule(
            f"gemini.{name}-with-functions",
            f"`{key}` is not accepted beside functions",
            NotTogether("tools[].functionDeclarations[]", f"tools[].{key}"),
            BEFORE_3,
            GEMINI,
            "Tool use with function calling is unsupported",
            source="ai.google.dev/gemini-api/docs/function-calling",
        )
        for name, key in (("search", "googleSearch"), ("code", "codeExecution"), ("url-context", "urlContext"))
    ),
    Rule(
        "gemini.shown-server-tools",
        "server tools beside functions need `toolConfig.includeServerSideToolInvocations`",
        Function(_hidden_server_tools, field="tools"),
        Named("gemini-3*", "gemini-4*"),
        ("gemini",),
        "Please enable tool_config.include_server_side_tool_invocations to use Built-in tools with Function calling.",
        source="ai.google.dev/gemini-api/docs/tool-combination",
        obeyed="by the encoder",
    ),
    Rule(
        "gemini.parameters",
        "`parameters` has only the API's subset of OpenAPI",
        Function(_beyond_subset, _as_json_schema, "tools"),
        ANY_MODEL,
        GEMINI,
        "Invalid JSON payload received. Unknown name at '{where}': Cannot find field.",
        source="github.com/zed-industries/zed/issues/44875",
    ),
    Rule(
        "gemini.allowed-names",
        "`allowedFunctionNames` needs the mode ANY or VALIDATED",
        Function(
            lambda asked: [
                f"{where}.allowedFunctionNames"
                for where, config in find(asked.body, "toolConfig.functionCallingConfig{allowedFunctionNames}")
                if config.get("mode") not in ("ANY", "VALIDATED")
            ],
            lambda body: (without(body, "toolConfig.functionCallingConfig.allowedFunctionNames"), []),
            "toolConfig",
        ),
        ANY_MODEL,
        GEMINI,
        source="ai.google.dev/gemini-api/docs/function-calling",
    ),
    Rule(
        "gemini.function-name",
        "the name of a function begins with a letter or _, and has at most 128 letters, digits, _ . : and -",
        Matches("tools[].functionDeclarations[].name", r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}"),
        ANY_MODEL,
        GEMINI,
        "Invalid function name. Must start with a letter or an underscore. Must be alphameric (a-z, A-Z, 0-9), "
        "underscores (_), dots (.), colons (:), or dashes (-), with a maximum length of 64.",
        source="ai.google.dev/api/caching#FunctionDeclaration",
        obeyed="by the encoder",
    ),
    Rule(
        "gemini.parts",
        "every content has parts, and every part has something",
        Function(_says_nothing),
        ANY_MODEL,
        GEMINI,
        "Unable to submit request because it must include at least one parts field, which describes the prompt input.",
        source="ai.google.dev/api/generate-content",
        obeyed="by the encoder",
    ),
    Rule(
        "gemini.roles",
        "roles are user, model and function",
        Function(_roles),
        ANY_MODEL,
        GEMINI,
        "Please use a valid role: user, model.",
        source="ai.google.dev/api/generate-content",
        obeyed="by the encoder",
    ),
    Rule(
        "gemini.results",
        "as many results as calls, right after them",
        Function(_counts),
        ANY_MODEL,
        GEMINI,
        "Please ensure that the number of function response parts is equal to the number of function call parts of the "
        "function call turn.",
        source="ai.google.dev/gemini-api/docs/function-calling",
        obeyed="by the encoder",
    ),
    Rule(
        "gemini.calls-after-user",
        "calls follow the user or results",
        Function(_after_model),
        ANY_MODEL,
        GEMINI,
        "Please ensure that function call turn comes immediately after a user turn or after a function response turn.",
        source="ai.google.dev/gemini-api/docs/function-calling",
        obeyed="by the encoder",
    ),
    Rule(
        "gemini.signatures",
        "in the current turn the first call of each content has its `thoughtSignature`",
        Function(_unsigned),
        GEMINI_3,
        GEMINI,
        "Function call is missing a thought_signature in functionCall parts. This is required for tools to work "
        "correctly, and missing thought_signature may lead to degraded model performance.",
        source="ai.google.dev/gemini-api/docs/thought-signatures",
        obeyed="by the encoder",
    ),
    *(
        Rule(
            f"vertex.no-{path.rpartition('.')[2]}",
            f"`{path}` is a field of the Gemini API only",
            Refused(path),
            ANY_MODEL,
            ("vertex",),
            source="cloud.google.com/vertex-ai/generative-ai/docs",
        )
        for path in (
            "store",
            "contents[].parts[].partMetadata",
            "contents[].parts[].toolCall",
            "contents[].parts[].toolResponse",
            "tools[].fileSearch",
            "toolConfig.includeServerSideToolInvocations",
        )
    ),
)
