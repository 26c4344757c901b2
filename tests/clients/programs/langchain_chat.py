"""A chat model of `langchain-openai` with bound tools, over Chat Completions."""

# pyright: basic, reportMissingImports=false
# Runs where the client is installed, which is not where the types are checked.
from __future__ import annotations

from functools import reduce
from operator import add

from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from task import IMAGE, IMAGE_URL, KEY, MODEL, PROMPT, SERIAL, STREAM, URL, Report, finish, write_file

model = ChatOpenAI(model=MODEL, base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
writer = tool(write_file)
options = {"parallel_tool_calls": False} if SERIAL else {}
content = PROMPT
if IMAGE:
    options |= {"response_format": Report, "strict": True}
    content = [{"type": "text", "text": PROMPT}, {"type": "image_url", "image_url": {"url": IMAGE_URL}}]
bound = model.bind_tools([writer], **options)


def ask(messages):
    return reduce(add, bound.stream(messages)) if STREAM else bound.invoke(messages)


messages = [HumanMessage(content)]
while (answer := ask(messages)).tool_calls:
    messages += [answer, *(writer.invoke(call) for call in answer.tool_calls)]
finish(Report.model_validate_json(answer.text).summary if IMAGE else answer.text)
