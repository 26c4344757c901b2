"""Gemini with the `google-genai` package: the content is sent back as it came, with its thought signatures."""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
# Runs where the client is installed, which is not where the types are checked.
from __future__ import annotations

from base64 import b64decode
from typing import Any

from google import genai
from google.genai import types
from task import DESCRIPTION, IMAGE, KEY, MODEL, PARAMETERS, PROMPT, REPORT, STREAM, URL, Report, finish, write_file

client = genai.Client(api_key=KEY, http_options=types.HttpOptions(base_url=URL))
function = types.FunctionDeclaration(name="write_file", description=DESCRIPTION, parameters_json_schema=PARAMETERS)
asked: dict[str, Any] = {"tools": [types.Tool(function_declarations=[function])]}
question = [types.Part.from_text(text=PROMPT)]
if IMAGE:
    asked |= {"response_mime_type": "application/json", "response_json_schema": REPORT}
    question.append(types.Part.from_bytes(data=b64decode(IMAGE), mime_type="image/png"))


def ask(contents):
    options = {"model": MODEL, "contents": contents, "config": types.GenerateContentConfig(**asked)}
    if not STREAM:
        return client.models.generate_content(**options).candidates[0].content.parts
    chunks = client.models.generate_content_stream(**options)
    return [part for chunk in chunks for part in chunk.candidates[0].content.parts or ()]


contents = [types.Content(role="user", parts=question)]
while True:
    parts = ask(contents)
    calls = [part.function_call for part in parts if part.function_call]
    if not calls:
        break
    contents.append(types.Content(role="model", parts=parts))
    results = [
        types.FunctionResponse(id=call.id, name=call.name, response={"result": write_file(**call.args)})
        for call in calls
    ]
    contents.append(types.Content(role="user", parts=[types.Part(function_response=result) for result in results]))
text = "".join(part.text for part in parts if part.text and not part.thought)
finish(Report.model_validate_json(text).summary if IMAGE else text)
