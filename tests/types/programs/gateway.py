"""A gateway, configured from Python, with an agent behind an alias."""

import json
from urllib.request import Request, urlopen

from unbroken_gateway import ClientProfile, Gateway, GatewaySettings, UpstreamSettings, running

settings = GatewaySettings(
    (UpstreamSettings("demo", "demo"), UpstreamSettings("serial", "demo")),
    clients=(ClientProfile("old", user_agent="old-client"),),
    store="memory:",
    port=0,
)
app = Gateway(settings)
with running(settings) as url:
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hi."}]}
    with urlopen(Request(f"{url}/v1/chat/completions", json.dumps(body).encode())) as answer:
        assert json.load(answer)["choices"][0]["message"]["content"]
