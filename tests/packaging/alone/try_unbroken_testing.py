"""A scripted server answers a real client."""

from unbroken import Agent, connect
from unbroken_testing import serve

with serve("Hello.") as server:
    result = Agent(connect("openai:gpt-5", base_url=server.base_url(), api_key="a key")).run_sync("Hi")
assert result.text == "Hello."
