"""A scripted server answers a real client, and pytest loads the plugin."""

from importlib.metadata import entry_points

from unbroken import Agent, connect
from unbroken_testing import serve

with serve("Hello.") as server:
    result = Agent(connect("openai:gpt-5", base_url=server.base_url(), api_key="a key")).run_sync("Hi")
assert result.text == "Hello."
(plugin,) = entry_points(group="pytest11", name="unbroken")
plugin.load()
